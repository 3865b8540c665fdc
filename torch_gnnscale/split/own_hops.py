"""The hops of a rank's share of a batch: layers read own rows, and after them those of other ranks."""

from __future__ import annotations

from typing import Any

import torch

from ..nn.aggregate import Adjacency, Entries
from ..nn.hops import HopEdges, Hops
from .shuffle_index import ShuffleIndex
from .transport import Moves


class OwnHops(Hops):
    """The own nodes of a batch that is cut over ranks, and the edges into them.

    Numbers of nodes and edges are those of own nodes, and of edges into them; ``rows`` are those of the nodes.
    With n own nodes, a source in ``edge_index`` below n is an own node, and the source n + i is the node at position i
    of the halo.

    Args:
        batch: of a loader with ``split=``.
        verify: see :class:`torch_gnnscale.nn.hops.Hops`.
    """

    def __init__(self, batch: Any, verify: bool) -> None:
        super().__init__(batch, verify)
        self.index: ShuffleIndex = batch.shuffle_index
        self._moves: dict[int, Moves] = {}
        relation = self.only
        self.rows, self.edge_index = relation.dst.rows, relation.index
        relation.edges = self.mixed_edges(relation.edges.edges, relation.ends)

    def mixed_edges(self, edges: Adjacency, ends: list[int]) -> HopEdges:
        """The prefixes of edges into own nodes. ``ends[h]``: how many edges have destinations in groups 0..h."""
        kind = HopEdges if self.index.num_halo == 0 else _MixedEdges
        found = kind(edges, self.rows, self.rows, ends)
        if isinstance(found, _MixedEdges):
            found.hops = self
        return found

    def moves(self, groups: int) -> Moves:
        """What travels before a layer that computes the nodes of groups 0..groups-1."""
        if groups not in self._moves:
            self._moves[groups] = Moves(self.index, groups)
        return self._moves[groups]

    def mixed_rows(self, groups: int) -> int:
        """How many rows a layer reads whose sources are the first ``groups`` groups: own rows and the halo's."""
        return self.rows[groups - 1] + len(self.moves(groups - 1).halo)


class _MixedEdges(HopEdges):
    """Edges whose prefixes have sources among the rows that a layer reads: own rows, and after them the halo's."""

    hops: OwnHops

    def prefix(self, groups: int) -> Adjacency:
        """The edges to the own nodes of the first ``groups - 1`` groups."""
        found = self._prefixes.get(groups)
        if found is None:
            found = self._prefixes[groups] = self._renumbered(groups)
        return found

    def _renumbered(self, groups: int) -> Adjacency:
        hops, count = self.hops, self.ends[groups - 2]
        own, ptr = hops.rows[groups - 1], self.edges.forward.ptr[: self.dst_rows[groups - 2] + 1]
        halo, index = hops.moves(groups - 1).halo, self.edges.index[:, :count]
        if own < hops.rows[-1] or len(halo) < hops.index.num_halo:
            place = halo.new_zeros(hops.rows[-1] + hops.index.num_halo)
            place[:own] = torch.arange(own, device=place.device)
            place[hops.rows[-1] + halo] = torch.arange(own, own + len(halo), device=place.device)
            index = torch.stack([place.index_select(0, index[0]), index[1]])
        return Adjacency(index, Entries(ptr, index[0], None), own + len(halo), len(ptr) - 1)
