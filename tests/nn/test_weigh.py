"""Weighed models multiply every message by its edge's weight, alone and narrowed."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow import CLASSES, FEATURES, HIDDEN, basic, weighed_batches
from helpers.slow import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import Weighed, forward_pass, narrow, weigh
from torch_gnnscale.nn.narrowed_layer import NarrowedLayer

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


def weighed_sum(batch, messages):
    """Row i: the sum of weight[e] * messages[e] over the edges into i, edge by edge."""
    out = messages.new_zeros(batch.num_nodes, messages.size(1))
    return out.index_add(0, batch.edge_index[1], messages * batch.edge_weight.unsqueeze(1))


def neighbors(batch, x):
    return weighed_sum(batch, x[batch.edge_index[0]])


def edge_conv(conv, batch, x):
    src, dst = batch.edge_index
    return weighed_sum(batch, conv.nn(torch.cat([x[dst], x[src] - x[dst]], 1)))


def gated(conv, batch, x):
    src, dst = batch.edge_index
    gates = torch.sigmoid(conv.lin_key(x)[dst] + conv.lin_query(x)[src])
    return weighed_sum(batch, gates * conv.lin_value(x)[src]) + conv.lin_skip(x) + conv.bias


def sage(conv, batch, x):
    return conv.lin_l(neighbors(batch, x)) + conv.lin_r(x)


BY_HAND = {
    "sage mean": (lambda i, o: pyg_nn.SAGEConv(i, o), sage),
    "sage sum": (lambda i, o: pyg_nn.SAGEConv(i, o, aggr="sum"), sage),
    "sage of an object": (lambda i, o: pyg_nn.SAGEConv(i, o, aggr=pyg_nn.MeanAggregation()), sage),
    "graph": (pyg_nn.GraphConv, lambda c, b, x: c.lin_rel(neighbors(b, x)) + c.lin_root(x)),
    "graph mean": (
        lambda i, o: pyg_nn.GraphConv(i, o, aggr="mean"),
        lambda c, b, x: c.lin_rel(neighbors(b, x)) + c.lin_root(x),
    ),
    "gcn": (
        lambda i, o: pyg_nn.GCNConv(i, o, normalize=False),
        lambda c, b, x: neighbors(b, c.lin(x)) + c.bias,
    ),
    "gin": (
        lambda i, o: pyg_nn.GINConv(nn.Linear(i, o), eps=0.5),
        lambda c, b, x: c.nn(neighbors(b, x) + 1.5 * x),
    ),
    "le": (
        pyg_nn.LEConv,
        lambda c, b, x: weighed_sum(b, c.lin1(x)[b.edge_index[0]] - c.lin2(x)[b.edge_index[1]]) + c.lin3(x),
    ),
    "edge mean": (lambda i, o: pyg_nn.EdgeConv(nn.Linear(2 * i, o), aggr="mean"), edge_conv),
    "gated": (pyg_nn.ResGatedGraphConv, gated),
}


class Stack(nn.Module):
    """Three layers, as PyG computes them or by hand."""

    def __init__(self, make, by_hand=None):
        super().__init__()
        sizes = [(FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)]
        self.convs = nn.ModuleList(make(*size) for size in sizes)
        self.by_hand = by_hand

    def forward(self, x, edge_index, batch=None):
        for conv in self.convs:
            x = (conv(x, edge_index) if batch is None else self.by_hand(conv, batch, x)).tanh()
        return x


def assert_same(model, expected, *outputs):
    """Outputs and gradients of the parameters are those expected."""
    scale = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(0)).to(
        expected.device
    )
    parameters = list(model.parameters())

    def gradients(out):
        found = torch.autograd.grad((out * scale).sum(), parameters, retain_graph=True, allow_unused=True)
        return [torch.zeros(()) if grad is None else grad for grad in found]

    theirs = gradients(expected)
    for out in outputs:
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
        for ours, grad in zip(gradients(out), theirs, strict=True):
            torch.testing.assert_close(ours, grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["ladies", "labor"])
@pytest.mark.parametrize("name", BY_HAND)
def test_outputs_and_gradients_are_those_computed_by_hand(name, method):
    torch.manual_seed(0)
    model = Stack(*BY_HAND[name]).double()
    weighed, narrowed = weigh(model), narrow(weigh(model))
    for batch in weighed_batches(method):
        expected = model(batch.x, batch.edge_index, batch)[: batch.batch_size]
        if method == "ladies":  # a mean over LABOR's edges is what its weights say
            assert not torch.allclose(model(batch.x, batch.edge_index)[: batch.batch_size], expected)
        assert_same(model, expected, weighed(batch)[: batch.batch_size], narrowed(batch))


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_a_weight_is_as_many_edges(reduce):
    torch.manual_seed(0)
    model = basic(pyg_nn.GraphSAGE, aggr=reduce, norm="BatchNorm", jk="cat")().double().eval()
    narrowed = narrow(weigh(model))
    for batch in weighed_batches("labor"):
        times = torch.randint(1, 4, (batch.num_edges,))
        repeated = batch.edge_index.repeat_interleave(times, 1)
        of_node = torch.zeros(batch.num_nodes).index_add(0, batch.edge_index[1], times.float())
        batch.edge_weight = times.double() / (of_node[batch.edge_index[1]] if reduce == "mean" else 1)
        assert_same(model, model(batch.x, repeated)[: batch.batch_size], narrowed(batch))


@pytest.mark.slow
@pytest.mark.parametrize("aggr", ["add", "mean"])
@pytest.mark.parametrize("kind", ["GINEConv", "NNConv", "CGConv", "GCN2Conv", "LGConv"])
def test_a_weight_is_as_many_edges_of_a_layer(kind, aggr):
    torch.manual_seed(0)
    conv = {
        "GINEConv": lambda: pyg_nn.GINEConv(nn.Linear(FEATURES, CLASSES), edge_dim=2, aggr=aggr),
        "NNConv": lambda: pyg_nn.NNConv(FEATURES, CLASSES, nn.Linear(2, FEATURES * CLASSES), aggr=aggr),
        "CGConv": lambda: pyg_nn.CGConv(FEATURES, 2, aggr=aggr),
        "GCN2Conv": lambda: pyg_nn.GCN2Conv(FEATURES, 0.3, normalize=False, aggr=aggr),
        "LGConv": lambda: pyg_nn.LGConv(normalize=False, aggr=aggr),
    }[kind]()
    arguments = {"LGConv": "x, edge_index", "GCN2Conv": "x, x, edge_index"}.get(kind, "x, edge_index, edge_attr")
    model = pyg_nn.Sequential("x, edge_index, edge_attr", [(conv, f"{arguments} -> x")]).double()

    def call(model, batch):
        return model(batch.x, batch.edge_index, batch.features)

    weighed, scale = weigh(model, call), nn.Parameter(torch.ones((), dtype=torch.float64))
    for batch in weighed_batches("labor"):
        times = torch.randint(1, 4, (batch.num_edges,))
        batch.features = torch.rand(batch.num_edges, 2, dtype=torch.float64)
        of_node = torch.zeros(batch.num_nodes).index_add(0, batch.edge_index[1], times.float())
        batch.edge_weight = times.double() / (of_node[batch.edge_index[1]] if aggr == "mean" else 1)
        batch.x = batch.x * scale
        repeated = batch.edge_index.repeat_interleave(times, 1), batch.features.repeat_interleave(times, 0)
        expected = model(batch.x, *repeated)[: batch.batch_size]
        found = weighed(batch)[: batch.batch_size], narrow(weighed)(batch)
        assert_same(nn.ParameterList([*model.parameters(), scale]), expected, *found)


@pytest.mark.parametrize("name", ["sage mean", "sage sum", "graph", "graph mean", "gcn", "gin"])
def test_the_csc_is_aggregated_over(name, monkeypatch):
    model = Stack(*BY_HAND[name]).double()
    monkeypatch.setattr(type(model.convs[0]), "propagate", None)
    narrowed = narrow(weigh(model), check=False)
    for batch in weighed_batches():
        narrowed(batch).sum().backward()


@pytest.mark.slow
def test_layers_with_hooks_and_other_types_of_numbers_run_pygs_code():
    torch.manual_seed(0)
    model = basic(pyg_nn.GraphSAGE)().double()
    batch = next(weighed_batches())
    expected = weigh(model)(batch)[: batch.batch_size]
    hooked = copy.deepcopy(model)
    seen = []
    for conv in hooked.convs:
        conv.register_message_forward_hook(lambda _conv, _args, out: seen.append(len(out)))
    torch.testing.assert_close(narrow(weigh(hooked), check=False)(batch), expected, rtol=0, atol=1e-12)
    assert seen == [sum(batch.num_sampled_edges[:hops]) for hops in (3, 2, 1)]
    batch.x = batch.x.bfloat16()
    out = narrow(weigh(copy.deepcopy(model).bfloat16()))(batch)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pyg_nn.GraphConv, pyg_nn.LGConv, pyg_nn.LEConv])
def test_a_weight_of_the_layer_is_multiplied_beside(kind):
    torch.manual_seed(0)
    options = {"normalize": False} if kind is pyg_nn.LGConv else {"in_channels": FEATURES, "out_channels": FEATURES}
    convs = [kind(**options) for _ in range(3)]
    steps = [(conv, "x, edge_index, weight -> x") for conv in convs]
    model = pyg_nn.Sequential("x, edge_index, weight", steps).double()
    scale = nn.Parameter(torch.ones((), dtype=torch.float64))
    for batch in weighed_batches():
        batch.strength = torch.rand(batch.num_edges, dtype=torch.float64)
        both = scale * batch.strength * batch.edge_weight
        expected = model(batch.x, batch.edge_index, both)[: batch.batch_size]

        def call(model, batch):
            return model(batch.x, batch.edge_index, scale * batch.strength)

        weighed = weigh(model, call)
        found = weighed(batch)[: batch.batch_size], narrow(weighed)(batch)
        assert_same(nn.ParameterList([*model.parameters(), scale]), expected, *found)


def test_prefixes_of_the_edges_have_the_first_weights():
    model = basic(pyg_nn.GraphSAGE)().double()

    def trimmed(model, batch):
        hops = {"num_sampled_nodes_per_hop": batch.num_sampled_nodes}
        return model(batch.x, batch.edge_index, num_sampled_edges_per_hop=batch.num_sampled_edges, **hops)

    for batch in weighed_batches():
        expected, found = (weighed(batch)[: batch.batch_size] for weighed in (weigh(model), weigh(model, trimmed)))
        assert_same(model, expected, found)


@pytest.mark.cuda
@pytest.mark.parametrize("name", BY_HAND)
def test_outputs_and_gradients_on_a_gpu(name):
    model = Stack(*BY_HAND[name]).double().cuda()
    for batch in weighed_batches():
        batch = batch.to("cuda")
        expected = model(batch.x, batch.edge_index, batch)[: batch.batch_size]
        assert_same(model, expected, weigh(model)(batch)[: batch.batch_size], narrow(weigh(model))(batch))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sage sum", "graph"])
def test_an_edge_index_of_pyg(name):
    model = Stack(*BY_HAND[name]).double()
    for batch in weighed_batches(edge_layout="EdgeIndex"):
        assert isinstance(batch.edge_index, EdgeIndex)
        found = weigh(model)(batch)[: batch.batch_size], narrow(weigh(model))(batch)
        batch.edge_index = batch.edge_index.as_tensor()
        assert_same(model, model(batch.x, batch.edge_index, batch)[: batch.batch_size], *found)


def test_a_name_of_the_weights():
    model = basic(pyg_nn.GIN)().double()
    batch = next(weighed_batches("fastgcn", weight_name="correction"))
    expected = weigh(model, weight_name="correction")(batch)[: batch.batch_size]
    assert_same(model, expected, narrow(weigh(model, weight_name="correction"))(batch))
    with pytest.raises(ValueError, match=r"^batch: expected weights of edges named 'edge_weight', found none; "):
        weigh(model)(batch)


def test_of_two_ways_to_call_a_model_the_narrowed_ones_is_taken():
    model = Stack(*BY_HAND["sage mean"]).double()
    batch = next(weighed_batches())

    def twice(model, batch):
        return model(2 * batch.x, batch.edge_index, batch)

    def thrice(model, batch):
        return model(3 * batch.x, batch.edge_index, batch)

    for narrowed, call in [(narrow(weigh(model, twice), thrice), thrice), (narrow(weigh(model, twice)), twice)]:
        assert_same(model, call(model, batch)[: batch.batch_size], narrowed(batch))


def test_repeated_seeds_and_seeds_without_edges():
    model = Stack(*BY_HAND["sage mean"]).double()
    narrowed = narrow(weigh(model))
    for batch in weighed_batches(seeds=torch.tensor([7, 7, 3, 7, 11, 3])):
        assert batch.batch_size == 6
        assert_same(model, model(batch.x, batch.edge_index, batch)[:6], narrowed(batch), weigh(model)(batch)[:6])
        assert torch.equal(narrowed(batch)[0], narrowed(batch)[1])
    data = Data(x=torch.rand(9, FEATURES), edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=9)
    for batch in NeighborLoader(data, [4, 4, 4], batch_size=5, method="ladies"):
        batch.x, batch.edge_weight = batch.x.double(), batch.edge_weight.double()
        expected = model(batch.x, batch.edge_index, batch)[: batch.batch_size]
        assert_same(model, expected, weigh(model)(batch), narrow(weigh(model))(batch))


@pytest.mark.slow
@examples(25)
@given(st.data())
def test_any_batch(data):
    n = data.draw(st.integers(1, 8))
    ends = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=24))
    index = torch.tensor(ends, dtype=torch.long).reshape(-1, 2).t().contiguous()
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=6)))
    method, name = data.draw(st.sampled_from(["ladies", "fastgcn", "labor"])), data.draw(st.sampled_from(list(BY_HAND)))
    torch.manual_seed(0)
    graph = Data(x=torch.rand(n, FEATURES, dtype=torch.float64), edge_index=index, num_nodes=n)
    model = Stack(*BY_HAND[name]).double()
    for batch in NeighborLoader(graph, [2, 2, 2], seeds, batch_size=4, method=method):
        batch.edge_weight = batch.edge_weight.double()
        expected = model(batch.x, batch.edge_index, batch)[: batch.batch_size]
        assert_same(model, expected, weigh(model)(batch)[: batch.batch_size], narrow(weigh(model))(batch))


def test_batches_that_are_too_small_are_computed_whole_with_weights(monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", float("inf"))
    model = basic(pyg_nn.GraphSAGE)().double()
    narrowed = narrow(weigh(model), check=False)
    monkeypatch.setattr(NarrowedLayer, "enter", None)
    batch = next(weighed_batches())
    assert torch.equal(narrowed(batch), weigh(model)(batch)[: batch.batch_size])


def test_names_and_the_model_itself_stay():
    model = basic(pyg_nn.GraphSAGE, norm="BatchNorm")().double()
    batch, before = next(weighed_batches()), {m: dict(vars(m)) for m in model.modules()}
    for wrapped in (weigh(model), narrow(weigh(model))):
        wrapped.eval()(batch)
        assert isinstance(wrapped, Weighed) or isinstance(wrapped.module, Weighed)
        assert list(wrapped.state_dict()) == list(model.state_dict())
        assert [n for n, _ in wrapped.named_parameters()] == [n for n, _ in model.named_parameters()]
        outer = nn.Sequential(nn.Linear(1, 1), wrapped, nn.Linear(1, 1))
        state = {name: tensor + 1 for name, tensor in outer.state_dict().items()}
        assert [name for name in state if name.startswith("1.")] == [f"1.{name}" for name in model.state_dict()]
        assert not any(outer.load_state_dict(state))
        assert all(torch.equal(state[name], tensor) for name, tensor in outer.state_dict().items())
        assert all(torch.equal(state[f"1.{name}"], tensor) for name, tensor in model.state_dict().items())
        assert wrapped.num_layers == 3
    for module, attributes in before.items():
        assert vars(module).keys() == attributes.keys()
        assert not {"message", "propagate", "aggregate", "forward"} & vars(module).keys()
