"""Draws of a ``transform_sampler_output`` follow from the batch's key, wherever and whenever it runs."""

import random

import numpy as np
import pytest
import torch
from helpers.data import ForeignFeatureStore, loader_of, our_stores, plain
from torch_geometric.sampler import SamplerOutput

from torch_gnnscale import GraphStore, LinkNeighborLoader, NeighborLoader
from torch_gnnscale.random import NoDraws, seeded_draws
from torch_gnnscale.sampler import KeyedSampler

MODES = [{"prefetch": 0}, {"prefetch": 4}, {"prefetch": 0, "bulk": 3}, {"prefetch": 4, "bulk": 3}]


def random_edges(out):
    """Keeps edges by draws of each of the three generators."""
    kept = torch.rand(out.row.numel()) < 0.8
    kept &= torch.from_numpy(np.random.rand(len(kept)) < 0.8)
    kept &= torch.tensor([random.random() < 0.8 for _ in kept], dtype=torch.bool)
    out.row, out.col, out.edge = out.row[kept], out.col[kept], out.edge[kept]
    return out


def batches(loader):
    """The batches, between which all generators are drawn from, as a model does."""
    found = []
    for batch in loader:
        found.append(plain(batch))
        torch.rand(5), np.random.rand(), random.random()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
def test_draws_are_equal_in_all_modes(data, kind):
    def run(source, **options):
        inputs = data.edge_index[:, :100] if kind is LinkNeighborLoader else torch.arange(100)
        loader = kind(source, [3, 2], inputs, batch_size=16, seed=1, transform_sampler_output=random_edges, **options)
        return batches(loader), batches(loader)

    expected = run(data, prefetch=0)
    assert expected[0] != expected[1]
    for options in MODES:
        torch.manual_seed(random.randrange(1 << 30))
        assert run(data, **options) == expected
    foreign = ForeignFeatureStore()
    foreign.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    for source in (our_stores(data), (foreign, GraphStore.from_data(data))):
        for options in MODES:
            found = run(source, **options)
            assert [[dict(batch)["e_id"] for batch in epoch] for epoch in found] == [
                [dict(batch)["e_id"] for batch in epoch] for epoch in expected
            ]


def test_generators_go_on_as_without_a_transform(data):
    def drawn(**options):
        torch.manual_seed(3), np.random.seed(4), random.seed(5)
        loader = iter(loader_of(data, **options))
        found = [(float(torch.rand(1)), np.random.rand(), random.random()) for _ in range(5) if next(loader)]
        loader.close() if hasattr(loader, "close") else None
        return found

    for options in MODES:
        assert drawn(transform_sampler_output=random_edges, **options) == drawn(**options)


def test_draws_of_a_resumed_epoch_and_of_batches_without_a_number(data):
    def loader(**options):
        return loader_of(data, transform_sampler_output=random_edges, **options)

    whole, begun = batches(loader()), loader(prefetch=4)
    iterator = iter(begun)
    next(iterator), next(iterator)
    resumed = loader(prefetch=0)
    resumed.load_state_dict(begun.state_dict())
    list(iterator)
    assert batches(resumed) == whole[2:]
    index = torch.tensor([3, 5, 8])
    assert plain(loader()(index)) == plain(loader(filter_per_worker=False)(index)) != plain(loader_of(data)(index))


@pytest.mark.slow
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_draws_are_equal_in_worker_processes(data, filter_per_worker):
    options = {"transform_sampler_output": random_edges, "filter_per_worker": filter_per_worker}
    found = batches(loader_of(data, num_workers=2, multiprocessing_context="fork", **options))
    assert found == batches(loader_of(data, **options))


class Seeds(KeyedSampler):
    """A user's sampler, with outputs of PyG's own class: the seeds with an edge to themselves."""

    edge_permutation = None

    def sample_from_nodes(self, inputs, key=None):
        rows = torch.arange(len(inputs.node))
        return SamplerOutput(inputs.node, rows, rows, inputs.node, metadata=(inputs.input_id, inputs.time))


def test_draws_with_a_sampler_of_the_users(data):
    def run(**options):
        return batches(loader_of(data, neighbor_sampler=Seeds(), transform_sampler_output=random_edges, **options))

    expected = run(prefetch=0)
    assert all(run(**options) == expected for options in MODES)


def test_a_transform_that_counts_its_calls_sees_batches_in_order(data):
    for options in MODES:
        seen = []

        def note(out, seen=seen):
            seen.append(out.node[0].item())
            return out

        for number, batch in enumerate(loader_of(data, transform_sampler_output=note, **options)):
            assert seen[number:] == [batch.n_id[0].item()]


def test_seeded_draws_end_with_an_error():
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    with pytest.raises(ZeroDivisionError), seeded_draws(-5):
        torch.rand(3) / (np.random.rand() - np.random.rand() + random.random()) / (1 // 0)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_no_draws_from_torchs_own_generator():
    text = r"^transform: expected draws by generator= where ranks read or sample together, because a thread "
    calls = (
        lambda: torch.rand(2),
        lambda: torch.randperm(4),
        lambda: torch.randint(5, (2,)),
        lambda: torch.nn.functional.dropout(torch.ones(3)),
        lambda: torch.empty(2).uniform_(),
        lambda: torch.multinomial(torch.ones(3), 2),
        lambda: torch.rand_like(torch.ones(2)),
    )
    for call in calls:
        with NoDraws("transform"), pytest.raises(RuntimeError, match=text):
            call()
    with NoDraws("transform"):
        assert torch.rand(2, generator=torch.Generator().manual_seed(1)).add(1).shape == (2,)
