"""Columns in names of folders, text by an encoder, numbers as labels, and RelBench's manifest as a schema."""

import math
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from helpers.slow import SLOW
from helpers.tables import arrays, built, put
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import tables
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import load_types
from torch_gnnscale.tables import Schema, read_manifest
from torch_gnnscale.tables.survey import exact_sum, nearest


@given(st.lists(st.floats(-1e77, 1e77)), st.integers(0, 9))
def test_sums_are_those_of_fsum(values, cut):
    """In any order and pieces, of numbers of any size."""
    pieces = [np.array(some, dtype=np.float64) for some in (values[cut:], values[:cut])]
    count, whole = exact_sum(pieces)
    assert (count, nearest(whole)) == (len(values), math.fsum(values))
    assert whole == sum(exact_sum([piece])[1] for piece in pieces)


def lengths(texts):
    return np.array([[len(text), text.count("a")] for text in texts])


def wide(texts):
    return np.ones((len(texts), 1 + (texts != [""])))


def unbounded(texts):
    return [[math.inf if text == "bad" else 0.0] for text in texts]


USERS = {
    "files": "users", "key": "id",
    "columns": {"country": "category", "year": "number", "bio": {"kind": "text", "encoder": f"{__name__}:lengths"}},
    "label": {"column": "spent", "kind": "number"}, "split": {"val": 0.2, "test": 0.2},
}  # fmt: skip


def users_by_folders(folder, ending=".parquet"):
    """Files in folders; returns the rows as one table without folders."""
    rows = []
    for at, (country, value) in enumerate([("DE", "DE"), ("__HIVE_DEFAULT_PARTITION__", None), ("a%2Fb%20c", "a/b c")]):
        for year in (2023, 2024):
            table = pa.table({
                "id": [f"u{at}{year}{i}" for i in range(4)],
                "bio": pa.array(["a ba", None, "xyz", "ab"], pa.string()),
                "spent": pa.array([1.5, None, -2.0, 0.25]),
            })  # fmt: skip
            (there := folder / f"country={country}" / f"year={year}").mkdir(parents=True)
            put(there / f"part{ending}", table)
            more = {"country": pa.array([value] * 4, pa.string()), "year": pa.array([year] * 4)}
            rows.append(pa.table({**dict(zip(table.column_names, table.columns, strict=True)), **more}))
    return pa.concat_tables(rows)


@pytest.mark.parametrize("ending", [".parquet", SLOW(".csv")])
def test_columns_of_folders_are_those_of_files(tmp_path, ending):
    rows = users_by_folders(tmp_path / "a=b" / "folders" / "users", ending)
    put((tmp_path / "users.parquet"), rows)
    schema = {"nodes": {"user": USERS}}
    built(tmp_path / "a=b" / "folders", schema)
    itself = {"user.is.user": {"table": "user", "destination": "id"}}
    built(tmp_path, {"nodes": {"user": {**USERS, "files": "users.parquet"}}, "edges": itself})
    ours, theirs = arrays(tmp_path / "a=b" / "folders" / "graph"), arrays(tmp_path / "graph")
    assert ours[2] == theirs[2] == {"user": sorted(rows["id"].to_pylist())}
    for name, expected in theirs[0].items():
        assert torch.equal(ours[0][name].nan_to_num(), expected.nan_to_num()), name
    of = {row["id"]: row for row in rows.to_pylist()}
    named = [of[key] for key in ours[2]["user"]]
    assert ours[0]["user", "category"][:, 0].tolist() == [
        {None: 0, "DE": 1, "a/b c": 2}[row["country"]] for row in named
    ]
    assert ours[0]["user", "x"][:, 1:].tolist() == lengths([row["bio"] or "" for row in named]).tolist()
    y = ours[0]["user", "y"]
    assert y.dtype == torch.float32
    assert [None if math.isnan(value) else value for value in y.tolist()] == [row["spent"] for row in named]
    masks = sum(ours[0]["user", f"{subset}_mask"].int() for subset in ("train", "val", "test"))
    assert masks.tolist() == (~y.isnan()).int().tolist()
    with pytest.raises(
        ValueError, match=r"expected one class for each of 24 nodes, found y of shape .24,. and type fl"
    ):
        load_types(str(tmp_path / "graph"))


TIMES = [-2_000_000_001, -2_000_000_000, -1_999_999_999, -1_000_001, -1, 0, 1, 999_999_999, 1_000_000_000]


@pytest.mark.parametrize("unit", ["ms", SLOW("s"), SLOW("us")])
def test_times_are_rounded_down(tmp_path, unit):
    """Those before 1970, too."""
    put(tmp_path / "users.parquet", pa.table({"id": range(len(TIMES)), "t": TIMES}))
    user = {"files": "users.parquet", "key": "id", "time": {"column": "t", "unit": "ns"}}
    built(tmp_path, {"nodes": {"user": user}, "time_unit": unit})
    micros, per_second = [time // 1000 for time in TIMES], {"s": 1, "ms": 1000, "us": 1_000_000}
    assert arrays(tmp_path / "graph")[0]["user", "time"].tolist() == [
        time // (1_000_000 // per_second[unit]) for time in micros
    ]


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_a_column_without_values_is_zero(tmp_path, scale):
    """Its mean takes the place of what is missing; another column says so. Equal numbers have no spread to be divided
    by."""
    columns = {"none": {"kind": "number", "scale": scale, "missing": "mean"}, "one": {"kind": "number", "scale": scale}}
    put(
        tmp_path / "users.parquet",
        pa.table({"id": [1, 2], "none": pa.array([None, None], pa.float64()), "one": [5.0, 5.0]}),
    )
    built(tmp_path, {"nodes": {"user": {"files": "users.parquet", "key": "id", "columns": columns}}})
    rows = arrays(tmp_path / "graph")[0]["user", "x"]
    assert rows.tolist() == [[0.0, 1.0, 5.0 if scale == "none" else 0.0]] * 2


def test_keys_in_names_of_folders(tmp_path):
    put(tmp_path / "users.parquet", pa.table({"id": [1, 2, 30]}))
    for user in ("2", "30"):
        (there := tmp_path / "likes" / f"user={user}").mkdir(parents=True)
        put(there / "x.parquet", pa.table({"other": pa.array([1.0, None, 2.0])}))
    likes = {"files": "likes", "source": "user", "destination": "other", "dangling": "drop"}
    schema = {"nodes": {"user": {"files": "users.parquet", "key": "id"}}, "edges": {"user.likes.user": likes}}
    report = tables.build(Schema.parse(schema, tmp_path), tmp_path / "graph")
    assert report["edges"]["user.likes.user"]["dropped"] == {"no destination": 2}
    colptr, row = arrays(tmp_path / "graph")[1]["user", "likes", "user"]
    assert (colptr.tolist(), row.tolist()) == ([0, 2, 4, 4], [1, 2, 1, 2])


def refused(folder, **changes):
    schema = Schema.parse({"nodes": {"user": {**USERS, **changes}}}, folder)
    with pytest.raises(ValueError, match="expected") as raised:
        tables.build(schema, folder / "graph")
    return str(raised.value)


def test_what_is_wrong_with_them(tmp_path):
    users_by_folders(tmp_path / "users")
    files = sorted((tmp_path / "users").rglob("*.parquet"))
    at = "nodes.user.columns.bio.encoder"
    bio = {"bio": {"kind": "text", "encoder": f"{__name__}:wide"}}
    assert refused(tmp_path, columns=bio) == f"{at}: expected an array of shape [24, 1], found [24, 2]"
    bio["bio"]["encoder"] = f"{__name__}:unknown"
    assert f"{at}: expected {__name__}:unknown to be there, found module" in refused(tmp_path, columns=bio)
    bio["bio"]["encoder"] = f"{__name__}:unbounded"
    columns = {"spent": {**bio["bio"]}}
    assert "column spent: expected text (text), found real" in refused(tmp_path, columns=columns, label=None)
    label = refused(tmp_path, label={"column": "bio", "kind": "number"}, columns={})
    place = f"nodes.user: {files[0]}: row 1: column bio: expected a finite number, found 'a ba'"
    assert label == place
    missing = refused(tmp_path, columns={"month": "category"})
    assert missing == (f"nodes.user: {files[0]}: column month: expected it, found only id, bio, spent, country, year")
    pq.write_table(pq.read_table(files[0]).set_column(1, "bio", pa.array(["bad"] * 4)), files[0])
    assert refused(tmp_path, columns=bio) == f"{at}: expected finite numbers, found others for 'bad'"


def test_text_needs_an_encoder():
    for encoder, found in ({}, "nothing"), ({"encoder": "module"}, "'module'"):
        with pytest.raises(ValueError, match="expected MODULE:FUNCTION") as raised:
            Schema.parse({"nodes": {"user": {**USERS, "columns": {"bio": {"kind": "text", **encoder}}}}})
        assert str(raised.value).endswith(f"nodes.user.columns.bio.encoder: expected MODULE:FUNCTION, which makes "
                                          f"numbers of a list of strings, found {found}")  # fmt: skip


def test_a_database_of_relbench(shop, tmp_path, capsys):
    shutil.copytree(shop, tmp_path / "shop")
    manifest = tmp_path / "shop" / "manifest.yaml"
    content = yaml.safe_load(manifest.read_text())
    content["tables"]["reviews"]["pkey"] = None  # then rows have their numbers
    manifest.write_text(yaml.safe_dump(content))
    main(["tables", str(tmp_path / "shop"), "--out", str(tmp_path / "graph")])
    assert "reviews: nodes, " in capsys.readouterr().out
    relations, keys = arrays(tmp_path / "graph")[1:]
    for name, spec in content["tables"].items():
        rows = pq.read_table(tmp_path / "shop" / "db" / f"{name}.parquet")
        assert keys[name] == list(range(rows.num_rows))
        for column, other in spec["fkeys"].items():
            pairs = [(int(b), a) for a, b in enumerate(rows[column].to_pylist()) if b is not None and b == b]
            colptr, row = relations[name, f"f2p_{column}", other]
            destinations = torch.repeat_interleave(colptr.diff()).tolist()
            assert list(zip(destinations, row.tolist(), strict=True)) == sorted(pairs)
            assert relations[other, f"rev_f2p_{column}", name][1].tolist() == [
                b for b, _ in sorted(pairs, key=lambda p: p[1])
            ]


def test_manifests_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_manifest(tmp_path)
    (tmp_path / "manifest.yaml").write_text("tables: [a]")
    with pytest.raises(ValueError, match="expected the tables of a database of RelBench") as raised:
        read_manifest(tmp_path)
    assert str(raised.value).endswith(
        "manifest.yaml: tables: expected the tables of a database of RelBench, found ['a']"
    )
