"""Processes of one process group over loopback, started once and used by many tests."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from helpers.data import environment

SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)
"""Parameters of a test that starts more processes than two."""
WORKER = """
import faulthandler, importlib, os, pickle, signal, sys
from datetime import timedelta
rank, world, port = map(int, sys.argv[1:])
commands, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # what tests print is no result
faulthandler.register(signal.SIGUSR1)  # where it waits
import torch
from torch import distributed as dist
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", port, world, rank == 0, timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
while True:
    try:
        module, name, arguments = pickle.load(commands)
    except EOFError:
        break
    try:
        answer = True, getattr(importlib.import_module(module), name)(*arguments)
    except BaseException as error:
        answer = False, f"{type(error).__name__}: {error}"
    pickle.dump(answer, results)
    results.flush()
dist.destroy_process_group()
"""


class Cluster:
    """``world`` processes of one Gloo group, each of which runs what it is told."""

    def __init__(self, world: int) -> None:
        self.world = world
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        set_up = {**environment(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(world)}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(rank), str(world), str(port)],
                env={**set_up, "LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(world)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for rank in range(world)
        ]  # fmt: skip

    def tell(self, rank: int, function: Callable, *arguments: Any) -> None:
        """Makes a rank call a function of a module that it can import."""
        pipe = self.processes[rank].stdin
        assert pipe is not None
        pipe.write(pickle.dumps((function.__module__, function.__name__, arguments)))
        pipe.flush()

    def answer(self, rank: int, until: float) -> tuple[bool, Any]:
        """(whether it returned, what it returned or its error) of the call of a rank; fails at a time."""
        process = self.processes[rank]
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        data = b""
        while True:
            data += process.stdout.read() or b""
            try:
                return pickle.loads(data)
            except (EOFError, pickle.UnpicklingError):
                pass
            if process.poll() is not None and not data:
                return False, f"ended with {process.returncode}"
            if time.monotonic() > until:
                for other in self.processes:
                    other.send_signal(signal.SIGUSR1)
                time.sleep(0.5)
                self.kill()
                raise TimeoutError(f"rank {rank} of {self.world} does not answer")
            time.sleep(0.002)

    def results(self, function: Callable, *arguments: Any, timeout: float = 120.0) -> list[tuple[bool, Any]]:
        """(whether it returned, what it returned or its error) of the call on each rank."""
        for rank in range(self.world):
            self.tell(rank, function, *arguments)
        until = time.monotonic() + timeout
        return [self.answer(rank, until) for rank in range(self.world)]

    def run(self, function: Callable, *arguments: Any, timeout: float = 120.0) -> list[Any]:
        """What the call returned on each rank; fails if it did not."""
        results = self.results(function, *arguments, timeout=timeout)
        assert all(returned for returned, _ in results), [value for returned, value in results if not returned]
        return [value for _, value in results]

    def kill(self) -> None:
        """Ends all processes at once."""
        for process in self.processes:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Lets all processes end; they must do so by themselves, with exit code 0."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait(30) for process in self.processes] == [0] * self.world


_shared: dict[int, Cluster] = {}


def cluster(world: int) -> Cluster:
    """The processes that tests share; started when they are first asked for, or after they were killed."""
    found = _shared.get(world)
    if found is None or any(process.poll() is not None for process in found.processes):
        found = _shared[world] = Cluster(world)
    return found


def close_clusters() -> None:
    """Ends the processes that tests shared."""
    while _shared:
        _shared.popitem()[1].close()
