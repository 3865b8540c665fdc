"""Sums over relations of SAGEConv and GraphConv, of a whole layer, as one function."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from .aggregate import Bipartite, RowGradient, by_destination, sum_up


class Share(NamedTuple):
    """What a relation adds to the rows of its destinations:
    ``aggregate @ of_neighbors.T + root[:num_dst] @ of_root.T + bias``. All are float32, or all float64."""

    x: Tensor
    """Rows of sources, [num_src, F]."""
    weight: Tensor | None
    """Of messages, without a gradient: [e, 1]; or None."""
    edges: Bipartite | None
    """None: there are none, and the first product is left out."""
    reduce: str
    """Of messages: sum, mean, max or min."""
    of_neighbors: Tensor
    """[C, F]."""
    bias: Tensor | None
    """[C]."""
    root: Tensor | None
    """Rows of which the first ones are the destinations' own, [num_dst or more, G]; or None, and so is ``of_root``."""
    of_root: Tensor | None
    """[C, G]."""


class _Places(NamedTuple):
    """A share whose tensors are given by their places in a list; -1: none."""

    x: int
    of_neighbors: int
    bias: int
    root: int
    of_root: int
    weight: Tensor | None
    edges: Bipartite | None
    reduce: str

    @property
    def is_extreme(self) -> bool:
        return self.reduce in ("max", "min")

    @property
    def read_edges(self) -> Bipartite:
        """The edges of a share that reads rows."""
        assert self.edges is not None
        return self.edges


class _Sum(NamedTuple):
    """Several shares of one type of destinations, which are added and multiplied by ``scale``."""

    shares: list[_Places]
    num_dst: int
    scale: float

    def roots(self) -> dict[int, list[int]]:
        """By place of rows of destinations, the places of what they are multiplied by."""
        found: dict[int, list[int]] = {}
        for share in self.shares:
            if share.root >= 0:
                found.setdefault(share.root, []).append(share.of_root)
        return found

    def biases(self) -> list[int]:
        return [share.bias for share in self.shares if share.bias >= 0]


class _Tensors:
    """A list of tensors, each once, and their places."""

    def __init__(self) -> None:
        self.all: list[Tensor] = []
        self._places: dict[int, int] = {}

    def place(self, tensor: Tensor | None) -> int:
        if tensor is None:
            return -1
        place = self._places.setdefault(id(tensor), len(self.all))
        if place == len(self.all):
            self.all.append(tensor)
        return place


def _total(tensors: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    if len(places) == 1:
        return tensors[places[0]]
    return torch.stack([tensors[place] for place in places]).sum(0)


def _computed(of: _Sum, tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
    """The sum, [num_dst, C], and the aggregate of each share; None of those without edges."""
    of_neighbors = tensors[of.shares[0].of_neighbors]
    biases, scale = of.biases(), of.scale
    bias = _total(tensors, biases) if biases else of_neighbors.new_zeros(of_neighbors.size(0))
    out = bias if scale == 1 else bias * scale
    for root, factors in of.roots().items():
        given, factor = tensors[root][: of.num_dst], _total(tensors, factors).t()
        out = torch.addmm(out, given, factor, alpha=scale) if out.dim() == 1 else out.addmm_(given, factor, alpha=scale)
    if out.dim() == 1:
        out = out.repeat(of.num_dst, 1)
    aggregates: list[Tensor | None] = []
    for share in of.shares:
        aggregate = None
        if share.edges is not None:
            aggregate = sum_up(tensors[share.x], share.weight, share.edges, share.reduce, None)
            out.addmm_(aggregate, tensors[share.of_neighbors].t(), alpha=scale)
        aggregates.append(aggregate)
    return out, aggregates


def _readers(sums: Sequence[_Sum], needs: Sequence[bool]) -> dict[int, list[tuple[int, _Places]]]:
    """By place of rows of sources that need a gradient, the shares that read them, and the numbers of their sums."""
    found: dict[int, list[tuple[int, _Places]]] = {}
    for number, of in enumerate(sums):
        for share in of.shares:
            if share.edges is not None and needs[share.x]:
                found.setdefault(share.x, []).append((number, share))
    return found


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: list[_Sum], *tensors: Tensor) -> tuple[Tensor, ...]:
        needs, outs, kept = ctx.needs_input_grad[1:], list[Tensor](), list[Tensor | None]()
        wanted = [False] * len(tensors)
        for of in sums:
            out, aggregates = _computed(of, tensors)
            outs.append(out)
            for share, aggregate in zip(of.shares, aggregates, strict=True):
                kept.append(aggregate if needs[share.of_neighbors] or (needs[share.x] and share.is_extreme) else None)
                if share.root >= 0:
                    wanted[share.root] |= needs[share.of_root]
                    wanted[share.of_root] |= needs[share.root]
        for place, readers in _readers(sums, needs).items():
            for _, share in readers:
                wanted[share.of_neighbors] = True
                wanted[place] |= share.is_extreme
                if share.is_extreme or len(readers) == 1:
                    share.read_edges.want_transposed()
        ctx.sums = sums
        ctx.like = [(t.shape, t.dtype, t.device) if need else None for t, need in zip(tensors, needs, strict=True)]
        ctx.save_for_backward(*(t if want else None for t, want in zip(tensors, wanted, strict=True)), *kept)
        ctx.set_materialize_grads(False)
        return tuple(outs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        device = next((grad.device.type for grad in grads if grad is not None), "cpu")
        with torch.autocast(device, enabled=False):  # the forward pass was without it
            return None, *_Gradients(ctx, grads).found


class _Gradients:
    """The gradients of all tensors of sums, in ``found``.

    Args:
        ctx: of the forward pass.
        grads: those of the sums; None: nobody reads it.
    """

    def __init__(self, ctx: Any, grads: Sequence[Tensor | None]) -> None:
        self.needs, self.like = ctx.needs_input_grad[1:], ctx.like
        self.tensors, self.aggregates = ctx.saved_tensors[: len(self.needs)], ctx.saved_tensors[len(self.needs) :]
        self.found: list[Tensor | None] = [None] * len(self.needs)
        self.grads = [
            grad if grad is None or of.scale == 1 else grad * of.scale for grad, of in zip(grads, ctx.sums, strict=True)
        ]
        extremes: dict[int, Tensor] = {}
        aggregates = iter(self.aggregates)
        for of, grad in zip(ctx.sums, self.grads, strict=True):
            for share in of.shares:
                aggregate = next(aggregates)
                extremes[id(share)] = aggregate
                if grad is not None and self.needs[share.of_neighbors]:
                    place = share.of_neighbors
                    self._add(place, self._zeros(place) if aggregate is None else grad.t().mm(aggregate))
        for place, readers in _readers(ctx.sums, self.needs).items():
            self._of_rows(place, readers, extremes)
        for of, grad in zip(ctx.sums, self.grads, strict=True):  # now most rows have a gradient to add to
            if grad is not None:
                self._of_roots(of, grad)
                for share in of.shares:
                    if self.needs[share.x] and self.found[share.x] is None:
                        self.found[share.x] = self._zeros(share.x)

    def _grad(self, number: int) -> Tensor:
        """Of a sum that is read."""
        grad = self.grads[number]
        assert grad is not None
        return grad

    def _zeros(self, place: int) -> Tensor:
        shape, dtype, device = self.like[place]
        return torch.zeros(shape, dtype=dtype, device=device)

    def _add(self, place: int, gradient: Tensor) -> None:
        """Of a parameter."""
        found = self.found[place]
        self.found[place] = gradient if found is None else found + gradient

    def _add_to_all(self, places: list[int], gradient: Tensor) -> None:
        """Of several parameters; each gets memory of its own, for users scale gradients in place."""
        for number, place in enumerate(places):
            self._add(place, gradient.clone() if number else gradient)

    def _of_rows(self, place: int, readers: list[tuple[int, _Places]], extremes: dict[int, Tensor]) -> None:
        """Of rows of sources: sums over the edges from each source."""
        read = [reader for reader in readers if self.grads[reader[0]] is not None]
        together = [reader for reader in read if not (reader[1].is_extreme or len(readers) == 1)]
        alone = [reader for reader in read if reader[1].is_extreme or len(readers) == 1]
        if together:
            self.found[place] = self._over_relations(place, together)
        for number, share in alone:
            messages = self._grad(number).mm(self.tensors[share.of_neighbors])
            extreme = extremes[id(share)] if share.is_extreme else None
            rows = RowGradient(messages, self.tensors[place], share.weight, share.read_edges, share.reduce, extreme)
            found, more = self.found[place], rows.of(0, self.like[place][0][0])
            self.found[place] = more if found is None else found.add_(more)

    def _over_relations(self, place: int, readers: list[tuple[int, _Places]]) -> Tensor:
        """One sum over the edges of several relations: a row is written once, not once for each relation."""
        (num_rows, width), dtype, device = self.like[place]
        ends = [0, *accumulate(len(self._grad(number)) for number, _ in readers)]
        messages = torch.empty(ends[-1], width, dtype=dtype, device=device)
        for (number, share), first, last in zip(readers, ends, ends[1:], strict=False):
            part = torch.mm(self._grad(number), self.tensors[share.of_neighbors], out=messages[first:last])
            if share.reduce == "mean":
                part /= share.read_edges.forward.ptr.diff().unsqueeze(1)
        edges = [share.read_edges for _, share in readers]
        src = torch.cat([of.index[0] for of in edges])
        dst = torch.cat([of.index[1] + first if first else of.index[1] for of, first in zip(edges, ends, strict=False)])
        columns, weight = by_destination(dst, src, ends[-1], num_rows), None
        if any(share.weight is not None for _, share in readers):
            ones = torch.ones((), dtype=dtype, device=device)
            weight = torch.cat([
                ones.expand(of.num_edges, 1) if share.weight is None else share.weight[: of.num_edges]
                for (_, share), of in zip(readers, edges, strict=True)
            ])  # fmt: skip
        return ops.aggregate(columns.ptr, columns.node, messages, "sum", weight=weight, edge=columns.edge)

    def _of_roots(self, of: _Sum, grad: Tensor) -> None:
        biases = [place for place in of.biases() if self.needs[place]]
        if biases:
            self._add_to_all(biases, grad.sum(0))
        for root, factors in of.roots().items():
            wanted = [place for place in factors if self.needs[place]]
            if wanted:
                self._add_to_all(wanted, grad.t().mm(self.tensors[root][: of.num_dst]))
            if self.needs[root]:
                found = self.found[root]
                found = self.found[root] = self._zeros(root) if found is None else found
                found[: of.num_dst].addmm_(grad, _total(self.tensors, factors))


def sums(shares: Sequence[Sequence[Share]], nums_dst: Sequence[int], scales: Sequence[float]) -> list[Tensor]:
    """``scale * (sum of shares)``, [num_dst, C], for each list of shares; differentiable once.

    The rows of a type are multiplied once by the sum of all ``of_root``, products are added in place, and the gradients
    of rows that several shares read are added in one tensor. A relation without edges costs neither product nor
    aggregation.

    Args:
        shares: of each sum one or more, of as many channels C.
        nums_dst: how many destinations each sum has, and so the edges of its shares.
        scales: of each sum.
    """
    tensors, found = _Tensors(), list[_Sum]()
    place = tensors.place
    for several, num_dst, scale in zip(shares, nums_dst, scales, strict=True):
        places = [
            _Places(place(s.x), place(s.of_neighbors), place(s.bias), place(s.root), place(s.of_root),
                    s.weight, s.edges, s.reduce)
            for s in several
        ]  # fmt: skip
        found.append(_Sum(places, num_dst, scale))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors.all):
        return list(_Sums.apply(found, *tensors.all))
    return [_computed(of, tensors.all)[0] for of in found]
