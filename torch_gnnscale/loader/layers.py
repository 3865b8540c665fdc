"""A batch's bipartite layers: the papers' list of message-flow graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from ..sampler import Layer, WeightedLayer
from ..sampler.graph import end_types
from .layout import EdgeLayouts, laid_out
from .row_source import RowSource
from .sampled import SampledEdges, SampledGraphPart, by_type


def put_layers(
    batch: Data | HeteroData, source: RowSource, sampled: SampledGraphPart, rows: Any, layouts: EdgeLayouts
) -> None:
    """Puts ``layers`` into the batch, in the order in which a model computes them, and removes its edges. ``rows``:
    what the source's ``fetch`` returned.

    ``e_id`` and attributes of edges keep the order of sampling: the ``num_sampled_edges[0]`` edges of hop 0 first.
    """
    out = sampled.out
    nodes = by_type(out, out.num_sampled_nodes)
    if not getattr(out, "separate_sources", False):
        nodes = {t: torch.tensor(n).cumsum(0).tolist() for t, n in nodes.items()}
    counts = by_type(out, out.num_sampled_edges)
    hops: dict[Any, list[tuple[Any, ...]]] = {}
    for edge_type, found in sampled.edges.items():
        if found.colptr is None:
            raise ValueError("layers=True: expected the sampler's own edges, found edges that were changed")
        src, dst = end_types(edge_type)
        column, edge, hops[edge_type] = 0, 0, []
        for hop, count in enumerate(counts[edge_type]):
            size = (nodes[src][hop + 1], nodes[dst][hop])
            some = slice(edge, edge + count)
            edges = SampledEdges(
                found.edge_index[:, some],
                found.colptr[column : column + size[1] + 1] - edge,
                None if found.edge_id is None else found.edge_id[some],
                None if found.weight is None else found.weight[some],
            )
            column, edge = column + size[1], edge + count
            edges, value = source.edges(rows, edge_type, edges, layouts[edge_type])
            laid = laid_out(edges.edge_index, edges.colptr, size, layouts[edge_type], value)
            hops[edge_type].append((laid, edges.edge_id, edges.weight))
        store = batch if edge_type is None else batch[edge_type]
        for name in ("edge_index", "adj_t"):
            if name in store:
                del store[name]
    weighted = any(edges.weight is not None for edges in sampled.edges.values())
    layers = []
    for hop in reversed(range(max(map(len, nodes.values())) - 1)):
        laid, ids, weights = ({edge_type: part[hop][i] for edge_type, part in hops.items()} for i in range(3))
        sizes = {node_type: (total[hop + 1], total[hop]) for node_type, total in nodes.items()}
        fields = (laid, ids, sizes, weights) if weighted else (laid, ids, sizes)
        kind: Any = WeightedLayer if weighted else Layer
        layers.append(kind(*fields) if isinstance(batch, HeteroData) else kind(*(field[None] for field in fields)))
    batch.layers = layers
