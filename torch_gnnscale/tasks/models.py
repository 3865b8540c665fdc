"""GraphSAGE for heterogeneous graphs whose node types may have no features."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.data import HeteroData


def call_model(model: nn.Module, batch: Any) -> Any:
    """``model(batch)``."""
    return model(batch)


class Categories(nn.Module):
    """The sum of an embedding for each column of codes.

    Args:
        codes: those of all nodes, from 0: int64, shape [N, C].
        hidden: width of the embeddings.
    """

    first: Tensor

    def __init__(self, codes: Tensor, hidden: int) -> None:
        super().__init__()
        counts = codes.amax(0) + 1 if len(codes) else torch.ones(codes.size(1), dtype=torch.int64)
        self.register_buffer("first", counts.cumsum(0) - counts)
        self.rows = nn.EmbeddingBag(int(counts.sum()), hidden, mode="sum")

    def forward(self, codes: Tensor) -> Tensor:
        """The embeddings of nodes: [n, hidden]."""
        return self.rows(codes + self.first)


class Encoder(nn.Module):
    """The first embedding of each node: a linear map of its features ``x`` plus an embedding of each of its categories
    (``category``) or, for a type with neither, an nn.Embedding of the nodes.

    Args:
        data: the whole graph, or one of its sizes on the device "meta".
        hidden: width of the embeddings.
        scale: standard deviation of the initial weights of each nn.Embedding.
    """

    def __init__(self, data: HeteroData, hidden: int, scale: float) -> None:
        super().__init__()
        self.rows, self.codes = nn.ModuleDict(), nn.ModuleDict()
        for node_type in data.node_types:
            store = data[node_type]
            if "category" in store:
                self.codes[node_type] = Categories(store.category, hidden)
            if "x" in store:
                self.rows[node_type] = nn.Linear(store.num_features, hidden)
            elif "category" not in store:
                self.rows[node_type] = table = nn.Embedding(store.num_nodes, hidden)
                nn.init.normal_(table.weight, std=scale)

    def forward(self, batch: HeteroData) -> dict[str, Tensor]:
        """By node type, embeddings of the batch's nodes: [N, hidden]."""
        found = {node_type: codes(batch[node_type].category) for node_type, codes in self.codes.items()}
        for node_type, rows in self.rows.items():
            out = rows(batch[node_type].x.float() if "x" in batch[node_type] else batch[node_type].n_id)
            found[node_type] = found[node_type] + out if node_type in found else out
        return found


class HeteroSAGE(nn.Module):
    """Layers of SAGEConv, one per relation: x[t] += relu(sum of the SAGEConvs of relations into type t).

    Args:
        data: see :class:`Encoder`.
        hidden: width of all layers.
        layers: number of layers.
        dropout: probability of dropout on each layer's input and on the result.
        scale: see :class:`Encoder`.
    """

    def __init__(self, data: HeteroData, hidden: int, layers: int, dropout: float, scale: float) -> None:
        super().__init__()
        self.encode = Encoder(data, hidden, scale)
        self.convs = nn.ModuleList(
            pyg_nn.HeteroConv({edge_type: pyg_nn.SAGEConv(hidden, hidden) for edge_type in data.edge_types})
            for _ in range(layers)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """By node type, embeddings of the batch's nodes: [N, hidden]."""
        x, edge_index = self.encode(batch), batch.edge_index_dict
        for conv in self.convs:
            out = conv({node_type: self.dropout(rows) for node_type, rows in x.items()}, edge_index)
            x = {t: rows + out[t].relu() if t in out else rows for t, rows in x.items()}
        return {node_type: self.dropout(rows) for node_type, rows in x.items()}
