"""Tables of a shop in memory, and as files."""

import datetime

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch

from torch_gnnscale import tables
from torch_gnnscale.tables import Schema

SHOP = {
    "nodes": {
        "user": {
            "files": "users*",
            "key": "user_id",
            "columns": {
                "age": {"kind": "number", "missing": "mean"},
                "premium": "boolean",
                "country": "category",
                "joined": {"kind": "time", "missing": "mean"},
            },
            "label": "segment",
            "split": {"val": 0.2, "test": 0.2, "seed": 3},
            "time": "since",
        },
        "item": {"files": "items*", "key": "item_id", "columns": {"price": {"kind": "number", "scale": "none"}}},
    },
    "edges": {
        "user.buys.item": {
            "files": "orders*",
            "source": "user",
            "destination": "item",
            "time": {"column": "at", "unit": "ms"},
            "weight": "amount",
            "columns": {"payment": "category", "rating": {"kind": "number", "missing": "mean"}},
            "split": {"by": "time", "val": 0.2, "test": 0.2},
            "undirected": "reverse",
            "dangling": "drop",
        },
        "item.made_by.user": {"table": "item", "destination": "maker", "dangling": "drop"},
    },
}
"""A schema of the tables of :func:`shop`."""


def shop(users=30, items=12, orders=90, seed=0):
    """The tables by their names in files: ``users``, ``items``, ``orders``."""
    random = torch.Generator().manual_seed(seed)

    def draw(count, below):
        return torch.randint(below, (count,), generator=random).tolist()

    def some(values, share=5):
        return [None if hole == 0 else value for value, hole in zip(values, draw(len(values), share), strict=True)]

    names = [f"{'zü'[number % 2]}{number:x}" for number in torch.randperm(users, generator=random).tolist()]
    day, hour = datetime.datetime(2023, 1, 1), datetime.timedelta(hours=1)
    return {
        "users": pa.table({
            "user_id": names,
            "age": pa.array(some(draw(users, 60)), pa.int32()),
            "premium": [bool(value) for value in draw(users, 2)],
            "country": pa.array(some([["DE", "FR", "Ägypten"][at] for at in draw(users, 3)]), pa.string()),
            "joined": pa.array(some([day + hour * at for at in draw(users, 9000)]), pa.timestamp("us")),
            "segment": pa.array(some([["b", "a", "c"][at] for at in draw(users, 3)]), pa.string()),
            "since": [day.date() - datetime.timedelta(days=at) for at in draw(users, 20000)],
        }),
        "items": pa.table({
            "item_id": pa.array((torch.randperm(items, generator=random) * 7 - 20).tolist(), pa.int64()),
            "price": [at / 8 for at in draw(items, 800)],
            "maker": pa.array(some([names[at] for at in draw(items, users)], 3), pa.string()),
        }),
        "orders": pa.table({
            "user": pa.array(some([[*names, "nobody"][at] for at in draw(orders, users + 1)], 20), pa.string()),
            "item": pa.array([at * 7 - 20 for at in draw(orders, items + 1)], pa.int64()),
            "at": pa.array([1_600_000_000_000 + at for at in draw(orders, 40_000)], pa.int64()),
            "amount": [at / 4 for at in draw(orders, 40)],
            "payment": pa.array(some([["card", "cash"][at] for at in draw(orders, 2)]), pa.string()),
            "rating": pa.array(some([float(at) for at in draw(orders, 5)]), pa.float64()),
        }),
    }  # fmt: skip


def cut(table, parts):
    """A table in so many files' tables."""
    size = -(-table.num_rows // parts)
    return [table.slice(at * size, size) for at in range(parts)]


def write(folder, found, parts=1, ending=".parquet"):
    """Writes tables to files; returns, by name, the tables of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = {name: cut(table, parts) for name, table in found.items()}
    for name, some in pieces.items():
        for at, table in enumerate(some):
            put(folder / f"{name}-{at}{ending}", table)
    return pieces


def put(file, table):
    """Writes a table into a file of the format that its name says."""
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(table, file)
        return
    options = pyarrow.csv.WriteOptions(delimiter="\t" if ".tsv" in file.name else ",")
    with pa.output_stream(str(file), compression="detect") as stream:
        pyarrow.csv.write_csv(table, stream, options)


def of_shop(pieces):
    """The tables of the shop's files by the paths of the schema's tables."""
    names = {"nodes.user": "users", "nodes.item": "items", "edges.user.buys.item": "orders"}
    return {path: pieces[name] for path, name in names.items()}


def arrays(path):
    """What a graph of tables holds, as ``reference.tables.build`` returns it."""
    features, graph = tables.open(path)
    found = {
        (attr.group_name, attr.attr_name): features.get_tensor(
            group_name=attr.group_name, attr_name=attr.attr_name, index=None
        )
        for attr in features.all_attrs()
    }
    relations = {}
    for attr in graph.get_all_edge_attrs():
        csc = graph.relation(attr.edge_type)
        assert csc.edge_id is None
        relations[attr.edge_type] = csc.colptr, csc.row
    keys = {
        name: tables.ids(path, name).names(range(len(tables.ids(path, name)))) for name in tables.about(path)["nodes"]
    }
    return found, relations, {name: found.to_pylist() for name, found in keys.items()}


def same(found, expected):
    """Asserts that arrays are equal, bit for bit."""
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            pairs = zip(ours[name], value, strict=True) if isinstance(value, tuple) else [(ours[name], value)]
            for a, b in pairs:
                assert a.dtype == b.dtype, name
                assert torch.equal(a, b), name
    assert found[2] == expected[2]


def built(folder, schema=SHOP, **options):
    """The path of the graph of a folder's tables."""
    tables.build(Schema.parse(schema, folder), folder / "graph", **options)
    return folder / "graph"
