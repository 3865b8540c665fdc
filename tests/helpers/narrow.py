"""Models and batches for tests of narrowed models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, degree

from torch_gnnscale import LayerSampler, NeighborLoader

from .boundary import ENDS, boundary_graph

FEATURES, HIDDEN, CLASSES = 3, 8, 4
DEGREES = torch.tensor([0, 50, 60, 40, 20, 10])
SEEDS = torch.cat([ENDS, torch.arange(0, 200, 3)[~torch.isin(torch.arange(0, 200, 3), ENDS)]])[:49]
"""Two batches of 24, and one of a single seed."""


def small_data() -> Data:
    """The boundary graph with features below 1 and attributes of edges alone."""
    data = boundary_graph()
    return Data(x=data.x / 200, edge_index=data.edge_index, edge_attr=data.edge_attr, y=data.y)


def basic(cls: Any, **options: Any) -> Callable[[], nn.Module]:
    """Makes one of PyG's models of three layers."""
    return lambda: cls(FEATURES, HIDDEN, 3, CLASSES, **options)


def sequence(*convs: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Makes a model of these layers, one after the other."""
    return lambda: pyg_nn.Sequential("x, edge_index", [(conv(), "x, edge_index -> x") for conv in convs])


class Residual(nn.Module):
    """Residuals across layers, in and out of place, and a scale a node."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.encode = nn.Linear(FEATURES, HIDDEN)
        self.convs = nn.ModuleList(pyg_nn.SAGEConv(HIDDEN, HIDDEN) for _ in range(3))
        self.in_place = in_place

    def forward(self, x, edge_index):
        x = first = self.encode(x)
        for conv in self.convs:
            if self.in_place:
                out = conv(x, edge_index)
                out += x
                x = out
            else:
                x = x + conv(x, edge_index).relu() * first.sum(1, keepdim=True)
        return torch.where(x > first, x, -first)


class Branches(nn.Module):
    """Two layers on the same input, whose outputs are joined; one takes edge features, the other edge weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg_nn.GINEConv(nn.Linear(FEATURES, HIDDEN), edge_dim=2)
        self.second = pyg_nn.GraphConv(FEATURES, HIDDEN)
        self.last = pyg_nn.TransformerConv(2 * HIDDEN, CLASSES, edge_dim=2)
        self.skip = nn.Linear(FEATURES, CLASSES)

    def forward(self, x, edge_index, edge_attr):
        joined = torch.cat([self.first(x, edge_index, edge_attr), self.second(x, edge_index, edge_attr[:, 0])], 1)
        return self.last(joined, edge_index, edge_attr=edge_attr) + self.skip(x)


class Initial(nn.Module):
    """Layers that add the rows of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(FEATURES, HIDDEN)
        self.convs = nn.ModuleList(pyg_nn.GCN2Conv(HIDDEN, 0.3, 0.5, layer) for layer in (1, 2, 3))

    def forward(self, x, edge_index):
        x = first = self.encode(x)
        for conv in self.convs:
            x = conv(x, first, edge_index).relu()
        return x


class DegreesOfSources(pyg_nn.MessagePassing):
    """Reads what only the whole batch knows."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x / (1 + degree(edge_index[1], x.size(0)).unsqueeze(1)))


class Loops(nn.Module):
    """A layer on other edges than the batch's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg_nn.GraphConv(FEATURES, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(x, add_self_loops(edge_index, num_nodes=x.size(0))[0])


class Sized(nn.Module):
    """Says how many rows a layer has."""

    def __init__(self, size, features: int = FEATURES) -> None:
        super().__init__()
        self.conv, self.size = pyg_nn.SAGEConv(features, CLASSES), size

    def forward(self, x, edge_index):
        return self.conv(x, edge_index, size=self.size)


class OtherRows(nn.Module):
    """Calls a layer with rows of no number of hops, or with none."""

    def __init__(self, rows) -> None:
        super().__init__()
        self.conv, self.rows = pyg_nn.SAGEConv(FEATURES, CLASSES), rows

    def forward(self, x, edge_index):
        return self.conv(self.rows(x), edge_index)


MODELS = {
    "sage": basic(pyg_nn.GraphSAGE),
    "sage max": basic(pyg_nn.GraphSAGE, aggr="max"),
    "sage min": basic(pyg_nn.GraphSAGE, aggr="min", norm="BatchNorm"),
    "sage several": basic(pyg_nn.GraphSAGE, aggr=["mean", "std"]),
    "sage lstm": basic(pyg_nn.GraphSAGE, aggr="lstm"),
    "sage projected": basic(pyg_nn.GraphSAGE, project=True, normalize=True, act="elu"),
    "jumping, cat": basic(pyg_nn.GraphSAGE, jk="cat"),
    "jumping, max": basic(pyg_nn.GraphSAGE, jk="max"),
    "jumping, lstm": basic(pyg_nn.GraphSAGE, jk="lstm"),
    "gcn": basic(pyg_nn.GCN),
    "gcn improved": basic(pyg_nn.GCN, improved=True),
    "gcn bare": basic(pyg_nn.GCN, add_self_loops=False),
    "gcn as given": basic(pyg_nn.GCN, normalize=False),
    "gin": basic(pyg_nn.GIN),
    "gat": basic(pyg_nn.GAT, heads=2),
    "gat residual": basic(pyg_nn.GAT, heads=2, residual=True, concat=False),
    "gat v2": basic(pyg_nn.GAT, heads=2, v2=True, share_weights=True),
    "pna": basic(pyg_nn.PNA, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=DEGREES),
    "edge": basic(pyg_nn.EdgeCNN),
    "gcn2": Initial,
    "residual": Residual,
    "residual in place": lambda: Residual(in_place=True),
    "sequential": sequence(
        lambda: pyg_nn.ClusterGCNConv(FEATURES, HIDDEN),
        lambda: pyg_nn.LEConv(HIDDEN, HIDDEN),
        lambda: pyg_nn.ResGatedGraphConv(HIDDEN, CLASSES),
    ),
    "two layers on three hops": lambda: pyg_nn.GraphSAGE(FEATURES, 8, 2, CLASSES),
    "light": sequence(lambda: pyg_nn.LGConv(), lambda: pyg_nn.GraphConv(FEATURES, CLASSES)),
}


def batches(**options: Any) -> NeighborLoader:
    """A loader of batches with three hops."""
    return NeighborLoader(small_data(), [4, 3, 2], SEEDS, batch_size=24, seed=1, **options)


def weighed_batches(
    method: str = "ladies", seeds: Tensor | None = None, edge_layout: str = "coo", **options: Any
) -> Iterator[Any]:
    """Batches of three hops whose edges have weights, in float64; ``options`` are the sampler's."""
    data = small_data()
    sampler = LayerSampler(data, [30, 25, 20] if method != "labor" else [4, 3, 2], method, **options)
    seeds = SEEDS if seeds is None else seeds
    given: dict[str, Any] = {"edge_layout": edge_layout, "neighbor_sampler": sampler, "seed": 1}
    for batch in NeighborLoader(data, sampler.num_nodes, seeds, batch_size=24, **given):
        name = sampler.weight_name
        batch[name] = batch[name].double()
        yield batch
