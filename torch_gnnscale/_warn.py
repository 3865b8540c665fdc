"""Warnings whose line is the user's."""

from __future__ import annotations

import sys
import warnings


def warn(message: str) -> None:
    """Warns with ``message``. The line shown is the innermost one of the call stack outside this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
