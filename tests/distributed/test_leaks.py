"""Epochs, loaders and parts leave no thread, socket or file behind."""

import gc
import os
import threading
import time

import pytest
from helpers.cluster import cluster
from helpers.parts import loader_of_part

from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.meeting import end_group


def in_use():
    """(threads, open files and sockets) of this process."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


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
    return [thread.name for thread in threading.enumerate()].count("gnnscale-presence")


def dropped(path):
    """How many threads answer while a part is open, and after it was dropped without being closed."""
    part = open_part(path)
    group, found = part._meeting._exchange.group, [answering()]
    del part
    gc.collect()
    until = time.monotonic() + 10
    while answering() and time.monotonic() < until:
        time.sleep(0.02)
    end_group(group)
    return [*found, answering()]


def test_a_part_that_is_dropped_ends_its_thread(parts):
    assert cluster(2).run(dropped, parts) == [[1, 0]] * 2
