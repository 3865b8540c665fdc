"""The matrix products of narrowed layers: each row is projected once, and roots are added in place."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow import CLASSES, FEATURES, HIDDEN, batches
from torch.utils._python_dispatch import TorchDispatchMode

from torch_gnnscale.nn import narrow
from torch_gnnscale.nn.pyg_layers import products_of

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


class Products(TorchDispatchMode):
    """Counts products that are added in place."""

    def __init__(self):
        super().__init__()
        self.in_place = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.in_place += func is torch.ops.aten.addmm_.default
        return func(*args, **(kwargs or {}))


def test_root_products_are_added_in_place():
    model, batch = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double(), next(iter(batches()))
    narrowed = narrow(model, check=False)
    with Products() as plain:
        narrowed(batch)
    linear, calls = model.convs[1].lin_r, []
    linear.forward = lambda x: calls.append(len(x)) or type(linear).forward(linear, x)
    with Products() as wrapped:
        narrowed(batch)
    assert (plain.in_place, wrapped.in_place) == (3, 2)
    assert calls == [sum(batch.num_sampled_nodes[:2])]


def test_root_products_of_hooked_layers_are_pygs():
    model, batch, rows = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double(), next(iter(batches())), []
    narrowed = narrow(model)
    expected = narrowed(batch)
    handle = model.convs[1].lin_r.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    torch.testing.assert_close(narrowed(batch), expected, rtol=0, atol=1e-12)
    handle.remove()
    assert rows == [sum(batch.num_sampled_nodes[:2])]


def hooked(layer, name):
    getattr(layer, name).register_forward_pre_hook(lambda module, args: None)


def replaced(layer, name):
    linear = getattr(layer, name)
    linear.forward = lambda x: 2 * type(linear).forward(linear, x)


def of_torch(layer, name):
    setattr(layer, name, torch.nn.Linear(4, 3, bias=name != "lin_r"))


def with_bias(layer, name):
    setattr(layer, name, pyg_nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("kind", "options", "names"),
    [
        (pyg_nn.SAGEConv, {}, ("lin_l", "lin_r")),
        (pyg_nn.SAGEConv, {"root_weight": False}, ("lin_l", None)),
        (pyg_nn.SAGEConv, {"normalize": True}, None),
        (pyg_nn.SAGEConv, {"project": True}, None),
        (pyg_nn.GraphConv, {}, ("lin_rel", "lin_root")),
        (pyg_nn.GCNConv, {}, None),
    ],
)
def test_the_products_that_a_layer_is_the_sum_of(kind, options, names):
    layer = kind(4, 3, **options)
    assert products_of(layer) == (names and tuple(name and getattr(layer, name) for name in names))
    for name in filter(None, names or ()):
        for change in (hooked, replaced, of_torch):
            change(layer := kind(4, 3, **options), name)
            assert products_of(layer) is None, (name, change)
    if names == ("lin_l", "lin_r"):
        with_bias(layer := kind(4, 3), "lin_r")
        assert products_of(layer) is None, "which would be added, too"


def test_root_products_under_autocast_are_pygs():
    model, batch = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES), next(iter(batches()))
    narrowed = narrow(model, lambda model, batch: model(batch.x.float(), batch.edge_index), check=False)
    with torch.autocast("cpu", torch.bfloat16):
        with Products() as products:
            found = narrowed(batch)
        expected = model(batch.x.float(), batch.edge_index)[: batch.batch_size]
    assert products.in_place == 0
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-8)


@pytest.mark.parametrize("options", [{}, {"residual": True}, {"edge_dim": 2, "fill_value": "add"}])
def test_rows_are_projected_once_by_gat(options):
    model = pyg_nn.GATConv(FEATURES, CLASSES, heads=2, **options).double()
    call = lambda model, batch: model(batch.x, batch.edge_index, batch.edge_attr[:, :2].double())  # noqa: E731
    narrowed, batch, rows = narrow(model, call, check=False), next(iter(batches())), []
    expected = call(model, batch)[: batch.batch_size]
    model.lin.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    torch.testing.assert_close(narrowed(batch)[: batch.batch_size], expected, rtol=0, atol=1e-12)
    assert rows == [batch.num_nodes]
