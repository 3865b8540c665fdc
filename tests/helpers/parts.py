"""Partitioned graphs of tests, what ranks do with them, and what one process makes of the same stored graph."""

from __future__ import annotations

import functools
import gc
import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from helpers.cluster import cluster
from helpers.data import make_data, plain
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader, partition
from torch_gnnscale.comm.mesh import Consecutive, Grid, RowGroup
from torch_gnnscale.distributed import open_part
from torch_gnnscale.loader.epochs import Share
from torch_gnnscale.sampler.minibatch import MiniBatch
from torch_gnnscale.topology.reorder import Order, TypedOrder

HERE = {"transport": RowGroup("gloo", torch.device("cpu"))}
"""Arguments of ``open_part``: the thread that iterates exchanges rows, as with NCCL."""


def homogeneous(num_nodes: int = 200) -> Data:
    """Rows that are a function of the id, masks, times of nodes, and attributes of edges."""
    data = make_data(num_nodes)
    generator = torch.Generator().manual_seed(3)
    data.train_mask = torch.rand(num_nodes, generator=generator) < 0.4
    data.time = torch.arange(num_nodes) * 7 % 50
    data.code = (torch.arange(num_nodes) % 251).to(torch.uint8)
    data.wide = torch.arange(num_nodes)[:, None, None] * torch.tensor([[1.0, 0.5], [2.0, 3.0]], dtype=torch.float64)
    data.kind = torch.arange(data.num_edges) % 5
    return data


def with_links(tmp_path_factory: Any, count: int) -> tuple[Data, str]:
    """(data, a new directory of so many random parts, with links for training)."""
    data, path = homogeneous(), tmp_path_factory.mktemp("parts") / "parts"
    partition.write(data, path, parts=count, method="random", links={"train": data.edge_index[:, ::7]})
    return data, str(path)


def check_batches(found: list[list[list[Any]]], expected: list[list[list[Any]]]) -> None:
    """Fails unless the batches are equal, by rank and epoch; the first that is not is named by its fields."""
    assert [[len(epoch) for epoch in rank] for rank in found] == [[len(epoch) for epoch in rank] for rank in expected]
    for of_rank, of_expected in zip(found, expected, strict=True):
        for epoch, as_expected in zip(of_rank, of_expected, strict=True):
            for ours, theirs in zip(epoch, as_expected, strict=True):
                assert dict(ours).keys() == dict(theirs).keys()
                assert ours == theirs


def orders_of(parts: partition.StoredParts) -> Order | TypedOrder:
    """The numbering of the stored graph."""
    orders = {
        t: Order.from_permutation(_inverse(parts.stored_ids(t)), parts.book.num_nodes(t)) for t in parts.book.bounds
    }
    return TypedOrder(orders) if parts.hetero else orders[None]


def _inverse(permutation: torch.Tensor) -> torch.Tensor:
    inverse = torch.empty_like(permutation)
    inverse[permutation] = torch.arange(len(permutation))
    return inverse


def stores_of(data: Data | HeteroData, path: str) -> tuple[FeatureStore, GraphStore]:
    """One process's stores of the graph as the parts store it."""
    with partition.open_parts(path) as parts:
        order = orders_of(parts)
    return FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)


def loader_over(stores: Any, seeds: Any, kind: str, options: dict[str, Any]) -> Any:
    """A loader of nodes or links."""
    options = {"num_neighbors": [3, 2], "batch_size": 10, "shuffle": True, "seed": 3, **options}
    if kind == "links":
        return LinkNeighborLoader(stores, edge_label_index=seeds, neg_sampling="binary", **options)
    return NeighborLoader(stores, input_nodes=seeds, **options)


def loader_of_part(part: Any, **options: Any) -> Any:
    """A loader of nodes over an open part."""
    of = "all" if options.get("seed_order") == "global" else "part"
    return loader_over((part.features, part.graph), part.input_nodes("train", of), "nodes", options)


def as_plain(batch: Any) -> Any:
    """A batch with its fields in the order of their names, for stores may have them in another one."""
    if isinstance(batch, HeteroData):
        return sorted((str(key), sorted(dict(entries).items())) for key, entries in plain(batch))
    return sorted(plain(batch))


def batches_of_rank(
    path: str, kind: str, epochs: int, options: dict[str, Any], kept: dict[str, Any] | None = None
) -> list[list[Any]]:
    """The batches of this rank, by epoch; ``kept``: arguments of the prefetch buffer."""
    with open_part(path, **(kept or {})) as part:
        of = "all" if options.get("seed_order") == "global" else "part"
        seeds = part.links("train", of) if kind == "links" else part.input_nodes("train", of)
        loader = loader_over((part.features, part.graph), seeds, kind, options)
        return [[as_plain(batch) for batch in loader] for _ in range(epochs)]


def traffic_of_an_epoch(path: str, options: dict[str, Any]) -> tuple[int, dict[str, dict[str, Any]]]:
    """(this rank's batches of an epoch, what it exchanged, by purpose), which a part counts of dropped loaders, too."""
    with open_part(path) as part:
        loader = loader_of_part(part, **options)
        steps, stats = sum(1 for _ in loader), part.stats()
        del loader
        gc.collect()
        assert part.stats() == stats
        return steps, stats


def fetched(path: str, kept: dict[str, Any], epochs: int, options: dict[str, Any]) -> tuple[int, int, int]:
    """Bytes of rows that this rank got, rounds for them, and steps; ``kept``: arguments of the prefetch buffer."""
    with open_part(path, **kept) as part:
        loader = loader_of_part(part, **options)
        steps = sum(1 for _ in range(epochs) for _ in loader)
        stats = part.stats()
        return stats["rows"]["bytes_received"], stats["rows"]["rounds"] + stats["ids"]["rounds"], steps


_expected: dict[bytes, list[list[list[Any]]]] = {}


def expected_batches(
    data: Data | HeteroData, path: str, kind: str, epochs: int, options: dict[str, Any], world: int,
    consecutive: Consecutive = "copies",
) -> list[list[list[Any]]]:  # fmt: skip
    """found[rank][epoch]: what one process makes of the same stored graph in the same order of seeds; made once."""
    call = pickle.dumps((path, kind, epochs, options, world, consecutive))
    if call not in _expected:
        _expected[call] = _made_by_one_process(data, path, kind, epochs, options, world, consecutive)
    return _expected[call]


def _made_by_one_process(
    data: Data | HeteroData, path: str, kind: str, epochs: int, options: dict[str, Any], world: int, consecutive: Any
) -> list[list[list[Any]]]:
    stores = stores_of(data, path)
    with partition.open_parts(path) as parts:
        count, owned = parts.book.num_parts, options.get("seed_order", "owned") == "owned"
        of_parts = [_seeds(parts, number if owned else None, kind) for number in range(count if owned else 1)]
    uneven = options.get("uneven", "pad")
    given = {name: value for name, value in options.items() if name not in ("seed_order", "uneven", "bulk")}
    loaders = [loader_over(stores, seeds, kind, given) for seeds in of_parts]
    sizes = [len(loader) for loader in loaders]
    found = []
    for rank in range(world):
        ranks = Grid(world, count, consecutive).ranks_of(rank)
        share = Share(ranks, "owned" if owned else "global", uneven).with_counts(sizes)
        loader = loaders[share.part]
        if hasattr(loader.sampler, "part"):
            loader.sampler.part = share.part
        of_epochs = []
        for epoch in range(epochs):
            positions = [index.positions for index in loader._seed_order.numbered(loader.batch_sampler, epoch)]
            steps = [
                MiniBatch(epoch, step.number, positions[step.chunk % len(positions)]) for step in share.positions(0)
            ]
            of_epochs.append([as_plain(loader.collate_fn(index)) for index in steps])
        found.append(of_epochs)
    return found


def _seeds(parts: partition.StoredParts, number: int | None, kind: str) -> Any:
    if kind == "links":
        edge_type, split = parts.link_splits[0]
        links = parts.links(split, edge_type) if number is None else parts.part(number).links[edge_type, split]
        return links if edge_type is None else (edge_type, links)
    node_type, split = parts.splits[0]
    seeds = parts.input_nodes(split, node_type) if number is None else parts.part(number).seeds[node_type, split]
    return seeds if node_type is None else (node_type, seeds)


def parts_of_edges(folder: Callable[[], Path]) -> Callable[[int], tuple[Data, str]]:
    """Of K: (data, directory of K parts of edges), written once into ``folder()``; of 0: the second has nothing."""

    @functools.cache
    def of(count):
        data, path = homogeneous(), folder() / "parts"
        generator = torch.Generator().manual_seed(8)
        data.weight = torch.rand(data.num_edges, generator=generator) * (torch.arange(data.num_edges) % 4 > 0)
        data.since = torch.randint(50, (data.num_edges,), generator=generator)
        owners = torch.arange(data.num_nodes) % 2 * 2 if count == 0 else None
        links = {"train": data.edge_index[:, ::7]}
        partition.write(
            data, path, parts=count or 3, method="random", topology="partitioned", links=links,
            graph_attrs=["time"], owners=owners,
        )  # fmt: skip
        return data, str(path)

    return of


def of_both_topologies(
    data: Data | HeteroData, folder: Path, count: int, owners: Any, of_nodes: list[str], of_edges: list[str]
) -> tuple[str, str]:
    """Directories of ``count`` parts with the same owners: of replicated edges, and of edges in parts. Samplers read
    the attributes ``of_nodes`` and ``of_edges``."""
    for topology, attrs in (("replicated", of_nodes + of_edges), ("partitioned", of_nodes)):
        partition.write(data, folder / topology, count, owners=owners, topology=topology, graph_attrs=attrs)
    return str(folder / "replicated"), str(folder / "partitioned")


def batches_of_topologies(paths: tuple[str, str], make: str, options: dict[str, Any]) -> list[list[Any]]:
    """The batches that this rank makes of each directory. ``make``: MODULE.NAME of a function that makes a loader of
    (part, "part" or "all", options)."""
    module, name = make.rsplit(".", 1)
    found = []
    for path in paths:
        with open_part(path) as part:
            of = "all" if options.get("seed_order") == "global" else "part"
            loader = getattr(importlib.import_module(module), name)(part, of, dict(options))
            found.append([as_plain(batch) for batch in loader])
    return found


def check_topologies(paths: tuple[str, str], world: int, make: Callable, options: dict[str, Any]) -> list[list[Any]]:
    """Fails unless so many ranks make equal batches of both directories, some at all; returns them by rank."""
    name = f"{make.__module__}.{make.__name__}"
    each = cluster(world).run(batches_of_topologies, paths, name, options)
    whole, in_parts = ([[of_rank[number]] for of_rank in each] for number in range(2))
    check_batches(in_parts, whole)
    assert any(of_rank[0] for of_rank in whole)
    return [of_rank[0] for of_rank in whole]


REPLICATED = " with a partitioned topology is not implemented; write the parts with topology='replicated'"
"""How errors about parts of edges end."""
