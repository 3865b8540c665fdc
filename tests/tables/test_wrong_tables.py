"""What is wrong with tables is said with table, file, row and column."""

# ruff: noqa: E501 (each case and its error on a line)

import copy
import datetime
import re

import pyarrow as pa
import pytest
from helpers.slow import quick
from helpers.tables import built, put

from torch_gnnscale import tables
from torch_gnnscale.tables import Schema

NODES = {"nodes": {"user": {"files": "users*", "key": "id"}}}
PAIR = {**NODES, "edges": {"user.knows.user": {"files": "pairs*", "source": "a", "destination": "b"}}}
USERS = {"id": ["x", "y", "z"]}


def of(columns=None, edges=None, **node):
    """A schema."""
    schema = copy.deepcopy(PAIR if edges is not None else NODES)
    schema["nodes"]["user"] |= node | ({"columns": columns} if columns else {})
    if edges is not None:
        schema["edges"]["user.knows.user"] |= edges
    return schema


def date(text):
    return datetime.datetime.fromisoformat(text)


V = pa.list_(pa.float32())
WRONG = {
    "null key": (of(), {"users-0": {"id": ["x"]}, "users-1": {"id": ["y", None]}},
                 "nodes.user: {}/users-1.parquet: row 2: column id: expected a key, found nothing"),
    "duplicate key": (of(), {"users-0": {"id": ["x", "y"]}, "users-1": {"id": ["z", "y", "y", "x"]}},
                      "nodes.user: {0}/users-1.parquet: row 2: column id: expected each key once, found 'y' as in "
                      "{0}/users-0.parquet, row 2"),
    "duplicate integer": (of(), {"users-0": {"id": [3, 2, 3]}},
                          "nodes.user: {0}/users-0.parquet: row 3: column id: expected each key once, found '3' as in "
                          "{0}/users-0.parquet, row 1"),
    "duplicate key with a quote": (of(), {"users-0": {"id": ["o'x", "o'x"]}},
                          "nodes.user: {0}/users-0.parquet: row 2: column id: expected each key once, found \"o'x\" as in "
                          "{0}/users-0.parquet, row 1"),
    "large key": (of(), {"users-0": {"id": pa.array([1, 2**63], pa.uint64())}},
                  "nodes.user: {}/users-0.parquet: row 2: column id: expected a key, an integer of 64 bits, found "
                  "'9223372036854775808'"),
    "real key": (of(), {"users-0": {"id": [1.0]}},
                 "nodes.user: {}/users-0.parquet: column id: expected keys (text, integer), found real"),
    "key of another type": (of(), {"users-0": {"id": ["x"]}, "users-1": {"id": [1]}},
                            "nodes.user: {0}/users-1.parquet: column id: expected text, as in {0}/users-0.parquet, found "
                            "integer"),
    "no column": (of({"age": "number"}), {"users-0": {"id": ["x"], "age": [1]}, "users-1": {"id": ["y"], "old": [1]}},
                  "nodes.user: {}/users-1.parquet: column age: expected it, found only id, old"),
    "case of names": (of(), {"users-0": {"ID": ["x"], "id": ["y"]}},
                      "nodes.user: {}/users-0.parquet: column id: expected names that differ in more than case, found "
                      "ID, too"),
    "text as number": (of({"age": "number"}), {"users-0": {"id": ["x", "y"], "age": ["1", "abc"]}},
                       "nodes.user: {}/users-0.parquet: row 2: column age: expected a finite number, found 'abc'"),
    "no number": (of({"age": "number"}), {"users-0": {"id": ["x", "y"], "age": [1.0, None]}},
                  "nodes.user: {}/users-0.parquet: row 2: column age: expected a finite number, found nothing"),
    "NaN": (of({"age": "number"}), {"users-0": {"id": ["x", "y"], "age": [1.0, float("nan")]}},
            "nodes.user: {}/users-0.parquet: row 2: column age: expected a finite number, found 'nan'"),
    "NaN among others": (of({"age": "number"}), {"users-0": {"id": ["x", "y", "z"], "age": [1.5, 0.0, float("nan")]}},
            "nodes.user: {}/users-0.parquet: row 3: column age: expected a finite number, found 'nan'"),
    "infinite": (of({"age": {"kind": "number", "missing": "mean"}}), {"users-0": {"id": ["x"], "age": [float("inf")]}},
                 "nodes.user: {}/users-0.parquet: row 1: column age: expected a finite number, found 'inf'"),
    "dates as numbers": (of({"age": "number"}), {"users-0": {"id": ["x"], "age": [date("2024-01-01")]}},
                         "nodes.user: {}/users-0.parquet: column age: expected numbers (integer, real, text), found "
                         "timestamp"),
    "boolean": (of({"vip": "boolean"}), {"users-0": {"id": ["x", "y"], "vip": ["True", "maybe"]}},
                "nodes.user: {}/users-0.parquet: row 2: column vip: expected true or false, or 1 or 0, found 'maybe'"),
    "vector": (of({"v": {"kind": "vector", "size": 2}}), {"users-0": {"id": ["x", "y"], "v": pa.array([[1, 2], [1]], V)}},
               "nodes.user: {}/users-0.parquet: row 2: column v: expected a list of 2 finite numbers, found '[1.0]'"),
    "vector with NaN": (of({"v": {"kind": "vector", "size": 2}}),
                        {"users-0": {"id": ["x"], "v": pa.array([[1, float("nan")]], V)}},
                        "nodes.user: {}/users-0.parquet: row 1: column v: expected a list of 2 finite numbers, found "
                        "'[1.0, nan]'"),
    "vector of no size": (of({"v": "vector"}), {"users-0": {"id": ["x"], "v": pa.array([[1]], V)}},
                          "nodes.user.columns.v.size: expected it, because the files do not say it, found nothing"),
    "NaN label": (of(label="y"), {"users-0": {"id": ["x", "y"], "y": [1.0, float("nan")]}},
                  "nodes.user: {}/users-0.parquet: row 2: column y: expected a class, or nothing, found 'nan'"),
    "half a class": (of(label="y"), {"users-0": {"id": ["x", "y", "z"], "y": [None, 2.0, 1.5]}},
                     "nodes.user: {}/users-0.parquet: row 3: column y: expected a class, or nothing, found '1.5'"),
    "split": (of(split={"column": "s"}), {"users-0": {"id": ["x", "y"], "s": ["val", "valid"]}},
              "nodes.user: {}/users-0.parquet: row 2: column s: expected train, val, test or nothing, found 'valid'"),
    "time zones of files": (of(time="t"), {"users-0": {"id": ["x"], "t": [date("2024-01-01")]},
                                           "users-1": {"id": ["y"], "t": [date("2024-01-01T00:00+00:00")]}},
                            "nodes.user: {0}/users-1.parquet: column t: expected timestamp, as in {0}/users-0.parquet, "
                            "found timestamp with time zone"),
    "time zones of rows": (of(time="t"), {"users-0.csv": {"id": ["x", "y"], "t": ["2024-01-01 10:00:00",
                                                                               "2024-01-01T10:00:00+01:00"]}},
                           "nodes.user: {}/users-0.csv: row 2: column t: expected no time zone, as other rows have, found "
                           "'2024-01-01T10:00:00+01:00'"),
    "time zones of other rows": (of(time="t"), {"users-0.csv": {"id": ["x", "y"], "t": ["2024-01-01T10:00:00Z",
                                                                                       "2024-01-01T10:00:00"]}},
                           "nodes.user: {}/users-0.csv: row 2: column t: expected a time zone, as other rows have, found "
                           "'2024-01-01T10:00:00'"),
    "no time": (of(time="t"), {"users-0.csv": {"id": ["x", "y"], "t": ["2024-01-01", "2024-13-01"]}},
                "nodes.user: {}/users-0.csv: row 2: column t: expected a time, found '2024-13-01'"),
    "time without unit": (of(time="t"), {"users-0": {"id": ["x"], "t": [5]}},
                          "nodes.user: column t: expected a unit of times that are integers, found none in the schema"),
    "time with a unit": (of(time={"column": "t", "unit": "s"}), {"users-0": {"id": ["x"], "t": [date("2024-01-01")]}},
                         "nodes.user: column t: expected no unit of times that say it, found 's' in the schema"),
    "columns of a line": (of(), {"users-0.csv": b"id,b\nx,1\ny,2,3\n"}, None),
    "no UTF-8": (of(), {"users-0.csv": b"id,b\nx\xff,1\n"}, None),
    "no header": (of(), {"users-0.csv": b""},
                  "nodes.user: {}/users-0.csv: expected a first line with the names of columns, each once, found ''"),
    "no parquet": (of(), {"users-0.parquet": b"no"}, None),
    "formats": (of(), {"users-0.csv": b"id\nx\n", "users-1": {"id": ["y"]}},
                "nodes.user: expected files of one format, found .csv ({0}/users-0.csv) and parquet ({0}/users-1.parquet)"),
    "no source": (of(edges={}), {"users-0": USERS, "pairs-0": {"a": ["x", None], "b": ["q", "y"]}},
                  "edges.user.knows.user: {}/pairs-0.parquet: row 2: column a: expected a key of nodes.user, found nothing "
                  "(dangling: drop leaves such rows out)"),
    "unknown": (of(edges={}), {"users-0": USERS, "pairs-0": {"a": ["x"], "b": ["y"]}, "pairs-1": {"a": ["z"], "b": ["q"]}},
                "edges.user.knows.user: {}/pairs-1.parquet: row 1: column b: expected a key of nodes.user, found 'q' "
                "(dangling: drop leaves such rows out)"),
    "ends of another type": (of(edges={}), {"users-0": USERS, "pairs-0": {"a": [1], "b": [2]}},
                             "edges.user.knows.user: {}/pairs-0.parquet: column a: expected text, as the keys of the nodes "
                             "are, found integer"),
    "007": (of(edges={}), {"users-0.csv": b"id\n7\n8\n", "pairs-0.csv": b"a,b\n7,8\n007,8\n"},
            "edges.user.knows.user: {}/pairs-0.csv: row 2: column a: expected a key of nodes.user, found '007' (dangling: "
            "drop leaves such rows out)"),
    "weight": (of(edges={"weight": "w"}), {"users-0": USERS, "pairs-0": {"a": ["x", "x"], "b": ["y", "z"], "w": [0, -1]}},
               "edges.user.knows.user: {}/pairs-0.parquet: row 2: column w: expected a finite number of at least 0, found "
               "'-1'"),
    "value of a row that is kept": (of(edges={"weight": "w", "dangling": "drop"}),
                                    {"users-0": USERS, "pairs-0": {"a": ["q", "x"], "b": ["y", "z"], "w": [None, None]}},
                                    "edges.user.knows.user: {}/pairs-0.parquet: row 2: column w: expected a finite number "
                                    "of at least 0, found nothing"),
}  # fmt: skip


@pytest.mark.parametrize("case", quick(list(WRONG), "half a class", "weight"))
def test_says_where(tmp_path, case):
    schema, files, expected = WRONG[case]
    for name, content in files.items():
        file = tmp_path / (name if "." in name else f"{name}.parquet")
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            put(file, pa.table(content))
    with pytest.raises(ValueError, match=r"^nodes\.user|^edges\.user") as raised:
        built(tmp_path, schema)
    if expected is None:
        assert re.search(r"users-0\.(csv|parquet)", str(raised.value))
    else:
        assert str(raised.value) == expected.format(tmp_path)
    assert not (tmp_path / "graph").exists()
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".partial")]


def test_ends_that_are_missing_and_unknown_are_counted_apart(tmp_path):
    """NaN in a column of integers is a missing one, as which pandas writes it."""
    put(tmp_path / "users.parquet", pa.table({"id": [1, 2]}))
    put(tmp_path / "pairs.parquet", pa.table({"a": [2.0, float("nan"), 9.0, 1.5, None], "b": [1, 1, 2, 2, 1]}))
    report = tables.build(Schema.parse(of(edges={"dangling": "drop"}), tmp_path), tmp_path / "graph")
    assert report["edges"]["user.knows.user"]["dropped"] == {"no source": 2, "unknown source": 2}


def test_no_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nodes.user: expected files .*users\*, found none"):
        built(tmp_path, of())


def test_too_little_memory(tmp_path):
    with pytest.raises(ValueError, match="memory: expected at least 64MiB, found 1000"):
        built(tmp_path, of(), memory=1000)


@pytest.mark.slow
def test_odd_names(tmp_path):
    folder = tmp_path / "it's [new]*"
    folder.mkdir()
    put(folder / "users'[1].parquet", pa.table({'a "b" c': ["x"], "n'": [1.5]}))
    schema = {"nodes": {"user": {"files": "users'[[]1].parquet", "key": 'a "b" c', "columns": {"n'": "number"}}}}
    with pytest.raises(FileNotFoundError):  # a glob below a folder whose name is no pattern
        built(folder, schema)
    schema["nodes"]["user"]["files"] = "users'[1].parquet"
    built(folder, schema)
