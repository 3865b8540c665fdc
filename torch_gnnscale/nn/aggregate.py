"""Aggregation of neighbors' rows over a CSC, forward and backward, without a tensor of messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from .._private import column_pointer


class Entries(NamedTuple):
    """Edges sorted by destination, or, transposed, by source: the columns of :mod:`torch_gnnscale.ops.aggregation`."""

    ptr: Tensor
    node: Tensor
    edge: Tensor | None


def by_destination(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> Entries:
    """The entries of edges in any order; those of a column are in rising order of their edges.

    On a GPU ids are not checked, for which the host would wait.
    """
    if src.device.type == "cpu":
        ptr, entries = ops.coo_to_csc(src, dst, num_src, num_dst)
        return Entries(ptr, entries[:, 0], entries[:, 1])
    # A radix sort takes half as many passes over numbers of 32 bits.
    dst, edge = torch.sort(dst.int() if num_dst < 1 << 31 else dst, stable=True)
    return Entries(column_pointer(dst, num_dst), src[edge], edge)


@dataclass
class Bipartite:
    """Edges from ``num_src`` sources to ``num_dst`` destinations, ready to be aggregated over in both directions.

    The transposed entries, a column for each source, are made when a gradient first needs them.
    """

    index: Tensor
    """int64, [2, e]: sources in [0, num_src) and destinations in [0, num_dst)."""
    forward: Entries
    """A column for each destination."""
    num_src: int
    num_dst: int
    whole: Bipartite | None = None
    """The edges of which these are a prefix."""
    _wanted: Bipartite | None = field(default=None, repr=False)
    """Of the whole: a copy of its largest prefix of which :meth:`want_transposed` was called."""
    _transposed: Entries | None = field(default=None, repr=False)
    """Of the whole: the transposed entries of ``_wanted``."""

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return self.index.size(1)

    @classmethod
    def sorted(cls, index: Tensor, ptr: Tensor, num_src: int) -> Bipartite:
        """Edges that are sorted by destination; ``ptr`` is int64, [num_dst + 1]."""
        return cls(index, Entries(ptr, index[0], None), num_src, ptr.size(0) - 1)

    @classmethod
    def from_coo(cls, index: Tensor, num_src: int, num_dst: int) -> Bipartite:
        """Edges in any order."""
        return cls(index, by_destination(index[0], index[1], num_src, num_dst), num_src, num_dst)

    def want_transposed(self) -> None:
        """Says that :meth:`transposed` will be called. Call it for every prefix before the first is transposed: the
        largest is then transposed once, for all of them."""
        whole = self.whole or self
        wanted = whole._wanted
        if wanted is None or (self.num_src, self.num_edges) > (wanted.num_src, wanted.num_edges):
            # A copy that does not refer to the whole: reference cycles would wait for the garbage collector.
            whole._wanted = Bipartite(self.index, self.forward, self.num_src, self.num_dst)
            whole._transposed = None

    def transposed(self) -> Entries:
        """At least ``num_src`` columns, one for each source; a column's edges are in rising order. Of a prefix, columns
        may go on with edges >= ``num_edges``, and further columns may follow."""
        whole = self.whole or self
        if whole._transposed is None:
            wanted = whole._wanted
            assert wanted is not None, "want_transposed was not called"
            assert (wanted.num_src, wanted.num_edges) >= (self.num_src, self.num_edges), "nor for this prefix"
            whole._transposed = by_destination(wanted.index[1], wanted.index[0], wanted.num_dst, wanted.num_src)
        return whole._transposed

    def prefix(self, num_src: int, num_dst: int, num_edges: int) -> Bipartite:
        """The first ``num_edges`` of sorted edges: those into the first ``num_dst`` destinations, whose sources are
        below ``num_src``."""
        assert self.forward.edge is None, "only sorted edges have prefixes"
        ptr, node, _ = self.forward
        return Bipartite(
            self.index[:, :num_edges], Entries(ptr[: num_dst + 1], node[:num_edges], None), num_src, num_dst, self
        )


class Apart(NamedTuple):
    """Rows of the last sources, k of them, which come from elsewhere; they get no gradient."""

    receive: Callable[[Callable[[], None]], Tensor]
    """``receive(meanwhile)``, called once, returns the rows, [k, ...] like x; ``meanwhile`` is called while they are
    on their way."""
    give_back: Callable[[Callable[[], Tensor], Callable[[], Tensor]], Tensor] | None
    """``give_back(of_rows, of_x)``, called once if x needs a gradient: calls ``of_rows`` for the gradient of the rows,
    [k, F], and, while that is on its way, ``of_x`` for that of x, [n, F], which it returns after adding to it, in
    place, what others have of it."""


def sum_up(x: Tensor, weight: Tensor | None, edges: Bipartite, reduce: str, more: Tensor | None) -> Tensor:
    """The aggregate: [num_dst, F]. Arguments as of :func:`aggregate_and_root`; ``more``: the rows of its ``apart``."""
    columns, more = edges.forward, None if more is None else _as_matrix(more)
    return ops.aggregate(columns.ptr, columns.node, x, reduce, weight=weight, edge=columns.edge, more=more)


class RowGradient:
    """Computes the gradient of the sources' rows.

    Args:
        grad: that of the aggregate, [num_dst, F].
        x, weight, edges, reduce: as in :func:`sum_up`; x is read with ``extreme`` alone.
        extreme: the aggregate itself, if ``reduce`` is "max" or "min".
    """

    def __init__(
        self,
        grad: Tensor,
        x: Tensor | None,
        weight: Tensor | None,
        edges: Bipartite,
        reduce: str,
        extreme: Tensor | None,
    ) -> None:
        # Under "mean" each destination's row, divided by its degree; rows without edges are not read.
        self.of_messages = grad / edges.forward.ptr.diff().unsqueeze(1) if reduce == "mean" else grad.contiguous()
        self.x, self.weight, self.edges, self.extreme = x, weight, edges, extreme

    def of(self, first: int, last: int) -> Tensor:
        """That of the sources ``first`` .. ``last - 1``: [last - first, F]. With ``extreme``, they are all sources."""
        edges, x = self.edges, self.x
        ptr, node, edge = edges.transposed()
        ptr, count = ptr[first : last + 1], edges.num_edges
        if self.extreme is None:
            return ops.aggregate(ptr, node, self.of_messages, "sum", weight=self.weight, edge=edge, num_edges=count)
        columns = edges.forward
        assert x is not None
        shares = ops.share_of_extremes(columns.ptr, columns.node, x, self.extreme, self.of_messages)
        return ops.extreme_backward(ptr, node, x, self.extreme, shares, edge=edge, num_edges=count)


class _Aggregate(torch.autograd.Function):
    """The aggregate, and ``x[:num_dst]``; the gradients of both are added in one tensor of x's size."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, edges: Bipartite, reduce: str, apart: Apart | None
    ) -> tuple[Tensor, Tensor]:
        out = sum_up(x, weight, edges, reduce, None if apart is None else apart.receive(_nothing))
        ctx.edges, ctx.reduce, ctx.give_back = edges, reduce, None if apart is None else apart.give_back
        if ctx.needs_input_grad[0]:
            edges.want_transposed()
        ctx.save_for_backward(x, weight, out if reduce in ("max", "min") else None)
        ctx.set_materialize_grads(False)
        return out, x[: edges.num_dst]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, of_root: Tensor | None) -> tuple[Tensor | None, ...]:
        edges, (x, weight, extreme) = ctx.edges, ctx.saved_tensors
        rows = None if grad is None else RowGradient(grad, x, weight, edges, ctx.reduce, extreme)

        def of(first: int, last: int) -> Tensor:
            return x.new_zeros(last - first, x.size(1)) if rows is None else rows.of(first, last)

        def of_x() -> Tensor:
            found = of(0, len(x))
            if of_root is not None:
                found[: edges.num_dst].add_(of_root)
            return found

        found = of_weight = None
        if ctx.needs_input_grad[0]:
            if ctx.give_back is None:
                found = of_x()
            else:
                found = ctx.give_back(lambda: of(len(x), edges.num_src), of_x)
        if rows is not None and ctx.needs_input_grad[1]:
            columns = edges.forward
            of_weight = ops.edge_dot(columns.ptr, columns.node, x, rows.of_messages, weight.size(1), edge=columns.edge)
        return found, of_weight, None, None, None


def _nothing() -> None:
    pass


def sort_edges(index: Tensor, num_src: int, num_dst: int) -> tuple[Bipartite, Tensor]:
    """The edges sorted by destination, stably, and the order: ``edges.index == index[:, order]``."""
    ptr, _, edge = by_destination(index[0], index[1], num_src, num_dst)
    assert edge is not None
    order = edge.long()
    return Bipartite.sorted(index[:, order], ptr, num_src), order


def by_head(edges: Bipartite, heads: int, sources: bool) -> Bipartite:
    """The edges of each head, from its own sources or from the same ones, to its own columns: head h of destination i
    is column h * num_dst + i, and so with ``sources`` for these."""
    if heads == 1:
        return edges
    head = torch.arange(heads, device=edges.index.device).unsqueeze(1)
    src = (edges.index[0] + head * edges.num_src * sources).view(-1)
    dst = (edges.index[1] + head * edges.num_dst).view(-1)
    ptr = (edges.forward.ptr[:-1] + head * edges.num_edges).view(-1)
    ptr = torch.cat([ptr, ptr.new_full((1,), heads * edges.num_edges)])
    return Bipartite.sorted(torch.stack([src, dst]), ptr, edges.num_src * (heads if sources else 1))


def _as_matrix(x: Tensor) -> Tensor:
    """Shape [n, F], also where n is 0, which ``reshape(n, -1)`` refuses."""
    return x if x.dim() == 2 else x.unsqueeze(1) if x.dim() == 1 else x.flatten(1)


def aggregate_and_root(
    x: Tensor, edges: Bipartite, reduce: str = "sum", weight: Tensor | None = None, apart: Apart | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`aggregate`, and ``x[:num_dst]``: the destinations' own rows, if sources and destinations are of one type.

    ``apart`` gives the rows of the last sources, which x then lacks; for a sum or mean, without a gradient of
    ``weight``.
    """
    assert apart is None or (reduce in ("sum", "mean") and not (weight is not None and weight.requires_grad))
    if weight is not None and weight.dim() == 1:
        weight = weight.unsqueeze(1)
    matrix = _as_matrix(x)
    if torch.is_grad_enabled() and (x.requires_grad or (weight is not None and weight.requires_grad)):
        out, root = _Aggregate.apply(matrix, weight, edges, reduce, apart)
    else:
        out = sum_up(matrix, weight, edges, reduce, None if apart is None else apart.receive(_nothing))
        root = matrix[: edges.num_dst]
    if x.dim() == 2:
        return out, root
    return out.view(edges.num_dst, *x.shape[1:]), root.view(root.size(0), *x.shape[1:])


def aggregate(x: Tensor, edges: Bipartite, reduce: str = "sum", weight: Tensor | None = None) -> Tensor:
    """Row i is the ``reduce`` of ``weight[e] * x[source of e]`` over the edges e into i; differentiable once.

    Args:
        x: float32, float64, float16 or bfloat16 on the CPU or a GPU, shape [num_src, ...].
        edges: with ``num_src`` sources.
        reduce: "sum", "mean", "max" or "min"; with weights "sum" or "mean".
        weight: one number per edge, shape [e], or one per edge and head, shape [e, heads] with x of shape
            [num_src, heads, ...]; in the dtype of x, or in float32 beside 16 bits.

    Returns:
        Shape [num_dst, ...], in the dtype of ``weight``, if there are weights, else that of x.
    """
    return aggregate_and_root(x, edges, reduce, weight)[0]
