"""How pipelines end: closed, dropped, interrupted, with the program, or in a forked process."""

import gc
import os
import signal
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress

import pytest
import torch
from helpers import forked
from helpers.data import (
    loader_threads,
    no_loader_threads,
    status_of_fork,
    wait_for,
)

from torch_gnnscale import NeighborLoader, machine
from torch_gnnscale.comm.exchange import OneThread
from torch_gnnscale.loader.execution import Failed, Unpacked
from torch_gnnscale.loader.pipeline import Pipeline, Stage

pytestmark = pytest.mark.usefixtures("threads_end")


def test_closing_drops_what_is_queued():
    started, released, count = [], threading.Event(), 8 * machine.cores()
    stage = Stage(lambda item: started.append(item) or released.wait(20))
    pipeline = Pipeline(iter(range(count)), [stage], bool, count)
    wait_for(lambda: started)
    threading.Timer(0.05, released.set).start()
    pipeline.close()
    assert len(started) <= count // 4


def test_closing_drops_what_is_queued_for_a_given_thread():
    started, entered, released, thread = [], threading.Event(), threading.Event(), OneThread("given")

    def run(item):
        started.append(item)
        entered.set()
        released.wait(20)

    pipeline = Pipeline(iter(range(8)), [Stage(run, "in order")], bool, 8, thread)
    entered.wait()
    pipeline.close()
    released.set()
    thread.end(None)
    assert started == [0]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_given_thread_leaves_one_item_more_than_are_in_preparation(prefetch):
    made, thread = weakref.WeakSet(), OneThread("given")

    def make(_):
        made.add(item := Future())
        return item

    pipeline = Pipeline(iter(range(20)), [Stage(make, "in order")], bool, prefetch, thread)
    for _ in range(10):
        next(pipeline)
        thread.submit(bool).result()  # what was begun is made
        assert len(made) == prefetch + 1
    pipeline.close()
    thread.end(None)
    assert not made


def test_an_error_in_the_loop_stops_the_threads(data):
    loader = NeighborLoader(data, [2], batch_size=4, prefetch=4)

    def train():
        for i, _ in enumerate(loader):
            if i == 3:
                raise ArithmeticError("loss is nan")

    with pytest.raises(ArithmeticError):
        train()
    assert no_loader_threads()


def test_break_and_dropping_stop_the_threads(data):
    loader = NeighborLoader(data, [2], batch_size=4, prefetch=4)
    for i, _ in enumerate(loader):
        if i == 3:
            break
    assert no_loader_threads()
    iterator = iter(loader)
    next(iterator)
    assert loader_threads()
    del iterator
    assert no_loader_threads()
    iter(loader)
    assert no_loader_threads()


def test_the_end_stops_the_threads_and_stays_the_end(data):
    iterator = iter(NeighborLoader(data, [2], batch_size=64, prefetch=4))
    assert len(list(iterator)) == 4
    assert not loader_threads()
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)
    iterator.close()
    with pytest.raises(StopIteration):
        next(iterator)


def test_closing_in_the_middle(data):
    iterator = iter(NeighborLoader(data, [2], batch_size=4, prefetch=4))
    next(iterator)
    iterator.close()
    assert not loader_threads()
    with pytest.raises(StopIteration):
        next(iterator)


INTERRUPTED = """
import signal, sys, time
from helpers.data import make_data, processes, no_loader_threads
from torch_gnnscale import NeighborLoader

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs in the background ignore it
loader = NeighborLoader(make_data(), [4, 4], batch_size=1, prefetch=int(sys.argv[1]), **processes(int(sys.argv[2])))
try:
    while True:
        for i, batch in enumerate(loader):
            if i == 3:
                print("ready", flush=True)
            time.sleep(0.001)
except KeyboardInterrupt:
    print("interrupted", no_loader_threads(), flush=True)
    raise
"""


@pytest.mark.slow
@pytest.mark.parametrize(("prefetch", "workers"), [(0, 0), (4, 0), (4, 2)])
def test_keyboard_interrupt(prefetch, workers, tmp_path):
    out, error = ((tmp_path / name).open("w") for name in ("out", "error"))
    with out, error:
        process = forked.start(INTERRUPTED, str(prefetch), str(workers), out=out.fileno(), err=error.fileno())
    try:
        wait_for(lambda: (tmp_path / "out").read_text().endswith("\n") or not process.is_alive(), 60)
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
    finally:
        process.kill()
    printed, error = ((tmp_path / name).read_text() for name in ("out", "error"))
    assert process.exitcode == 1, error
    assert printed == "ready\ninterrupted True\n"
    assert "KeyboardInterrupt" in error


LEFT_OPEN = """
from helpers.data import make_data
from torch_gnnscale import NeighborLoader

iterator = iter(NeighborLoader(make_data(), [4, 4], batch_size=1))
next(iterator)
print("end", flush=True)
"""


@pytest.mark.slow
def test_the_interpreter_ends_with_an_iterator_left_open():
    done = forked.run(LEFT_OPEN, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


SLOW = """
import sys, threading, time
from torch_gnnscale.loader.pipeline import Pipeline, Stage

def prepare(item):
    print("prepared", item, flush=True)
    begun.set()
    time.sleep(0.5)  # while the program ends

begun = threading.Event()
pipeline = Pipeline(iter(range(50)), [Stage(prepare)], print, 50)
begun.wait()
sys.exit(3)
"""


@pytest.mark.slow
def test_what_is_queued_is_not_prepared_when_the_program_ends():
    done = forked.run(SLOW, timeout=60)
    assert done.returncode == 3
    assert 1 <= len(done.stdout.splitlines()) <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_an_iterator_with_threads_raises_in_a_fork(data):
    loader = NeighborLoader(data, [2], batch_size=20, prefetch=2, seed=1)
    iterator = iter(loader)
    next(iterator)

    def child():
        torch.set_num_threads(1)  # as torch's data loader does in its workers
        for _ in range(2):
            message = rf"^prefetch: expected .* in process {os.getppid()}, .* process {os.getpid()}: "
            with pytest.raises(RuntimeError, match=message):
                next(iterator)
        assert len(list(loader)) == 10  # a new one has threads of its own
        iterator.close()

    assert status_of_fork(child) == 0
    assert len(list(iterator)) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_an_iterator_without_threads_goes_on_in_a_fork(data):
    iterator = iter(NeighborLoader(data, [2], batch_size=20, prefetch=0, seed=1))
    next(iterator)

    def child():
        torch.set_num_threads(1)
        assert len(list(iterator)) == 9

    assert status_of_fork(child) == 0


def test_an_error_of_a_batch_is_freed_without_the_garbage_collector():
    class NoLuckError(Exception):
        """Unlike Python's own, one that can be referred to weakly."""

    error = NoLuckError()
    there, unpacked = weakref.ref(error), Unpacked(iter([["a", Failed(error), "c"]]), str.upper)
    del error
    gc.disable()
    try:
        assert next(unpacked) == "A"
        with suppress(NoLuckError):
            next(unpacked)
        assert there() is None
        assert next(unpacked) == "C"
    finally:
        gc.enable()
