"""Processes of one process group over loopback, started once and used by many tests."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from helpers.forked import FORKED
from torch import distributed as dist


def serve(rank: int, world: int, calls: Connection) -> None:
    """Joins the group and runs the calls that come, until there are no more. Rank 0 keeps the store and sends its port,
    which the others get."""
    gc.freeze()  # what was imported is no garbage, and half a million objects to look at
    faulthandler.register(signal.SIGUSR1)  # where it waits
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    port, limit = 0 if rank == 0 else calls.recv(), timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0, limit, wait_for_workers=False)
    if rank == 0:
        calls.send(store.port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    while True:
        try:
            module, name, arguments = pickle.loads(calls.recv_bytes())
        except EOFError:
            break
        try:
            answer = True, getattr(importlib.import_module(module), name)(*arguments)
        except BaseException as error:
            answer = False, f"{type(error).__name__}: {error}"
        ends = not answer[0] and not cuda_goes_on()
        calls.send_bytes(pickle.dumps((*answer, ends)))  # send() would leave tensors in memory that both share
        if ends:
            os._exit(0)  # the end of the interpreter would ask CUDA to free memory
    dist.barrier()
    dist.destroy_process_group()


def cuda_goes_on() -> bool:
    """Whether this process may use CUDA still, or has not done so: after some errors, every call of CUDA fails."""
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
    return True


class Cluster:
    """``world`` processes of one Gloo group, each of which runs what it is told."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.processes = []
        self.calls: list[Connection] = []
        for rank in range(world):
            ours, theirs = multiprocessing.Pipe()
            process = FORKED.Process(target=serve, args=(rank, world, theirs), daemon=True)
            process.start()
            theirs.close()  # so that the end of the process ends the pipe
            self.processes.append(process)
            self.calls.append(ours)
        port = self.calls[0].recv()
        for calls in self.calls[1:]:
            calls.send(port)

    def tell(self, rank: int, function: Callable, *arguments: Any) -> None:
        """Makes a rank call a function of a module that it can import."""
        self.calls[rank].send_bytes(pickle.dumps((function.__module__, function.__name__, arguments)))

    def answer(self, rank: int, until: float) -> tuple[bool, Any]:
        """(whether it returned, what it returned or its error) of the call of a rank; fails at a time. A rank to which
        CUDA is lost has ended."""
        if not self.calls[rank].poll(max(0.0, until - time.monotonic())):
            for number in range(self.world):
                self.send_signal(number, signal.SIGUSR1)
            time.sleep(0.5)
            self.kill()
            raise TimeoutError(f"rank {rank} of {self.world} does not answer")
        try:
            returned, value, ends = pickle.loads(self.calls[rank].recv_bytes())
        except (EOFError, ConnectionResetError):
            self.processes[rank].join()
            return False, f"ended with {self.processes[rank].exitcode}"
        if ends:
            self.processes[rank].join()
        return returned, value

    def send_signal(self, rank: int, number: signal.Signals) -> None:
        """Sends a signal to a rank."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

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
            process.join()

    def close(self) -> None:
        """Lets all processes end; they must do so by themselves, with exit code 0."""
        for calls in self.calls:
            calls.close()
        for process in self.processes:
            process.join(30)
        assert [process.exitcode for process in self.processes] == [0] * self.world


def answers_without_one(
    world: int, number: signal.Signals, first: tuple[Any, ...], call: tuple[Any, ...], seconds: float
) -> list[tuple[bool, Any]]:
    """The answers of all ranks but rank 1, which gets a signal while they run; then all are killed.

    Args:
        world: how many new ranks there are.
        number: of the signal.
        first: a function and its arguments, called before: by then all have started.
        call: a function and its arguments.
        seconds: after the beginning of that call, the signal is sent.
    """
    ranks = Cluster(world)
    try:
        ranks.run(*first)
        for rank in range(world):
            ranks.tell(rank, *call)
        time.sleep(seconds)
        ranks.send_signal(1, number)
        return [ranks.answer(rank, time.monotonic() + 90) for rank in range(world) if rank != 1]
    finally:
        ranks.kill()


_shared: dict[int, Cluster] = {}


def cluster(world: int) -> Cluster:
    """The processes that tests share; started when they are first asked for, or after they were killed."""
    found = _shared.get(world)
    if found is None or not all(process.is_alive() for process in found.processes):
        found = _shared[world] = Cluster(world)
    return found


def close_clusters() -> None:
    """Ends the processes that tests shared."""
    while _shared:
        _shared.popitem()[1].close()
