"""What is refused of edges, and the first values that are taken."""

import re
import sys
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import CSC, FeatureStore, GraphStore, TieredFeatureStore, ops
from torch_gnnscale.datasets import NodeTask
from torch_gnnscale.topology import csc as of_csc
from torch_gnnscale.topology.edge_sources import EdgeFiles
from torch_gnnscale.topology.reorder import Order, TypedOrder

EDGES = torch.tensor([[0, 2, 1], [1, 1, 3]])
POINTER, ROW = torch.tensor([0, 0, 2]), torch.tensor([4, 1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: CSC.from_edge_index(EDGES, -1), ValueError, "num_src: expected at least 0 nodes, found -1"),
        (lambda: CSC.from_edge_index(EDGES, (4, -1)), ValueError, "num_dst: expected at least 0 nodes, found -1"),
        (lambda: CSC.from_edge_index(EDGES, (2.0, 4)), TypeError, "num_src: expected an int, found float"),
        (lambda: CSC.from_edge_index(EDGES, (3, 3)), IndexError,
         "edge_index[1, 2] = 3 is out of range: expected nodes in [0, 3)"),
        (lambda: CSC.from_edge_index(EDGES, (2, 4)), IndexError,
         "edge_index[0, 1] = 2 is out of range: expected nodes in [0, 2)"),
        (lambda: CSC.from_edge_index(EDGES, (2, 4), is_sorted=True), IndexError,
         "edge_index[0, 1] = 2 is out of range: expected nodes in [0, 2)"),
        (lambda: CSC.from_edge_index(EDGES.flip(1), 4, is_sorted=True), ValueError,
         "is_sorted: expected edges sorted by destination, found dst[1] = 1 after 3"),
        (lambda: CSC.from_edge_index(EDGES, (4, 4, 4)), ValueError,
         "size: expected a number of nodes or (sources, destinations), found (4, 4, 4)"),
        (lambda: CSC.from_edge_index(EDGES[:1]), ValueError, "edge_index: expected shape (2, num_edges), found (1, 3)"),
        (lambda: CSC.from_edge_index(EDGES[0]), ValueError, "edge_index: expected shape (2, num_edges), found (3,)"),
        (lambda: CSC.from_edge_index(EDGES / 2), TypeError, "edge_index: expected integers, found torch.float32"),
        (lambda: CSC.from_csc(POINTER, ROW, num_src=-1), ValueError, "num_src: expected at least 0 nodes, found -1"),
        (lambda: CSC.from_csc(POINTER, ROW, num_src=4), IndexError,
         "row[0] = 4 is out of range: expected nodes in [0, 4)"),
        (lambda: CSC.from_csc(POINTER, ROW), IndexError, "row[0] = 4 is out of range: expected nodes in [0, 2)"),
        (lambda: CSC.from_csc(POINTER, ROW.short(), num_src=5), TypeError,
         "row: expected a vector of int32 or int64, found torch.int16 (2,)"),
        (lambda: CSC.from_csc(POINTER, ROW[None], num_src=5), TypeError,
         "row: expected a vector of int32 or int64, found torch.int64 (1, 2)"),
        (lambda: CSC.from_csc(POINTER, ROW, torch.ones(2), 5), TypeError,
         "edge_id: expected int32 or int64 ids for 2 edges, found torch.float32 (2,)"),
        (lambda: CSC.from_csc(POINTER, ROW, ROW[:1], 5), TypeError,
         "edge_id: expected int32 or int64 ids for 2 edges, found torch.int64 (1,)"),
        (lambda: CSC.from_csc([0, 2], ROW), TypeError, "colptr: expected a tensor, found list"),
        (lambda: CSC.from_csc(POINTER, [0, 2]), TypeError, "row: expected a tensor, found list"),
        (lambda: CSC.from_csc(POINTER, ROW, [0, 2], 5), TypeError, "edge_id: expected a tensor, found list"),
        (lambda: CSC.from_adj_t(torch.eye(3)), TypeError, "adj_t: expected torch.sparse_csr, sparse_csc or sparse_coo, "
         "or a SparseTensor, found a tensor of torch.strided"),
        (lambda: CSC.from_adj_t([3]), TypeError, "adj_t: expected torch.sparse_csr, sparse_csc or sparse_coo, or a "
         "SparseTensor, found list"),
        (lambda: CSC.from_data(Data()), ValueError,
         "data: expected it to know its number of nodes; set data.num_nodes"),
        (lambda: CSC.from_data(Data(adj=EDGES, num_nodes=3)), ValueError,
         "data: expected edge_index or adj_t, found adj; use data.adj_t = data.adj.t()"),
        (lambda: Order.from_permutation(torch.tensor([0, 0, 1]), 3), ValueError,
         "order: expected every node once, found 2 not at all"),
        (lambda: Order.from_permutation(torch.tensor([0, 3, 1]), 3), IndexError,
         "order[1] = 3 is out of range: expected nodes in [0, 3)"),
        (lambda: Order.from_permutation(torch.tensor([0, 2, 1]).int(), 3), ValueError,
         "order: expected int64 of shape (3,), found torch.int32 (3,)"),
        (lambda: Order.from_permutation(torch.tensor([0, 1]), 3), ValueError,
         "order: expected int64 of shape (3,), found torch.int64 (2,)"),
        (lambda: Order.from_permutation([0, 1], 2), TypeError, "order: expected a tensor, found list"),
        (lambda: GraphStore.from_csc((POINTER, ROW)), TypeError, "csc: expected a CSC, found tuple"),
        (lambda: CSC.from_data(HeteroData()), TypeError, "data: expected a Data, found HeteroData"),
    ],
)  # fmt: skip
def test_what_is_no_graph(call, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


BOTH = "a Data or a HeteroData"
DOORS = {
    GraphStore.from_data: BOTH, FeatureStore.from_data: BOTH, TieredFeatureStore.from_data: BOTH,
    CSC.from_data: "a Data", partial(NodeTask.from_data, "made"): "a Data",
    partial(NodeTask.from_types, "made", node_type="paper"): "a HeteroData",
}  # fmt: skip


@pytest.mark.parametrize("data", [[], [Data(), Data()], None, "cora", EDGES, (FeatureStore(), GraphStore())])
def test_data_of_another_kind(data):
    for door, expected in DOORS.items():
        with pytest.raises(TypeError, match=f"^data: expected {expected}, found {type(data).__name__}$"):
            door(data=data)
    with pytest.raises(ValueError, match=r"^node_type: expected one of \[\], found 'paper'$"):
        NodeTask.from_types("made", HeteroData(), "paper")


def test_the_least_that_is_a_graph():
    for found, sizes in (
        (CSC.from_edge_index(EDGES, (3, 4)), (3, 4, 3)),
        (CSC.from_edge_index(EDGES, (3, 4), is_sorted=True), (3, 4, 3)),
        (CSC.from_edge_index(EDGES, (None, 4)), (3, 4, 3)),
        (CSC.from_edge_index(EDGES, (5, None)), (5, 4, 3)),
        (CSC.from_edge_index(EDGES), (4, 4, 3)),
        (CSC.from_edge_index(EDGES, 4), (4, 4, 3)),
        (CSC.from_edge_index(EdgeIndex(EDGES, sparse_size=(6, 7))), (6, 7, 3)),
        (CSC.from_edge_index(EdgeIndex(EDGES, sparse_size=(6, 7)), (3, None)), (3, 7, 3)),
        (CSC.from_edge_index(EDGES[:, :0], 0), (0, 0, 0)),
        (CSC.from_edge_index([[], []]), (0, 0, 0)),
        (CSC.from_csc(POINTER, ROW, num_src=5), (5, 2, 2)),
        (CSC.from_csc(POINTER.int(), ROW.int(), num_src=5), (5, 2, 2)),
        (CSC.from_csc(POINTER[:1], ROW[:0], num_src=0), (0, 0, 0)),
        (CSC.from_data(Data(num_nodes=3)), (3, 3, 0)),
    ):
        assert (found.num_src, found.num_dst, found.num_edges) == sizes
        assert (found.row.dtype, found.colptr.dtype) == (torch.int32, torch.int64)


def test_edges_in_an_edge_index_that_says_so_are_not_sorted_again():
    assert CSC.from_edge_index(EdgeIndex(EDGES, sort_order="col")).edge_id is None
    assert CSC.from_edge_index(EdgeIndex(EDGES)).edge_id is not None


def test_sources_of_32_bits_beside_more_edges_than_those_count(monkeypatch):
    sort = ops.coo_to_csc

    def wide(*given):
        colptr, edges = sort(*given)
        return colptr, edges.to(torch.int64)

    expected = CSC.from_edge_index(EDGES)
    monkeypatch.setattr(of_csc.ops, "coo_to_csc", wide)
    found = CSC.from_edge_index(EDGES)
    assert (found.row.dtype, found.edge_id.dtype) == (torch.int32, torch.int64)
    assert found.row.is_contiguous()
    assert found.edge_id.is_contiguous()
    assert torch.equal(found.row, expected.row)
    assert torch.equal(found.edge_id.int(), expected.edge_id)
    assert CSC.from_edge_index(EDGES, ((1 << 31) - 1, 4)).row.dtype == torch.int32
    assert CSC.from_edge_index(EDGES, (1 << 31, 4)).row.dtype == torch.int64


@pytest.mark.parametrize(("num_src", "dtype"), [((1 << 31) - 1, torch.int32), (1 << 31, torch.int64)])
def test_sources_are_as_wide_as_they_need_to_be(num_src, dtype):
    assert CSC.from_csc(POINTER, ROW, num_src=num_src).row.dtype == dtype


@pytest.mark.parametrize("name", ["edges.parquet", "edges.csv"])
def test_files_that_pyarrow_reads(name, tmp_path, monkeypatch):
    (tmp_path / name).write_bytes(b"0,1\n")
    for module in [module for module in sys.modules if module.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = "parquet and text files are read by pyarrow: pip install pyarrow"
    with pytest.raises(ImportError, match=f"^{message}$"):
        list(EdgeFiles([tmp_path / name]).chunks())


def test_orders_on_other_devices():
    order = Order.from_permutation(torch.tensor([2, 0, 1]), 3)
    there = order.to(torch.device("meta"))
    assert (there.old.device.type, there.new) == ("meta", order.new)
    typed = TypedOrder({"a": order}).to(torch.device("meta"))
    assert [*typed] == ["a"]
    assert (typed["a"].old.device.type, typed["a"].new) == ("meta", order.new)
    assert order.inverse().old is order.new


def test_orders_that_are_equal():
    order, other = (Order.from_permutation(torch.tensor(old), 3) for old in ([2, 0, 1], [0, 2, 1]))
    same = Order.from_permutation(torch.tensor([2, 0, 1]), 3)
    assert order.equals(order)
    assert order.equals(same)
    assert not order.equals(other)
    assert not order.equals(None)
    typed = TypedOrder({"a": order, "b": other})
    assert typed.equals(TypedOrder({"b": other, "a": same}))
    for unlike in (TypedOrder({"a": order}), TypedOrder({"a": order, "b": order}), {"a": order, "b": other}, order):
        assert not typed.equals(unlike)
    assert typed.to_stored(torch.tensor([1], dtype=torch.int32), "c").dtype == torch.int64
    assert typed.to_user(torch.tensor([1]), "c").tolist() == [1]
    assert typed.to_stored(torch.tensor([1], dtype=torch.int32), "a").tolist() == [2]
    assert typed.to_user(torch.tensor([1]), "a").tolist() == [0]


def test_a_graph_without_relations():
    assert GraphStore().get_all_edge_attrs() == []


@pytest.mark.parametrize(
    "kind",
    [list, np.stack, tuple, lambda rows: [rows[0], torch.tensor(rows[1])], lambda rows: [rows[0].tolist(), rows[1]],
     lambda rows: tuple(map(torch.tensor, rows)), lambda rows: [torch.tensor(rows[0]), rows[1].tolist()]],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_two_rows_of_ends(kind, dtype):
    rows = EDGES.numpy().astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # torch's: making a tensor of a list of arrays is extremely slow
        found = CSC.from_edge_index(kind(list(rows)))
    assert torch.equal(found.row, CSC.from_edge_index(EDGES).row)
    assert torch.equal(found.colptr, CSC.from_edge_index(EDGES).colptr)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([[0, 1], [1]], ValueError, "rows of one length, found a row of 2 and a row of 1"),
        (
            (torch.arange(3), torch.arange(2)),
            ValueError,
            "rows of one length, found a row of 3 and a row of 2",
        ),
        ([np.arange(3), np.arange(2)], ValueError, "rows of one length, found a row of 3 and a row of 2"),
        ([1, [2, 3]], ValueError, "rows of one length, found a number and a row of 2"),
        (["a", "b"], TypeError, "numbers in a tensor, array or list, found ['a', 'b']"),
        (None, TypeError, "numbers in a tensor, array or list, found None"),
    ],
)
def test_ends_that_are_no_rows(given, error, message):
    with pytest.raises(error, match=f"^edge_index: expected {re.escape(message)}$"):
        CSC.from_edge_index(given)
