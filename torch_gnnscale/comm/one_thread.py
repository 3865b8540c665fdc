"""A thread that runs calls one after another, such as collectives in the order that all ranks have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any

CLOSED = "expected the stores of an open part, found that it was closed"
"""The error of a call that is submitted after the end."""


class OneThread(Executor):
    """Runs calls one after another on a thread of its own.

    An iterator that is dropped submits its last call from ``__del__``, which may run anywhere: also within
    ThreadPoolExecutor.submit, which holds a lock that all pools share. This executor takes no lock.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future, Callable[[], Any]] | None] = SimpleQueue()  # its put is reentrant
        self._ended = False
        self.thread = threading.Thread(target=_run, args=(self._calls,), name=name, daemon=True)
        """The thread."""
        self.thread.start()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """A future of the call; after :meth:`shutdown`, one with a RuntimeError."""
        future: Future = Future()
        if self._ended:
            future.set_exception(RuntimeError(CLOSED))
        else:
            self._calls.put((future, partial(function, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the thread after the calls so far."""
        assert not cancel_futures, "not implemented"
        self.end(None if wait else 0.0)

    def end(self, timeout: float | None) -> bool:
        """Ends the thread after the calls so far. Waits for that at most ``timeout`` seconds, and returns whether it
        has ended. With ``timeout=0`` this does not wait, so that any thread may call it."""
        if not self._ended:
            self._ended = True
            self._calls.put(None)
        if timeout != 0.0:
            self.thread.join(timeout)
        return not self.thread.is_alive()


def _run(calls: SimpleQueue) -> None:
    while (entry := calls.get()) is not None:
        future, call = entry
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del future, call, entry  # else this thread would keep what they refer to until the next call
