import pickle
import re

import pytest
import torch
from helpers.data import ForeignGraphStore, edges_of, make_data
from torch_geometric.data import Data, remote_backend_utils
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.utils import index_sort

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborSampler

LAYOUTS = ("coo", "csc", "csr")
CITES = ("paper", "cites", "paper")
WRITES = ("author", "writes", "paper")


def as_layout(edge_index, layout, num_src, num_dst):
    """What a user puts into a store: (row, col) of a layout, and for each stored edge its column in edge_index."""
    src, dst = edge_index
    if layout == "coo":
        return (src, dst), torch.arange(src.numel())
    by, other, size = (dst, src, num_dst) if layout == "csc" else (src, dst, num_src)
    order = by.sort(stable=True).indices
    pointer = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(by, minlength=size).cumsum(0)])
    return (pointer, other[order]) if layout == "csr" else (other[order], pointer), order


def as_triples(row, col, perm, layout):
    """(row, col, perm) of any layout as a sorted list of edges with their ids."""
    if layout == "csr":
        row = torch.repeat_interleave(row.diff())
    elif layout == "csc":
        col = torch.repeat_interleave(col.diff())
    perm = torch.arange(row.numel()) if perm is None else perm
    return sorted(zip(row.tolist(), col.tolist(), perm.tolist(), strict=True))


def stores_of(put, edge_index, edge_type=None, num_src=40, num_dst=40, is_sorted=False):
    """Our store and a foreign one with the same edges."""
    stores = GraphStore(), ForeignGraphStore()
    value, order = as_layout(edge_index, put, num_src, num_dst)
    for store in stores:
        attr = EdgeAttr(edge_type, put, is_sorted=is_sorted, size=(num_src, num_dst))
        assert store.put_edge_index(value, attr)
    return *stores, order


@pytest.mark.parametrize("put", LAYOUTS)
@pytest.mark.parametrize("get", LAYOUTS)
def test_get_in_every_layout(put, get):
    edge_index = edges_of(40, 300)
    store, _, _ = stores_of(put, edge_index)
    row, col = store.get_edge_index(None, get)
    found = as_triples(row, col, None, get)
    assert sorted(edge[:2] for edge in found) == sorted(zip(*edge_index.tolist(), strict=True))
    if get != "coo":
        (row_expected, col_expected), _ = as_layout(edge_index, get, 40, 40)
        pointer, expected = (row, row_expected) if get == "csr" else (col, col_expected)
        assert torch.equal(pointer, expected)


@pytest.mark.parametrize("get", LAYOUTS)
def test_order_is_kept_where_the_layout_is(get):
    edge_index = edges_of(40, 300)
    store, _, _ = stores_of(get, edge_index)
    (row_expected, col_expected), _ = as_layout(edge_index, get, 40, 40)
    row, col = store.get_edge_index(None, get)
    assert torch.equal(row, row_expected)
    assert torch.equal(col, col_expected)


@pytest.mark.parametrize("put", LAYOUTS)
@pytest.mark.parametrize("get", LAYOUTS)
@pytest.mark.parametrize("edge_type", [None, CITES])
def test_conversions_are_those_of_pyg(put, get, edge_type):
    edge_index = edges_of(40, 300)
    store, foreign, _ = stores_of(put, edge_index, edge_type)
    found, expected = getattr(store, get)(), getattr(foreign, get)()
    if edge_type is not None:
        assert [list(part) for part in found] == [[edge_type]] * 3
        found, expected = ([part[edge_type] for part in parts] for parts in (found, expected))
    if get != "coo":
        pointer = 0 if get == "csr" else 1
        assert torch.equal(found[pointer], expected[pointer])
        assert found[pointer].dtype == expected[pointer].dtype
    assert as_triples(*found, get) == as_triples(*expected, get)


@pytest.mark.parametrize("put", LAYOUTS)
@pytest.mark.parametrize("get", LAYOUTS)
@pytest.mark.parametrize(("num_src", "num_dst"), [(7, 3), (3, 7)])
def test_layouts_of_a_relation_of_other_sources_than_destinations(put, get, num_src, num_dst):
    src = torch.tensor([0, 2, 1, 2, 0, 1, 2])
    edges = torch.stack([src + num_src - 3, src.flip(0) + num_dst - 3])
    store, foreign, _ = stores_of(put, edges, WRITES, num_src, num_dst)
    assert (store.relation(WRITES).num_src, store.relation(WRITES).num_dst) == (num_src, num_dst)
    found, expected = ([part[WRITES] for part in getattr(each, get)()] for each in (store, foreign))
    assert as_triples(*found, get) == as_triples(*expected, get)
    if get != "coo":
        pointer = 0 if get == "csr" else 1
        assert torch.equal(found[pointer], expected[pointer])


def test_sorted_coo_needs_no_permutation():
    edge_index = edges_of(40, 300)
    edge_index = edge_index[:, edge_index[1].sort(stable=True).indices]
    store, foreign, _ = stores_of("coo", edge_index, is_sorted=True)
    assert store.relation().edge_id is None
    for found, expected in zip(store.csc(), foreign.csc(), strict=True):
        assert found is expected is None or torch.equal(found, expected)


def test_relations_side_by_side():
    store = GraphStore()
    cites, writes = edges_of(30, 200), edges_of(30, 100, seed=1) % torch.tensor([[12], [30]])
    store[CITES, "coo", False, (30, 30)] = cites[0], cites[1]
    store[WRITES, "coo", False, (12, 30)] = writes[0], writes[1]
    attrs = {attr.edge_type: attr for attr in store.get_all_edge_attrs()}
    assert list(attrs) == [CITES, WRITES]
    assert [attr.size for attr in attrs.values()] == [(30, 30), (12, 30)]
    assert all(attr.layout == EdgeLayout.CSC and attr.is_sorted for attr in attrs.values())
    for edge_type, edges in ((CITES, cites), (WRITES, writes)):
        csc = store.relation(edge_type)
        assert torch.equal(edges[:, csc.edge_id.long()], torch.stack([csc.row.long(), csc.col()]))
    assert list(store.csc([WRITES])[0]) == [WRITES]
    with pytest.raises(ValueError, match="was not found in the graph store"):
        store.csc([("author", "reads", "paper")])
    features = FeatureStore()
    assert remote_backend_utils.num_nodes(features, store, "author") == 12
    assert remote_backend_utils.num_nodes(features, store, "paper") == 30
    assert remote_backend_utils.size(features, store, CITES) == (30, 30)


def test_remove_and_missing():
    store, _, _ = stores_of("coo", edges_of(40, 300), CITES)
    with pytest.raises(KeyError):
        store.get_edge_index(WRITES, "csc")
    with pytest.raises(KeyError, match="expected one of"):
        store.relation(None)
    assert not store.remove_edge_index(WRITES, "csc")
    assert store.remove_edge_index(CITES, "coo")
    assert store.get_all_edge_attrs() == []
    with pytest.raises(KeyError):
        store.get_edge_index(CITES, "csc")
    store[CITES, "coo"] = tuple(edges_of(40, 300))
    del store[CITES, "coo"]
    assert store.get_all_edge_attrs() == []


def test_putting_again_replaces():
    store, _, _ = stores_of("coo", edges_of(40, 300))
    store.put_edge_index(tuple(torch.tensor([[1], [0]])), None, "coo", size=(2, 2))
    assert store.relation().num_edges == 1
    assert len(store.get_all_edge_attrs()) == 1


@pytest.mark.parametrize("put", LAYOUTS)
def test_a_homogeneous_graph_without_size_is_square(put):
    # Node 39 is nobody's destination: the size cannot come from the destinations alone.
    edge_index = torch.tensor([[39, 0, 3], [1, 5, 0]])
    value, _ = as_layout(edge_index, put, 40, 40)
    store = GraphStore()
    store.put_edge_index(value, None, put)
    assert (store.relation().num_src, store.relation().num_dst) == (40, 40)


@pytest.mark.parametrize("put", LAYOUTS)
@pytest.mark.parametrize(("edge_type", "size"), [(("a", "to", "b"), (5, 4)), (("a", "to", "a"), (5, 5))])
def test_each_type_has_the_nodes_up_to_its_largest_id(put, edge_type, size):
    edge_index = torch.tensor([[0, 4], [3, 1]])
    value, _ = as_layout(edge_index, put, 5, size[1])
    store = GraphStore()
    store.put_edge_index(value, edge_type, put)
    assert (store.relation(edge_type).num_src, store.relation(edge_type).num_dst) == size


@pytest.mark.parametrize("put", LAYOUTS)
@pytest.mark.parametrize("edge_type", [None, ("a", "to", "b"), ("a", "to", "a")])
def test_nodes_beyond_the_largest_id_count_where_a_size_is_given(put, edge_type):
    """In all relations, whichever end they are, and of both numbers."""
    size = (9, 7) if edge_type == ("a", "to", "b") else (9, 9)
    edge_index = torch.tensor([[0, 4, 4], [3, 1, 1]])
    value, _ = as_layout(edge_index, put, *size)
    store = GraphStore()
    store.put_edge_index(value, edge_type, put, size=size)
    relation = store.relation(edge_type)
    assert (relation.num_src, relation.num_dst, relation.num_edges) == (*size, 3)
    for get in LAYOUTS:
        row, col = store.get_edge_index(edge_type=edge_type, layout=get)
        found = as_triples(row, col, None, get)
        assert sorted(entry[:2] for entry in found) == sorted(map(tuple, edge_index.t().tolist()))


@pytest.mark.parametrize("put", LAYOUTS)
def test_types_of_a_foreign_store_have_the_nodes_up_to_their_largest_id(put):
    graph = ForeignGraphStore()
    value, _ = as_layout(torch.tensor([[0, 4], [3, 1]]), put, 5, 4)
    graph.put_edge_index(value, ("a", "to", "b"), put)
    assert NeighborSampler((FeatureStore(), graph), [2]).node_bounds() == {"a": 5, "b": 4}


@pytest.mark.parametrize(("put", "size"), [("csc", (40, 41)), ("csr", (41, 40))])
def test_size_and_pointer_disagree(put, size):
    value, _ = as_layout(edges_of(40, 300), put, 40, 40)
    with pytest.raises(ValueError, match="41"):
        GraphStore().put_edge_index(value, None, put, size=size)


@pytest.mark.parametrize("put", LAYOUTS)
def test_bad_ids(put):
    value, _ = as_layout(edges_of(40, 300), put, 40, 40)
    value = [entry.clone() for entry in value]
    value[1 if put == "csr" else 0][7] = 40
    with pytest.raises(IndexError, match="= 40 is out of range"):
        GraphStore().put_edge_index(tuple(value), None, put, size=(40, 40))


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize(
    ("edge_id", "message"),
    [
        ([10, 20, 30], "edge_id[0] = 10, which is not in [0, 3)"),
        ([0, 1, -1], "edge_id[2] = -1, which is not in [0, 3)"),
        ([0, 0, 1], "edge_id: expected every number in [0, 3) once, found 2 not at all"),
    ],
)
def test_layouts_by_edge_ids_that_are_no_permutation(edge_id, message, layout):
    """Columns have their own order; COO and CSR are made by the edges' ids."""
    colptr, row = torch.tensor([0, 1, 3]), torch.tensor([1, 0, 1])
    store = GraphStore.from_csc(CSC.from_csc(colptr, row, torch.tensor(edge_id)))
    assert all(map(torch.equal, store.get_edge_index(edge_type=None, layout="csc"), (row, colptr)))
    with pytest.raises(ValueError, match=f"^relation None: {re.escape(message)}$"):
        store.get_edge_index(edge_type=None, layout=layout)


def test_bad_row_pointer():
    with pytest.raises(ValueError, match="expected the number of edges"):
        GraphStore().put_edge_index((torch.tensor([0, 1, 5]), torch.tensor([0, 1])), None, "csr", size=(2, 2))


def test_constructors_agree():
    data = make_data()
    stores = [
        GraphStore.from_data(data),
        GraphStore.from_edge_index(data.edge_index, 200),
        GraphStore.from_csc(CSC.from_data(data)),
    ]
    for store in (*stores, pickle.loads(pickle.dumps(stores[0]))):
        found, expected = store.relation(), stores[0].relation()
        for name in ("colptr", "row", "edge_id"):
            assert torch.equal(getattr(found, name), getattr(expected, name))
    assert "num_edges=1500" in repr(stores[0])


def test_a_store_that_was_opened_by_a_relative_path_is_pickled(graph, monkeypatch):
    monkeypatch.chdir(graph.parent)
    store = GraphStore.open(graph.name)
    monkeypatch.chdir("/")
    other = pickle.loads(pickle.dumps(store))
    attr = EdgeAttr(None, EdgeLayout.CSC)
    assert all(map(torch.equal, other.get_edge_index(attr), store.get_edge_index(attr)))


def test_agrees_with_data_as_a_store():
    data = make_data()
    store = GraphStore.from_data(data)
    assert isinstance(data, Data)
    found, expected = store.csc(), data.csc()
    assert torch.equal(found[1], expected[1])
    assert as_triples(*found, "csc") == as_triples(*expected, "csc")
    order = index_sort(data.edge_index[1], max_value=200, stable=True)[1]
    assert torch.equal(found[2], order)
