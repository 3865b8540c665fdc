"""What is written before it is crafted, and what users do with it."""

from __future__ import annotations

import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from helpers.crafted import FRIENDLY, rows_in
from helpers.hetero import CITES, PAPER, WRITES, make_hetero
from helpers.parts import HERE, homogeneous
from helpers.tables import SHOP, shop, write
from torch import distributed as dist

from torch_gnnscale import (
    FeatureStore,
    GraphStore,
    LayerSampler,
    LinkNeighborLoader,
    NeighborLoader,
    TieredFeatureStore,
    partition,
    tables,
)
from torch_gnnscale.distributed import open_part
from torch_gnnscale.tables import Schema

PARTS = {"one": 1, "two": 2, "edges": 2, "typed one": 1, "typed two": 2}
"""Directories of parts by name, with their number of parts; those of "edges" have a partitioned topology."""
STORES = {"stores": None, "typed stores": PAPER, "tables": "user", "tables by part": None}
"""Other directories by name, with the type of seeds."""
ROWS = ("x", "edge_attr")
"""Attributes whose rows are compared with those of the files."""


def write_parts(path: Path) -> None:
    """Writes one directory of each of :data:`PARTS`."""
    data = homogeneous(60)
    data.weight = torch.arange(data.num_edges) % 7 / 2
    for name, parts in PARTS.items():
        if name.startswith("typed"):
            given = {"splits": {"train": (PAPER, torch.arange(0, 40, 2))}}
            typed = make_hetero()
            links = {
                "train": (WRITES, typed[WRITES].edge_index[:, ::9]),
                "val": (CITES, typed[CITES].edge_index[:, :9]),
            }
            partition.write(typed, path / name, parts, method="random", links=links, **given)
            continue
        topology = "partitioned" if name == "edges" else "replicated"
        partition.write(
            data, path / name, parts, method="random", topology=topology, links={"train": data.edge_index[:, ::40]},
            graph_attrs=["time"] if name == "edges" else ["time", "weight"],
        )  # fmt: skip


def use_parts(path: Path, chance: random.Random) -> None:
    """What a rank of a training run does with its part; the same on all ranks, whose ``chance`` is the same."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    typed, edges = path.name.startswith("typed"), path.name == "edges"
    options: dict[str, Any] = {"verify": chance.random() < 0.5, "timeout": 20.0}
    if world > 1:
        options |= chance.choice([{}, {"buffer": 0.5}, {"buffer": "1MiB", "policy": "static"}, HERE])
    if not typed:
        options["tiers"] = chance.choice([None, None, {}, {"host": "30%"}])
    mode, of = chance.randrange(5), chance.choice(["part", "all"])
    stored = {row for file in path.glob("part-*/rows_*.npy") for row in rows_in(file)}
    with open_part(path, **options) as part:
        order = {"seed_order": "owned" if of == "part" else "global"} if world > 1 else {}
        given: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 1, **order}
        stores = (part.features, part.graph)
        with suppress(ValueError):
            str(part.parts.report), part.stats()
        if mode == 0 and not edges:
            links = part.links("train", of=of)
            loader = LinkNeighborLoader(stores, [3, 2], edge_label_index=links, neg_sampling="binary", **given)
        elif mode == 1 and not typed:
            sampler = LayerSampler(stores, [9, 9], chance.choice(["ladies", "fastgcn", "labor"]))
            loader = NeighborLoader(stores, None, part.input_nodes("train", of=of), neighbor_sampler=sampler, **given)
        else:
            more = chance.choice([{}, {"weight_attr": "weight"}, {"time_attr": "time"}]) if not typed else {}
            loader = NeighborLoader(stores, [3, -1], part.input_nodes("train", of=of), **more, **given)
        for _ in range(2):
            for batch in loader:
                for name in ROWS:
                    _check_batch(batch, stored, name)


def write_stores(path: Path) -> None:
    """Writes one directory of each of :data:`STORES`."""
    for name, data in (("stores", homogeneous(60)), ("typed stores", make_hetero())):
        FeatureStore.from_data(data).save(path / name / "features")
        GraphStore.from_data(data).save(path / name / "graph")
    write(path / "source", shop(), 2)
    schema = Schema.parse(SHOP, path / "source")
    for name, parts in (("tables", None), ("tables by part", 2)):
        (path / name).mkdir()
        tables.build(schema, path / name / "graph", parts=parts)


def use_stores(path: Path, chance: random.Random) -> None:
    """What a user does with saved stores, or with a graph of tables."""
    if path.name == "tables by part":
        tables.write_parts(path / "graph", path / "parts")
        for part in range(2):
            partition.open_parts(path / "parts").part(part)
        return
    options: dict[str, Any] = {"verify": chance.random() < 0.5}
    stored = {row for file in path.rglob("*.npy") for row in rows_in(file)}
    if path.name == "tables":
        features, graph = tables.open(path / "graph", **options)
        str(tables.about(path / "graph"))
        for ids in (tables.ids(path / "graph", node_type) for node_type in ("user", "item")):
            for call, given in ((ids.names, range(len(ids))), (ids.names, [0, -1, 1 << 40]), (ids.of, ["a", "zz"]),
                                (ids.of, [1, -20, 1 << 62])):  # fmt: skip
                with suppress(*FRIENDLY):
                    found = call(given)
                    assert call == ids.of or call(ids.of(found)) == found, "ids: others than were asked for"
    else:
        graph = GraphStore.open(path / "graph", **options)
        if path.name == "stores" and chance.random() < 0.5:
            features: Any = TieredFeatureStore.open(path / "features", torch.rand(60), host="30%", **options)
        else:
            features = FeatureStore.open(path / "features", **options)
    features, graph = pickle.loads(pickle.dumps((features, graph)))
    for attr in features.all_attrs():
        with suppress(*FRIENDLY):
            count = features.num_rows(attr)
            for index in ([0, count - 1], [count], [-1], range(count)):
                attr.index = torch.tensor(index)
                with suppress(*FRIENDLY):
                    _check_rows(features.get_tensor(attr), stored, attr.attr_name)
    more = chance.choice([{}, {}, {"subgraph_type": "induced"}, {"subgraph_type": "bidirectional"}, {"replace": True}])
    fanouts, seeds = chance.choice([[3, 2], [-1, -1]]), STORES[path.name]
    for batch in NeighborLoader((features, graph), fanouts, seeds, batch_size=8, seed=1, shuffle=True, **more):
        _check_batch(batch, stored, "x")


def _check_batch(batch: Any, stored: set[bytes], name: str) -> None:
    """Fails if some rows of a batch are those of no file. Those of an attribute that no manifest names are absent."""
    for storage in batch.stores:
        if name in storage:
            _check_rows(storage[name], stored, name)


def _check_rows(rows: Any, stored: set[bytes], name: str) -> None:
    """Fails if some rows are those of no file."""
    assert {row.tobytes() for row in rows.numpy()} <= stored, f"{name}: rows of no file"
