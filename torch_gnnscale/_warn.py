"""Warnings whose line is the user's."""

from __future__ import annotations

import sys
import warnings

_LIBRARIES = {__package__, "torch", "torch_geometric"}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns with ``message``. The line shown is the innermost one of the call stack that is the user's: outside of this
    package, torch and PyG."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
