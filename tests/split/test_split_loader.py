"""Loaders of split batches: each rank gets the twin's cut of the batch that one process makes."""

from unittest import mock

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import make_data
from helpers.mapped import memories, memories_left
from helpers.slow import SLOW, quick
from helpers.split import (
    GivenPlan,
    batches_of_rank,
    batches_over_gloo,
    check_batches,
    expected_batches,
    loader_of,
    outcomes_of,
    random_owners,
)
from torch import distributed as dist
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, LayerSampler, NeighborLoader, NeighborSampler
from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.comm.peer_memory import HostMemories
from torch_gnnscale.split import plans
from torch_gnnscale.split.plans import OwnedBatches

UNEQUAL = (torch.arange(200) % 50 == 0).long()
"""Of 200 nodes, the second part owns 4."""
MODES = {
    "shuffled": {},
    "in input order": {"shuffle": False},
    "one hop": {"num_neighbors": [4]},
    "three hops": {"num_neighbors": [3, 2, 2]},
    "all neighbors": {"num_neighbors": [-1, 2]},
    "replace": {"replace": True},
    "weights": {"weight_attr": "edge_kind"},
    "ladies": {"method": "ladies", "num_neighbors": [30, 20]},
    "fastgcn": {"method": "fastgcn", "num_neighbors": [30, 20]},
    "labor": {"method": "labor"},
    "stores": {"stores": True},
    "without x": {"without_x": True},
    "without threads": {"prefetch": 0},
    "bulk": {"bulk": 3},
    "as on a gpu": {"phases": True, "bulk": 3},
    "drop": {"batch_size": 34, "uneven": "drop"},
    "repeated seeds": {"seeds": [7, 3, 7, 7, 150, 3, 9, 3], "batch_size": 5},
}


@pytest.mark.parametrize("options", quick(MODES, "labor", "as on a gpu", "repeated seeds"))
@pytest.mark.parametrize("world", [2, SLOW(3), SLOW(4)])
def test_batches_are_cuts_of_one_process_s(world, options):
    check_batches(world, GivenPlan(random_owners(200, world), world), options)


@pytest.mark.slow
@pytest.mark.parametrize("owners", [UNEQUAL, torch.zeros(200, dtype=torch.int32)], ids=["unequal", "all of one"])
def test_ranks_without_seeds_or_without_anything(owners):
    check_batches(2, GivenPlan(owners, 2), {})


@pytest.mark.parametrize("world", [2, SLOW(3)])
def test_ranks_that_cannot_read_each_other_s_memory(world):
    check_batches(world, GivenPlan(random_owners(200, world), world), {}, of_rank=batches_over_gloo)


def memory_of_loader(plan):
    """How many shared memories a loader has mapped, of two peers and a board; how many are left when it was dropped."""
    before, loader = memories_left(), loader_of(plan, {})
    for _ in loader:
        pass
    while_open = memories() - before
    del loader
    return while_open, memories_left() - before


@pytest.mark.slow
def test_the_memory_of_peers_ends_with_the_loader():
    assert cluster(2).run(memory_of_loader, GivenPlan(random_owners(200, 2), 2)) == [(3, 0)] * 2


@pytest.mark.parametrize(("world", "parts"), [(2, 1), SLOW(4, 2)])
@pytest.mark.parametrize("options", [{"batch_size": 12}, {"uneven": "drop"}], ids=["pad", "drop"])
def test_groups_of_ranks_take_batches_in_turn(world, parts, options):
    check_batches(world, GivenPlan(random_owners(200, parts), parts), options)


@pytest.mark.parametrize("rank", range(4))
def test_groups_are_of_consecutive_ranks(rank, monkeypatch):
    monkeypatch.setattr(plans, "rank_and_world", lambda: (rank, 4))
    plan = GivenPlan(random_owners(200, 2), 2)
    made = OwnedBatches(plan, NeighborSampler(make_data(), [2]), plan.owners, 1.0)
    assert (made.sampler.part, made.ranks) == (rank % 2, Ranks(rank // 2, 2))


def test_one_process_computes_all_parts():
    plan, options = GivenPlan(random_owners(200, 3), 3), {}
    assert [batches_of_rank(plan, 2, options)] == expected_batches(plan, 2, 1, options)


def keys_of_batches(plan):
    data = make_data(200, 1500)
    sampler = LayerSampler(data, [4, 4], method="labor", batch_dependency=3)
    loader = NeighborLoader(data, [4, 4], torch.arange(60), batch_size=10, neighbor_sampler=sampler, seed=1, split=plan)
    return [batch.batch_key for batch in loader]


@pytest.mark.slow
def test_batches_that_share_draws_drop_numbers_of_their_own():
    plan = GivenPlan(random_owners(200, 2), 2)
    keys = keys_of_batches(plan)
    assert len(set(keys)) == 6
    assert cluster(2).run(keys_of_batches, plan) == [keys, keys]


def without_memory():
    """What the batches came to; rank 1 has no memory for the rows of the second one, which it gets from rank 0."""
    loader, joined = loader_of(GivenPlan(random_owners(200, 2), 2), {"prefetch": 0, "timeout": 60}), HostMemories.joined

    def fails(self, own, offered):
        if dist.get_rank() == 1 and next(calls) == 1:
            raise RuntimeError("no room")
        return joined(self, own, offered)

    calls = iter(range(1000))
    with mock.patch.object(HostMemories, "joined", fails):
        return outcomes_of(loader)


@pytest.mark.slow
def test_a_rank_without_memory_for_the_rows_of_others_is_named():
    first, second = cluster(2).run(without_memory)
    assert second[1] == "RuntimeError: no room"
    assert {*first[2:], *second[2:]} == {"RuntimeError: rank 1: RuntimeError: no room"}


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_of_dense_features_alone_are_exchanged(sparse):
    data = make_data()
    data.x = data.x.to_sparse() if sparse else data.x
    plan = GivenPlan(random_owners(200, 2), 2)
    batch = next(iter(NeighborLoader(data, [3, 2], batch_size=20, seed=1, split=plan)))
    assert ("x_halo" in batch) == (not sparse)
    assert batch.x.size(0) == len(batch.n_id)


ATTRIBUTES = {"none": (), "of nodes": ("y",), "of edges": ("edge_attr",)}


def numbers_of_nodes(plan, names, stores):
    """(num_nodes, how many nodes a batch has) of each batch."""
    whole = make_data()
    data = Data(edge_index=whole.edge_index, num_nodes=200)
    for name in names:
        data[name] = torch.arange(whole.num_edges if "edge" in name else 200)
    given = (FeatureStore.from_data(data), GraphStore.from_data(data)) if stores else data
    loader = NeighborLoader(given, [3, 2], torch.arange(0, 200, 3), batch_size=10, split=plan)
    return [(batch.num_nodes, len(batch.n_id)) for batch in loader]


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("names", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_nodes_of_a_halo_are_none_of_the_batch(names, stores):
    """Also where no rows say how many nodes there are."""
    for found in cluster(2).run(numbers_of_nodes, GivenPlan(random_owners(200, 2), 2), names, stores):
        assert all(count == expected for count, expected in found), found
