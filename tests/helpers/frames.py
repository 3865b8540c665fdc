"""TensorFrames of tests; torch_frame must be installed."""

from __future__ import annotations

import torch
import torch_frame
from torch_geometric.data import HeteroData


def nested(rows, columns, dtype=torch.int64):
    """Cell (i, j) has (2 i + j) mod 4 entries."""
    sizes = (2 * torch.arange(rows)[:, None] + torch.arange(columns)).view(-1) % 4
    offset = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    values = torch.arange(int(offset[-1])).to(dtype)
    return torch_frame.data.MultiNestedTensor(rows, columns, values, offset)


def make_frame(rows=40, target=True):
    kinds = torch_frame.stype
    features = {
        kinds.numerical: torch.randn(rows, 3),
        kinds.categorical: torch.randint(5, (rows, 2)),
        kinds.timestamp: torch.randint(9, (rows, 1, 7)),
        kinds.multicategorical: nested(rows, 2),
        kinds.sequence_numerical: nested(rows, 1, torch.float32),
        kinds.embedding: torch_frame.data.MultiEmbeddingTensor(rows, 2, torch.randn(rows, 5), torch.tensor([0, 2, 5])),
        kinds.text_tokenized: {"input_ids": nested(rows, 1), "attention_mask": nested(rows, 1)},
    }
    widths = {kinds.numerical: 3, kinds.categorical: 2, kinds.multicategorical: 2, kinds.embedding: 2}
    names = {kind: [f"{kind.value}_{i}" for i in range(widths.get(kind, 1))] for kind in features}
    return torch_frame.TensorFrame(features, names, torch.randn(rows) if target else None)


def framed() -> HeteroData:
    """Two types of nodes with frames of all semantic types, and seeds for training."""
    data, draws = HeteroData(), torch.Generator().manual_seed(5)
    torch.manual_seed(5)
    data["a"].tf, data["b"].tf, data["b"].x = make_frame(40), make_frame(30, target=False), torch.randn(30, 2)
    for (src, dst), sizes in {("a", "b"): (40, 30), ("b", "a"): (30, 40)}.items():
        data[src, "to", dst].edge_index = torch.stack([torch.randint(size, (200,), generator=draws) for size in sizes])
    data["a"].train_mask = torch.rand(40, generator=draws) < 0.6
    return data
