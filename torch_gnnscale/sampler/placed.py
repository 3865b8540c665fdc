"""A graph where it is read: in host memory, in a GPU's, in pinned host memory that a GPU reads, or in both of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from .. import ops
from .._warn import warn
from ..memory import Budget, HostLayout, HostMemory, budget_bytes, format_bytes, free_on_gpu
from ..topology import CSC

_SPARE = 1 << 30  # bytes of a GPU's free memory that the graph leaves to others


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A homogeneous graph where batches are drawn from it many at a time; of a GPU's, made by :func:`place`."""

    device: torch.device
    """Where samples are drawn, and are."""
    colptr: Tensor
    row: list[Tensor]
    """The sources: parts one behind the other, each in a memory of its own."""
    edge_id: list[Tensor] | None
    """The user's ids in the same parts; None where an edge's id is its position."""
    memory: HostMemory | None = None
    """What is pinned as long as this lives; None where the user pinned it, or nothing is."""
    given: tuple[CSC, Budget | None] | None = None
    """What :func:`place` got: another process places the graph anew."""

    @classmethod
    def of(cls, csc: CSC) -> PlacedGraph:
        """A graph in host memory, for a CPU."""
        return cls(torch.device("cpu"), csc.colptr, [csc.row], None if csc.edge_id is None else [csc.edge_id])

    def __reduce__(self):
        assert self.given is not None
        csc, budget = self.given
        return place, (csc, self.device, budget)

    def sample(
        self, seeds: Sequence[Tensor], fanouts: Sequence[int], keys: Sequence[int], *, replace: bool, layers: bool
    ) -> list[ops.Sample]:
        """A sample for each batch of seeds, drawn at once: see :func:`torch_gnnscale.ops.sample_bulk`."""
        there = torch.cat(list(seeds)).to(self.device, non_blocking=True)
        return ops.sample_bulk(
            self.colptr, self.row, there, [0, *accumulate(map(len, seeds))], fanouts, keys, edge_id=self.edge_id,
            replace=replace, layers=layers,
        )  # fmt: skip


def place(csc: CSC, device: torch.device, budget: Budget | None = None) -> PlacedGraph:
    """The graph where a GPU reads it.

    The GPU holds what ``budget`` has room for: the column pointers, then the first edges, which are those of the
    hottest nodes in a graph that is renumbered by hotness (:mod:`torch_gnnscale.topology.reorder`). The others are
    copied to pinned host memory, where the kernels read them over the bus. Without a budget the GPU holds all or
    nothing: a warning says so if the graph does not fit. What the user has pinned is read where it is, and goes to the
    GPU only for a budget.

    Args:
        csc: in host memory.
        device: the GPU.
        budget: bytes, a string such as "4GiB", or a share of the graph.

    Raises:
        MemoryError: the GPU has no room for the budget, or the host for what it is to hold.
        OSError: host memory cannot be pinned.
        TypeError, ValueError: not a budget.
    """
    edges = _edges_of(csc)
    size = csc.colptr.nbytes + sum(part.nbytes for part in edges)
    pinned = all(part.is_pinned() for part in (csc.colptr, *edges) if part.numel())
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
    return cut(csc, device, room, copied=not pinned, given=(csc, budget))


def cut(
    csc: CSC, device: torch.device, room: int, copied: bool, given: tuple[CSC, Budget | None] | None = None
) -> PlacedGraph:
    """As much of a graph as the device has ``room`` for; the rest where it is, or ``copied`` to pinned memory."""
    edges, colptr, count = _edges_of(csc), csc.colptr, 0
    if colptr_there := colptr.nbytes <= room:
        count = min((room - colptr.nbytes) // max(sum(part[:1].nbytes for part in edges), 1), csc.num_edges)
        colptr = colptr.to(device)
    first, rest = [part[:count].to(device) for part in edges], [part[count:] for part in edges]
    memory = None
    if copied and not (colptr_there and count == csc.num_edges):
        memory, found = _pinned([*rest, *([] if colptr_there else [colptr])], device)
        rest, colptr = found[: len(rest)], colptr if colptr_there else found[-1]
    parts = [part for part in (_columns(first), _columns(rest)) if len(part[0])] or [_columns(rest)]
    row, *edge_id = zip(*parts, strict=True)
    return PlacedGraph(device, colptr, list(row), list(edge_id[0]) if edge_id else None, memory, given)


def _pinned(tensors: list[Tensor], device: torch.device) -> tuple[HostMemory, list[Tensor]]:
    """Copies in memory that the GPU reads."""
    layout = HostLayout()
    rooms = [layout.add(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
    memory = HostMemory(layout.num_bytes, "graph", "raise graph_on_gpu=")
    copies = [memory.tensor(rows).copy_(tensor) for rows, tensor in zip(rooms, tensors, strict=True)]
    memory.use_huge_pages()
    memory.pin(device)
    return memory, copies


def _edges_of(csc: CSC) -> list[Tensor]:
    """Sources and edge ids, if there are any: as one matrix [E, 2] if they lie so."""
    row, edge_id = csc.row, csc.edge_id
    if edge_id is None:
        return [row]
    beside = row.dtype == edge_id.dtype and row.stride() == edge_id.stride() == (2,) and row.numel() > 0
    if beside and edge_id.data_ptr() == row.data_ptr() + row.element_size():
        return [row.as_strided((len(row), 2), (2, 1))]
    return [row, edge_id]


def _columns(edges: list[Tensor]) -> list[Tensor]:
    """The sources and edge ids of what :func:`_edges_of` gave."""
    return list(edges[0].unbind(1)) if edges[0].dim() == 2 else edges
