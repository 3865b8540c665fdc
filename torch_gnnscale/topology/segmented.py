"""A graph whose edges lie in several memories: on a GPU, on its peers, and in pinned host memory that the GPU reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import ops
from .._user import warn
from ..memory import (
    Budget,
    HostArray,
    HostLayout,
    HostMemory,
    budget_bytes,
    format_bytes,
    free_on_gpu,
    is_bytes,
    peer_budgets,
    unreadable_peer,
)
from ..ops.arguments import checked_device
from .csc import CSC

_SPARE = 1 << 30  # bytes of a GPU's free memory that the graph leaves to others

Stored: TypeAlias = HostArray | Tensor
"""An array as it is pickled. A tensor is one on a GPU, which torch.multiprocessing shares with the other process."""


class Given(NamedTuple):
    """The arguments of :meth:`SegmentedCSC.on_gpu` besides the device."""

    csc: CSC
    budget: Budget | None
    peers: Sequence[Budget]
    weight: Tensor | None = None
    time: Tensor | None = None


class Edges(NamedTuple):
    """The edges of a relation, with their values: see :meth:`SegmentedCSC.on_gpu`."""

    csc: CSC
    weight: Tensor | None = None
    time: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SegmentedCSC:
    """The edges of a relation as bulks read them (:class:`torch_gnnscale.ops.PreparedBulks`), cut into segments.

    The edges lie in up to three tiers, in the order of the CSC: on the GPU that draws, interleaved over its peers (Data
    Tiering, section 5.5), and in host memory. A segment is what one memory has of a tier. Made by :meth:`on_gpu` or
    :meth:`cut`.

    A pickled graph without edges on peers is made anew by the other process from its CSC, on the same GPU. One with
    edges on peers is sent by torch.multiprocessing alone, which shares all of its memories.
    """

    device: torch.device
    """The device that draws samples; they lie there."""
    colptr: Tensor
    """As in the :class:`CSC`; on ``device`` or in pinned host memory."""
    row: list[Tensor]
    """The sources of each segment's edges, on ``device``, on a peer or in pinned host memory."""
    edge_id: list[Tensor] | None
    """The user's ids of each segment's edges; None where an edge's id is its position."""
    weight: list[Tensor] | None
    """The sums of weights of each segment's edges; None without weights."""
    time: list[Tensor] | None
    """The times of each segment's edges; None without times."""
    tiers: dict[str, int]
    """The number of segments of each tier that has edges: of ``gpu``, ``peers`` and ``host``, in this order."""
    stored: list[list[Stored]]
    """The arrays that ``colptr`` and the edges of each segment lie in, as :func:`_edges_of` returns them."""
    memory: HostMemory | None = None
    """The pinned memory that tensors of this graph lie in; None if there is none, or if the user pinned it."""
    given: Given | None = None
    """What :meth:`on_gpu` was called with."""

    @classmethod
    def on_gpu(
        cls,
        csc: CSC,
        device: torch.device,
        budget: Budget | None = None,
        peers: Sequence[Budget] = (),
        weight: Tensor | None = None,
        time: Tensor | None = None,
    ) -> SegmentedCSC:
        """A copy of ``csc`` that a GPU reads.

        The GPU holds what ``budget`` has room for: ``colptr``, then the first edges, which are those of the hottest
        nodes in a graph that is renumbered by hotness (:mod:`torch_gnnscale.topology.reorder`). The next edges are
        interleaved over ``peers``, and the others copied to pinned host memory, where kernels read them over the bus.
        Without a budget the GPU holds ``colptr`` alone if peers are asked for; else all edges, or none if they do not
        fit, with a warning. Without peers, the host's share of tensors that the user has pinned is read where it is.

        Args:
            csc: in host memory.
            device: the GPU.
            budget: bytes, a string such as "4GiB", or a share of the graph.
            peers: such a budget for each of the GPUs 0, 1, ... over which edges are interleaved; they must be equal.
                If ``device`` cannot read one of them, their edges go to host memory, with a warning.
            weight, time: of each edge, as of :func:`torch_gnnscale.ops.relations`; they lie where the edge does.

        Raises:
            MemoryError: less memory is free on a GPU than the budgets take, or less in the host than the rest needs;
                the latter is a warning if ``budget`` is in bytes, because some machines give more memory than they say
                is available.
            OSError: host memory cannot be pinned.
            TypeError, ValueError: not a budget, or budgets of peers that differ.
        """
        return cls.all_on_gpu([Edges(csc, weight, time)], device, budget, peers)[0]

    @classmethod
    def all_on_gpu(
        cls,
        relations: Sequence[Edges],
        device: torch.device,
        budget: Budget | None = None,
        peers: Sequence[Budget] = (),
    ) -> list[SegmentedCSC]:
        """A copy of each relation that a GPU reads, within one budget for all.

        All column pointers count against ``budget`` first, as far as they fit in it, in the order of the relations.
        Then the same share of the edges of each relation lies on the GPU, its first ones, and of the other edges the
        same share on ``peers``. Without budgets each relation is on the GPU if it fits beside those before it.

        Args:
            relations: the edges of each.
            device, budget, peers: as of :meth:`on_gpu`; shares are of all relations together.

        Raises:
            MemoryError, OSError, TypeError, ValueError: as of :meth:`on_gpu`.
        """
        pointers = [of.csc.colptr.nbytes for of in relations]
        of_edges = [sum(tensor.nbytes for tensor in _edges_of(*of)) for of in relations]
        size = sum(pointers) + sum(of_edges)
        of_peers = peer_budgets("graph_on_peers", peers, size)
        asks = budget is not None or bool(of_peers)
        if (number := unreadable_peer(device, len(of_peers))) is not None:
            warn(
                f"graph_on_peers={list(peers)}: their edges are left to host memory, for {device} cannot read GPU "
                f"{number}"
            )
            of_peers = []
        if not asks:
            return [cls._where_it_fits(of, device) for of in relations]
        asked = sum(pointers) if budget is None else budget_bytes("graph_on_gpu", budget, size)
        room = min(size, asked)
        if room > (free := free_on_gpu(device, room)):
            name = "graph_on_peers" if budget is None else "graph_on_gpu"
            raise MemoryError(f"{name}: expected {room} bytes of memory on {device}, found {free} free")
        others = [torch.device("cuda", number) for number in range(len(of_peers))]
        for peer, share in zip(others, of_peers, strict=True):
            wanted = min(share, -(-(size - room) // len(others))) + room * (peer == device)
            if wanted > (left := free_on_gpu(peer, wanted)):
                raise MemoryError(f"graph_on_peers: expected {wanted} bytes of memory on {peer}, found {left} free")
        share = of_peers[0] if of_peers else 0
        return [
            cls.cut(of.csc, device, own, bool(others) or not _is_pinned(of), others, of_peer, given, weight=of.weight,
                    time=of.time)
            for of, (own, of_peer, given) in zip(
                relations, _budgets_of(relations, pointers, of_edges, room, share, budget, peers), strict=True
            )
        ]  # fmt: skip

    @classmethod
    def _where_it_fits(cls, of: Edges, device: torch.device) -> SegmentedCSC:
        """All edges on the GPU, or none if they do not fit, with a warning, or if the user has pinned them."""
        pinned = _is_pinned(of)
        size = of.csc.colptr.nbytes + sum(tensor.nbytes for tensor in _edges_of(*of))
        free = free_on_gpu(device, size + _SPARE)
        room = 0 if pinned or size + _SPARE > free else size
        if room < size and not pinned:
            warn(
                f"the graph's {format_bytes(size)} do not fit beside what is in {device}'s memory "
                f"({format_bytes(free)} free): pinned host memory holds them, which is read over the bus; "
                f"graph_on_gpu= says how much of the graph the GPU is to hold"
            )
        given = Given(of.csc, None, (), of.weight, of.time)
        return cls.cut(of.csc, device, room, not pinned, (), 0, given, weight=of.weight, time=of.time)

    @classmethod
    def cut(
        cls, csc: CSC, device: torch.device, room: int, copied: bool, peers: Sequence[torch.device] = (),
        share: int = 0, given: Given | None = None, *, weight: Tensor | None = None, time: Tensor | None = None,
    ) -> SegmentedCSC:  # fmt: skip
        """The first edges on ``device``, as many as ``room`` bytes hold beside ``colptr``, the next ones interleaved
        over ``peers``, as many as ``share`` bytes on each of them hold.

        The other edges are those of ``csc`` itself or, if ``copied``, copies in pinned host memory; so is ``colptr`` if
        there is no room for it.
        """
        edges, colptr, count = _edges_of(csc, weight, time), csc.colptr, 0
        kinds = [name for name, of in (("weight", weight), ("time", time)) if of is not None]
        edge_bytes = max(sum(tensor[:1].nbytes for tensor in edges), 1)
        if colptr_there := colptr.nbytes <= room:
            count = min((room - colptr.nbytes) // edge_bytes, csc.num_edges)
            colptr = colptr.to(device)
        end = min(count + share // edge_bytes * len(peers), csc.num_edges)
        segments = {}
        if count > 0:
            segments["gpu"] = [[tensor[:count].to(device) for tensor in edges]]
        if end > count:
            segments["peers"] = [
                [tensor[count:end][number :: len(peers)].to(peer) for tensor in edges]
                for number, peer in enumerate(peers)
            ]
        first = [colptr]
        in_host = [] if colptr_there else [first]
        if end < csc.num_edges or end == 0:
            segments["host"] = [[tensor[end:] for tensor in edges]]
            in_host += segments["host"]
        memory = None
        stored: list[list[Any]] = [first, *(arrays for tier in segments.values() for arrays in tier)]
        if copied and (end < csc.num_edges or not colptr_there):
            budget = None if given is None else given.budget
            memory, copies = _copied(in_host, insist=budget is not None and is_bytes(budget))
            stored = [copies.pop(0) if any(arrays is one for one in in_host) else arrays for arrays in stored]
        return cls._of(device, stored, {name: len(tier) for name, tier in segments.items()}, memory, given, kinds)

    @classmethod
    def _of(
        cls, device: torch.device, stored: list[list[Stored]], tiers: dict[str, int], memory: HostMemory | None,
        given: Given | None, kinds: Sequence[str],
    ) -> SegmentedCSC:  # fmt: skip
        """The graph of these arrays; those in ``memory`` are pinned for ``device``. ``kinds``: of the last arrays of a
        segment, "weight" or "time"."""
        if memory is not None and device.type == "cuda":
            memory.pin(device)
        (colptr,), *segments = ([_opened(array, memory) for array in arrays] for arrays in stored)
        more = len(kinds)
        row, *edge_id = zip(*(_columns(arrays[: len(arrays) - more]) for arrays in segments), strict=True)
        values = {kind: [arrays[at - more] for arrays in segments] for at, kind in enumerate(kinds)}
        return cls(
            device, colptr, list(row), list(edge_id[0]) if edge_id else None, values.get("weight"), values.get("time"),
            tiers, stored, memory, given,
        )  # fmt: skip

    @property
    def _kinds(self) -> list[str]:
        """The values of edges besides their ends and ids."""
        return [kind for kind in ("weight", "time") if getattr(self, kind) is not None]

    def on(self, device: torch.device | str | int) -> SegmentedCSC:
        """The same graph for another GPU of this machine: what the GPU has is copied there, peers and host memory are
        shared; without peers it is made anew.

        Raises:
            ValueError: the GPU cannot read the peers, or the device is a CPU.
            MemoryError, OSError: as of :meth:`on_gpu`.
        """
        where = checked_device(device)
        if where == self.device:
            return self
        assert self.given is not None
        if where.type == "cpu":
            raise ValueError(f"device: expected a GPU for a graph of {self.device}, found cpu")
        if "peers" not in self.tiers:
            csc, budget, peers, weight, time = self.given
            return SegmentedCSC.on_gpu(csc, where, budget, peers, weight, time)
        if (number := unreadable_peer(where, self.tiers["peers"])) is not None:
            raise ValueError(f"device: expected a GPU that can read GPU {number}, found {where}")
        own = 1 + self.tiers.get("gpu", 0)  # colptr, and the tier of the GPU
        stored = [
            [array.to(where) if isinstance(array, Tensor) else array for array in arrays] if number < own else arrays
            for number, arrays in enumerate(self.stored)
        ]
        return SegmentedCSC._of(where, stored, self.tiers, self.memory, self.given, self._kinds)

    def __reduce__(self):
        assert self.given is not None
        if "peers" not in self.tiers:
            csc, *others = self.given
            return SegmentedCSC.on_gpu, (csc, self.device, *others)
        return SegmentedCSC._of, (self.device, self.stored, self.tiers, self.memory, self.given, self._kinds)

    @property
    def spread(self) -> list[int]:
        """The number of segments of each tier: see :func:`torch_gnnscale.ops.sample_bulk`."""
        return list(self.tiers.values())

    def edges(self, src_type: int = 0, dst_type: int = 0, reverse: int = -1) -> ops.StoredEdges:
        """The edges as bulks take them, of a relation between these node types that has this reverse relation."""
        return ops.StoredEdges(
            self.colptr, self.row, self.edge_id, self.weight, self.time, self.spread, src_type, dst_type, reverse
        )


def _budgets_of(
    relations: Sequence[Edges], pointers: Sequence[int], of_edges: Sequence[int], room: int, share: int,
    budget: Budget | None, peers: Sequence[Budget],
) -> list[tuple[int, int, Given]]:  # fmt: skip
    """For each relation its part of ``room`` bytes and of ``share`` bytes on each peer, and what it is then given.

    ``pointers`` and ``of_edges``: their bytes.
    """
    if len(relations) == 1:
        csc, *values = relations[0]
        return [(room, share, Given(csc, budget, peers, *values))]
    found, left, edges = [], room, max(sum(of_edges), 1)
    there = []
    for count in pointers:
        there.append(count if count <= left else 0)
        left -= there[-1]
    on_gpu = [own * left // edges if pointer else 0 for pointer, own in zip(there, of_edges, strict=True)]
    beside = max(sum(of_edges) - sum(on_gpu), 1)  # bytes of edges that are not on the GPU
    for (csc, *values), pointer, own, held in zip(relations, there, of_edges, on_gpu, strict=True):
        part = share * (own - held) // beside
        asked: Budget | None = None if budget is None else pointer + held
        if budget is not None and not is_bytes(budget):  # what does not fit in host memory is then an error
            asked = min((pointer + held + 0.5) / max(csc.colptr.nbytes + own, 1), 1.0)  # of which bytes are whole
        found.append((pointer + held, part, Given(csc, asked, [part] * len(peers), *values)))
    return found


def _is_pinned(of: Edges) -> bool:
    return all(tensor.is_pinned() for tensor in (of.csc.colptr, *_edges_of(*of)) if tensor.numel())


def check_graph_budgets(device: torch.device, budget: Budget | None, peers: Sequence[Budget]) -> None:
    """Raises TypeError or ValueError for wrong budgets of peers, and for budgets without a GPU that samples."""
    asked: dict[str, Any] = {"graph_on_peers": peers} if peer_budgets("graph_on_peers", peers, 0) else {}
    if budget is not None:
        asked["graph_on_gpu"] = budget
    for name, given in asked.items():
        if device.type == "cpu":
            raise ValueError(f"{name}={given!r}: expected a GPU as device, found cpu")


def _opened(array: Stored, memory: HostMemory | None) -> Tensor:
    if isinstance(array, Tensor):
        return array
    assert memory is not None
    return memory.tensor(array)


def _copied(segments: list[list[Tensor]], insist: bool) -> tuple[HostMemory, list[list[HostArray]]]:
    """Copies of all arrays in memory that processes share; ``insist``: of :class:`torch_gnnscale.memory.HostMemory`."""
    layout = HostLayout()
    copies = [[layout.add(tuple(tensor.shape), tensor.dtype) for tensor in arrays] for arrays in segments]
    memory = HostMemory(layout.num_bytes, "graph", "raise graph_on_gpu= or graph_on_peers=", insist=insist)
    for arrays, of_segment in zip(segments, copies, strict=True):
        for tensor, array in zip(arrays, of_segment, strict=True):
            memory.tensor(array).copy_(tensor)
    memory.use_huge_pages()
    return memory, copies


def _edges_of(csc: CSC, weight: Tensor | None, time: Tensor | None) -> list[Tensor]:
    """The sources and, if there are any, the edge ids: one matrix of shape [E, 2] if they are its columns in memory.
    Then the weights and the times, if there are any."""
    return [*_ends_of(csc), *(of for of in (weight, time) if of is not None)]


def _ends_of(csc: CSC) -> list[Tensor]:
    row, edge_id = csc.row, csc.edge_id
    if edge_id is None:
        return [row]
    beside = row.dtype == edge_id.dtype and row.stride() == edge_id.stride() == (2,) and row.numel() > 0
    if beside and edge_id.data_ptr() == row.data_ptr() + row.element_size():
        return [row.as_strided((len(row), 2), (2, 1))]
    return [row, edge_id]


def _columns(edges: list[Tensor]) -> list[Tensor]:
    """The sources and the edge ids of what :func:`_ends_of` returned."""
    return list(edges[0].unbind(1)) if edges[0].dim() == 2 else edges
