"""The graphs and stores of which batches are pinned by their digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from helpers import hetero, links
from helpers.data import ForeignFeatureStore, ForeignGraphStore, make_data, node_rows, our_stores
from helpers.links import times_of
from helpers.tiers import node_data
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import FeatureStore, GraphStore, TieredFeatureStore
from torch_gnnscale.topology.edge_sources import rmat


def weighted(seed: int = 0) -> Data:
    """Weights of edges, a fifth of them 0."""
    data = make_data(seed=seed)
    weight = torch.arange(data.num_edges) * 7919 % 101 / 64
    data.weight = torch.where(torch.arange(data.num_edges) % 5 == 0, 0.0, weight)
    return data


def timed() -> Data:
    """Times of nodes (``time``) and of edges (``when``)."""
    data = make_data()
    data.time, data.when = times_of(data.num_nodes, 3), times_of(data.num_edges, 4)
    return data


def hubs(dtype: torch.dtype = torch.int64) -> Data:
    """Degrees far above and far below the fanouts, weights and many nodes per batch."""
    edges = rmat(3000, 30000, seed=2).to(dtype)
    weight = torch.arange(edges.size(1)) * 7919 % 1009 / 256
    return Data(x=node_rows(torch.arange(3000), 1), edge_index=edges, weight=weight)


def without_edges() -> Data:
    return Data(x=node_rows(torch.arange(9)), edge_index=torch.empty(2, 0, dtype=torch.int64))


def adjacency() -> Data:
    """Edges as a transposed sparse matrix with values."""
    data = make_data()
    edges = data.edge_index.unique(dim=1)
    value = torch.arange(1.0, edges.size(1) + 1)
    size = (data.num_nodes, data.num_nodes)
    return Data(x=data.x, y=data.y, adj_t=torch.sparse_coo_tensor(edges.flip(0), value, size).to_sparse_csr())


def shuffled() -> tuple[FeatureStore, GraphStore]:
    """Stores that number nodes otherwise than the user."""
    data = links.homogeneous()
    edge_attr = data.edge_attr
    del data.edge_attr
    store = TieredFeatureStore.from_data(data, hotness=torch.arange(60) * 37 % 61, renumbered=True)
    data.edge_attr = edge_attr
    return store, GraphStore.from_data(data, order=store.order)


def foreign(data: Data) -> tuple[ForeignFeatureStore, ForeignGraphStore]:
    features, graph = ForeignFeatureStore(), ForeignGraphStore()
    for name in ("x", "y"):
        features.put_tensor(data[name], group_name=None, attr_name=name, index=None)
    size = (data.num_nodes, data.num_nodes)
    graph.put_edge_index(tuple(data.edge_index), None, "coo", size=size)
    return features, graph


def mapped(data: Any, folder: Path) -> tuple[FeatureStore, GraphStore]:
    """Our stores, saved and opened."""
    features, graph = our_stores(data)
    features.save(folder / "features")
    graph.save(folder / "graph")
    return FeatureStore.open(folder / "features"), GraphStore.open(folder / "graph")


def tiered(**options: Any) -> tuple[TieredFeatureStore, GraphStore]:
    data = node_data()
    store = TieredFeatureStore.from_data(data, hotness="out_degree", **options)
    return store, GraphStore.from_data(data, order=store.order)


def edge_timed() -> HeteroData:
    return hetero.with_times(hetero.make_hetero(), edges=True)


def hetero_timed() -> HeteroData:
    return hetero.with_times(hetero.make_hetero())


def hetero_weighted() -> HeteroData:
    return hetero.with_weights(hetero.make_hetero())
