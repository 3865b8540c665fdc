"""What narrowed models of typed graphs are given: tables, lazy layers, dictionaries of other tensors than rows."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import (
    CLASSES,
    FEATURES,
    GRAPH,
    HIDDEN,
    RELATIONS,
    ByRelation,
    batch_of,
    call,
    check,
    gradients,
    made,
    make_types,
)
from torch import nn

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import forward_pass, narrow

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


@pytest.mark.slow
@pytest.mark.parametrize("least", [0, 1 << 62])
def test_lazy_layers(least, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
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


@pytest.mark.slow
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


class Placed(nn.Module):
    """Layers of pairs of rows and of pairs of places, which their parameter calls ``pos``."""

    def __init__(self):
        super().__init__()
        make = lambda width, out: nn.ModuleList(  # noqa: E731
            pyg_nn.PointNetConv(nn.Linear(width + 3, out), add_self_loops=False) for _ in GRAPH.edge_types
        )
        self.layers = nn.ModuleList([make(FEATURES, HIDDEN), make(HIDDEN, CLASSES)])

    def forward(self, x, pos, edges):
        for layers in self.layers:
            out = {}
            for layer, (src, relation, dst) in zip(layers, GRAPH.edge_types, strict=True):
                found = layer((x[src], x[dst]), (pos[src], pos[dst]), edges[src, relation, dst])
                out[dst] = out[dst] + found if dst in out else found
            x = out
        return x


def test_pairs_of_other_arguments_than_x():
    graph = GRAPH.clone()
    generator = torch.Generator().manual_seed(3)
    for node_type in graph.node_types:
        graph[node_type].pos = torch.rand(graph[node_type].num_nodes, 3, generator=generator).double()
    torch.manual_seed(0)
    model, seeds = Placed().double(), torch.tensor([3, 1, 0])
    narrowed = narrow(model, lambda model, batch: model(batch.x_dict, batch.pos_dict, batch.edge_index_dict))
    for node_type in graph.node_types:
        batch = next(iter(NeighborLoader(graph, [3, 2], (node_type, seeds), batch_size=3)))
        expected = model(batch.x_dict, batch.pos_dict, batch.edge_index_dict)[node_type][:3]
        torch.testing.assert_close(narrowed(batch)[node_type], expected, rtol=1e-12, atol=1e-12)
