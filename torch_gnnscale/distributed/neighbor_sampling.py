"""Draws samples of a graph whose topology is partitioned, hop by hop: the ranks that own the nodes' columns draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import NodeType
from typing_extensions import override

from .. import ops
from ..comm.steps import Steps
from ..laps import Laps
from ..ops.arguments import check_key
from ..partition import PartitionBook
from ..sampler.executor import Drawing, Executor
from ..sampler.graph import SampledGraph, end_types
from ..sampler.hop_by_hop import (
    Frontier,
    Hops,
    Picked,
    WeightedPicks,
    by_hops,
    divided,
    finish_together,
    joined,
    packed,
    taken,
    unpacked,
)
from ..sampler.links import LinkSampling
from ..sampler.minibatch import PreparedSeeds
from ..topology.sort_on_disk import id_dtype


class Requests(NamedTuple):
    """The requests of all ranks that this one answers, rank after rank, batch after batch."""

    node: Tensor
    tree: Tensor | None
    time: Tensor | None
    start_time: Tensor | None
    ends: list[int]
    """Those of batch j of rank i are ends[i k + j]..ends[i k + j + 1] - 1, k being the number of batches per rank."""
    keys: list[int]
    """The key of each of these batches."""


Draw = Callable[[Requests, Frontier], Picked]
"""Draws the edges of requests. It reads the numbers of the hop and the relation and the fanout from the frontier, and
whether seeds have times."""


class Owners:
    """Asks the ranks of a column for the drawn edges of a hop, in two rounds.

    Args:
        book: says which part has which nodes.
        part: this rank's.
        types: by relation, the type of the nodes that its edges lead to.
        own_seeds: all seeds of every rank are of its own part, so that the first hop takes no round.
        problem: what is wrong with this rank's columns, if anything.
        steps: of the loader.

    Raises:
        ValueError: on all ranks, if the columns of one are malformed.
    """

    def __init__(
        self, book: PartitionBook, part: int, types: Sequence[NodeType | None], own_seeds: bool,
        problem: Exception | None, steps: Steps,
    ) -> None:  # fmt: skip
        self.steps, self._part, self._own_seeds = steps, part, own_seeds
        self._bounds = [book.bounds[node_type] for node_type in types]
        nodes = max(map(book.num_nodes, book.bounds))
        self._requests = id_dtype(nodes)
        self._picks = id_dtype(max(nodes, *map(book.num_edges, book.edge_bounds)))
        found = steps.gather(None if problem is None else f"{type(problem).__name__}: {problem}")
        for rank, text in enumerate(found):
            if text is not None:
                raise ValueError(f"rank {rank}: {text}") from problem

    def picks(self, frontiers: list[Frontier], keys: list[int], draw: Draw) -> list[Any]:
        """The edges that the owners draw for the frontiers of a hop, as ``draw`` returns them: for each frontier, in
        the order of its nodes.

        Args:
            frontiers: relation after relation, each batch after batch; all ranks have the same relations, and as many
                batches.
            keys: the batches'.
            draw: draws the edges of nodes that this rank owns, for its own batches and for other ranks'.
        """
        batches, counts = len(keys), [len(frontier.node) for frontier in frontiers]
        begins = range(0, len(frontiers), batches)
        relations = [_all_of(frontiers[begin : begin + batches]) for begin in begins]
        if relations[0].hop > 0 or not self._own_seeds:
            return divided(self._exchanged(relations, counts, keys, draw), counts)
        found = []
        for asked, begin in zip(relations, begins, strict=True):
            each = counts[begin : begin + batches]
            ends = list(accumulate(each, initial=0))
            requests = Requests(asked.node, asked.tree, asked.time, asked.start_time, ends, keys)
            found += divided(draw(requests, asked), each)
        return found

    def _exchanged(self, relations: list[Frontier], counts: list[int], keys: list[int], draw: Draw) -> Picked:
        """The edges that the owners of the frontiers' nodes draw; meanwhile this rank draws for the others.

        Everything that may fail is done before sizes are exchanged, so that an error travels in place of the sizes: a
        rank that has sent sizes also sends the bytes.

        Args:
            relations: the frontiers of each relation, of all batches one after the other.
            counts: how many nodes they have of each batch, relation after relation.
            keys: of the batches.
            draw: as of :meth:`picks`.
        """
        steps, parts, groups = self.steps, self.steps.rows.size, len(counts)
        owner = torch.cat([
            torch.searchsorted(self._bounds[asked.relation], asked.node, right=True) - 1 for asked in relations
        ])  # fmt: skip
        order = torch.argsort(owner, stable=True)
        group = torch.arange(groups).repeat_interleave(torch.tensor(counts), output_size=len(owner))
        table = torch.bincount(owner * groups + group, minlength=parts * groups).view(parts, groups)
        wanted = table.sum(1)
        given = [[entry for entry in (asked.node, *_of_seeds(asked)) if entry is not None] for asked in relations]
        dtype = self._requests if relations[0].time is None else torch.int64
        requests = torch.stack([torch.cat(entry)[order] for entry in zip(*given, strict=True)], 1).to(dtype)
        form = _Form(groups, len(keys), requests.size(1), dtype)
        sent = [form.sent(*of, keys) for of in zip(table, requests.split(wanted.tolist()), strict=True)]
        head = torch.tensor(keys[0] if len(keys) == 1 else len(keys)).expand(parts)
        asked, heads = steps.counted(torch.stack([wanted, head], 1), None, "sampling").T.tolist()
        answered = steps.tensors(sent, list(map(form.length, asked)), "requests")

        replies: list[Tensor] = []
        sizes, error = torch.zeros(parts, 2, dtype=torch.int64), None
        try:
            of_ranks = [form.received(*of) for of in zip(answered, asked, heads, strict=True)]
            drawn_here = [joined(of) for of in zip(*_drawn(of_ranks, relations, draw), strict=True)]
            sizes[:, 0] = torch.tensor([len(entry.source) for entry in drawn_here])
            sizes[:, 1] = int(isinstance(drawn_here[0], WeightedPicks))
            replies = [packed(entry, self._picks) for entry in drawn_here]
        except Exception as failed:  # the others wait for what this rank draws
            error = failed
        drawn = steps.counted(sizes, error, "drawing neighbors")
        weighted = bool(sizes[0, 1])
        per_edge = 3 if weighted else 2
        found = steps.tensors(replies, (wanted + per_edge * drawn[:, 0]).tolist(), "picks")
        pieces = zip(found, wanted.tolist(), drawn[:, 0].tolist(), strict=True)
        picks = joined([unpacked(entry, count, edges, weighted) for entry, count, edges in pieces])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return taken(picks, back)


class _Asked(NamedTuple):
    """The requests of a rank: relation after relation, each batch after batch."""

    table: Tensor
    """By request, its fields: int64, shape [n, fields]."""
    counts: list[int]
    """How many there are of each relation and batch."""
    keys: list[int]
    """Of the batches."""


class _Form(NamedTuple):
    """How the requests of a hop travel: their fields, request after request. Before them, if there are several
    relations or batches, how many there are of each, and the keys of several batches; the key of one is told before."""

    groups: int
    """The number of relations times that of batches."""
    batches: int
    fields: int
    """Of a request."""
    dtype: torch.dtype

    def sent(self, counts: Tensor, requests: Tensor, keys: list[int]) -> Tensor:
        """What one rank is sent; nothing, if it is asked for nothing."""
        if not self._told or not len(requests):
            return requests.reshape(-1)
        words = torch.tensor(keys if self.batches > 1 else [], dtype=torch.int64).view(self.dtype)
        return torch.cat([words, counts.to(self.dtype), requests.reshape(-1)])

    def length(self, count: int) -> int:
        """The length of what is sent for so many requests."""
        return self._told * (count > 0) + self.fields * count

    def received(self, vector: Tensor, count: int, head: int) -> _Asked:
        """What a rank has sent; ``head``: the key of a single batch."""
        told, table = vector[: -self.fields * count or None], vector[len(vector) - self.fields * count :]
        table = table.view(count, self.fields).to(torch.int64)
        if not self._told or not count:
            told = torch.tensor([count] if self.groups == 1 else [0] * self.groups)
            return _Asked(table, told.tolist(), [head] * self.batches)
        words = told[: len(told) - self.groups].clone().view(torch.int64)
        return _Asked(table, told[-self.groups :].tolist(), words.tolist() if self.batches > 1 else [head])

    @property
    def _told(self) -> int:
        """The length of what stands before requests."""
        words = 0 if self.batches == 1 else self.batches * (8 // self.dtype.itemsize)
        return 0 if self.groups == 1 else words + self.groups


def _drawn(asked: list[_Asked], relations: list[Frontier], draw: Draw) -> list[list[Picked]]:
    """By relation, the edges drawn for the requests of each rank."""
    batches = len(asked[0].keys)
    keys = [key for of_rank in asked for key in of_rank.keys]
    begin, found = [0] * len(asked), []
    for number, frontier in enumerate(relations):
        each = [of_rank.counts[number * batches : (number + 1) * batches] for of_rank in asked]
        sizes = list(map(sum, each))
        tables = [of_rank.table[at : at + size] for of_rank, at, size in zip(asked, begin, sizes, strict=True)]
        begin = [at + size for at, size in zip(begin, sizes, strict=True)]
        node, *columns = torch.cat(tables).unbind(1)
        others = iter(columns)
        tree, time, start_time = (None if entry is None else next(others) for entry in _of_seeds(frontier))
        ends = list(accumulate((count for of_rank in each for count in of_rank), initial=0))
        found.append(divided(draw(Requests(node, tree, time, start_time, ends, keys), frontier), sizes))
    return found


def _all_of(frontiers: list[Frontier]) -> Frontier:
    """The nodes that batches expand by one relation, batch after batch."""
    if len(frontiers) == 1:
        return frontiers[0]
    tree, time, start_time = (
        None if entries[0] is None else torch.cat(entries) for entries in zip(*map(_of_seeds, frontiers), strict=True)
    )
    node = torch.cat([frontier.node for frontier in frontiers])
    return frontiers[0]._replace(node=node, tree=tree, time=time, start_time=start_time)


def _of_seeds(frontier: Frontier) -> tuple[Tensor | None, ...]:
    """What a request tells of its seed, where seeds have it: its tree, its time, and where its window starts."""
    return frontier.tree, frontier.time, frontier.start_time


PHASES = ("P", "SAMPLE", "EXTRACT")
"""What sampling does (matrix-based sampling, algorithm 1)."""


def not_implemented(mode: str) -> NotImplementedError:
    """The error for a mode that a partitioned topology lacks."""
    return NotImplementedError(
        f"{mode} with a partitioned topology is not implemented; write the parts with topology='replicated'"
    )


class OverParts(Executor):
    """What executors over a partitioned topology have in common.

    Args:
        graph: this rank's columns.
        book: says which part has which nodes.
        part: this one.
        problem: what is wrong with this rank's columns, if anything.
    """

    collective = True

    def __init__(self, graph: SampledGraph, book: PartitionBook, part: int, problem: Exception | None) -> None:
        super().__init__(graph)
        self.book, self.part = book, part
        ends = [end_types(edge_type) for edge_type in graph.edge_types]
        self.ends = [(graph.node_index(src), graph.node_index(dst)) for src, dst in ends]
        """By relation, the numbers of the node types of its sources and of its destinations."""
        self.firsts = [int(book.bounds[dst][part]) for _, dst in ends]
        """By relation, the first node of this part that its edges lead to."""
        self._problem = problem
        self._owners: Owners | None = None
        self.laps = Laps(PHASES)
        """Seconds of sampling, with waiting for other ranks."""

    def check_links(self, links: LinkSampling) -> None:
        """Raises NotImplementedError for links whose edges are excluded, or whose negatives are strict."""
        if links.exclude_seed_edges:
            raise not_implemented(f"exclude_seed_edges={links.exclude_seed_edges!r}")
        if links.strict_negatives is not False:
            raise not_implemented("strict_negatives")

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """From now on the sampler asks the ranks in a loader's steps (:meth:`KeyedSampler.join`).

        Raises:
            ValueError: on all ranks, if the columns of one are malformed; or the sampler is another loader's.
        """
        if self._owners is not None and self._owners.steps is not steps:
            raise ValueError("neighbor_sampler: expected one of this loader alone, found one that another loader has")
        types = [self.graph.node_types[dst] for _, dst in self.ends]
        self._owners = Owners(self.book, self.part, types, own_seeds, self._problem, steps)

    @property
    def owners(self) -> Owners:
        """The owners of nodes, while a step is under way on this thread; else raises RuntimeError."""
        if self._owners is None or not self._owners.steps.running:
            raise RuntimeError(
                "sample: expected an iteration of a torch_gnnscale.NeighborLoader over the stores of a part, in whose "
                "steps all ranks sample together, found a call outside of one"
            )
        return self._owners

    def _drawn_by_owners(self, samples: Sequence[Hops], keys: list[int], draw: Draw) -> list[ops.Sample]:
        """Makes samples, whose edges are drawn by the owners of the nodes, with ``draw``.

        In ``laps``, P is the exchange of requests, SAMPLE the drawing, and EXTRACT the exchange of the drawn edges and
        the numbering of their nodes.
        """
        owners, laps = self.owners, self.laps

        def drawn(requests: Requests, frontier: Frontier) -> Picked:
            laps.lap("P")
            found = draw(requests, frontier)
            laps.lap("SAMPLE")
            return found

        def picks(waiting: list[Frontier]) -> list[Picked]:
            laps.lap("EXTRACT")
            return owners.picks(waiting, keys, drawn)

        laps.skip()
        made = finish_together(samples, picks)
        laps.lap("EXTRACT")
        return made


class PartitionedExecutor(OverParts):
    """Draws hop by hop: for each node of a frontier, the rank that owns its column draws the neighbors.

    A hop takes two rounds, of requests and of drawn edges, for all relations and all batches of a bulk; none, if no
    relation draws in it. The first hop takes none if all seeds are the rank's own. All ranks take the same rounds, even
    if their frontiers are empty.
    """

    def check(self, drawing: Drawing, how: str) -> None:
        """Raises NotImplementedError unless edges are those that are drawn."""
        if drawing.subgraph != "directional":
            raise not_implemented(f"subgraph_type={drawing.subgraph!r}")

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: Drawing) -> list[ops.Sample]:
        """As :meth:`Executor.draw`: in a step of the loader, in which each rank samples as many batches. The requests
        of all batches travel together.

        Raises:
            RuntimeError: not in a step; or another rank could not draw.
        """
        if any(of.pairs is not None for of in seeds):
            raise not_implemented("exclusion of edges")
        self.check(options, f"bulk={len(keys)}")
        samples = [
            by_hops(
                of.nodes, options.fanouts, self.ends, disjoint=options.disjoint, layers=options.layers,
                seed_time=of.times, seed_start_time=of.start_times,
            )
            for of in seeds
        ]  # fmt: skip
        draw = partial(self._drawn, drawing=options)
        return self._drawn_by_owners(samples, [check_key(key) for key in keys], draw)

    @override
    def edges_into(self, nodes: Tensor, relation: int, limits: Tensor | None) -> ops.Picks:
        taking_all = Drawing([], False, False, False, False, "directional")
        asked = [  # of all relations: other ranks may ask for another one in this round
            Frontier(0, -1, nodes[some], None, None if limits is None else limits[some], relation=number)
            for number in range(len(self.ends))
            for some in [slice(None if number == relation else 0)]
        ]
        return self.owners.picks(asked, [0], partial(self._drawn, drawing=taking_all))[relation]

    def pick_own(self, node: Tensor, key: int, hop: int, drawing: Drawing) -> ops.Picks:
        """The edges that one batch draws into nodes of this part, in the order of ``node``, without other ranks.

        Args:
            node: stored ids of this part, int64, shape [n].
            key: the batch's.
            hop: the number of the hop, from 0.
            drawing: must not have trees or times; of a graph of one relation.
        """
        requests = Requests(node, None, None, None, [0, len(node)], [check_key(key)])
        return self._drawn(requests, Frontier(hop, drawing.fanouts[0][hop], node, None, None), drawing)

    def _drawn(self, requests: Requests, frontier: Frontier, drawing: Drawing) -> ops.Picks:
        """The edges that this rank draws for requests of a hop from one relation."""
        relation = frontier.relation
        timed = self.graph.stored.time[relation] is not None
        return ops.pick_neighbors(
            self.graph.stored, requests.node, requests.ends, requests.keys, frontier.hop, frontier.fanout,
            first=self.firsts[relation], relation=relation, tree=requests.tree, time=requests.time if timed else None,
            start_time=requests.start_time if timed else None, replace=drawing.replace, last=drawing.last and timed,
        )  # fmt: skip
