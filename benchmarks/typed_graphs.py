"""Generated graphs with types, for benchmarks."""

from __future__ import annotations

import torch
from torch_geometric.data import HeteroData

from torch_gnnscale.topology import rmat

TIMES = 1000
"""Times of nodes are below this."""


def academic(parts: int = 1) -> HeteroData:
    """Papers, authors and fields with times, each relation with its reverse; all numbers divided by ``parts``."""
    data = HeteroData()
    sizes = {"paper": 700_000 // parts, "author": 500_000 // parts, "field": 20_000 // parts}
    for seed, (node_type, size) in enumerate(sizes.items()):
        data[node_type].num_nodes = size
        data[node_type].time = torch.randint(TIMES, (size,), generator=torch.Generator().manual_seed(seed))
    relations = [("author", "writes", "paper", 5_000_000), ("paper", "cites", "paper", 6_000_000),
                 ("paper", "about", "field", 3_000_000)]  # fmt: skip
    for seed, (src, name, dst, edges) in enumerate(relations):
        row, col = rmat(1 << 20, edges // parts, seed=seed)
        edge_index = torch.stack([row % sizes[src], col % sizes[dst]])
        data[src, name, dst].edge_index = edge_index
        data[dst, f"rev_{name}", src].edge_index = edge_index.flip(0)
    return data


def knowledge_graph() -> HeteroData:
    """A graph with as many relations as fb15k-237, all between nodes of one type."""
    data = HeteroData()
    data["entity"].num_nodes = 14_541
    for number, edges in enumerate(
        torch.randint(100, 2200, (237,), generator=torch.Generator().manual_seed(2)).tolist()
    ):
        data["entity", f"relation{number}", "entity"].edge_index = rmat(14_541, edges, seed=number)
    return data
