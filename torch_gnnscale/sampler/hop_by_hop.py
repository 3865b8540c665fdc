"""Samples that are made one hop at a time, when neighbors are not drawn by the fused operators."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import ops


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
Hops: TypeAlias = Generator[list[Frontier], Sequence[Picked], ops.Sample]
"""A sample in the making: yields the frontiers of each hop, by relation, is sent the edges drawn for each of them, and
returns the sample."""


def by_hops(
    seeds: Sequence[Tensor],
    fanouts: Sequence[Sequence[int]],
    ends: Sequence[tuple[int, int]] = ((0, 0),),
    *,
    disjoint: bool = False,
    layers: bool = False,
    include_dst: bool = True,
    weighted: bool = False,
    seed_time: Sequence[Tensor | None] | None = None,
    seed_start_time: Sequence[Tensor | None] | None = None,
    relabel: Callable[..., ops.Relabelled] = ops.relabel,
) -> Hops:
    """Makes the sample that :func:`torch_gnnscale.ops.sample_neighbors` returns or, if edges have weights,
    :func:`torch_gnnscale.ops.sample_layers`: bit for bit, on the seeds' device.

    All frontiers of a hop are known when it begins, so the edges of all relations can be asked for at once. Where
    neighbors are drawn, a relation of fanout 0 has no frontier, and a hop without frontiers is left out.

    Args:
        seeds: by node type, global ids: int32 or int64, shape [s]; repeats allowed.
        fanouts: fanouts[relation][hop].
        ends: by relation, the numbers of the node types of its sources and of its destinations.
        disjoint, layers: as in ``sample_neighbors``.
        include_dst: as in ``sample_layers``.
        weighted: whether picked edges have weights.
        seed_time: by node type, the time of each seed, if edges have times: int64, shape [s]; trees are disjoint then.
        seed_start_time: the start of each seed's time window, if seeds have some; like ``seed_time``.
        relabel: :func:`torch_gnnscale.ops.relabel`, or its twin.
    """
    none, relations = seeds[0].new_empty(0, dtype=torch.int64), range(len(ends))
    node, counts = [of_type.long() for of_type in seeds], [len(of_type) for of_type in seeds]
    tree = list(torch.arange(sum(counts), device=none.device).split(counts)) if disjoint else None
    limits = [_by_tree(seeds, seed_time, LATEST), _by_tree(seeds, seed_start_time, EARLIEST)]
    colptr = [[none.new_zeros(1)] for _ in relations]
    local, column, edge_id = ([[none] for _ in relations] for _ in range(3))
    weight = [[none.to(torch.float32)] for _ in relations]
    num_nodes: list[list[int]] = [[count] for count in counts]
    num_edges: list[list[int]] = [[] for _ in relations]
    begin = [0] * len(seeds)
    for hop in range(len(fanouts[0]) if len(fanouts) else 0):
        end = [len(of_type) for of_type in node]
        frontiers = []
        for r, (_, dst) in enumerate(ends):
            some = slice(begin[dst], end[dst])
            trees = None if tree is None else tree[dst][some]
            time, start = (None if of is None or trees is None else of[trees] for of in limits)
            frontiers.append(Frontier(hop, fanouts[r][hop], node[dst][some], trees, time, start, r))
        asked = [frontier for frontier in frontiers if frontier.fanout != 0 or weighted]
        answers = iter((yield asked) if asked else ())
        for frontier, (src, dst) in zip(frontiers, ends, strict=True):
            r = frontier.relation
            if frontier.fanout != 0 or weighted:
                picks = next(answers)
            else:
                picks = ops.Picks(torch.zeros_like(frontier.node), none, none)
            of_edges = None if frontier.tree is None else frontier.tree.repeat_interleave(picks.num_edges)
            known = node[src] if include_dst else none
            found = relabel(known, picks.source, known_tree=None if tree is None else tree[src], tree=of_edges)
            assert picks.edge_id is not None
            local[r].append(found.local)
            edge_id[r].append(picks.edge_id)
            if isinstance(picks, WeightedPicks):
                weight[r].append(picks.weight)
            first = 0 if include_dst else begin[dst]
            columns = torch.arange(begin[dst] - first, end[dst] - first, device=none.device)
            column[r].append(columns.repeat_interleave(picks.num_edges))
            colptr[r].append(picks.num_edges.cumsum(0) + sum(num_edges[r]))
            node[src] = torch.cat([node[src], found.node])
            if tree is not None and found.tree is not None:
                tree[src] = torch.cat([tree[src], found.tree])
            num_edges[r].append(len(picks.source))
        for of_type, count in enumerate(end):
            num_nodes[of_type].append(len(node[of_type]) - count)
        begin = [0] * len(seeds) if layers and include_dst else end
    edges = [torch.stack([torch.cat(local[r]), torch.cat(column[r])]) for r in relations]
    return ops.Sample(
        node, [torch.cat(of) for of in colptr], edges, [torch.cat(of) for of in edge_id], tree or [], num_nodes,
        num_edges, [torch.cat(of) for of in weight] if weighted else (),
    )  # fmt: skip


EARLIEST, LATEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
"""Limits of times that leave out nothing."""


def _by_tree(seeds: Sequence[Tensor], times: Sequence[Tensor | None] | None, missing: int) -> Tensor | None:
    """The time of each tree's seed, over all node types; ``missing`` for seeds of types without times."""
    if times is None:
        return None
    each = zip(seeds, times, strict=True)
    return torch.cat([torch.full_like(of, missing, dtype=torch.int64) if t is None else t for of, t in each])


def finish_together(samples: Sequence[Hops], pick: Callable[[list[Frontier]], Sequence[Picked]]) -> list[ops.Sample]:
    """Makes samples of equal fanouts hop after hop.

    Args:
        samples: from :func:`by_hops`.
        pick: called once per hop with the frontiers of all samples: relation after relation, each sample after sample.
            Returns the edges drawn for each frontier, in the order of its nodes.
    """
    given: list[Sequence[Picked] | None] = [None] * len(samples)
    while True:
        waiting: list[list[Frontier]] = []
        made: list[ops.Sample] = []
        for sample, picks in zip(samples, given, strict=True):
            try:
                waiting.append(sample.send(picks))  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                made.append(end.value)
        if not waiting:
            return made
        assert not made
        found = pick([frontier for of_relation in zip(*waiting, strict=True) for frontier in of_relation])
        given = [found[number :: len(samples)] for number in range(len(samples))]


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
