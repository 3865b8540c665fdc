"""HGTConv with its own products, beside PyG's on the whole batch."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import FEATURES, GRAPH, HIDDEN, RELATIONS, Dictionaries, batch_of, call, made, schemas
from helpers.slow import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import dictionary_layer, narrow
from torch_gnnscale.nn import dictionary_layer as module
from torch_gnnscale.nn.aggregate import sort_edges
from torch_gnnscale.nn.dictionary_layer import hgt
from torch_gnnscale.nn.hops import num_seeds
from torch_gnnscale.nn.pyg_layers import multiplies_destinations

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


@pytest.fixture
def calls(monkeypatch):
    """The layers that are computed with their own products."""
    found = []
    monkeypatch.setattr(dictionary_layer, "hgt", lambda *given: (found.append(given[0]), hgt(*given))[1])
    return found


def gradients(model, out):
    generator = torch.Generator().manual_seed(0)
    total = sum((out[t] * torch.randn(out[t].shape, dtype=torch.float64, generator=generator)).sum() for t in out)
    return torch.autograd.grad(total, list(model.parameters()), allow_unused=True)


def check(model, narrowed, batch):
    """Outputs, gradients, and which parameters have none."""
    seeds = num_seeds(batch)
    expected = {t: rows[: seeds[t]] for t, rows in call(model, batch).items() if t in seeds}
    found = narrowed(batch)
    assert set(found) == set(expected)
    for t, rows in expected.items():
        torch.testing.assert_close(found[t], rows, rtol=1e-12, atol=1e-12)
    if expected:
        ours, theirs = gradients(model, found), gradients(model, expected)
        for (name, _), one, other in zip(model.named_parameters(), ours, theirs, strict=True):
            assert (one is None) == (other is None), name
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.slow
@pytest.mark.parametrize("of_destinations", [True, False])
@examples(15)
@given(data=st.data())
def test_random_schemas(of_destinations, data):
    graph = data.draw(schemas())
    model = made("HGT", graph)
    types = [t for t in graph.node_types if graph[t].num_nodes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "multiplies_destinations", lambda *_: of_destinations)
        narrowed = narrow(model, call, check=False)
        for seed in range(2):
            node_type = data.draw(st.sampled_from(types))
            ids = data.draw(st.lists(st.integers(0, graph[node_type].num_nodes - 1), min_size=1, max_size=4))
            fanouts = data.draw(st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=2, max_size=2))
            loader = NeighborLoader(graph, fanouts, (node_type, torch.tensor(ids)), batch_size=4, seed=seed)
            check(model, narrowed, next(iter(loader)))


@pytest.mark.parametrize("of_destinations", [True, False])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_one_layer(of_destinations, heads, bias, monkeypatch, calls):
    """Types of several widths, one of them the layer's own; scores so large that exp of them would overflow."""
    monkeypatch.setattr(module, "multiplies_destinations", lambda *_: of_destinations)
    widths = {"a": HIDDEN, "b": 5, "c": 2}
    torch.manual_seed(0)
    layer = pyg_nn.HGTConv(widths, HIDDEN, GRAPH.metadata(), heads).double()
    for linear in () if bias else layer.kqv_lin.lins.values():
        linear.register_parameter("bias", None)
    batch = batch_of()
    for t, width in widths.items():
        batch[t].x = 100 * torch.randn(len(batch[t].n_id), width, dtype=torch.float64)
    model = nn.ModuleDict({"layer": layer})
    narrowed = narrow(model, lambda model, batch: model["layer"](batch.x_dict, batch.edge_index_dict), check=False)
    expected = {"a": layer(batch.x_dict, batch.edge_index_dict)["a"][:3]}
    found = narrowed(batch)
    assert calls
    torch.testing.assert_close(found["a"], expected["a"], rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(layer, found), gradients(layer, expected), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-9)


def test_which_rows_are_multiplied():
    """Those that are fewer; of many heads, rows of sources, for a destination has a row of sums for each."""
    few, many = torch.randint(5, (60,)), torch.randint(60, (60,))
    from_few, _ = sort_edges(torch.stack([few, many]), 5, 60)
    from_many, _ = sort_edges(torch.stack([many, few]), 60, 5)
    assert not multiplies_destinations(from_few, 64, 64, heads=2)
    assert multiplies_destinations(from_many, 64, 64, heads=2)
    assert not multiplies_destinations(from_many, 64, 64, heads=32)


def test_it_is_computed_so_without_gradients_too(calls):
    model, batch = made("HGT", GRAPH), batch_of()
    with torch.no_grad():
        found = narrow(model, call, check=False)(batch)["a"]
    assert calls.count(model.convs[0]) == calls.count(model.convs[1]) > 0
    assert not found.requires_grad
    torch.testing.assert_close(found, call(model, batch)["a"][:3], rtol=1e-12, atol=1e-12)


class Scaled(pyg_nn.HGTConv):
    """Other messages."""

    def message(self, k_j, q_i, v_j, edge_attr, index, ptr, size_i):
        return 2 * super().message(k_j, q_i, v_j, edge_attr, index, ptr, size_i)


def _replace_message(layer):
    own = layer.message
    layer.message = lambda *given, **named: 2 * own(*given, **named)


@pytest.mark.parametrize(
    "change",
    [
        _replace_message,
        lambda layer: layer.register_message_forward_hook(lambda _, given, out: 2 * out),
        lambda layer: layer.k_rel.register_forward_hook(lambda _, given, out: 2 * out),
        lambda layer: layer.kqv_lin.lins["a"].register_forward_hook(lambda _, given, out: 2 * out),
        lambda layer: layer.out_lin.register_forward_hook(lambda _, given, out: {t: 2 * x for t, x in out.items()}),
        lambda layer: nn.utils.parametrizations.weight_norm(layer.kqv_lin.lins["b"]),
    ],
)
def test_a_layer_that_does_more_is_pygs(change, calls):
    model, batch = made("HGT", GRAPH), batch_of()
    for conv in model.convs:
        change(conv)
    check(model, narrow(model, call, check=False), batch)
    assert not calls


class Given(nn.Module):
    """An HGTConv that gets something else than the batch's rows and edges."""

    def __init__(self, change):
        super().__init__()
        self.conv, self.change = pyg_nn.HGTConv(FEATURES, HIDDEN, GRAPH.metadata(), heads=2), change

    def forward(self, x_dict, edge_index_dict):
        return self.conv(*self.change(dict(x_dict), dict(edge_index_dict)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, edges: ({}, edges), "expected input rows of whole hops None, found no tensor"),
        (lambda x, edges: (dict.fromkeys(x, "rows"), edges), "expected input rows of whole hops None, found no tensor"),
        (lambda x, edges: ({**x, "a": x["a"][:-1]}, edges),
         r"expected input rows of whole hops \[[\d, ]+\], found \d+ rows of 'a'"),
        (lambda x, edges: ({**x, "none": x["a"]}, edges),
         r"expected rows of the batch's types \['a', .*\], found 'none'"),
        (lambda x, edges: ([*x.values()], edges), r"expected an argument x_dict with rows by type, found \['x_dict', "),
        (lambda x, edges: (x, {**edges, RELATIONS[0]: edges[RELATIONS[0]].clone()}),
         r"expected the batch's edge_index of \(.*\) itself, found other edges; a model that changes the edges cannot"),
    ],
)  # fmt: skip
def test_what_is_no_layer_of_the_batch(change, message):
    with pytest.raises(ValueError, match=rf"^conv \(HGTConv\): {message}"):
        narrow(Given(change).double(), call, check=False)(batch_of())


@pytest.mark.slow
def test_layers_of_other_classes_and_dtypes_are_pygs(calls):
    torch.manual_seed(0)
    for model, dtype in (
        (Dictionaries(GRAPH, Scaled).double(), torch.float64),
        (Dictionaries(GRAPH, pyg_nn.HGTConv).bfloat16(), torch.bfloat16),
    ):
        batch = batch_of()
        for t in batch.node_types:
            batch[t].x = batch[t].x.to(dtype)
        expected, found = call(model, batch)["a"][:3], narrow(model, call, check=False)(batch)["a"]
        torch.testing.assert_close(found, expected)
    assert not calls


def test_relations_in_another_order_are_pygs(calls):
    """It then multiplies rows by matrices of other relations, on the whole batch, too."""
    model, batch = made("HGT", GRAPH), batch_of()
    backwards = lambda model, batch: model(batch.x_dict, {r: batch[r].edge_index for r in RELATIONS[::-1]})  # noqa: E731
    narrowed = narrow(model, backwards, check=False)(batch)["a"]
    assert not calls
    assert narrowed.shape == (3, HIDDEN)


def lazy_model():
    torch.manual_seed(0)
    return nn.ModuleDict({"layer": pyg_nn.HGTConv(-1, HIDDEN, GRAPH.metadata(), heads=2)}).double()


def test_lazy_layers(calls):
    model = lazy_model()
    narrowed = narrow(model, lambda model, batch: model["layer"](batch.x_dict, batch.edge_index_dict))
    batch = batch_of()
    found = narrowed(batch)["a"]
    assert calls
    assert model["layer"].kqv_lin.lins["a"].in_channels == FEATURES
    expected = model["layer"](batch.x_dict, batch.edge_index_dict)["a"][:3]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_forward_that_passes_on_what_it_gets():
    model = made("HGT", GRAPH)
    conv = next(module for module in model.modules() if isinstance(module, pyg_nn.HGTConv))
    conv.forward = lambda *given, **named: type(conv).forward(conv, *given, **named)
    check(model, narrow(model, call), batch_of())
