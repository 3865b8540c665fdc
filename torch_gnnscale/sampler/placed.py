"""A graph where it is read: in host memory, in a GPU's, in pinned host memory that a GPU reads, or in both of these."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from .. import ops
from ..feature.plan import Budget, budget_bytes, format_bytes
from ..feature.tier_memory import HostLayout, HostMemory, free_on_gpu
from ..topology import CSC

_SPARE = 1 << 30  # bytes of a GPU's free memory that the graph leaves to others


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A homogeneous graph where batches are drawn from it many at a time; of a GPU's, made by :func:`place`."""

    csc: CSC
    """All edges, in one memory."""
    device: torch.device
    """Where samples are drawn, and are."""
    row: list[Tensor]
    """The sources as they are read: parts one behind the other, each in a memory of its own."""
    edge_id: list[Tensor] | None
    """The user's ids in the same parts; None where an edge's id is its position."""
    memory: HostMemory | None = None
    """What is pinned as long as this lives; None where the user pinned it, or nothing is."""

    @classmethod
    def of(cls, csc: CSC, device: torch.device) -> PlacedGraph:
        """All edges where they are: on the device, or in pinned host memory that it reads."""
        return cls(csc, device, [csc.row], None if csc.edge_id is None else [csc.edge_id])

    def sample(
        self, seeds: Sequence[Tensor], fanouts: Sequence[int], keys: Sequence[int], *, replace: bool, layers: bool
    ) -> list[ops.Sample]:
        """A sample for each batch of seeds, drawn at once: see :func:`torch_gnnscale.ops.sample_bulk`."""
        there = torch.cat(list(seeds)).to(self.device, non_blocking=True)
        return ops.sample_bulk(
            self.csc.colptr, self.row, there, [0, *accumulate(map(len, seeds))], fanouts, keys, edge_id=self.edge_id,
            replace=replace, layers=layers,
        )  # fmt: skip


def place(csc: CSC, device: torch.device, budget: Budget | None = None) -> PlacedGraph:
    """The graph where a GPU reads it.

    The GPU holds what ``budget`` has room for: the column pointers, then the first edges, which are those of the
    hottest nodes in a graph that is renumbered by hotness (:mod:`torch_gnnscale.topology.reorder`). If that is not
    all, pinned host memory holds all edges, and the kernels read the others there, over the bus. Without a budget the
    GPU holds all or nothing: a warning says so if the graph does not fit. One that the user has pinned stays where it
    is.

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
            warnings.warn(
                f"the graph's {format_bytes(size)} do not fit beside what is in {device}'s memory "
                f"({format_bytes(free)} free): pinned host memory holds them, which is read over the bus; "
                f"graph_on_gpu= says how much of the graph the GPU is to hold",
                stacklevel=4,
            )
    if room == size:
        return PlacedGraph.of(_with_edges(csc, csc.colptr.to(device), [part.to(device) for part in edges]), device)
    if pinned:
        return with_first_edges(csc, device, room, None)
    layout = HostLayout()
    rooms = [layout.add(tuple(part.shape), part.dtype) for part in (csc.colptr, *edges)]
    memory = HostMemory(layout.num_bytes)
    colptr, *there = (memory.tensor(rows).copy_(part) for rows, part in zip(rooms, (csc.colptr, *edges), strict=True))
    memory.use_huge_pages()
    memory.pin(device)
    return with_first_edges(_with_edges(csc, colptr, there), device, room, memory)


def with_first_edges(csc: CSC, device: torch.device, room: int, memory: HostMemory | None) -> PlacedGraph:
    """A graph in pinned host memory, as much of it as there is ``room`` for on the device, too."""
    edges = _edges_of(csc)
    if csc.colptr.nbytes > room:
        return replace(PlacedGraph.of(csc, device), memory=memory)
    csc, room = replace(csc, colptr=csc.colptr.to(device)), room - csc.colptr.nbytes
    count = room // max(sum(part[:1].nbytes for part in edges), 1)
    first = _with_edges(csc, csc.colptr, [part[:count].to(device) for part in edges])
    row, edge_id = [first.row, csc.row[count:]], None
    if first.edge_id is not None and csc.edge_id is not None:
        edge_id = [first.edge_id, csc.edge_id[count:]]
    return PlacedGraph(csc, device, row, edge_id, memory)


def _edges_of(csc: CSC) -> list[Tensor]:
    """Sources and edge ids, if there are any: as one matrix [E, 2] if they lie so."""
    row, edge_id = csc.row, csc.edge_id
    if edge_id is None:
        return [row]
    beside = row.dtype == edge_id.dtype and row.stride() == edge_id.stride() == (2,) and row.numel() > 0
    if beside and edge_id.data_ptr() == row.data_ptr() + row.element_size():
        return [row.as_strided((len(row), 2), (2, 1))]
    return [row, edge_id]


def _with_edges(csc: CSC, colptr: Tensor, edges: list[Tensor]) -> CSC:
    """The same graph elsewhere; ``edges`` as :func:`_edges_of` gives them."""
    row, *edge_id = list(edges[0].unbind(1)) if edges[0].dim() == 2 else edges
    return replace(csc, colptr=colptr, row=row, edge_id=edge_id[0] if edge_id else None, origin=None)
