"""Products of the rows of distinct nodes, where a batch's trees repeat nodes."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import FEATURES, GRAPH, HIDDEN, call, made
from torch import nn
from torch_geometric.data import Data

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import narrow, pyg_layers

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")
SEEDS = torch.arange(12)


@pytest.fixture
def multiplied(monkeypatch):
    """The numbers of rows of the products that linear modules compute; all are worth it."""
    found, multiply = [], nn.functional.linear
    monkeypatch.setattr(pyg_layers, "OF_NUMBER", 0)
    monkeypatch.setattr(
        nn.functional, "linear", lambda x, *given: (found.append((len(x), x.size(1))), multiply(x, *given))[1]
    )
    return found


class OneType(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.encode = linear
        self.convs = nn.ModuleList(pyg_nn.SAGEConv(HIDDEN, HIDDEN) for _ in range(2))

    def forward(self, batch):
        x = self.encode(batch.x)
        for conv in self.convs:
            x = conv(x, batch.edge_index).relu()
        return x


def trees(disjoint=True):
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(20, FEATURES, dtype=torch.float64, generator=generator),
        edge_index=torch.randint(20, (2, 90), generator=generator),
        num_nodes=20,
    )
    return next(iter(NeighborLoader(data, [4, 4], SEEDS, batch_size=len(SEEDS), disjoint=disjoint)))


def narrowed_as_whole(model, batch, narrowed=None):
    """Whether outputs and gradients are those of the whole batch; not reached otherwise."""
    expected = model(batch)[: len(SEEDS)]
    found = (narrowed or narrow(model, lambda model, batch: model(batch), check=False))(batch)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    scale = torch.arange(1.0, found.numel() + 1, dtype=torch.float64).view(found.shape)
    grads = (torch.autograd.grad((out * scale).sum(), list(model.parameters())) for out in (found, expected))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("linear", [nn.Linear, pyg_nn.Linear])
def test_a_graph_of_one_type(linear, multiplied):
    torch.manual_seed(0)
    model, batch = OneType(linear(FEATURES, HIDDEN)).double(), trees()
    narrowed_as_whole(model, batch)
    rows = [count for count, width in multiplied if width == FEATURES]
    assert rows == [batch.num_nodes, len(batch.n_id.unique())]
    assert rows[1] < rows[0]
    assert "forward" not in vars(model.encode)


def test_types(multiplied):
    model = made("SAGE", GRAPH)
    batch = next(iter(NeighborLoader(GRAPH, [4, 4], ("a", SEEDS), batch_size=len(SEEDS), disjoint=True)))
    expected = call(model, batch)["a"][: len(SEEDS)]
    multiplied.clear()
    found = narrow(model, call, check=False)(batch)["a"]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert {(len(batch[t].n_id.unique()), FEATURES) for t in batch.node_types} <= set(multiplied)


@pytest.mark.parametrize("lazy", [nn.LazyLinear, lambda hidden: pyg_nn.Linear(-1, hidden)])
def test_lazy_modules(lazy, multiplied):
    model, batch = OneType(lazy(HIDDEN)).double(), trees()
    narrowed = narrow(model, lambda model, batch: model(batch))
    narrowed(batch)
    narrowed_as_whole(model, batch, narrowed)
    assert (len(batch.n_id.unique()), FEATURES) in multiplied


@pytest.mark.slow
def test_compiled_modules_are_left_alone():
    model = OneType(torch.compile(nn.Linear(FEATURES, HIDDEN), backend="eager"))
    assert not pyg_layers.linear_modules(model)
    model = OneType(nn.Linear(FEATURES, HIDDEN))
    assert pyg_layers.linear_modules(model) == [model.encode]
    model.encode.compile(backend="eager")
    assert not pyg_layers.linear_modules(model)


@pytest.mark.parametrize("change", ["rows", "gradient", "no trees", "a subclass", "too small"])
def test_what_is_computed_as_it_is(change, multiplied, monkeypatch):
    class Own(nn.Linear):
        def forward(self, x):
            return nn.functional.linear(x, self.weight, self.bias)

    torch.manual_seed(0)
    model, batch = OneType((Own if change == "a subclass" else nn.Linear)(FEATURES, HIDDEN)).double(), trees()
    if change == "rows":
        batch.x = batch.x + torch.arange(batch.num_nodes).view(-1, 1)
    elif change == "gradient":
        batch.x.requires_grad_()
    elif change == "no trees":
        batch = trees(disjoint=False)
    elif change == "too small":
        monkeypatch.setattr(pyg_layers, "OF_NUMBER", FEATURES * HIDDEN)
    narrowed = narrow(model, lambda model, batch: model(batch), check=False)
    narrowed_as_whole(model, batch, narrowed)
    rows = [count for count, width in multiplied if width == FEATURES]
    assert rows[0] == rows[-1] == batch.num_nodes
    assert narrowed._distinct.differ == ({None} if change == "rows" else set())
