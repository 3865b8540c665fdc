import mmap
import warnings

import numpy as np
import pytest
import torch
from helpers import forked
from helpers.data import edges_of, make_data
from helpers.slow import examples
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader, NeighborSampler

DTYPES = (torch.int32, torch.int64)


def check_csc(csc, edge_index, num_src, num_dst):
    """The CSC holds exactly these edges, stably sorted, and leads back to them."""
    src, dst = edge_index.long()
    assert (csc.num_src, csc.num_dst, csc.num_edges) == (num_src, num_dst, src.numel())
    assert csc.colptr.dtype == torch.int64
    assert csc.row.dtype == torch.int32
    degree = torch.bincount(dst, minlength=num_dst)
    assert torch.equal(csc.colptr, torch.cat([degree.new_zeros(1), degree.cumsum(0)]))
    edge_id = torch.arange(src.numel()) if csc.edge_id is None else csc.edge_id.long()
    assert torch.equal(edge_id, dst.sort(stable=True).indices)
    assert torch.equal(csc.row.long(), src[edge_id])
    assert torch.equal(csc.col(), dst[edge_id])
    assert csc.col().dtype == torch.int64


@st.composite
def coo_graphs(draw):
    num_nodes = draw(st.integers(1, 12))
    ids = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(ids, ids), max_size=40))
    dtype = draw(st.sampled_from(DTYPES))
    return num_nodes, torch.tensor(edges, dtype=dtype).reshape(-1, 2).t()


@pytest.mark.slow
@examples(60)
@given(coo_graphs())
def test_from_edge_index_of_any_graph(graph):
    num_nodes, edge_index = graph
    before = edge_index.clone()
    check_csc(CSC.from_edge_index(edge_index, num_nodes), before, num_nodes, num_nodes)
    assert torch.equal(edge_index, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sort", [False, True])
def test_from_edge_index(dtype, sort):
    edge_index = edges_of(50, 400, dtype=dtype)
    if sort:
        edge_index = edge_index[:, edge_index[1].sort(stable=True).indices]
    check_csc(CSC.from_edge_index(edge_index, 50, is_sorted=sort), edge_index, 50, 50)
    assert (CSC.from_edge_index(edge_index, 50, is_sorted=sort).edge_id is None) == sort


def test_ids_are_int32_where_they_fit():
    csc = CSC.from_edge_index(edges_of(50, 400), 50)
    assert csc.row.dtype == csc.edge_id.dtype == torch.int32
    wide = CSC.from_edge_index(torch.tensor([[2**31, 5], [1, 0]]), (2**31 + 1, 2))
    assert wide.row.dtype == torch.int64
    assert wide.row.tolist() == [5, 2**31]
    assert CSC.from_csc(torch.tensor([0, 1]), torch.tensor([2**31 - 2]), num_src=2**31 - 1).row.dtype == torch.int32


@pytest.mark.parametrize(
    ("size", "expected"),
    [(None, (8, 8)), (9, (9, 9)), ((8, 5), (8, 5)), ((None, 6), (8, 6)), ((10, None), (10, 5)), ((12, 20), (12, 20))],
)
def test_size(size, expected):
    edge_index = torch.tensor([[7, 0, 3, 3], [4, 4, 0, 2]])
    check_csc(CSC.from_edge_index(edge_index, size), edge_index, *expected)


@pytest.mark.parametrize("sort_order", ["col", "row", None])
@pytest.mark.parametrize("size", [(40, 40), (None, None), (45, 50)])
def test_from_edge_index_class(sort_order, size):
    plain = edges_of(40, 300)
    plain[:, 0] = 39
    if sort_order is not None:
        plain = plain[:, plain[0 if sort_order == "row" else 1].sort(stable=True).indices]
    csc = CSC.from_edge_index(EdgeIndex(plain, sparse_size=size, sort_order=sort_order))
    check_csc(csc, plain, size[0] or 40, size[1] or 40)
    assert (csc.edge_id is None) == (sort_order == "col")


def test_input_is_never_changed_nor_written():
    with mmap.mmap(-1, 2 * 300 * 8) as memory:
        memory.write(edges_of(30, 300).numpy().tobytes())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            edge_index = torch.frombuffer(memory, dtype=torch.int64).view(2, 300)
        before = edge_index.clone()
        # Columns of a [E, 2] tensor, and every other column of a wider one.
        for given_edges in (edge_index, edge_index.t().contiguous().t(), edge_index.repeat_interleave(2, 1)[:, ::2]):
            check_csc(CSC.from_edge_index(given_edges, 30), before, 30, 30)
            check_csc(GraphStore.from_edge_index(given_edges, 30).relation(), before, 30, 30)
            assert torch.equal(given_edges, before)
        csc = CSC.from_edge_index(edge_index, 30)
        del edge_index, given_edges
    colptr, row = csc.colptr.clone(), csc.row.clone()
    CSC.from_csc(colptr, row)
    assert torch.equal(colptr, csc.colptr)
    assert torch.equal(row, csc.row)


def test_read_only_memory(tmp_path):
    (tmp_path / "edges").write_bytes(edges_of(30, 300).numpy().tobytes())
    with (tmp_path / "edges").open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edge_index = torch.frombuffer(memory, dtype=torch.int64).view(2, 300)
    check_csc(CSC.from_edge_index(edge_index, 30), edges_of(30, 300), 30, 30)


@pytest.mark.parametrize(
    "convert",
    [
        lambda edges: edges.tolist(), lambda edges: edges.numpy(), lambda edges: tuple(map(tuple, edges.tolist())),
        lambda edges: edges.numpy()[:, ::-1][:, ::-1], lambda edges: edges.numpy().astype(np.uint16),
        lambda edges: edges.to(torch.uint8), lambda edges: edges.to(torch.int16),
    ],
    ids=["list", "array", "tuples", "strided array", "uint16 array", "uint8", "int16"],
)  # fmt: skip
def test_edges_come_in_what_input_nodes_come_in(convert):
    edges = edges_of(30, 300)
    given = convert(edges)
    expected = CSC.from_edge_index(edges, 30)
    for csc in (CSC.from_edge_index(given, 30), GraphStore.from_edge_index(given, 30).relation()):
        assert torch.equal(csc.colptr, expected.colptr)
        assert torch.equal(csc.row, expected.row)
        assert torch.equal(csc.edge_id, expected.edge_id)
    for empty in ([[], []], np.empty((2, 0))):
        assert CSC.from_edge_index(empty, 5).num_edges == 0


def hetero(**nodes):
    data = HeteroData()
    data["a"].x = torch.arange(6.0).view(6, 1)
    for name, value in nodes.items():
        data["b"][name] = value
    data["a", "to", "a"].edge_index = torch.tensor([[0, 1, 2], [1, 2, 3]])
    data["b", "to", "a"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    return data


def test_a_node_type_without_nodes_is_a_type():
    accessed = hetero()
    assert len(accessed["b"]) == 0
    for data in (hetero(), accessed, hetero(num_nodes=0), hetero(x=torch.empty(0, 4))):
        types = list(data.node_types)
        store = GraphStore.from_data(data)
        assert data.node_types == types  # looked at, not changed
        assert store.relation(("b", "to", "a")).num_src == 0
        for source in (data, (FeatureStore.from_data(data), store)):
            sampler = NeighborSampler(source, [2])
            assert dict(zip(sampler.graph.node_types, sampler.graph.sizes, strict=True)) == {"a": 6, "b": 0}
            (batch,) = NeighborLoader(source, [2, 2], ("a", torch.arange(6)), batch_size=6)
            assert batch["a"].n_id.tolist() == list(range(6))
            assert batch["b"].n_id.tolist() == []
            assert batch["b", "to", "a"].edge_index.shape == (2, 0)
            assert list(NeighborLoader(source, [2], "b")) == []


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
def test_edges_between_nodes_that_are_not_there():
    missing = r"^data\['b'\]: expected it to know its number of nodes; set num_nodes$"
    for data in (hetero(), hetero(y=torch.empty(0)), hetero(name="b")):
        data["b", "to", "a"].edge_index = torch.tensor([[0], [1]])
        for make in (GraphStore.from_data, lambda data: NeighborSampler(data, [2])):
            with pytest.raises(ValueError, match=missing):
                make(data)
    data = hetero(num_nodes=0)
    data["b", "to", "a"].edge_index = torch.tensor([[0], [1]])
    with pytest.raises(IndexError, match=r"^edge_index\[0, 0\] = 0 is out of range: expected nodes in \[0, 0\)$"):
        GraphStore.from_data(data)


@pytest.mark.parametrize("colptr_dtype", DTYPES)
@pytest.mark.parametrize("row_dtype", DTYPES)
def test_from_csc(colptr_dtype, row_dtype):
    csc = CSC.from_csc(torch.tensor([0, 2, 2, 3], dtype=colptr_dtype), torch.tensor([4, 0, 1], dtype=row_dtype),
                       num_src=5)  # fmt: skip
    check_csc(csc, torch.tensor([[4, 0, 1], [0, 0, 2]]), 5, 3)
    assert csc.edge_id is None
    ids = torch.tensor([2, 0, 1], dtype=row_dtype)
    assert CSC.from_csc(torch.tensor([0, 3]), torch.tensor([0, 0, 0]), ids).edge_id.tolist() == [2, 0, 1]


def test_edges_in_adj_are_refused_rather_than_left_out():
    adj = torch.eye(4).to_sparse_csr()
    with pytest.raises(ValueError, match=r"^data: expected edge_index or adj_t, found adj; use data\.adj_t = "):
        CSC.from_data(Data(num_nodes=4, adj=adj))
    check_csc(CSC.from_data(Data(num_nodes=4, adj_t=adj.t())), torch.arange(4).repeat(2, 1), 4, 4)
    edges = torch.tensor([[0, 1], [1, 2]])
    check_csc(CSC.from_data(Data(num_nodes=4, adj=adj, edge_index=edges)), edges, 4, 4)


def test_from_data():
    data = make_data()
    check_csc(CSC.from_data(data), data.edge_index, 200, 200)
    check_csc(CSC.from_data(Data(num_nodes=4)), torch.empty(2, 0, dtype=torch.int64), 4, 4)
    data.num_nodes = 250
    assert CSC.from_data(data).num_dst == 250
    with pytest.raises(ValueError, match=r"^data: expected it to know its number of nodes"):
        CSC.from_data(Data())


def dense_order(layout):
    """Edges as positions in the values of a sparse adj_t: sources, destinations; values are 10, 11, ..."""
    src, dst = torch.tensor([[2, 0, 1, 1, 3], [0, 3, 0, 2, 3]])
    adj_t = torch.zeros(4, 4)
    adj_t[dst, src] = 1.0
    adj_t = adj_t.to_sparse(layout=layout)
    if layout == torch.sparse_coo:
        return adj_t, adj_t.coalesce().indices().flip(0)
    if layout == torch.sparse_csr:
        return adj_t, torch.stack([adj_t.col_indices(), torch.repeat_interleave(adj_t.crow_indices().diff())])
    return adj_t, torch.stack([torch.repeat_interleave(adj_t.ccol_indices().diff()), adj_t.row_indices()])


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
def test_from_adj_t(layout):
    adj_t, edge_index = dense_order(layout)
    check_csc(CSC.from_data(Data(num_nodes=4, adj_t=adj_t)), edge_index, 4, 4)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
def test_from_adj_t_between_two_types(layout):
    edge_index = torch.tensor([[2, 0, 4, 1], [0, 1, 1, 2]])
    adj_t = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(4), (3, 5)).coalesce()
    adj_t = adj_t if layout == torch.sparse_coo else adj_t.to_sparse(layout=layout)
    csc = CSC.from_adj_t(adj_t)
    assert (csc.num_src, csc.num_dst) == (5, 3)
    assert sorted(zip(csc.row.tolist(), csc.col().tolist(), strict=True)) == sorted(map(tuple, edge_index.t().tolist()))


def test_from_uncoalesced_adj_t():
    edge_index = torch.tensor([[2, 0, 2, 1], [1, 0, 1, 0]])
    adj_t = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(4), (3, 3))
    check_csc(CSC.from_adj_t(adj_t), edge_index, 3, 3)


def test_from_sparse_tensor():
    sparse = pytest.importorskip("torch_sparse")
    src, dst = edges_of(30, 200)
    adj_t = sparse.SparseTensor(row=dst, col=src, value=torch.arange(200), sparse_sizes=(30, 30))
    row, col, value = adj_t.coo()
    csc = CSC.from_data(Data(num_nodes=30, adj_t=adj_t))
    check_csc(csc, torch.stack([col, row]), 30, 30)
    assert torch.equal(src[value], csc.row.long())


@pytest.mark.parametrize(
    ("edge_index", "size", "is_sorted", "error", "message"),
    [
        ([[0, 1]], None, False, ValueError, "edge_index: expected shape (2, num_edges), found (1, 2)"),
        (torch.zeros(3, 2, dtype=torch.long), None, False, ValueError,
         "edge_index: expected shape (2, num_edges), found (3, 2)"),
        (torch.zeros(2, dtype=torch.long), None, False, ValueError,
         "edge_index: expected shape (2, num_edges), found (2,)"),
        (torch.zeros(2, 3), None, False, TypeError, "edge_index: expected integers, found torch.float32"),
        (torch.tensor([[0, 5], [1, 1]]), 5, False, IndexError,
         "edge_index[0, 1] = 5 is out of range: expected nodes in [0, 5)"),
        (torch.tensor([[0, 2], [1, -1]]), 5, False, IndexError,
         "edge_index[1, 1] = -1 is out of range: expected nodes in [0, 5)"),
        (torch.tensor([[0, 2], [0, 9]]), 5, True, IndexError,
         "edge_index[1, 1] = 9 is out of range: expected nodes in [0, 5)"),
        (torch.tensor([[0, 9], [0, 1]]), 5, True, IndexError,
         "edge_index[0, 1] = 9 is out of range: expected nodes in [0, 5)"),
        (torch.tensor([[0, 4], [1, 3]]), (5, 3), False, IndexError,
         "edge_index[1, 1] = 3 is out of range: expected nodes in [0, 3)"),
        (torch.tensor([[0, 3], [1, 4]]), (3, 5), True, IndexError,
         "edge_index[0, 1] = 3 is out of range: expected nodes in [0, 3)"),
        (torch.tensor([[0, 4], [1, 3]]), (5, 3), True, IndexError,
         "edge_index[1, 1] = 3 is out of range: expected nodes in [0, 3)"),
        (torch.tensor([[0, 2], [3, 1]]), 5, True, ValueError,
         "is_sorted: expected edges sorted by destination, found dst[1] = 1 after 3"),
    ],
)  # fmt: skip
def test_bad_edge_index(edge_index, size, is_sorted, error, message):
    with pytest.raises(error) as caught:
        CSC.from_edge_index(edge_index, size, is_sorted)
    assert str(caught.value) == message


def test_sorted_edges_of_a_wrong_dtype():
    with pytest.raises(TypeError, match=r"^edge_index: expected integers, found torch.float32$"):
        CSC.from_edge_index(torch.zeros(2, 3), 5, is_sorted=True)


@pytest.mark.parametrize(
    ("colptr", "row", "edge_id", "error", "message"),
    [
        ([1, 2], [0, 0], None, ValueError, "colptr[0]: expected 0, found 1"),
        ([0, 2, 1, 2], [0, 0], None, ValueError, "colptr[2] = 1 is less than colptr[1] = 2"),
        ([0, 1, 1], [0, 0], None, ValueError, "colptr[2] (the last): expected the number of edges 2, found 1"),
        ([0.0, 2.0], [0, 0], None, TypeError, "colptr: expected an int64 tensor, found torch.float32"),
        ([], [], None, TypeError, "colptr: expected an int64 tensor, found torch.float32"),
        ([[0, 2]], [0, 0], None, ValueError, "colptr: expected a vector of at least one entry, found shape (1, 2)"),
        ([0, 2], [0.0, 0.0], None, TypeError, "row: expected a vector of int32 or int64, found torch.float32 (2,)"),
        ([0, 2], [[0, 0]], None, TypeError, "row: expected a vector of int32 or int64, found torch.int64 (1, 2)"),
        ([0, 2], [0, 1], None, IndexError, "row[1] = 1 is out of range: expected nodes in [0, 1)"),
        ([0, 2], [-1, 0], None, IndexError, "row[0] = -1 is out of range: expected nodes in [0, 1)"),
        ([0, 2], [0, 0], [0], TypeError, "edge_id: expected int32 or int64 ids for 2 edges, found torch.int64 (1,)"),
        ([0, 1], [0], [0.5], TypeError, "edge_id: expected int32 or int64 ids for 1 edges, found torch.float32 (1,)"),
    ],
)
def test_bad_csc(colptr, row, edge_id, error, message):
    with pytest.raises(error) as caught:
        CSC.from_csc(torch.tensor(colptr), torch.tensor(row), None if edge_id is None else torch.tensor(edge_id))
    assert str(caught.value) == message


def test_csc_of_no_tensors():
    pointer, ids = torch.tensor([0, 1]), torch.tensor([0])
    for name, arguments in (("colptr", ([0, 1], ids)), ("row", (pointer, [0])), ("edge_id", (pointer, ids, [0]))):
        with pytest.raises(TypeError, match=rf"^{name}: expected a tensor, found list$"):
            CSC.from_csc(*arguments)
    with pytest.raises(TypeError, match=r"^num_src: expected an int, found float$"):
        CSC.from_csc(pointer, ids, num_src=1.0)


@pytest.mark.parametrize(
    ("size", "error", "message"),
    [
        (50.0, TypeError, "num_src: expected an int, found float"),
        ("50", TypeError, "num_src: expected an int, found str"),
        (True, TypeError, "num_src: expected an int, found bool"),
        ((50, 2.5), TypeError, "num_dst: expected an int, found float"),
        (
            (50, 50, 50),
            ValueError,
            r"size: expected a number of nodes or \(sources, destinations\), found \(50, 50, 50\)",
        ),
        ([50], ValueError, r"size: expected a number of nodes or \(sources, destinations\), found \[50\]"),
    ],
)
def test_bad_sizes(size, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        CSC.from_edge_index(edges_of(40, 300), size)


@pytest.mark.parametrize("size", [[50, 60], (np.int64(50), 60), (50, None)], ids=str)
def test_sizes_of_other_types(size):
    edges = edges_of(40, 300)
    for is_sorted in (False, True):
        edges = edges[:, edges[1].sort(stable=True).indices]
        check_csc(CSC.from_edge_index(edges, size, is_sorted), edges, 50, size[1] or int(edges[1].max()) + 1)


def test_bad_adj_t():
    with pytest.raises(TypeError, match=r"^adj_t: expected torch.sparse_csr, .* found a tensor of torch.strided$"):
        CSC.from_adj_t(torch.eye(3))
    with pytest.raises(IndexError, match="out of range"):
        CSC.from_data(Data(x=torch.zeros(3, 1), edge_index=torch.tensor([[0, 7], [1, 1]])))


NEGATIVE = """
import torch
from torch_gnnscale import CSC

edges = torch.tensor([[0, 0], [0, 0]])
for size in (-1, (-1, 3), (3, -1), (-(2**62), 3)):
    for is_sorted in (False, True):
        try:
            CSC.from_edge_index(edges, size, is_sorted)
        except ValueError as error:
            assert "size" in str(error) or "num_" in str(error), error
            print("refused", flush=True)
try:
    CSC.from_csc(torch.tensor([0, 1]), torch.tensor([0]), num_src=-1)
except (ValueError, IndexError):
    print("refused", flush=True)
"""


@pytest.mark.slow
def test_negative_sizes():
    done = forked.run(NEGATIVE)
    assert (done.returncode, done.stdout.split()) == (0, ["refused"] * 9), done.stderr
