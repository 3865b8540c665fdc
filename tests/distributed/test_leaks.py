"""Epochs, loaders and parts leave no thread, socket or file behind."""

import gc
import os
import threading
import time

import pytest
from helpers.cluster import cluster
from helpers.data import wait_for
from helpers.parts import as_plain, loader_of_part
from torch import distributed as dist
from tqdm import TMonitor

from torch_gnnscale.comm.rendezvous import end_group
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.buffer import LoaderBuffers


def in_use():
    """(threads, open files and sockets) of this process; without tqdm's monitor, which stays after an earlier test."""
    gc.collect()
    threads = [thread for thread in threading.enumerate() if not isinstance(thread, TMonitor)]
    return len(threads), len(os.listdir("/proc/self/fd"))


def grows(files):
    """Whether every fourth repetition, or more of them, leaves a file open; some are closed late."""
    return min(files[-3:]) - min(files[:3]) > len(files) // 4


def over_epochs(path, epochs):
    with open_part(path, buffer=0.25) as part:
        loader = loader_of_part(part)
        found = []
        for epoch in range(epochs):
            for number, _ in enumerate(loader):
                if epoch % 3 == 2 and number == 1:
                    break
            found.append(in_use())
        return found


@pytest.mark.slow
def test_epochs(parts):
    for found in cluster(2).run(over_epochs, parts, 50 if os.environ.get("GNNSCALE_SOAK") else 9):
        assert max(threads for threads, _ in found) <= found[0][0] + 7  # those of the latest iterator may still end
        assert not grows([files for _, files in found])


def over_parts(path, times):
    found = []
    for _ in range(times):
        with open_part(path) as part:
            train, test = (loader_of_part(part, uneven=uneven) for uneven in ("pad", "serve"))
            list(train)
            list(test)
        del part, train, test
        found.append(in_use())
    return found


@pytest.mark.slow
def test_parts_and_loaders(parts):
    for found in cluster(2).run(over_parts, parts, 50 if os.environ.get("GNNSCALE_SOAK") else 6):
        assert [threads for threads, _ in found] == [1] * len(found)
        assert not grows([files for _, files in found])


def answering():
    """The threads that answer for a part."""
    return {thread for thread in threading.enumerate() if thread.name == "gnnscale-liveness"}


def dropped(path):
    """How many threads answer for a part while it is open, and after it was dropped without being closed."""
    others = answering()  # of parts that other tests of this process left to the collector
    part = open_part(path)
    group, own = part._rendezvous._exchange.group, answering() - others
    opened = len(own)
    del part
    gc.collect()
    until = time.monotonic() + 10
    while own & answering() and time.monotonic() < until:
        time.sleep(0.02)
    end_group(group)
    return [opened, len(own & answering())]


def test_a_part_that_is_dropped_ends_its_thread(parts):
    assert cluster(2).run(dropped, parts) == [[1, 0]] * 2


def steps_in_use():
    """(threads of loaders' steps, open files and sockets) of this process."""
    gc.collect()
    return [thread.name for thread in threading.enumerate()].count("gnnscale-steps"), len(os.listdir("/proc/self/fd"))


def over_loaders(path, times, options):
    """(threads of steps, open files and sockets, buffers) after each of the loaders of a part, which are dropped, every
    second one within an epoch; then how many exchanges of rows they took, and how many the part counted."""
    found, taken = [], 0
    with open_part(path, buffer=0.25) as part:
        for number in range(times):
            loader = loader_of_part(part, **options)
            list(loader)
            if number % 2:
                next(iter(loader))
            exchanges = loader._sharing.steps.exchanges
            del loader
            wait_for(lambda: steps_in_use()[0] == 0)
            buffers = sum(isinstance(entry, LoaderBuffers) for entry in gc.get_objects())
            found.append((*steps_in_use(), buffers))
            taken += sum(exchange.traffic["rows"].rounds for exchange in exchanges)
        return found, taken, part.stats()["rows"]["rounds"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"prefetch": 0}, {"seed_order": "global"}], ids=str)
def test_loaders_that_are_dropped_leave_nothing(parts, options):
    for found, taken, counted in cluster(2).run(over_loaders, parts, 6, options):
        assert [(threads, buffers) for threads, _, buffers in found] == [(0, 0)] * 6
        assert not grows([files for _, files, _ in found])
        assert counted == taken > 0


def iterates_on(path):
    """An epoch of a loader to which nothing refers but its iterator."""
    with open_part(path) as part:
        iterator = iter(loader_of_part(part))
        first = next(iterator)
        gc.collect()
        return [as_plain(batch) for batch in (first, *iterator)]


def whole_epoch(path):
    with open_part(path) as part:
        return [as_plain(batch) for batch in loader_of_part(part)]


@pytest.mark.slow
def test_an_iterator_keeps_its_loader(parts):
    assert cluster(2).run(iterates_on, parts) == cluster(2).run(whole_epoch, parts)


def one_drops(path):
    """Rank 0 drops its loader within an epoch; rank 1 goes on."""
    with open_part(path) as part:
        loader = loader_of_part(part, prefetch=0)
        iterator = iter(loader)
        next(iterator)
        if dist.get_rank() == 0:
            del loader, iterator
            gc.collect()
        else:
            list(iterator)


def test_a_rank_that_drops_its_loader_within_an_epoch_is_named(parts):
    first, second = cluster(2).results(one_drops, parts)
    assert first == (True, None)
    assert second == (
        False,
        "RuntimeError: rank 0 left the loop of epoch 0: all ranks must leave it after the same batch",
    )
