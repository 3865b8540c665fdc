"""Code that makes tensors in host memory whatever torch's default device is (``torch.set_default_device``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from ._private import count_function_modes

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
