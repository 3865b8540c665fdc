"""Samples that have the reverse of each drawn edge, and the ids of these reverse edges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.sampler.utils import to_bidirectional

from .. import ops
from .graph import SampledGraph
from .minibatch import MiniBatch, SampledEdges


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


def add_reverses(batch: MiniBatch, graph: SampledGraph, reverse_ids: ReverseIds) -> None:
    """Adds to a batch of drawn edges their reverses, each once, and keeps the drawn ones as ``original``; like PyG's
    ``to_bidirectional(keep_orig_edges=True)``, but for the ids of edges."""
    drawn = batch.edges
    batch.original = [edges.edge_index for edges in drawn]
    batch.edges = []
    for number, edges in enumerate(drawn):
        if (reverse := graph.stored.reverse[number]) < 0:
            batch.edges.append(edges._replace(colptr=None))
            continue
        others = drawn[reverse]
        assert edges.edge_id is not None
        assert others.edge_id is not None
        row, col, ids = to_bidirectional(
            *edges.edge_index, *others.edge_index, edges.edge_id, -1 - others.edge_id
        )  # fmt: skip
        assert ids is not None
        batch.edges.append(SampledEdges(torch.stack([row, col]), None, reverse_ids.found(number, ids), edges.weight))
