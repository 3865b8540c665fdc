"""HANConv of one relation into each type with its own sums, beside PyG's on the whole batch."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import FEATURES, HIDDEN, OneEach, call, gradients, make_types
from torch import nn

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import dictionary_layer, narrow
from torch_gnnscale.nn import dictionary_layer as module
from torch_gnnscale.nn.dictionary_layer import han

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")
RELATIONS = [("b", "r0", "a"), ("a", "r1", "b"), ("b", "r2", "c")]
GRAPH = make_types({"a": 30, "b": 20, "c": 10}, RELATIONS, 3, seed=2)


@pytest.fixture
def calls(monkeypatch):
    """The layers that are computed with their own sums."""
    found = []
    monkeypatch.setattr(dictionary_layer, "han", lambda *given: (found.append(given[0]), han(*given))[1])
    return found


def batch_of(node_type="a", graph=GRAPH):
    return next(iter(NeighborLoader(graph, [2, 2], (node_type, torch.tensor([3, 1, 3])), batch_size=3)))


def layer_of(widths=FEATURES, **options):
    torch.manual_seed(0)
    layer = pyg_nn.HANConv(widths, HIDDEN, GRAPH.metadata(), **options).double()
    for linear in layer.proj.values():
        nn.init.normal_(linear.bias)
    return nn.ModuleDict({"layer": layer})


def call_layer(model, batch):
    return model["layer"](batch.x_dict, batch.edge_index_dict)


def check(model, narrowed, expected, batch, node_type="a"):
    """Outputs, gradients, and which parameters have none."""
    found, expected = narrowed(batch)[node_type], expected(model, batch)[node_type][:3]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    ours, theirs = (gradients(model, {node_type: rows}) for rows in (found, expected))
    for (name, _), one, other in zip(model.named_parameters(), ours, theirs, strict=True):
        assert one.shape == other.shape, name  # () without a gradient
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("of_destinations", [True, False])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("node_type", ["a", "b", "c"])
def test_one_layer(of_destinations, heads, bias, node_type, monkeypatch, calls):
    """Types of several widths; scores so large that exp of them would overflow."""
    monkeypatch.setattr(module, "multiplies_destinations", lambda *_: of_destinations)
    widths = {"a": HIDDEN, "b": 5, "c": 2}
    model, batch = layer_of(widths, heads=heads), batch_of(node_type)
    for linear in () if bias else model["layer"].proj.values():
        linear.register_parameter("bias", None)
    for t, width in widths.items():
        batch[t].x = 100 * torch.randn(len(batch[t].n_id), width, dtype=torch.float64)
    check(model, narrow(model, call_layer, check=False), call_layer, batch, node_type)
    assert calls


@pytest.mark.parametrize("of_destinations", [True, False])
def test_several_layers(of_destinations, monkeypatch, calls):
    """Of which the second one's rows need gradients."""
    monkeypatch.setattr(module, "multiplies_destinations", lambda *_: of_destinations)
    torch.manual_seed(0)
    model = OneEach(GRAPH.metadata()).double()
    check(model, narrow(model, call, check=False), call, batch_of())
    assert {*calls} == {*model.convs}


def test_dropout_leaves_out_the_bias_of_sources_too(calls):
    """All edges are dropped, so that rows are those of nodes without neighbors: zeros."""
    model = layer_of(dropout=1.0)
    found = narrow(model, call_layer, check=False)(batch_of())["a"]
    assert calls
    assert torch.equal(found, torch.zeros(3, HIDDEN, dtype=torch.float64))
    model.eval()
    check(model, narrow(model, call_layer, check=False), call_layer, batch_of())


class Scaled(pyg_nn.HANConv):
    """Other messages."""

    def message(self, x_j, alpha_i, alpha_j, index, ptr, size_i):
        return 2 * super().message(x_j, alpha_i, alpha_j, index, ptr, size_i)


def _of_another_class(layer):
    layer.__class__ = Scaled


@pytest.mark.parametrize(
    "change",
    [
        _of_another_class,
        lambda layer: layer.register_message_forward_hook(lambda _, given, out: 2 * out),
        lambda layer: layer.proj["a"].register_forward_hook(lambda _, given, out: 2 * out),
        lambda layer: layer.k_lin.register_forward_hook(lambda _, given, out: 2 * out),
        lambda layer: nn.utils.parametrizations.weight_norm(layer.proj["b"]),
    ],
)
def test_a_layer_that_does_more_is_pygs(change, calls):
    model = layer_of()
    change(model["layer"])
    check(model, narrow(model, call_layer, check=False), call_layer, batch_of())
    assert not calls


def test_attention_that_is_asked_for_is_pygs(calls):
    model, batch = layer_of(), batch_of()

    def with_attention(model, batch):
        out, attention = model["layer"](batch.x_dict, batch.edge_index_dict, True)
        return out if attention["a"] is not None else None

    check(model, narrow(model, with_attention, check=False), with_attention, batch)
    assert not calls


def test_rows_of_a_type_that_the_batch_lacks():
    def with_more(model, batch):
        return model["layer"]({**batch.x_dict, "d": batch["a"].x}, batch.edge_index_dict)

    with pytest.raises(ValueError, match=r"^layer \(HANConv\): expected rows of the batch's types .*'c'\], found 'd'$"):
        narrow(layer_of(), with_more)(batch_of())


def test_lazy_layers(calls):
    model = layer_of_lazy()
    narrowed = narrow(model, call_layer)
    batch = batch_of()
    found = narrowed(batch)["a"]
    assert calls
    assert model["layer"].proj["a"].in_channels == FEATURES
    torch.testing.assert_close(found, call_layer(model, batch)["a"][:3], rtol=1e-12, atol=1e-12)


def layer_of_lazy():
    torch.manual_seed(0)
    return nn.ModuleDict({"layer": pyg_nn.HANConv(-1, HIDDEN, GRAPH.metadata(), heads=2)}).double()
