"""``num_workers`` means threads, unless something needs processes."""

import multiprocessing
import os
import re
import threading
import warnings

import pytest
import torch
from helpers.data import ForeignFeatureStore, plain
from torch_geometric.sampler import BaseSampler

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale.loader.adapter import without_processes
from torch_gnnscale.loader.given_data import given_data


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
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message="This process .* is multi-threaded")
        for source, options in (
            (data, {"multiprocessing_context": "fork"}),
            (data, {"worker_init_fn": nothing}),
            (data, {"neighbor_sampler": Foreign(data)}),
            ((store, GraphStore.from_data(data)), {}),
        ):
            loader = NeighborLoader(source, [2], nodes, batch_size=40, seed=1, num_workers=1, **options)
            assert len(started(loader)) == 1


def test_samplers_that_threads_must_not_share_keep_processes(data):
    sampler = NeighborSampler(data, [2])
    options = {"num_workers": 1, "persistent_workers": True}
    with pytest.warns(UserWarning, match="num_workers=1, persistent_workers=True: threads prepare the batches"):
        assert without_processes(given_data(data), sampler, options) == {}
    unsafe = type("Unsafe", (NeighborSampler,), {"thread_safe": False})(data, [2])
    assert without_processes(given_data(data), unsafe, options) == options


class Together(NeighborSampler):
    """Notes in which process and thread it is asked."""

    collective = True

    def __init__(self, data):
        super().__init__(data, [2])
        self.asked = []

    def sample_from_nodes(self, inputs, key=None):
        self.asked.append((os.getpid(), threading.current_thread().name))
        return super().sample_from_nodes(inputs, key)


class TogetherStore(FeatureStore):
    """Notes in which process and thread it is read."""

    collective, thread_safe = True, False

    def multi_get_tensor(self, attrs, *args, **kwargs):
        self.__dict__.setdefault("asked", []).append((os.getpid(), threading.current_thread().name))
        return super().multi_get_tensor(attrs, *args, **kwargs)


def collective(kind, data):
    """(Data and arguments of a loader, what is collective of them)."""
    if kind == "sampler":
        sampler = Together(data)
        return data, {"neighbor_sampler": sampler}, sampler
    store = TogetherStore.from_data(data)
    return (store, GraphStore.from_data(data)), {}, store


@pytest.mark.parametrize("kind", ["sampler", "store"])
def test_what_is_collective_is_asked_by_one_thread(data, kind):
    source, options, asked = collective(kind, data)
    nodes, common = torch.arange(200), {"batch_size": 40, "seed": 1}
    name = type(asked).__name__
    message = f"^num_workers=2: one thread asks a {name}, which is collective, in the order of batches$"
    with pytest.warns(UserWarning, match=message):
        loader = NeighborLoader(source, [2], nodes, num_workers=2, **common, **options)
    plainly = data if source is data else (FeatureStore.from_data(data), GraphStore.from_data(data))
    expected = [plain(batch) for batch in NeighborLoader(plainly, [2], nodes, **common)]
    assert [plain(batch) for batch in loader] == expected
    assert len(asked.asked) == len(expected)
    assert len(set(asked.asked)) == 1
    assert asked.asked[0][0] == os.getpid()


@pytest.mark.parametrize("kind", ["sampler", "store"])
@pytest.mark.parametrize("option", [{"multiprocessing_context": "fork"}, {"worker_init_fn": nothing}])
def test_processes_are_refused_for_what_is_collective(data, kind, option):
    source, options, asked = collective(kind, data)
    text = f"worker processes (num_workers=2) with a {type(asked).__name__}, which is collective, are not implemented; "
    with pytest.raises(NotImplementedError, match=re.escape(text + "num_workers alone means threads")):
        NeighborLoader(source, [2], num_workers=2, **option, **options)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (-1, ValueError, "num_workers: expected at least 0, found -1"),
        (2.5, TypeError, "num_workers: expected an int, found float"),
        (None, TypeError, "num_workers: expected an int, found NoneType"),
    ],
)
def test_numbers_of_workers_that_are_none(data, given, error, message):
    for sampler in (None, Foreign(data)):
        with pytest.raises(error, match=f"^{message}$"):
            NeighborLoader(data, [2], num_workers=given, neighbor_sampler=sampler)


def test_arguments_without_effect_are_named(data):
    for options, message in (
        ({"timeout": 3}, "timeout=3 has no effect without worker processes"),
        ({"timeout": 3, "num_workers": 2}, "num_workers=2, timeout=3: threads prepare the batches"),
        (
            {"collate_fn": nothing},
            "collate_fn has no effect, as in PyG: the loader makes its batches itself; use trans",
        ),
        ({"pin_memory_device": "cuda"}, "pin_memory_device='cuda' has no effect: batches are pinned for the current"),
    ):
        with pytest.warns(UserWarning, match=f"^{message}"):
            loader = NeighborLoader(data, [2], torch.arange(80), batch_size=40, seed=1, **options)
        assert [plain(batch) for batch in loader] == [
            plain(batch) for batch in NeighborLoader(data, [2], torch.arange(80), batch_size=40, seed=1)
        ]
    with pytest.raises(ValueError, match=r"^timeout option should be non-negative$"):
        NeighborLoader(data, [2], timeout=-1)
    with warnings.catch_warnings():  # Lightning passes the method of the loader that it makes anew
        warnings.simplefilter("error", UserWarning)
        NeighborLoader(data, [2], collate_fn=loader.collate_fn)
