"""The nodes of each stage, and the batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..sampler.graph import end_types
from .graph import StagedGraph
from .plan import Plan

_CHUNK = 1 << 16
"""Nodes whose neighbors are looked up at a time."""


@dataclass(frozen=True, eq=False)
class NodeSet:
    """Nodes of a type by rising stored ids: those of ``ids``, or if it is None ``count`` from ``begin``."""

    count: int
    ids: Tensor | None = None
    begin: int = 0

    def slice(self, first: int, end: int) -> Tensor:
        """The ids of nodes ``first`` to ``end - 1`` of the set: int64."""
        return torch.arange(self.begin + first, self.begin + end) if self.ids is None else self.ids[first:end]


Sets = dict[Any, NodeSet]
"""By type."""
Part = dict[Any, tuple[int, int]]
"""By type, the bounds of some nodes of a set."""


class Piece(NamedTuple):
    """A piece of the edges of a single node."""

    edges: slice
    """Which of the edges of each type."""
    last: bool
    """Whether it is the last piece."""


class Work(NamedTuple):
    """What a model is run on at a time."""

    batch: int
    """The number of its batch in the stage, from 1."""
    part: Part
    """The nodes of a stage's sets."""
    piece: Piece | None
    """Which of the edges into them are read; None: all that the stage reads."""

    @property
    def completes(self) -> bool:
        """Whether its batch is done with it."""
        return self.piece is None or self.piece.last

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return sum(end - first for first, end in self.part.values())

    def seeds(self, sets: Sets) -> dict[Any, Tensor]:
        """The stored ids of the nodes, by type."""
        return {node_type: sets[node_type].slice(*bounds) for node_type, bounds in self.part.items()}


def work_of_stage(graph: StagedGraph, sets: Sets, size: int, most_edges: int, reads_edges: bool) -> Iterator[Work]:
    """The work of a stage: batches of its nodes, and of a node with more than ``most_edges`` edges the pieces.

    Args:
        graph, sets, size, most_edges: as of :func:`batches`.
        reads_edges: whether the stage reads edges.
    """
    for number, part in enumerate(batches(graph, sets, size, most_edges), 1):
        whole = Work(number, part, None)
        if not reads_edges or whole.num_nodes > 1 or num_edges(graph, sets, part) <= most_edges:
            yield whole
            continue
        node_type, seed = next((t, ids) for t, ids in whole.seeds(sets).items() if len(ids))
        count = graph.largest_degree(node_type, seed)
        for first in range(0, count, most_edges):
            yield Work(number, part, Piece(slice(first, first + most_edges), first + most_edges >= count))


Masks = dict[Any, Tensor]
"""Of the nodes that a process computes, by type: bool."""


def sets_of_stages(
    plan: Plan, graph: StagedGraph, nodes: Mapping[Any, Tensor] | None,
    at_owners: Callable[[Masks, Mapping[Any, Tensor]], None] | None = None,
) -> dict[int, Sets]:  # fmt: skip
    """The nodes that each stage computes in this process.

    Args:
        plan: its stages.
        graph: the graph.
        nodes: by type, stored ids of the nodes whose results are wanted, of those that this process computes; None:
            all.
        at_owners: called for each stage, where other processes compute some of the nodes, with the masks to which it
            adds what others read, and by type with the nodes of others that this process reads.
    """
    sets: dict[int, Sets] = {}
    masks = None if nodes is None else {t: torch.zeros(size, dtype=torch.bool) for t, size in graph.sizes.items()}
    for node_type, ids in (nodes or {}).items():
        assert masks is not None
        masks[node_type][ids - graph.first[node_type]] = True
    for stage in reversed(plan.stages):
        found = {t: _set(graph, t, None if masks is None else masks[t]) for t in graph.sizes}
        written = {table.node_type for table in plan.tables if table.written == stage}
        sets[stage] = {t: of if t in written else NodeSet(0) for t, of in found.items()}
        if masks is not None:
            others = _add_sources(masks, graph, found)
            if at_owners is not None:
                at_owners(masks, others)
    return sets


def _set(graph: StagedGraph, node_type: Any, mask: Tensor | None) -> NodeSet:
    begin = graph.first[node_type]
    if mask is None or bool(mask.all()):
        return NodeSet(graph.sizes[node_type], begin=begin)
    ids = mask.nonzero().view(-1) + begin
    return NodeSet(len(ids), ids)


def _add_sources(masks: Masks, graph: StagedGraph, sets: Sets) -> dict[Any, Tensor]:
    """Adds the sources of all edges into some nodes; returns those of other processes, rising, by type."""
    others: dict[Any, Tensor] = {node_type: torch.empty(0, dtype=torch.int64) for node_type in graph.sizes}
    for edge_type in graph.columns:
        src, dst = end_types(edge_type)
        of, begin = sets[dst], graph.first[src]
        for first in range(0, of.count, _CHUNK):
            ids = of.slice(first, min(of.count, first + _CHUNK))
            source = graph.edges_into(edge_type, ids).source.long()
            if graph.sizes[src] < graph.all_sizes[src]:
                own = (source >= begin) & (source < begin + graph.sizes[src])
                others[src] = torch.unique(torch.cat([others[src], source[~own]]))
                source = source[own]
            masks[src][source - begin] = True
    return others


def batches(graph: StagedGraph, sets: Sets, size: int, most_edges: int) -> Iterator[Part]:
    """Cuts sets of nodes into parts of at most ``size`` nodes and ``most_edges`` edges into them, or one node. Each has
    the same share of every type, to a node, before it is cut for its edges."""
    counts = [of.count for of in sets.values() if of.count]
    count = -(-sum(counts) // size)
    if sum(-(-of_type // count) for of_type in counts) > size:  # a share that is rounded up has almost a node too many
        count = -(-sum(counts) // max(1, size - len(counts) + 1))
    for number in range(count):
        part = {t: (of.count * number // count, of.count * (number + 1) // count) for t, of in sets.items()}
        yield from _cut(graph, sets, part, size, most_edges)


def _cut(graph: StagedGraph, sets: Sets, part: Part, size: int, most_edges: int) -> Iterator[Part]:
    total = sum(end - first for first, end in part.values())
    if total <= 1 or (total <= size and num_edges(graph, sets, part) <= most_edges):
        if total:
            yield part
        return
    left, before, after = total // 2, {}, {}
    for node_type, (first, end) in part.items():
        middle = first + min(left, end - first)
        left -= middle - first
        before[node_type], after[node_type] = (first, middle), (middle, end)
    yield from _cut(graph, sets, before, size, most_edges)
    yield from _cut(graph, sets, after, size, most_edges)


def num_edges(graph: StagedGraph, sets: Sets, part: Part) -> int:
    """How many edges lead to the nodes of a part."""
    total = 0
    for edge_type in graph.columns:
        dst = end_types(edge_type)[1]
        if part[dst][0] < part[dst][1]:
            total += int(graph.degrees(edge_type, sets[dst].slice(*part[dst])).sum())
    return total


def first_hub(graph: StagedGraph, sets: Sets, most_edges: int) -> tuple[Any, Tensor] | None:
    """Type and stored id ([1]) of the first node with more than ``most_edges`` edges into it; None if there is none."""
    for node_type, of in sets.items():
        into = [edge_type for edge_type in graph.columns if end_types(edge_type)[1] == node_type]
        for first in range(0, of.count, _CHUNK):
            ids = of.slice(first, min(of.count, first + _CHUNK))
            degree = sum((graph.degrees(edge_type, ids) for edge_type in into), torch.zeros_like(ids))
            if len(found := (degree > most_edges).nonzero().view(-1)):
                return node_type, ids[found[:1]]
    return None
