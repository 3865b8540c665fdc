"""``num_workers`` means threads, unless something needs processes."""

import multiprocessing
import warnings

import pytest
import torch
from helpers.data import ForeignFeatureStore, plain
from torch_geometric.sampler import BaseSampler

from torch_gnnscale import GraphStore, LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale.loader.workers import without_processes


def started(loader):
    """The worker processes of an epoch, while it is under way."""
    before = set(multiprocessing.active_children())
    iterator = iter(loader)
    next(iterator)
    found = set(multiprocessing.active_children()) - before
    list(iterator)
    return found


@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
def test_threads_take_the_place_of_processes(data, kind):
    inputs = torch.arange(200) if kind is NeighborLoader else data.edge_index[:, :200]
    options = {
        "persistent_workers": True,
        "prefetch_factor": 3,
        "worker_init_fn": None,
        "multiprocessing_context": None,
    }
    expected = r"^num_workers=2, persistent_workers=True, prefetch_factor=3: threads prepare the batches"
    with pytest.warns(UserWarning, match=expected):
        loader = kind(data, [2], inputs, batch_size=40, seed=1, num_workers=2, **options)
    assert not started(loader)
    loader.set_epoch(0)
    plainly = kind(data, [2], inputs, batch_size=40, seed=1)
    assert [plain(batch) for batch in loader] == [plain(batch) for batch in plainly]


def nothing(worker):
    pass


class Foreign(BaseSampler):
    edge_permutation = None

    def __init__(self, data):
        self.ours = NeighborSampler(data, [2])

    def sample_from_nodes(self, inputs):
        return self.ours.sample_from_nodes(inputs)

    sample_from_edges = None


@pytest.mark.slow
def test_what_needs_processes_has_them(data):
    store = ForeignFeatureStore()
    store.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    nodes = torch.arange(200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="This process .* is multi-threaded")
        for source, options in (
            (data, {"multiprocessing_context": "fork"}),
            (data, {"worker_init_fn": nothing}),
            (data, {"neighbor_sampler": Foreign(data)}),
            ((store, GraphStore.from_data(data)), {}),
        ):
            loader = NeighborLoader(source, [2], nodes, batch_size=40, seed=1, num_workers=1, **options)
            assert len(started(loader)) == 1


def test_ranks_that_sample_together_keep_processes(data):
    sampler = NeighborSampler(data, [2])
    options = {"num_workers": 1, "persistent_workers": True}
    with pytest.warns(UserWarning, match="num_workers=1, persistent_workers=True: threads prepare the batches"):
        assert without_processes(data, sampler, options) == {}
    for name, value in (("collective", True), ("thread_safe", False)):
        other = type("Other", (NeighborSampler,), {name: value})(data, [2])
        assert without_processes(data, other, options) == options
