"""Layers on layer-wise samples: their outputs estimate those with all neighbors, and equal them where all are drawn."""

import math

import pytest
import torch
from helpers.slow import SLOW
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, GINConv, GraphConv, SAGEConv
from torch_geometric.utils import add_self_loops

from torch_gnnscale import LayerSampler, NeighborLoader
from torch_gnnscale.nn import narrow, weigh

FEATURES, OUT, NODES = 4, 3, 16
SEEDS = torch.tensor([1, 4, 9, 15])


def data_of():
    """A graph without parallel edges, with a self loop at each node, degrees of 1 to 16, and rows of any sign."""
    generator = torch.Generator().manual_seed(1)
    share = torch.linspace(0, 1, NODES)
    pairs = torch.rand(NODES, NODES, generator=generator) < share[:, None]
    pairs.fill_diagonal_(False)
    dst, src = pairs.nonzero().t()
    edges, _ = add_self_loops(torch.stack([src, dst]), num_nodes=NODES)
    return Data(x=torch.randn(NODES, FEATURES, generator=generator).double(), edge_index=edges, num_nodes=NODES)


class Stack(nn.Module):
    """Layers, one after the other."""

    def __init__(self, make, count):
        super().__init__()
        torch.manual_seed(2)
        self.convs = nn.ModuleList(make(FEATURES if not number else OUT, OUT) for number in range(count)).double()

    def forward(self, x, edge_index):
        for number, conv in enumerate(self.convs):
            x = conv(x.tanh() if number else x, edge_index)
        return x


LAYERS = {
    "mean, sage": ("mean", SAGEConv, SAGEConv),
    "sum, graph": ("sum", GraphConv, GraphConv),
    "sum, gin": ("sum", lambda *size: GINConv(nn.Linear(*size)), lambda *size: GINConv(nn.Linear(*size))),
    "gcn": ("gcn", lambda *size: GCNConv(*size, normalize=False), lambda *size: GCNConv(*size, add_self_loops=False)),
}
"""(aggregation of the sampler, a layer on its batches, the same layer on the whole graph)."""


def batches_of(data, sampler, count, seeds):
    """``count`` batches of the same seeds, with a key each."""
    loader = NeighborLoader(
        data, sampler.num_nodes, seeds.repeat(count), batch_size=len(seeds), neighbor_sampler=sampler, prefetch=0
    )
    for batch in loader:
        batch.edge_weight = batch.edge_weight.double()
        yield batch


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("method", "options", "keys"),
    [
        ("labor", {}, 150), ("ladies", {}, 150), SLOW("labor", {"scheme": "poisson"}, 1_000),
        SLOW("ladies", {"scheme": "replace", "keep_known": False}, 1_000),
        SLOW("ladies", {"scheme": "poisson", "scores": "counts"}, 1_000), SLOW("fastgcn", {}, 1_000),
    ],
)  # fmt: skip
def test_the_mean_of_a_layers_outputs_is_that_with_all_neighbors(layer, method, options, keys):
    aggregation, make, make_whole = LAYERS[layer]
    data = data_of()
    sampler = LayerSampler(data, [3], method, aggregation=aggregation, weights="unbiased", **options)
    model, expected = weigh(Stack(make, 1)), Stack(make_whole, 1)(data.x, data.edge_index)[SEEDS]
    with torch.no_grad():
        found = torch.stack([model(batch)[: len(SEEDS)] for batch in batches_of(data, sampler, keys, SEEDS)])
    deviation = found.std(0)
    assert (deviation > 1e-3).any(), "the draws differ"
    assert ((found.mean(0) - expected).abs() <= 4.5 * deviation / math.sqrt(keys) + 1e-6).all()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method", ["labor", "ladies", "fastgcn"])
def test_where_all_nodes_are_drawn_outputs_are_those_with_all_neighbors(layer, method):
    aggregation, make, make_whole = LAYERS[layer]
    data, seeds = data_of(), torch.cat([SEEDS, SEEDS[:1]])
    expected = Stack(make_whole, 2)(data.x, data.edge_index)[seeds]
    for weights in ("self_normalized", "unbiased"):
        for number in (NODES, -1):
            sampler = LayerSampler(data, [number, number], method, aggregation=aggregation, weights=weights)
            stack = Stack(make, 2)
            for model in (weigh(stack), narrow(weigh(stack))):
                (batch,) = batches_of(data, sampler, 1, seeds)
                bound = 1e-12 if aggregation == "sum" else 1e-6  # other weights are rounded to float32
                torch.testing.assert_close(model(batch)[: len(seeds)], expected, rtol=0, atol=bound)
