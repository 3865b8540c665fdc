"""Inference of models that write in place, of rows of 16 bits, of hubs, and in other modes of autograd."""

import re

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from helpers.inference import check
from helpers.narrow import CLASSES, FEATURES, HIDDEN, basic
from torch import nn
from torch_geometric.data import Data

from torch_gnnscale.infer import infer, inference, work
from torch_gnnscale.infer.staged_graph import WholeGraph
from torch_gnnscale.infer.staged_model import Pieces


def small_data() -> Data:
    data = make_data()
    data.x = data.x / len(data.x)
    return data


class InPlace(nn.Module):
    """Writes to its input, and to what four layers return."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg_nn.GraphConv(FEATURES, FEATURES) for _ in range(4))

    def forward(self, x, edge_index):
        x.mul_(2)
        for conv in self.convs:
            x = conv(x, edge_index).add_(x[:, :1]).relu_()
            x += 1
        return x


@pytest.mark.parametrize(
    "make",
    [
        InPlace,
        lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 4, CLASSES, act=nn.ReLU(inplace=True)),
        lambda: pyg_nn.GIN(FEATURES, HIDDEN, 4, CLASSES, act=nn.ReLU(inplace=True), jk="cat"),
    ],
    ids=["by hand", "sage", "jumping"],
)
def test_layers_whose_outputs_are_written_to(make):
    torch.manual_seed(0)
    data, model = small_data(), make().double().eval()
    check(infer(model, data, batch_size=64), model(data.x.clone(), data.edge_index))
    assert torch.equal(data.x, small_data().x)


def test_inference_mode():
    data, model = small_data(), pyg_nn.GCN(FEATURES, HIDDEN, 2, CLASSES).double().eval()
    expected = model(data.x, data.edge_index)
    with torch.inference_mode():
        data.x = data.x.clone()
        check(infer(model, data), expected)


class Updated(pyg_nn.GraphConv):
    """Goes on with the aggregate of all edges before the root's rows are added."""

    def update(self, out):
        return out.relu()


class Propagated(pyg_nn.GraphConv):
    """Has a propagate of its own."""

    def propagate(self, edge_index, size=None, **kwargs):
        return pyg_nn.MessagePassing.propagate(self, edge_index, size, **kwargs).relu()


def hooked(register: str, hook) -> nn.Module:
    layer = pyg_nn.GraphConv(FEATURES, CLASSES)
    getattr(layer, register)(hook)
    return layer


HUBS = {
    "update": (lambda: Updated(FEATURES, CLASSES), "Updated, which needs all of a node's edges at once"),
    "own propagate": (lambda: Propagated(FEATURES, CLASSES), "Propagated, which needs all of a node's edges at once"),
    "aggregate": (
        lambda: hooked("register_aggregate_forward_hook", lambda layer, given, out: out.relu()),
        "a hook of GraphConv's aggregate, which needs all of a node's edges at once",
    ),
    "propagate": (
        lambda: hooked("register_propagate_forward_hook", lambda layer, given, out: out.relu()),
        "a hook of GraphConv's propagate, which needs all of a node's edges at once",
    ),
}


@pytest.mark.parametrize("name", HUBS)
def test_hubs_of_layers_that_go_on_with_the_aggregate(name):
    make, text = HUBS[name]
    data, model = small_data(), make().double().eval()
    check(infer(model, data), model(data.x, data.edge_index))
    data.edge_index[1, :400] = 7
    text = f"expected a layer that takes the sum, mean, max or min of messages, found {text}; node 7 has more"
    with pytest.raises(ValueError, match=re.escape(text)):
        infer(model, data, memory=3000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_pieces_of_16_bits_are_summed_in_32(dtype, reduce):
    pieces, value = Pieces(), 1.0 if reduce == "mean" else 1 / 64
    for number in range(700):
        pieces.begin(number == 699)
        found = pieces.add("rows", reduce, torch.full((1, 2), value, dtype=dtype), 100)
    expected = torch.full((1, 2), 1.0 if reduce == "mean" else 700 / 64, dtype=dtype)
    assert found.dtype == dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("reduce", "expected"), [("sum", -6), ("add", -6), ("mean", -2), ("max", -2), ("min", -2)])
@pytest.mark.parametrize("counts", [(0, 3), (3, 0), (0, 3, 0), (0, 0, 3)])
def test_pieces_without_edges_change_nothing(reduce, expected, counts):
    """Whose aggregate is 0; results may be written to."""
    pieces = Pieces()
    for number, count in enumerate(counts, 1):
        pieces.begin(number == len(counts))
        value = 0 if count == 0 else -6.0 if reduce in ("sum", "add") else -2.0
        found = pieces.add("rows", reduce, torch.full((1, 2), value), count)
        total = found.clone()
        found += 1
    assert total.tolist() == [[expected, expected]]


def with_a_hub() -> Data:
    """60 edges into the last node, and loops."""
    ends = torch.cat([torch.arange(60), torch.arange(59)])
    index = torch.stack([ends, torch.where(torch.arange(119) < 60, 99, ends)])
    return Data(x=torch.rand(100, FEATURES, dtype=torch.float64), edge_index=index)


def hold_edges(monkeypatch, most):
    """Lets stages hold so many edges at a time."""
    for module in (inference, work):
        monkeypatch.setattr(module, "most_edges_of", most)


@pytest.mark.parametrize("most", [20, 59, 60])
@pytest.mark.parametrize("make", [basic(pyg_nn.GCN), basic(pyg_nn.GraphSAGE, aggr="max")])
def test_a_hub_whose_last_piece_is_full_or_has_one_edge(make, most, monkeypatch):
    hold_edges(monkeypatch, lambda *_: most)
    data, model = with_a_hub(), make().double().eval()
    check(infer(model, data, batch_size=50), model(data.x, data.edge_index))


def test_a_layer_that_needs_all_edges_of_a_node_gets_as_many_as_there_is_memory_for(monkeypatch):
    data, model = with_a_hub(), basic(pyg_nn.GAT)().double().eval()
    hold_edges(monkeypatch, lambda *_: 60)
    check(infer(model, data, batch_size=50), model(data.x, data.edge_index))
    hold_edges(monkeypatch, lambda *_: 59)
    with pytest.raises(ValueError, match=r"expected a layer that takes the sum, .*; node 99 has more"):
        infer(model, data, batch_size=50)


@pytest.mark.parametrize("call", [lambda m, b: m(b.x, b.edge_index) > 0, lambda m, b: m(b.x, b.edge_index).argmax(1)])
def test_results_that_are_no_floating_point_numbers(call):
    data, model = small_data(), pyg_nn.GraphSAGE(FEATURES, HIDDEN, 2, CLASSES).double().eval()
    assert torch.equal(infer(model, data, call, batch_size=64), call(model, data))


class Named(pyg_nn.GraphConv):
    """Inherits everything."""


@pytest.mark.slow
def test_hubs_of_layers_that_inherit_from_one():
    data, model = small_data(), Named(FEATURES, CLASSES).double().eval()
    data.edge_index[1, :400] = 7
    check(infer(model, data, memory=3000), model(data.x, data.edge_index))


@pytest.mark.parametrize("nodes", [[1, 2], [0, 2], [0, 1, 3]], ids=["consecutive", "with a gap", "without edges"])
def test_edges_into_nodes_have_the_user_s_ids(nodes):
    """Whether or not the nodes are consecutive, although the edges are not stored in the user's order."""
    data = Data(edge_index=torch.tensor([[3, 1, 0, 2, 3, 0], [2, 0, 2, 1, 0, 1]]), num_nodes=4)
    into = WholeGraph(data).edges_into(None, torch.tensor(nodes))
    for node, ids in zip(nodes, into.edge_id.split(into.ptr.diff().tolist()), strict=True):
        assert ids.sort().values.tolist() == (data.edge_index[1] == node).nonzero().view(-1).tolist()
    assert into.source.tolist() == data.edge_index[0, into.edge_id].tolist()
