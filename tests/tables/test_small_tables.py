"""Graphs of tables of a few rows, read a few rows at a time: what is at a border is right, whichever border it is."""

import copy
import shutil

import pyarrow as pa
import pytest
import torch
from helpers import crafted
from helpers.slow import SLOW
from helpers.tables import arrays, put, same
from reference import tables as reference

from torch_gnnscale import files, partition, tables
from torch_gnnscale.tables import Schema
from torch_gnnscale.tables.engine import Database
from torch_gnnscale.tables.layout import degrees_of
from torch_gnnscale.tables.sources import source

USERS = {
    "k": [10, 20, 30, 40, 50, 60],
    "part": [1, 0, 1, 1, 0, 1],
    "v": [1.0, None, 3.0, 4.0, 5.0, 6.0],
    "c": ["b", "a", None, "a", "b", "c"],
    "y": [0, 1, 0, 1, None, None],
    "t": [5, 1, 5, 4, 0, 9],  # the first and the latest one have no label, and are in no split
}
"""The first and the last one are ends of edges; 40 is none."""
LINKS = {
    "a": [60, 10, 10, 99, 60, 10, 50, 20, 10, 30, 60, 60, None],
    "b": [10, 60, 60, 60, 10, 10, 60, 60, 60, 60, 20, 10, 60],
    "t": [3, 7, 7, 0, 3, 2, 7, 7, 7, 1, 4, 3, 0],  # the first ones lack an end, and are dropped
    "w": [0.5, 2.0, 1.0, 1.0, 0.25, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0],
    "r": [1.0, 1.0, None, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 0.0, 1.0],
}
"""Some have one pair of ends, and some of these one time and one weight, too."""
SCHEMA = {
    "nodes": {
        "user": {
            "files": "users*", "key": "k", "label": "y", "time": {"column": "t", "unit": "s"}, "owner": "part",
            "columns": {"v": {"kind": "number", "missing": "mean", "scale": "none"}, "c": "category"},
            "split": {"by": "time", "val": 0.3, "test": 0.3},
        },
    },
    "edges": {
        "user.knows.user": {
            "files": "links*", "source": "a", "destination": "b", "weight": "w", "dangling": "drop",
            "time": {"column": "t", "unit": "s"}, "undirected": "reverse",
            "columns": {"r": {"kind": "number", "missing": "mean", "scale": "none"}},
            "split": {"by": "time", "val": 0.2, "test": 0.2},
        },
    },
}  # fmt: skip


def shop_in(folder):
    """(schema, {path: its table}) of files in a folder."""
    found = {"nodes.user": pa.table(USERS), "edges.user.knows.user": pa.table(LINKS)}
    for name, table in zip(("users", "links"), found.values(), strict=True):
        put(folder / f"{name}.parquet", table)
    return Schema.parse(copy.deepcopy(SCHEMA), folder), found


@pytest.fixture
def shop(tmp_path):
    return shop_in(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The shop's tables by part, which tests copy."""
    folder = tmp_path_factory.mktemp("written")
    tables.build(shop_in(folder)[0], folder / "by_part", parts=2)
    return folder / "by_part"


def rows_at_a_time(monkeypatch, count):
    """Rows are read ``count`` at a time, and destinations are counted as many at a time."""
    whole = Database.batches

    def few(self, sql, rows):
        for batch in (batches := whole(self, sql, rows)):
            for at in range(0, batch.num_rows, count):
                try:
                    yield batch.slice(at, count)
                except GeneratorExit:
                    batches.close()
                    raise

    monkeypatch.setattr(Database, "batches", few)
    monkeypatch.setattr("torch_gnnscale.tables.edges.CHUNK", count)


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_rows_read_a_few_at_a_time_are_those_of_the_twin(tmp_path, monkeypatch, shop, count):
    schema, found = shop
    expected = reference.build(schema, {path: [table] for path, table in found.items()})
    rows_at_a_time(monkeypatch, count)
    tables.build(schema, tmp_path / "graph")
    same(arrays(tmp_path / "graph"), expected)


def test_splits_by_time_count_the_rows_that_are_kept(tmp_path, shop):
    """Of 4 labelled nodes one is for testing, and so is another of its time. Of 11 edges, 2 and their equals."""
    report = tables.build(shop[0], tmp_path / "graph")
    features, _ = tables.open(tmp_path / "graph")

    def mask(group, subset):
        return features.get_tensor(group_name=group, attr_name=f"{subset}_mask", index=None)

    assert mask("user", "train").tolist() == [False, True, False, True, False, False]
    assert mask("user", "val").tolist() == [False] * 6
    assert mask("user", "test").tolist() == [True, False, True, False, False, False]
    relation = ("user", "knows", "user")
    time = features.get_tensor(group_name=relation, attr_name="time", index=None)
    assert len(time) == 11
    assert torch.equal(mask(relation, "test"), time >= 7)
    assert not mask(relation, "val").any()
    assert torch.equal(mask(relation, "train"), time < 7)
    report = report["edges"]["user.knows.user"]
    assert report["dropped"] == {"no source": 1, "unknown source": 1}
    assert report["split"] == {"train": 6, "val": 0, "test": 5}  # not those of the reverse relation, too


@pytest.mark.parametrize(("count", "owners"), [SLOW(1, "column"), (2, "files"), SLOW(3, "column")])
def test_parts_read_a_few_rows_at_a_time_are_those_of_the_whole_graph(tmp_path, monkeypatch, shop, count, owners):
    """Rows, seeds, halos and counts of both parts, of which either has the first or the last source."""
    schema = copy.deepcopy(SCHEMA)
    if owners == "files":
        put(tmp_path / "owners.parquet", pa.table({"k": USERS["k"][::-1], "p": USERS["part"][::-1]}))
        schema["nodes"]["user"]["owner"] = {"files": "owners.parquet", "key": "k", "part": "p"}
    parsed = Schema.parse(schema, tmp_path)
    tables.build(parsed, tmp_path / "graph")
    rows_at_a_time(monkeypatch, count)
    monkeypatch.setattr("torch_gnnscale.tables.part_rows.CHUNK", count)
    monkeypatch.setattr("torch_gnnscale.partition.input_graph._LENGTH", count)
    tables.build(parsed, tmp_path / "by_part", parts=2)
    owner = torch.tensor(USERS["part"], dtype=torch.int32)
    partition.write(
        tables.open(tmp_path / "graph"), tmp_path / "whole", 2, owners={"user": owner}, topology="partitioned",
        about={"dataset": "by_part"},
    )  # fmt: skip
    assert tables.write_parts(tmp_path / "by_part", tmp_path / "parts") == []

    def written(folder):
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    assert written(tmp_path / "parts") == written(tmp_path / "whole")


@pytest.mark.parametrize("most", [1, 2, 3, 10])
def test_degrees_of_pieces_are_those_of_the_whole(most):
    """However sorted destinations are cut: a piece counts all but its last destination, which may go on in the next."""
    dst = torch.tensor([0, 0, 3, 3, 3, 4, 8, 8, 8])
    for cuts in ([], [1], [4], [2, 3, 4, 7], list(range(1, 9))):
        found, at, held = [], 0, 0
        for piece in dst.tensor_split(cuts):
            counted = list(degrees_of(piece, at, held, most))
            assert all(0 < len(counts) <= most for counts in counted)
            found += counted
            last = int(piece[-1])
            held = int((piece == last).sum()) + (held if last == at else 0)
            at = last
        assert torch.equal(torch.cat([*found, torch.tensor([held])]), torch.bincount(dst)), cuts


@pytest.mark.parametrize(
    ("keys", "said"),
    [([10, 20, 30, 40, 50, 10], "10 in 2 rows"), ([70, 60, 50, 40, 30, 20], "10 in 0 rows")],
    ids=["twice", "missing"],
)
def test_each_node_has_one_owner(tmp_path, shop, keys, said):
    put(tmp_path / "owners.parquet", pa.table({"k": keys, "p": [0] * 6}))
    schema = copy.deepcopy(SCHEMA)
    schema["nodes"]["user"]["owner"] = {"files": "owners.parquet", "key": "k", "part": "p"}
    with pytest.raises(ValueError, match=rf"owner: expected each key of nodes.user once, found {said}"):
        tables.build(Schema.parse(schema, tmp_path), tmp_path / "graph", parts=2)


def test_parts_that_lack_rows_are_named(tmp_path, written):
    """A part's rows may be those of another part, or fewer; parts without a fault are written all the same."""
    import pyarrow.parquet

    shutil.copytree(written, by_part := tmp_path / "by_part")
    for folder in (by_part / "nodes" / "user" / "part=1", by_part / "edges" / "user.knows.user" / "part=1"):
        file = folder / "0.parquet"
        table = pyarrow.parquet.read_table(file)
        pyarrow.parquet.write_table(table.slice(1), file)
        with pytest.raises(ValueError, match=rf"part=1: expected {table.num_rows} rows, found {table.num_rows - 1}"):
            tables.write_parts(by_part, tmp_path / "parts", only=[1])
        pyarrow.parquet.write_table(table, file)
    for part in (-1, 2):
        with pytest.raises(IndexError, match=rf"only: expected a part in \[0, 2\), found {part}"):
            tables.write_parts(by_part, tmp_path / "parts", only=[part])
    (by_part / "nodes" / "user" / "part=1" / "0.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=rf"^{by_part}/nodes/user/part=1: expected parquet files, found none$"):
        tables.write_parts(by_part, tmp_path / "parts", only=[1])
    assert tables.write_parts(by_part, tmp_path / "parts", only=[0]) == [1]


@pytest.mark.parametrize(
    ("name", "array", "found"),
    [
        ("owner_0", None, "no entry 'owner_0'"),
        ("seeds_2", None, "no entry 'seeds_2'"),
        ("owner_0", torch.zeros(5, dtype=torch.int32), r"owners of user: torch.int32 of shape \(5,\)"),
        ("owner_0", torch.full((6,), 2, dtype=torch.int32), "owners of user that are no parts"),
        ("owner_0", torch.full((6,), -1, dtype=torch.int32), "owners of user that are no parts"),
        ("colptr_1", torch.zeros(6, dtype=torch.int64), r"pointers of .*: torch.int64 of shape \(6,\)"),
        ("owner_0", torch.zeros(6, dtype=torch.int64), r"owners of user: torch.int64 of shape \(6,\)"),
        ("degree_0", torch.zeros(6), r"degrees of user: torch.float32 of shape \(6,\)"),
        ("degree_0", torch.zeros(7, dtype=torch.int64), r"degrees of user: torch.int64 of shape \(7,\)"),
        ("seeds_0", torch.tensor([0, 6]), "seeds of user that are no nodes"),
        ("seeds_0", torch.tensor([-1]), "seeds of user that are no nodes"),
        ("seeds_0", torch.tensor([0.0]), "seeds of user that are no nodes"),
    ],
)
def test_counts_that_lack_an_array(tmp_path, written, name, array, found):
    shutil.copytree(written, tmp_path / "by_part")
    crafted.put(tmp_path / "by_part" / "counts", name, array)
    with pytest.raises(ValueError, match=rf"counts/{files.MANIFEST}: expected tables by part, found {found}$"):
        tables.write_parts(tmp_path / "by_part", tmp_path / "parts")


def test_columns_are_named_in_the_order_of_the_first_file(tmp_path):
    put(tmp_path / "users-0.parquet", pa.table({"id": ["x"], "age": [1]}))
    put(tmp_path / "users-1.parquet", pa.table({"more": [2], "age": [3], "id": ["y"]}))
    (group,) = source("nodes.user", tmp_path, ["users*"], None, ["id"]).groups
    assert group.columns == ("id", "age")
