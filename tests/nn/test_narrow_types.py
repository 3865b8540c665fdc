"""Narrowed models of typed graphs give the outputs and gradients of the model on the whole batch."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import (
    ATTRIBUTES,
    FEATURES,
    GRAPH,
    MODELS,
    RELATIONS,
    batch_of,
    call,
    check,
    gradients,
    made,
    make_types,
    schemas,
)
from helpers.slow import NIGHTLY
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torch_gnnscale import LinkNeighborLoader, NeighborLoader
from torch_gnnscale.nn import narrow

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


@pytest.mark.slow
@pytest.mark.parametrize("examples", [3, NIGHTLY(20)])
@pytest.mark.parametrize("name", MODELS)
def test_random_schemas(name, examples):
    @settings(max_examples=examples)
    @given(data=st.data())
    def check_schema(data):
        graph = data.draw(schemas())
        model, depth = made(name, graph), 3 if "three" in name else 2
        narrowed = narrow(model, call, check=data.draw(st.booleans()))
        types = [t for t in graph.node_types if graph[t].num_nodes]
        for seed in range(2):
            node_type = data.draw(st.sampled_from(types))
            ids = data.draw(st.lists(st.integers(0, graph[node_type].num_nodes - 1), min_size=1, max_size=4))
            fanouts = data.draw(st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=depth, max_size=depth))
            loader = NeighborLoader(graph, fanouts, (node_type, torch.tensor(ids)), batch_size=4, seed=seed)
            model.train(data.draw(st.booleans()))
            check(model, narrowed, next(iter(loader)))

    check_schema()


@pytest.mark.slow
@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
@pytest.mark.parametrize("relation", [RELATIONS[0], RELATIONS[2]])
@pytest.mark.parametrize("name", ["SAGE", "mixed", "to_hetero SAGE", "HGT"])
def test_ends_of_links(name, relation, negatives):
    """Of one type, or of two, of which both stay in the dictionary."""
    model = made(name, GRAPH)
    narrowed = narrow(model, call)
    loader = LinkNeighborLoader(GRAPH, [2, 2], edge_label_index=(relation, None), neg_sampling=negatives, batch_size=9)
    for number, batch in enumerate(loader):
        assert set(narrowed(batch)) == {relation[0], relation[2]}
        check(model, narrowed, batch)
        if number == 2:
            break


@pytest.mark.slow
def test_links_that_carry_no_messages():
    """Their relation has no edges in a batch."""
    model, links = made("SAGE", GRAPH), torch.stack([torch.arange(9), torch.arange(9)])
    relation = ("a", "likes", "b")
    data = GRAPH.clone()
    data[relation].edge_label_index = links
    batch = next(iter(LinkNeighborLoader(data, [2, 2], edge_label_index=(relation, links), batch_size=9)))
    assert "edge_index" not in batch[relation]
    check(model, narrow(model, call), batch)


@pytest.mark.slow
def test_trees_in_time():
    data = GRAPH.clone()
    for node_type in data.node_types:
        data[node_type].time = torch.arange(data[node_type].num_nodes) % 5
    model = made("mixed, skipping", data)
    loader = NeighborLoader(data, [2, 2], ("a", None), batch_size=6, time_attr="time", temporal_strategy="last")
    narrowed = narrow(model, call)
    for batch in loader:
        check(model, narrowed, batch)


def test_a_tensor_is_that_of_the_type_with_seeds():
    model, batch = made("SAGE", GRAPH), batch_of("b")
    narrowed = narrow(model, lambda model, batch: call(model, batch)["b"])
    torch.testing.assert_close(narrowed(batch), call(model, batch)["b"][:3], rtol=1e-12, atol=1e-12)


def test_a_tensor_of_a_batch_with_seeds_of_several_types_is_left():
    """Here scores of links, of which there may be more than seeds."""

    def score(model, batch):
        rows, (src, dst) = call(model, batch), batch[RELATIONS[0]].edge_label_index
        return (rows["a"][src] * rows["b"][dst]).sum(-1)

    model = made("SAGE", GRAPH)
    loader = LinkNeighborLoader(
        GRAPH, [2, 2], edge_label_index=(RELATIONS[0], None), neg_sampling="binary", batch_size=40
    )
    batch = next(iter(loader))
    assert len(score(model, batch)) == 80
    torch.testing.assert_close(narrow(model, score)(batch), score(model, batch), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_relations_by_numbers_in_one_graph():
    data = GRAPH.to_homogeneous()
    batch = next(iter(NeighborLoader(data, [3, 2], torch.tensor([1, 40, 55]), batch_size=3)))
    kinds = len(RELATIONS)
    for make, attributes in (
        (lambda: pyg_nn.RGCNConv(FEATURES, FEATURES, kinds, num_bases=2), False),
        (lambda: pyg_nn.FastRGCNConv(FEATURES, FEATURES, kinds), False),
        (lambda: pyg_nn.RGATConv(FEATURES, FEATURES, kinds, edge_dim=ATTRIBUTES), True),
        (lambda: pyg_nn.FiLMConv(FEATURES, FEATURES, kinds), False),
    ):
        torch.manual_seed(0)
        model = pyg_nn.Sequential("x, e, t, a", [
            (make(), f"x, e, t{', a' if attributes else ''} -> x") for _ in range(2)
        ]).double()  # fmt: skip
        narrowed = narrow(
            model, lambda model, batch: model(batch.x, batch.edge_index, batch.edge_type, batch.edge_attr)
        )
        expected = model(batch.x, batch.edge_index, batch.edge_type, batch.edge_attr)[:3]
        found = narrowed(batch)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for ours, theirs in zip(gradients(model, {"": found}), gradients(model, {"": expected}), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


class OneEach(nn.Module):
    """Attention over types of which each has one relation into it."""

    def __init__(self, metadata):
        super().__init__()
        self.convs = nn.ModuleList(pyg_nn.HANConv(FEATURES, FEATURES, metadata, dropout=0.5) for _ in range(2))

    def forward(self, x, edges):
        for conv in self.convs:
            x = conv(x, edges)
        return x


def test_han_with_one_relation_into_each_type():
    data = make_types({"a": 30, "b": 20}, RELATIONS[:2], degree=3, seed=0)
    torch.manual_seed(0)
    model = OneEach(data.metadata()).double().eval()
    narrowed = narrow(model, call)
    for batch in NeighborLoader(data, [2, 2], ("a", torch.arange(12)), batch_size=4):
        check(model, narrowed, batch)


@pytest.mark.slow
def test_copies_and_a_state_dict():
    model, batch = made("to_hetero SAGE", GRAPH), batch_of()
    narrowed = narrow(model, call)
    expected = narrowed(batch)["a"]
    assert list(narrowed.state_dict()) == list(model.state_dict())
    assert torch.equal(copy.deepcopy(narrowed)(batch)["a"], expected)
