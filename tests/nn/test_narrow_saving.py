"""Which batches are narrowed, and which are computed whole."""

import copy
from functools import partial

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from helpers.narrow import CLASSES, FEATURES, HIDDEN, batches
from helpers.narrow_types import make_types
from torch import nn

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.nn.narrowed_layer import NarrowedLayer


def saved_in_order(nodes, edges, sizes, others):
    """What is left out of a batch by layers that are called one after the other."""
    savings = forward_pass.Savings(forward_pass.in_order(sizes, len(edges)), len(edges), others)
    return savings.of({None: nodes}, {None: edges})


class Rows(nn.Module):
    """Counts the rows of a layer's input and output, those of a trial too: what sees them is no attribute."""

    def __init__(self, conv):
        super().__init__()
        seen = []
        self.conv, self.seen, self.see = conv, lambda: seen, seen.append

    def forward(self, x, edge_index):
        out = self.conv(x, edge_index)
        self.see((len(x), len(out)))
        return out


@pytest.mark.parametrize("few", [0, 1])
def test_a_batch_that_is_not_worth_it_is_computed_whole(few, monkeypatch):
    model = Rows(pyg_nn.SAGEConv(FEATURES, CLASSES)).double()
    loader = NeighborLoader(make_data(), [3], torch.arange(20), batch_size=10, seed=1)
    batch = next(iter(loader))
    nodes, edges, size = batch.num_sampled_nodes, batch.num_sampled_edges, sum(p.numel() for p in model.parameters())
    saved = (size + forward_pass.CHANNEL * CLASSES) * nodes[1]
    assert saved_in_order(nodes, edges, [forward_pass.LayerSize(size, True, CLASSES)], 0) == saved
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", saved + few)
    narrowed = narrow(model)
    expected = model(batch.x, batch.edge_index)[:10]
    model.seen().clear()
    for _ in range(2):
        torch.testing.assert_close(narrowed(batch), expected, rtol=0, atol=1e-12)
    whole, first = (len(batch.x), len(batch.x)), (len(batch.x), 10)
    computed = whole if few else first
    assert model.seen() == [first, whole, computed, computed], "the first batch is checked, and then computed as any"


@pytest.mark.parametrize("check", [False, True])
def test_sizes_that_the_first_batch_decides(check, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 1 << 62)
    model = pyg_nn.GraphSAGE(-1, HIDDEN, 3, CLASSES).double()
    narrowed = narrow(model, check=check)
    for batch in batches():
        found = narrowed(batch)
        torch.testing.assert_close(found, model(batch.x, batch.edge_index)[: batch.batch_size], rtol=0, atol=1e-12)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("least", [0, 1 << 62])
def test_the_first_batch_of_lazy_layers_is_computed_as_it_is_after_resuming(check, least, monkeypatch):
    """BatchNorm's statistics show which rows were computed: those that seeds need, however little it saves."""
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
    make = partial(pyg_nn.GraphSAGE, -1, HIDDEN, 3, CLASSES, norm="BatchNorm", dropout=0.5)
    model, resumed, rows = make().double(), make().double(), []
    for norm in model.norms[:2]:
        norm.module.register_forward_hook(lambda module, args, out: rows.append(len(out)) if module.training else None)
    batch = next(iter(batches()))
    narrowed = narrow(model, check=check)
    narrowed(batch).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    first, statistics = rows.copy(), copy.deepcopy(model.norms[0].module)
    narrowed(batch)
    _, *found = torch.tensor(batch.num_sampled_nodes).cumsum(0).tolist()
    assert rows[:2] == rows[2:] == first == [found[1], found[0]]
    resumed.load_state_dict(model.state_dict())
    resumed.norms[0].module.reset_running_stats()
    narrow(resumed, check=False)(batch)
    assert torch.equal(resumed.norms[0].module.running_mean, statistics.running_mean)
    assert int(statistics.num_batches_tracked) == 1


def test_parameters_that_no_batch_gives_a_size(monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 1 << 62)
    model = Rows(pyg_nn.SAGEConv(-1, CLASSES))
    model.unused = nn.LazyLinear(2)
    model.double()
    batch = next(iter(NeighborLoader(make_data(), [3], torch.arange(20), batch_size=10, seed=1)))
    narrowed = narrow(model, check=False)
    for _ in range(2):
        narrowed(batch)
    assert model.seen() == [(len(batch.x), 10)] * 3, "narrowed, the first one twice"


def test_what_narrowing_saves():
    of_dst, of_src = forward_pass.LayerSize(100, True, 0), forward_pass.LayerSize(10, False, 0)
    wide = forward_pass.LayerSize(0, True, 7)
    nodes, edges = [2, 3, 5], [4, 6]
    assert saved_in_order(nodes, edges, [of_dst, of_dst], 0) == 100 * (5 + 8) + forward_pass.EDGE * 6
    assert saved_in_order(nodes, edges, [of_src, of_src], 0) == 10 * (0 + 5) + forward_pass.EDGE * 6
    assert saved_in_order(nodes, edges, [of_src, of_dst], 40) == 10 * 0 + 100 * 8 + 20 * (5 + 8) + forward_pass.EDGE * 6
    assert (
        saved_in_order(nodes, edges, [wide, of_src], 0) == forward_pass.CHANNEL * 7 * 5 + 10 * 5 + forward_pass.EDGE * 6
    )
    assert saved_in_order(nodes, edges, [of_src], 0) == 0
    assert saved_in_order([2], [], [of_src], 0) == 0


def test_what_narrowing_saves_of_types():
    of_dst, of_src = forward_pass.LayerSize(100, True, 0), forward_pass.LayerSize(10, False, 3)
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    places = [
        forward_pass.Place(of_dst, writes, 3),
        forward_pass.Place(of_src, cites, 2),
        forward_pass.Place(of_dst, writes, 2),
    ]
    nodes, edges = {"paper": [2, 3, 5], "author": [0, 4, 6]}, {writes: [4, 7], cites: [3, 9]}
    expected = (
        100 * (5 + 3 + 5) + 10 * 5 + 3 * forward_pass.CHANNEL * (3 + 5) + forward_pass.EDGE * (9 + 7) + 20 * (5 + 8 + 8)
    )
    assert forward_pass.Savings(places, 2, 60).of(nodes, edges) == expected


@pytest.mark.parametrize("merged", [False, True])
def test_what_pays_saves_the_least(merged, monkeypatch):
    """The bound by which batches that are too small are passed over is one; in a merged graph nodes count twice."""
    of_dst, writes = forward_pass.LayerSize(100, True, 2), ("author", "writes", "paper")
    places = [forward_pass.Place(of_dst, writes, 2)] + [forward_pass.Place(of_dst, None, 2)] * merged
    savings = forward_pass.Savings(places, 2, 0)
    for paper, author, edge in ((9, 0, 0), (0, 9, 0), (0, 0, 9), (9, 9, 9)):
        given = {"paper": [1, paper, paper], "author": [0, author, author]}, {writes: [1, edge]}
        saved = savings.of(*given)
        for least in (saved, saved + 1):
            monkeypatch.setattr(forward_pass, "LEAST_SAVED", least * 3 // 2 if least == saved else least * 3)
            assert savings.pay(*given) == (least == saved)


def test_savings_are_those_of_the_order_in_which_layers_are_called(monkeypatch):
    """The layer with more parameters saves more as the last one, which computes fewer rows."""
    relation, order, rows = ("a", "r", "a"), [0, 1], []
    data = make_types({"a": 60}, [relation], degree=4, seed=0)
    batch = next(iter(NeighborLoader(data, [3, 3], ("a", torch.arange(5)), batch_size=5, seed=1)))

    class Swapped(nn.Module):
        def __init__(self):
            super().__init__()
            width = data["a"].x.size(1)
            self.convs = nn.ModuleList(pyg_nn.SAGEConv(width, width, root_weight=root) for root in (False, True))

        def forward(self, x, edge_index):
            x = x["a"]
            for number in order:
                x = self.convs[number](x, edge_index[relation])
                rows.append(len(x))
            return x

    model = Swapped().double()
    narrowed = narrow(model, lambda model, batch: model(batch.x_dict, batch.edge_index_dict), check=False)
    nodes, edges = batch["a"].num_sampled_nodes, batch[relation].num_sampled_edges
    sizes = [NarrowedLayer("", conv).size() for conv in model.convs]
    places = [forward_pass.Place(size, relation, groups) for size, groups in zip(sizes, (3, 2), strict=True)]
    saved = forward_pass.Savings(places, 2, 0).of({"a": nodes}, {relation: edges})
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", saved * 3 // 4)  # of two calls
    for expected in ([sum(nodes[:2]), nodes[0]], [sum(nodes[:2]), nodes[0]], [sum(nodes)] * 2):
        found = narrowed(batch)
        assert rows[-2:] == expected, "the last one is computed whole, for its savings are known again"
        torch.testing.assert_close(found, model(batch.x_dict, batch.edge_index_dict)[:5], rtol=0, atol=1e-12)
        order[:] = [1, 0]


def layer_with(**attributes):
    """A layer that PyG does not have, with these attributes."""
    layer = type("Other", (pyg_nn.MessagePassing,), {})()  # PyG gives the class of a layer methods of its own
    vars(layer).update(attributes)
    return layer


@pytest.mark.parametrize(
    ("layer", "channels"),
    [
        (pyg_nn.SAGEConv(3, 5), 5),
        (pyg_nn.GATConv(3, 5, heads=2), 10),
        (pyg_nn.GATConv(3, 5, heads=2, concat=False), 10),
        (pyg_nn.GINConv(nn.Linear(3, 5)), 0),
        (layer_with(out_channels=None), 0),
        (layer_with(out_channels=5, heads=None), 0),
    ],
)
def test_the_channels_of_a_layer(layer, channels):
    assert NarrowedLayer("", layer).size().channels == channels


@pytest.mark.parametrize(
    ("layer", "of_destinations"),
    [
        (pyg_nn.SAGEConv(3, 5), True),
        (pyg_nn.GCNConv(3, 5), False),
        (pyg_nn.GATConv(3, 5), True),
        (pyg_nn.GATConv(3, 5, heads=2), False),
        (pyg_nn.GATv2Conv(3, 5), False),
    ],
)
def test_which_rows_a_layer_multiplies(layer, of_destinations):
    assert NarrowedLayer("", layer).size().of_destinations is of_destinations
