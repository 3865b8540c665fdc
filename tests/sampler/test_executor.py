"""Executors of one sampler: what they draw reaches the batch, what they refuse is named."""

import pickle

import pytest
import torch
from helpers.data import make_data
from helpers.graphs import assert_same
from helpers.hetero import make_hetero
from helpers.loader_cases import draw_by_phases

from torch_gnnscale import NeighborLoader, NeighborSampler
from torch_gnnscale.sampler.executor import GPUExecutor, HostExecutor
from torch_gnnscale.sampler.minibatch import PreparedSeeds
from torch_gnnscale.topology.segmented import SegmentedCSC


class Weighing(HostExecutor):
    """Gives each edge its id as a weight."""

    def draw(self, seeds, keys, options):
        drawn = super().draw(seeds, keys, options)
        return [sample._replace(edge_weight=[ids.double() for ids in sample.edge_id]) for sample in drawn]


class Together(HostExecutor):
    collective = True


@pytest.mark.parametrize("make", [make_data, make_hetero])
def test_weights_of_an_executor_reach_the_batch(make):
    data = make()
    for store in data.edge_stores:
        store.pop("edge_weight", None)
    sampler = NeighborSampler(data, [3, 2])
    sampler.executor = Weighing(sampler.graph)
    seeds = torch.arange(20) if make is make_data else ("paper", torch.arange(20))
    for batch in NeighborLoader(data, [3, 2], seeds, batch_size=10, seed=1, neighbor_sampler=sampler):
        assert sum(len(store.e_id) for store in batch.edge_stores) > 0
        for store in batch.edge_stores:
            assert torch.equal(store.edge_weight, store.e_id.double())


def test_a_collective_executor_makes_its_sampler_collective():
    sampler = NeighborSampler(make_data(), [2])
    assert not sampler.collective
    sampler.executor = Together(sampler.graph)
    assert sampler.collective


@pytest.mark.parametrize("by_phases", [False, True])
def test_options_that_are_set_again_are_prepared_again(by_phases):
    data = make_data()
    sampler = NeighborSampler(data, [2])
    if by_phases:
        draw_by_phases(sampler)
    seeds = torch.arange(30)

    def edges():
        return sampler.sample(seeds, None, key=5).edge

    few, again = edges(), edges()
    assert torch.equal(few, again)
    sampler.num_neighbors = [-1]
    assert len(edges()) == int(sum((data.edge_index[1] == seed).sum() for seed in seeds))
    sampler.num_neighbors = [2]
    assert torch.equal(edges(), few)
    sampler.replace = True
    assert not torch.equal(edges(), few)
    if not by_phases:
        assert torch.equal(pickle.loads(pickle.dumps(sampler)).sample(seeds, None, key=5).edge, edges())


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"layers": True}, {"disjoint": True}])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_direction_by_the_phases_of_a_gpu(options, direction):
    if options.get("layers") and direction == "backward":
        return
    data = make_hetero()
    one, other = (NeighborSampler(data, [3, 2], sample_direction=direction, **options) for _ in range(2))
    draw_by_phases(other)
    seeds = {"paper": torch.arange(9), "author": torch.arange(4)}
    expected, found = (sampler.sample(seeds, None, key=5) for sampler in (one, other))
    for name in ("node", "row", "col", "edge", "batch"):
        of_types = getattr(expected, name)
        assert (of_types is None) == (getattr(found, name) is None)
        for of, value in (of_types or {}).items():
            assert torch.equal(getattr(found, name)[of], value)


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_phases_of_a_gpu_draw_every_subgraph(subgraph_type):
    sampler = NeighborSampler(make_data(), [2, 3], subgraph_type=subgraph_type)
    csc = SegmentedCSC.cut(sampler.graph.relations[0].csc, torch.device("cpu"), 0, copied=False)
    phases = GPUExecutor(sampler.graph, torch.device("cpu"), [csc])
    seeds = [PreparedSeeds([torch.arange(3)], (0,)), PreparedSeeds([torch.tensor([7, 7])], (0,))]
    expected = sampler.executor.draw(seeds, [1, 2], sampler.drawing)
    for found, sample in zip(phases.draw(seeds, [1, 2], sampler.drawing), expected, strict=True):
        assert_same(found, sample)
