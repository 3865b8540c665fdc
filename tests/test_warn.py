"""Warnings point at the line of the user that asked for what they name, however deep it is found."""

import pytest
import torch
from helpers.data import make_data
from helpers.hetero import make_hetero
from helpers.narrow import FEATURES, batches, sequence
from helpers.tiers import node_data
from helpers.warn import recorded
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from torch_gnnscale import NeighborLoader, NeighborSampler, TieredFeatureStore
from torch_gnnscale.nn import narrow


def transposed():
    data = make_data()
    return Data(x=data.x.t().contiguous().t(), edge_index=data.edge_index)


class Centered(SAGEConv):
    """Reads more than its neighborhood in training."""

    def __init__(self):
        super().__init__(FEATURES, FEATURES)

    def forward(self, x, edge_index):
        return super().forward(x - len(x) if self.training else x, edge_index)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU does what is warned of without one")
@pytest.mark.parametrize(
    "ask",
    [
        lambda: NeighborSampler(make_data(), [2], directed=False),
        lambda: NeighborSampler(make_hetero(), [2], "bidirectional"),
        lambda: NeighborLoader(make_data(), [2], directed=False),
        lambda: NeighborLoader(transposed(), [2]),
        lambda: next(iter(NeighborLoader(make_data(), [2], pin_memory=True, prefetch=2))),
        lambda: TieredFeatureStore.from_data(node_data(), gpu=1).close(),
        lambda: narrow(sequence(Centered, Centered)().double())(next(iter(batches()))),
    ],
)
def test_a_warning_points_at_the_users_line(ask):
    with recorded() as caught:
        ask()
    assert {(found.filename, found.lineno) for found in caught} == {(__file__, ask.__code__.co_firstlineno)}
