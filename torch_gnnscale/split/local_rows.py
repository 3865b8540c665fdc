"""Which tensors have a row for each node of a rank's share of a batch, and its hops, whose layers read own rows
first."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch_geometric import EdgeIndex

from .. import ops
from ..comm.exchange import Moved
from ..comm.row_transport import RowTransport
from ..nn.aggregate import Apart, Bipartite, Entries
from ..nn.forward_pass import JOINS, NARROWED, CommonRows
from ..nn.hops import BatchHops, HopEdges, first_rows
from ..nn.trial import DROPOUTS, OTHER_DROPOUTS
from ..nn.wrapper import running_here
from .rank_rows import Moves, ShuffleIndex


class OwnHops(BatchHops):
    """The own nodes of a batch that is cut over ranks, and the edges into them.

    Numbers of nodes and edges are those of own nodes, and of edges into them; ``rows`` are those of the nodes.
    With n own nodes, a source in ``edge_index`` below n is an own node, and the source n + i is the node at position i
    of the halo.

    Args:
        batch: of a loader with ``split=``.
        verify: see :class:`torch_gnnscale.nn.hops.BatchHops`.
    """

    def __init__(self, batch: Any, verify: bool) -> None:
        super().__init__(batch, verify)
        self.index: ShuffleIndex = batch.shuffle_index
        self._moves: dict[int, Moves] = {}
        relation = self.only
        self.rows, self.edge_index = relation.dst.rows, relation.index
        relation.edges = self.mixed_edges(relation.edges.edges, relation.ends)

    def mixed_edges(self, edges: Bipartite, ends: list[int]) -> HopEdges:
        """The prefixes of edges into own nodes. ``ends[h]``: how many edges have destinations in groups 0..h."""
        kind = HopEdges if self.index.num_halo == 0 else _MixedEdges
        found = kind(edges, self.rows, self.rows, ends)
        if isinstance(found, _MixedEdges):
            found.hops = self
        return found

    def moves(self, groups: int) -> Moves:
        """What travels before a layer that computes the nodes of groups 0..groups-1."""
        if groups not in self._moves:
            self._moves[groups] = Moves(self.index, groups)
        return self._moves[groups]

    def mixed_rows(self, groups: int) -> int:
        """How many rows a layer reads whose sources are the first ``groups`` groups: own rows and the halo's."""
        return self.rows[groups - 1] + len(self.moves(groups - 1).halo)

    def places(self, groups: int, most: int) -> Tensor:
        """Where the rows that layers read whose sources are the first ``groups`` groups lie among those of ``most``
        groups: int64, shape [mixed_rows(groups)]. The host waits for no GPU."""
        fewer, more = self.moves(groups - 1).num_received, self.moves(most - 1).num_received
        begins = accumulate(more, initial=self.rows[most - 1])
        bounds = [
            (0, self.rows[groups - 1]),
            *((begin, begin + count) for begin, count in zip(begins, fewer, strict=False)),
        ]
        return torch.cat([torch.arange(*ends, device=self.index.sent.device) for ends in bounds])


class _MixedEdges(HopEdges):
    """Edges whose prefixes have sources among the rows that a layer reads: own rows, and after them the halo's."""

    hops: OwnHops

    def prefix(self, groups: int) -> Bipartite:
        """The edges to the own nodes of the first ``groups - 1`` groups."""
        found = self._prefixes.get(groups)
        if found is None:
            found = self._prefixes[groups] = self._renumbered(groups)
        return found

    def _renumbered(self, groups: int) -> Bipartite:
        hops, count = self.hops, self.ends[groups - 2]
        own, ptr = hops.rows[groups - 1], self.edges.forward.ptr[: self.dst_rows[groups - 2] + 1]
        halo, index = hops.moves(groups - 1).halo, self.edges.index[:, :count]
        if own < hops.rows[-1] or len(halo) < hops.index.num_halo:
            place = halo.new_zeros(hops.rows[-1] + hops.index.num_halo)
            place[:own] = torch.arange(own, device=place.device)
            place[hops.rows[-1] + halo] = torch.arange(own, own + len(halo), device=place.device)
            index = torch.stack([place.index_select(0, index[0]), index[1]])
        return Bipartite(index, Entries(ptr, index[0], None), own + len(halo), len(ptr) - 1)


_TAKES = {"index_select", "gather", "take", "take_along_dim"}
"""Functions whose results have the rows of their indices."""
_ADDS = ("scatter", "index_add", "index_reduce", "index_put", "index_copy", "index_fill")
"""Functions whose results have the rows of their first argument begin with these names."""


class KnownRows(NamedTuple):
    """The nodes that a tensor has rows of."""

    groups: int
    """The rows are those of the own nodes of the first ``groups`` groups."""
    mixed: bool = False
    """Whether rows of the halo follow."""


class OwnNodeRows(CommonRows):
    """Keeps track of the tensors that have a row for each own node of a batch's first groups.

    It follows tensors from function to function, because numbers of rows do not tell: on a rank they may be zero, one,
    or equal for several groups. It cuts the operands of element-wise functions and joins to the rows that all of them
    have, and applies dropout to rows of nodes by masks that do not depend on the number of ranks.

    Args:
        hops: of the batch.
        drop: ``drop(x, p, rows)``: x with numbers dropped; x has the rows of the first ``rows`` own nodes.
    """

    everywhere = True

    def __init__(self, hops: OwnHops, drop: Callable[[Tensor, float, int], Tensor]) -> None:
        super().__init__(hops)
        self.own_hops, self.drop = hops, drop
        self.finds_out = False
        """Whether it is being found out how a model calls its layers. Dropout and BatchNorm of mixed rows are then
        errors in evaluation mode and on a single rank, too, and so are rows of nodes that are taken by the edges'
        sources."""
        self.keeps_all = False
        """Whether nothing is dropped."""
        self.in_layer = False
        """Whether a layer is being computed."""
        index = hops.edge_index.as_tensor() if isinstance(hops.edge_index, EdgeIndex) else hops.edge_index
        self._sources = range(index.data_ptr(), index[1].data_ptr()) if index.is_contiguous() else range(0)
        """The addresses of the edges' sources."""
        self._known: dict[int, tuple[weakref.ref[Tensor], KnownRows]] = {}

    def mark(self, tensor: Any, groups: int, mixed: bool = False) -> None:
        """Says what rows a tensor has; other objects are left alone."""
        if isinstance(tensor, Tensor):
            self._known[id(tensor)] = (
                weakref.ref(tensor),
                KnownRows(groups, mixed and (self.own_hops.index.parts > 1 or self.finds_out)),
            )

    def rows_of(self, value: Any) -> KnownRows | None:
        """The rows of a tensor, as far as they are known."""
        found = self._known.get(id(value))
        return found[1] if found is not None and found[0]() is value else None

    def count(self, rows: KnownRows) -> int:
        """How many rows these are on this rank."""
        return self.own_hops.mixed_rows(rows.groups) if rows.mixed else self.own_hops.rows[rows.groups - 1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        self.note(name, args)
        if name == "__get__" or self.only_notes:
            return func(*args, **kwargs)
        if self.finds_out and not self.in_layer:
            self._refuse_sources(name, [*_values(args, kwargs)])
        found = {rows for value in _with_rows(name, args, kwargs) if (rows := self.rows_of(value)) is not None}
        if not found:
            return func(*args, **kwargs)
        if name in DROPOUTS:
            out = self._dropped(func, *args, **kwargs)
        else:
            of_ranks = self.own_hops.index.parts > 1
            if of_ranks and name == "batch_norm" and kwargs.get("training", args[5] if len(args) > 5 else False):
                raise NotImplementedError(
                    f"{running_here()}: expected statistics of rows of nodes by nn.BatchNorm1d, found F.batch_norm"
                )
            if name in OTHER_DROPOUTS and kwargs.get("training", args[2] if len(args) > 2 else False):
                raise NotImplementedError(
                    f"{running_here()}: expected dropout of rows of nodes by F.dropout, found {name}"
                )
            if len(found) > 1 and name in NARROWED:
                args, kwargs = self._cut(name, args, kwargs)
                found = {KnownRows(min(rows.groups for rows in found)), *found}
            out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            self._mark_result(out, found)
        elif isinstance(out, (tuple, list)):
            for entry in out:
                if isinstance(entry, Tensor):
                    self._mark_result(entry, found)
        return out

    def _refuse_sources(self, name: str, values: list[Any]) -> None:
        """Raises NotImplementedError if a function takes, with rows of nodes, the sources of the batch's edges, or
        multiplies rows by a sparse matrix: a source in the halo has no row."""
        known = [self.rows_of(value) is not None for value in values]
        by = ""
        for number, value in enumerate(values):
            if not isinstance(value, Tensor):
                continue
            if value.layout != torch.strided:
                if not known[number] and any(known[number + 1 :]):
                    by = "a sparse matrix"
            elif value.data_ptr() in self._sources and any(known):
                by = "the batch's edge_index"
        if by:
            raise NotImplementedError(
                f"{running_here()}: expected a model that reads edges in MessagePassing layers alone, found "
                f"{name} of rows of nodes by {by}: sources of other ranks have no rows here"
            )

    def _mark_result(self, out: Tensor, found: set[KnownRows]) -> None:
        """If a result has as many rows as one of its inputs, they are the same nodes'. If several inputs have that
        number of rows, they are taken for the rows of the fewest groups."""
        if out.dim() > 0:
            for rows in sorted(found):
                if out.size(0) == self.count(rows):
                    self._known[id(out)] = weakref.ref(out), rows
                    return

    def _cut(self, name: str, args: Any, kwargs: Any) -> Any:
        operands = [*(args[0] if name in JOINS and args else args)]
        if name in JOINS and name != "stack":
            tensors = [value for value in operands if isinstance(value, Tensor)]
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            if not tensors or dim in (0, -tensors[0].dim()):
                return args, kwargs
        most = max((value.dim() for value in operands if isinstance(value, Tensor)), default=0)
        # An operand of fewer dimensions, or whose rows are not those of nodes, is broadcast: it stays whole.
        rows = [
            self.rows_of(value) if isinstance(value, Tensor) and value.dim() == most else None for value in operands
        ]
        known = {entry for entry in rows if entry is not None}
        if len(known) < 2:
            return args, kwargs
        count = self.count(KnownRows(min(entry.groups for entry in known)))
        cut = [
            value if entry is None else first_rows(value, count) for value, entry in zip(operands, rows, strict=True)
        ]
        return ((cut, *args[1:]), kwargs) if name in JOINS else (tuple(cut), kwargs)

    def _dropped(
        self, func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        rows = self.rows_of(input)
        if rows is None:
            return (
                func(input, p, training, inplace)
                if func.__module__ == "torch.nn.functional"
                else func(input, p, training)
            )
        if rows.mixed and (training or self.finds_out):
            raise NotImplementedError(
                f"{running_here()}: expected dropout of what a layer returns or gets, found it within a layer on "
                f"rows of sources"
            )
        if not training or p == 0 or self.keeps_all:
            return input
        out = self.drop(input, p, self.count(rows))
        return input.copy_(out) if inplace or func.__name__ == "dropout_" else out


def _with_rows(name: str, args: Any, kwargs: Any) -> Iterator[Any]:
    """The arguments, and entries of arguments, whose rows may be those of the function's result."""
    if name in _TAKES:
        return _values(args[1:], kwargs)
    if name.startswith(_ADDS):
        return _values(args[:1], {})
    if name == "__getitem__":
        first = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        if not (first is Ellipsis or (isinstance(first, slice) and first == slice(None))):
            return _values((first,), {})
    return _values(args, kwargs)


def _values(args: Any, kwargs: Any) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (tuple, list)):
            yield from value
        else:
            yield value


# Rows that ranks exchange before a layer ##############################################################################


@dataclass
class Work:
    """What one rank has done so far."""

    batches: int = 0
    """Of how many batches it had a share."""
    rows: int = 0
    """Own nodes of these shares: this rank alone has loaded their features."""
    halo: int = 0
    """Rows of other ranks' features that came with the batches, in ``x_halo``."""
    edges: dict[str, int] = field(default_factory=dict)
    """By layer: the edges into own nodes that it computed, forward; with the self loops that a layer adds."""
    shuffled: dict[str, Moved] = field(default_factory=dict)
    """By purpose, as in :attr:`torch_gnnscale.split.Parallelized.traffic`: ``forward NAME`` are rows that the layer
    NAME reads, ``backward NAME`` their gradients, ``forward degrees`` numbers of nodes."""


def mixed(transport: RowTransport, own: Tensor, moves: Moves, purpose: str) -> Tensor:
    """[own; halo]: the own rows and after them those of other ranks, in the order of the halo; differentiable.

    Every rank calls it, forward and backward, also with no rows.

    Args:
        transport: to the ranks over which the batch is cut.
        own: [n, ...]; of floats if a gradient is asked for.
        moves: rows in [0, n).
        purpose: what the exchanges are counted as.
    """
    return _Mixed.apply(own, transport, moves, purpose)


def apart(transport: RowTransport, own: Tensor, moves: Moves, purpose: str) -> Apart:
    """The rows of :func:`mixed` that are not ``own``, float32 or float64; valid until the next exchange. On the way
    back, where own needs a gradient, the others' shares are added to it without a copy."""
    given = own.detach().contiguous()

    def receive(meanwhile: Callable[[], None]) -> Tensor:
        return transport.rows(given, moves, f"forward {purpose}", meanwhile)

    def give_back(of_rows: Callable[[], Tensor], of_x: Callable[[], Tensor]) -> Tensor:
        found: list[Tensor] = []
        came = transport.swap(
            of_rows(), moves.num_received, moves.num_sent, f"backward {purpose}", lambda: found.append(of_x())
        )
        (of_own,) = found
        for sent, of_sent in zip(moves.sent.split(moves.num_sent), came, strict=True):
            of_own.index_add_(0, sent, of_sent)  # of one rank no row comes twice
        return of_own

    return Apart(receive, give_back)


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, transport: RowTransport, moves: Moves, purpose: str) -> Tensor:
        ctx.transport, ctx.moves, ctx.purpose = transport, moves, purpose
        return transport.joined(own.contiguous(), moves, f"forward {purpose}")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        moves, grad = ctx.moves, grad.contiguous()
        own, of_halo = grad.split([len(grad) - sum(moves.num_received), sum(moves.num_received)])
        came = ctx.transport.swap(of_halo, moves.num_received, moves.num_sent, f"backward {ctx.purpose}")
        ptr, part, row = moves.added(len(own))
        return ops.shuffle_rows(own, came, part, row, ptr, check=False), None, None, None


class _OfAllRanks(torch.autograd.Function):
    """The values of all ranks, [P, n]. In the backward pass a rank's gradient is the sum over all ranks, added in the
    order of ranks."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, transport: RowTransport, purpose: str) -> Tensor:
        ctx.transport, ctx.purpose = transport, purpose
        return _everyone(values.repeat(transport.exchange.size, 1), transport, f"forward {purpose}")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        came = _everyone(grad.contiguous(), ctx.transport, f"backward {ctx.purpose}")
        total = came[0].clone()
        for other in came[1:]:
            total += other
        return total, None, None


def of_all_ranks(values: Tensor, transport: RowTransport, purpose: str) -> Tensor:
    """The ``values`` of each rank, [n] on every rank, as [P, n]; differentiable."""
    return _OfAllRanks.apply(values, transport, purpose)


def _everyone(rows: Tensor, transport: RowTransport, purpose: str) -> Tensor:
    """Row p of the result is the row that rank p has for this one; row p of ``rows`` goes to rank p."""
    pieces = list(transport.to_device(rows).unbind())
    found = transport.tensors(pieces, [rows.size(1)] * transport.exchange.size, purpose)
    return torch.stack(found).to(rows.device)
