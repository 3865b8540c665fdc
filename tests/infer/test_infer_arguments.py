"""What inference says of data, calls and wanted nodes that it cannot take, before it begins."""

import re

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from helpers.narrow import CLASSES, FEATURES, HIDDEN
from helpers.narrow_types import GRAPH, made
from helpers.narrow_types import call as call_types
from torch import nn
from torch_geometric.data import Data

from torch_gnnscale.infer import infer


def sage() -> nn.Module:
    torch.manual_seed(0)
    return pyg_nn.GraphSAGE(FEATURES, HIDDEN, 2, CLASSES).double().eval()


def ring() -> Data:
    """As many nodes as edges."""
    nodes = torch.arange(5)
    return Data(x=torch.rand(5, FEATURES).double(), edge_index=torch.stack([nodes, (nodes + 1) % 5]))


def test_data_on_another_device():
    data = make_data()
    data.x = data.x.to("meta")
    text = "data.x: inference with data on meta is not implemented; use data.cpu()"
    with pytest.raises(NotImplementedError, match=f"^{re.escape(text)}$"):
        infer(sage(), data)
    hetero = GRAPH.clone()
    hetero["a"].x = hetero["a"].x.to("meta")
    with pytest.raises(NotImplementedError, match=r"^data\['a'\].x: inference with data on meta is not implemented"):
        infer(made("SAGE", GRAPH).eval(), hetero, call_types)


def test_values_of_adj_t():
    data = ring()
    source, value = (torch.arange(5) + 4) % 5, torch.ones(5, dtype=torch.float64)
    data.adj_t = torch.sparse_csr_tensor(torch.arange(6), source, value, (5, 5))
    expected = sage()(data.x, data.edge_index)
    del data.edge_index
    assert torch.allclose(infer(sage(), data), expected, rtol=0, atol=1e-12)
    data.adj_t = torch.sparse_csr_tensor(torch.arange(6), source, value / 2, (5, 5))
    text = (
        "data.adj_t: inference with its values is not implemented, for batches have edge_index; make them an attribute"
    )
    with pytest.raises(NotImplementedError, match=f"^{re.escape(text)}"):
        infer(sage(), data)


def test_attributes_of_as_many_nodes_as_edges():
    data, model = ring(), pyg_nn.GraphConv(FEATURES, CLASSES).double().eval()
    data.w = data.edge_w = torch.rand(5).double()
    expected = model(data.x, data.edge_index, data.w)
    found = infer(model, data, lambda m, b: m(b.x, b.edge_index, b.edge_w), batch_size=2)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert infer(model, data).shape == (5, CLASSES), "which does not read it"
    text = "data.w: expected a name with 'node' or 'edge', for there are as many nodes as edges, and nothing else tells"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        infer(model, data, lambda m, b: m(b.x, b.edge_index, b.w))


def test_types_that_a_call_returns():
    def call(model, batch):
        out = call_types(model, batch)
        return {**out, "score": out["a"]}

    text = "call: expected node types of ['a', 'b', 'c'], found 'score'"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        infer(made("SAGE", GRAPH).eval(), GRAPH, call)


def test_a_function_and_a_bool():
    with pytest.raises(TypeError, match=r"^call: expected a function of a model and a batch, found None$"):
        infer(sage(), make_data(), None)
    with pytest.raises(TypeError, match=r"^progress: expected a bool, found 'no'$"):
        infer(sage(), make_data(), progress="no")


@pytest.mark.parametrize("of", [list, torch.Tensor.numpy])
def test_masks_of_any_kind(of):
    mask = torch.arange(200) % 50 == 3
    assert torch.equal(infer(sage(), make_data(), nodes=of(mask)), infer(sage(), make_data())[mask])


@pytest.mark.parametrize(("nodes", "shape"), [(torch.zeros(2, 3).long(), "(2, 3)"), (5, "()")])
def test_nodes_that_are_no_vector(nodes, shape):
    with pytest.raises(ValueError, match=f"^nodes: expected a vector, found shape {re.escape(shape)}$"):
        infer(sage(), make_data(), nodes=nodes)


def test_a_hub_is_refused_before_the_first_batch(tmp_path):
    """Also one of the second layer, of a node that comes last."""
    model = pyg_nn.GraphSAGE(FEATURES, 8, 2, CLASSES)
    model.convs[1] = pyg_nn.GATConv(8, CLASSES)
    data = make_data()
    data.edge_index[1, :400] = 199
    with pytest.raises(
        ValueError, match=r"^convs.1 \(GATConv\): expected a layer that takes the sum, .*; node 199 has"
    ):
        infer(model.double().eval(), data, memory=30_000, out=tmp_path / "rows")
    assert not (tmp_path / "rows").exists()


def test_layers_that_fail_without_edges():
    """PyG's median fails if the last node has none."""
    data, model = make_data(), pyg_nn.SAGEConv(FEATURES, CLASSES, aggr="median").double().eval()
    expected = model(data.x, data.edge_index)
    assert torch.equal(infer(model, data), expected)
    text = "expected a layer that takes nodes without edges, found that it fails on a batch with some: index"
    with pytest.raises(ValueError, match=rf"^the model \(SAGEConv\): {text}"):
        infer(model, data, batch_size=20)


class Decides(nn.Module):
    """Takes numbers of all nodes to Python."""

    def __init__(self, take) -> None:
        super().__init__()
        self.conv, self.take = pyg_nn.SAGEConv(FEATURES, CLASSES), take

    def forward(self, x, edge_index):
        return self.conv(x, edge_index) * 2 if self.take(x) else self.conv(x, edge_index)


@pytest.mark.parametrize("take", [lambda x: (x > 1e6).any(), lambda x: x.max().item() > 1e6, lambda x: x.numpy().any()])
def test_numbers_that_python_decides_by(take):
    with pytest.warns(UserWarning, match=r"^model: it takes numbers out of rows of nodes or edges \(by item\(\), bool"):
        infer(Decides(take).double().eval(), make_data())


def test_ids_may_be_taken_to_python(recwarn):
    weight = torch.rand(200, CLASSES, dtype=torch.float64).numpy()

    def call(model, batch):
        return model(batch.x, batch.edge_index) + torch.from_numpy(weight[batch.n_id.numpy()])

    expected = sage()(make_data().x, make_data().edge_index) + torch.from_numpy(weight)
    assert torch.allclose(infer(sage(), make_data(), call, batch_size=30), expected, rtol=0, atol=1e-12)
    assert not [of for of in recwarn if "takes numbers" in str(of.message)]
