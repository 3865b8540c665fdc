"""What one rank refuses while it makes a loader that all ranks make together: the others learn of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from ..feature.contract import RowStore
from .split import Split

Init = TypeVar("Init", bound=Callable[..., None])


def told_to_all(init: Init) -> Init:
    """Of a loader's ``__init__``: an error of this rank, before the ranks meet, is raised on all ranks at once. It is
    raised here as it is; the others raise a ValueError that names this rank."""

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


def _tell(data: Any, options: dict[str, Any], why: str) -> None:
    split = options.get("split")
    if isinstance(split, Split):
        split.refuse(data, options.get("timeout"), why)
    elif isinstance(data, (tuple, list)) and data and isinstance(data[0], RowStore):
        data[0].refuse(why)
