"""Graphs with links to predict, and what a batch of links must be like."""

from __future__ import annotations

from typing import Any

import torch
from helpers.data import edge_rows, edges_of, node_rows, plain
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from torch_gnnscale import LinkNeighborLoader
from torch_gnnscale.sampler.graph import end_types

RATES, RATED, FRIENDS = ("user", "rates", "item"), ("item", "rev_rates", "user"), ("user", "knows", "user")
SIZES = {"user": 40, "item": 50}
TYPES = [None, RATES, FRIENDS]
NEGATIVES = [None, NegativeSampling("binary", 1.5), NegativeSampling("triplet", 2)]


def times_of(count: int, seed: int) -> Tensor:
    """Times from 0 to 9, the first one being 0."""
    time = torch.randint(10, (count,), generator=torch.Generator().manual_seed(seed))
    return time.index_fill(0, torch.tensor(0), 0)


def homogeneous(num_nodes: int = 60, num_edges: int = 300) -> Data:
    """A directed graph with times of its nodes."""
    ids = torch.arange(num_nodes)
    edge_index = edges_of(num_nodes, num_edges)
    return Data(
        x=node_rows(ids),
        edge_index=edge_index,
        edge_attr=edge_rows(torch.arange(num_edges)),
        time=times_of(num_nodes, 3),
    )


def heterogeneous() -> HeteroData:
    """Users and items with times: ratings, their reverses, and who knows whom."""
    data = HeteroData()
    for seed, (node_type, count) in enumerate(SIZES.items()):
        data[node_type].x = node_rows(torch.arange(count))
        data[node_type].time = times_of(count, seed)
    generator = torch.Generator().manual_seed(1)
    ratings = torch.stack([torch.randint(size, (200,), generator=generator) for size in SIZES.values()])
    data[RATES].edge_index = ratings
    data[RATED].edge_index = ratings.flip(0)
    data[FRIENDS].edge_index = edges_of(SIZES["user"], 150)
    return data


def inputs_of(links: Tensor, edge_type: Any = None, **fields: Any) -> EdgeSamplerInput:
    return EdgeSamplerInput(torch.arange(links.size(1)), *links, **fields, input_type=edge_type)


def pairs_of(links: Tensor) -> set[tuple[int, int]]:
    return set(map(tuple, links.t().tolist()))


def part(value: Any, type_name: Any) -> Any:
    """A field of a sampler's output of one type."""
    return value if type_name is None else value[type_name]


def binary_links(out: Any, edge_type: Any = None) -> Tensor:
    """The global ids of ``edge_label_index``."""
    return torch.stack(
        [part(out.node, t)[index] for t, index in zip(end_types(edge_type), out.metadata[1], strict=True)]
    )


def triplets(out: Any, edge_type: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """The global ids of sources, destinations and negatives, the latter [links, amount]."""
    src_type, dst_type = end_types(edge_type)
    src, dst, negative = out.metadata[1:4]
    node = part(out.node, dst_type)
    return part(out.node, src_type)[src], node[dst], node[negative].reshape(len(src), -1)


def sampled_edges(out: Any, edge_type: Any = None) -> Tensor:
    """The global ids of a type's sampled edges."""
    src_type, dst_type = end_types(edge_type)
    row, col = part(out.row, edge_type), part(out.col, edge_type)
    return torch.stack([part(out.node, src_type)[row], part(out.node, dst_type)[col]])


def graph_of(edge_type):
    return homogeneous() if edge_type is None else heterogeneous()


def edges(data, edge_type):
    return data.edge_index if edge_type is None else data[edge_type].edge_index


def parts(batch, edge_type):
    """What holds the fields of links, sources and destinations."""
    if edge_type is None:
        return batch, batch, batch
    return batch[edge_type], batch[edge_type[0]], batch[edge_type[-1]]


def loader_of(data, edge_type, **options):
    options = {"edge_label_index": edge_type, "batch_size": 32, "seed": 5, **options}
    return LinkNeighborLoader(data, [3, 2], **options)


def ids(batch, edge_type):
    """All that was drawn for a batch, in plain numbers."""
    link, src, dst = parts(batch, edge_type)
    names = ("edge_label_index", "edge_label", "edge_label_time", "src_index", "dst_pos_index", "dst_neg_index")
    labels = [plain(store[name]) for store in (link, src, dst) for name in names if name in store]
    return src.n_id.tolist(), dst.n_id.tolist(), link.e_id.tolist(), link.input_id.tolist(), labels
