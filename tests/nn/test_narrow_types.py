"""Narrowed models of typed graphs give the outputs and gradients of the model on the whole batch."""

import contextlib
import copy

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import (
    ATTRIBUTES,
    CLASSES,
    FEATURES,
    GRAPH,
    HIDDEN,
    MODELS,
    RELATIONS,
    ByRelation,
    batch_of,
    call,
    made,
    make_types,
    schemas,
)
from helpers.slow import SLOW
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torch_gnnscale import LinkNeighborLoader, NeighborLoader
from torch_gnnscale.nn import narrow, saving
from torch_gnnscale.nn.hops import Hops, num_seeds
from torch_gnnscale.nn.narrow import Narrowed

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


def gradients(model, out):
    total, generator = torch.zeros((), dtype=torch.float64), torch.Generator().manual_seed(0)
    for key in sorted(out):
        total = total + (out[key] * torch.randn(out[key].shape, dtype=torch.float64, generator=generator)).sum()
    if not total.requires_grad:
        return []
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return [torch.zeros(()) if grad is None else grad for grad in found]


def check(model, narrowed, batch):
    seeds = num_seeds(batch)
    expected = {key: rows[: seeds[key]] for key, rows in call(model, batch).items() if key in seeds}
    found = narrowed(batch)
    assert set(found) == set(expected)
    for key, rows in expected.items():
        torch.testing.assert_close(found[key], rows, rtol=1e-12, atol=1e-12)
    of_found, of_expected = gradients(model, found), gradients(model, expected)
    parameters = list(model.named_parameters()) if of_expected else []
    for (name, parameter), ours, theirs in zip(parameters, of_found, of_expected, strict=True):
        theirs = torch.zeros_like(parameter) if theirs.dim() == 0 and parameter.dim() else theirs
        ours = torch.zeros_like(parameter) if ours.dim() == 0 and parameter.dim() else ours
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11, msg=lambda text: f"{name}: {text}")  # noqa: B023


@pytest.mark.parametrize("examples", [3, SLOW(20)])
@pytest.mark.parametrize("name", MODELS)
def test_random_schemas(name, examples):
    @settings(max_examples=examples)
    @given(data=st.data())
    def check_schema(data):
        graph = data.draw(schemas())
        model, depth = made(name, graph), 3 if "three" in name else 2
        narrowed = narrow(model, call, check=data.draw(st.booleans()))
        types = [t for t in graph.node_types if graph[t].num_nodes]
        for seed in range(2):
            node_type = data.draw(st.sampled_from(types))
            ids = data.draw(st.lists(st.integers(0, graph[node_type].num_nodes - 1), min_size=1, max_size=4))
            fanouts = data.draw(st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=depth, max_size=depth))
            loader = NeighborLoader(graph, fanouts, (node_type, torch.tensor(ids)), batch_size=4, seed=seed)
            check(model, narrowed, next(iter(loader)))

    check_schema()


@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
@pytest.mark.parametrize("relation", [RELATIONS[0], RELATIONS[2]])
@pytest.mark.parametrize("name", ["SAGE", "mixed", "to_hetero SAGE", "HGT"])
def test_ends_of_links(name, relation, negatives):
    """Of one type, or of two, of which both stay in the dictionary."""
    model = made(name, GRAPH)
    narrowed = narrow(model, call)
    loader = LinkNeighborLoader(GRAPH, [2, 2], edge_label_index=(relation, None), neg_sampling=negatives, batch_size=9)
    for number, batch in enumerate(loader):
        assert set(narrowed(batch)) == {relation[0], relation[2]}
        check(model, narrowed, batch)
        if number == 2:
            break


def test_links_that_carry_no_messages():
    """Their relation has no edges in a batch."""
    model, links = made("SAGE", GRAPH), torch.stack([torch.arange(9), torch.arange(9)])
    relation = ("a", "likes", "b")
    data = GRAPH.clone()
    data[relation].edge_label_index = links
    batch = next(iter(LinkNeighborLoader(data, [2, 2], edge_label_index=(relation, links), batch_size=9)))
    assert "edge_index" not in batch[relation]
    check(model, narrow(model, call), batch)


def test_what_has_been_compared_is_not_verified_again(monkeypatch):
    """Although the relation into c has edges in no batch: it would be compared if it had."""
    verified, compared = [], []
    look, compare = Hops.__init__, Narrowed._check
    monkeypatch.setattr(
        Hops, "__init__", lambda self, batch, verify: (verified.append(verify), look(self, batch, verify))[1]
    )
    monkeypatch.setattr(Narrowed, "_check", lambda self, *given: (compared.append(given), compare(self, *given))[1])
    narrowed = narrow(made("SAGE", GRAPH), call)
    for seeds in ((3, 1), (5, 6), (7, 8)):
        narrowed(batch_of("a", seeds, (2, 2)))
    assert verified.count(True) == 1
    assert 1 <= len(compared) < 3
    assert narrowed._to_check == {False, True}


def test_trees_in_time():
    data = GRAPH.clone()
    for node_type in data.node_types:
        data[node_type].time = torch.arange(data[node_type].num_nodes) % 5
    model = made("mixed, skipping", data)
    loader = NeighborLoader(data, [2, 2], ("a", None), batch_size=6, time_attr="time", temporal_strategy="last")
    narrowed = narrow(model, call)
    for batch in loader:
        check(model, narrowed, batch)


def test_a_tensor_is_that_of_the_type_with_seeds():
    model, batch = made("SAGE", GRAPH), batch_of("b")
    narrowed = narrow(model, lambda model, batch: call(model, batch)["b"])
    torch.testing.assert_close(narrowed(batch), call(model, batch)["b"][:3], rtol=1e-12, atol=1e-12)


def test_a_tensor_of_a_batch_with_seeds_of_several_types_is_left():
    """Here scores of links, of which there may be more than seeds."""

    def score(model, batch):
        rows, (src, dst) = call(model, batch), batch[RELATIONS[0]].edge_label_index
        return (rows["a"][src] * rows["b"][dst]).sum(-1)

    model = made("SAGE", GRAPH)
    loader = LinkNeighborLoader(
        GRAPH, [2, 2], edge_label_index=(RELATIONS[0], None), neg_sampling="binary", batch_size=40
    )
    batch = next(iter(loader))
    assert len(score(model, batch)) == 80
    torch.testing.assert_close(narrow(model, score)(batch), score(model, batch), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("least", [0, 1 << 62])
def test_lazy_layers(least, monkeypatch):
    monkeypatch.setattr(saving, "LEAST_SAVED", least)
    lazy = lambda relation, number: pyg_nn.SAGEConv((-1, -1), HIDDEN)  # noqa: E731
    for check_first in (False, True):
        model = ByRelation(GRAPH, lazy).double()
        narrowed, batch = narrow(model, call, check=check_first), batch_of()
        narrowed(batch)["a"].sum().backward()
        check(model, narrowed, batch)


class Embedded(nn.Module):
    """Rows of types from tables by n_id and from PyG's layers of dictionaries, mixed before a layer."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({t: nn.Embedding(GRAPH[t].num_nodes, FEATURES) for t in GRAPH.node_types})
        self.encode = pyg_nn.HeteroDictLinear(FEATURES, FEATURES, types=GRAPH.node_types)
        self.body = ByRelation(GRAPH, lambda *_: pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN), skip=True)
        self.last = pyg_nn.HeteroLinear(HIDDEN, CLASSES, len(GRAPH.node_types))

    def forward(self, batch):
        x = self.encode({t: self.tables[t](n) for t, n in batch.n_id_dict.items()})
        x = self.body({t: rows + batch[t].x for t, rows in x.items()}, batch.edge_index_dict)
        kinds = {t: torch.full((len(x[t]),), number) for number, t in enumerate(x)}
        return {t: self.last(x[t], kinds[t]) for t in x}


def test_embeddings_and_layers_of_dictionaries():
    torch.manual_seed(0)
    model = Embedded().double()
    narrowed = narrow(model, lambda model, batch: model(batch))
    for seeds in ([3, 1, 3], [0], [5, 6]):
        batch = batch_of("b", seeds)
        expected, found = model(batch)["b"][: len(seeds)], narrowed(batch)["b"]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for ours, theirs in zip(gradients(model, {"b": found}), gradients(model, {"b": expected}), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("check_first", [False, True])
def test_a_table_of_a_type_without_nodes(check_first):
    data = make_types({"a": 30, "b": 20, "c": 0}, [*RELATIONS[:2], ("c", "r2", "a"), ("a", "r3", "c")], 2, seed=0)
    torch.manual_seed(0)
    tables = nn.ModuleDict({t: nn.Embedding(data[t].num_nodes, FEATURES) for t in data.node_types})
    model = nn.ModuleDict({"tables": tables, "body": made("SAGE", data)}).double()

    def call(model, batch):
        x = {t: model["tables"][t](ids) for t, ids in batch.n_id_dict.items()}
        return model["body"](x, batch.edge_index_dict)["a"]

    narrowed = narrow(model, call, check_first)
    for batch in NeighborLoader(data, [2, 2], ("a", torch.arange(8)), batch_size=4):
        torch.testing.assert_close(narrowed(batch), call(model, batch)[:4], rtol=1e-12, atol=1e-12)


def test_no_layer_computes_more_rows_than_it_must():
    model, rows = made("SAGE", GRAPH), {}
    for name, module in model.named_modules():
        if isinstance(module, pyg_nn.SAGEConv):
            keep = lambda _, args, out, name=name: rows.update({name: len(out)})  # noqa: E731
            module.register_forward_hook(keep)
    batch = batch_of("b")
    narrow(model, call, check=False)(batch)
    assert len(rows) == 2 * len(RELATIONS)
    for relation in RELATIONS:
        sizes = batch[relation[-1]].num_sampled_nodes
        found = [rows[f"convs.{layer}.convs.<{'___'.join(relation)}>"] for layer in (0, 1)]
        assert found == [sum(sizes[:2]), sizes[0]]


class Normed(ByRelation):
    """BatchNorm whose statistics show which rows were computed."""

    def __init__(self):
        norm = lambda: nn.BatchNorm1d(HIDDEN)  # noqa: E731
        super().__init__(GRAPH, lambda *_: pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN), norm=norm)


@pytest.mark.parametrize("fanouts", [(2, 2), (2, 0), (0, 2)])
def test_norms_in_training_read_the_rows_that_are_computed(fanouts, monkeypatch):
    """Also of a batch of which a hop finds no node, where numbers of rows do not tell."""
    monkeypatch.setattr(saving, "LEAST_SAVED", 1 << 62)
    torch.manual_seed(0)
    model, rows = Normed().double().train(), {}
    for layer, norms in enumerate(model.norms):
        for node_type, norm in norms.items():
            keep = lambda m, args, out, key=(layer, node_type): rows.update({key: len(out)}) if m.training else None  # noqa: E731
            norm.register_forward_hook(keep)
    narrowed, batch = narrow(model, call), batch_of("a", (3, 1), fanouts)
    narrowed(batch)
    for node_type in GRAPH.node_types:
        sizes = batch[node_type].num_sampled_nodes
        assert [rows[layer, node_type] for layer in (0, 1)] == [sum(sizes[:2]), sizes[0]]
    assert all(norm.running_mean.isfinite().all() for norms in model.norms for norm in norms.values())


class Skips(nn.Module):
    """Layers whose inputs are added to their outputs, which may be a single row.

    Args:
        add: ``add(x, out)``: the sum of both, by type.
        pairs: whether relations within a type get pairs, too.
    """

    def __init__(self, data, add, pairs):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.ModuleDict({r[1]: pyg_nn.SAGEConv((FEATURES, FEATURES), FEATURES) for r in data.edge_types})
            for _ in range(2)
        )
        self.add, self.pairs = add, pairs
        self.after = nn.ModuleDict({t: nn.Identity() for t in data.node_types})

    def forward(self, x, edges):
        for convs in self.convs:
            found = {}
            for (src, name, dst), index in edges.items():
                rows = x[src] if src == dst and not self.pairs else (x[src], x[dst])
                found.setdefault(dst, []).append(convs[name](rows, index))
            x = {t: self.after[t](self.add(x[t], torch.stack(out).sum(0))) for t, out in found.items()}
        return x


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("seen", [True, False], ids=["", "in a compiled module"])
def test_a_single_row_that_a_layer_computes(seen, pairs):
    """It is not added to rows of later hops; where nobody sees that, layers are still called as in other batches."""
    star, both = torch.arange(1, 12), torch.zeros(11, dtype=torch.int64)
    data = make_types({"a": 12, "b": 4}, [("a", "r0", "b"), ("a", "r1", "a"), ("b", "r2", "a")], degree=0, seed=0)
    data["a", "b"].edge_index, data["a", "a"].edge_index = (
        torch.stack([both[:4], star[:4] - 1]),
        torch.stack([star, both]),
    )

    for relation in data.edge_types:
        del data[relation].edge_attr

    def add(x, out):
        with contextlib.nullcontext() if seen or len(out) != 1 else torch._C.DisableTorchFunction():
            return x + out

    torch.manual_seed(0)
    model, rows = Skips(data, add, pairs).double(), []
    model.after["a"].register_forward_hook(lambda _, args, out: rows.append(len(out)))
    narrowed = narrow(model, lambda model, batch: model(batch.x_dict, batch.edge_index_dict))
    for batch in NeighborLoader(data, [3, 3], ("b", None), batch_size=2):
        assert batch["a"].num_sampled_nodes == [0, 1, 3]
        expected = model(batch.x_dict, batch.edge_index_dict)["b"][:2]
        rows.clear()
        torch.testing.assert_close(narrowed(batch)["b"], expected, rtol=1e-12, atol=1e-12)
        assert rows[-2:] == ([1, 0] if seen else [4, 0])
    assert not narrowed._orders, "no batch was called in another order"


def test_batches_that_are_not_worth_it_are_computed_whole(monkeypatch):
    rows = []
    model, batch = made("SAGE", GRAPH), batch_of()
    model.convs[0].convs[RELATIONS[0]].register_forward_hook(lambda _, args, out: rows.append(len(out)))
    narrowed = narrow(model, call, check=False)
    size = sum(p.numel() for p in model.convs[0].convs[RELATIONS[0]].parameters())
    of_row, saved = size + saving.CHANNEL * HIDDEN, 0
    others = sum(p.numel() for p in model.encode.parameters()) // (2 * len(RELATIONS))
    for relation in RELATIONS:
        nodes, edges = batch[relation[-1]].num_sampled_nodes, batch[relation].num_sampled_edges
        saved += (of_row + others) * (nodes[2] + nodes[1] + nodes[2]) + saving.EDGE * edges[1]
    whole, computed = batch["b"].num_nodes, sum(batch["b"].num_sampled_nodes[:2])
    for least, expected in ((saved // 8, computed), (saved // 8 + 1, whole)):  # of 12 calls
        rows.clear()
        monkeypatch.setattr(saving, "LEAST_SAVED", least)
        narrowed(batch)
        assert rows[-1] == expected
        assert computed < whole


def test_which_batches_are_worth_it_to_a_layer_of_dictionaries(monkeypatch):
    """Each relation has its share of the layer's parameters."""
    rows = []
    model, batch = made("HGT", GRAPH), batch_of()
    model.convs[0].register_forward_hook(lambda _, args, out: rows.append(len(out["b"])))
    narrowed, saved = narrow(model, call, check=False), 0
    for conv, groups in zip(model.convs, (3, 2), strict=True):
        parameters = sum(p.numel() for p in conv.parameters()) // len(RELATIONS)
        for relation in RELATIONS:
            src, dst = (batch[relation[end]].num_sampled_nodes for end in (0, 2))
            saved += parameters * sum(src[groups:]) + saving.CHANNEL * HIDDEN * sum(dst[groups - 1 :])
            saved += saving.EDGE * sum(batch[relation].num_sampled_edges[groups - 1 :])
    whole, computed = batch["b"].num_nodes, sum(batch["b"].num_sampled_nodes[:2])
    assert computed < whole
    for least, expected in ((saved // 8, computed), (saved // 8 + 1, whole)):  # of 12 calls
        monkeypatch.setattr(saving, "LEAST_SAVED", least)
        narrowed(batch)
        assert rows[-1] == expected


def test_relations_by_numbers_in_one_graph():
    data = GRAPH.to_homogeneous()
    batch = next(iter(NeighborLoader(data, [3, 2], torch.tensor([1, 40, 55]), batch_size=3)))
    kinds = len(RELATIONS)
    for make, attributes in (
        (lambda: pyg_nn.RGCNConv(FEATURES, FEATURES, kinds, num_bases=2), False),
        (lambda: pyg_nn.FastRGCNConv(FEATURES, FEATURES, kinds), False),
        (lambda: pyg_nn.RGATConv(FEATURES, FEATURES, kinds, edge_dim=ATTRIBUTES), True),
        (lambda: pyg_nn.FiLMConv(FEATURES, FEATURES, kinds), False),
    ):
        torch.manual_seed(0)
        model = pyg_nn.Sequential("x, e, t, a", [
            (make(), f"x, e, t{', a' if attributes else ''} -> x") for _ in range(2)
        ]).double()  # fmt: skip
        narrowed = narrow(
            model, lambda model, batch: model(batch.x, batch.edge_index, batch.edge_type, batch.edge_attr)
        )
        expected = model(batch.x, batch.edge_index, batch.edge_type, batch.edge_attr)[:3]
        found = narrowed(batch)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for ours, theirs in zip(gradients(model, {"": found}), gradients(model, {"": expected}), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


class OneEach(nn.Module):
    """Attention over types of which each has one relation into it."""

    def __init__(self, metadata):
        super().__init__()
        self.convs = nn.ModuleList(pyg_nn.HANConv(FEATURES, FEATURES, metadata, dropout=0.5) for _ in range(2))

    def forward(self, x, edges):
        for conv in self.convs:
            x = conv(x, edges)
        return x


def test_han_with_one_relation_into_each_type():
    data = make_types({"a": 30, "b": 20}, RELATIONS[:2], degree=3, seed=0)
    torch.manual_seed(0)
    model = OneEach(data.metadata()).double().eval()
    narrowed = narrow(model, call)
    for batch in NeighborLoader(data, [2, 2], ("a", torch.arange(12)), batch_size=4):
        check(model, narrowed, batch)


class Scaled(pyg_nn.MessagePassing):
    """Dictionaries with rows, and with tensors that have none, by type and by relation."""

    def forward(self, x_dict, edge_index_dict, weight_dict, scale_dict):
        out = {t: x * scale_dict[t] for t, x in x_dict.items()}
        for key, index in edge_index_dict.items():
            src, dst = x_dict[key[0]], x_dict[key[2]]
            sums = self.propagate(index, x=(src, dst), weight=weight_dict[key], size=(len(src), len(dst)))
            out[key[2]] = out[key[2]] + sums * scale_dict[key].sum()
        return out

    def message(self, x_j, weight):
        return x_j * weight


def test_dictionaries_of_other_tensors_than_rows():
    """They stay whole, whatever their sizes."""
    made = torch.Generator().manual_seed(0)
    scales = {key: torch.rand(50, dtype=torch.float64, generator=made) for key in RELATIONS}
    scales |= {t: torch.rand((), dtype=torch.float64, generator=made) for t in GRAPH.node_types}

    def call(model, batch):
        weights = {key: rows[:, :1] for key, rows in batch.edge_attr_dict.items()}
        return model(batch.x_dict, batch.edge_index_dict, weights, scales)["a"]

    batch, layer = batch_of(), Scaled()
    torch.testing.assert_close(narrow(layer, call)(batch), call(layer, batch)[:3], rtol=1e-12, atol=1e-12)


def test_copies_and_a_state_dict():
    model, batch = made("to_hetero SAGE", GRAPH), batch_of()
    narrowed = narrow(model, call)
    expected = narrowed(batch)["a"]
    assert list(narrowed.state_dict()) == list(model.state_dict())
    assert torch.equal(copy.deepcopy(narrowed)(batch)["a"], expected)
