"""What engines of several processes share writes the bytes that DuckDB writes: rows are in lists, of this process."""

import copy

import pyarrow as pa
import pytest
from helpers.lists import Lists
from helpers.on_engine import said
from helpers.tables import SHOP, put, shop, write

from torch_gnnscale import tables
from torch_gnnscale.tables import Schema

OWNERS = {"hash": {}, "column": {"owner": "country"}, "files": {"owner": {"files": "o.csv", "key": "k", "part": "p"}}}


class Repeated(Lists):
    """What is called is called again, as Spark does where a task's machine fails at its end."""

    def _map(self, rows, function, schema):
        super()._map(rows, function, schema)
        return super()._map(rows, function, schema)


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("owners", OWNERS)
def test_frames_write_the_same_bytes(tmp_path, owners):
    """Of types with and without columns and rows, relations both ways and without edges."""
    found = shop()
    write(tmp_path, found, 3)
    names = found["users"]["user_id"].to_pylist()
    put(tmp_path / "o.csv", pa.table({"k": names[::-1], "p": [at % 3 for at in range(len(names))]}))
    put(tmp_path / "none.csv", pa.table({"k": pa.array([], pa.string()), "i": pa.array([], pa.string())}))
    schema = copy.deepcopy(SHOP)
    schema["nodes"]["user"] |= OWNERS[owners]
    schema["nodes"]["none"] = {"files": "none.csv", "key": {"column": "k", "type": "string"}}
    schema["edges"]["user.has.none"] = {"files": "none.csv", "source": "i", "destination": "k"}
    schema["edges"]["user.lacks.none"] = {
        "files": "orders*",
        "source": "user",
        "destination": "item",
        "dangling": "drop",
    }
    schema["nodes"]["none"]["key"]["type"] = "integer" if owners == "hash" else "string"
    if owners != "hash":  # items are integers
        del schema["edges"]["user.lacks.none"]
    parsed = Schema.parse(schema, tmp_path)
    reports = [
        tables.build(parsed, tmp_path / name, parts=4, engine=engine)
        for name, engine in (("duckdb", "duckdb"), ("lists", Lists()))
    ]
    assert reports[0] == reports[1]
    ours, theirs = files_of(tmp_path / "lists"), files_of(tmp_path / "duckdb")
    assert [name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("edges.user.buys.item", {"dangling": "error"}),
        ("nodes.item", {"files": "broken.csv"}),
        ("nodes.item", {"columns": {"maker": "number"}}),
        ("nodes.item", {"columns": {"maker": {"kind": "time"}}}),
        ("nodes.item", {"files": ["items*", "items-0*", "again.parquet"]}),
    ],
)
def test_errors_are_those_of_duckdb(tmp_path, path, changes):
    write(tmp_path, shop(), 3)
    put(tmp_path / "again.parquet", shop()["items"].slice(3, 2))
    (tmp_path / "broken.csv").write_text("item_id,price,maker\n-20,1.5,x\n1,2,3,4\n")
    schema = copy.deepcopy(SHOP)
    kind, _, name = path.partition(".")
    schema[kind][name] |= changes
    expected = said(schema, tmp_path)
    assert expected.startswith(path)
    assert said(schema, tmp_path, Lists()) == expected


LINKS = {
    "nodes": {"user": {"files": "users.csv", "key": "k", "columns": {"v": "number"}}},
    "edges": {"user.knows.user": {"files": "links.csv", "source": "a", "destination": "b"}},
}


def put_links(folder):
    put(folder / "users.csv", pa.table({"k": ["c", "a", "b", "d"], "v": [1.0, 2.0, 3.0, 4.0]}))
    put(folder / "links.csv", pa.table({"a": ["a", "b", "c", "a"], "b": ["b", "c", "a", "d"]}))


@pytest.mark.parametrize(("file", "path"), [("users", "nodes.user: "), ("links", "edges.user.knows.user: ")])
def test_rows_that_cannot_be_read_are_named_as_by_duckdb(tmp_path, file, path):
    put_links(tmp_path)
    with open(tmp_path / f"{file}.csv", "a") as text:
        text.write("b,3,4\n")
    expected = said(LINKS, tmp_path)
    assert expected.startswith(path)
    assert said(LINKS, tmp_path, Lists()) == expected


def test_what_is_called_again_writes_the_same_bytes(tmp_path):
    """In a folder whose name SQL and globs would read as their own signs."""
    (folder := tmp_path / "it's [1]").mkdir()
    put_links(folder)
    schema = Schema.parse(LINKS, folder)
    for name, engine in (("once", Lists()), ("again", Repeated()), ("duckdb", "duckdb")):
        tables.build(schema, folder / name, parts=2, engine=engine)
    assert files_of(folder / "again") == files_of(folder / "once") == files_of(folder / "duckdb")


@pytest.mark.parametrize("unknown", [False, True])
def test_what_is_kept_is_released(tmp_path, unknown):
    """Also after an error: a session outlives what is built in it."""
    kept = []

    class Kept(Lists):
        def _keep(self, rows):
            kept.append(rows)
            return super()._keep(rows)

    put_links(tmp_path)
    if unknown:
        put(tmp_path / "links.csv", pa.table({"a": ["a", "z"], "b": ["b", "c"]}))
    assert ("found 'z'" in said(LINKS, tmp_path, Kept())) == unknown
    assert len(kept) > 2
    assert [rows for rows in kept if rows] == []
