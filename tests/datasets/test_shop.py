"""The tables of a generated shop."""

import pytest
from helpers.tables import arrays, same
from pyarrow import csv, parquet
from reference import tables as reference

from torch_gnnscale import tables
from torch_gnnscale.datasets import write_shop


@pytest.mark.slow
def test_its_graph_is_that_of_the_twin(tmp_path):
    schema = tables.Schema.read(write_shop(tmp_path, 40, 30, 2500))
    tables.build(schema, tmp_path / "graph")
    found = {
        "nodes.user": [parquet.read_table(tmp_path / "users.parquet")],
        "nodes.item": [csv.read_csv(tmp_path / "items.csv")],
        "edges.user.buys.item": [parquet.read_table(file) for file in sorted((tmp_path / "orders").iterdir())],
    }
    assert sum(table.num_rows for table in found["edges.user.buys.item"]) == 2500
    same(arrays(tmp_path / "graph"), reference.build(schema, found))


def test_numbers_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="num_items"):
        write_shop(tmp_path, num_items=0)
    with pytest.raises(ValueError, match="segments: expected 1 to 10, found 11"):
        write_shop(tmp_path, segments=11)
