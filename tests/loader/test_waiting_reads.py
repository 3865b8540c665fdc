"""Stores whose reads wait: as many are under way as batches are prepared, of all attributes at once."""

import gc
import threading
from concurrent.futures import Future

import pytest
import torch
from helpers.data import make_data
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import TensorAttr

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale.loader import pipeline

DATA = make_data()
NAMES = ("x", "y", "z")


class Remote(PyGFeatureStore):
    """Rows of a function of the node id. The first reads wait until so many are under way."""

    def __init__(self, together: int, names: tuple = ("x",)) -> None:
        super().__init__()
        self.__dict__["met"] = threading.Event()
        meeting = threading.Barrier(max(together, 1), self.met.set, timeout=60)
        self.__dict__.update(names=names, meeting=meeting, threads=set(), thread_safe=True)

    def get_all_tensor_attrs(self):
        return [TensorAttr(None, name) for name in self.names]

    def _get_tensor_size(self, attr):
        return DATA.num_nodes, 2

    def _get_tensor(self, attr):
        self.threads.add(threading.current_thread())
        self.meet()
        return rows(attr.attr_name, attr.index)

    def meet(self):
        if not self.met.is_set():
            self.meeting.wait()

    def _put_tensor(self, tensor, attr):
        raise NotImplementedError

    def _remove_tensor(self, attr):
        raise NotImplementedError


class Together(Remote):
    """Asked for all attributes at once, as a query of several columns."""

    def _multi_get_tensor(self, attrs):
        self.meet()
        return [rows(attr.attr_name, attr.index) for attr in attrs]


class Futures(Remote):
    """Of a client that answers the first reads when so many were asked for, from whatever thread."""

    def __init__(self, together: int, names: tuple = ("x",)) -> None:
        super().__init__(0, names)
        self.__dict__.update(asked=[], together=together, lock=threading.Lock())
        del self.__dict__["thread_safe"]

    def read_async(self, attr, ids):
        with self.lock:
            self.asked.append((future := Future(), attr.attr_name, ids))
            if len(self.asked) >= self.together:
                for asked, name, wanted in self.asked:
                    if not asked.done():
                        asked.set_result(rows(name, wanted))
            return future


def rows(name, ids):
    return torch.stack([ids + NAMES.index(name), ids], dim=1)


def loader_over(store, count, **options):
    seeds = torch.arange(count * 2) % DATA.num_nodes
    data = store, GraphStore.from_data(DATA)
    return NeighborLoader(data, [3], seeds, batch_size=2, shuffle=True, seed=3, **options)


def check(store, count, **options):
    """All batches have the rows of their nodes, and are those of a store in memory."""
    memory = FeatureStore()
    for name in store.names:
        memory.put_tensor(rows(name, torch.arange(DATA.num_nodes)), group_name=None, attr_name=name, index=None)
    found, expected = list(loader_over(store, count, **options)), list(loader_over(memory, count, prefetch=0))
    assert len(found) == len(expected) == count
    for batch, other in zip(found, expected, strict=True):
        assert torch.equal(batch.n_id, other.n_id)
        for name in store.names:
            assert torch.equal(batch[name], rows(name, batch.n_id))


@pytest.mark.parametrize("kind", [Remote, Together, Futures])
def test_as_many_reads_wait_as_batches_are_prepared(kind):
    check(kind(16), 32, prefetch=16)


@pytest.mark.parametrize("kind", [Remote, Futures])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_the_attributes_of_a_batch_are_read_side_by_side(kind, prefetch):
    check(kind(3, NAMES), 4, prefetch=prefetch)


@pytest.mark.parametrize("kind", [Remote, Together, Futures])
def test_the_batches_of_a_bulk_are_read_side_by_side(kind):
    check(kind(8), 16, prefetch=8, bulk=4)


def test_a_store_that_threads_may_not_read_is_read_by_the_thread_that_iterates():
    store = Remote(0, NAMES)
    store.__dict__["thread_safe"] = False
    check(store, 4, prefetch=4)
    assert store.threads == {threading.current_thread()}


def test_a_store_whose_reads_do_not_wait_is_read_by_as_many_threads_as_cores(monkeypatch):
    monkeypatch.setattr(pipeline.machine, "cores", lambda: 2)
    store = Remote(0)
    store.__dict__["waits"] = False
    check(store, 16, prefetch=16)
    assert len(store.threads) <= 2


class Failing(Remote):
    """A read of node 7 fails."""

    def _get_tensor(self, attr):
        if 7 in attr.index:
            raise OSError("the connection is lost")
        return super()._get_tensor(attr)


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 4}, {"prefetch": 4, "bulk": 3}])
def test_a_read_that_fails_is_raised_in_place_of_its_batch(options):
    batches, whole = iter(loader_over(Failing(0, NAMES), 10, **options)), list(loader_over(Remote(0), 10, prefetch=0))
    failed = []
    for expected in whole:
        try:
            assert torch.equal(next(batches).n_id, expected.n_id)
        except OSError as error:
            failed.append(str(error))
            assert 7 in expected.n_id
    assert set(failed) == {"the connection is lost"}
    assert len(failed) == sum(7 in batch.n_id for batch in whole)


@pytest.mark.slow
def test_threads_end_with_their_loader():
    before, loader = set(threading.enumerate()), loader_over(Remote(2), 4, prefetch=2)
    list(loader)
    threads = [t for t in threading.enumerate() if t not in before and t.name.startswith("gnnscale-reads")]
    assert threads
    del loader
    gc.collect()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.slow
def test_worker_processes_sample_for_a_store_that_waits():
    check(Remote(0, NAMES), 6, num_workers=2, multiprocessing_context="fork")
