"""How many batches are prepared ahead, unless the user says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler
from torch_geometric.sampler.base import SubgraphType

from ..sampler import NeighborSampler
from ..sampler.inputs import ends_of
from .rows import stores_of, tensors_of_rows

USUAL = 4
SMALL_BATCH = 10_000
"""Edges of a batch up to which it is made in the thread that iterates."""
SMALL_BATCH_BYTES = 8 << 20
"""And the bytes of its rows."""


def usual_prefetch(data: Any, sampler: BaseSampler, seeds: Mapping[Any, float], options: Mapping[str, Any]) -> int:
    """0 where handing batches over takes longer than it saves, else :data:`USUAL`.

    Args:
        data: what the loader loads; rows of stores may have to be waited for.
        sampler: the loader's.
        seeds: how many of each node type an input of the loader stands for.
        options: those of the DataLoader.
    """
    size = options.get("batch_size", 1)
    known = isinstance(data, (Data, HeteroData)) and isinstance(size, int) and options.get("batch_sampler") is None
    if not known or not isinstance(sampler, NeighborSampler) or sampler.device.type != "cpu":
        return USUAL
    if sampler.disjoint or sampler.layers or sampler.subgraph_type != SubgraphType.directional:
        return USUAL
    graph = sampler.graph
    frontier = {node_type: count * size for node_type, count in seeds.items()}
    nodes, edges = dict(frontier), 0.0
    for hop in range(len(sampler.fanouts[0]) if sampler.fanouts else 0):
        found: dict[Any, float] = {}
        for relation, fanouts in zip(graph.relations, sampler.fanouts, strict=True):
            src, dst = ends_of(relation.edge_type)[:: -1 if graph.backward else 1]
            csc = relation.csc
            # Of the nodes that edges lead to, many are hubs.
            degree = csc.num_edges / max(csc.num_dst, 1) if hop == 0 else csc.num_edges
            drawn = frontier.get(dst, 0) * (degree if fanouts[hop] < 0 else min(fanouts[hop], degree))
            drawn = min(drawn, csc.num_edges)
            edges += drawn
            found[src] = found.get(src, 0) + drawn
        for node_type, count in found.items():
            nodes[node_type] = nodes.get(node_type, 0) + count
        frontier = found
    edges = min(edges, sum(relation.csc.num_edges for relation in graph.relations))
    num_bytes = 0.0
    for type_name, store, has_nodes, _ in stores_of(data):
        if has_nodes and (count := nodes.get(type_name, 0)):
            of_all = graph.sizes[graph.node_index(type_name)]
            row = sum(value[:1].nbytes for _, value in tensors_of_rows(data, type_name, store))
            num_bytes += min(count, of_all) * row
    return 0 if edges <= SMALL_BATCH and num_bytes <= SMALL_BATCH_BYTES else USUAL
