"""The nodes of each stage, and the batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..sampler.graph import end_types
from .graph import WholeGraph
from .plan import Plan

_CHUNK = 1 << 16
"""Nodes whose neighbors are looked up at a time."""


@dataclass(frozen=True, eq=False)
class NodeSet:
    """Nodes of a type by rising stored ids: those of ``ids``, or if it is None the first ``count``."""

    count: int
    ids: Tensor | None = None

    def slice(self, first: int, end: int) -> Tensor:
        """The ids of nodes ``first`` to ``end - 1`` of the set: int64."""
        return torch.arange(first, end) if self.ids is None else self.ids[first:end]


Sets = dict[Any, NodeSet]
"""By type."""
Part = dict[Any, tuple[int, int]]
"""By type, the bounds of some nodes of a set."""


def sets_of_stages(plan: Plan, graph: WholeGraph, nodes: Mapping[Any, Tensor] | None) -> dict[int, Sets]:
    """The nodes that each stage computes.

    Args:
        plan: its stages.
        graph: the graph.
        nodes: by type, stored ids of the nodes whose results are wanted; None: all.
    """
    sets: dict[int, Sets] = {}
    masks = None if nodes is None else {t: torch.zeros(size, dtype=torch.bool) for t, size in graph.sizes.items()}
    for node_type, ids in (nodes or {}).items():
        assert masks is not None
        masks[node_type][ids] = True
    for stage in reversed(plan.stages):
        found = {t: NodeSet(size) if masks is None else _set(masks[t]) for t, size in graph.sizes.items()}
        written = {table.node_type for table in plan.tables if table.written == stage}
        sets[stage] = {t: of if t in written else NodeSet(0) for t, of in found.items()}
        if masks is not None:
            _add_sources(masks, graph, found)
    return sets


def _set(mask: Tensor) -> NodeSet:
    ids = mask.nonzero().view(-1)
    return NodeSet(len(ids), None if len(ids) == len(mask) else ids)


def _add_sources(masks: dict[Any, Tensor], graph: WholeGraph, sets: Sets) -> None:
    for edge_type in graph.relations:
        src, dst = end_types(edge_type)
        of = sets[dst]
        for first in range(0, of.count, _CHUNK):
            ids = of.slice(first, min(of.count, first + _CHUNK))
            masks[src][graph.edges_into(edge_type, ids).source.long()] = True


def batches(graph: WholeGraph, sets: Sets, size: int, most_edges: int) -> Iterator[Part]:
    """Cuts sets of nodes into parts of at most ``size`` nodes and ``most_edges`` edges into them, or one node. Each has
    the same share of every type, to a node, before it is cut for its edges."""
    counts = [of.count for of in sets.values() if of.count]
    count = -(-sum(counts) // size)
    if sum(-(-of_type // count) for of_type in counts) > size:  # a share that is rounded up has almost a node too many
        count = -(-sum(counts) // max(1, size - len(counts) + 1))
    for number in range(count):
        part = {t: (of.count * number // count, of.count * (number + 1) // count) for t, of in sets.items()}
        yield from _cut(graph, sets, part, size, most_edges)


def _cut(graph: WholeGraph, sets: Sets, part: Part, size: int, most_edges: int) -> Iterator[Part]:
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


def num_edges(graph: WholeGraph, sets: Sets, part: Part) -> int:
    """How many edges lead to the nodes of a part."""
    total = 0
    for edge_type, relation in graph.relations.items():
        dst = end_types(edge_type)[1]
        first, end = part[dst]
        colptr, ids = relation.csc.colptr, sets[dst].ids
        if first == end:
            continue
        if ids is None:
            total += int(colptr[end]) - int(colptr[first])
        else:
            total += int((colptr[ids[first:end] + 1] - colptr[ids[first:end]]).sum())
    return total


def first_hub(graph: WholeGraph, sets: Sets, most_edges: int) -> tuple[Any, Tensor] | None:
    """Type and stored id ([1]) of the first node with more than ``most_edges`` edges into it; None if there is none."""
    for node_type, of in sets.items():
        into = [relation.csc.colptr for t, relation in graph.relations.items() if end_types(t)[1] == node_type]
        for first in range(0, of.count, _CHUNK):
            ids = of.slice(first, min(of.count, first + _CHUNK))
            degree = sum((colptr[ids + 1] - colptr[ids] for colptr in into), torch.zeros(len(ids), dtype=torch.int64))
            if len(found := (degree > most_edges).nonzero().view(-1)):
                return node_type, ids[found[:1]]
    return None
