"""Of every dirty table, either the twin's arrays are built or an error names the place that the twin names."""

import math
import os
import shutil

import pyarrow as pa
import pytest
from helpers.tables import arrays, put, same
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import tables as reference

from torch_gnnscale import tables
from torch_gnnscale.tables import Schema

KEYS = {"text": ["a", "b", "B", "é", "", "a ", "o'x", "10", "9"], "integer": [0, 1, -5, 2**62, 10, 9]}
NUMBERS = ["1", "2.5", "-3e2", "abc", "", " 7 ", "nan", "inf", "1_0", "0", "-0", None]
MISSING = st.sampled_from(["error", "mean"])
BY_TIME = {"by": "time", "val": 0.2, "test": 0.2}

FUZZ = int(os.environ.get("GNNSCALE_FUZZ", "0")) // 10
"""How many tables ``make fuzz`` tries."""


def rarely(draw, value, others):
    """``value`` mostly, else one of the others."""
    return draw(st.sampled_from(others)) if draw(st.integers(0, 11)) == 0 else value


@st.composite
def shops(draw):
    """(schema, {path: tables of files})."""
    kind = draw(st.sampled_from([*KEYS]))
    nodes = draw(st.permutations(KEYS[kind]).map(lambda keys: keys[: draw(st.integers(0, len(keys)))]))
    nodes = [rarely(draw, key, [None, *KEYS[kind]]) for key in nodes]
    count, edges = len(nodes), draw(st.integers(0, 8))
    ends = st.sampled_from(KEYS[kind] if not nodes else [*(key for key in nodes if key is not None), KEYS[kind][0]])

    def many(values, size, wrong=(None,)):
        return [rarely(draw, draw(values), wrong) for _ in range(size)]

    arrow = pa.string() if kind == "text" else pa.int64()
    users = {
        "id": pa.array(nodes, arrow),
        "n": pa.array(many(st.sampled_from(["1", "2.5", "0"]), count, NUMBERS), pa.string()),
        "f": pa.array(many(st.sampled_from([1.5, -0.0, 1e38]), count, [1e39, math.nan, math.inf, None]), pa.float64()),
        "c": pa.array(many(st.sampled_from(["x", "é", ""]), count), pa.string()),
        "y": pa.array(many(st.sampled_from([0.0, 3.0]), count, [None, None, math.nan, 1.5]), pa.float64()),
        "t": pa.array(many(st.integers(-(10**9), 10**9), count), pa.int64()),
        "v": pa.array(many(st.lists(st.integers(-2, 2), min_size=2, max_size=2), count, [None, [1], [1, None]]),
                      pa.list_(pa.float32())),
    }  # fmt: skip
    pairs = {
        "a": pa.array(many(ends, edges, [None, KEYS[kind][-1]]), arrow),
        "b": pa.array(many(ends, edges, [None, KEYS[kind][-1]]), arrow),
        "w": pa.array(many(st.sampled_from([0.0, 0.5]), edges, [-1.0, None]), pa.float64()),
        "t": pa.array(many(st.integers(0, 3), edges), pa.int64()),
        "c": pa.array(many(st.sampled_from([True, False]), edges), pa.bool_()),
        "s": pa.array(many(st.sampled_from(["train", "val", "test"]), edges, [None, None, "no"]), pa.string()),
    }  # fmt: skip
    times = {"column": "t", "unit": draw(st.sampled_from(["s", "ms", "us", "ns"]))}
    node_table = {
        "files": "users*", "key": {"column": "id", "type": "string" if kind == "text" else "integer"},
        "columns": {
            "n": {"kind": "number", "missing": draw(MISSING)},
            "f": {"kind": "number", "missing": draw(MISSING), "scale": draw(st.sampled_from(["standard", "none"]))},
            "c": "category", "v": {"kind": "vector", "size": 2},
        },
        "label": "y", "time": times,
        "split": draw(st.sampled_from([{"val": 0.3, "test": 0.3, "seed": 1}, {"by": "time", "val": 0.4, "test": 0.4}])),
    }  # fmt: skip
    edge_table = {
        "files": "pairs*", "source": "a", "destination": "b", "weight": "w", "time": {"column": "t", "unit": "s"},
        "columns": {"c": "category"}, "undirected": "reverse", "dangling": draw(st.sampled_from(["error", "drop"])),
        "split": draw(st.sampled_from([{"column": "s"}, {"val": 0.3, "test": 0.3}, BY_TIME])),
    }  # fmt: skip
    schema = {
        "nodes": {"user": node_table}, "edges": {"user.knows.user": edge_table},
        "time_unit": draw(st.sampled_from(["s", "ms", "us"])),
    }  # fmt: skip
    found = {}
    for path, columns in (("nodes.user", users), ("edges.user.knows.user", pairs)):
        table = pa.table(columns)
        at = draw(st.integers(0, table.num_rows))
        found[path] = [table.slice(0, at), table.slice(at)]
    return schema, found


def check(folder, schema, found):
    for path, name in (("nodes.user", "users"), ("edges.user.knows.user", "pairs")):
        for at, table in enumerate(found[path]):
            put(folder / f"{name}-{at}.parquet", table)
    parsed = Schema.parse(schema, folder)
    try:
        expected = reference.build(parsed, found)
    except reference.Wrong as wrong:
        path, file, row, column = wrong.args
        name = "users" if path == "nodes.user" else "pairs"
        with pytest.raises(ValueError, match="expected") as raised:
            tables.build(parsed, folder / "graph")
        assert str(raised.value).startswith(f"{path}: {folder / name}-{file}.parquet: row {row}: column {column}: ")
        return False
    tables.build(parsed, folder / "graph")
    same(arrays(folder / "graph"), expected)
    return True


@pytest.mark.slow
@given(shops())
@settings(max_examples=FUZZ or settings.default.max_examples)
def test_dirty_tables(tmp_path_factory, given_tables):
    folder = tmp_path_factory.mktemp("dirty")
    check(folder, *given_tables)
    shutil.rmtree(folder)
