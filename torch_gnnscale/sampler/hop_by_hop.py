"""A sample made one hop at a time, where something else than the fused operator draws the neighbors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops


class Frontier(NamedTuple):
    """The nodes whose neighbors a hop draws."""

    hop: int
    """From 0."""
    fanout: int
    node: Tensor
    """Global ids: int64, shape [f]."""
    tree: Tensor | None
    """The tree of each if trees are disjoint: int64, shape [f]."""
    time: Tensor | None
    """The time of each one's seed if edges have times: int64, shape [f]."""


def sample_by_hops(
    pick: Callable[[Frontier], ops.Picks],
    seeds: Tensor,
    fanouts: Sequence[int],
    *,
    disjoint: bool = False,
    layers: bool = False,
    seed_time: Tensor | None = None,
    relabel: Callable[..., ops.Relabelled] = ops.relabel,
) -> ops.Sample:
    """What :func:`torch_gnnscale.ops.sample_neighbors` returns for a graph of one relation, bit for bit, on the device
    of the seeds.

    Args:
        pick: the drawn edges of a frontier, in its order, as :func:`torch_gnnscale.ops.pick_neighbors` draws them.
        seeds: global ids, int32 or int64, shape [s]; repeats allowed.
        fanouts: of each hop.
        disjoint, layers: as of ``sample_neighbors``.
        seed_time: if edges have times, that of each seed, int64, shape [s]; trees are disjoint then.
        relabel: :func:`torch_gnnscale.ops.relabel`, or its twin.
    """
    node, tree = seeds.long(), torch.arange(len(seeds), device=seeds.device) if disjoint else None
    none = node.new_empty(0)
    colptr, local, column, edge_id = [node.new_zeros(1)], [none], [none], [none]
    begin, num_nodes, num_edges = 0, [len(seeds)], []
    for hop, fanout in enumerate(fanouts):
        end = len(node)
        trees = None if tree is None else tree[begin:end]
        time = None if seed_time is None or trees is None else seed_time[trees]
        count, source, edge = pick(Frontier(hop, fanout, node[begin:end], trees, time))
        of_edges = None if trees is None else trees.repeat_interleave(count)
        found = relabel(node, source, known_tree=tree, tree=of_edges)
        assert edge is not None
        local.append(found.local)
        edge_id.append(edge)
        column.append(torch.arange(begin, end, device=node.device).repeat_interleave(count))
        colptr.append(count.cumsum(0) + colptr[-1][-1:])
        node = torch.cat([node, found.node])
        if tree is not None and found.tree is not None:
            tree = torch.cat([tree, found.tree])
        num_nodes.append(len(found.node))
        num_edges.append(len(source))
        begin = 0 if layers else end
    edge_index = torch.stack([torch.cat(local), torch.cat(column)])
    return ops.Sample(
        [node], [torch.cat(colptr)], [edge_index], [torch.cat(edge_id)], [] if tree is None else [tree],
        torch.tensor([num_nodes]), torch.tensor(num_edges, dtype=torch.int64).view(1, -1),
    )  # fmt: skip
