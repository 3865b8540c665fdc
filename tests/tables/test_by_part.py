"""Tables by part, and the parts that are made of them: those that partition.write makes of the whole graph."""

import copy
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from helpers.forked import run_ranks
from helpers.tables import SHOP, built, put, shop, write

from torch_gnnscale import files, partition, tables
from torch_gnnscale.cli import main
from torch_gnnscale.tables import Schema

OWNERS = {
    "hash": (None, None),
    "column": ("country", {"files": "owners.parquet", "key": "i", "part": "p"}),
    "few": ("premium", {"files": "owners.parquet", "key": "i", "part": "same"}),  # parts without nodes
}


def schema_of(owners):
    schema = copy.deepcopy(SHOP)
    for node_type, owner in zip(("user", "item"), OWNERS[owners], strict=True):
        schema["nodes"][node_type] |= {} if owner is None else {"owner": owner}
    schema["nodes"]["tag"] = {"files": "owners.parquet", "key": "i"}  # its nodes have no attributes
    schema["edges"]["item.has.tag"] = {"files": "owners.parquet", "source": "i", "destination": "i"}
    return schema


def tables_by_part(folder, owners="hash", parts=4):
    write(folder, shop(), 2)
    items = {"i": [n * 7 - 20 for n in range(12)], "p": [n % 3 for n in range(12)], "same": [1] * 12}
    put(folder / "owners.parquet", pa.table(items))
    return tables.build(Schema.parse(schema_of(owners), folder), folder / "by_part", parts=parts)


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("owners", OWNERS)
def test_parts_of_tables_are_those_of_the_whole_graph(tmp_path, monkeypatch, owners):
    monkeypatch.setattr("torch_gnnscale.tables.edges.batch_rows", lambda _: 2048)
    report = tables_by_part(tmp_path, owners)
    graph = built(tmp_path, schema_of(owners))
    assert report == tables.build(Schema.parse(schema_of(owners), tmp_path), tmp_path / "again")
    arrays, meta = files.load(tmp_path / "by_part" / "counts", "tables-by-part")
    of = {node_type: arrays[f"owner_{number}"] for number, (node_type, _) in enumerate(meta["num_nodes"])}
    keys = {node_type: tables.ids(tmp_path / "by_part", node_type).names(range(len(of[node_type]))) for node_type in of}
    if owners == "column":
        rows = {row["user_id"]: row["country"] for row in shop()["users"].to_pylist()}
        number = {None: 0, "DE": 1, "FR": 2, "Ägypten": 3}
        assert of["user"].tolist() == [number[rows[key]] for key in keys["user"].to_pylist()]
        assert of["item"].tolist() == [n % 3 for n in range(12)]
    attrs, about = ["time", "edge_weight"], {"dataset": "by_part"}
    partition.write(
        tables.open(graph), tmp_path / "whole", 4, owners=of, topology="partitioned", about=about, graph_attrs=attrs
    )
    tables.write_parts(tmp_path / "by_part", tmp_path / "parts", only=[2], graph_attrs=attrs)
    for part in (0, 3, 1):  # each from a machine that has its own rows alone
        mine = tmp_path / f"machine{part}" / "by_part"
        shutil.copytree(tmp_path / "by_part" / "counts", mine / "counts")
        for folder in (tmp_path / "by_part").glob(f"*/*/part={part}"):
            shutil.copytree(folder, mine / folder.relative_to(tmp_path / "by_part"))
        missing = tables.write_parts(mine, tmp_path / "parts", only=[part], graph_attrs=attrs)
    assert missing == []
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


def test_what_is_damaged_or_missing(tmp_path):
    tables_by_part(tmp_path, parts=2)
    by_part = tmp_path / "by_part"
    edges = by_part / "edges" / "user.buys.item" / "part=1"
    with pytest.raises(IndexError, match=r"only: expected a part in \[0, 2\), found 2"):
        tables.write_parts(by_part, tmp_path / "parts", only=[2])
    table = pq.read_table(edges / "0.parquet")

    def refused(error, said):
        with pytest.raises(error, match="expected") as raised:
            tables.write_parts(by_part, tmp_path / "parts", only=[1])
        assert str(raised.value).startswith(f"{edges}: {said}")

    pq.write_table(table.slice(1), edges / "0.parquet")
    refused(ValueError, f"expected {table.num_rows} rows, found {table.num_rows - 1}")
    pq.write_table(table.take(list(range(table.num_rows))[::-1]), edges / "0.parquet")
    refused(ValueError, "expected the edges of part 1 by destination, found others")
    pq.write_table(table.drop_columns(["src"]), edges / "0.parquet")
    refused(ValueError, "expected parquet files with the column src")
    (edges / "0.parquet").write_bytes(b"PAR1")
    refused(ValueError, "expected parquet files with the column src")
    (edges / "0.parquet").unlink()
    refused(FileNotFoundError, "expected parquet files, found none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"p": [n % 3 for n in range(11)] + [3]},
         "nodes.item.owner: {}: row 12: column p: expected a part from 0 to 2, found '3'"),
        ({"p": [0] * 11 + [None]},
         "nodes.item.owner: {}: row 12: column p: expected a part from 0 to 2, found nothing"),
        ({"i": [n * 7 - 20 for n in range(11)] + [-20]},
         "nodes.item.owner: expected each key of nodes.item once, found -20 in 2 rows"),
        ({"i": [n * 7 - 20 for n in range(11)] + [5]},
         "nodes.item.owner: expected each key of nodes.item once, found 57 in 0 rows"),
    ],
)  # fmt: skip
def test_tables_of_owners_that_are_none(tmp_path, given, said):
    write(tmp_path, shop())
    put(tmp_path / "owners.parquet", pa.table({"i": [n * 7 - 20 for n in range(12)], "p": [0] * 12} | given))
    with pytest.raises(ValueError, match="owner") as raised:
        tables.build(Schema.parse(schema_of("column"), tmp_path), tmp_path / "graph", parts=3)
    assert str(raised.value) == said.format(tmp_path / "owners.parquet")


@pytest.mark.slow
def test_two_ranks_train_on_parts_of_tables(tmp_path, capsys):
    write(tmp_path, shop(users=200, items=40, orders=1500))
    schema = copy.deepcopy(SHOP)
    del schema["nodes"]["user"]["columns"]["country"], schema["edges"]["user.buys.item"]["columns"]["payment"]
    schema["nodes"]["user"]["owner"] = "country"
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(schema))
    main(["tables", str(tmp_path / "shop.yaml"), "--out", str(tmp_path / "by_part"), "--parts", "2"])
    assert "then: gnnscale partition --from-tables" in capsys.readouterr().out
    command = ["partition", "--from-tables", str(tmp_path / "by_part"), "--out", str(tmp_path / "parts")]
    with pytest.raises(SystemExit):
        main([*command, "--parts", "2"])
    assert "--parts: expected none beside --from-tables, found 2" in capsys.readouterr().err
    main([*command, "--only", "1"])
    assert "still to be written" in capsys.readouterr().out
    main([*command, "--only", "0"])
    assert "complete: " in capsys.readouterr().out
    small = ["--hidden", "8", "--epochs", "1", "--fanouts", "3", "3", "--batch-size", "16"]
    train = ["train", "--parts", str(tmp_path / "parts"), "--out", str(tmp_path / "run"), *small]
    done = run_ranks(2, f"from torch_gnnscale.cli import main\nmain({train!r})")
    assert [process.returncode for process in done] == [0, 0], done
    assert "test accuracy" in done[0].stdout
    with pytest.raises(ValueError, match=r"parts: expected 1 <= parts <= 65536, found 0"):
        tables.build(Schema.parse(schema, tmp_path), tmp_path / "none", parts=0)


def test_owners_of_a_schema():
    schema = Schema.parse(schema_of("column"))
    assert schema.nodes["user"].owner.column == "country"
    assert schema.nodes["item"].owner.files == ("owners.parquet",)
    with pytest.raises(ValueError, match=r"nodes.item.owner.part: expected it, found nothing"):
        Schema.parse({"nodes": {"item": {"files": "a", "key": "b", "owner": {"files": "c", "key": "d"}}}})


def test_more_parts_than_nodes(tmp_path):
    """As of ``partition.write``: refused, unless somebody says which part a node is in."""
    put(tmp_path / "keys.parquet", pa.table({"k": [10, 20, 30], "part": [0, 1, 1]}))
    of = {"files": "keys.parquet", "key": "k"}
    schema = {"nodes": {"user": of, "item": of}, "edges": {}}
    tables.build(Schema.parse(schema, tmp_path), tmp_path / "six", parts=6)
    with pytest.raises(ValueError, match="parts: expected at most 6, the number of nodes, found 7"):
        tables.build(Schema.parse(schema, tmp_path), tmp_path / "seven", parts=7)
    assert not (tmp_path / "seven").exists()
    schema["nodes"]["item"] = of | {"owner": "part"}
    tables.build(Schema.parse(schema, tmp_path), tmp_path / "seven", parts=7)


def test_small_parts_of_tables(tmp_path):
    """Ids that several types share, and a relation without edges."""
    keys = pa.table({"k": [10, 20, 30, 40, 50], "part": [0, 1, 1, 0, 1], "value": [1.0, 2.0, 3.0, 4.0, 5.0]})
    put(tmp_path / "keys.parquet", keys)
    put(tmp_path / "links.parquet", pa.table({"a": [10, 20, 30, 40, 50, 10], "b": [20, 10, 50, 50, 10, 10]}))
    put(tmp_path / "none.parquet", pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())}))
    of = {"files": "keys.parquet", "key": "k", "columns": {"value": {"kind": "number", "scale": "none"}}}
    ends = {"source": "a", "destination": "b"}
    schema = {
        "nodes": {name: of | {"owner": "part"} for name in ("user", "item")},
        "edges": {
            "user.likes.item": {"files": "links.parquet", **ends},
            "user.rates.item": {"files": "links.parquet", **ends},
            "item.of.user": {"files": "links.parquet", **ends},
            "user.knows.user": {"files": "none.parquet", **ends},
        },
    }
    parsed = Schema.parse(schema, tmp_path)
    tables.build(parsed, tmp_path / "by_part", parts=2)
    tables.build(parsed, tmp_path / "graph")
    owner = torch.tensor([0, 1, 1, 0, 1], dtype=torch.int32)
    partition.write(
        tables.open(tmp_path / "graph"), tmp_path / "whole", 2, owners={"user": owner, "item": owner},
        topology="partitioned", about={"dataset": "by_part"},
    )  # fmt: skip
    assert tables.write_parts(tmp_path / "by_part", tmp_path / "parts") == []
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
