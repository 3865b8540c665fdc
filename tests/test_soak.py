"""Long runs leave nothing behind: memory, threads, file handles, mappings.

``GNNSCALE_SOAK=1 pytest tests/test_soak.py`` (``make soak``) does ten thousand batches and a thousand loaders; by
default it is a sample.
"""

import gc
import os
import pickle
import queue
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from helpers.data import make_data, no_loader_threads, processes

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, TieredFeatureStore, ops

LONG = os.environ.get("GNNSCALE_SOAK") == "1"
BATCHES, LOADERS = (10_000, 1000) if LONG else (400, 40)
PROC = Path("/proc/self")

pytestmark = pytest.mark.skipif(not PROC.exists(), reason="needs /proc")


def resident() -> int:
    """Bytes of this process's own memory that are in use."""
    gc.collect()
    fields = dict(line.split(":") for line in (PROC / "status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) << 10


def descriptors() -> list[str]:
    links = []
    for link in (PROC / "fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the folder
            links.append(os.readlink(link))
    return sorted(links)


def mappings(folder: Path) -> list[str]:
    return [line for line in (PROC / "maps").read_text().splitlines() if str(folder) in line]


@pytest.fixture(scope="module")
def data():
    return make_data(5000, 60_000)


def epochs(loader, count):
    """Batches of one epoch after the other."""
    done = 0
    while done < count:
        for batch in loader:
            yield batch
            done += 1
            if done == count:
                return


@pytest.mark.slow
def test_memory_is_flat(data):
    loader = NeighborLoader(data, [8, 4], torch.arange(2000), batch_size=100, shuffle=True, prefetch=8)
    sizes = []
    for number, batch in enumerate(epochs(loader, BATCHES)):
        assert batch.batch_size == 100
        if number % (BATCHES // 10) == 0:
            sizes.append(resident())
    # The first rounds fill the pool and the allocator's own caches.
    assert max(sizes[4:]) - min(sizes[2:]) < 8 << 20, sizes
    assert no_loader_threads()


@pytest.mark.slow
def test_batches_kept_dropped_pickled_and_sent(data):
    loader = NeighborLoader(data, [8, 4], torch.arange(2000), batch_size=100, shuffle=True, seed=1)
    expected = {epoch: [batch.n_id.clone() for batch in loader] for epoch in range(2)}
    loader.set_epoch(0)
    sent: queue.Queue = queue.Queue(8)  # a receiver that is slow must not look like memory that grows
    received = []

    def receive():
        for batch in iter(sent.get, None):
            received.append(pickle.loads(batch) if isinstance(batch, bytes) else batch)
            if len(received) > 30:
                received.pop(len(received) // 2)

    thread = threading.Thread(target=receive)
    thread.start()
    kept, sizes = [], []
    for number, batch in enumerate(epochs(loader, BATCHES // 4)):
        epoch, place = divmod(number, 20)
        if epoch < 2:
            kept.append((epoch, place, batch))
        sent.put(pickle.dumps(batch) if number % 3 == 0 else batch)
        if number % (BATCHES // 40) == 0:
            sizes.append(resident())
    sent.put(None)
    thread.join()
    for epoch, place, batch in kept:
        assert torch.equal(batch.n_id, expected[epoch][place])
        assert torch.equal(batch.x, data.x[batch.n_id])
    assert max(sizes[6:]) - min(sizes[4:]) < 24 << 20, sizes


@pytest.mark.slow
def test_loaders_leave_nothing(data, tmp_path):
    GraphStore.from_data(data).save(tmp_path / "graph")
    FeatureStore.from_data(data).save(tmp_path / "features")

    def use(number):
        stores = (
            FeatureStore.open(tmp_path / "features", verify=False),
            GraphStore.open(tmp_path / "graph", verify=False),
        )
        loader = NeighborLoader(stores, [5, 5], torch.arange(500), batch_size=100, prefetch=1 + number % 4)
        iterator = iter(loader)
        for _ in range(number % 6):
            next(iterator, None)
        if number % 7 == 0:
            return iter(loader)  # a second one, dropped before its first batch
        return None

    for number in range(10):
        use(number)
    assert no_loader_threads()
    gc.collect()
    before = descriptors(), threading.active_count(), resident()
    for number in range(LOADERS):
        use(number)
    assert no_loader_threads()
    gc.collect()
    assert mappings(tmp_path) == []
    assert (descriptors(), threading.active_count()) == before[:2]
    assert resident() - before[2] < 8 << 20
    assert ops.pool_stats().live_bytes < 8 << 20


@pytest.mark.slow
def test_tiers_leave_nothing(data, tmp_path):
    data = data.clone()
    del data.edge_attr
    score = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    FeatureStore.from_data(data).save(tmp_path / "features")
    (tmp_path / "spilled").mkdir()
    index = torch.randint(5000, (300,))

    def use(number):
        if number % 2:
            options = (
                {"disk": tmp_path / "spilled"} if number % 3 else {"renumbered": True, "disk": tmp_path / "spilled"}
            )
            store = TieredFeatureStore.from_data(data, hotness=score, host="40%", **options)
        else:
            store = TieredFeatureStore.open(tmp_path / "features", score, host="40%", verify=False)
        kept = pickle.loads(pickle.dumps(store)) if number % 5 == 0 else None
        assert store[None, "x", index].shape == (300, 3)
        if number % 4:
            store.close()  # else it is dropped
        if kept is not None:
            assert kept[None, "y", index].shape == (300,)
            kept.close()

    for number in range(20):
        use(number)
    gc.collect()
    before = descriptors(), threading.active_count(), resident()
    for number in range(LOADERS):
        use(number)
    gc.collect()
    assert [line for line in (PROC / "maps").read_text().splitlines() if "gnnscale-tiers" in line] == []
    assert mappings(tmp_path) == []
    assert list((tmp_path / "spilled").iterdir()) == []
    assert (descriptors(), threading.active_count()) == before[:2]
    assert resident() - before[2] < 8 << 20


@pytest.mark.slow
def test_worker_processes_leave_nothing(data):
    def use():
        loader = NeighborLoader(data, [5], torch.arange(300), batch_size=100, **processes(2))
        next(iter(loader))

    def children():
        return set((PROC / "task" / str(threading.get_native_id()) / "children").read_text().split())

    others = children()  # of other tests
    use()
    gc.collect()
    before = len(descriptors())
    for _ in range(LOADERS // 20):
        use()
    gc.collect()
    assert len(descriptors()) <= before
    assert len(children() - others) <= 1, "torch's resource sharer or tracker may stay"
