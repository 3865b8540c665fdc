"""What the end of a program closes: a group that is still there when the interpreter ends may abort it."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol

AT_EXIT = 5.0
"""Seconds for which a rank waits for others when its program ends, or an error has left its part's context: for ranks
that have not left a loop, which may be waiting for this one elsewhere, and for threads that ask ranks."""


class _Closed(Protocol):
    def close(self, timeout: float | None) -> None: ...


_open: weakref.WeakKeyDictionary[_Closed, None] = weakref.WeakKeyDictionary()


def close_at_exit(entry: _Closed) -> None:
    """Has the end of the program call ``entry.close(AT_EXIT)``, if it is still there; those registered last first."""
    _open[entry] = None


@atexit.register
def _close_all() -> None:
    for entry in reversed(list(_open)):
        entry.close(AT_EXIT)
