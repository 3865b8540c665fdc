import pickle

import numpy as np
import pytest
import torch
from helpers.boundary import ENDS, boundary_graph
from helpers.data import DTYPES, make_data, node_rows
from torch_geometric.data import Data, TensorAttr
from torch_geometric.data.feature_store import AttrView

from torch_gnnscale import FeatureStore
from torch_gnnscale.feature.contract import all_attrs


def store_of(tensor, group=None, name="x"):
    store = FeatureStore()
    assert store.put_tensor(tensor, group_name=group, attr_name=name, index=None)
    return store


@pytest.fixture
def rows():
    return node_rows(torch.arange(50))


INDICES = {
    "none": None,
    "int64": torch.tensor([3, 3, 49, 0]),
    "int32": torch.tensor([3, 3, 49, 0], dtype=torch.int32),
    "strided": torch.arange(50)[::7],
    "empty": torch.empty(0, dtype=torch.int64),
    "mask": torch.arange(50) % 3 == 0,
    "numpy": np.array([5]),  # PyG's TensorAttr fails on longer ones
    "numpy int32": np.array([5], dtype=np.int32),
    "list": [5, 1, 1],
    "empty list": [],
    "range": range(2, 9),
    "slice": slice(3, 9),
    "slice with step": slice(1, None, 4),
    "slice from the end": slice(-5, None),
    "int": 7,
    "last": -1,
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_get(rows, index):
    store = store_of(rows, "paper")
    expected = rows if index is None else rows[list(index) if isinstance(index, range) else index]
    found = store.get_tensor(group_name="paper", attr_name="x", index=index)
    assert torch.equal(found, expected)
    assert torch.equal(store["paper", "x", index], expected)


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_agrees_with_data(index):
    data = make_data(50, 100)
    store = FeatureStore.from_data(data)
    if isinstance(index, (list, range)):
        pytest.skip("PyG's Data takes no lists")
    for name in ("x", "y"):
        attr = TensorAttr(None, name, index)
        expected = data.get_tensor(attr_name=name, index=index)
        assert torch.equal(store.get_tensor(attr), torch.as_tensor(expected))
        assert store.get_tensor_size(attr) == tuple(data.get_tensor_size(attr_name=name))


@pytest.mark.parametrize("index", [ENDS, ENDS[-1:], ENDS[:0].int()], ids=["ends", "the last", "none"])
def test_first_and_last_rows(index):
    """Those of columns of a wider table, too."""
    data = boundary_graph()
    store = FeatureStore.from_data(data)
    for group, name in store._tensors:
        assert torch.equal(store[group, name, index], data[name][index.long()])


def test_from_data_takes_what_has_a_row_for_each_node_or_edge():
    data = make_data(50, 100)
    data.name, data.count, data.pair = "graph", 3, torch.zeros(2)
    data.numbers = np.arange(50)
    store = FeatureStore.from_data(data)
    found = [(attr.group_name, attr.attr_name) for attr in all_attrs(store)]
    assert found == [(None, "x"), (None, "y"), (None, "numbers"), ((None, None), "edge_attr")]
    # PyG's loaders would read those of edges at the nodes' ids.
    assert [(attr.group_name, attr.attr_name) for attr in store.get_all_tensor_attrs()] == found[:3]
    assert store[(None, None), "edge_attr", None].data_ptr() == data.edge_attr.data_ptr()
    assert torch.equal(store[None, "numbers", None], torch.arange(50))
    assert store[None, "x", None].data_ptr() == data.x.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 5), (40, 2, 3), (40, 0)], ids=str)
def test_dtypes_and_shapes(dtype, shape):
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    store = store_of(tensor)
    index = torch.tensor([39, 0, 7, 7])
    found = store[None, "x", index]
    assert found.dtype == dtype
    assert torch.equal(found, tensor[index])
    assert store.get_tensor_size(group_name=None, attr_name="x") == shape


def test_sparse_tensors():
    found = store_of(torch.eye(5).to_sparse())[None, "x", torch.tensor([4, 0, 0])]
    assert torch.equal(found.to_dense(), torch.eye(5)[[4, 0, 0]])


@pytest.mark.parametrize("layout", ["transposed", "columns", "rows", "expanded"])
def test_strided_tensors(rows, layout):
    tensor = {
        "transposed": rows.t().contiguous().t(),
        "columns": rows.repeat_interleave(2, 1)[:, ::2],
        "rows": rows.repeat_interleave(2, 0)[::2],
        "expanded": rows[:1].expand(50, 3),
    }[layout]
    index = torch.tensor([1, 1, 30])
    assert torch.equal(store_of(tensor)[None, "x", index], tensor[index])


def test_views(rows):
    store = store_of(rows)
    store.put_tensor(rows * 2, group_name="author", attr_name="x", index=None)
    for view in (store[None, "x"], store.view(group_name=None)["x"], store.view(group_name=None).x):
        assert isinstance(view, AttrView)
        assert view == store.view(None, "x")
    index = torch.tensor([4, 2])
    assert torch.equal(store["author"].x[index], rows[index] * 2)
    assert torch.equal(store["author", "x"][index], rows[index] * 2)
    assert torch.equal(store["author"]["x"][:], rows * 2)
    assert torch.equal(store["author", "x"](), rows * 2)
    assert torch.equal(store[TensorAttr("author", "x", 3)], rows[3] * 2)
    view = store.view("author", "x")
    view.index = index
    assert torch.equal(view(), rows[index] * 2)


def test_put_by_item(rows):
    store = FeatureStore()
    store["paper", "x", None] = rows
    assert torch.equal(store["paper", "x", None], rows)
    del store["paper", "x"]
    assert store.get_all_tensor_attrs() == []


def test_numpy_in_and_out(rows):
    store = store_of(rows.numpy())
    assert torch.equal(store[None, "x", None], rows)
    index = np.array([2])
    found = store.get_tensor(group_name=None, attr_name="x", index=index, convert_type=True)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, rows.numpy()[index])
    store.put_tensor(np.zeros((1, 3)), group_name=None, attr_name="x", index=index)
    assert store[None, "x", index].abs().sum() == 0


def test_update_of_rows(rows):
    for index in (torch.tensor([4, 0]), slice(2, 4), torch.arange(50) < 2, [9, 1]):
        store = store_of(rows.clone())
        expected = rows.clone()
        expected[index] = -1.0
        value = torch.full((2, 3), -1.0, dtype=torch.float64)
        assert store.put_tensor(value, group_name=None, attr_name="x", index=index)
        assert torch.equal(store[None, "x", None], expected)
    with pytest.raises(KeyError, match="expected it to be put whole"):
        store.put_tensor(value, group_name=None, attr_name="z", index=torch.tensor([0, 1]))
    assert store.update_tensor(rows * 3, group_name=None, attr_name="x", index=None)
    assert torch.equal(store[None, "x", None], rows * 3)


def test_update_of_rows_by_update_tensor(rows):
    store = store_of(rows.clone())
    index = torch.tensor([4, 0])
    assert store.update_tensor(torch.zeros(2, 3, dtype=torch.float64), group_name=None, attr_name="x", index=index)
    assert store[None, "x", index].abs().sum() == 0
    assert torch.equal(store[None, "x", torch.tensor([5, 49])], rows[[5, 49]])


@pytest.mark.parametrize("put", ["put_tensor", "update_tensor"])
@pytest.mark.parametrize("layout", ["rows", "transposed", "array"])
def test_an_update_leaves_the_users_tensor(rows, put, layout):
    given = {"rows": rows, "transposed": rows.t().contiguous().t(), "array": rows.numpy()}[layout]
    kept = rows.clone()
    store = store_of(given)
    before = store[None, "x", None]
    for row in (4, 7):
        value = torch.zeros(1, 3, dtype=torch.float64)
        assert getattr(store, put)(value, group_name=None, attr_name="x", index=torch.tensor([row]))
    found = store[None, "x", None]
    assert found[[4, 7]].abs().sum() == 0
    assert torch.equal(torch.as_tensor(given), kept)
    assert torch.equal(before, kept)
    store.update_tensor(value, group_name=None, attr_name="x", index=torch.tensor([9]))
    assert store[None, "x", None].data_ptr() == found.data_ptr()  # copied once
    store.put_tensor(given, group_name=None, attr_name="x", index=None)
    store.update_tensor(value, group_name=None, attr_name="x", index=torch.tensor([9]))
    assert torch.equal(torch.as_tensor(given), kept)


@pytest.mark.parametrize("value", [[1, 2], 3, None, "x"], ids=str)
def test_no_tensor(value):
    for index in (None, torch.tensor([0])):
        store = store_of(torch.zeros(2))
        with pytest.raises(
            TypeError, match=r"'x'\): expected a tensor or an array of numbers, found (list|int|NoneType|str)$"
        ):
            store.put_tensor(value, group_name=None, attr_name="x", index=index)


def test_no_rows():
    for value in (torch.tensor(1.0), np.array(1.0)):
        with pytest.raises(ValueError, match=r"'x'\): expected a row for each node, found a scalar$"):
            store_of(value)


def test_multi_get(rows):
    store = store_of(rows)
    store.put_tensor(torch.arange(50), group_name=None, attr_name="y", index=None)
    index = torch.tensor([8, 3, 8])
    x, y, missing = store.multi_get_tensor(
        [TensorAttr(None, "x", index), TensorAttr(None, "y", index), TensorAttr(None, "z", index)]
    )
    assert torch.equal(x, rows[index])
    assert torch.equal(y, index)
    assert missing is None


def test_remove_and_missing(rows):
    store = store_of(rows)
    assert store.get_tensor(group_name="paper", attr_name="x", index=None) is None
    assert store.get_tensor_size(group_name="paper", attr_name="x") is None
    assert not store.remove_tensor(group_name="paper", attr_name="x", index=None)
    assert store.remove_tensor(group_name=None, attr_name="x", index=None)
    assert store.get_tensor(group_name=None, attr_name="x", index=None) is None
    with pytest.raises(ValueError, match="not fully specified"):
        store.get_tensor(group_name=None, attr_name="x")
    with pytest.raises(ValueError, match="not fully specified"):
        store.put_tensor(rows, group_name=None, attr_name="x")


def test_all_attrs_have_no_index(rows):
    store = store_of(rows, "paper")
    store.put_tensor(rows, group_name="author", attr_name="z", index=None)
    attrs = store.get_all_tensor_attrs()
    assert [(attr.group_name, attr.attr_name) for attr in attrs] == [("paper", "x"), ("author", "z")]
    assert not any(attr.is_set("index") for attr in attrs)
    assert "(50, 3)" in repr(store)


@pytest.mark.parametrize("index", [torch.tensor([0, 50]), torch.tensor([-51]), [3, 99], 50], ids=str)
def test_out_of_range(rows, index):
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        store_of(rows).get_tensor(group_name=None, attr_name="x", index=index)


@pytest.mark.parametrize("index", [torch.zeros(49, dtype=torch.bool), torch.ones(51, dtype=torch.bool)], ids=len)
def test_mask_of_a_wrong_length(rows, index):
    with pytest.raises(IndexError, match=rf"^index: expected a mask of 50 rows, found shape \({len(index)},\)$"):
        store_of(rows).get_tensor(group_name=None, attr_name="x", index=index)


def test_float_index(rows):
    with pytest.raises(TypeError, match=r"^index: expected int32 or int64 ids, found torch.float32$"):
        store_of(rows).get_tensor(group_name=None, attr_name="x", index=torch.tensor([0.5]))


def test_pickle(rows):
    store = pickle.loads(pickle.dumps(store_of(rows, "paper")))
    assert torch.equal(store["paper", "x", None], rows)


def test_a_store_that_was_opened_by_a_relative_path_is_pickled(features, monkeypatch):
    monkeypatch.chdir(features.parent)
    store = FeatureStore.open(features.name)
    monkeypatch.chdir("/")
    other = pickle.loads(pickle.dumps(store))
    assert torch.equal(other["paper", "x", None], store["paper", "x", None])


def test_gather_is_differentiable(rows):
    weight = rows.clone().requires_grad_()
    store_of(weight)[None, "x", torch.tensor([1, 1, 2])].sum().backward()
    assert weight.grad[:, 0].tolist() == [0.0, 2.0, 1.0] + [0.0] * 47


def test_a_data_is_a_store_of_the_same_tensors():
    data = make_data(50, 100)
    attrs = {attr.attr_name for attr in Data.get_all_tensor_attrs(data)}
    assert {attr.attr_name for attr in FeatureStore.from_data(data).get_all_tensor_attrs()} <= attrs


def test_a_mapped_tensor_that_was_replaced_is_pickled(features):
    store = FeatureStore.open(features)
    store.put_tensor(torch.full((100,), 7), group_name=None, attr_name="y", index=None)
    assert [store.file_of(attr) is None for attr in store.all_attrs()].count(True) == 1
    assert store.file_of(TensorAttr(None, "y", None)) is None
    other = pickle.loads(pickle.dumps(store))
    assert torch.equal(other.get_tensor(group_name=None, attr_name="y", index=None), torch.full((100,), 7))
    assert torch.equal(other["paper", "x", None], store["paper", "x", None])


@pytest.mark.parametrize(("rows", "at", "error"), [((2, 9), [0, 1], ValueError), ((1, 4), [900], IndexError)])
def test_rows_that_do_not_fit_name_their_attribute(rows, at, error):
    store = FeatureStore()
    store.put_tensor(torch.zeros(20, 4), group_name=None, attr_name="x", index=None)
    with pytest.raises(error, match=r"^\(None, 'x'\): "):
        store.put_tensor(torch.ones(rows), group_name=None, attr_name="x", index=torch.tensor(at))
    assert not bool(store.get_tensor(group_name=None, attr_name="x", index=None).any())
