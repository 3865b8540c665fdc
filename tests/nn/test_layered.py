"""How the layers of a wrapped model are found, and where rows of several hops may meet."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow import CLASSES, FEATURES, HIDDEN, batches
from torch import nn

from torch_gnnscale.nn import narrow, weigh

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


class Nested(nn.Module):
    """Three layers, each in a module of its own."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.ModuleDict({"conv": conv}) for conv in convs())

    def forward(self, x, edge_index):
        for part in self.parts:
            x = part["conv"](x, edge_index)
        return x


def convs():
    return [pyg_nn.SAGEConv(*sizes) for sizes in ((FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES))]


def agrees(narrowed, batch):
    rows, layers = [], narrowed._layers()
    hooks = [layer.layer.register_forward_hook(lambda module, args, out: rows.append(len(out))) for layer in layers]
    found = narrowed(batch)
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(found, narrowed._whole(batch)[: batch.batch_size], rtol=0, atol=1e-12)
    assert rows == [sum(batch.num_sampled_nodes[:groups]) for groups in (3, 2, 1)], "every layer is narrowed"


@pytest.mark.parametrize("wrap", [lambda model: model, weigh])
def test_layers_that_a_model_gets_later(wrap):
    model, batch = Nested().double(), next(iter(batches()))
    batch.edge_weight = torch.linspace(1, 2, batch.num_edges, dtype=torch.float64)
    narrowed = narrow(wrap(model), check=False)
    agrees(narrowed, batch)
    model.parts[0]["conv"] = convs()[0].double()
    agrees(narrowed, batch)
    model.parts[2] = nn.ModuleDict({"conv": convs()[2].double()})
    agrees(narrowed, batch)
    narrowed.module = wrap(Nested().double())
    agrees(narrowed, batch)


@pytest.mark.parametrize("way", ["call", "forward", "class"])
def test_rows_of_several_hops_meet_around_a_model_of_pyg(way):
    """A model of PyG joins no rows itself, but what surrounds it may."""
    batch = next(iter(batches()))

    class Residual(pyg_nn.GraphSAGE):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index) + x.sum(1, keepdim=True)

    model = (Residual if way == "class" else pyg_nn.GraphSAGE)(FEATURES, HIDDEN, 3, CLASSES).double()
    call = (lambda model, batch: model(batch.x, batch.edge_index) + batch.x.sum(1, keepdim=True),)
    if way == "forward":
        model.forward = lambda x, edge_index: type(model).forward(model, x, edge_index) + x.sum(1, keepdim=True)
    expected = pyg_nn.GraphSAGE.forward(model, batch.x, batch.edge_index) + batch.x.sum(1, keepdim=True)
    found = narrow(model, *call if way == "call" else ())(batch)
    torch.testing.assert_close(found, expected[: batch.batch_size], rtol=0, atol=1e-12)


class Skip(nn.Module):
    """A layer and, beside it, the rows that it gets."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(x, edge_index) + x


@pytest.mark.parametrize("way", ["module", "hook", "hook before"])
def test_rows_of_several_hops_meet_within_a_model_of_pyg(way):
    model, batch = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double(), next(iter(batches()))
    if way == "module":
        model.convs[1] = Skip(model.convs[1])
    elif way == "hook":
        model.convs[1].register_forward_hook(lambda conv, given, out: out + given[0])
    else:
        last = []
        model.convs[0].register_forward_pre_hook(lambda conv, given: last.append(given[0].sum(1, keepdim=True)))
        model.convs[2].register_forward_pre_hook(lambda conv, given: (given[0] + last.pop(), *given[1:]))
    expected = model(batch.x, batch.edge_index)[: batch.batch_size]
    torch.testing.assert_close(narrow(model)(batch), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"normalize": True}, {"bias": False}, {"root_weight": False}, {"project": True}])
def test_options_of_sage(options):
    batch = next(iter(batches()))
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, **options).double()
    found = narrow(model)(batch)
    torch.testing.assert_close(found, model(batch.x, batch.edge_index)[: batch.batch_size], rtol=0, atol=1e-12)
    ours, theirs = (
        torch.autograd.grad(out.square().sum(), list(model.parameters()))
        for out in (found, model(batch.x, batch.edge_index)[: batch.batch_size])
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("way", ["bias", "shared"])
def test_products_that_sage_usually_has_not(way):
    model, batch = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double(), next(iter(batches()))
    conv = model.convs[1]
    conv.lin_r = conv.lin_l if way == "shared" else pyg_nn.Linear(HIDDEN, HIDDEN, bias=True).double()
    for linear in (conv.lin_l, conv.lin_r):
        nn.init.ones_(linear.bias)
    expected = model(batch.x, batch.edge_index)[: batch.batch_size]
    found = narrow(model, check=False)(batch)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
