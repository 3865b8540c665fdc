"""Split batches over the stores of a part, and what one process makes of the same stored graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from helpers.boundary import ENDS, boundary_graph
from helpers.parts import loader_over, stores_of
from helpers.split import GivenPlan, comparable, cut_over_ranks, owned_orders
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import partition
from torch_gnnscale.comm.mesh import Consecutive, Grid
from torch_gnnscale.distributed import open_part

SEEDS = torch.cat([torch.arange(0, 200, 3), ENDS]).unique()


def with_weights() -> Data:
    """The boundary graph; some of its edges weigh nothing. Attributes of edges can be told by their names."""
    data = boundary_graph()
    generator = torch.Generator().manual_seed(8)
    data.edge_kind = data.kind
    del data.kind
    data.edge_chance = torch.rand(data.num_edges, generator=generator) * (torch.arange(data.num_edges) % 4 > 0)
    return data


def parts_of_owners(folder: Callable[[], Path]) -> Callable[..., str]:
    """Of (owners as a tuple, number of parts, topology): the directory of these parts, written once."""

    @functools.cache
    def of(owners: tuple[int, ...], count: int, topology: str) -> str:
        path = folder() / "parts"
        partition.write(
            with_weights(), path, parts=count, owners=torch.tensor(owners), topology=topology,
            splits={"train": SEEDS}, graph_attrs=["edge_chance", "time"],
        )  # fmt: skip
        return str(path)

    return of


def split_loader(part: Any, plan: Any, options: dict[str, Any]) -> Any:
    """A loader of split batches over the stores of a part; ``seeds``: others than the data split's."""
    options = dict(options)
    given = options.pop("seeds", None)
    seeds = part.input_nodes("train", of="all") if given is None else torch.tensor(given)
    return loader_over((part.features, part.graph), seeds, "nodes", {**options, "split": plan})


def batches_over_part(
    path: str, plan: GivenPlan, epochs: int, options: dict[str, Any], kept: dict[str, Any] | None = None
) -> list[list[Any]]:
    """The batches of this rank, by epoch; ``kept``: arguments of ``open_part``."""
    with open_part(path, **(kept or {})) as part:
        loader = split_loader(part, plan, options)
        return [[comparable(batch) for batch in loader] for _ in range(epochs)]


def whole_loader(path: str, options: dict[str, Any]) -> Any:
    """One process's loader of whole batches of the graph as the parts store it."""
    given = {name: value for name, value in options.items() if name not in ("uneven", "seed_order", "seeds")}
    seeds = torch.tensor(options["seeds"]) if "seeds" in options else SEEDS
    return loader_over(stores_of(with_weights(), path), seeds, "nodes", given)


def expected_over_parts(
    path: str,
    owners: Tensor,
    parts: int,
    epochs: int,
    world: int,
    options: dict[str, Any],
    consecutive: Consecutive = "copies",
) -> list[list[list[Any]]]:
    """found[rank][epoch]: the twin's cuts of these batches."""
    loader, grid = whole_loader(path, options), Grid(world, parts, consecutive)
    of_inputs = owners[torch.tensor(options["seeds"]) if "seeds" in options else SEEDS]
    owned = owned_orders(loader, of_inputs, parts, options, grid.copies)
    return cut_over_ranks(loader, owners, grid, epochs, options.get("uneven", "pad"), owned)
