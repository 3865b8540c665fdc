"""A pipeline of threads that prepare items ahead, stage by stage, and deliver them in order; and the default of
``prefetch``: 0 or 4, whichever is faster for the first batches."""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import groupby
from statistics import median
from typing import Any, Literal, NamedTuple, TypeAlias

from .. import machine, ops
from .._private import before_threads_end

_open: weakref.WeakSet[Pipeline] = weakref.WeakSet()


Where: TypeAlias = Literal["parallel", "waiting", "in order"]
"""Which threads run a stage. ``parallel``: as many as cores, for several items at once; ``waiting``: as many as items
are in preparation, because the stage mostly waits; ``in order``: one thread, shared by all such stages, for all items
in their order, as collectives need it."""


class Stage(NamedTuple):
    """One function that is applied to every item."""

    run: Callable[[Any], Any]
    where: Where = "parallel"


class Pipeline:
    """Iterates over ``finish(stages(item))`` in the order of ``items``, with ``prefetch`` items in preparation.

    Parallel stages run in a pool of min(prefetch, cores) threads, each limited to its share of the cores; stages that
    wait, in one of ``prefetch`` threads; stages in order, in one thread more. ``finish`` runs in the thread that
    iterates. With ``prefetch=0`` there are no threads: everything runs in the thread that iterates, which calls
    ``alone(item)`` instead if it is given.

    The threads stop when the iterator ends, is interrupted, closed or dropped, and when the program ends. An error of a
    stage or of ``finish`` is raised in place of the item, with its traceback, and the next items follow, as in torch's
    DataLoader. After an error of ``items`` the iterator ends. In a forked process, which lacks the threads, an
    iterator with threads raises RuntimeError.

    Args:
        begin: called in the thread that iterates with each item, before threads work on it.
        ordered: the one thread that runs the stages in order, also with ``prefetch=0``; it outlives the iterator. By
            default one that the iterator starts.
        alone: what stages and ``finish`` do, for an item that no thread prepares.
    """

    def __init__(
        self, items: Iterator[Any], stages: Sequence[Stage], finish: Callable[[Any], Any], prefetch: int,
        ordered: Executor | None = None, alone: Callable[[Any], Any] | None = None,
        begin: Callable[[Any], Any] = bool,
    ) -> None:  # fmt: skip
        self._pending: deque[Future] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: ThreadPoolExecutor | None = None
        self._given = ordered
        self._ordered = ordered
        self._in_order: deque[Future] = deque()  # of the given thread
        self._process = os.getpid()
        self._items = items
        self._stages = [Stage(in_turn([s.run for s in some]), where) for where, some in groupby(stages, _where)]
        self._begin, self._finish, self._alone = begin, finish, alone
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
            if any(stage.where == "waiting" for stage in self._stages):
                self._waiting = ThreadPoolExecutor(prefetch, "gnnscale-loader-waiting", *limit)
            if self._ordered is None and any(stage.where == "in order" for stage in self._stages):
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
        result: Future = Future()
        try:
            self._begin(item)
        except Exception as error:
            result.set_exception(error)
            return result
        result.set_result(item)
        for number, (run, where) in enumerate(self._stages):
            threads = self._waiting if where == "waiting" else self._threads
            assert threads is not None
            if where == "in order":
                assert self._ordered is not None
                result = self._ordered.submit(_of_result, run, result)
                if self._given is not None:
                    self._in_order.append(result)
                    if len(self._in_order) > self._prefetch + 1:
                        self._in_order.popleft()  # its item was delivered
            elif number == 0:
                result = threads.submit(run, item)
            else:
                result = _then(result, threads, run)
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
            for run, where in self._stages:
                given = self._given if where == "in order" else None
                item = run(item) if given is None else given.submit(run, item).result()
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
        for threads in (self._threads, self._waiting, None if self._given is not None else self._ordered):
            if threads is not None and self._process == os.getpid():
                threads.shutdown(wait=wait, cancel_futures=True)  # type: ignore[call-arg]

    def __del__(self) -> None:
        self.close(wait=False)  # the garbage collector may run in one of the threads


def _where(stage: Stage) -> Where:
    return stage.where


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
before_threads_end(_close_all)


USUAL = 4
"""Batches in preparation, where threads prepare batches."""
WINDOW = 12
"""The least number of batches per window; within a window ``prefetch`` does not change."""
LEAST_SECONDS = 0.02
"""The least seconds of a window's steps. In a shorter window, of tiny batches, one pause of the system would decide."""
TURNS = 6
"""The most windows of a trial; they have prefetch 0 and :data:`USUAL` in turn."""
GAIN = 0.97
"""Preparing ahead is chosen if its time per step < GAIN * (the time without): it costs memory and threads."""
SLOWEST = 1.2
"""The trial ends without preparing ahead after a window with it that takes SLOWEST * (the median of those without)."""


class PrefetchTrial:
    """Times a loader's first steps with prefetch 0 and :data:`USUAL` in turn, then keeps the faster of the two.

    A step is the time from one request for a batch to the next: it includes making or awaiting the batch and what the
    user does with it. Whether threads help depends on what else uses the cores, so it is measured. A trial that
    does not fit into an epoch goes on in the next; a window that an epoch cuts off is repeated. If epochs are shorter
    than a window, whole epochs are windows, with their first steps, in which threads start. Epochs of one batch are not
    timed, because nothing can be prepared ahead.

    The time per step is the mean over a window, since threads deliver batches in bursts. Other work on the machine
    makes some windows slower, never faster, so threads are chosen only if both the median of their windows and the
    fastest of them are better than without threads. One window with threads that is much slower ends the trial without
    them: with tiny batches they may spend most of the time waiting for Python's lock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.choice: int | None = None
        """0 or :data:`USUAL`; None until the trial ends."""
        self._clock = clock
        self._windows: dict[int, list[float]] = {0: [], USUAL: []}
        """The mean time of each window's steps, by prefetch."""
        self._turn = 0
        self._in_turn, self._seconds = 0, 0.0
        """How many steps the window has within the epoch, and the time of those that count."""
        self._in_epoch: list[float] | None = []
        """The times of the epoch's steps; None after a window in it, and after its end."""
        self._in_epochs: list[float] = []
        """The times of the steps of whole epochs since the last window."""

    @property
    def prefetch(self) -> int:
        """The value for the next batch."""
        return (0, USUAL)[self._turn % 2] if self.choice is None else self.choice

    def begin(self) -> None:
        """Called when an epoch begins: repeats a window that was not finished."""
        self._in_turn, self._seconds = 0, 0.0
        self._in_epoch = []

    def step(self, seconds: float) -> None:
        """Called after each step with its duration."""
        if self.choice is not None:
            return
        # The first steps of a window are not representative: batches in preparation are used up, or build up.
        if self._in_turn > USUAL:
            self._seconds += seconds
        self._in_turn += 1
        if self._in_epoch is not None:
            self._in_epoch.append(seconds)
        if self._in_turn >= WINDOW and self._seconds >= LEAST_SECONDS:
            self._end_window(self._seconds / (self._in_turn - USUAL - 1))

    def end(self) -> None:
        """Called when an epoch has delivered all of its batches."""
        if self.choice is not None or self._in_epoch is None or len(self._in_epoch) < 2:
            return
        self._in_epochs += self._in_epoch
        self._in_epoch = None
        if sum(self._in_epochs) >= LEAST_SECONDS:
            self._end_window(sum(self._in_epochs) / len(self._in_epochs))

    def _end_window(self, mean: float) -> None:
        self._windows[self.prefetch].append(mean)
        self._turn += 1
        self._in_turn, self._seconds = 0, 0.0
        self._in_epoch, self._in_epochs = None, []
        ahead, without = self._windows[USUAL], self._windows[0]
        if ahead and max(ahead) >= SLOWEST * median(without):
            self.choice = 0
        elif self._turn == TURNS:
            self.choice = USUAL if all(of(ahead) < GAIN * of(without) for of in (min, median)) else 0

    def follow(self, pipeline: Pipeline) -> Any:
        """Wraps an epoch's pipeline: sets its prefetch and times its steps until the trial ends."""
        self.begin()
        if self.choice is not None:
            pipeline.set_prefetch(self.choice)
            return pipeline
        return _Timed(pipeline, self, self._clock)


class _Timed:
    """A pipeline whose steps are timed for a trial."""

    def __init__(self, pipeline: Pipeline, trial: PrefetchTrial, clock: Callable[[], float]) -> None:
        self._pipeline, self._trial, self._clock = pipeline, trial, clock
        self._asked: float | None = None

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        now = self._clock()
        if self._asked is not None:
            self._trial.step(now - self._asked)
        self._asked = now
        self._pipeline.set_prefetch(self._trial.prefetch)
        try:
            return next(self._pipeline)
        except StopIteration:
            self._trial.end()
            self._asked = None
            raise

    def close(self) -> None:
        """Stops what prepares batches."""
        self._pipeline.close()
