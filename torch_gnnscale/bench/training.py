"""A training step that is timed: forward, loss and backward of a PyG model on one batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.data import Data


def whole(model: nn.Module, batch: Data) -> Tensor:
    """The outputs of a PyG model on the whole batch, those of the seeds first: shape [nodes, classes]."""
    return model(batch.x, batch.edge_index)


def trimmed(model: nn.Module, batch: Data) -> Tensor:
    """The same with ``trim_to_layer``, PyG's own way of computing less; the last layers leave out nodes of far hops."""
    hops = {"num_sampled_nodes_per_hop": batch.num_sampled_nodes, "num_sampled_edges_per_hop": batch.num_sampled_edges}
    return model(batch.x, batch.edge_index, **hops)


def step(model: nn.Module, run: Callable[[Data], Tensor], batch: Data) -> None:
    """One step but the optimizer's: sets the gradients of ``model`` from the loss of the seeds, the first rows of
    ``run(batch)``."""
    model.zero_grad()
    seeds = slice(batch.batch_size)
    nn.functional.cross_entropy(run(batch)[seeds], batch.y[seeds]).backward()
