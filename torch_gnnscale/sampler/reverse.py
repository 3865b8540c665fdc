"""Samples that have the reverse of each drawn edge, and the ids of these reverse edges."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler.utils import to_bidirectional

from .. import ops
from .graph import SampledGraph
from .output import HeteroNeighborOutput, NeighborOutput


class ReverseIds:
    """The ids of the edges that are the reverses of others, for each relation of a graph. Made on first use.

    The reverse of an edge of a relation is an edge of its reverse relation between the same nodes and, where edges have
    times, at the same time; of several, the k-th that is stored belongs to the k-th. Relations have ids of reverses if
    every edge of both has a reverse.
    """

    def __init__(self, graph: SampledGraph) -> None:
        self._graph = graph
        self._tables: dict[int, Tensor | None] = {}

    def __getitem__(self, number: int) -> Tensor | None:
        """For a relation that has a reverse relation: result[id of an edge of that one] is the id of this relation's
        edge that leads the other way; None unless every edge has such an edge."""
        if number not in self._tables:
            graph = self._graph
            reverse = graph.relations[graph.stored.reverse[number]]
            self._tables[number] = ops.reverse_edges(
                graph.stored, number, reverse.id_bound, same_time=graph.edge_time is not None
            )
        return self._tables[number]

    def found(self, number: int, edge: Tensor) -> Tensor | None:
        """The ids of a relation's sampled edges, of which those that were turned have -1 - (the id of the edge of the
        reverse relation); None if there are reverses that the graph does not have."""
        if self._graph.stored.reverse[number] < 0:
            return edge
        if (table := self[number]) is None:
            return None
        turned = edge < 0
        return torch.where(turned, table[(-1 - edge).clamp(min=0)].to(edge.dtype), edge) if bool(turned.any()) else edge


def with_original_edges(out: Any, graph: SampledGraph, reverse_ids: ReverseIds) -> Any:
    """A sample of the drawn edges with their reverses added, each once, and the drawn ones as ``orig_row`` and
    ``orig_col``; like PyG's ``to_bidirectional(keep_orig_edges=True)``, but for the ids of edges."""
    both = copy.copy(out)
    both.colptr = both.edge_index = None
    both.orig_row, both.orig_col = out.row, out.col
    if isinstance(out, NeighborOutput):
        both.row, both.col, both.edge = _both_ways(
            0, out.row, out.col, out.edge, out.row, out.col, out.edge, reverse_ids
        )
        return both
    assert isinstance(out, HeteroNeighborOutput)
    both.row, both.col, both.edge = dict(out.row), dict(out.col), dict(out.edge)
    for number, edge_type in enumerate(graph.edge_types):
        if (reverse := graph.stored.reverse[number]) >= 0:
            ends = [(out.row[t], out.col[t], out.edge[t]) for t in (edge_type, graph.edge_types[reverse])]
            both.row[edge_type], both.col[edge_type], both.edge[edge_type] = _both_ways(
                number, *ends[0], *ends[1], reverse_ids
            )
    return both


def _both_ways(
    number: int, row: Tensor, col: Tensor, edge: Tensor, rev_row: Tensor, rev_col: Tensor, rev_edge: Tensor,
    reverse_ids: ReverseIds,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    row, col, ids = to_bidirectional(row, col, rev_row, rev_col, edge, -1 - rev_edge)
    assert ids is not None
    return row, col, reverse_ids.found(number, ids)
