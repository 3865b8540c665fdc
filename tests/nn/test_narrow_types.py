"""Narrowed models of typed graphs give the outputs and gradients of the model on the whole batch."""

import copy

import pytest
import torch
from helpers.narrow_types import (
    GRAPH,
    KINDS,
    MODELS,
    RELATIONS,
    OneEach,
    batch_of,
    call,
    check,
    gradients,
    made,
    numbered_relations,
    schemas,
)
from helpers.slow import NIGHTLY, examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize("name", ["bases", "mixed"])
def test_inference_mode(name):
    model, batch = made(name, GRAPH).eval(), batch_of()
    expected = call(model, batch)["a"][:3]
    for seen in (True, False):
        with torch.inference_mode():
            torch.testing.assert_close(narrow(model, call, check=seen)(batch)["a"], expected, rtol=1e-12, atol=1e-12)


def check_one_type(model, call, batch, narrowed):
    expected, found = call(model, batch)[: batch.batch_size], narrowed(batch)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(model, {"": found}), gradients(model, {"": expected}), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@examples(20)
@given(data=st.data())
def test_relations_by_numbers_in_one_graph(name, data):
    typed = data.draw(schemas())
    graph = typed.to_homogeneous()
    model, call = numbered_relations(name, len(typed.edge_types))
    narrowed = narrow(model, call, check=data.draw(st.booleans()))
    for seed in range(2):
        ids = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=4))
        fanouts = data.draw(st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=2, max_size=2))
        model.train(data.draw(st.booleans()))
        loader = NeighborLoader(graph, fanouts, torch.tensor(ids), batch_size=4, seed=seed)
        check_one_type(model, call, next(iter(loader)), narrowed)


@pytest.mark.slow
@examples(20)
@given(data=st.data())
def test_link_decoders_on_random_schemas(data):
    """Scores of the links' ends: their gradients are those of the whole batch."""
    graph = data.draw(schemas())
    relations = [t for t in graph.edge_types if graph[t].edge_index.size(1)]
    assume(relations)
    relation = data.draw(st.sampled_from(relations))
    model = made(data.draw(st.sampled_from(["to_hetero SAGE", "mixed", "HGT"])), graph)
    narrowed, negatives = narrow(model, call), data.draw(st.sampled_from([None, "binary", "triplet"]))
    loader = LinkNeighborLoader(
        graph, [2, 2], edge_label_index=(relation, None), neg_sampling=negatives, batch_size=4, shuffle=True
    )
    batch = next(iter(loader))
    names = ("src_index", "dst_pos_index") if negatives == "triplet" else None
    ends = [batch[relation[end]][names[bool(end)]] for end in (0, -1)] if names else batch[relation].edge_label_index

    def loss(rows):
        src, dst = (rows[relation[end]][at] for end, at in zip((0, -1), ends, strict=True))
        return torch.nn.functional.softplus((src * dst).sum(-1)).sum()

    found, expected = loss(narrowed(batch)), loss(call(model, batch))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    parameters = list(model.parameters())
    of_both = [torch.autograd.grad(of, parameters, allow_unused=True) for of in (found, expected)]
    for parameter, ours, theirs in zip(parameters, *of_both, strict=True):
        ours, theirs = (torch.zeros_like(parameter) if grad is None else grad for grad in (ours, theirs))
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
@examples(20)
@given(data=st.data())
def test_han_with_one_relation_into_each_type(data):
    schema = data.draw(schemas())
    into = {relation[-1]: relation for relation in schema.edge_types}
    graph = schema.edge_type_subgraph([*into.values()])
    torch.manual_seed(0)
    model = OneEach(graph.metadata()).double()
    if not model.train(data.draw(st.booleans())).training:
        for conv in model.convs:
            conv.dropout = 0.5
    narrowed = narrow(model, call)
    types = [t for t in graph.node_types if graph[t].num_nodes]
    for _ in range(2):
        node_type = data.draw(st.sampled_from(types))
        ids = data.draw(st.lists(st.integers(0, graph[node_type].num_nodes - 1), min_size=1, max_size=4))
        check(model, narrowed, next(iter(NeighborLoader(graph, [2, 2], (node_type, torch.tensor(ids)), batch_size=4))))


@pytest.mark.slow
def test_copies_and_a_state_dict():
    model, batch = made("to_hetero SAGE", GRAPH), batch_of()
    narrowed = narrow(model, call)
    expected = narrowed(batch)["a"]
    assert list(narrowed.state_dict()) == list(model.state_dict())
    assert torch.equal(copy.deepcopy(narrowed)(batch)["a"], expected)
