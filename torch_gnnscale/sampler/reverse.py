"""Samples that have the reverse of each drawn edge, and the ids of these reverse edges."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler.utils import to_bidirectional

from .. import ops
from .graph import Relation, SampledGraph
from .output import HeteroNeighborOutput, NeighborOutput


class ReverseIds:
    """The ids of the edges that are the reverses of others, for each relation of a graph. Made on first use.

    The reverse of an edge of a relation is an edge of its reverse relation between the same nodes and, where edges have
    times, at the same time; of several, the k-th belongs to the k-th. Relations have ids of reverses if every edge of
    both has a reverse.
    """

    def __init__(self, graph: SampledGraph) -> None:
        self._graph = graph
        self._tables: dict[int, Tensor | None] = {}

    def __getitem__(self, number: int) -> Tensor | None:
        """For a relation that has a reverse relation: result[id of an edge of that one] is the id of this relation's
        edge that leads the other way; None unless every edge has such an edge."""
        if number not in self._tables:
            relations, reverse = self._graph.relations, self._graph.stored.reverse[number]
            self._tables[number] = _table(relations[number], relations[reverse], self._graph.edge_time is not None)
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


def _table(relation: Relation, reverse: Relation, timed: bool) -> Tensor | None:
    here, there = relation.csc, reverse.csc
    if here.num_edges != there.num_edges or not torch.equal(
        here.colptr.diff(), ops.count_ids(there.row, there.num_src)
    ):
        return None  # as most graphs whose edges lead one way: some node has more edges into it than out of it
    if timed and (relation.time is None) != (reverse.time is None):
        return None
    # Edges by (row, column), then by (column, row). index_select: several times as fast as indexing.
    ptr, cols, by_row = _sorted(here.col(), here.row.contiguous(), here.num_dst, here.num_src)
    _, rows, by_col = _sorted(torch.repeat_interleave(ptr.diff()), cols, here.num_src, here.num_dst)
    at, turned, of_cols = by_row.index_select(0, by_col), by_row, cols
    if reverse is not relation:
        _, of_cols, turned = _sorted(there.col(), there.row.contiguous(), there.num_dst, there.num_src)
    if not torch.equal(rows, of_cols.to(rows.dtype)):  # columns and rows are equal, because degrees are
        return None
    if (
        timed
        and relation.time is not None
        and reverse.time is not None
        and not torch.equal(relation.time.index_select(0, at), reverse.time.index_select(0, turned))
    ):
        return None
    ids, of_ids = (
        (position if csc.edge_id is None else csc.edge_id.index_select(0, position)).to(torch.int64)
        for csc, position in ((here, at), (there, turned))
    )
    small = relation.id_bound <= torch.iinfo(torch.int32).max
    table = torch.full((reverse.id_bound,), -1, dtype=torch.int32 if small else torch.int64)
    return table.index_copy_(0, of_ids, ids.to(table.dtype))


def _sorted(others: Tensor, keys: Tensor, num_others: int, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """(where each key's edges begin, their other ends, their positions), of edges sorted by ``keys``, stably;
    ``others``: their other ends."""
    ptr, edges = ops.coo_to_csc(others.to(keys.dtype), keys, num_others, num_keys)
    return ptr, edges[:, 0].contiguous(), edges[:, 1].contiguous()


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
