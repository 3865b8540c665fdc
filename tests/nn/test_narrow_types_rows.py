"""How many rows narrowed models of typed graphs compute and compare, and when they compute all."""

import contextlib

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import FEATURES, GRAPH, HIDDEN, RELATIONS, ByRelation, batch_of, call, made, make_types
from torch import nn

from torch_gnnscale import NeighborLoader, ops
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.nn.hops import BatchHops
from torch_gnnscale.nn.merged import Merged
from torch_gnnscale.nn.narrow import Narrowed

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


@pytest.mark.slow
def test_what_has_been_compared_is_not_verified_again(monkeypatch):
    """Although the relation into c has edges in no batch: it would be compared if it had."""
    verified, compared = [], []
    look, compare = BatchHops.__init__, Narrowed._check
    monkeypatch.setattr(
        BatchHops, "__init__", lambda self, batch, verify: (verified.append(verify), look(self, batch, verify))[1]
    )
    monkeypatch.setattr(Narrowed, "_check", lambda self, *given: (compared.append(given), compare(self, *given))[1])
    narrowed = narrow(made("SAGE", GRAPH), call)
    for seeds in ((3, 1), (5, 6), (7, 8)):
        narrowed(batch_of("a", seeds, (2, 2)))
    assert verified.count(True) == 1
    assert 1 <= len(compared) < 3
    assert narrowed._to_check == {False, True}


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
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 1 << 62)
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


@pytest.mark.slow
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
    of_row, saved = size + forward_pass.CHANNEL * HIDDEN, 0
    others = sum(p.numel() for p in model.encode.parameters()) // (2 * len(RELATIONS))
    for relation in RELATIONS:
        nodes, edges = batch[relation[-1]].num_sampled_nodes, batch[relation].num_sampled_edges
        saved += (of_row + others) * (nodes[2] + nodes[1] + nodes[2]) + forward_pass.EDGE * edges[1]
    whole, computed = batch["b"].num_nodes, sum(batch["b"].num_sampled_nodes[:2])
    for least, expected in ((saved // 8, computed), (saved // 8 + 1, whole)):  # of 12 calls
        rows.clear()
        monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
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
            saved += parameters * sum(src[groups:]) + forward_pass.CHANNEL * HIDDEN * sum(dst[groups - 1 :])
            saved += forward_pass.EDGE * sum(batch[relation].num_sampled_edges[groups - 1 :])
    whole, computed = batch["b"].num_nodes, sum(batch["b"].num_sampled_nodes[:2])
    assert computed < whole
    for least, expected in ((saved // 8, computed), (saved // 8 + 1, whole)):  # of 12 calls
        monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
        narrowed(batch)
        assert rows[-1] == expected


def test_relations_that_are_merged_are_worth_it_as_one_graph(monkeypatch):
    """Each basis computes the rows of all types, and its messages of all relations are sums over one CSC."""
    model, batch, rows, summed = made("bases", GRAPH), batch_of(), [], []
    model.model.first.register_forward_hook(lambda _, args, out: rows.append(len(out)))
    aggregate = ops.aggregate
    monkeypatch.setattr(ops, "aggregate", lambda *given, **more: (summed.append(1), aggregate(*given, **more))[1])
    narrowed = narrow(model, call, check=False)
    nodes = [sum(sizes) for sizes in zip(*(batch[t].num_sampled_nodes for t in batch.node_types), strict=True)]
    edges = sum(batch[t].num_sampled_edges[1] for t in batch.edge_types)
    of_basis = sum(p.numel() for p in model.model.first.convs[0].parameters()) + forward_pass.CHANNEL * HIDDEN
    of_model = sum(p.numel() for p in model.parameters()) - 4 * (of_basis - forward_pass.CHANNEL * HIDDEN)
    saved = 2 * ((of_basis + of_model // 4) * (nodes[1] + 2 * nodes[2]) + forward_pass.EDGE * edges)
    for least, expected, sums in ((saved, sum(nodes[:2]), 4), (saved + 1, sum(nodes), 0)):  # of two layers of two bases
        monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
        narrowed(batch)
        rows.clear()
        summed.clear()
        narrowed(batch)
        assert (rows, len(summed)) == ([expected], sums)


def test_rows_of_merged_types_are_those_of_the_fewest_groups():
    """Each type may have rows of more groups than another; rows are taken hop by hop, and of a hop by type."""
    batch = batch_of()
    hops = BatchHops(batch)
    types = list(batch.node_types)
    merged = Merged(hops, types)
    groups = len(hops.nodes[types[0]].rows)
    rows = {t: torch.arange(batch[t].num_nodes * 2.0).view(-1, 2) + 1000 * at for at, t in enumerate(types)}
    for fewest in range(1, groups + 1):
        for t in types:
            given = {of: rows[of][: hops.nodes[of].rows[(fewest if of == t else groups) - 1]] for of in types}
            used = min(hops.nodes[of].groups(len(entry)) for of, entry in given.items())
            found = merged.rows(given)
            firsts = {of: [0, *hops.nodes[of].rows] for of in types}
            expected = [rows[of][firsts[of][g] : firsts[of][g + 1]] for g in range(used) for of in types]
            assert torch.equal(found, torch.cat(expected))
            parts, of_groups = merged.split(found)
            assert of_groups == used
            assert all(torch.equal(parts[of], rows[of][: hops.nodes[of].rows[used - 1]]) for of in types)
