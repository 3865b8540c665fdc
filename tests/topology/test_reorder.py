"""Renumbered graphs are the same graphs."""

import re

import numpy as np
import pytest
import reference
import torch
from helpers.graphs import random_graph
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import CSC, ops
from torch_gnnscale.topology.reorder import Order, TypedOrder, by_score, reorder_csc, reorder_data, reorder_relation


def check_renumbered(dtype, interleaved, number, nodes, threads):
    """Of graphs whose sources have this dtype, and other strides than their edges' ids if these have another one."""
    graph = random_graph(nodes, 5, seed=number)
    generator = torch.Generator().manual_seed(number)
    for edge_id in (None, torch.int32, torch.int64):
        stored = graph.stored(dtype, edge_id, interleaved)
        order = torch.randperm(nodes, generator=generator)
        found = ops.renumber(stored.colptr, stored.row, order, edge_id=stored.edge_id, threads=threads)
        expected = reference.renumber(stored.colptr, stored.row, order, edge_id=stored.edge_id)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("interleaved", [False, True])
def test_renumber_equals_the_twin(dtype, interleaved):
    for nodes in (0, 1, 40):
        check_renumbered(dtype, interleaved, number=nodes, nodes=nodes, threads=2)


@pytest.mark.slow
@given(number=st.integers(0, 1 << 30), nodes=st.integers(0, 40), threads=st.integers(0, 3))
def test_renumber_equals_the_twin_for_random_graphs(number, nodes, threads):
    check_renumbered(torch.int32 if number % 2 else torch.int64, bool(number % 3), number, nodes, threads)


def test_many_nodes_on_many_threads():
    graph = random_graph(60_000, 5, seed=1)
    order = torch.randperm(60_000, generator=torch.Generator().manual_seed(1))
    one = ops.renumber(graph.colptr, graph.row, order, threads=1)
    for threads in (2, 5):
        assert all(map(torch.equal, ops.renumber(graph.colptr, graph.row, order, threads=threads), one))
    rank = torch.empty(60_000, dtype=torch.int64)
    rank[order] = torch.arange(60_000)
    column = torch.arange(60_000).repeat_interleave(graph.colptr.diff())
    row, col = rank[graph.row], rank[column]
    expected = CSC.from_edge_index(torch.stack([row, col]), 60_000)
    assert torch.equal(one[0], expected.colptr)
    assert torch.equal(one[1][:, 0], expected.row)
    assert torch.equal(one[1][:, 1], expected.edge_id)


def test_ids_that_need_64_bits():
    graph = random_graph(30, 3, seed=2)
    edge_id = torch.arange(len(graph.row)) + (1 << 33)
    _, edges = ops.renumber(graph.colptr, graph.row, torch.arange(30), edge_id=edge_id)
    assert edges.dtype == torch.int64
    assert torch.equal(edges[:, 1], edge_id)


def test_by_score():
    order = by_score(torch.tensor([0.1, 0.4, 0.2, 0.4]))
    assert order.old.tolist() == [1, 3, 2, 0]
    assert order.new.tolist() == [3, 0, 2, 1]
    assert torch.equal(order.inverse().old, order.new)
    assert all(map(torch.equal, Order.from_permutation(order.old, 4), order))
    for wrong, error, message in [
        (torch.tensor([1.0, float("nan")]), ValueError, "score[1]: expected a number, found nan"),
        (torch.ones(2, dtype=torch.bool), TypeError, "score: expected real numbers, found torch.bool"),
        (torch.ones(2) * 1j, TypeError, "score: expected real numbers, found torch.complex64"),
        ([1], TypeError, "score: expected real numbers, found list"),
        (torch.ones(2, 2), ValueError, "score: expected a vector, found shape (2, 2)"),
    ]:
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            by_score(wrong)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
     torch.uint8, torch.uint16, torch.uint32, torch.uint64],
)  # fmt: skip
def test_equal_scores_keep_their_order(dtype):
    """Negative ones, both zeros and infinities; so many that torch sorts them in parallel."""
    score = torch.randint(-40, 40, (70_000,), generator=torch.Generator().manual_seed(2)).to(dtype)  # or next to 2^N
    if dtype.is_floating_point:
        score[::7] = -0.0
        score[1::9], score[2::9] = torch.inf, -torch.inf
        score *= 0.25
        three = torch.tensor(3.0, dtype=dtype)
        score[3::9], score[4::9] = three, torch.nextafter(three, 2 * three) if dtype.itemsize > 2 else three
    assert torch.equal(by_score(score).old, torch.argsort(score, descending=True, stable=True))


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one.to_dense(), other.to_dense())
    return np.array_equal(one, other)


def test_data_there_and_back():
    graph = random_graph(50, 4, seed=3)
    column = torch.arange(50).repeat_interleave(graph.colptr.diff())
    edges = len(column)
    data = Data(
        x=torch.arange(50.0).unsqueeze(1) * torch.tensor([1.0, 2.0]), y=torch.arange(50),
        train_mask=torch.arange(50) < 9, edge_index=torch.stack([graph.row, column]), edge_attr=torch.arange(edges),
        name="graph", titles=[f"{i}" for i in range(50)], array=np.arange(50), columns=torch.arange(100).view(2, 50),
        split_index=torch.tensor([3, 49, 0]), pair_index=torch.arange(100).view(2, 50) % 50, train_idx=torch.arange(3),
        face=torch.tensor([[3], [49], [7]]), sparse=torch.eye(50).to_sparse_coo(),
        array_index=np.arange(100).reshape(2, 50),
    )  # fmt: skip
    order = by_score(torch.rand(50, generator=torch.Generator().manual_seed(1)))
    moved = reorder_data(data, order)
    assert torch.equal(moved.x, data.x[order.old])
    assert torch.equal(moved.train_mask, data.train_mask[order.old])
    assert torch.equal(order.old[moved.edge_index], data.edge_index)
    assert torch.equal(moved.edge_attr, data.edge_attr)
    assert moved.name == "graph"
    assert moved.titles == [f"{i}" for i in order.old]
    assert np.array_equal(moved.array, order.old.numpy())
    assert np.array_equal(moved.array_index, data.array_index[:, order.old.numpy()])
    assert torch.equal(moved.columns, data.columns)
    assert torch.equal(order.old[moved.split_index], data.split_index)
    assert torch.equal(order.old[moved.pair_index], data.pair_index[:, order.old])
    assert torch.equal(moved.train_idx, data.train_idx)
    assert torch.equal(order.old[moved.face], data.face)
    assert torch.equal(moved.sparse.to_dense(), data.sparse.to_dense()[order.old])
    back = reorder_data(moved, order.inverse())
    for name, value in data.items():
        assert same(back[name], value)
    ours = reorder_csc(CSC.from_data(data), order)
    theirs = CSC.from_data(moved)
    assert torch.equal(ours.colptr, theirs.colptr)
    assert torch.equal(ours.row, theirs.row)
    assert torch.equal(ours.edge_id, theirs.edge_id)


GRAPH = random_graph(4, 2, seed=4)


def test_a_malformed_graph():
    row = GRAPH.row.clone()
    row[1] = 4
    with pytest.raises(RuntimeError, match=re.escape("the graph is malformed: row[1] is not in [0, 4)")):
        ops.renumber(GRAPH.colptr, row, torch.arange(4))


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "order: expected int64 of shape (4,), found torch.int64 (3,)",
         lambda: ops.renumber(GRAPH.colptr, GRAPH.row, torch.arange(3))),
        (IndexError, "order[3] = 4 is out of range: expected nodes in [0, 4)",
         lambda: ops.renumber(GRAPH.colptr, GRAPH.row, torch.tensor([0, 1, 2, 4]))),
        (ValueError, "order: expected every node once, found 3 not at all",
         lambda: ops.renumber(GRAPH.colptr, GRAPH.row, torch.tensor([0, 1, 2, 2]))),
        (ValueError, "edge_id: expected one for each of",
         lambda: ops.renumber(GRAPH.colptr, GRAPH.row, torch.arange(4), edge_id=torch.arange(1))),
        (ValueError, "csc: expected 3 sources and destinations, found CSC(",
         lambda: reorder_csc(CSC(GRAPH.colptr, GRAPH.row, None, 4), by_score(torch.arange(3)))),
        (ValueError, "order: expected int64 of shape (3,), found torch.int64 (2,)",
         lambda: Order.from_permutation(torch.arange(2), 3)),
        (IndexError, "order[1] = 2 is out of range: expected nodes in [0, 2)",
         lambda: Order.from_permutation(torch.tensor([0, 2]), 2)),
        (ValueError, "order: expected every node once, found 0 not at all",
         lambda: Order.from_permutation(torch.ones(2).long(), 2)),
        (ValueError, "order: expected one of 2 nodes, found 3",
         lambda: reorder_data(Data(x=torch.ones(2)), by_score(torch.arange(3)))),
        (ValueError, "data.edge_label_index: expected nodes in [0, 2), found -1",
         lambda: reorder_data(Data(edge_label_index=torch.tensor([0, -1]), num_nodes=2), by_score(torch.arange(2)))),
        (NotImplementedError, "reorder_data of a HeteroData is not implemented: use a Data",
         lambda: reorder_data(HeteroData(), by_score(torch.arange(2)))),
        (NotImplementedError, "reorder_data of a sparse adjacency is not implemented; use its edge_index",
         lambda: reorder_data(Data(adj_t=torch.eye(2).to_sparse_csr(), num_nodes=2), by_score(torch.arange(2)))),
    ],
)  # fmt: skip
def test_bad_input(error, message, call):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call()


def test_orders_of_other_types_are_others():
    a, b = (by_score(torch.tensor(score)) for score in ([1, 2, 3], [2, 1]))
    assert TypedOrder(a=a, b=b).equals(TypedOrder(b=b, a=a))
    for other in (TypedOrder(a=a), TypedOrder(a=a, b=b, c=b), TypedOrder(a=a, c=b), TypedOrder(a=b, b=b), a):
        assert not TypedOrder(a=a, b=b).equals(other)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("edge_id", [None, torch.int32, torch.int64])
@pytest.mark.parametrize("ends", [(True, True), (True, False), (False, True), (False, False)])
def test_a_relation_between_renumbered_types(dtype, edge_id, ends):
    csc = CSC.from_edge_index(torch.stack([torch.arange(40) * 3 % 7, torch.arange(40) * 5 % 9]), (7, 9))
    csc = CSC(csc.colptr, csc.row.to(dtype), None if edge_id is None else csc.edge_id.to(edge_id), 7)
    src, dst = (by_score(torch.arange(size) % 4) if there else None for size, there in zip((7, 9), ends, strict=True))
    found = reorder_relation(csc, src, dst)
    assert (found.num_src, found.num_dst, found.row.dtype) == (7, 9, dtype)
    assert edge_id is None or found.edge_id.dtype == edge_id
    row, col = found.row.long(), found.col()
    row, col = row if src is None else src.old[row], col if dst is None else dst.old[col]
    ours, given = (torch.arange(40) if one.edge_id is None else one.edge_id.long() for one in (found, csc))
    assert torch.equal(row[ours.argsort()], csc.row[given.argsort()].long())
    assert torch.equal(col[ours.argsort()], csc.col()[given.argsort()])
    for wrong in ((by_score(torch.arange(6)), None), (None, by_score(torch.arange(7)))):
        with pytest.raises(ValueError, match=r"^order of (src|dst): expected one of [79] nodes, found one of [67]$"):
            reorder_relation(csc, *wrong)


@pytest.mark.parametrize("node_type", ["a", "other"])
def test_ids_of_types_with_and_without_an_order(node_type):
    order, ids = TypedOrder(a=by_score(torch.tensor([1, 2, 3]))), torch.tensor([2, 0], dtype=torch.int32)
    stored = order.to_stored(ids, node_type)
    assert stored.dtype == torch.int64
    assert stored.tolist() == ([0, 2] if node_type == "a" else [2, 0])
    assert order.to_user(stored, node_type).tolist() == [2, 0]


@pytest.mark.parametrize(("ids", "at", "found"), [([-1], 0, -1), ([2, 3], 1, 3), ([[0, 1], [2, 1 << 40]], 3, 1 << 40)])
def test_ids_that_are_no_nodes_are_named(ids, at, found):
    order = by_score(torch.tensor([1, 2, 3]))
    message = rf"^ids\[{at}\] = {found} is out of range: expected nodes in \[0, 3\)$"
    for numbering, node_type in ((order, None), (TypedOrder(a=order), "a")):
        with pytest.raises(IndexError, match=message):
            numbering.to_stored(torch.tensor(ids), node_type)
    assert order.to_stored(torch.tensor([[0, 1], [2, 2]], dtype=torch.uint8)).tolist() == [[2, 1], [0, 0]]
