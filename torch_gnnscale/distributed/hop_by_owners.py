"""One hop of many batches whose edges are drawn by the ranks that own the nodes' columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..comm.steps import Steps
from ..partition import PartitionBook
from ..sampler.hop_by_hop import Frontier, Picked, WeightedPicks
from ..topology.sort_on_disk import id_dtype


class Requests(NamedTuple):
    """The requests of all ranks that this one answers, rank after rank, batch after batch."""

    node: Tensor
    tree: Tensor | None
    time: Tensor | None
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
            picks = draw(Requests(asked.node, asked.tree, asked.time, ends, keys), asked)
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
        fields = [entry for entry in (frontier.node, frontier.tree, frontier.time) if entry is not None]
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
    fields = 1 + (frontier.tree is not None) + (frontier.time is not None)
    tables = [entry.view(count, fields) for entry, count in zip(answered, asked, strict=True)]
    node, *others = torch.cat(tables).to(torch.int64).unbind(1)
    tree = None if frontier.tree is None else others.pop(0)
    ends = list(accumulate(each, initial=0))
    return Requests(node, tree, None if frontier.time is None else others.pop(), ends, keys)
