"""Models and batches that cannot be weighed are refused by their exact error."""

import inspect
import re
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from helpers.narrow import CLASSES, FEATURES, basic, sequence, weighed_batches
from torch import nn

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import narrow, weigh
from torch_gnnscale.nn.layered import _is_prefix
from torch_gnnscale.nn.pyg_layers import BY_EDGE

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


class Flipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg_nn.SAGEConv(FEATURES, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index.flip(0))


class OwnMessages(pyg_nn.SAGEConv):
    def message(self, x_j):
        return x_j


def one(kind, *args, **options):
    return sequence(lambda: kind(*args or (FEATURES, CLASSES), **options))


SUMS = r"expected a layer that sums messages, each of one edge \(CGConv, .*, SAGEConv\), found"
REFUSED = [
    (lambda: nn.Linear(3, 4), "model: expected one with MessagePassing layers, found none in Linear"),
    (basic(pyg_nn.GAT), rf"convs.0 \(GATConv\): {SUMS} GATConv, which cannot be weighed"),
    (basic(pyg_nn.PNA, aggregators=["mean"], scalers=["identity"], deg=torch.ones(3)), rf"convs.0 \(PNAConv\): {SUMS}"),
    (one(pyg_nn.TransformerConv), rf"module_0 \(TransformerConv\): {SUMS}"),
    (one(pyg_nn.TAGConv), rf"module_0 \(TAGConv\): {SUMS}"),
    (one(OwnMessages), rf"module_0 \(OwnMessages\): {SUMS} OwnMessages, which"),
    (lambda: pyg_nn.GATv2Conv(FEATURES, CLASSES), rf"the model \(GATv2Conv\): {SUMS}"),
    (
        basic(pyg_nn.GraphSAGE, aggr="max"),
        r"convs.0 \(SAGEConv\): expected aggr='sum', 'add' or 'mean', found 'max', which cannot be weighed",
    ),
    (basic(pyg_nn.GraphSAGE, aggr=["mean", "std"]), r"convs.0 \(SAGEConv\): expected aggr=.*, found \['mean', 'std'\]"),
    (basic(pyg_nn.EdgeCNN), r"convs.0 \(EdgeConv\): expected aggr='sum', 'add' or 'mean', found 'max'"),
    (
        basic(pyg_nn.GCN),
        r"convs.0 \(GCNConv\): expected normalize=False, found True: it would normalize by the degrees",
    ),
    (one(pyg_nn.SAGEConv, flow="target_to_source"), r"module_0 \(SAGEConv\): expected flow='source_to_target', found"),
    (lambda: narrow(basic(pyg_nn.GIN)()), r"model: expected one as it was made, found Narrowed; write narrow\(weigh"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_cannot_be_weighed_is_refused_when_it_is_wrapped(make, message):
    model = make()
    with pytest.raises(ValueError, match="^" + message):
        weigh(model)


def test_weighed_models_within_a_model_are_not_narrowed():
    model = nn.Sequential(weigh(basic(pyg_nn.GIN)()))
    with pytest.raises(
        ValueError, match=r"^model: expected a model or weigh\(model\), found Weighed within Sequential$"
    ):
        narrow(model)


def test_other_edges_are_refused():
    batch = next(weighed_batches())
    with pytest.raises(
        ValueError, match=r"^conv \(SAGEConv\): expected the batch's edge_index or a prefix of it, found"
    ):
        weigh(Flipped().double())(batch)


@pytest.mark.slow
def test_other_weights_are_refused():
    batch = next(weighed_batches())
    for edges, fits in (
        (batch.edge_index[:, :5], True),
        (batch.edge_index[:, ::2], False),
        (batch.edge_index[:, 1:5], False),
    ):
        assert _is_prefix(edges, batch.edge_index) == fits
    model = pyg_nn.Sequential("x, e, w", [(pyg_nn.GraphConv(FEATURES, CLASSES), "x, e, w -> x")]).double()
    weighed = weigh(model, lambda model, batch: model(batch.x, batch.edge_index, batch.edge_weight))
    message = r"^module_0 \(GraphConv\): expected no edge_weight, or another, found the one that weigh multiplies"
    for wrapped in (weighed, narrow(weighed, check=False)):
        with pytest.raises(ValueError, match=message):
            wrapped(batch)
    batch.edge_weight = batch.edge_weight[1:]
    with pytest.raises(ValueError, match=r"^batch.edge_weight: expected shape \(\d+,\), found \(\d+,\)$"):
        weighed(batch)
    del batch.edge_index
    with pytest.raises(ValueError, match=r"^batch: expected one with edge_index, found none; "):
        weighed(batch)


def test_batches_without_weights_name_the_methods():
    data = make_data()
    batch = next(iter(NeighborLoader(data, [3, 3, 3], torch.arange(9), batch_size=9)))
    for wrapped in (weigh(basic(pyg_nn.GIN)()), narrow(weigh(basic(pyg_nn.GIN)()))):
        with pytest.raises(
            ValueError,
            match=r"^batch: expected weights of edges named 'edge_weight', found none; make batches with "
            r"NeighborLoader\(\.\.\., method='ladies'\), 'fastgcn' or 'labor', or say weight_name=$",
        ):
            wrapped(batch)


@pytest.mark.parametrize("options", [{"edge_layout": "sparse_csr"}, {"layers": True}], ids=str)
def test_batches_without_edge_index_are_refused(options):
    batch = next(iter(NeighborLoader(make_data(), [3, 3, 3], torch.arange(9), batch_size=9, method="labor", **options)))
    with pytest.raises(ValueError, match=r"^batch: expected one with edge_index, found none; give"):
        weigh(basic(pyg_nn.GIN)())(batch)


def test_the_page_names_the_layers_that_take_weights():
    page = Path(__file__).parents[2] / "docs" / "layerwise.md"
    if not page.is_file():
        pytest.skip("no checkout: the page is not here")
    rows = re.findall(r"^\| (.*`\w+Conv`.*) \| (yes|no) \| (yes|no).* \|$", page.read_text(), re.MULTILINE)
    kinds = {name: getattr(pyg_nn, name) for name in dir(pyg_nn) if isinstance(getattr(pyg_nn, name), type)}
    of_pyg = {name: kind for name, kind in kinds.items() if issubclass(kind, pyg_nn.MessagePassing)}
    named = {name: row[1:] for row in rows for name in re.findall(r"`(\w+)`", row[0]) if name in of_pyg}
    assert {name for name, (weighed, _) in named.items() if weighed == "yes"} == set(BY_EDGE.values())
    takes = {name for name, kind in of_pyg.items() if "edge_weight" in inspect.signature(kind.forward).parameters}
    assert {name for name, (_, itself) in named.items() if itself == "yes"} == takes
