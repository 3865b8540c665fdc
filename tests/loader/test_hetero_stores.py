"""Attributes of edges, and of several types, through pairs of stores."""

import copy

import pytest
import torch
from helpers.data import ForeignFeatureStore, ForeignGraphStore, make_data, node_rows, our_stores
from helpers.hetero import (
    AUTHOR,
    CITES,
    HELD,
    LIKES,
    PAPER,
    REV_WRITES,
    VENUE,
    WRITES,
    check_edges,
    make_hetero,
)
from helpers.tiers import node_data
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler, TieredFeatureStore
from torch_gnnscale.loader.row_source import StoreRows
from torch_gnnscale.sampler import KeyedSampler, NeighborOutput


@pytest.mark.parametrize("put", ["coo", "csc", "csr"])
@pytest.mark.parametrize("ours", [True, False])
def test_attributes_of_edges_of_a_homogeneous_store(put, ours):
    # PyG reads them at the nodes' ids (its issue 9566).
    data = make_data()
    features, graph = FeatureStore.from_data(data), GraphStore()
    src, dst = data.edge_index
    by, other = {"coo": (dst, src), "csc": (dst, src), "csr": (src, dst)}[put]
    order = torch.arange(1500) if put == "coo" else by.sort(stable=True).indices
    pointer = torch._convert_indices_from_coo_to_csr(by[order], 200)
    value = {"coo": (src, dst), "csc": (other[order], pointer), "csr": (pointer, other[order])}[put]
    if not ours:
        features, graph = ForeignFeatureStore(), ForeignGraphStore()
        features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(value, None, put, size=(200, 200))
    for group in ((None, None), ("n", "r", "n")):  # a tuple is what makes it one of edges
        features.put_tensor(data.edge_attr[order], group_name=group, attr_name=f"of_{group[0]}", index=None)
    for batch in NeighborLoader((features, graph), [4, 3], torch.arange(60), batch_size=20, subgraph_type="induced"):
        expected = data.edge_attr[order][batch.e_id]
        assert torch.equal(data.edge_index[:, order][:, batch.e_id], batch.n_id[batch.edge_index])
        assert torch.equal(batch.of_None, expected)
        assert torch.equal(batch.of_n, expected)
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_stores_of_hetero_data():
    data = make_hetero()
    features, graph = our_stores(data)
    assert [attr.edge_type for attr in graph.get_all_edge_attrs()] == data.edge_types
    for edge_type in data.edge_types:
        row, col = graph.get_edge_index(edge_type, "coo")
        assert torch.equal(torch.stack([row, col]), data[edge_type].edge_index)
    found = {(attr.group_name, attr.attr_name) for attr in features.get_all_tensor_attrs()}
    assert found == {(PAPER, "x"), (PAPER, "y"), (AUTHOR, "x"), (VENUE, "x"), *((t, "edge_attr") for t in
                     (CITES, WRITES, HELD, LIKES))}  # fmt: skip
    assert torch.equal(features[CITES, "edge_attr", torch.tensor([3, 1])], data[CITES].edge_attr[[3, 1]])
    assert features.view(group_name=CITES).edge_attr[:].data_ptr() == data[CITES].edge_attr.data_ptr()
    data["ghost"].name = "no size"
    data[("ghost", "of", PAPER)].edge_index = torch.zeros(2, 1).long()
    with (
        pytest.warns(UserWarning, match="num_nodes"),
        pytest.raises(ValueError, match=r"^data\['ghost'\]: expected it"),
    ):
        GraphStore.from_data(data)


def test_saved_stores_of_hetero_data(tmp_path):
    data = make_hetero()
    for name, store in zip(("features", "graph"), our_stores(data), strict=True):
        store.save(tmp_path / name)
    opened = FeatureStore.open(tmp_path / "features"), GraphStore.open(tmp_path / "graph")
    loaders = (NeighborLoader(source, [3, 2], PAPER, batch_size=16, seed=1) for source in (opened, data))
    for found, expected in zip(*loaders, strict=True):
        check_edges(data, found)
        assert torch.equal(found[CITES].edge_attr, expected[CITES].edge_attr)
        assert torch.equal(found[REV_WRITES].e_id, expected[REV_WRITES].e_id)


def test_attributes_of_edges_without_ids_are_left_out():
    def drop(out):
        out.edge = None
        return out

    features, graph = FeatureStore.from_data(make_data()), GraphStore.from_data(make_data())
    for source in ((features, graph), make_data()):
        batch = next(iter(NeighborLoader(source, [2], torch.arange(4), transform_sampler_output=drop)))
        assert "edge_attr" not in batch
        assert "e_id" not in batch
        assert isinstance(batch, Data)


def test_a_batch_and_its_deep_copy_know_their_own_attributes():
    data = make_data()
    data.num_nodes = data.num_nodes  # given, not told by x
    batch = next(iter(NeighborLoader(data, [3, 2], batch_size=8)))
    other = copy.deepcopy(batch)
    other.x = other.x[:3]
    assert batch.is_node_attr("x")
    assert not other.is_node_attr("x")


def test_edge_types_of_another_length():
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    for edge_type in (("a", "a"), ("a", 0, "a"), ("a", "b", "c", "a")):
        graph = GraphStore()
        graph.put_edge_index(edge_index, edge_type=edge_type, layout="coo", size=(5, 5))
        sampler = NeighborSampler((FeatureStore(), graph), [1, 1])
        assert sampler.sample({"a": torch.tensor([3])}, None, 1).node["a"].tolist() == [3, 2, 1]


def test_features_without_a_type_are_refused():
    """A batch would have none of their rows."""
    data = make_hetero()
    graph, features = GraphStore.from_data(data), FeatureStore()
    features.put_tensor(torch.ones(len(data[PAPER].x), 2), group_name=None, attr_name="x", index=None)
    message = r"^data: expected features of types of nodes or edges, as the graph has, found \['x'\] of none$"
    with TieredFeatureStore.from_data(node_data(), names=["x"]) as tiers:
        for store in (features, tiers):
            with pytest.raises(ValueError, match=message):
                NeighborLoader((store, graph), [2], PAPER)


def test_features_of_fewer_nodes_are_refused():
    data = make_hetero()
    features = FeatureStore.from_data(data)
    features.put_tensor(data[PAPER].x[:7], group_name=PAPER, attr_name="x", index=None)
    with pytest.raises(ValueError, match=r"^data: expected a row of \('paper', 'x'\) for each of 40 nodes, found 7$"):
        NeighborLoader((features, GraphStore.from_data(data)), [2], PAPER)


@pytest.mark.parametrize("last", [0, 1])
def test_numbers_of_nodes_that_nobody_says_are_those_of_all_edges(last):
    graph, relations = ForeignGraphStore(), [torch.tensor([[0, 7], [2, 7]]), torch.tensor([[5], [1]])]
    for number in (1 - last, last):
        graph.put_edge_index(relations[number].unbind(), ("a", f"r{number}", "b"), "coo")
    sampler = NeighborSampler((ForeignFeatureStore(), graph), [2])
    assert sampler.node_bounds() == {"a": 8, "b": 8}


@pytest.mark.parametrize("layout", ["coo", "csc", "csr"])
def test_rows_of_features_say_how_many_nodes_there_are_where_edges_do_not(layout):
    features, graph = ForeignFeatureStore(), ForeignGraphStore()
    for node_type, rows in (("a", 6), ("b", 4)):
        features.put_tensor(torch.zeros(rows, 1), group_name=node_type, attr_name="x", index=None)
    src, dst = torch.tensor([4, 0]), torch.tensor([1, 2])  # node 5 of a and node 3 of b have no edge
    value = {
        "coo": (src, dst),
        "csc": (src, torch.tensor([0, 0, 1, 2])),
        "csr": (torch.tensor([0, 1, 1, 1, 1, 2]), dst.flip(0)),
    }
    graph.put_edge_index(value[layout], ("a", "to", "b"), layout)
    sampler = NeighborSampler((features, graph), [2])
    assert sampler.node_bounds() == {"a": 6, "b": 4}
    out = sampler.sample({"b": torch.arange(4)}, None, 1)
    assert out.node["a"][out.row["a", "to", "b"]].tolist() == [4, 0]


def test_rows_of_nodes_are_not_those_of_edges_of_the_same_name():
    data = make_data()
    features = FeatureStore()
    for group, value in ((("n", "r", "n"), data.edge_attr), (None, data.x), ((None, None), data.edge_attr)):
        features.put_tensor(value, group_name=group, attr_name="x", index=None)
    loader = NeighborLoader((features, GraphStore.from_data(data)), [4], batch_size=20)
    source, batch = StoreRows(*loader.data), loader._line.sample(torch.arange(20))
    rows = source.fetch(batch, loader._line.collator.bounds(batch), source.versions())
    assert torch.equal(source.node_rows(rows, "x"), data.x[batch.nodes[0]])
    assert source.node_rows(rows, "y") is None


@pytest.mark.parametrize("first", [0, 1, 2])
def test_of_several_layouts_of_a_store_the_columns_are_read(first):
    """Then pairs, then rows, as in PyG, in whatever order the store has them."""
    src, dst = torch.tensor([1, 2]), torch.tensor([0, 0])
    values = {
        "coo": (src, dst),
        "csc": (src + 2, torch.tensor([0, 2, 2, 2, 2, 2])),
        "csr": (torch.tensor([0, 0, 0, 0, 0, 1]), dst[:1]),
    }
    graph = ForeignGraphStore()
    for layout in [*values][first:] + [*values][:first]:
        graph.put_edge_index(values[layout], None, layout, size=(5, 5))
    for removed, nodes in (("csc", [0, 3, 4]), ("coo", [0, 1, 2]), ("csr", [0, 4])):
        sampler = NeighborSampler((ForeignFeatureStore(), graph), [-1])
        assert sampler.sample(torch.tensor([0]), None, 1).node.tolist() == nodes
        graph.remove_edge_index(None, removed)


def test_times_of_nodes_are_those_of_their_types():
    data, features = make_hetero(), FeatureStore()
    for node_type in (None, *data.node_types):
        count = 5 if node_type is None else data[node_type].num_nodes
        features.put_tensor(torch.arange(count), group_name=node_type, attr_name="time", index=None)
    sampler = NeighborSampler((features, GraphStore.from_data(data)), [2], time_attr="time")
    assert list(sampler.graph.node_time) == data.node_types


@pytest.mark.parametrize("sizes", [(5, 4), (4, 5)])
def test_numbers_of_nodes_that_relations_do_not_agree_on(sizes):
    graph, edges = ForeignGraphStore(), (torch.tensor([0]), torch.tensor([1]))
    for number, size in enumerate(sizes):
        graph.put_edge_index(edges, ("a", f"r{number}", "b"), "coo", size=(size, 6))
    message = rf"^data: expected one number of nodes of 'a' in all edges, found {sizes[0]} and {sizes[1]}; pass size="
    with pytest.raises(ValueError, match=message):
        NeighborSampler((ForeignFeatureStore(), graph), [2])


class SelfLoops(KeyedSampler):
    """The seeds, each with an edge to itself."""

    def node_bounds(self):
        return {None: 9}

    def sample_from_nodes(self, inputs, key=None):
        loops = torch.arange(len(inputs.node))
        return NeighborOutput(inputs.node, loops, loops, None, None, None, None, metadata=(inputs.input_id, None))


def test_a_graph_without_stored_edges_has_no_types():
    features = FeatureStore()
    features.put_tensor(node_rows(torch.arange(9)), group_name=None, attr_name="x", index=None)
    batch = next(iter(NeighborLoader((features, GraphStore()), [2], torch.tensor([7, 2]), neighbor_sampler=SelfLoops(),
                                     batch_size=2)))  # fmt: skip
    assert torch.equal(batch.x, node_rows(torch.tensor([7, 2])))
