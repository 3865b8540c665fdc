"""What inference refuses, by its exact errors."""

import re

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from helpers.narrow import CLASSES, FEATURES, DegreesOfSources, Loops, basic, sequence
from helpers.split_models import ByHand
from torch import nn
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, machine
from torch_gnnscale.infer import infer
from torch_gnnscale.nn import weigh


class Pooled(nn.Module):
    """Adds the mean of all nodes to each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = pyg_nn.SAGEConv(FEATURES, CLASSES), pyg_nn.MeanAggregation()

    def forward(self, x, edge_index):
        x = self.conv(x, edge_index)
        return x + self.pool(x, torch.zeros(len(x), dtype=torch.int64))


class Changing(nn.Module):
    """Calls its layers in another order from the sixth call on, or the first of them alone."""

    def __init__(self, fewer: bool = False) -> None:
        super().__init__()
        self.first, self.second = pyg_nn.SAGEConv(FEATURES, FEATURES), pyg_nn.GraphConv(FEATURES, FEATURES)
        self.calls, self.fewer = 0, fewer

    def forward(self, x, edge_index):
        self.calls += 1
        layers = [self.first, self.second]
        for layer in layers if self.calls < 6 else layers[:1] if self.fewer else layers[::-1]:
            x = layer(x, edge_index)
        return x


class Counting(nn.Module):
    """Computes something else from its call number ``at`` on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.first, self.second = pyg_nn.SAGEConv(FEATURES, FEATURES), pyg_nn.SAGEConv(FEATURES, CLASSES)
        self.calls, self.at = 0, at

    def forward(self, x, edge_index):
        self.calls += 1
        return self.second(self.first(x, edge_index) * (1 + (self.calls >= self.at)), edge_index)


class Pair(nn.Module):
    """A layer that returns more than rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg_nn.GATConv(FEATURES, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index, return_attention_weights=True)[0]


BESIDE = (
    "expected a node's rows to follow from its own and its neighbors', found that they change with the nodes beside "
    "it, as those of norms and poolings over a graph do, so the model cannot be run in batches"
)
MORE = (
    "expected rows that follow from a node's own and its neighbors', found others; it reads more (the degrees of "
    "sources, several hops, statistics of all rows), so the model cannot be run layer by layer"
)
REFUSED = {
    "no layers": (lambda: nn.Linear(3, 4), "model: expected one with MessagePassing layers, found none in Linear"),
    "graph norm": (basic(pyg_nn.GraphSAGE, norm="GraphNorm"), f"norms.0 (GraphNorm): {BESIDE}"),
    "layer norm": (basic(pyg_nn.GraphSAGE, norm="LayerNorm"), f"norms.0 (LayerNorm): {BESIDE}"),
    "pooling": (Pooled, f"pool (MeanAggregation): {BESIDE}"),
    "degrees": (sequence(DegreesOfSources), f"module_0 (DegreesOfSources): {MORE}"),
    "hops": (sequence(lambda: pyg_nn.SGConv(FEATURES, FEATURES, K=2)), f"module_0 (SGConv): {MORE}"),
    "lstm": (basic(pyg_nn.GraphSAGE, aggr="lstm"), f"convs.0 (SAGEConv): {MORE}"),
    "cached": (
        basic(pyg_nn.GCN, cached=True),
        "convs.0 (GCNConv): expected cached=False, for it would keep the edges of another graph",
    ),
    "flow": (
        basic(pyg_nn.GraphSAGE, flow="target_to_source"),
        "convs.0 (SAGEConv): expected flow='source_to_target', found 'target_to_source'",
    ),
    "other edges": (
        Loops,
        "conv (GraphConv): expected the batch's edge_index itself, found other edges; a model that changes the edges "
        "cannot be narrowed",
    ),
    "pair": (Pair, "conv (GATConv): expected a layer that returns rows, found a tuple"),
    "unused": (
        lambda: Uncalled(),
        "model: expected it to call its MessagePassing layers, found that it calls none",
    ),
    "order": (
        Changing,
        "model: expected it to call its layers as for the batch before, first (SAGEConv) next, found second "
        "(GraphConv)",
    ),
    "fewer": (
        lambda: Changing(fewer=True),
        "model: expected it to call its layers as for the batch before, second (GraphConv) next, found no further "
        "layer",
    ),
}


class Uncalled(nn.Module):
    """Has a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = pyg_nn.SAGEConv(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x, edge_index):
        return self.linear(x)


def data_of_lstm() -> Data:
    data = make_data()
    data.edge_index = data.edge_index[:, torch.argsort(data.edge_index[1])]
    return data


@pytest.mark.parametrize("name", REFUSED)
def test_models(name):
    make, text = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        infer(make().double().eval(), data_of_lstm(), batch_size=50)


@pytest.mark.slow
@pytest.mark.parametrize("at", [6, 7, 9, 10, 12, 13])
def test_a_model_that_computes_something_else_after_some_calls(at, tmp_path):
    """The look takes 5 calls, and each stage 3 and one for the check."""
    with pytest.raises(ValueError, match="expected one that computes the same in every call, found other rows"):
        infer(Counting(at).double().eval(), make_data(200), out=tmp_path / "rows", batch_size=70)
    model = Counting(100).double().eval()
    infer(model, make_data(200), out=tmp_path / "other", batch_size=70)
    assert model.calls == 5 + 2 * (3 + 1)


def test_a_model_that_reads_edges_by_itself():
    with pytest.raises(ValueError, match=r"^mean \(Mean\): expected a model that reads edges in MessagePassing la"):
        infer(ByHand().double().eval(), make_data())


def sage() -> nn.Module:
    return basic(pyg_nn.GraphSAGE)().double().eval()


def test_a_model_in_training():
    model = sage()
    model.convs[1].train()
    text = r"^model: expected it in evaluation mode, found its module convs.1 in training; call model.eval\(\)$"
    with pytest.raises(ValueError, match=text):
        infer(model, make_data())
    with pytest.raises(ValueError, match=r"^model: expected it in evaluation mode, found in training; call model.eval"):
        infer(model.train(), make_data())


def test_a_weighed_model():
    model = weigh(pyg_nn.GraphConv(FEATURES, CLASSES).eval())
    with pytest.raises(ValueError, match=r"^model: expected one that takes all edges, found what weigh\(\) returned"):
        infer(model.eval(), make_data())


def test_a_model_that_is_not_in_host_memory():
    with pytest.raises(NotImplementedError, match=r"^model: inference on meta, where convs.0.lin_l.weight is, is not"):
        infer(sage().to("meta"), make_data())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m, b: [m(b.x, b.edge_index)], "call: expected rows of the nodes, found a list"),
        (lambda m, b: m(b.x, b.edge_index).sum(), "call: expected rows of the nodes, found tensor("),
        (lambda m, b: m(b.x, b.edge_index)[:3], "call: expected a row for each of "),
    ],
)
def test_what_a_call_returns(call, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        infer(sage(), make_data(), call)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_size": 0}, ValueError, "batch_size: expected"),
        ({"memory": 0.5}, ValueError, "memory: expected bytes or a string such as '1GiB', found 0.5"),
        ({"memory": "a lot"}, ValueError, "memory: expected bytes or a string such as '1GiB', found 'a lot'"),
        ({"nodes": torch.tensor([0, 200])}, IndexError, "nodes[1] = 200 is out of range: expected nodes in [0, 200)"),
        ({"nodes": torch.zeros(3).bool()}, IndexError, "nodes: expected a mask of 200 nodes, found shape (3,)"),
        ({"nodes": torch.zeros(3)}, TypeError, "nodes: expected integers, found torch.float32"),
    ],
    ids=str,
)
def test_options(options, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        infer(sage(), make_data(), **options)


class Together(FeatureStore):
    """A store that ranks read together."""

    collective = True


def test_stores_of_several_ranks():
    stores = Together.from_data(make_data()), GraphStore.from_data(make_data())
    text = "data: inference with stores that several ranks read together is implemented for those of open_part"
    with pytest.raises(NotImplementedError, match=f"^{text}"):
        infer(sage(), stores)


def test_data():
    with pytest.raises(TypeError, match=r"^data: expected a Data, a HeteroData or a \(FeatureStore, GraphStore\) pair"):
        infer(sage(), make_data().edge_index)


@pytest.mark.parametrize(
    ("make", "layer", "found"),
    [
        (basic(pyg_nn.GAT), "GATConv", "GATConv"),
        (basic(pyg_nn.GraphSAGE, aggr="median"), "SAGEConv", "aggr='median'"),
    ],
)
def test_a_hub_of_a_layer_that_needs_all_of_its_edges(make, layer, found):
    data = make_data()
    data.edge_index[1, :400] = 7
    text = (
        f"convs.0 ({layer}): expected a layer that takes the sum, mean, max or min of messages, found {found}, which "
        f"needs all of a node's edges at once; node 7 has more neighbors than memory= holds, which must be larger for "
        f"this layer"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        infer(make().double().eval(), data, memory=30_000)


def test_too_little_memory(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    text = r"^out: expected 25.0 KiB of memory for rows of nodes, found 1000 B; name a folder for them$"
    with pytest.raises(MemoryError, match=text):
        infer(sage(), make_data())
