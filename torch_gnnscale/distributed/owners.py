"""The owners of nodes draw their neighbors: what a hop asks them, what they answer, and how both travel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.typing import NodeType

from .. import ops
from ..comm.steps import Steps
from ..partition import PartitionBook
from ..sampler.executor import Drawing
from ..topology.sort_on_disk import id_dtype


class Frontier(NamedTuple):
    """The nodes whose neighbors a hop draws from one relation."""

    hop: int
    """The number of the hop, from 0."""
    fanout: int
    node: Tensor
    """Global ids: int64, shape [f]."""
    tree: Tensor | None
    """The tree of each node, if trees are disjoint: int64, shape [f]."""
    time: Tensor | None
    """The time of each node's seed, if edges have times: int64, shape [f]."""
    start_time: Tensor | None = None
    """The start of each seed's time window, if seeds have some: int64, shape [f]."""
    relation: int = 0
    """The number of the relation whose edges are drawn."""


class WeightedPicks(NamedTuple):
    """The drawn edges of a frontier, in its order, with weights."""

    num_edges: Tensor
    """How many edges were drawn for each node: int64, shape [f]."""
    source: Tensor
    """Global ids: int64, shape [e]."""
    edge_id: Tensor
    """int64, shape [e]."""
    weight: Tensor
    """float32, shape [e]."""


Picked: TypeAlias = ops.Picks | WeightedPicks


class Requests(NamedTuple):
    """The requests of all ranks that this one answers, rank after rank, batch after batch."""

    node: Tensor
    tree: Tensor | None
    time: Tensor | None
    start_time: Tensor | None
    ends: list[int]
    """Those of batch j of rank i are ends[i k + j]..ends[i k + j + 1] - 1, k being the number of batches per rank."""
    keys: Sequence[int]
    """The key of each of these batches."""


Draw = Callable[[Requests, Frontier], Picked]
"""Draws the edges of requests. It reads the numbers of the hop and the relation and the fanout from the frontier, and
whether seeds have times."""


def draw_neighbors(
    graph: ops.Relations, firsts: Sequence[int], drawing: Drawing, requests: Requests, frontier: Frontier
) -> ops.Picks:
    """The neighbors that an owner draws for requests of a hop from one relation.

    Args:
        graph: this rank's columns.
        firsts: by relation, the first node of this part that its edges lead to.
        drawing: the options.
        requests, frontier: as of :data:`Draw`.
    """
    relation = frontier.relation
    timed = graph.time[relation] is not None
    return ops.pick_neighbors(
        graph, requests.node, requests.ends, requests.keys, frontier.hop, frontier.fanout, first=firsts[relation],
        relation=relation, tree=requests.tree, time=requests.time if timed else None,
        start_time=requests.start_time if timed else None, replace=drawing.replace, last=drawing.last and timed,
    )  # fmt: skip


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

    def picks(self, frontiers: list[Frontier], keys: Sequence[int], draw: Draw) -> list[Any]:
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

    def _exchanged(self, relations: list[Frontier], counts: list[int], keys: Sequence[int], draw: Draw) -> Picked:
        """The edges that the owners of the frontiers' nodes draw; meanwhile this rank draws for the others.

        A rank that fails says so in the next numbers that it exchanges, which come before what it sends.

        Args:
            relations: the frontiers of each relation, of all batches one after the other.
            counts: how many nodes they have of each batch, relation after relation.
            keys: of the batches.
            draw: as of :meth:`picks`.
        """
        transport, parts, groups = self.steps.transport, self.steps.rows.size, len(counts)
        owner = torch.cat([
            torch.searchsorted(self._bounds[asked.relation], asked.node, right=True) - 1 for asked in relations
        ])  # fmt: skip
        order = torch.argsort(owner, stable=True)
        group = torch.arange(groups).repeat_interleave(torch.tensor(counts), output_size=len(owner))
        table = torch.bincount(owner * groups + group, minlength=parts * groups).view(parts, groups)
        wanted = table.sum(1).tolist()
        given = [[entry for entry in (asked.node, *_of_seeds(asked)) if entry is not None] for asked in relations]
        dtype = self._requests if relations[0].time is None else torch.int64
        requests = torch.stack([torch.cat(entry)[order] for entry in zip(*given, strict=True)], 1).to(dtype)
        form = _Form(groups, len(keys), requests.size(1), dtype)
        sent = [form.sent(*of, keys) for of in zip(table, requests.split(wanted), strict=True)]
        heads = [keys[0] if len(keys) == 1 else len(keys)] * parts
        asked_here = transport.messages(sent, heads, partial(self.steps.counted, what="sampling"), "requests")
        of_ranks = [form.received(*of) for of in zip(*asked_here, strict=True)]
        drawn = [joined(of) for of in zip(*_drawn(of_ranks, relations, draw), strict=True)]
        replies = [packed(entry, self._picks) for entry in drawn]
        counted = partial(self.steps.counted, what="drawing neighbors")
        found, _ = transport.messages(replies, None, counted, "picks")
        pieces = zip(found, wanted, strict=True)
        picks = joined([unpacked(entry, count, isinstance(drawn[0], WeightedPicks)) for entry, count in pieces])
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

    def sent(self, counts: Tensor, requests: Tensor, keys: Sequence[int]) -> Tensor:
        """What one rank is sent; nothing, if it is asked for nothing."""
        if not self._told or not len(requests):
            return requests.reshape(-1)
        words = torch.tensor(keys if self.batches > 1 else [], dtype=torch.int64).view(self.dtype)
        return torch.cat([words, counts.to(self.dtype), requests.reshape(-1)])

    def received(self, vector: Tensor, head: int) -> _Asked:
        """What a rank has sent; ``head``: the key of a single batch."""
        if not self._told or not len(vector):
            table = vector.view(-1, self.fields).to(torch.int64)
            told = [len(table)] if self.groups == 1 else [0] * self.groups
            return _Asked(table, told, [head] * self.batches)
        words, counts, fields = vector.tensor_split([self._told - self.groups, self._told])
        keys = words.clone().view(torch.int64).tolist() if self.batches > 1 else [head]
        return _Asked(fields.view(-1, self.fields).to(torch.int64), counts.tolist(), keys)

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


# Picks as vectors ####################################################################################################


def packed(picks: Picked, dtype: torch.dtype) -> Tensor:
    """Picks in one vector: the numbers of edges, their sources, their ids and, if they have, the bits of weights."""
    fields = [entry.view(torch.int32) if entry.is_floating_point() else entry for entry in _fields(picks)]
    return torch.cat([entry.to(dtype) for entry in (picks.num_edges, *fields)])


def unpacked(vector: Tensor, count: int, weighted: bool) -> Picked:
    """Picks from their vector, which are those of ``count`` requests."""
    edges = [(len(vector) - count) // (3 if weighted else 2)] * (3 if weighted else 2)
    number, source, edge_id, *bits = vector.split([count, *edges])
    number, source, edge_id = (entry.to(torch.int64) for entry in (number, source, edge_id))
    if not weighted:
        return ops.Picks(number, source, edge_id)
    return WeightedPicks(number, source, edge_id, bits[0].to(torch.int32).view(torch.float32))


def _fields(picks: Picked) -> Sequence[Tensor]:
    """What picks say of each edge."""
    found = picks[1:]
    assert all(entry is not None for entry in found)
    return found  # type: ignore[return-value]


def joined(pieces: Sequence[Picked]) -> Picked:
    """Picks of several groups of requests, group after group."""
    if len(pieces) == 1:
        return pieces[0]
    kind = type(pieces[0])
    return kind(*(torch.cat(entries) for entries in zip(*pieces, strict=True)))  # type: ignore[arg-type]


def divided(picks: Picked, counts: Sequence[int]) -> list[Picked]:
    """The picks of consecutive groups of requests, ``counts[i]`` of them in group i."""
    if len(counts) == 1:
        return [picks]
    ends = torch.tensor([0, *accumulate(counts)])
    edges = torch.cat([picks.num_edges.new_zeros(1), picks.num_edges.cumsum(0)])[ends].diff().tolist()
    each = (picks.num_edges.split(list(counts)), *(entry.split(edges) for entry in _fields(picks)))
    return [type(picks)(*entries) for entries in zip(*each, strict=True)]


def taken(picks: Picked, which: Tensor) -> Picked:
    """The picks of requests ``which[0]``, ``which[1]``, ...: int64, shape [m]; repeats allowed."""
    begin = picks.num_edges.cumsum(0) - picks.num_edges
    place = expanded(begin[which], picks.num_edges[which])
    return type(picks)(picks.num_edges[which], *(entry[place] for entry in _fields(picks)))


def expanded(begin: Tensor, count: Tensor) -> Tensor:
    """begin[0], begin[0] + 1, ..., begin[0] + count[0] - 1, begin[1], ...: int64, shape [sum(count)]."""
    total = int(count.sum())
    shift = begin - (count.cumsum(0) - count)
    return torch.arange(total) + shift.repeat_interleave(count, output_size=total)
