"""What the end of a program closes: an open process group may abort the end of the interpreter."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol

AT_EXIT = 5.0
"""Seconds for which a rank waits for other ranks when its program ends, or when an error has left the context of its
part. They may be in a loop that this rank has left, or wait for it in another call."""


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
