"""Models of which the ranks of a split compute parts, and what they compute them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from .narrow import CLASSES, FEATURES, HIDDEN, batches
from .split import cut_batches, cut_of, random_owners

NODES = 200
"""Of the graph of all batches."""

OWNERS: dict[str, Callable[[int], Tensor]] = {
    "random": lambda parts: random_owners(NODES, parts, 3),
    "50:1": lambda parts: (torch.arange(NODES) % 51 == 0).long() * (parts - 1),
    "no seeds": lambda parts: torch.where(torch.arange(NODES) % 3 == 0, 0, random_owners(NODES, parts, 4)),
    "nothing": lambda parts: random_owners(NODES, max(parts - 1, 1), 5),
}
"""Returns the part of each node, of so many parts; some parts have few nodes, no seeds or no nodes."""


def own_batches(
    parts: int, rank: int, count: int = 4, owners_by: str = "random"
) -> Iterator[tuple[Data, Data, Tensor]]:
    """(whole batch, this rank's share, its seeds as numbers in the whole batch); ``owners_by``: a name in OWNERS."""
    owners = OWNERS[owners_by](parts)
    for number, whole in enumerate(batches()):
        if number == count:
            return
        whole.y = whole.n_id % CLASSES
        cut = cut_of(whole, owners, parts, rank)
        yield whole, cut_batches(whole, owners, parts, key=number)[rank], cut.local[: cut.num_nodes[0]]


def weights_of(out: Tensor) -> Tensor:
    """What a loss multiplies outputs by."""
    return torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(0))


class Recomputed(nn.Module):
    """A layer that runs once more in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg_nn.SAGEConv(FEATURES, CLASSES)

    def forward(self, x, edge_index):
        return checkpoint(self.conv, x, edge_index, use_reentrant=False)


class ByHand(nn.Module):
    """Passes messages without a layer of PyG's, in a module of its own.

    Args:
        copies: read the edges in a copy of them.
        first: before the first layer instead of after it.
    """

    def __init__(self, copies: bool = False, first: bool = False) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg_nn.SAGEConv(FEATURES, FEATURES), pyg_nn.SAGEConv(FEATURES, CLASSES)])
        self.mean = Mean(copies)
        self.first = first

    def forward(self, x, edge_index):
        if self.first:
            x = self.mean(x, edge_index)
        x = self.convs[0](x, edge_index)
        if not self.first:
            x = self.mean(x, edge_index)
        return self.convs[1](x, edge_index)


class Mean(nn.Module):
    """Adds the mean of neighbors' rows by torch's functions."""

    def __init__(self, copies: bool) -> None:
        super().__init__()
        self.copies = copies

    def forward(self, x, edge_index):
        row, col = edge_index.clone() if self.copies else edge_index
        return x.scatter_reduce(0, col.unsqueeze(1).expand(-1, x.size(1)), x[row], "mean")


class BySparse(nn.Module):
    """Adds the sums of neighbors' rows by a sparse matrix, after its first layer.

    Args:
        sized: say the matrix's size.
        layout: the matrix's, "coo", "csr" or "csc".
    """

    def __init__(self, layout: str, sized: bool = True) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg_nn.SAGEConv(FEATURES, FEATURES), pyg_nn.SAGEConv(FEATURES, CLASSES)])
        self.layout, self.sized = layout, sized

    def forward(self, x, edge_index):
        x = self.convs[0](x, edge_index)
        size = [(len(x), len(x))] if self.sized else []
        matrix = torch.sparse_coo_tensor(edge_index.flip(0), x.new_ones(edge_index.size(1)), *size)
        if self.layout != "coo":
            matrix = matrix.to_sparse_csr() if self.layout == "csr" else matrix.to_sparse_csc()
        return self.convs[1](x + matrix @ x, edge_index)


class SparseWeight(nn.Module):
    """Multiplies rows by a sparse matrix of weights, which has nothing to do with edges."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg_nn.SAGEConv(FEATURES, FEATURES), pyg_nn.SAGEConv(FEATURES, CLASSES)])
        self.weight = nn.Parameter(torch.eye(FEATURES))

    def forward(self, x, edge_index):
        x = self.convs[0](x, edge_index)
        return self.convs[1](x + x @ self.weight.to_sparse(), edge_index)


class Centers(nn.Module):
    """Subtracts the mean of all rows, in one mode alone."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.when = training

    def forward(self, x):
        return x - x.mean(0) if self.training == self.when else x


class Begins(nn.Module):
    """Subtracts the mean of all rows, in its fourth call and in each after it, or in every fourth call alone."""

    def __init__(self, alone: bool = False) -> None:
        super().__init__()
        self.calls, self.alone = 0, alone

    def forward(self, x):
        self.calls += 1
        return x - x.mean(0) if (self.calls % 4 == 0 if self.alone else self.calls > 3) else x


def with_norm(norm: nn.Module) -> nn.Module:
    """A model with a module after its first layer."""
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, norm="BatchNorm", dropout=0.5)
    model.norms[0] = norm
    return model


class DropsSources(pyg_nn.MessagePassing):
    """Dropout within a layer."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=nn.functional.dropout(x, 0.5, self.training))


class NormsSources(pyg_nn.MessagePassing):
    """A norm within a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.norm(x))
