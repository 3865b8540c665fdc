"""A graph whose edges lie in several memories: on a GPU, and in pinned host memory that the GPU reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from .. import ops
from .._warn import warn
from ..memory import Budget, HostLayout, HostMemory, budget_bytes, format_bytes, free_on_gpu
from .csc import CSC

_SPARE = 1 << 30  # bytes of a GPU's free memory that the graph leaves to others


@dataclass(frozen=True, eq=False)
class SegmentedCSC:
    """A homogeneous graph as :func:`torch_gnnscale.ops.sample_bulk` reads it, its edges cut into segments.

    A segment is a range of the edges, in the order of the CSC, in one memory. Made by :meth:`on_gpu` or :meth:`cut`.
    """

    device: torch.device
    """The device that draws samples; they lie there."""
    colptr: Tensor
    """As in the :class:`CSC`; on ``device`` or in pinned host memory."""
    row: list[Tensor]
    """The sources of each segment's edges, on ``device`` or in pinned host memory."""
    edge_id: list[Tensor] | None
    """The user's ids of each segment's edges; None where an edge's id is its position."""
    memory: HostMemory | None = None
    """The pinned memory that tensors of this graph lie in; None if there is none, or if the user pinned it."""
    given: tuple[CSC, Budget | None] | None = None
    """The arguments of :meth:`on_gpu`, which another process calls anew."""

    @classmethod
    def on_gpu(cls, csc: CSC, device: torch.device, budget: Budget | None = None) -> SegmentedCSC:
        """A copy of ``csc`` that a GPU reads.

        The GPU holds what ``budget`` has room for: ``colptr``, then the first edges, which are those of the hottest
        nodes in a graph that is renumbered by hotness (:mod:`torch_gnnscale.topology.reorder`). The other edges are
        copied to pinned host memory, where kernels read them over the bus. Without a budget the GPU holds all edges, or
        none if they do not fit, with a warning. Tensors that the user has pinned are read where they are; they are
        copied to the GPU only if there is a budget.

        Args:
            csc: in host memory.
            device: the GPU.
            budget: bytes, a string such as "4GiB", or a share of the graph.

        Raises:
            MemoryError: less memory is free on the GPU than the budget takes, or less in the host than the rest needs.
            OSError: host memory cannot be pinned.
            TypeError, ValueError: not a budget.
        """
        edges = _edges_of(csc)
        size = csc.colptr.nbytes + sum(tensor.nbytes for tensor in edges)
        pinned = all(tensor.is_pinned() for tensor in (csc.colptr, *edges) if tensor.numel())
        free = free_on_gpu(device)
        if budget is not None:
            room = min(size, budget_bytes("graph_on_gpu", budget, size))
            if room > free:
                raise MemoryError(f"graph_on_gpu: expected {room} bytes of memory on {device}, found {free} free")
        else:
            room = 0 if pinned or size + _SPARE > free else size
            if room < size and not pinned:
                warn(
                    f"the graph's {format_bytes(size)} do not fit beside what is in {device}'s memory "
                    f"({format_bytes(free)} free): pinned host memory holds them, which is read over the bus; "
                    f"graph_on_gpu= says how much of the graph the GPU is to hold"
                )
        return cls.cut(csc, device, room, copied=not pinned, given=(csc, budget))

    @classmethod
    def cut(
        cls, csc: CSC, device: torch.device, room: int, copied: bool, given: tuple[CSC, Budget | None] | None = None
    ) -> SegmentedCSC:
        """The first edges on ``device``, as many as ``room`` bytes hold beside ``colptr``.

        The other edges are those of ``csc`` itself or, if ``copied``, copies in pinned host memory; so is ``colptr`` if
        there is no room for it.
        """
        edges, colptr, count = _edges_of(csc), csc.colptr, 0
        if colptr_there := colptr.nbytes <= room:
            count = min((room - colptr.nbytes) // max(sum(tensor[:1].nbytes for tensor in edges), 1), csc.num_edges)
            colptr = colptr.to(device)
        first, rest = [tensor[:count].to(device) for tensor in edges], [tensor[count:] for tensor in edges]
        memory = None
        if copied and not (colptr_there and count == csc.num_edges):
            memory, found = _pinned([*rest, *([] if colptr_there else [colptr])], device)
            rest, colptr = found[: len(rest)], colptr if colptr_there else found[-1]
        segments = [segment for segment in (_columns(first), _columns(rest)) if len(segment[0])] or [_columns(rest)]
        row, *edge_id = zip(*segments, strict=True)
        return cls(device, colptr, list(row), list(edge_id[0]) if edge_id else None, memory, given)

    def __reduce__(self):
        assert self.given is not None
        csc, budget = self.given
        return SegmentedCSC.on_gpu, (csc, self.device, budget)

    def sample(
        self, seeds: Sequence[Tensor], fanouts: Sequence[int], keys: Sequence[int], *, replace: bool, layers: bool
    ) -> list[ops.Sample]:
        """A sample for each batch of seeds, all drawn by one call: see :func:`torch_gnnscale.ops.sample_bulk`."""
        there = torch.cat(list(seeds)).to(self.device, non_blocking=True)
        return ops.sample_bulk(
            self.colptr, self.row, there, [0, *accumulate(map(len, seeds))], fanouts, keys, edge_id=self.edge_id,
            replace=replace, layers=layers,
        )  # fmt: skip


def _pinned(tensors: list[Tensor], device: torch.device) -> tuple[HostMemory, list[Tensor]]:
    """Copies of ``tensors`` in pinned memory that the GPU reads."""
    layout = HostLayout()
    arrays = [layout.add(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
    memory = HostMemory(layout.num_bytes, "graph", "raise graph_on_gpu=")
    copies = [memory.tensor(array).copy_(tensor) for array, tensor in zip(arrays, tensors, strict=True)]
    memory.use_huge_pages()
    memory.pin(device)
    return memory, copies


def _edges_of(csc: CSC) -> list[Tensor]:
    """The sources and, if there are any, the edge ids: one matrix of shape [E, 2] if they are its columns in memory."""
    row, edge_id = csc.row, csc.edge_id
    if edge_id is None:
        return [row]
    beside = row.dtype == edge_id.dtype and row.stride() == edge_id.stride() == (2,) and row.numel() > 0
    if beside and edge_id.data_ptr() == row.data_ptr() + row.element_size():
        return [row.as_strided((len(row), 2), (2, 1))]
    return [row, edge_id]


def _columns(edges: list[Tensor]) -> list[Tensor]:
    """The sources and the edge ids of what :func:`_edges_of` returned."""
    return list(edges[0].unbind(1)) if edges[0].dim() == 2 else edges
