"""What is built of tables equals what a plain twin builds, whatever the files, formats, threads and memory are."""

import copy
import random

import pytest
import torch
from helpers.tables import SHOP, arrays, built, of_shop, same, shop, write
from reference import tables as reference

from torch_gnnscale import NeighborLoader, tables
from torch_gnnscale.tables import Schema


@pytest.fixture(scope="module")
def expected():
    return reference.build(Schema.parse(SHOP), of_shop({name: [table] for name, table in shop().items()}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "ending", "options"),
    [(1, ".parquet", {}), (3, ".parquet", {"threads": 1}), (2, ".csv", {"memory": "64MiB"}), (1, ".csv.gz", {}),
     (2, ".tsv", {"threads": 3}), (1, ".csv.zst", {})],
)  # fmt: skip
def test_equals_the_twin(tmp_path, expected, parts, ending, options):
    write(tmp_path, shop(), parts, ending)
    same(arrays(built(tmp_path, **options)), expected)


@pytest.mark.slow
def test_the_order_of_rows_and_files_does_not_matter(tmp_path, expected):
    mixed = {}
    for name, table in shop().items():
        rows = list(range(table.num_rows))
        random.Random(1).shuffle(rows)
        mixed[name] = table.take(rows)
    write(tmp_path, mixed, 4)
    for file in tmp_path.glob("*-0.parquet"):
        file.rename(file.with_name(file.name.replace("-0", "-9")))
    same(arrays(built(tmp_path)), expected)


@pytest.mark.slow
def test_more_edges_than_a_batch_has_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("torch_gnnscale.tables.edges.batch_rows", lambda _: 2048)
    monkeypatch.setattr("torch_gnnscale.tables.edges.CHUNK", 7)
    big = shop(users=40, items=60, orders=9000)
    pieces = write(tmp_path, big, 3)
    same(arrays(built(tmp_path)), reference.build(Schema.parse(SHOP), of_shop(pieces)))


@pytest.mark.slow
def test_a_loader_takes_the_stores(tmp_path):
    write(tmp_path, shop())
    pair = tables.open(built(tmp_path))
    ids = tables.ids(tmp_path / "graph", "user")
    batch = next(iter(NeighborLoader(pair, [3, 3], ("user", torch.arange(5)), batch_size=5)))
    assert batch["user"].x.shape[1] == 5  # age, whether it is missing, premium, joined, whether that is missing
    names = ids.names(batch["user"].n_id)
    assert ids.of(names).tolist() == batch["user"].n_id.tolist()


@pytest.mark.slow
def test_the_report(tmp_path):
    pieces = write(tmp_path, shop(), 2)
    said = []
    report = tables.build(Schema.parse(SHOP, tmp_path), tmp_path / "graph", say=said.append)
    orders = pieces["orders"][0].to_pylist() + pieces["orders"][1].to_pylist()
    known, items = {row["user_id"] for table in pieces["users"] for row in table.to_pylist()}, range(-20, 64, 7)
    no_source = [row for row in orders if row["user"] is None]
    unknown = [row for row in orders if row["user"] is not None and row["user"] not in known]
    no_item = [row for row in orders if row["user"] in known and row["item"] not in items]
    assert unknown
    assert no_item
    found = report["edges"]["user.buys.item"]
    assert found["dropped"] == {
        "no source": len(no_source), "unknown source": len(unknown), "unknown destination": len(no_item)
    }  # fmt: skip
    assert found["rows"] == 90
    assert found["edges"] == 90 - len(no_source) - len(unknown) - len(no_item)
    assert sum(found["split"].values()) == found["edges"]
    assert report["nodes"]["user"]["missing"].keys() == {"age", "country", "joined"}
    assert report["nodes"]["user"]["unlabelled"] == sum(table["segment"].null_count for table in pieces["users"])
    assert len(said) == 4
    assert f"{len(unknown)} rows dropped: unknown source" in said[2]


@pytest.mark.slow
def test_what_columns_became(tmp_path):
    write(tmp_path, shop())
    about = tables.about(built(tmp_path))["nodes"]["user"]
    assert about["key"] == "string"
    assert about["classes"] == ["a", "b", "c"]
    country = next(entry for entry in about["columns"] if entry["column"] == "country")
    assert country == {"column": "country", "kind": "category", "categories": ["DE", "FR", "Ägypten"]}


@pytest.mark.slow
def test_a_split_of_training_has_no_future(tmp_path):
    schema = copy.deepcopy(SHOP)
    schema["nodes"]["user"]["split"] = {"by": "time", "val": 0.3, "test": 0.3}
    pieces = write(tmp_path, shop())
    found = arrays(built(tmp_path, schema))
    same(found, reference.build(Schema.parse(schema), of_shop(pieces)))
    for group in ("user", ("user", "buys", "item"), ("item", "rev_buys", "user")):
        time, masks = found[0][group, "time"], [found[0][group, f"{s}_mask"] for s in ("train", "val", "test")]
        assert int(time[masks[0]].max()) < int(time[masks[1]].min())
        assert int(time[masks[1]].max()) < int(time[masks[2]].min())
