"""Warnings that point at the user's line."""

from __future__ import annotations

import sys
import warnings


def warn(message: str) -> None:
    """Warns of ``message`` at the innermost line that is outside this package: whoever asked for what it names."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
