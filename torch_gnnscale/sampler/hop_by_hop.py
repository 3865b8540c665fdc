"""Samples that are made one hop at a time, when neighbors are not drawn by the fused operators."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import ops


class Frontier(NamedTuple):
    """The nodes whose neighbors a hop draws."""

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
Hops: TypeAlias = Generator[Frontier, Picked, ops.Sample]
"""A sample in the making: yields the frontier of each hop, is sent the edges drawn for it, and returns the sample."""


def by_hops(
    seeds: Tensor,
    fanouts: Sequence[int],
    *,
    disjoint: bool = False,
    layers: bool = False,
    include_dst: bool = True,
    weighted: bool = False,
    seed_time: Tensor | None = None,
    seed_start_time: Tensor | None = None,
    relabel: Callable[..., ops.Relabelled] = ops.relabel,
) -> Hops:
    """Makes the sample that :func:`torch_gnnscale.ops.sample_neighbors` returns for a graph of one relation or, if
    edges have weights, :func:`torch_gnnscale.ops.sample_layers`: bit for bit, on the seeds' device.

    Args:
        seeds: global ids, int32 or int64, shape [s]; repeats allowed.
        fanouts: of each hop.
        disjoint, layers: as in ``sample_neighbors``.
        include_dst: as in ``sample_layers``.
        weighted: whether picked edges have weights.
        seed_time: the time of each seed, if edges have times: int64, shape [s]; trees are disjoint then.
        seed_start_time: the start of each seed's time window, if seeds have some: int64, shape [s].
        relabel: :func:`torch_gnnscale.ops.relabel`, or its twin.
    """
    node, tree = seeds.long(), torch.arange(len(seeds), device=seeds.device) if disjoint else None
    none = node.new_empty(0)
    colptr, local, column, edge_id = [node.new_zeros(1)], [none], [none], [none]
    weight = [none.to(torch.float32)]
    begin, num_nodes, num_edges = 0, [len(seeds)], []
    for hop, fanout in enumerate(fanouts):
        end = len(node)
        trees = None if tree is None else tree[begin:end]
        time, start_time = (
            None if of_seeds is None or trees is None else of_seeds[trees] for of_seeds in (seed_time, seed_start_time)
        )
        picks = yield Frontier(hop, fanout, node[begin:end], trees, time, start_time)
        of_edges = None if trees is None else trees.repeat_interleave(picks.num_edges)
        found = relabel(node if include_dst else none, picks.source, known_tree=tree, tree=of_edges)
        assert picks.edge_id is not None
        local.append(found.local)
        edge_id.append(picks.edge_id)
        if weighted:
            assert isinstance(picks, WeightedPicks)
            weight.append(picks.weight)
        first = 0 if include_dst else begin
        column.append(torch.arange(begin - first, end - first, device=node.device).repeat_interleave(picks.num_edges))
        colptr.append(picks.num_edges.cumsum(0) + colptr[-1][-1:])
        node = torch.cat([node, found.node])
        if tree is not None and found.tree is not None:
            tree = torch.cat([tree, found.tree])
        num_nodes.append(len(found.node))
        num_edges.append(len(picks.source))
        begin = 0 if layers and include_dst else end
    edge_index = torch.stack([torch.cat(local), torch.cat(column)])
    return ops.Sample(
        [node], [torch.cat(colptr)], [edge_index], [torch.cat(edge_id)], [] if tree is None else [tree],
        [num_nodes], [num_edges],
        [torch.cat(weight)] if weighted else (),
    )  # fmt: skip


def finish_together(
    samples: Sequence[Hops], pick: Callable[[list[Frontier]], Sequence[Picked]], hops: int
) -> list[ops.Sample]:
    """Makes samples hop after hop.

    Args:
        samples: from :func:`by_hops`, each of ``hops`` hops.
        pick: called once per hop with the frontiers of all samples; returns the edges drawn for each, in the order of
            its nodes.
        hops: the number of hops.
    """
    waiting: list[Frontier] = []
    made: list[ops.Sample] = []
    given: Sequence[Picked | None] = [None] * len(samples)
    for _ in range(hops + 1):
        waiting.clear()
        for sample, picks in zip(samples, given, strict=True):
            try:
                waiting.append(sample.send(picks))  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                made.append(end.value)
        if waiting:
            given = pick(waiting)
    assert len(made) == len(samples)
    return made


def sample_by_hops(
    pick: Callable[[Frontier], ops.Picks], seeds: Tensor, fanouts: Sequence[int], **options: Any
) -> ops.Sample:
    """One sample. ``pick``: the edges drawn for a frontier, in its order, as :func:`torch_gnnscale.ops.pick_neighbors`
    draws them; others as of :func:`by_hops`."""
    return finish_together([by_hops(seeds, fanouts, **options)], lambda waiting: [pick(waiting[0])], len(fanouts))[0]
