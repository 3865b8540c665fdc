"""Layer-wise samples of a graph whose topology is partitioned, of the stored edges of some nodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from .. import ops
from ..comm.steps import Steps
from ..ops.arguments import check_ids
from ..partition import PartitionBook
from ..sampler.executor import LayerOptions
from ..sampler.graph import SampledGraph
from ..sampler.hop_by_hop import Frontier, Hops, WeightedPicks, by_hops, expanded
from ..sampler.minibatch import PreparedSeeds
from .neighbor_sampling import OverParts, Requests


def stored_edges(graph: ops.Relations, column: Tensor) -> ops.Picks:
    """All stored edges of columns of a part, in stored order. ``column``: int64, shape [m], numbers of columns.

    Raises:
        RuntimeError: a source is no node of the graph.
    """
    colptr, row, edge_id = graph.colptr[0], graph.row[0], graph.edge_id[0]
    begin = colptr[column]
    degree = colptr[column + 1] - begin
    place = expanded(begin, degree)
    source = row[place].to(torch.int64)
    if (bad := ops.first_outside(source, graph.sizes[0])) >= 0:
        at, found = int(place[bad]), int(source[bad])
        raise RuntimeError(f"the graph is malformed: row[{at}] = {found}: expected a node in [0, {graph.sizes[0]})")
    return ops.Picks(degree, source, place if edge_id is None else edge_id[place].to(torch.int64))


def drawn_weights(
    drawing: ops.LayerDrawing, stored: ops.Picks, drawn: Tensor, correction: Tensor, degrees: Tensor | None
) -> Tensor:
    """The weights of drawn edges, as of :func:`torch_gnnscale.ops.sample_layers`.

    Args:
        drawing: the options.
        stored: all stored edges of the columns.
        drawn: positions among them of those that are drawn, int64, shape [m]; or bool, shape [e].
        correction: c_v of each drawn edge: float64, shape [m].
        degrees: the number of edges into each node of the graph, for ``gcn``: int64, shape [n].

    Returns:
        float32, shape [m].
    """
    degree = stored.num_edges
    row = torch.arange(len(degree)).repeat_interleave(degree)[drawn]
    of_stored = None if degrees is None else degrees[stored.source]
    of_source = None if of_stored is None else of_stored[drawn]
    return ops.weigh_edges(drawing, degree, row, correction, of_source, of_stored)


class PartitionedLayers(OverParts):
    """What LABOR, LADIES and FastGCN have in common.

    Args:
        graph, book, part, problem: as of :class:`OverParts`.
        options: those of all batches.
    """

    def __init__(
        self, graph: SampledGraph, book: PartitionBook, part: int, problem: Exception | None, options: LayerOptions
    ) -> None:
        super().__init__(graph, book, part, problem)
        self.options, self.first = options, self.firsts[0]
        self.num_nodes = book.num_nodes()
        self.degrees: Tensor | None = None
        """With ``aggregation="gcn"``, the number of edges into each node of the graph, once a loader was made."""

    @override
    def join(self, steps: Steps, own_seeds: bool) -> None:
        super().join(steps, own_seeds)
        if self.options.drawing.aggregation == "gcn":
            assert self._owners is not None
            own = torch.zeros(self.num_nodes, dtype=torch.int64)
            degree = self.graph.stored.colptr[0].diff()
            own[self.first : self.first + len(degree)] = degree
            self.degrees = self._owners.steps.sum_of_column(own, "tables")

    def _begun(self, seeds: Sequence[Tensor]) -> list[Hops]:
        """The samples of batches, before their first hop."""
        options = self.options
        for entry in seeds:
            check_ids("seeds", entry, self.num_nodes, "nodes")
        return [
            by_hops([entry], [options.num_nodes], layers=options.layers, include_dst=options.include_dst, weighted=True)
            for entry in seeds
        ]


class OwnersLayers(PartitionedLayers):
    """LABOR: the ranks that own the nodes' columns draw, since r_v depends on the node alone, and weigh the edges.

    Rounds and requests as of :class:`torch_gnnscale.distributed.neighbor_sampling.PartitionedExecutor`.
    """

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: LayerOptions) -> list[ops.Sample]:
        """As :meth:`Executor.draw`; in a step of the loader, where each rank samples as many batches."""
        return self._drawn_by_owners(self._begun([of.nodes[0] for of in seeds]), list(keys), self._drawn)

    def _drawn(self, requests: Requests, frontier: Frontier) -> WeightedPicks:
        """The edges that this rank draws for requests of a hop."""
        drawing = self.options.drawing
        stored = stored_edges(self.graph.stored, requests.node - self.first)
        degree, of_draws = stored.num_edges, 0 if drawing.layer_dependency else frontier.hop
        drawn, correction = ops.choose_edges(
            stored.source, degree, requests.ends, requests.keys, of_draws, frontier.fanout, drawing.scheme
        )
        weight = drawn_weights(drawing, stored, drawn, correction, self.degrees)
        assert stored.edge_id is not None
        column = torch.arange(len(degree)).repeat_interleave(degree)[drawn]
        num_edges = torch.bincount(column, minlength=len(degree))
        return WeightedPicks(num_edges, stored.source[drawn], stored.edge_id[drawn], weight)
