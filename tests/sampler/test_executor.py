"""Executors of one sampler: what they draw reaches the batch, what they refuse is named."""

import pickle

import pytest
import torch
from helpers.data import make_data, plain
from helpers.hetero import make_hetero

from torch_gnnscale import NeighborLoader, NeighborSampler
from torch_gnnscale.sampler.neighbor import GPUExecutor, HostExecutor
from torch_gnnscale.sampler.seeds import PreparedSeeds
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


def test_options_that_are_set_again_are_prepared_again():
    data = make_data()
    sampler = NeighborSampler(data, [2])
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
    assert torch.equal(pickle.loads(pickle.dumps(sampler)).sample(seeds, None, key=5).edge, edges())


def test_an_executor_says_itself_what_it_refuses():
    sampler = NeighborSampler(make_data(), [2], disjoint=True)
    csc = SegmentedCSC.cut(sampler.graph.relations[0].csc, torch.device("cpu"), 0, copied=False)
    phases = GPUExecutor(sampler.graph, csc)
    sampler.executor.check(sampler.drawing, "anything")
    with pytest.raises(NotImplementedError, match=r"^disjoint=True with anything is not implemented; use device="):
        phases.check(sampler.drawing, "anything")
    pairs = torch.zeros((2, 1), dtype=torch.int64)
    seeds = torch.arange(3)
    with pytest.raises(NotImplementedError, match=r"^exclusions with device='cpu' are not implemented; use 'cpu'$"):
        phases.draw([PreparedSeeds([seeds], (0,), pairs=[pairs])], [1], sampler.drawing)
    batches = NeighborLoader(make_data(), [2], torch.arange(9), batch_size=3, seed=1, neighbor_sampler=sampler)
    assert [plain(batch) for batch in batches]
