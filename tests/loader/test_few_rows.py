"""Which rows are read, and by whom: few rows by torch, many by the native gather."""

import pytest
import torch
from torch_geometric.data import TensorAttr

from torch_gnnscale import FeatureStore
from torch_gnnscale.loader.data_rows import rows_at
from torch_gnnscale.loader.row_source import Ids, StoreRows
from torch_gnnscale.ops import rows as feature_rows


def gathered(monkeypatch, value, index, below):
    """The rows, and whether the native gather read them."""
    calls = []
    native = feature_rows.gather_rows

    def spied(*args, **kwargs):
        calls.append(kwargs)
        return native(*args, **kwargs)

    monkeypatch.setattr(feature_rows, "gather_rows", spied)
    found = rows_at(value, Ids(index), 0, below)
    monkeypatch.undo()
    return found, bool(calls)


@pytest.mark.parametrize(
    "dtype", [*sorted(feature_rows._SELECTED, key=str), torch.int8, torch.uint16, torch.float8_e5m2]
)
@pytest.mark.parametrize(
    ("width", "count", "few"),
    [((), 1 << 15, True), ((), (1 << 15) + 1, False), ((3,), 128, True), ((3,), 129, False), ((2, 128), 128, True),
     ((257,), 128, False), ((0,), 5, True), ((4,), 0, True)],
)  # fmt: skip
def test_few_rows(monkeypatch, dtype, width, count, few):
    value = torch.randint(2, (40, *width)).to(dtype)
    index = torch.randint(40, (count,), dtype=torch.int32)
    found, native = gathered(monkeypatch, value, index, 40)
    assert native is not (few and dtype in feature_rows._SELECTED)
    assert found.dtype == dtype
    assert torch.equal(found.to(torch.float64), value.to(torch.float64)[index.long()])


def test_ids_that_may_be_outside_are_checked_by_the_native_gather(monkeypatch):
    value, index = torch.rand(40, 3), torch.tensor([1, 39])
    for below, native in ((None, True), (41, True), (40, False)):
        assert gathered(monkeypatch, value, index, below)[1] is native
    assert gathered(monkeypatch, torch.rand(40, 6)[:, :3], index, 40)[1]  # rows with gaps between them


def test_rows_of_nodes_are_told_from_those_of_edges_of_the_same_name():
    source, of_nodes = StoreRows(FeatureStore(), None), torch.ones(2)
    rows = [(TensorAttr((None, None), "x"), torch.zeros(2)), (TensorAttr(None, "x"), of_nodes)]
    assert source.node_rows(rows, "x") is of_nodes
    assert source.node_rows(rows[:1], "x") is None
