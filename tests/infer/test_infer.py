"""Inference gives the rows of the model on the whole graph."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.inference import ByIds, check, evaluated, of_batch, sorted_data, with_attributes
from helpers.narrow import FEATURES, MODELS, Branches, basic
from helpers.slow import examples, quick
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch_geometric.data import Data
from torch_geometric.utils import sort_edge_index

from torch_gnnscale import FeatureStore, GraphStore
from torch_gnnscale.infer import infer
from torch_gnnscale.nn import narrow
from torch_gnnscale.topology.reorder import Order

BATCHED = {name: make for name, make in MODELS.items() if name != "sage lstm"}
"""PyG's LSTM goes on over the padding after a node's neighbors, so that it reads the degrees of the nodes beside it."""


@pytest.mark.parametrize("make", quick(BATCHED, "sage", "jumping, cat", "gcn", "gat", "gcn2", "residual in place"))
def test_rows_are_those_of_the_whole_graph(make):
    data, model = sorted_data(), evaluated(make)
    check(infer(model, data, batch_size=64), model(data.x, data.edge_index))


@pytest.mark.slow
def test_edges_have_attributes():
    data, model = sorted_data(), evaluated(Branches)
    check(infer(model, data, with_attributes, batch_size=30), with_attributes(model, data))


class Later(nn.Module):
    """Its third layer reads what the first one returned, as it is; the second one does not."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg_nn.SAGEConv(FEATURES, 8), pyg_nn.SAGEConv(8, 8), pyg_nn.SAGEConv((8, 8), 4)])
        self.first = first
        self.returned = []

    def forward(self, x, edge_index):
        first = self.convs[0](x, edge_index)
        self.returned.append((len(x), 0))
        second = self.convs[1](first.relu(), edge_index)
        self.returned.append((len(x), 1))
        pair = (first, second) if self.first == 0 else (second, first)
        return self.convs[2](pair, edge_index)


@pytest.mark.parametrize("first", [0, 1])
def test_a_late_layer_reads_what_an_early_one_returned(first, tmp_path):
    data, model = sorted_data(), evaluated(lambda: Later(first))
    for out in (None, tmp_path / "rows"):
        check(infer(model, data, batch_size=64, out=out), model(data.x, data.edge_index))


def test_a_stage_ends_with_the_last_layer_of_the_next_one():
    data, model = sorted_data(), evaluated(lambda: Later(0))
    infer(model, data, batch_size=len(data.x))
    layers = [layer for num_nodes, layer in model.returned if num_nodes == len(data.x)]  # others only compare
    assert layers == [0, 0, 1, 0, 1]  # in stages 1, 2 and 3


@pytest.mark.parametrize("loops", [True, False])
def test_degrees_are_weighted(loops):
    data, model = sorted_data(), evaluated(basic(pyg_nn.GCN, add_self_loops=loops))

    def call(model, batch):
        return model(batch.x, batch.edge_index, edge_weight=batch.edge_attr[:, 1] + 1)

    check(infer(model, data, call, batch_size=30), call(model, data))


def test_ids_are_those_of_the_graph():
    data, model = sorted_data(), evaluated(ByIds)
    data.n_id, data.e_id = torch.arange(200), torch.arange(1500)
    expected = model(data)
    del data.n_id, data.e_id
    check(infer(model, data, of_batch, batch_size=30), expected)


@pytest.mark.parametrize("name", quick(("gcn", "gcn2", "sage"), "sage"))
def test_stores(name, tmp_path):
    data, model = sorted_data(), evaluated(MODELS[name])
    FeatureStore.from_data(data).save(tmp_path / "features")
    GraphStore.from_data(data).save(tmp_path / "graph")
    stores = FeatureStore.open(tmp_path / "features"), GraphStore.open(tmp_path / "graph")
    check(infer(model, stores, batch_size=30), model(data.x, data.edge_index))
    nodes = torch.arange(0, 200, 9)
    check(infer(model, stores, nodes=nodes), model(data.x, data.edge_index)[nodes])


@pytest.mark.slow
def test_a_renumbered_graph_has_the_rows_in_the_users_order(tmp_path):
    data, model = sorted_data(), evaluated(ByIds)
    data.n_id, data.e_id = torch.arange(200), torch.arange(1500)
    expected = model(data)
    del data.n_id, data.e_id
    order = Order.from_permutation(torch.randperm(200, generator=torch.Generator().manual_seed(0)), 200)
    stores = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
    check(infer(model, stores, of_batch, batch_size=30), expected)
    check(infer(model, stores, of_batch, batch_size=30, out=tmp_path / "rows"), expected)
    nodes = torch.tensor([7, 0, 199, 7])
    check(infer(model, stores, of_batch, nodes=nodes), expected[nodes])


def test_a_narrowed_model_is_called_as_it_was_told():
    data, model = sorted_data(), evaluated(Branches)
    check(infer(narrow(model, with_attributes), data), with_attributes(model, data))


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [torch.tensor([3, 150, 3, 0]), torch.zeros(200).bool(), torch.arange(200) % 7 == 0])
@pytest.mark.parametrize("name", ["gcn2", "jumping, cat"])
def test_only_what_nodes_depend_on_is_computed(name, nodes, tmp_path):
    data, model = sorted_data(num_nodes=200, num_edges=300), evaluated(MODELS[name])
    expected = model(data.x, data.edge_index)[nodes]
    for out in (None, tmp_path / "rows"):
        check(infer(model, data, nodes=nodes, out=out, batch_size=20), expected)


def test_rows_of_nodes_far_away_are_not_read():
    data, model = sorted_data(num_edges=200), evaluated(basic(pyg_nn.GraphSAGE))
    expected = model(data.x, data.edge_index)[5:6]
    near = torch.zeros(200).bool()
    near[5] = True
    for _ in range(3):
        near[data.edge_index[0, near[data.edge_index[1]]]] = True
    data.x[~near] = float("nan")
    assert 0 < int(near.sum()) < 100
    check(infer(model, data, nodes=torch.tensor([5])), expected)


def graphs() -> st.SearchStrategy[Data]:
    """Small graphs with self loops, multi-edges, hubs, and nodes without edges."""

    @st.composite
    def draw(draw) -> Data:
        count = draw(st.integers(1, 12))
        nodes = st.integers(0, draw(st.integers(0, count - 1)))
        edges = draw(st.lists(st.tuples(nodes, nodes), max_size=40))
        edges += [(draw(nodes), draw(nodes))] * draw(st.sampled_from([0, 0, 30]))
        index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous()
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        x = torch.randn(count, FEATURES, dtype=torch.float64, generator=generator)
        return Data(x=x, edge_index=sort_edge_index(index, sort_by_row=False), num_nodes=count)

    return draw()


@pytest.mark.parametrize("name", quick(("sage", "sage max", "gcn", "gat", "gcn2"), "gcn"))
@examples(20)
@given(data=graphs(), size=st.integers(1, 5), edges=st.sampled_from([4, 30, 10_000]))
def test_random_graphs(name, data, size, edges):
    model = evaluated(MODELS[name])
    memory = 1 << 30 if name == "gat" else edges * 100
    check(infer(model, data, batch_size=size, memory=memory), model(data.x, data.edge_index))
