"""Inference on graphs with types gives the rows of the model on the whole graph."""

import os
import re

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.inference import check
from helpers.narrow_types import (
    CLASSES,
    FEATURES,
    GRAPH,
    HIDDEN,
    KINDS,
    MODELS,
    RELATIONS,
    ByRelation,
    Dictionaries,
    OneEach,
    WithBases,
    call,
    made,
    make_types,
    numbered_relations,
    schemas,
)
from helpers.slow import examples, quick
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from torch import nn
from torch_geometric.data import HeteroData

from torch_gnnscale import FeatureStore, GraphStore
from torch_gnnscale.infer import infer
from torch_gnnscale.nn import narrow


@pytest.mark.parametrize("name", quick(MODELS.keys(), "to_hetero SAGE", "mixed, skipping", "HGT", "bases"))
def test_rows_are_those_of_the_whole_graph(name):
    model = made(name, GRAPH).eval()
    check(infer(model, GRAPH, call, batch_size=13), call(model, GRAPH))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["to_hetero SAGE, jumping", "mixed", "relational", "attributes", "pairs"])
@examples(30, suppress_health_check=[HealthCheck.too_slow])
@given(data=schemas(), size=st.integers(1, 9))
def test_random_schemas(name, data, size):
    model = made(name, data).eval()
    check(infer(model, data, call, batch_size=size), call(model, data))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore:model. it takes numbers out of rows")
def test_relations_by_numbers_in_one_graph(name):
    model, of_numbers = numbered_relations(name, len(RELATIONS))
    data = GRAPH.to_homogeneous()
    check(infer(model.eval(), data, of_numbers, batch_size=13), of_numbers(model, data))


def test_attention_over_one_relation_into_each_type():
    data = make_types({"a": 30, "b": 20}, RELATIONS[:2], degree=3, seed=0)
    torch.manual_seed(0)
    model = OneEach(data.metadata()).double().eval()
    check(infer(model, data, call, batch_size=13), call(model, data))


@pytest.mark.slow
def test_a_batch_without_nodes_of_a_type():
    """The last stage computes one type alone, and nodes are wanted of one type alone."""
    model = made("relational", GRAPH).eval()
    expected = call(model, GRAPH)

    def only(model, batch):
        return {"b": call(model, batch)["b"]}

    check(infer(model, GRAPH, only, batch_size=13), {"b": expected["b"]})
    nodes = torch.tensor([19, 0, 19])
    found = infer(model, GRAPH, call, nodes={"b": nodes}, batch_size=5)
    check(found, {t: rows[nodes] if t == "b" else rows[:0] for t, rows in expected.items()})


@pytest.mark.slow
def test_stores_and_a_folder(tmp_path):
    model = made("mixed", GRAPH).eval()
    FeatureStore.from_data(GRAPH).save(tmp_path / "features")
    GraphStore.from_data(GRAPH).save(tmp_path / "graph")
    stores = FeatureStore.open(tmp_path / "features"), GraphStore.open(tmp_path / "graph")
    found = infer(model, stores, call, out=tmp_path / "rows", batch_size=13)
    check(found, call(model, GRAPH))
    assert sorted(os.listdir(tmp_path / "rows")) == ["a.npy", "b.npy", "c.npy", "gnnscale.json"]
    check(infer(model, stores, call, out=tmp_path / "rows", batch_size=13), call(model, GRAPH))


def test_names_of_types_are_names_of_files(tmp_path):
    data = make_types({"a/b": 5, "ü": 4}, [("a/b", "to", "ü"), ("ü", "to", "a/b")], 2, 0)
    model = pyg_nn.HeteroConv({t: pyg_nn.SAGEConv((FEATURES, FEATURES), CLASSES) for t in data.edge_types}).double()

    def plain(model, batch):
        return model(batch.x_dict, batch.edge_index_dict)

    check(infer(model.eval(), data, plain, out=tmp_path), plain(model, data))
    assert sorted(os.listdir(tmp_path)) == ["%C3%BC.npy", "a%2Fb.npy", "gnnscale.json"]


@pytest.mark.slow
def test_layers_on_the_same_rows_are_computed_in_one_stage():
    model, seen = made("relational", GRAPH).eval(), []
    model.encode["a"].register_forward_hook(lambda module, args, out: seen.append(len(out)))
    infer(model, GRAPH, call, batch_size=60)
    assert seen[-6::2] == [30, 30, 30], "a stage before the first layer, and one for each of the two layers"
    assert len(seen) == 3 + 1 + 3 * 2 + 3, "and, on a small graph, the whole, three stages of two batches, and checks"


def of_sage(data, aggr):
    return ByRelation(data, lambda *_: pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN, aggr=aggr), skip=True)


def of_bases(data, aggr):
    return WithBases(data, lambda: pyg_nn.GraphConv(HIDDEN, HIDDEN, aggr=aggr))


@pytest.mark.slow
@pytest.mark.parametrize("make", [of_sage, of_bases])
@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
def test_hubs(aggr, make):
    data = make_types({"a": 30, "b": 20}, [("a", "to", "b"), ("b", "to", "a"), ("a", "of", "a")], 3, 0)
    data["a", "to", "b"].edge_index[1, 10:] = 7
    data["a", "of", "a"].edge_index[1, :40] = 3
    model = make(data, aggr).double().eval()
    call(model, data)  # gives lazy layers their sizes
    check(infer(model, data, call, memory=2000, batch_size=10), call(model, data))


def test_a_hub_of_a_layer_that_needs_all_of_its_edges():
    data = make_types({"a": 30, "b": 20}, [("a", "to", "b"), ("b", "to", "a")], 3, 0)
    data["a", "to", "b"].edge_index[1, 10:] = 7
    model = made("HGT", data).eval()
    text = (
        "convs.0 (HGTConv): expected a layer that takes the sum, mean, max or min of messages, found HGTConv, which "
        "needs all of a node's edges at once; node 7 of 'b' has more neighbors than memory= holds, which must be "
        "larger for this layer"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        infer(model, data, call, memory=4000)


class Pooled(nn.Module):
    """Adds the mean of all nodes of a type to those of another."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.convs = pyg_nn.HeteroConv({t: pyg_nn.SAGEConv((FEATURES, FEATURES), CLASSES) for t in data.edge_types})

    def forward(self, x, edges):
        out = self.convs(x, edges)
        return {**out, "b": out["b"] + out["a"].mean(0)}


@pytest.mark.parametrize(
    ("make", "call", "text"),
    [
        (
            lambda: made("SAGE", GRAPH),
            lambda m, b: call(m, b)["a"],
            "call: expected rows by node type, found a Tensor",
        ),
        (
            lambda: Pooled(GRAPH).double(),
            lambda m, b: m(b.x_dict, b.edge_index_dict),
            "the model (Pooled): expected a node's rows to follow from its own and its neighbors', found that they",
        ),
        (
            lambda: Dictionaries(GRAPH, pyg_nn.HANConv).double(),
            call,
            "convs.0 (HANConv): expected at most one relation into each type, found ('a', 'r0', 'b') and 1 more",
        ),
    ],
)
def test_refused(make, call, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        infer(make().eval(), GRAPH, call)


def test_nodes_are_named_by_type():
    model = made("SAGE", GRAPH).eval()
    with pytest.raises(TypeError, match=r"^nodes: expected ids or masks by node type, found Tensor$"):
        infer(model, GRAPH, call, nodes=torch.arange(3))
    with pytest.raises(ValueError, match=r"^nodes: expected node types of \['a', 'b', 'c'\], found 'd'$"):
        infer(model, GRAPH, call, nodes={"d": torch.arange(3)})


@pytest.mark.slow
def test_a_narrowed_model():
    model = made("to_hetero SAGE", GRAPH).eval()
    check(infer(narrow(model, call), GRAPH), call(model, GRAPH))
