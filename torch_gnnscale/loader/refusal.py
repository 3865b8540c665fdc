"""What one rank refuses before the ranks make a loader, or something else, together: the others learn of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from .._warn import warn
from ..feature.contract import RowStore
from .split import Split

Init = TypeVar("Init", bound=Callable[..., None])
WARNS_AFTER = 2.0
"""Seconds after which a rank that waits to tell the others of its error says so."""


def told_to_all(init: Init) -> Init:
    """Of a loader's ``__init__``: an error of this rank, before the ranks meet, is raised on all ranks at once. It is
    raised here as it is, when the others have come to make theirs; they raise a ValueError that names this rank."""

    @wraps(init)
    def made(self: Any, data: Any, *arguments: Any, **options: Any) -> None:
        try:
            init(self, data, *arguments, **options)
        except Exception as error:
            sharing = self.__dict__.get("_sharing")
            if sharing is None or not sharing.has_met:
                _tell(data, options, f"{type(error).__name__}: {error}")
            raise

    return cast(Init, made)


@contextmanager
def waiting_to_tell(lacks: str, others: str, why: str) -> Iterator[None]:
    """A context in which this rank, which ``lacks`` something, waits until the others come to ``others``, to tell them
    why; a warning says so if that takes long."""
    text = f"this rank {lacks}, and waits for the other ranks, which come to {others}, to tell them: {why}"
    waiting = threading.Timer(WARNS_AFTER, warn, [text])
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()


def _tell(data: Any, options: dict[str, Any], why: str) -> None:
    split = options.get("split")
    with waiting_to_tell("makes no loader", "make theirs", why):
        if isinstance(split, Split):
            split.refuse(data, options.get("timeout"), why)
        elif isinstance(data, (tuple, list)) and data and isinstance(data[0], RowStore):
            data[0].refuse(why)
