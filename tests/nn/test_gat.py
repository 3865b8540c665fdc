"""GATConv with folded attention, beside PyG's."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from helpers.graphs import random_ids

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import convolutions as module
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.nn.aggregate import sort_edges
from torch_gnnscale.nn.convolutions import gat, gat_takes

SOURCES, DESTINATIONS, EDGES, FEATURES, CHANNELS = 40, 30, 200, 6, 5


def made(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("in_channels", [FEATURES, (FEATURES, FEATURES + 1)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"add_self_loops": False}, {"concat": False, "residual": True}, {"edge_dim": 2, "fill_value": 0.5}],
    ids=str,
)
def test_pygs(learned, heads, in_channels, options, monkeypatch):
    """``learned``: whether the rows need a gradient; if not, they are multiplied after the aggregation."""
    monkeypatch.setattr(module, "multiplies_destinations", lambda *_: True)
    torch.manual_seed(0)
    layer = pyg_nn.GATConv(in_channels, CHANNELS, heads, **options).double()
    index = torch.stack([random_ids(limit, EDGES, seed=limit) for limit in (SOURCES, DESTINATIONS)])
    edges, order = sort_edges(index, SOURCES, DESTINATIONS)
    x = made(SOURCES, FEATURES, seed=1).requires_grad_(learned)
    attributes = made(EDGES, 2, seed=2) if "edge_dim" in options else None
    width = FEATURES if isinstance(in_channels, int) else in_channels[1]
    for root in (made(DESTINATIONS, width, seed=3), *([] if "residual" in options else [None])):
        expected = layer((x, root), index, attributes, size=(SOURCES, DESTINATIONS))
        found = gat(layer, x, root, edges, None if attributes is None else attributes[order])
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        wanted = [t for t in (x, root, attributes, *layer.parameters()) if t is not None and t.requires_grad]
        scale = torch.arange(1.0, found.numel() + 1, dtype=torch.float64).view(found.shape)
        ours, theirs = (
            torch.autograd.grad((out * scale).sum(), wanted, allow_unused=True) for out in (found, expected)
        )
        for one, other in zip(ours, theirs, strict=True):
            one, other = (torch.zeros(()) if grad is None else grad for grad in (one, other))
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(("destinations", "number"), [(0, 0), (DESTINATIONS, 0), (1, 5)])
@pytest.mark.parametrize("first", [True, False])
def test_few_destinations_and_edges(heads, destinations, number, first, monkeypatch):
    """``first``: whether rows of destinations are multiplied with several heads, too."""
    monkeypatch.setattr(module, "multiplies_destinations", lambda *_: first)
    layer = pyg_nn.GATConv((FEATURES, FEATURES), CHANNELS, heads, add_self_loops=False).double()
    index = torch.stack([random_ids(SOURCES, number, seed=1), torch.zeros(number, dtype=torch.int64)])
    edges, _ = sort_edges(index, SOURCES, destinations)
    x, root = made(SOURCES, FEATURES, seed=1).detach(), made(destinations, FEATURES, seed=2)
    expected = layer((x, root), index, size=(SOURCES, destinations))
    torch.testing.assert_close(gat(layer, x, root, edges), expected, rtol=1e-12, atol=1e-12)


def test_what_it_does_not_compute():
    x = torch.ones(3, 2)
    assert gat_takes(pyg_nn.GATConv(2, 2), {"x": (x, x)})
    assert gat_takes(pyg_nn.GATConv(2, 2, add_self_loops=False), {"x": (x, None)})
    assert not gat_takes(pyg_nn.GATConv(2, 2), {"x": (x, None)})
    assert not gat_takes(pyg_nn.GATConv(2, 2), {"x": (x, x), "return_attention_weights": True})
    assert not gat_takes(pyg_nn.GATConv(2, 2, aggr="mean"), {"x": (x, x)})
    assert not gat_takes(pyg_nn.GATConv(-1, 2), {"x": (x, x)})
    for other in (x.half(), x.long(), x[0]):
        assert not gat_takes(pyg_nn.GATConv(2, 2), {"x": (other, other)})
    with torch.autocast("cpu", torch.bfloat16):
        assert not gat_takes(pyg_nn.GATConv(2, 2), {"x": (x, x)})
    assert not gat_takes(Doubled(2, 2), {"x": (x, x)})
    layer = pyg_nn.GATConv(2, 2)
    layer.register_edge_update_forward_hook(lambda *_: None)
    assert not gat_takes(layer, {"x": (x, x)})


class Doubled(pyg_nn.GATConv):
    """A layer with coefficients of its own."""

    def edge_update(self, alpha_j, alpha_i, edge_attr, index, ptr, dim_size):
        return 2 * super().edge_update(alpha_j, alpha_i, edge_attr, index, ptr, dim_size)


@pytest.mark.parametrize("heads", [1, 2])
def test_narrowed_layers_with_coefficients_of_their_own(heads, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 0)
    batch = next(iter(NeighborLoader(make_data(), [3, 2], torch.arange(5), batch_size=5)))
    layer = Doubled(batch.num_features, 4, heads).double()
    found = narrow(layer, lambda layer, batch: layer(batch.x, batch.edge_index), check=False)(batch)
    torch.testing.assert_close(found, layer(batch.x, batch.edge_index)[:5])


@pytest.mark.parametrize(
    ("options", "times"), [({"heads": 2}, 2), ({}, 2), ({"edge_dim": 2}, 2), ({"aggr": "mean"}, 0), ({"v2": True}, 0)]
)
def test_narrowed_layers_are_computed_by_it(options, times, monkeypatch):
    called = []
    monkeypatch.setattr(module, "gat", lambda *given: (called.append(given), gat(*given))[1])
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 0)
    batch = next(iter(NeighborLoader(make_data(), [3, 2], torch.arange(5), batch_size=5)))
    narrowed = narrow(pyg_nn.GAT(batch.num_features, 4, 2, **options).double(), check=False)
    narrowed(batch)
    assert len(called) == times


@pytest.mark.parametrize("name", ["lin", "lin_src", "lin_dst"])
def test_products_that_do_more(name):
    """Of another class, with a bias, or with a hook."""
    x, channels = torch.ones(3, 2), 2 if name == "lin" else (2, 2)
    for replace in (
        lambda layer, linear: setattr(layer, name, torch.nn.Linear(2, 2, bias=False)),
        lambda layer, linear: setattr(layer, name, pyg_nn.Linear(2, 2, bias=True)),
        lambda layer, linear: linear.register_forward_hook(lambda *_: None),
    ):
        layer = pyg_nn.GATConv(channels, 2)
        assert gat_takes(layer, {"x": (x, x)})
        replace(layer, getattr(layer, name))
        assert not gat_takes(layer, {"x": (x, x)})
