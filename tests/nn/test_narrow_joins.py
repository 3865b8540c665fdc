"""HeteroConv and traced models add up the outputs of their layers in one function, where that is all they do."""

import copy
import operator

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import FEATURES, GRAPH, HIDDEN, RELATIONS, ByRelation, batch_of, call, check, made
from helpers.slow import SLOW, quick
from torch import fx, nn
from torch_geometric.nn import to_hetero

from torch_gnnscale.nn import joins, narrow, weigh
from torch_gnnscale.nn.sums import sums

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


@pytest.fixture
def joined(monkeypatch):
    """The numbers of shares of each sum, of all calls."""
    found = []
    monkeypatch.setattr(
        joins, "sums", lambda shares, *given: (found.append([*map(len, shares)]), sums(shares, *given))[1]
    )
    return found


OF_GRAPH = [2, 3, 1]
"""How many relations of GRAPH lead to b, a and c."""
INTO_A = [relation for relation in RELATIONS if relation[2] == "a"]


def sage(aggr="mean", **options):
    return lambda *_: pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN, aggr, **options)


def with_relations(conv, aggr="sum"):
    torch.manual_seed(0)
    return ByRelation(GRAPH, conv, aggr=aggr).double()


@pytest.mark.parametrize("aggr", ["sum", "mean"])
@pytest.mark.parametrize(
    "conv",
    [
        sage(), sage("max"), sage("sum", bias=False), sage(root_weight=False),
        lambda *_: pyg_nn.GraphConv((HIDDEN, HIDDEN), HIDDEN),
    ],
    ids=["mean", "max", "no bias", "no root", "GraphConv"],
)  # fmt: skip
def test_a_layer_is_one_function(conv, aggr, joined):
    model = with_relations(conv, aggr)
    narrowed = narrow(model, call, check=False)
    check(model, narrowed, batch_of())
    assert joined[-2:] == [OF_GRAPH, OF_GRAPH]


@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_a_traced_model_calls_one_function_for_each_layer(aggr, joined):
    torch.manual_seed(0)
    model = to_hetero(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 2, HIDDEN), GRAPH.metadata(), aggr=aggr).double()
    check(model, narrow(model, call, check=False), batch_of())
    # A mean of one relation is that relation's layer itself.
    assert joined[-2:] == [OF_GRAPH] * 2 if aggr == "sum" else [OF_GRAPH[:2]] * 2


class Residual(nn.Module):
    """Two layers on one input, whose outputs are added to it."""

    def __init__(self, kind):
        super().__init__()
        self.one, self.other = (kind((FEATURES, FEATURES), FEATURES) for _ in range(2))

    def forward(self, x, edge_index):
        x = x + self.one(x, edge_index) + self.other(x, edge_index)
        return self.other(x, edge_index)


@pytest.mark.parametrize("kind", [pyg_nn.SAGEConv, pyg_nn.GATv2Conv])
def test_traced_models_with_other_sums(kind):
    torch.manual_seed(0)
    options = {} if kind is pyg_nn.SAGEConv else {"add_self_loops": False}
    model = to_hetero(Residual(lambda *given: kind(*given, **options)), GRAPH.metadata()).double()
    check(model, narrow(model, call), batch_of())


@pytest.mark.parametrize("divisor", [2, 3, 4])
@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_traced_models_that_divide_themselves(divisor, aggr):
    """By the number of relations, or by another one."""

    class Divided(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg_nn.SAGEConv((FEATURES, FEATURES), FEATURES)

        def forward(self, x, edge_index):
            return torch.div(self.conv(x, edge_index), divisor)

    torch.manual_seed(0)
    model = to_hetero(Divided(), GRAPH.metadata(), aggr=aggr).double()
    check(model, narrow(model, call, check=False), batch_of())


@pytest.mark.slow
def test_a_traced_model_that_is_changed(joined):
    model = made("to_hetero SAGE", GRAPH)
    narrowed, batch = narrow(model, call, check=False), batch_of()
    before = narrowed(batch)["a"]
    for node in model.graph.nodes:
        if node.target is torch.add:
            node.target = torch.sub
            break
    model.recompile()
    check(model, narrowed, batch)
    assert not torch.equal(narrowed(batch)["a"], before)


class Doubled(pyg_nn.SAGEConv):
    def forward(self, x, edge_index):
        return 2 * super().forward(x, edge_index)


class Projected(nn.Module):
    """No layer, but with one."""

    def __init__(self):
        super().__init__()
        self.conv = pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index).tanh()


MORE = {
    "normalized": sage(normalize=True),
    "projected": sage(project=True),
    "several": sage(["mean", "max"]),
    "std": sage("std"),
    "subclass": lambda *_: Doubled((HIDDEN, HIDDEN), HIDDEN),
    "module": lambda *_: Projected(),
    "some modules": lambda _, number: Projected() if number % 2 else pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN),
    "a module beside two": lambda relation, _: (Projected if relation == INTO_A[-1] else sage())(),
    "some normalized": lambda _, number: (sage(normalize=True) if number % 3 else sage())(),
}


@pytest.mark.parametrize("conv", quick(MORE, "a module beside two", "some normalized"))
@pytest.mark.parametrize("aggr", [SLOW("sum"), "mean"])
def test_layers_that_do_more(conv, aggr):
    model = with_relations(conv, aggr)
    check(model, narrow(model, call), batch_of())


def hook(module, name):
    seen = []
    getattr(module, f"register_{name}_hook")(lambda *given: seen.append(given))
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("of", ["layer", "product"])
@pytest.mark.parametrize("name", ["forward", "forward_pre"])
def test_hooks_are_called(of, name):
    model = with_relations(sage())
    layer = model.convs[0].convs[RELATIONS[0]]
    seen = hook(layer if of == "layer" else layer.lin_l, name)
    narrowed, batch = narrow(model, call, check=False), batch_of()
    narrowed(batch)
    seen.clear()
    narrowed(batch)
    assert len(seen) == 1
    check(model, narrowed, batch)


def test_a_forward_that_was_replaced():
    model = with_relations(sage())
    layer = model.convs[0].convs[RELATIONS[0]]
    layer.forward = lambda x, edge_index: 3 * type(layer).forward(layer, x, edge_index)
    check(model, narrow(model, call, check=False), batch_of())


@pytest.mark.parametrize("kind", ["SAGE", "GAT", "mixed"])
@pytest.mark.parametrize("method", ["message", "propagate"])
def test_a_method_that_was_replaced_on_a_layer(kind, method):
    gat = lambda *_: pyg_nn.GATConv((HIDDEN, HIDDEN), HIDDEN, add_self_loops=False)  # noqa: E731
    model = {"SAGE": with_relations(sage()), "GAT": with_relations(gat), "mixed": made("mixed", GRAPH)}[kind]
    for layer in model.modules():
        if isinstance(layer, pyg_nn.MessagePassing):
            before = getattr(layer, method)
            if method == "propagate":
                layer.propagate = lambda edge_index, before=before, **kwargs: 2 * before(edge_index, **kwargs)
            elif isinstance(layer, (pyg_nn.GATConv, pyg_nn.GATv2Conv)):
                layer.message = lambda x_j, alpha, before=before: 2 * before(x_j, alpha)
            elif isinstance(layer, pyg_nn.SAGEConv):
                layer.message = lambda x_j, before=before: 2 * before(x_j)
    check(model, narrow(model, call, check=False), batch_of())


def test_a_class_with_its_own_propagate():
    class Own(pyg_nn.SAGEConv):
        def propagate(self, edge_index, **kwargs):
            return 2 * pyg_nn.MessagePassing.propagate(self, edge_index, **kwargs)

    model = with_relations(lambda *_: Own((HIDDEN, HIDDEN), HIDDEN))
    check(model, narrow(model, call, check=False), batch_of())


def test_parameters_have_gradients_as_on_the_whole_batch():
    """Zeros of a relation without edges, which an optimizer takes for others than None; None of what nobody reads."""
    model, batch = with_relations(sage()), batch_of("b")
    narrowed = narrow(model, call, check=False)
    assert not batch["a", "r3", "c"].edge_index.numel()
    found = []
    for out in (narrowed(batch)["b"], call(model, batch)["b"][:3]):
        model.zero_grad()
        out.sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert model.convs[0].convs[("a", "r3", "c")].lin_l.weight.grad is not None
    assert model.convs[1].convs[("a", "r3", "c")].lin_l.weight.grad is None
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("biased", [True, False])
def test_outputs_of_different_widths_are_refused_as_by_pyg(biased):
    torch.manual_seed(0)
    model = pyg_nn.HeteroConv({
        r: pyg_nn.SAGEConv((FEATURES, FEATURES), 1 + number, bias=biased, root_weight=biased)
        for number, r in enumerate(RELATIONS)
    }).double()  # fmt: skip
    batch = batch_of()
    run = lambda model, batch: model(batch.x_dict, batch.edge_index_dict)  # noqa: E731
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        run(model, batch)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        narrow(model, run, check=False)(batch)


def test_under_autocast_each_layer_is_computed_by_itself(joined):
    model, batch = with_relations(sage()).float(), batch_of()
    run = lambda model, batch: model({t: x.float() for t, x in batch.x_dict.items()}, batch.edge_index_dict)["a"]  # noqa: E731
    with torch.autocast("cpu", torch.bfloat16):
        found = narrow(model, run, check=False)(batch)
        expected = run(model, batch)[:3]
    assert joined[-1] == []
    torch.testing.assert_close(found, expected, rtol=2**-5, atol=2**-6)


def test_weighed_layers_are_one_function(joined):
    batch = batch_of()
    for relation in RELATIONS:
        store = batch[relation]
        store.edge_weight = torch.rand(store.edge_index.size(1), dtype=torch.float64)
    model = with_relations(sage())
    weighed = weigh(model, lambda m, b: m(b.x_dict, b.edge_index_dict))
    found, expected = narrow(weighed, check=False)(batch)["a"], weighed(batch)["a"][:3]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert joined[-1] == OF_GRAPH


@pytest.mark.slow
def test_copies_of_what_was_called():
    model, batch = made("to_hetero SAGE", GRAPH), batch_of()
    narrowed = narrow(model, call)
    expected = narrowed(batch)["a"]
    assert torch.equal(copy.deepcopy(narrowed)(batch)["a"], expected)


def test_gradients_have_memory_of_their_own():
    model = with_relations(sage())
    out = narrow(model, call, check=False)(batch_of())
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(sum(rows.square().sum() for rows in out.values()), wanted, allow_unused=True)
    places = [gradient.data_ptr() for gradient in found if gradient is not None]
    assert len(places) > 10
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("way", ["module", SLOW("method"), SLOW("function")])
def test_layers_are_not_moved_past_what_writes_in_place(joined, way):
    model = made("to_hetero SAGE", GRAPH)
    model.add_submodule("less", nn.ReLU(inplace=True))
    calls = [node for node in model.graph.nodes if node.op == "call_module" and str(node.target).startswith("convs.1.")]
    with model.graph.inserting_after(calls[1]):
        rows = model.graph.call_function(operator.getitem, (calls[1].args[0], 0))
    with model.graph.inserting_after(rows):
        if way == "module":
            model.graph.call_module("less", (rows,))
        elif way == "method":
            model.graph.call_method("mul_", (rows, 3.0))
        else:
            model.graph.call_function(torch.nn.functional.relu, (rows, True))
    model.recompile()
    batch, narrowed = batch_of(), narrow(model, call, check=False)
    with torch.no_grad():
        expected, found = call(model, batch), narrowed(batch)
    for key, rows in found.items():
        torch.testing.assert_close(rows, expected[key][: len(rows)], rtol=1e-12, atol=1e-12)
    assert len(joined) == 2  # the first layer, in two runs


@pytest.mark.parametrize("reads", ["x", "total"])
def test_layers_are_one_function_if_none_reads_another_s(reads):
    root, graph = nn.Module(), fx.Graph()
    root.conv = nn.ModuleDict({name: pyg_nn.SAGEConv(HIDDEN, HIDDEN) for name in ("one", "two", "three")})
    given = {name: graph.placeholder(name) for name in ("x", "edge_index")}
    one, two = (graph.call_module(f"conv.{name}", (given["x"], given["edge_index"])) for name in ("one", "two"))
    given["total"] = graph.call_function(torch.add, (one, two))
    three = graph.call_module("conv.three", (given[reads], given["edge_index"]))
    graph.output((given["total"], three))
    module = fx.GraphModule(root, graph)
    found = [[len(total.layers) for total in totals.values()] for totals in joins._groups(module.graph, module)]
    assert found == ([[2, 1]] if reads == "x" else [])


def test_hooks_of_bases_that_are_added_and_removed():
    model, batch = made("bases", GRAPH), batch_of()
    narrowed, layer = narrow(model, call, check=False), model.model.first.convs[0]
    check(model, narrowed, batch)
    layer.register_message_forward_hook(lambda *given: 2 * given[-1])
    check(model, narrowed, batch)
    layer._message_forward_hooks.clear()
    check(model, narrowed, batch)


def test_a_layer_that_keeps_types_of_edges_under_the_name_of_bases():
    class Keeping(pyg_nn.SAGEConv):
        def forward(self, x, edge_index):
            self._edge_type = edge_index[0]
            return super().forward(x, edge_index)

    model = with_relations(lambda *_: Keeping((HIDDEN, HIDDEN), HIDDEN))
    check(model, narrow(model, call, check=False), batch_of())


def test_an_aggregation_that_was_replaced():
    model, batch = with_relations(sage()), batch_of()
    narrowed = narrow(model, call, check=False)
    check(model, narrowed, batch)
    layer = next(module for module in model.modules() if isinstance(module, pyg_nn.SAGEConv))
    layer.aggr_module = pyg_nn.MaxAggregation()
    check(model, narrowed, batch)
