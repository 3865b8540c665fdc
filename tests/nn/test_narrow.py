"""Narrowed models give the outputs and gradients of the model on the whole batch."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from helpers.narrow import CLASSES, FEATURES, HIDDEN, MODELS, Branches, basic, batches, sequence
from helpers.slow import SLOW
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.typing import OptPairTensor

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import Narrowed, narrow
from torch_gnnscale.nn.aggregate import sort_edges
from torch_gnnscale.nn.hops import BatchHops

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


def test_edges_are_sorted_alike_with_and_without_the_operator():
    index = torch.randint(20, (2, 300), generator=torch.Generator().manual_seed(0))
    edges, order = sort_edges(index, 20, 20)
    assert torch.equal(order, torch.argsort(index[1], stable=True))
    assert torch.equal(edges.index, index[:, order])
    assert torch.equal(edges.forward.ptr[1:], torch.bincount(index[1], minlength=20).cumsum(0))


def gradients(model: nn.Module, out: torch.Tensor) -> list[torch.Tensor]:
    scale = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad((out * scale).sum(), list(model.parameters()), allow_unused=True)
    return [torch.zeros(()) if grad is None else grad for grad in found]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, SLOW({"replace": True}), SLOW({"edge_layout": "EdgeIndex"})], ids=str)
def test_outputs_and_gradients(name, options):
    if name == "light" and "edge_layout" in options:
        pytest.skip("PyG's GraphConv does not take an EdgeIndex with float64")
    torch.manual_seed(0)
    model = MODELS[name]().double()
    model.eval()  # BatchNorm in training sees other rows
    narrowed = narrow(model)
    parameters = list(model.parameters())
    for batch in batches(**options):
        edges = batch.edge_index
        if isinstance(edges, EdgeIndex):  # which some of PyG's layers do not take
            edges = edges.as_tensor()
        expected = model(batch.x, edges)[: batch.batch_size]
        found = narrowed(batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        if parameters:
            for ours, theirs in zip(gradients(model, found), gradients(model, expected), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


ON_A_GPU = ["sage", "sage max", "sage min", "gcn", "gat", "gat v2", "gin", "gcn2", "residual", "light"]


@pytest.mark.cuda
@pytest.mark.parametrize("name", ON_A_GPU)
def test_outputs_and_gradients_on_a_gpu(name):
    torch.manual_seed(0)
    model = MODELS[name]().double().cuda().eval()
    narrowed = narrow(model)
    for batch in batches():
        batch = batch.to("cuda")
        expected, found = model(batch.x, batch.edge_index)[: batch.batch_size], narrowed(batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        of_found, of_expected = (torch.autograd.grad(out.sum(), list(model.parameters())) for out in (found, expected))
        for ours, theirs in zip(of_found, of_expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ON_A_GPU)
def test_a_gpu_stores_no_messages(name, monkeypatch):
    """Of the layers whose messages are neighbors' rows: their sums are those of our operator, as on the CPU."""
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    on_gpu = copy.deepcopy(model).cuda()

    def refuse(*args, **kwargs):
        raise AssertionError("PyG's own operators aggregate messages")

    expected = [narrow(model, check=False)(batch) for batch in batches()]
    monkeypatch.setattr(pyg_nn.MessagePassing, "aggregate", refuse)
    narrowed = narrow(on_gpu, check=False)
    for batch, of_cpu in zip(batches(), expected, strict=True):
        torch.testing.assert_close(narrowed(batch.to("cuda")).cpu(), of_cpu, rtol=0, atol=1e-12)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["sage", "sage max", "gin", "residual"])
def test_the_host_waits_for_the_first_batch_alone(name):
    model = MODELS[name]().double().cuda()
    narrowed = narrow(model)
    first, second = (batch.to("cuda") for batch in list(batches())[:2])
    narrowed(first).sum().backward()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        narrowed(second).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Points(nn.Module):
    """Layers that take positions of nodes beside their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg_nn.PointTransformerConv(FEATURES, HIDDEN)
        self.second = pyg_nn.PointNetConv(nn.Linear(HIDDEN + 3, HIDDEN))
        self.last = pyg_nn.PointNetConv(nn.Linear(HIDDEN + 3, CLASSES), add_self_loops=False)

    def forward(self, x, pos, edge_index):
        x = self.first(x, pos, edge_index).relu()
        return self.last(self.second(x, pos, edge_index).relu(), pos, edge_index)


@pytest.mark.slow
def test_other_rows_of_nodes_are_cut_as_well():
    torch.manual_seed(0)
    model = Points().double()
    narrowed = narrow(model, lambda model, batch: model(batch.x, batch.x, batch.edge_index))
    for batch in batches():
        expected, found = model(batch.x, batch.x, batch.edge_index)[: batch.batch_size], narrowed(batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        for ours, theirs in zip(gradients(model, found), gradients(model, expected), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_other_arguments_are_cut_as_well():
    torch.manual_seed(0)
    model = Branches().double()
    call = lambda model, batch: model(batch.x, batch.edge_index, batch.edge_attr[:, :2].double())  # noqa: E731
    narrowed = narrow(model, call)
    for batch in batches():
        expected, found = call(model, batch)[: batch.batch_size], narrowed(batch)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        for ours, theirs in zip(gradients(model, found), gradients(model, expected), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_weights_of_a_gcn_get_gradients():
    model = pyg_nn.GCN(FEATURES, HIDDEN, 3, CLASSES).double()
    model.convs[1].improved = True  # the weights of loops, and with them the normalized weights, are others
    for batch in batches():
        found = []
        for run in (narrow(model), model):
            weight = torch.linspace(0.5, 2, batch.num_edges, dtype=torch.float64, requires_grad=True)
            if isinstance(run, Narrowed):
                run.call = lambda model, batch, weight=weight: model(batch.x, batch.edge_index, weight)
                out = run(batch)
            else:
                out = run(batch.x, batch.edge_index, weight)[: batch.batch_size]
            found.append((out, *torch.autograd.grad(out.sum(), weight)))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_no_layer_computes_more_rows_than_it_must():
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES)
    narrowed, rows = narrow(model.double(), check=False), []
    for conv in model.convs:
        conv.lin_l.register_forward_hook(lambda module, args, out: rows.append(len(out)))
        conv.lin_r.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    for batch in batches():
        rows.clear()
        narrowed(batch)
        assert rows == [n for n in BatchHops(batch).nodes[None].rows[-2::-1] for _ in range(2)]
        assert rows[-1] == batch.batch_size


def test_the_model_stays_what_it_was():
    model = pyg_nn.GAT(FEATURES, HIDDEN, 3, CLASSES).double()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    narrowed = narrow(model)
    batch = next(iter(batches()))
    expected = narrowed(batch)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    for other in (copy.deepcopy(narrowed), pickle.loads(pickle.dumps(narrowed))):
        assert torch.equal(other(batch), expected)

    def fail(*args):
        raise RuntimeError("in the middle")

    handle = model.convs[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        narrowed(batch)
    handle.remove()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


def test_nothing_of_a_batch_is_kept():
    model = pyg_nn.GCN(FEATURES, HIDDEN, 3, CLASSES).double()
    narrowed = narrow(model)
    gc.disable()
    try:
        for batch in batches():
            narrowed(batch).sum().backward()
        left = weakref.ref(batch.edge_index)
        del batch
        assert left() is None
    finally:
        gc.enable()


def test_layers_that_a_model_gets_later_are_narrowed():
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    narrowed, batch = narrow(model), next(iter(batches()))
    narrowed(batch)
    model.convs[1] = pyg_nn.GraphConv(HIDDEN, HIDDEN).double()
    convolve = model.convs[2].forward
    model.convs[2].forward = lambda features, edge_index: convolve(features, edge_index)
    expected = model(batch.x, batch.edge_index)[: batch.batch_size]
    torch.testing.assert_close(narrowed(batch), expected, rtol=0, atol=1e-12)


def test_a_forward_that_a_layer_gets_later_is_called_with_what_it_takes():
    """The layer's own takes a pair of rows, which the sum would not."""
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    narrowed, batch = narrow(model), next(iter(batches()))
    narrowed(batch)
    convolve = model.convs[1].forward
    model.convs[1].forward = lambda features, edge_index: convolve(features, edge_index) + features
    for _ in range(2):  # with it, and with the class's own again
        expected = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(narrowed(batch), expected, rtol=0, atol=1e-12)
        vars(model.convs[1]).pop("forward", None)


class PassesOn(pyg_nn.GraphConv):
    """Names of its arguments only the first."""

    def forward(self, x, *others, **named):
        return super().forward(x, *others, **named) + 1


@pytest.mark.parametrize("kind", [pyg_nn.SAGEConv, pyg_nn.GCNConv, pyg_nn.GATConv, PassesOn])
def test_a_forward_that_passes_on_what_it_gets(kind):
    """The arguments are those of the class whose ``forward`` it stands for; rows of edges are cut with the edges."""
    conv = kind(FEATURES, CLASSES, **({"edge_dim": 1} if kind is pyg_nn.GATConv else {})).double()

    def forward(*given, **named):
        return 3 * type(conv).forward(conv, *given, **named)

    conv.forward = forward
    model = pyg_nn.Sequential("x, edge_index, weight", [
        (pyg_nn.GraphConv(FEATURES, FEATURES), "x, edge_index, weight -> x"),
        (conv, "x, edge_index -> x" if kind is pyg_nn.SAGEConv else "x, edge_index, weight -> x"),
    ]).double()  # fmt: skip
    call = lambda model, batch: model(batch.x, batch.edge_index, batch.edge_attr[:, 1] + 2)  # noqa: E731
    for check in (True, False):
        batch = next(iter(batches()))
        expected = call(model, batch)[: batch.batch_size]
        torch.testing.assert_close(narrow(model, call, check)(batch), expected, rtol=0, atol=1e-12)


def test_a_hook_on_messages_is_called():
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    narrowed, batch, calls = narrow(model, check=False), next(iter(batches())), []
    handle = model.convs[0].register_message_forward_hook(lambda module, args, out: calls.append(out.shape))
    found = narrowed(batch)
    handle.remove()
    assert calls == [(batch.num_edges, FEATURES)]
    torch.testing.assert_close(found, narrowed(batch), rtol=0, atol=1e-12)


class DoubledSums(pyg_nn.SumAggregation):
    def forward(self, *args, **kwargs):
        return 2 * super().forward(*args, **kwargs)


def double(_, given, out):
    return 2 * out


def with_own_forward(conv):
    conv.forward = lambda *args, **named: 2 * type(conv).forward(conv, *args, **named)


CHANGES = {
    "a hook of messages": lambda conv: conv.register_message_forward_hook(double),
    "a hook of sums": lambda conv: conv.register_aggregate_forward_hook(double),
    "a hook of both": lambda conv: conv.register_propagate_forward_hook(double),
    "a hook before both": lambda conv: conv.register_propagate_forward_pre_hook(doubles_rows),
    "sums of another class": lambda conv: setattr(conv, "aggr_module", DoubledSums()),
    "a forward of its own": with_own_forward,
}  # fmt: skip


def doubles_rows(_, given):
    return *given[:2], {**given[2], "x": twice(given[2]["x"])}


def twice(rows):
    return tuple(map(twice, rows)) if isinstance(rows, tuple) else None if rows is None else 2 * rows


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [pyg_nn.GAT, pyg_nn.GCN, pyg_nn.GraphSAGE])
def test_a_layer_that_was_changed_computes_as_in_a_whole_batch(kind, change):
    torch.manual_seed(0)  # with some weights no row is positive, whose outputs stay 0
    model = kind(FEATURES, HIDDEN, 3, CLASSES, **({"aggr": "sum"} if kind is pyg_nn.GraphSAGE else {})).double()
    narrowed, batch = narrow(model, check=False), next(iter(batches()))
    before = narrowed(batch)
    CHANGES[change](model.convs[1])
    expected = model(batch.x, batch.edge_index)[: batch.batch_size]
    assert not torch.allclose(expected, before)
    for again in (narrowed, narrow(model)):
        torch.testing.assert_close(again(batch), expected, rtol=0, atol=1e-12)


def test_empty_hops_and_repeated_seeds():
    data = make_data()
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    for seeds, fanouts in (([5, 5, 7, 5], [3, 3, 3]), ([0, 1], [0, 2, 2]), ([3], [-1, 0, -1]), ([2, 9], [1, 1, 1])):
        batch = NeighborLoader(data, fanouts, torch.tensor(seeds), batch_size=8, seed=1)
        batch = next(iter(batch))
        expected = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(narrow(model)(batch), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*MODELS} - {"sage lstm"}))  # which PyG cannot compute without edges
def test_a_batch_without_edges(name):
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    data = Data(x=torch.randn(4, FEATURES).double(), edge_index=torch.empty(2, 0, dtype=torch.int64))
    batch = next(iter(NeighborLoader(data, [3, 2, 2], torch.tensor([2, 1]), batch_size=2)))
    for narrowed in (narrow(model), narrow(model, check=False)):
        found, expected = narrowed(batch), model(batch.x, batch.edge_index)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        if list(model.parameters()):
            for ours, theirs in zip(gradients(model, found), gradients(model, expected), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gcn as given", "weights", "edge features"])
def test_a_batch_without_edges_whose_messages_have_weights_or_features(name):
    model = {
        "gcn as given": basic(pyg_nn.GCN, normalize=False),
        "weights": sequence(lambda: pyg_nn.GraphConv(FEATURES, CLASSES)),
        "edge features": basic(pyg_nn.GAT, edge_dim=1, add_self_loops=False),
    }[name]().double()
    x, nothing = torch.randn(2, FEATURES).double(), torch.empty(2, 0, dtype=torch.int64)
    data = Data(x=x, edge_index=nothing, weight=torch.empty(0, 1).double())
    batch = next(iter(NeighborLoader(data, [1] * 3, torch.arange(2), batch_size=2)))
    first = model.module_0 if name == "weights" else model

    def call(_, batch):
        if name == "edge features":
            return first(batch.x, batch.edge_index, edge_attr=batch.weight)
        return first(batch.x, batch.edge_index, edge_weight=batch.weight[:, 0])

    torch.testing.assert_close(narrow(model, call)(batch), call(model, batch), rtol=0, atol=1e-12)


class Doubled(pyg_nn.SAGEConv):
    """Changes what PyG's layer makes of the sums."""

    def update(self, inputs):
        return 2 * inputs


class EdgesFirst(pyg_nn.GraphConv):
    """Takes the edges before the rows."""

    def forward(self, edge_index, x):
        return super().forward(x, edge_index)


class TwoWeights(pyg_nn.GraphConv):
    """Propagates the same rows twice, with other weights."""

    def forward(self, x: OptPairTensor, edge_index, edge_weight=None):
        x = (x, x) if isinstance(x, torch.Tensor) else x
        first = self.propagate(edge_index, x=x, edge_weight=edge_weight, size=None)
        second = self.propagate(edge_index, x=x, edge_weight=edge_weight * -3, size=None)
        return self.lin_rel(first) + second.sum(1, keepdim=True)


class Own(nn.Module):
    """Three layers of a kind."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.convs = nn.ModuleList([kind(FEATURES, FEATURES) for _ in range(3)])

    def forward(self, x, edge_index, weight):
        for conv in self.convs:
            if isinstance(conv, TwoWeights):
                x = conv(x, edge_index, weight)
            else:
                x = conv(edge_index, x) if isinstance(conv, EdgesFirst) else conv(x, edge_index)
        return x


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Doubled, EdgesFirst, TwoWeights])
def test_layers_that_change_what_pygs_do(kind):
    torch.manual_seed(0)
    model = Own(kind).double()
    narrowed = narrow(model, lambda model, batch: model(batch.x, batch.edge_index, batch.edge_attr[:, 1]), check=False)
    for batch in batches():
        batch.edge_attr /= 100
        expected = model(batch.x, batch.edge_index, batch.edge_attr[:, 1])[: batch.batch_size]
        torch.testing.assert_close(narrowed(batch), expected, rtol=1e-12, atol=1e-12)
