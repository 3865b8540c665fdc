"""A pipeline of threads that prepare items ahead, stage by stage, and deliver them in order."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

from .. import machine, ops

_open: weakref.WeakSet[Pipeline] = weakref.WeakSet()


class Stage(NamedTuple):
    """One function that is applied to every item."""

    run: Callable[[Any], Any]
    in_order: bool = False
    """True: one thread, shared by all such stages, runs it for all items in their order; collectives need this.
    False: any thread runs it, for several items at once."""


class Pipeline:
    """Iterates over ``finish(stages(item))`` in the order of ``items``, with ``prefetch`` items in preparation.

    Parallel stages run in a pool of min(prefetch, cores) threads, each limited to its share of the cores; stages in
    order run in one thread more. ``finish`` runs in the thread that iterates. With ``prefetch=0`` there are no threads:
    everything runs in the thread that iterates, which calls ``alone(item)`` instead if it is given.

    The threads stop when the iterator ends, is interrupted, closed or dropped, and when the program ends. An error of a
    stage or of ``finish`` is raised in place of the item, with its traceback, and the next items follow, as in torch's
    DataLoader. After an error of ``items`` the iterator ends. In a forked process, which lacks the threads, an
    iterator with threads raises RuntimeError.

    Args:
        ordered: the one thread that runs the stages in order, also with ``prefetch=0``; it outlives the iterator. By
            default one that the iterator starts.
        alone: what stages and ``finish`` do, for an item that no thread prepares.
    """

    def __init__(
        self, items: Iterator[Any], stages: Sequence[Stage], finish: Callable[[Any], Any], prefetch: int,
        ordered: Executor | None = None, alone: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self._pending: deque[Future] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._given = ordered
        self._ordered = ordered
        self._in_order: deque[Future] = deque()  # of the given thread
        self._process = os.getpid()
        self._items = items
        self._stages = [Stage(in_turn([s.run for s in some]), in_order) for in_order, some in groupby(stages, _kind)]
        self._finish, self._alone = finish, alone
        self._prefetch = 0
        self.set_prefetch(prefetch)

    def set_prefetch(self, prefetch: int) -> None:
        """Sets how many items are in preparation from now on; starts threads if there are none yet. No effect without
        stages."""
        self._prefetch = prefetch = prefetch if self._stages else 0
        if prefetch > 0 and self._threads is None:
            cores = machine.cores()
            workers = min(prefetch, cores)
            limit = (ops.limit_threads, (cores // workers,))
            self._threads = ThreadPoolExecutor(workers, "gnnscale-loader", *limit)
            if self._ordered is None and any(stage.in_order for stage in self._stages):
                self._ordered = ThreadPoolExecutor(1, "gnnscale-loader-in-order", *limit)
            _open.add(self)
        self._submit(prefetch)

    def _submit(self, count: int) -> None:
        """Starts items until ``count`` are in preparation."""
        while len(self._pending) < count:
            try:
                item = self._next_item()
            except StopIteration:
                return
            except Exception as error:
                self._pending.append(Future())
                self._pending[-1].set_exception(error)
                return
            self._pending.append(self._started(item))

    def _next_item(self) -> Any:
        """The next item; after an error of ``items`` there are none."""
        try:
            return next(self._items)
        except Exception:
            self._items = iter(())
            raise

    def _started(self, item: Any) -> Future:
        """Starts an item; returns the future of its last stage."""
        assert self._threads is not None
        result: Future = Future()
        result.set_result(item)
        for number, (run, in_order) in enumerate(self._stages):
            if in_order:
                assert self._ordered is not None
                result = self._ordered.submit(_of_result, run, result)
                if self._given is not None:
                    self._in_order.append(result)
                    if len(self._in_order) > self._prefetch + 1:
                        self._in_order.popleft()  # its item was delivered
            elif number == 0:
                result = self._threads.submit(run, item)
            else:
                result = _then(result, self._threads, run)
        return result

    def __iter__(self) -> Pipeline:
        return self

    def __next__(self) -> Any:
        try:
            if self._threads is not None and self._process != os.getpid():
                raise RuntimeError(
                    f"prefetch: expected the iterator in process {self._process}, where its threads are, found a fork "
                    f"of it, process {os.getpid()}: make an iterator there"
                )
            if self._pending:
                self._submit(self._prefetch + 1 if self._prefetch else 0)
                # The future is dropped here, so that the batch is freed as soon as the user drops it.
                return self._finish(self._pending.popleft().result())
            item = self._next_item()
            if self._alone is not None:
                return self._alone(item)
            for run, in_order in self._stages:
                item = self._given.submit(run, item).result() if in_order and self._given is not None else run(item)
            return self._finish(item)
        except BaseException as error:
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                self.close()
            raise

    def close(self, wait: bool = True) -> None:
        """Stops the threads after the items that they are working on; ``wait``: returns only then."""
        self._items = iter(())
        self._pending.clear()
        for future in self._in_order:
            future.cancel()
        self._in_order.clear()
        for threads in (self._threads, None if self._given is not None else self._ordered):
            if threads is not None and self._process == os.getpid():
                threads.shutdown(wait=wait, cancel_futures=True)  # type: ignore[call-arg]

    def __del__(self) -> None:
        self.close(wait=False)  # the garbage collector may run in one of the threads


def _kind(stage: Stage) -> bool:
    return stage.in_order


def in_turn(runs: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """The composition of functions; the first is applied first. Without functions, the identity."""
    if len(runs) == 1:
        return runs[0]

    def run(item: Any) -> Any:
        for stage in runs:
            item = stage(item)
        return item

    return run


def _of_result(run: Callable[[Any], Any], before: Future) -> Any:
    return run(before.result())


def _then(before: Future, threads: ThreadPoolExecutor, run: Callable[[Any], Any]) -> Future:
    """The future of ``run(before.result())``, run in ``threads`` once ``before`` is done; no thread waits for it."""
    after: Future = Future()

    def copy(done: Future) -> None:
        if done.cancelled():
            after.cancel()
        elif (error := done.exception()) is not None:
            after.set_exception(error)
        else:
            after.set_result(done.result())

    def start(done: Future) -> None:
        if done.cancelled() or done.exception() is not None:
            copy(done)
            return
        try:
            threads.submit(run, done.result()).add_done_callback(copy)
        except RuntimeError as closed:  # the threads were stopped meanwhile
            after.set_exception(closed)

    before.add_done_callback(start)
    return after


def _close_all() -> None:
    for pipeline in list(_open):
        pipeline.close(wait=False)


# At exit, concurrent.futures waits until its threads have finished all queued work. Functions registered later run
# first, so _close_all cancels that work before the wait. Functions of atexit would run only after it.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
