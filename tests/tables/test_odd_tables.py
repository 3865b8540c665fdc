"""What others would read in silence as something else: torn files, names of time zones, rounded ids, labels that are
features."""

import gzip
import os
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers.lists import Lists
from helpers.slow import SLOW
from helpers.tables import arrays, put

from torch_gnnscale import tables
from torch_gnnscale.tables import Schema
from torch_gnnscale.tables.guess import guess

LINES = b"id,c\n" + b"".join(b"%d,x%d\n" % (i, i * 7919 % 1000) for i in range(20_000))


TORN = "(a whole file|a line with the names of columns), found Truncated compressed stream"


def built(folder, edge=None, options=None, **node):
    """The graph of ``users*`` and ``pairs*``."""
    schema = {"nodes": {"user": {"files": "users*", "key": "id", **node}}}
    if edge is not None:
        schema["edges"] = {"user.knows.user": {"files": "pairs*", "source": "a", "destination": "b", **edge}}
    tables.build(Schema.parse(schema, folder), folder / "graph", **(options or {}))
    return folder / "graph"


def packed(content, ending):
    if ending == "gz":
        return gzip.compress(content, 1)
    with pa.BufferOutputStream() as out:
        with pa.CompressedOutputStream(out, "zstd") as stream:
            stream.write(content)
        return out.getvalue().to_pybytes()


@pytest.mark.parametrize("engine", [None, SLOW("lists")])
@pytest.mark.parametrize("ending", ["zst", "gz"])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.9999])
def test_packed_text_that_ends_too_early(tmp_path, ending, share, engine):
    """Of zstd, DuckDB takes the rows that are there."""
    whole, options = packed(LINES, ending), {"parts": 2, "engine": Lists()} if engine else {}
    (tmp_path / f"users-0.csv.{ending}").write_bytes(packed(b"id,c\na,b\n", ending))
    (torn := tmp_path / f"users-1.csv.{ending}").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=rf"^nodes.user: {torn}: expected {TORN}"):
        built(tmp_path, options=options)
    assert not (tmp_path / "graph").exists()


def test_packed_text_with_another_checksum(tmp_path):
    whole = bytearray(packed(LINES, "gz"))
    whole[-5] ^= 1
    (tmp_path / "users.csv.gz").write_bytes(whole)
    with pytest.raises(
        ValueError, match=r"users.csv.gz: expected a whole file, found zlib inflate failed: incorrect data"
    ):
        built(tmp_path)


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_packed_text_of_several_pieces(tmp_path, ending):
    (tmp_path / f"users.csv.{ending}").write_bytes(packed(b"id,c\na,x\n", ending) + packed(b"b,y\n", ending))
    assert len(tables.ids(built(tmp_path), "user")) == 2


@pytest.mark.parametrize("share", [0.5, 0.9, 0.9999])
def test_packed_edges_and_owners_that_end_too_early(tmp_path, share):
    put(tmp_path / "users.csv", pa.table({"id": ["a"]}))
    whole = packed(b"a,b,p\n" + b"".join(b"a,a,%d\n" % (i * 7919 % 1000) for i in range(20_000)), "zst")
    (tmp_path / "pairs.csv.zst").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=rf"^edges.user.knows.user: .*pairs.csv.zst: expected {TORN}"):
        built(tmp_path, {})
    owner = {"files": "pairs.csv.zst", "key": "a", "part": "p"}
    with pytest.raises(ValueError, match=rf"^nodes.user.owner: .*pairs.csv.zst: expected {TORN}"):
        built(tmp_path, owner=owner, options={"parts": 1})


ZONES = [
    "2024-01-05 10:00:00 PST", "2024-01-05 10:00:00 Europe/Berlin", "2024-01-05 10:00 PM", "2024-01-05 10:00:00+25:00",
    "2024-01-05 10:00:00+01:00:30", "2024-01-05 (BC)", "epoch", "infinity", "2024-01-05 10:00:00 +1",
]  # fmt: skip


@pytest.mark.parametrize("text", ZONES)
def test_times_of_which_duckdb_reads_a_part(tmp_path, text):
    put(tmp_path / "users.csv", pa.table({"id": ["a", "b"], "t": ["2024-01-01", text]}))
    with pytest.raises(ValueError, match=r"row 2: column t: expected a time, found ") as raised:
        built(tmp_path, time="t")
    assert str(raised.value).endswith(repr(text))
    found, _ = guess([str(tmp_path / "users.csv")], tmp_path)
    assert "t" not in found["nodes"]["users"].get("columns", {})


def test_times_with_zones(tmp_path):
    texts = [
        "2024-01-01 10:00:00+02", "2024-01-01 10:00:00+0200", "2024-01-01T10:00:00+02:00", "2024-01-01 10:00:00 +0200",
        "2024-01-01T08:00:00.75Z", "2024-01-01T08:00Z", "2024-01-01 08:00:00 UTC", "2024/1/1 8:00Z",
        "2024-01-01 04:30:00 -03:30", "2024-01-01T22:00:00+14:00",
    ]  # fmt: skip
    put(tmp_path / "users.csv", pa.table({"id": [f"{i}x" for i in range(len(texts))], "t": texts}))
    found = arrays(built(tmp_path, time="t"))[0]
    assert found["user", "time"].tolist() == [1_704_096_000] * len(texts)


BIG = 2**53


@pytest.mark.parametrize("dangling", ["error", "drop"])
@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([1.0, float(BIG)]), f"{BIG}.0"),
        (pa.array(np.array([1, 2**24 + 1], np.float32)), f"{2**24}.0"),
        (pa.array([1.0, -float(BIG)]), f"-{BIG}.0"),
    ],
)
def test_ids_that_floating_point_numbers_round(tmp_path, column, found, dangling):
    """Of two ids one would be read for both."""
    put(tmp_path / "users.parquet", pa.table({"id": [1, 2**24, 2**24 + 1, BIG, BIG + 1, -BIG, -BIG - 1]}))
    put(tmp_path / "pairs.parquet", pa.table({"a": [1, 1], "b": column}))
    with pytest.raises(
        ValueError, match=r"row 2: column b: expected an integer that a column of floating-point"
    ) as raised:
        built(tmp_path, {"dangling": dangling})
    assert str(raised.value).endswith(f"found '{found}'")


def test_a_column_that_is_rounded_because_another_file_has_missing_values(tmp_path):
    """The type that the files have together rounds the integers of the first."""
    put(tmp_path / "users.parquet", pa.table({"id": [1, BIG, BIG + 1]}))
    put(tmp_path / "pairs-0.parquet", pa.table({"a": [1, BIG + 1], "b": [1, 1]}))
    put(tmp_path / "pairs-1.parquet", pa.table({"a": [1.0, None], "b": [1, 1]}))
    with pytest.raises(
        ValueError, match=rf"pairs-0.parquet: row 2: column a: expected an integer .*, found '{BIG + 1}'$"
    ):
        built(tmp_path, {"dangling": "drop"})
    put(tmp_path / "pairs-0.parquet", pa.table({"a": [1, BIG - 1], "b": [1, 1]}))
    put(tmp_path / "users.parquet", pa.table({"id": [1, BIG - 1]}))
    assert arrays(built(tmp_path, {"dangling": "drop"}))[1]["user", "knows", "user"][1].tolist() == [0, 0, 1]


def test_a_missing_id_changes_no_split_of_others(tmp_path):
    """Though the column becomes one of floating-point numbers, as which 7 is 7.0."""
    ends, split = {"a": list(range(100)), "b": [0] * 100}, {"val": 0.3, "test": 0.3}
    put(tmp_path / "users.parquet", pa.table({"id": list(range(100))}))
    put(tmp_path / "pairs-0.parquet", pa.table(ends))
    edge = {"split": split, "dangling": "drop"}
    found = arrays(built(tmp_path, edge))[0]
    put(tmp_path / "pairs-1.parquet", pa.table({"a": pa.array([None], pa.float64()), "b": [1]}))
    shutil.rmtree(tmp_path / "graph")
    again = arrays(built(tmp_path, edge))[0]
    for name, mask in found.items():
        assert torch.equal(mask, again[name]), name


def test_classes_that_floating_point_numbers_round(tmp_path):
    put(tmp_path / "users.parquet", pa.table({"id": [1, 2], "y": [float(BIG - 1), float(BIG)]}))
    with pytest.raises(ValueError, match=rf"row 2: column y: expected a class, or nothing, found '{BIG}.0'"):
        built(tmp_path, label="y")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_nan_as_text_is_no_class(tmp_path, ending):
    put(tmp_path / f"users.{ending}", pa.table({"id": [1, 2], "y": ["1", "NaN"]}))
    with pytest.raises(ValueError, match=r"row 2: column y: expected a class, or nothing, found 'NaN'"):
        built(tmp_path, label="y")


def test_a_label_is_no_feature():
    schema = {"files": "u", "key": "id", "label": "y", "columns": {"n": "number", "y": "category"}}
    with pytest.raises(ValueError, match=r"^nodes.user.columns.y: expected no column that is the label, found it$"):
        Schema.parse({"nodes": {"user": schema}})


@pytest.mark.parametrize("delimiter", ['"', "\n", "\r"])
def test_delimiters_that_are_none(delimiter):
    with pytest.raises(ValueError, match=r"^nodes.user.delimiter: expected one character, no quotation mark, found"):
        Schema.parse({"nodes": {"user": {"files": "u.csv", "key": "id", "delimiter": delimiter}}})


def test_a_column_that_is_there_twice(tmp_path):
    pa.parquet.write_table(
        pa.Table.from_arrays([pa.array(["a"]), pa.array([1]), pa.array([2])], names=["id", "n", "n"]),
        tmp_path / "users.parquet",
    )
    with pytest.raises(ValueError, match=r"users.parquet: column n: expected it once, found it 2 times"):
        built(tmp_path, columns={"n": "number"})
    built(tmp_path)


def test_a_file_that_several_names_mean_counts_once(tmp_path):
    put(tmp_path / "users.csv", pa.table({"id": ["a"]}))
    (tmp_path / "more").mkdir()
    put(tmp_path / "more" / "pairs.csv", pa.table({"a": ["a"], "b": ["a"]}))
    os.symlink(tmp_path / "more" / "pairs.csv", tmp_path / "pairs.csv")
    graph = built(tmp_path, {"files": ["pairs*", "more", "more/../more/*.csv"]})
    assert torch.equal(arrays(graph)[1]["user", "knows", "user"][0], torch.tensor([0, 1]))


def test_folders_in_place_of_files(tmp_path):
    (tmp_path / "users" / "c=DE" / "c=FR").mkdir(parents=True)
    put(tmp_path / "users" / "c=DE" / "c=FR" / "0.csv", pa.table({"id": ["a"]}))
    with pytest.raises(
        FileNotFoundError, match=rf"users\*, found none but folders, whose files are {tmp_path}/users\*/"
    ):
        built(tmp_path)
    with pytest.raises(ValueError, match=r"0.csv: column c: expected one folder that names it, found DE and FR"):
        built(tmp_path, files="users*/**", columns={"c": "category"})
    built(tmp_path, files="users*/**")


def test_numbers_that_no_vector_holds(tmp_path):
    lists = pa.array([[1.0, 2.0], [1e39, 1.0]], pa.list_(pa.float64()))
    put(tmp_path / "users.parquet", pa.table({"id": ["a", "b"], "v": lists}))
    with pytest.raises(
        ValueError, match=r"row 2: column v: expected a list of 2 finite numbers, found '\[1e\+39, 1.0\]'"
    ):
        built(tmp_path, columns={"v": {"kind": "vector", "size": 2}})


def test_long_values_are_shortened(tmp_path):
    put(tmp_path / "users.parquet", pa.table({"id": ["a"], "n": ["x" * 5000]}))
    (tmp_path / "pairs.csv").write_text(f"a,b\n{'y' * 2_100_000},a\n")
    for columns, edge in (({"n": "number"}, None), ({}, {})):
        with pytest.raises(ValueError, match=r"x \.\.\. x|y \.\.\. ") as raised:
            built(tmp_path, edge, columns=columns)
        assert len(str(raised.value)) < 1000


def test_types_with_slashes_stay_in_the_directory(tmp_path):
    put(tmp_path / "users.csv", pa.table({"id": ["a", "b"], "n": [1, 2]}))
    of = {"files": "users.csv", "key": "id", "columns": {"n": "number"}}
    names = [str(tmp_path / "elsewhere"), "a/b", "a%2Fb"]
    schema = {"nodes": dict.fromkeys(names, of)}
    tables.build(Schema.parse(schema, tmp_path), tmp_path / "by_part", parts=1)
    assert not (tmp_path / "elsewhere").exists()
    assert len(list((tmp_path / "by_part").glob("nodes/*/part=0/0.parquet"))) == 3
    assert tables.write_parts(tmp_path / "by_part", tmp_path / "parts") == []
