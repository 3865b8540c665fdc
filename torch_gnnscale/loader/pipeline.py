"""Batches prepared ahead by threads, delivered in order."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .. import ops

_open: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pipeline:
    """Iterates over ``finish(prepare(item))`` for each of ``items``, with ``prefetch`` items in preparation.

    ``prepare`` runs in threads of the pipeline's own, one an item and at most one a core, which share the cores out;
    ``finish`` runs in the thread that iterates, in order. With ``prefetch=0`` there are no threads. The threads stop
    when the iterator ends, is interrupted, closed or dropped, and when the program ends. An error of ``prepare`` or
    ``finish`` is raised where the item would have come, with its traceback, and the next items follow, as in torch's
    own DataLoader; behind an error of ``items`` there are none.
    """

    def __init__(
        self, items: Iterator[Any], prepare: Callable[[Any], Any], finish: Callable[[Any], Any], prefetch: int
    ) -> None:
        self._items = items
        self._prepare = prepare
        self._finish = finish
        self._pending: deque[Future] = deque()
        self._threads: ThreadPoolExecutor | None = None
        if prefetch > 0:
            cores = _cores()
            workers = min(prefetch, cores)
            self._threads = ThreadPoolExecutor(workers, "gnnscale-loader", ops.limit_threads, (cores // workers,))
            _open.add(self)
            for _ in range(prefetch):
                self._submit()

    def _submit(self) -> None:
        assert self._threads is not None
        try:
            self._pending.append(self._threads.submit(self._prepare, next(self._items)))
        except StopIteration:
            pass
        except Exception as error:
            self._pending.append(Future())
            self._pending[-1].set_exception(error)
            self._items = iter(())

    def __iter__(self) -> Pipeline:
        return self

    def __next__(self) -> Any:
        try:
            if self._threads is None:
                return self._finish(self._prepare(next(self._items)))
            if not self._pending:
                raise StopIteration
            self._submit()
            # A finished future is dropped with its result, so that the batch lives as long as the user holds it.
            return self._finish(self._pending.popleft().result())
        except BaseException as error:
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                self.close()
            raise

    def close(self, wait: bool = True) -> None:
        """Stops the threads; those at work finish the item at hand, and are waited for if asked."""
        self._items = iter(())
        self._pending.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=wait, cancel_futures=True)

    def __del__(self) -> None:
        self.close(wait=False)  # the garbage collector may run in one of the threads


def _close_all() -> None:
    for pipeline in list(_open):
        pipeline.close(wait=False)


# A pool of threads finishes what is queued before the program ends, unless it is told before. Of these functions the
# latest is called first; those of atexit would come too late.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
