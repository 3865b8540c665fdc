"""Draws samples of a graph whose topology is partitioned, hop by hop: the ranks that own the nodes' columns draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..comm.steps import Steps
from ..laps import Laps
from ..ops.arguments import check_key
from ..partition import PartitionBook
from ..sampler.executor import Drawing, Executor
from ..sampler.graph import SampledGraph
from ..sampler.hop_by_hop import Frontier, Hops, Picked, WeightedPicks, by_hops, finish_together
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
"""Draws the edges of requests. It reads the number of the hop and the fanout from the frontier, and whether seeds have
times."""


class Owners:
    """Asks the ranks of a column for the drawn edges of a hop, in two rounds.

    Args:
        book: says which part has which nodes.
        part: this rank's.
        own_seeds: all seeds of every rank are of its own part, so that the first hop takes no round.
        problem: what is wrong with this rank's columns, if anything.
        steps: of the loader.

    Raises:
        ValueError: on all ranks, if the columns of one are malformed.
    """

    def __init__(
        self, book: PartitionBook, part: int, own_seeds: bool, problem: Exception | None, steps: Steps
    ) -> None:
        self.steps, self._part, self._own_seeds = steps, part, own_seeds
        self._bounds = book.bounds[None]
        self._requests = id_dtype(book.num_nodes())
        self._picks = id_dtype(max(book.num_nodes(), book.num_edges()))
        found = steps.gather(None if problem is None else f"{type(problem).__name__}: {problem}")
        for rank, text in enumerate(found):
            if text is not None:
                raise ValueError(f"rank {rank}: {text}") from problem

    def picks(self, frontiers: list[Frontier], keys: list[int], draw: Draw) -> list[Any]:
        """The edges that the owners draw for the frontiers of batches, as ``draw`` returns them: for each frontier, in
        the order of its nodes.

        Args:
            frontiers: one per batch; all ranks have the same number of batches.
            keys: the batches'.
            draw: draws the edges of nodes that this rank owns, for its own batches and for other ranks'.
        """
        counts = [len(frontier.node) for frontier in frontiers]
        asked = _all_of(frontiers)
        if asked.hop == 0 and self._own_seeds:
            ends = list(accumulate(counts, initial=0))
            picks = draw(Requests(asked.node, asked.tree, asked.time, asked.start_time, ends, keys), asked)
        else:
            picks = self._exchanged(asked, counts, keys, draw)
        return divided(picks, counts)

    def _exchanged(self, frontier: Frontier, counts: list[int], keys: list[int], draw: Draw) -> Picked:
        """The edges that the owners of a frontier's nodes draw; meanwhile this rank draws for the others.

        Everything that may fail is done before sizes are exchanged, so that an error travels in place of the sizes: a
        rank that has sent sizes also sends the bytes.

        Args:
            frontier: of all batches, one after the other.
            counts: how many nodes of it each batch has.
            keys: of the batches.
            draw: as of :meth:`picks`.
        """
        steps = self.steps
        owner = torch.searchsorted(self._bounds, frontier.node, right=True) - 1
        order = torch.argsort(owner, stable=True)
        parts, batches = len(self._bounds) - 1, len(keys)
        batch = torch.arange(batches).repeat_interleave(torch.tensor(counts), output_size=len(owner))
        table = torch.bincount(owner * batches + batch, minlength=parts * batches).view(parts, batches)
        wanted = table.sum(1)
        fields = [entry for entry in (frontier.node, *_of_seeds(frontier)) if entry is not None]
        dtype = self._requests if frontier.time is None else torch.int64
        sent = torch.stack([entry[order] for entry in fields], 1).to(dtype).split(wanted.tolist())
        head = torch.tensor(keys[0] if batches == 1 else batches).expand(parts)
        told = torch.cat([table, torch.tensor(keys).expand(parts, -1)], 1)
        received = steps.counted(torch.stack([wanted, head], 1), None, "sampling")
        asked = received[:, 0].tolist()
        of_batches = received if batches == 1 else steps.rows.numbers(told, "counts")
        each, of_keys = of_batches[:, :batches].flatten(), of_batches[:, batches:].flatten()
        answered = steps.rows.tensors(sent, [len(fields) * count for count in asked], "requests")

        replies: list[Tensor] = []
        sizes, error = torch.zeros(parts, 2, dtype=torch.int64), None
        try:
            requests = _requests(answered, asked, each.tolist(), of_keys.tolist(), frontier)
            drawn_here = divided(draw(requests, frontier), asked)
            sizes[:, 0] = torch.tensor([len(entry.source) for entry in drawn_here])
            sizes[:, 1] = int(isinstance(drawn_here[0], WeightedPicks))
            replies = [packed(entry, self._picks) for entry in drawn_here]
        except Exception as failed:  # the others wait for what this rank draws
            error = failed
        drawn = steps.counted(sizes, error, "drawing neighbors")
        weighted = bool(sizes[0, 1])
        per_edge = 3 if weighted else 2
        found = steps.rows.tensors(replies, (wanted + per_edge * drawn[:, 0]).tolist(), "picks")
        pieces = zip(found, wanted.tolist(), drawn[:, 0].tolist(), strict=True)
        picks = joined([unpacked(entry, count, edges, weighted) for entry, count, edges in pieces])
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return taken(picks, back)


# Picks as vectors ####################################################################################################


def packed(picks: Picked, dtype: torch.dtype) -> Tensor:
    """Picks in one vector: the numbers of edges, their sources, their ids and, if they have, the bits of weights."""
    fields = [entry.view(torch.int32) if entry.is_floating_point() else entry for entry in _fields(picks)]
    return torch.cat([entry.to(dtype) for entry in (picks.num_edges, *fields)])


def unpacked(vector: Tensor, count: int, edges: int, weighted: bool) -> Picked:
    """Picks from their vector, which are those of ``count`` requests and have ``edges`` edges together."""
    number, source, edge_id, *bits = vector.split([count, edges, edges, edges] if weighted else [count, edges, edges])
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


def _all_of(frontiers: list[Frontier]) -> Frontier:
    """The nodes that batches expand, batch after batch."""
    first = frontiers[0]
    if len(frontiers) == 1:
        return first
    assert first.tree is None
    return first._replace(node=torch.cat([frontier.node for frontier in frontiers]))


def _requests(
    answered: list[Tensor], asked: list[int], each: list[int], keys: list[int], frontier: Frontier
) -> Requests:
    """The requests that ranks sent, ``asked[i]`` of rank i, ``each[j]`` of a batch; they have trees and times if
    ``frontier`` has."""
    given = [entry is not None for entry in _of_seeds(frontier)]
    tables = [entry.view(count, 1 + sum(given)) for entry, count in zip(answered, asked, strict=True)]
    node, *columns = torch.cat(tables).to(torch.int64).unbind(1)
    others = iter(columns)
    tree, time, start_time = (next(others) if has else None for has in given)
    return Requests(node, tree, time, start_time, list(accumulate(each, initial=0)), keys)


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


class OverParts:
    """What executors over a partitioned topology have in common.

    Args:
        graph: this rank's columns.
        book: says which part has which nodes.
        part: this one.
        problem: what is wrong with this rank's columns, if anything.
    """

    collective = True

    def __init__(self, graph: SampledGraph, book: PartitionBook, part: int, problem: Exception | None) -> None:
        self.graph, self.book, self.part = graph, book, part
        self.first = int(book.bounds[None][part])
        """The first node of this part."""
        self._problem = problem
        self._owners: Owners | None = None
        self.laps = Laps(PHASES)
        """Seconds of sampling, with waiting for other ranks."""

    def check_links(self) -> None:
        """Raises NotImplementedError: samples of links cannot be drawn."""
        raise not_implemented("sampling of links")

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`.

        Raises:
            ValueError: on all ranks, if the columns of one are malformed; or the sampler is another loader's.
        """
        if self._owners is not None and self._owners.steps is not steps:
            raise ValueError("neighbor_sampler: expected one of this loader alone, found one that another loader has")
        self._owners = Owners(self.book, self.part, own_seeds, self._problem, steps)

    @property
    def owners(self) -> Owners:
        """The owners of nodes, while a step is under way on this thread; else raises RuntimeError."""
        if self._owners is None or not self._owners.steps.running:
            raise RuntimeError(
                "sample: expected an iteration of a torch_gnnscale.NeighborLoader over the stores of a part, in whose "
                "steps all ranks sample together, found a call outside of one"
            )
        return self._owners

    def _drawn_by_owners(self, samples: Sequence[Hops], keys: list[int], draw: Draw, hops: int) -> list[ops.Sample]:
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
        made = finish_together(samples, picks, hops)
        laps.lap("EXTRACT")
        return made


class PartitionedExecutor(OverParts, Executor):
    """Draws hop by hop: for each node of a frontier, the rank that owns its column draws the neighbors.

    A hop takes two rounds, of requests and of drawn edges, for all batches of a bulk. The first hop takes none if all
    seeds are the rank's own. All ranks take the same rounds, even if their frontiers are empty.
    """

    device = torch.device("cpu")

    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """See :meth:`Executor.check`."""
        if drawing.subgraph != "directional":
            raise not_implemented(f"subgraph_type={drawing.subgraph!r}")
        if many and drawing.disjoint:  # also if edges have times: samples are then disjoint
            raise not_implemented(f"disjoint trees with {how}")

    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        seed_start_time: Sequence[Tensor | None] | None = None, exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """See :meth:`Executor.sample`; in a step of the loader.

        Raises:
            RuntimeError: not in a step; or another rank could not draw.
        """
        if exclude is not None:
            raise not_implemented("exclusion of edges")
        self.check(drawing, "one batch", many=False)
        time, start_time = (None if of_types is None else of_types[0] for of_types in (seed_time, seed_start_time))
        return self._made([by_hops(
            seeds[0], drawing.fanouts[0], disjoint=drawing.disjoint, layers=drawing.layers, seed_time=time,
            seed_start_time=start_time,
        )], [key], drawing)[0]  # fmt: skip

    def sample_many(
        self, seeds: Sequence[Sequence[Tensor]], keys: Sequence[int], drawing: Drawing,
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        seed_start_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
    ) -> list[ops.Sample]:  # fmt: skip
        """See :meth:`Executor.sample_many`: in a step of the loader, in which each rank samples as many batches. The
        requests of all batches travel together."""
        if exclude is not None and any(pairs is not None for pairs in exclude):
            raise not_implemented("exclusion of edges")
        self.check(drawing, f"bulk={len(keys)}", many=True)
        return self._made([by_hops(of[0], drawing.fanouts[0], layers=drawing.layers) for of in seeds], keys, drawing)

    def pick_own(self, node: Tensor, key: int, hop: int, drawing: Drawing) -> ops.Picks:
        """The edges that one batch draws into nodes of this part, in the order of ``node``, without other ranks.

        Args:
            node: stored ids of this part, int64, shape [n].
            key: the batch's.
            hop: the number of the hop, from 0.
            drawing: must not have trees or times.
        """
        requests = Requests(node, None, None, None, [0, len(node)], [check_key(key)])
        return self._drawn(requests, Frontier(hop, drawing.fanouts[0][hop], node, None, None), drawing)

    def _made(self, samples: Sequence[Hops], keys: Sequence[int], drawing: Drawing) -> list[ops.Sample]:
        def draw(requests: Requests, frontier: Frontier) -> ops.Picks:
            return self._drawn(requests, frontier, drawing)

        return self._drawn_by_owners(samples, [check_key(key) for key in keys], draw, len(drawing.fanouts[0]))

    def _drawn(self, requests: Requests, frontier: Frontier, drawing: Drawing) -> ops.Picks:
        """The edges that this rank draws for requests of a hop."""
        return ops.pick_neighbors(
            self.graph.stored, requests.node, requests.ends, requests.keys, frontier.hop, frontier.fanout,
            first=self.first, tree=requests.tree, time=requests.time, start_time=requests.start_time,
            replace=drawing.replace, last=drawing.last and frontier.time is not None,
        )  # fmt: skip
