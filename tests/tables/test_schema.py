"""Schemas: what they say, and which entry is wrong."""

# ruff: noqa: E501 (each case and its error on a line)

import copy

import pytest
from helpers.tables import SHOP

from torch_gnnscale.tables import Schema

SMALL = {
    "nodes": {"user": {"files": "u.csv", "key": "id"}, "item": {"files": ["i.csv"], "key": "id"}},
    "edges": {"user.buys.item": {"files": "o.csv", "source": "u", "destination": "i"}},
}


def changed(path, value):
    """SMALL with an entry changed; None: removed."""
    schema = copy.deepcopy(SMALL)
    *folders, last = path
    entry = schema
    for name in folders:
        entry = entry.setdefault(name, {})
    if value is None:
        del entry[last]
    else:
        entry[last] = value
    return schema


USER, BUYS = ("nodes", "user"), ("edges", "user.buys.item")
WRONG = [
    (("nodes",), None, "nodes: expected it, found nothing"),
    (("nodes",), {}, "nodes: expected at least one table, found none"),
    (("nodes",), [], r"nodes: expected names with values, found \[\]"),
    (("node",), {}, "node: expected one of edges, nodes, time_unit, found another entry"),
    (("time_unit",), "ns", "time_unit: expected one of s, ms, us, found 'ns'"),
    ((*USER, "key"), None, "nodes.user.key: expected it, found nothing"),
    ((*USER, "key"), 5, r"nodes.user.key: expected a string, found 5 \(write it in quotes\)"),
    ((*USER, "key"), {"column": "id", "type": "int"}, "nodes.user.key.type: expected one of string, integer, found 'int'"),
    ((*USER, "files"), [], "nodes.user.files: expected at least one file, found none"),
    ((*USER, "file"), "u.csv", "nodes.user.file: expected one of .*, found another entry"),
    ((*USER, "delimiter"), ";;", "nodes.user.delimiter: expected one character, no quotation mark, found ';;'"),
    (("nodes", "a.b"), SMALL["nodes"]["user"], r"nodes.a.b: expected a name without '.' and '__', .*found 'a.b'"),
    (("nodes", "training"), SMALL["nodes"]["user"], "nodes.training: expected a name .*, other than 'training'"),
    ((*USER, "columns", "age"), "float", "nodes.user.columns.age.kind: expected one of number, .*, found 'float'"),
    ((*USER, "columns", "age"), {"kind": "number", "unit": "s"}, "nodes.user.columns.age.unit: expected one of kind, missing"),
    ((*USER, "columns", "age"), {"kind": "number", "missing": 0}, "age.missing: expected one of error, mean, found 0"),
    ((*USER, "columns", "v"), {"kind": "vector", "size": 0}, "v.size: expected a whole number of at least 1, found 0"),
    ((*USER, "columns", True), "number", r"nodes.user.columns: a name: expected a string, found True \(write it in quotes\)"),
    ((*USER, "split"), {"val": 0.5, "test": 0.5}, r"nodes.user.split: expected val \+ test below 1, found 1"),
    ((*USER, "split"), {"val": 2}, "nodes.user.split.val: expected a share from 0 to below 1, found 2"),
    ((*USER, "split"), {"test": 1}, "nodes.user.split.test: expected a share from 0 to below 1, found 1"),
    ((*USER, "split"), {"val": -0.1}, "nodes.user.split.val: expected a share from 0 to below 1, found -0.1"),
    ((*USER, "split"), {"by": "time"}, "nodes.user.split.by: expected time only beside an entry nodes.user.time, found none"),
    ((*USER, "split"), {"column": "s", "val": 0.1}, "nodes.user.split.val: expected one of column, found another entry"),
    (("edges", "user.item"), SMALL["edges"]["user.buys.item"], "expected a name of the form SOURCE.RELATION.DESTINATION"),
    (("edges", "user.a.shop"), SMALL["edges"]["user.buys.item"], "expected types of nodes among user, item, found 'shop'"),
    ((*BUYS, "source"), None, "edges.user.buys.item.source: expected it, found nothing"),
    ((*BUYS, "files"), None, "expected files, or table with the name of a node table, found neither"),
    ((*BUYS, "table"), "user", "expected files, or table with the name of a node table, found both"),
    ((*BUYS, "undirected"), True, "edges.user.buys.item.undirected: expected one of reverse, found True"),
    ((*BUYS, "dangling"), "keep", "edges.user.buys.item.dangling: expected one of error, drop, found 'keep'"),
    (BUYS, {"table": "item", "destination": "i"}, "edges.user.buys.item.table: expected 'user', whose keys .* found 'item'"),
    (BUYS, {"table": "user", "source": "u", "destination": "i"}, "source: expected none beside table, whose key it is"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "expected"), WRONG, ids=[".".join(map(str, path)) for path, _, _ in WRONG])
def test_the_entry_is_named(path, value, expected):
    with pytest.raises(ValueError, match=expected):
        Schema.parse(changed(path, value))


def test_two_relations_of_one_name():
    schema = changed((*BUYS, "undirected"), "reverse")
    schema["edges"]["item.rev_buys.user"] = {"files": "r.csv", "source": "i", "destination": "u"}
    with pytest.raises(ValueError, match=r"undirected: expected no relation item.rev_buys.user beside it, found one"):
        Schema.parse(schema)


def test_what_a_schema_says(tmp_path):
    schema = Schema.parse(SHOP, tmp_path)
    user, buys = schema.nodes["user"], schema.edges["user", "buys", "item"]
    assert [column.kind for column in user.columns] == ["number", "boolean", "category", "time"]
    assert (user.split.val, user.split.seed, buys.split.by) == (0.2, 3, "time")
    assert schema.edges["item", "made_by", "user"].source == "item_id"
    assert buys.reverse
    assert schema.folder == tmp_path


def test_yaml(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("nodes:\n  user: {files: u.csv, key: id}\n")
    assert Schema.read(file).folder == tmp_path
    for text, expected in (
        ("nodes:\n  user: {files: u.csv, key: id, key: no}\n", r"s.yaml: expected YAML, found 'key' twice in .*line 2"),
        ("nodes:\n  ? [user]\n  : {files: u.csv}\n", r"s.yaml: expected YAML, found \['user'\] as a name in .*line 2"),
        ("nodes: [", "s.yaml: expected YAML, found"), ("", "s.yaml: schema: expected names with values, found None"),
        ("nodes:\n  user: {files: u.csv}\n", "s.yaml: nodes.user.key: expected it"),
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ValueError, match=expected):
            Schema.read(file)
    file.write_bytes("nodes: {ü: {files: u.csv, key: id}}".encode("latin-1"))
    with pytest.raises(ValueError, match=r"s.yaml: 'utf-8' codec can't decode byte 0xfc in position 8"):
        Schema.read(file)
