"""Ctrl-C in a program that trains: it ends after the current batch, and at the second time at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

CODE = 130
"""The exit code of an interrupted program."""
_AFTER_THIS = b"\ngnnscale: ends after this batch (a second Ctrl-C: at once)\n"
_AT_ONCE = b"\ngnnscale: interrupted\n"


class Interrupts:
    """A context in which interrupts (SIGINT) of this process are noted.

    The first raises KeyboardInterrupt, except in :meth:`deferred`, where it is raised by :meth:`check` or at the end.
    The second ends the process with code 130. Whatever error ends the context after an interrupt, it is a
    KeyboardInterrupt: one in a callback of a library may have become another, or none.

    In other threads than the main one, which get no signals, and in processes that are forked, it does nothing.
    """

    def __init__(self) -> None:
        self.noted = False
        """Whether there was an interrupt."""
        self._deferred = False
        self._process = os.getpid()
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self.noted and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error

    def _note(self, _: int, __: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # a worker process, which the loader ends
        if self.noted:
            with suppress(Exception):
                sys.stdout.flush()
            os.write(2, _AT_ONCE)
            os._exit(CODE)
        self.noted = True
        if not self._deferred:
            raise KeyboardInterrupt
        os.write(2, _AFTER_THIS)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A context in which the first interrupt is raised by :meth:`check`, or at the end."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt if there was an interrupt. Called between batches."""
        if self.noted:
            raise KeyboardInterrupt
