"""Layer-wise samples of a graph whose topology is partitioned: LABOR by the owners of nodes, LADIES and FastGCN by the
block 1.5D algorithm (Tripathy et al. 2024, section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from .. import ops
from ..comm.row_transport import Counted
from ..comm.steps import Steps
from ..ops.arguments import check_ids
from ..ops.layer_sampling import scores_of_columns, squared_counts
from ..partition import PartitionBook
from ..sampler.executor import LayerOptions
from ..sampler.graph import SampledGraph
from ..sampler.minibatch import PreparedSeeds
from ..topology.sort_on_disk import id_dtype
from .neighbor_sampling import Hops, OverParts, by_hops, finish_together
from .owners import (
    Frontier,
    Owners,
    Picked,
    Requests,
    WeightedPicks,
    divided,
    expanded,
    joined,
    packed,
    taken,
    unpacked,
)
from .row_exchange import counts_by_part


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
            degree = self.stored.colptr[0].diff()
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
        pick = partial(self.owners.picks, keys=keys, draw=self._drawn)
        return finish_together(self._begun([of.nodes[0] for of in seeds]), pick)

    def _drawn(self, requests: Requests, frontier: Frontier) -> WeightedPicks:
        """The edges that this rank draws for requests of a hop."""
        drawing = self.options.drawing
        stored = stored_edges(self.stored, requests.node - self.first)
        degree, of_draws = stored.num_edges, 0 if drawing.layer_dependency else frontier.hop
        drawn, correction = ops.choose_edges(
            stored.source, degree, requests.ends, requests.keys, of_draws, frontier.fanout, drawing.scheme
        )
        weight = drawn_weights(drawing, stored, drawn, correction, self.degrees)
        assert stored.edge_id is not None
        column = torch.arange(len(degree)).repeat_interleave(degree)[drawn]
        num_edges = torch.bincount(column, minlength=len(degree))
        return WeightedPicks(num_edges, stored.source[drawn], stored.edge_id[drawn], weight)


class GridLayers(PartitionedLayers):
    """p ranks are a grid of p/c rows and c columns; the ranks of a row sample all its batches together (algorithm 2).

    In a hop, a rank of column j asks the ranks of its column for the stored edges of the frontiers' nodes that belong
    to parts j p/c^2, ..., (j + 1) p/c^2 - 1. This takes 2 rounds, in which each edge comes once, for both P and
    EXTRACT. LADIES' scores, which are exact integers, are summed over the row. Selection takes no round: r_v depends on
    the key and the node. Then each rank sends the drawn edges to the rank of its row that makes the batch. With c = 1
    there are no rounds over the row.
    """

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """As :meth:`Executor.join`.

        Raises:
            ValueError: on all ranks: p/c^2 is not a whole number; or as in :meth:`PartitionedLayers.join`.
        """
        grid = steps.grid
        if grid.parts % grid.copies:
            allowed = [c for c in range(1, grid.ranks + 1) if grid.ranks % c**2 == 0]
            raise ValueError(
                f"method={self.options.drawing.method!r} with a partitioned topology: expected c copies of each part, "
                f"{grid.ranks} / c^2 being whole: c in {allowed}, found {grid.copies}"
            )
        super().join(steps, own_seeds)
        self.own_seeds = own_seeds and grid.copies == 1
        """Whether the first frontier's edges are this rank's own."""
        self.score: Tensor | None = None
        """FastGCN's score of each node of the graph; None for LADIES."""
        if self.options.drawing.method == "fastgcn":
            own = ops.node_scores(self.stored, self.options.drawing.scores)
            self.score = steps.sum_of_column(own, "tables")
        steps.open_row()

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: LayerOptions) -> list[ops.Sample]:
        """As :meth:`Executor.draw`; in a step of the loader, where each rank samples as many batches."""
        nodes = [of.nodes[0] for of in seeds]
        samples = self._begun(nodes)
        return finish_together(samples, _OfRow(self, self.owners, nodes, keys).hop)


class _OfRow:
    """The batches of a row, while they are sampled. A node v of batch t has the code t n + v."""

    def __init__(self, executor: GridLayers, owners: Owners, seeds: Sequence[Tensor], keys: Sequence[int]) -> None:
        self.options, self.executor, self.steps = executor.options, executor, owners.steps
        grid, self.each = self.steps.grid, len(keys)
        self.copies, self.copy = grid.copies, grid.copy(self.steps.rank)
        self.column, self.row = grid.column(self.copy), grid.row(grid.part(self.steps.rank))
        self.bounds = executor.book.bounds[None]
        blocks = grid.parts // self.copies
        self.blocks = self.bounds[::blocks]
        """The edges of nodes blocks[j]..blocks[j + 1] - 1 are asked for by column j."""
        all_seeds, self.keys = self._of_all(seeds, keys)
        self.n = max(executor.num_nodes, 1)
        self.known = torch.cat([t * self.n + torch.unique(entry.long()) for t, entry in enumerate(all_seeds)])
        """The codes of all nodes found so far, ascending."""
        self.frontier = self.known
        """The codes of the nodes that the next hop expands, ascending."""
        self.fetched = _Fetched()

    def _of_all(self, seeds: Sequence[Tensor], keys: Sequence[int]) -> tuple[list[Tensor], list[int]]:
        """The seeds and the keys of all batches of the row."""
        if self.copies == 1:
            return list(seeds), list(keys)
        counts = [len(entry) for entry in seeds]
        own = torch.cat([torch.tensor([*counts, *keys], dtype=torch.int64), *(entry.long() for entry in seeds)])
        found, _ = self._to_row([own] * self.copies, "seeds")
        given = [entry[2 * self.each :].split(entry[: self.each].tolist()) for entry in found]
        all_keys = torch.cat([entry[self.each : 2 * self.each] for entry in found]).tolist()
        return [entry for of_rank in given for entry in of_rank], all_keys

    def _to_row(
        self, pieces: Sequence[Tensor], purpose: str, beside: Sequence[int] | None = None
    ) -> tuple[list[Tensor], list[int]]:
        """What the ranks of the row send to this one: int64, and a number beside it (:meth:`RowTransport.messages`)."""
        assert self.steps.row is not None
        return self.steps.row.messages(pieces, beside, self._counted(self.row, "sampling"), purpose)

    def _counted(self, ranks: Sequence[int], what: str) -> Counted:
        return partial(self.steps.counted_with, ranks=ranks, what=what)

    def hop(self, frontiers: list[Frontier]) -> list[Picked]:
        """The edges drawn for the frontiers of this rank's own batches."""
        hop, count = frontiers[0].hop, frontiers[0].fanout
        node = self.frontier % self.n
        mine = self.frontier[self._is_of(self.copy, node)]
        node = mine % self.n
        self._fetch(torch.unique(node), local=hop == 0 and self.executor.own_seeds)
        stored = self.fetched.edges_of(node)
        degree = stored.num_edges
        column = torch.arange(len(mine)).repeat_interleave(degree)
        code = (mine - node)[column] + stored.source  # of each edge's source
        chosen, correction = self._chosen(code, degree, column, count, hop)
        place, drawn = _places(chosen, code)
        weight = drawn_weights(self.options.drawing, stored, drawn, correction[place[drawn]], self.executor.degrees)
        assert stored.edge_id is not None
        num_edges = torch.bincount(column[drawn], minlength=len(mine))
        picks: Picked = WeightedPicks(num_edges, stored.source[drawn], stored.edge_id[drawn], weight)
        found = chosen if self.executor.score is None else torch.unique(code[drawn])
        if self.copies > 1:
            mine, picks, found = self._extracted(mine, picks, found)
        self._expand(found)
        wanted = [
            (self.copy * self.each + number) * self.n + frontier.node for number, frontier in enumerate(frontiers)
        ]
        order = torch.argsort(mine)
        at = order[torch.searchsorted(mine[order], torch.cat(wanted))]
        return divided(taken(picks, at), [len(entry) for entry in wanted])

    def _is_of(self, copy: int, node: Tensor) -> Tensor:
        """Whether column ``copy`` asks for the edges of each node: bool, shape of ``node``."""
        return (node >= self.blocks[copy]) & (node < self.blocks[copy + 1])

    def _expand(self, found: Tensor) -> None:
        """Sets the next frontier. ``found``: the codes of the sources of all drawn edges, ascending."""
        new = found[~_places(self.known, found)[1]]
        self.known = torch.cat([self.known, new]).sort().values
        if not self.options.include_dst:
            self.frontier = found
        else:
            self.frontier = self.known if self.options.layers else new

    # P = QA and SAMPLE ###############################################################################################

    def _chosen(self, code: Tensor, degree: Tensor, column: Tensor, count: int, hop: int) -> tuple[Tensor, Tensor]:
        """The codes of the drawn nodes, ascending, and their corrections c_v: float64.

        Args:
            code: of the source of each edge.
            degree: of each column.
            column: of each edge.
            count: how many are drawn.
            hop: the number of the hop.
        """
        drawing, score = self.options.drawing, self.executor.score
        batches = len(self.keys)
        if score is None:
            of_column = scores_of_columns(degree, self.executor.num_nodes, drawing.scores)
            candidates, scores = self._summed(*_sums(code, of_column[column]))
            if drawing.scores == "counts":
                scores = squared_counts(scores, candidates // self.n, batches)
            ends = torch.searchsorted(candidates, torch.arange(batches + 1) * self.n).tolist()
        else:
            candidates = score.nonzero().view(-1)
            scores = score[candidates]
        found = []
        for t, key in enumerate(self.keys):
            some = slice(ends[t], ends[t + 1]) if score is None else slice(None)
            codes, q = candidates[some] + (0 if score is None else t * self.n), scores[some]
            kept = codes[:0]
            if drawing.keep_known:
                is_known = _places(self.known, codes)[1]
                kept, codes, q = codes[is_known], codes[~is_known], q[~is_known]
            at, correction = ops.choose_nodes(codes - t * self.n, q, count, drawing.scheme, key, hop)
            all_codes = torch.cat([kept, codes[at]])
            order = torch.argsort(all_codes)
            found.append((all_codes[order], torch.cat([correction.new_ones(len(kept)), correction])[order]))
        none = (code[:0], torch.empty(0, dtype=torch.float64))
        chosen, corrections = (torch.cat(entries) for entries in zip(none, *found, strict=True))
        return chosen, corrections

    def _summed(self, candidates: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates of all ranks of the row, ascending, and the sums of their scores: the all-reduce of algorithm
        2, of the nonzeros alone."""
        if self.copies == 1:
            return candidates, scores
        pieces, _ = self._to_row([torch.cat([candidates, scores])] * self.copies, "scores")
        codes, parts = zip(*(piece.chunk(2) for piece in pieces), strict=True)
        return _sums(torch.cat(codes), torch.cat(parts))

    # EXTRACT #########################################################################################################

    def _extracted(self, mine: Tensor, picks: Picked, found: Tensor) -> tuple[Tensor, Picked, Tensor]:
        """Each rank sends the edges that it has drawn to the rank of the row that makes the batch.

        Returns:
            (The codes of the frontier's nodes of this rank's own batches, the edges drawn into them, the codes of the
            sources that all ranks of the row have drawn).
        """
        bounds = torch.arange(self.copies + 1) * (self.each * self.n)
        counts = torch.searchsorted(mine, bounds).diff().tolist()
        each = divided(picks, counts)
        told = found if self.executor.score is not None else found[:0]  # LADIES: all ranks know
        pieces = [torch.cat([packed(entry, torch.int64), told]) for entry in each]
        came, sources = self._to_row(pieces, "drawn", [len(told)] * self.copies)
        own = self.frontier[slice(*torch.searchsorted(self.frontier, bounds[self.copy : self.copy + 2]).tolist())]
        node = own % self.n
        codes = [own[self._is_of(copy, node)] for copy in range(self.copies)]
        joint = [
            unpacked(piece[: len(piece) - more], len(of), weighted=True)
            for piece, of, more in zip(came, codes, sources, strict=True)
        ]
        if self.executor.score is not None:
            each_found = [piece[len(piece) - more :] for piece, more in zip(came, sources, strict=True)]
            found = torch.unique(torch.cat(each_found))
        return torch.cat(codes), joined(joint), found

    # Rows of A #######################################################################################################

    def _fetch(self, node: Tensor, local: bool) -> None:
        """Gets the stored edges of nodes of this column's blocks, unless they have come before.

        Args:
            node: distinct, ascending.
            local: on every rank, all nodes are of its own part, so that no round is needed.
        """
        graph, first, steps = self.executor.stored, self.executor.first, self.steps
        node = node[~_places(self.fetched.node, node)[1]]
        if local:
            self.fetched.add(node, stored_edges(graph, node - first))
            return
        wanted, transport = counts_by_part(node, self.bounds).tolist(), steps.transport
        sent = node.to(id_dtype(self.executor.num_nodes)).split(wanted)
        asked, _ = transport.messages(sent, None, self._counted(self.column, "sampling"), "requests")
        found = [stored_edges(graph, entry.long() - first) for entry in asked]
        dtype = id_dtype(max(self.executor.num_nodes, self.executor.book.num_edges()))
        replies, counted = [packed(entry, dtype) for entry in found], self._counted(self.column, "reading edges")
        came, _ = transport.messages(replies, None, counted, "edges")
        self.fetched.add(node, joined([unpacked(*of, weighted=False) for of in zip(came, wanted, strict=True)]))


class _Fetched:
    """The stored edges of nodes that have come so far."""

    def __init__(self) -> None:
        none = torch.empty(0, dtype=torch.int64)
        self.node = none
        """Ascending: int64, shape [m]."""
        self._begin = self._degree = none
        self._edges: Picked = ops.Picks(none, none, none)

    def add(self, node: Tensor, edges: Picked) -> None:
        """Adds distinct nodes that have not come before, and their edges."""
        begin = len(self._edges.source) + edges.num_edges.cumsum(0) - edges.num_edges
        self._edges = joined([self._edges, edges])
        self.node, order = torch.cat([self.node, node]).sort()
        self._begin = torch.cat([self._begin, begin])[order]
        self._degree = torch.cat([self._degree, edges.num_edges])[order]

    def edges_of(self, node: Tensor) -> ops.Picks:
        """The stored edges of nodes that have come; repeats allowed."""
        at = torch.searchsorted(self.node, node)
        place, edge_id = expanded(self._begin[at], self._degree[at]), self._edges.edge_id
        assert edge_id is not None
        return ops.Picks(self._degree[at], self._edges.source[place], edge_id[place])


def _places(ascending: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """(Where each value is in a sorted vector, whether it is there)."""
    if not len(ascending):
        return torch.zeros_like(values), torch.zeros(len(values), dtype=torch.bool)
    at = torch.searchsorted(ascending, values).clamp_(max=len(ascending) - 1)
    return at, ascending[at] == values


def _sums(code: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct codes, ascending, and the sum of the values of each."""
    distinct, which = torch.unique(code, return_inverse=True)
    return distinct, torch.zeros_like(distinct).index_add_(0, which, value)
