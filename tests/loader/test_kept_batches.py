import queue
import sys
import threading
import time

import pytest
import torch
from helpers.data import make_data, plain
from helpers.forked import FORKED

from torch_gnnscale import NeighborLoader, ops


def slow_ops():
    big = torch.randint(0, 1000, (3_000_000,), generator=torch.Generator().manual_seed(0))
    csc = ops.coo_to_csc(big, big.flip(0), 1000, 1000)
    rows = torch.zeros(1000, 64)
    row = csc[1][:, 0]
    return {
        "coo_to_csc": lambda: ops.coo_to_csc(big, big.flip(0), 1000, 1000, threads=1),
        "gather_rows": lambda: ops.gather_rows(rows, big, threads=1),
        "rmat_edges": lambda: ops.rmat_edges(1000, 3_000_000, 1, (0.57, 0.19, 0.19), threads=1),
        "random_bits": lambda: ops.random_bits(20_000_000, 1, threads=1),
        "permutation": lambda: ops.permutation(5_000_000, 1),
        "sample_neighbors": lambda: ops.sample_neighbors(
            ops.relations([csc[0]], [row]), [torch.arange(1000).repeat(50)], [20], 1, replace=True, threads=1
        ),
    }


@pytest.fixture(scope="module")
def all_slow_ops():
    return slow_ops()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["coo_to_csc", "gather_rows", "rmat_edges", "random_bits", "permutation", "sample_neighbors"],
)
def test_an_op_lets_other_python_threads_run(all_slow_ops, name):
    # With a switch interval of minutes, this thread gives the lock up only where the op itself does.
    done = threading.Event()
    interval = sys.getswitchinterval()
    ticks = []
    started = threading.Event()

    def tick():
        started.set()
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    started.wait(20)
    try:
        for _ in range(20):  # a busy machine may not run the other thread at once
            sys.setswitchinterval(100)
            begin = time.monotonic()
            all_slow_ops[name]()
            end = time.monotonic()
            inside = sum(begin < tick < end for tick in list(ticks))
            sys.setswitchinterval(interval)
            if inside >= 2:
                break
            time.sleep(0.01)
    finally:
        sys.setswitchinterval(interval)
        done.set()
        thread.join(20)
    assert inside >= 2


def test_batches_that_are_kept_stay_intact(data):
    loader = NeighborLoader(data, [4, 3], batch_size=16, seed=1, shuffle=True)
    kept = []
    for batch in loader:
        kept.append((batch, plain(batch)))
    for _ in range(5):
        for _ in loader:
            pass
    assert all(plain(batch) == then for batch, then in kept)
    parts = [(batch.edge_index[0], batch.edge_index[0].tolist(), batch.x[3:5], batch.x[3:5].tolist())
             for batch, _ in kept]  # fmt: skip
    del kept, batch
    for _ in range(5):
        for _ in loader:
            pass
    assert all(row.tolist() == then and x.tolist() == x_then for row, then, x, x_then in parts)


def test_batches_can_be_written_to(data):
    loader = NeighborLoader(data, [4, 3], batch_size=16, seed=1)
    first = [plain(batch) for batch in loader]
    loader.set_epoch(0)
    for batch in loader:
        for value in batch.to_dict().values():
            if isinstance(value, torch.Tensor):
                value.fill_(77)
    loader.set_epoch(0)
    assert [plain(batch) for batch in loader] == first
    assert torch.equal(data.x, make_data().x)
    assert torch.equal(data.edge_index, make_data().edge_index)


def send_back(inbox, outbox):
    for _ in range(7):
        batch = inbox.get(timeout=100)
        outbox.put((plain(batch), batch))
    inbox.get(timeout=100)


@pytest.mark.slow
def test_batches_travel_through_a_queue(data):
    there, back = FORKED.Queue(), FORKED.Queue()
    process = FORKED.Process(target=send_back, args=(there, back))
    process.start()
    try:
        for batch in NeighborLoader(data, [4, 3], batch_size=32, seed=1, edge_layout="coo"):
            before = plain(batch)
            there.put(batch)
            seen, returned = back.get(timeout=100)
            assert seen == plain(returned) == plain(batch) == before
            del returned
        there.put(None)
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()


@pytest.mark.slow
def test_many_loaders_at_once(data):
    expected = [plain(batch) for batch in NeighborLoader(data, [4, 3], batch_size=8, seed=1, prefetch=0)]
    answers = queue.Queue()

    def consume():
        loader = NeighborLoader(data, [4, 3], batch_size=8, seed=1, prefetch=3)
        answers.put([plain(batch) for batch in loader] == expected)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answers.get(timeout=1) for _ in threads] == [True] * 4
