"""Models and batches for tests of narrowed models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn

from torch_gnnscale import LayerSampler, NeighborLoader

from .data import make_data

FEATURES, HIDDEN, CLASSES = 3, 8, 4


def basic(cls: Any, **options: Any) -> Callable[[], nn.Module]:
    """Makes one of PyG's models of three layers."""
    return lambda: cls(FEATURES, HIDDEN, 3, CLASSES, **options)


def sequence(*convs: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Makes a model of these layers, one after the other."""
    return lambda: pyg_nn.Sequential("x, edge_index", [(conv(), "x, edge_index -> x") for conv in convs])


def batches(**options: Any) -> NeighborLoader:
    """A loader of batches with three hops."""
    data = make_data()
    data.x = data.x / 200
    return NeighborLoader(data, [4, 3, 2], torch.arange(0, 200, 3), batch_size=24, seed=1, **options)


def weighed_batches(
    method: str = "ladies", seeds: Tensor | None = None, edge_layout: str = "coo", **options: Any
) -> Iterator[Any]:
    """Batches of three hops whose edges have weights, in float64; ``options`` are the sampler's."""
    data = make_data()
    data.x = data.x / 200
    sampler = LayerSampler(data, [30, 25, 20] if method != "labor" else [4, 3, 2], method, **options)
    seeds = torch.arange(0, 200, 3) if seeds is None else seeds
    given: dict[str, Any] = {"edge_layout": edge_layout, "neighbor_sampler": sampler, "seed": 1}
    for batch in NeighborLoader(data, sampler.num_nodes, seeds, batch_size=24, **given):
        name = sampler.weight_name
        batch[name] = batch[name].double()
        yield batch
