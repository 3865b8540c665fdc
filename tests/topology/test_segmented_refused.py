"""Budgets of peers that are refused, and what needs a GPU."""

import pytest
from helpers.data import make_data

from torch_gnnscale import LayerSampler, NeighborLoader, NeighborSampler


@pytest.mark.parametrize(
    ("peers", "error", "message"),
    [
        ("25%", TypeError, "graph_on_peers: expected a budget for each GPU, found '25%'"),
        ([1, 2], ValueError, r"graph_on_peers: expected equal budgets, for rows are interleaved, found \[1, 2\]"),
        ([1] * 30, ValueError, "graph_on_peers: expected at most 29 GPUs, found 30"),
        (["much"], ValueError, r"graph_on_peers\[0\]: expected a number and a unit"),
        ([0.5], ValueError, r"graph_on_peers=\[0.5\]: expected a GPU as device, found cpu"),
    ],
)
def test_wrong_budgets_of_peers(peers, error, message):
    data = make_data()
    for make in (
        lambda: NeighborLoader(data, [3], graph_on_peers=peers),
        lambda: NeighborLoader(data, [3], method="ladies", graph_on_peers=peers),
        lambda: NeighborSampler(data, [3], graph_on_peers=peers),
        lambda: LayerSampler(data, [3], graph_on_peers=peers),
    ):
        with pytest.raises(error, match=f"^{message}"):
            make()


def test_what_needs_a_gpu():
    sampler = NeighborSampler(make_data(), [3])
    with pytest.raises(ValueError, match=r"^graph_on_peers: expected none beside a neighbor_sampler"):
        NeighborLoader(make_data(), [3], neighbor_sampler=sampler, graph_on_peers=[0.5])
    for on_cpu in (sampler, LayerSampler(make_data(), [3])):
        with pytest.raises(ValueError, match=r"^device: expected a sampler on a GPU, found one on cpu$"):
            on_cpu.on("cuda:1")


# Two processes on one GPU ############################################################################################
