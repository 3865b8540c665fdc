"""What is the user's while our code runs: the line that a warning shows, torch's default device
(``torch.set_default_device``), and the tables of text that they read."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from ._private import count_function_modes

_LIBRARIES = {__package__, "torch", "torch_geometric"}


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns with ``message``. The line shown is the innermost one of the call stack that is the user's: outside of this
    package, torch and PyG."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


P = ParamSpec("P")
T = TypeVar("T")


class _Users(threading.local):
    device: torch.device | None = None
    """The default device outside the functions that this thread is in, where that is not the CPU."""


_users = _Users()


def on_host(function: Callable[P, T]) -> Callable[P, T]:
    """The function, in which the CPU is torch's default device."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # A default device is a mode of the thread: without modes, there is none to ask for, which takes 3 microseconds.
        if not count_function_modes() or (device := torch.get_default_device()).type == "cpu":
            return function(*args, **kwargs)
        before, _users.device = _users.device, device
        try:
            with torch.device("cpu"):
                return function(*args, **kwargs)
        finally:
            _users.device = before

    return call


def users_device() -> torch.device | None:
    """The user's default device in :func:`as_user`; None: the CPU, or what torch says."""
    return _users.device


@contextmanager
def of_user(device: torch.device | None) -> Iterator[None]:
    """A context in which :func:`as_user` takes this default device: in another thread, that of the thread for which it
    works."""
    before, _users.device = _users.device, device
    try:
        yield
    finally:
        _users.device = before


def as_user(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function of the user's, in which torch's default device is the user's."""
    if _users.device is None:
        return function(*args, **kwargs)
    with torch.device(_users.device):
        return function(*args, **kwargs)


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, one for each of ``lines``, whose cells are aligned on the right. All have as many cells."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
