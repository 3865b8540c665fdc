import copy
import itertools
import os
import threading
import time
import traceback
import warnings
from contextlib import suppress
from itertools import islice

import pytest
import torch
import torch_geometric.sampler
from helpers.data import (
    loader_threads,
    no_loader_threads,
    plain,
    processes,
    stop_workers,
    wait_for,
)
from helpers.slow import SLOW

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler, ops
from torch_gnnscale.loader.pipeline import Pipeline, Stage
from torch_gnnscale.ops import rows as feature_rows
from torch_gnnscale.ops.arguments import resolve_threads

pytestmark = pytest.mark.usefixtures("threads_end")


@pytest.mark.parametrize("prefetch", [0, 1, 2, 7, 50])
def test_order(prefetch):
    def prepare(item):
        time.sleep(0.003 * (item % 3))  # so that threads end out of order
        return item * 10

    assert list(Pipeline(iter(range(20)), [Stage(prepare)], lambda item: item + 1, prefetch)) == list(range(1, 201, 10))
    assert list(Pipeline(iter(()), [Stage(prepare)], lambda item: item, prefetch)) == []


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_at_most_prefetch_batches_are_in_preparation(prefetch):
    taken = []

    def items():
        for item in range(20):
            taken.append(item)
            yield item

    pipeline = Pipeline(items(), [Stage(lambda item: item)], lambda item: item, prefetch)
    assert len(taken) == prefetch
    for delivered in range(1, 10):
        next(pipeline)
        assert len(taken) <= delivered + prefetch
    pipeline.close()
    assert not loader_threads()


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_threads_get_items_that_have_begun_in_the_thread_that_iterates(prefetch):
    where, found = set(), []

    def begin(item):
        where.add(threading.current_thread())
        if item == 2:
            raise ValueError("no item 2")

    pipeline = Pipeline(iter(range(5)), [Stage(lambda item: item)], lambda item: item, prefetch, begin=begin)
    for _ in range(5):
        try:
            found.append(next(pipeline))
        except ValueError as error:
            found.append(str(error))
    assert found == [0, 1, "no item 2" if prefetch else 2, 3, 4]
    assert where == ({threading.current_thread()} if prefetch else set())
    assert not list(pipeline)


def test_preparation_runs_ahead_and_finishing_in_the_thread_that_iterates():
    prepared, where = [], set()

    def prepare(item):
        prepared.append((item, threading.current_thread().name))
        return item

    def finish(item):
        where.add(threading.current_thread())
        return item

    pipeline = Pipeline(iter(range(6)), [Stage(prepare)], finish, 3)
    wait_for(lambda: len(prepared) == 3)
    assert list(pipeline) == list(range(6))
    assert all(name.startswith("gnnscale-loader") for _, name in prepared)
    assert where == {threading.current_thread()}


def test_without_prefetch_there_are_no_threads(data):
    loader = NeighborLoader(data, [2], batch_size=32, prefetch=0)
    for _ in loader:
        assert not loader_threads()


def test_seconds_add_up(data):
    loader = NeighborLoader(data, [2], batch_size=20, prefetch=0)
    found = [dict(loader.seconds) for _ in loader]
    for name in ("sample", "gather"):
        seconds = [entry[name] for entry in found]
        assert all(before < after for before, after in itertools.pairwise(seconds))


def test_threads_share_the_cores_out():
    cores = len(os.sched_getaffinity(0))
    for prefetch in (1, cores, 3 * cores):
        found = list(Pipeline(iter(range(8)), [Stage(lambda item: resolve_threads(0))], lambda item: item, prefetch))
        assert found == [cores // min(prefetch, cores)] * 8


@pytest.mark.parametrize("stores", [False, True])
def test_features_are_gathered_in_the_threads(data, stores, monkeypatch):
    where, gather_each = set(), feature_rows._gather_each()

    def noting(gather):
        def note(*args, **kwargs):
            where.add(threading.current_thread().name.rpartition("_")[0])
            return gather(*args, **kwargs)

        return note

    monkeypatch.setattr(feature_rows, "gather_rows", noting(ops.gather_rows))
    monkeypatch.setattr(feature_rows, "_gather_each", lambda: noting(gather_each))
    data.x = torch.randn(200, 1000)  # so wide that torch does not select them sooner
    source = (FeatureStore.from_data(data), GraphStore.from_data(data)) if stores else data
    assert len(list(NeighborLoader(source, [2], torch.arange(200), batch_size=64, prefetch=2))) == 4
    assert where == {"gnnscale-loader"}


class OurSubclass(NeighborSampler):
    pass


class Foreign(torch_geometric.sampler.BaseSampler):
    """A sampler that must not be asked by two threads at once, nor out of order."""

    def __init__(self, data):
        self.inner, self.asked = NeighborSampler(data, [2]), []

    @property
    def edge_permutation(self):
        return None

    def sample_from_nodes(self, inputs):
        self.asked.append((int(inputs.node[0]), threading.current_thread()))
        return self.inner.sample_from_nodes(inputs, 1)

    def sample_from_edges(self, *args):
        raise NotImplementedError


def test_a_foreign_sampler_is_asked_in_the_thread_that_iterates(data):
    sampler = Foreign(data)
    with pytest.warns(UserWarning, match="prefetch=4 has no effect: Foreign may keep state"):
        loader = NeighborLoader(data, [2], batch_size=40, neighbor_sampler=sampler, prefetch=4)
    assert len(list(loader)) == 5
    assert sampler.asked == [(seed, threading.current_thread()) for seed in range(0, 200, 40)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        NeighborLoader(data, [2], neighbor_sampler=sampler)
        NeighborLoader(data, [2], neighbor_sampler=OurSubclass(data, [2]))


def test_threads_are_bounded_by_the_cores(data):
    iterator = iter(NeighborLoader(data, [2], batch_size=2, prefetch=64))
    next(iterator)
    assert 1 <= len(loader_threads()) <= (os.cpu_count() or 1)


# Errors ##############################################################################################################


def fails_in_the_thread(out):
    if out.metadata[0][0] >= 96:
        raise ArithmeticError("the fourth batch")
    return out


WAYS = [{"prefetch": 0}, {"prefetch": 1}, {"prefetch": 4}, {"bulk": 2, "prefetch": 4}, processes(1)]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_an_error_in_a_thread_arrives_where_the_batch_would_have(data, options):
    loader = NeighborLoader(data, [2], batch_size=32, transform_sampler_output=fails_in_the_thread, **options)
    iterator = iter(loader)
    assert [next(iterator).batch_size for _ in range(3)] == [32] * 3
    with pytest.raises(ArithmeticError, match="the fourth batch") as caught:
        next(iterator)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "fails_in_the_thread" in names or "num_workers" in options
    stop_workers(iterator)
    del iterator, caught
    assert no_loader_threads()


def fails_in_the_loop(batch):
    if batch.input_id[0] == 32:
        raise ArithmeticError("not this one")
    return batch


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("where", [SLOW("transform"), "transform_sampler_output"])
def test_the_batches_after_one_that_fails_follow(data, options, where):
    """As in PyG's loaders; the one that failed counts as delivered."""
    fails = fails_in_the_loop if where == "transform" else fails_in_the_thread_once
    loader = NeighborLoader(data, [2], batch_size=32, seed=1, **{where: fails}, **options)
    iterator, found, states = iter(loader), [], []
    while True:
        try:
            found.append(next(iterator))
        except ArithmeticError:
            found.append(None)
        except StopIteration:
            break
        states.append(loader.state_dict())
    assert [None if batch is None else int(batch.input_id[0]) for batch in found] == [0, None, 64, 96, 128, 160, 192]
    assert [state["batch"] for state in states] == list(range(1, 8))
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)
    again = NeighborLoader(data, [2], batch_size=32)
    again.load_state_dict(states[1])
    assert plain(next(iter(again))) == plain(found[2])


def fails_in_the_thread_once(out):
    if out.metadata[0][0] == 32:
        raise ArithmeticError("not this one")
    return out


@pytest.mark.parametrize("options", WAYS[:4], ids=str)
def test_an_iterator_that_was_closed_is_not_the_end_of_the_epoch(data, options):
    loader = NeighborLoader(data, [2], batch_size=32, **options)
    iterator = iter(loader)
    next(iterator)
    iterator.close()
    assert list(iterator) == []
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 1)


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 4}, {"bulk": 2, "prefetch": 4}], ids=str)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_batches_are_made_in_the_callers_mode_of_autograd(data, options, mode):
    given = copy.copy(data)
    given.x = data.x.clone().requires_grad_()
    loader = NeighborLoader(given, [2], batch_size=32, **options)
    with mode():
        batch = next(iter(loader))
    assert batch.x.requires_grad == (mode is torch.enable_grad)
    assert batch.x.is_inference() == (mode is torch.inference_mode)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_an_error_in_the_order_of_batches(data, prefetch):
    def batches():
        yield [1, 2]
        yield [3]
        raise ArithmeticError("no more batches")

    class Batches:
        def __iter__(self):
            return batches()

    found = []

    def train():
        for batch in NeighborLoader(data, [2], batch_sampler=Batches(), prefetch=prefetch):
            found.append(batch.n_id[: batch.batch_size].tolist())

    with pytest.raises(ArithmeticError, match="no more batches"):
        train()
    assert found == [[1, 2], [3]]
    loader = NeighborLoader(data, [2], batch_sampler=Batches(), prefetch=prefetch)
    iterator = iter(loader)
    for _ in range(3):
        with suppress(ArithmeticError):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_items_that_would_go_on_after_their_error(prefetch):
    class Items:
        asked = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.asked += 1
            if self.asked == 3:
                raise ArithmeticError("no third item")
            return self.asked

    pipeline = Pipeline(Items(), [Stage(lambda item: item)], lambda item: -item, prefetch)
    assert [next(pipeline), next(pipeline)] == [-1, -2]
    with pytest.raises(ArithmeticError, match="no third item"):
        next(pipeline)
    assert list(islice(pipeline, 5)) == []


def test_without_stages_nothing_is_taken_ahead():
    items = iter(range(9))
    pipeline = Pipeline(items, [], lambda item: -item, 4)
    assert next(items) == 0
    assert list(pipeline) == [-i for i in range(1, 9)]
