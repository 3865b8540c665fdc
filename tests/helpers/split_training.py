"""Training on split batches, as a user writes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, split
from torch_gnnscale.datasets import planted
from torch_gnnscale.topology.reorder import by_score

FANOUTS = [4, 3]
BATCH = 80
Transport: TypeAlias = Literal["auto", "gloo", "memory"]
"""The argument of :func:`torch_gnnscale.split.parallelize`."""


def graph() -> Data:
    """A graph of 600 nodes in float64, a quarter of whose edges have a chance of 0."""
    data = planted(600, 8, 4, 8, seed=5)
    data.x = data.x.double()
    data.chance = torch.arange(data.num_edges) % 4 / 3
    return data


def model_of(norm: str | None) -> nn.Module:
    """GraphSAGE with dropout, the same on all ranks."""
    torch.manual_seed(0)
    return GraphSAGE(8, 16, 2, 4, dropout=0.5, norm=norm).double()


def saved_plan(folder: Path, parts: int) -> str:
    """The path of a plan of the graph, whose stores are saved beside it."""
    data = graph()
    plan = split.plan(data, data.train_mask, FANOUTS, parts=parts, weights="random", batch_size=BATCH, epochs=2, seed=1)
    plan.save(folder / "plan")
    FeatureStore.from_data(data).save(folder / "features")
    GraphStore.from_data(data).save(folder / "graph")
    return str(folder / "plan")


@contextmanager
def data_in(where: str, plan: split.Plan, folder: Path, device: str) -> Iterator[Any]:
    """The graph: in "memory", "renumbered" there, in "files", or with its features in "tiers" over these files."""
    data = graph()
    if where == "memory":
        yield data.to(device)
        return
    if where == "renumbered":
        order = by_score(-data.y)
        yield FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
        return
    features, topology = FeatureStore.open(folder / "features"), GraphStore.open(folder / "graph")
    if where == "files":
        yield features, topology
        return
    with plan.store(features, host="40%", names=["x", "y"]) as tiers:
        yield tiers, topology


def trained(
    plan: str,
    epochs: int,
    groups: int = 1,
    options: dict[str, Any] | None = None,
    norm: str | None = "batch_norm",
    transport: Transport = "auto",
) -> list[dict[str, Tensor]]:
    """The weights at first and after each epoch, on each rank.

    Args:
        plan: a saved plan.
        epochs: so many.
        groups: a single process accumulates the gradients of so many batches, as groups of ranks add them.
        options: of the loader, whose ``device`` is where the data and the model are; ``where`` as of :func:`data_in`.
        norm: of the model.
        transport: of the model.
    """
    options, opened = dict(options or {}), split.Plan.open(plan)
    device = options.get("device", "cpu")
    with data_in(options.pop("where", "memory"), opened, Path(plan).parent, device) as data:
        loader = loader_over(data, graph().train_mask, opened, options)
        return trained_by(loader, epochs, groups, norm, transport)


def loader_over(data: Any, seeds: Tensor, plan: Any, options: dict[str, Any]) -> NeighborLoader:
    """The loader of a training."""
    options = {"num_neighbors": FANOUTS, "batch_size": BATCH, "shuffle": True, "seed": 3, **options}
    return NeighborLoader(data, input_nodes=seeds, split=plan, **options)


def trained_by(
    loader: NeighborLoader, epochs: int, groups: int, norm: str | None, transport: Transport = "auto"
) -> list[dict[str, Tensor]]:
    """The weights at first and after each epoch of a loader; arguments as of :func:`trained`."""
    model = split.parallelize(model_of(norm).to(loader._sampler.device), transport=transport)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    found = [state_of(model)]
    for _ in range(epochs):
        batches = iter(loader)
        while of_step := list(islice(batches, groups)):
            seeds = sum(batch.global_batch_size for batch in of_step) if groups > 1 else of_step[0].global_batch_size
            for batch in of_step:
                out = model(batch)
                loss = F.cross_entropy(out, batch.y[: batch.batch_size], reduction="sum") / seeds
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(state_of(model))
    model.close()
    return found


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's state."""
    return {name: value.to("cpu", copy=True) for name, value in model.state_dict().items()}


def check_weights(found: list[list[dict[str, Tensor]]], expected: list[dict[str, Tensor]]) -> None:
    """Raises unless, after each epoch, all ranks have the same weights, those that are expected to 1e-12."""
    for of_rank in found:
        for number, (ours, first, theirs) in enumerate(zip(of_rank, found[0], expected, strict=True)):
            assert ours.keys() == theirs.keys()
            for name in theirs:
                torch.testing.assert_close(ours[name], theirs[name], rtol=1e-12, atol=1e-12)
                assert torch.equal(ours[name], first[name]), f"{name} differs between ranks after epoch {number}"
