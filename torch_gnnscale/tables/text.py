"""Text as numbers, by a function of the user."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from .schema import Column

Encode: TypeAlias = Callable[..., np.ndarray]
"""Makes float32 of shape [n, d] of n strings and, where it is known, d."""


def encoder(path: str, column: Column) -> Encode:
    """The function that a column of text names, with checks of what it returns.

    Args:
        path: what errors call the table.
        column: one of kind ``text``.

    Raises:
        ValueError: there is no such function.
    """
    assert column.encoder is not None
    at = f"{path}.columns.{column.name}.encoder"
    module, _, function = column.encoder.partition(":")
    try:
        called: Any = importlib.import_module(module)
        for part in function.split("."):
            called = getattr(called, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{at}: expected {column.encoder} to be there, found {error}") from error

    def encode(texts: list[str], width: int | None = None) -> np.ndarray:
        rows = np.asarray(called(texts), dtype=np.float32)
        if rows.ndim != 2 or len(rows) != len(texts) or (width is not None and rows.shape[1] != width):
            expected = f"[{len(texts)}, {'d' if width is None else width}]"
            raise ValueError(f"{at}: expected an array of shape {expected}, found {list(rows.shape)}")
        if not np.isfinite(rows).all():
            row = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise ValueError(f"{at}: expected finite numbers, found others for {texts[row]!r}")
        return rows

    return encode
