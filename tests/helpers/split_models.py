"""Models of which the ranks of a split compute parts, and what they compute them on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data

from .narrow import CLASSES, FEATURES, batches
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
