"""GraphSAGE for heterogeneous graphs whose node types may have no features."""

from __future__ import annotations

from typing import Any

import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.data import HeteroData


def call_model(model: nn.Module, batch: Any) -> Any:
    """``model(batch)``."""
    return model(batch)


class Encoder(nn.Module):
    """The first embedding of each node: a linear map of its features or, for a type without features, an nn.Embedding.

    Args:
        data: the whole graph, or one of its sizes on the device "meta".
        hidden: width of the embeddings.
        scale: standard deviation of the initial weights of each nn.Embedding.
    """

    def __init__(self, data: HeteroData, hidden: int, scale: float) -> None:
        super().__init__()
        self.rows = nn.ModuleDict()
        for node_type in data.node_types:
            store = data[node_type]
            if "x" in store:
                self.rows[node_type] = nn.Linear(store.num_features, hidden)
            else:
                self.rows[node_type] = table = nn.Embedding(store.num_nodes, hidden)
                nn.init.normal_(table.weight, std=scale)

    def forward(self, batch: HeteroData) -> dict[str, Tensor]:
        """By node type, embeddings of the batch's nodes: [N, hidden]."""
        return {
            node_type: rows(batch[node_type].x.float() if "x" in batch[node_type] else batch[node_type].n_id)
            for node_type, rows in self.rows.items()
        }


class HeteroSAGE(nn.Module):
    """Layers of SAGEConv, one per relation: x[t] += relu(sum of the SAGEConvs of relations into type t).

    Args:
        data: see :class:`Encoder`; every node type has a relation into it.
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
            x = {node_type: rows + out[node_type].relu() for node_type, rows in x.items()}
        return {node_type: self.dropout(rows) for node_type, rows in x.items()}
