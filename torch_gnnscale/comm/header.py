"""By what ranks agree: headers of steps, a number for the type and width of rows, values that all must have alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..random import digest

COMPLETED = -1
"""In place of the batch after which a rank left an iteration: it left it after the last step."""


class Status(IntEnum):
    """What a rank says in a header."""

    GO = 0
    FAIL = 1
    STOP = 2


class Header(NamedTuple):
    """What one rank says. All ranks have the same but for ``status`` and ``number``."""

    status: int
    number: int
    """The number of the rank's batch."""
    iteration: int
    """The number of the iteration over the loader."""
    epoch: int
    first: int
    """The epoch's batch at which the iteration began."""
    step: int
    """The number of the step in the iteration, from 0."""
    left: int
    """The batch after which the rank left the iteration before, or ``COMPLETED``."""
    fingerprint: int
    """A hash of what decides the batches of the iteration: seed, inputs, options, partition book, versions."""


_ALIKE = {
    "iteration": "iteration",
    "epoch": "epoch",
    "first": "first batch",
    "step": "step",
    "left": "batch after which they left the last iteration (-1: all)",
}
"""Fields that all ranks must have alike, and what they are called in errors."""


def fingerprint_of(values: Mapping[str, Any]) -> int:
    """A hash of plain values by name, in 64 bits with a sign."""
    found = digest(repr(sorted(values.items())).encode())
    return found - (1 << 64) if found >> 63 else found


def check_positions(headers: Sequence[Header], expected: Sequence[int]) -> None:
    """Raises ValueError, equal on all ranks, unless the ranks are at the same step and make the batches of these
    numbers."""
    for field, name in _ALIKE.items():
        values = [getattr(header, field) for header in headers]
        if any(value != values[0] for value in values):
            raise ValueError(f"loader: expected all ranks at the same {name}, found {values}")
    numbers = [header.number for header in headers]
    if numbers != list(expected):
        raise ValueError(f"loader: expected the ranks to make batches {expected}, found {numbers}; iterate "
                         f"over a loader once at a time")  # fmt: skip


DTYPES = tuple(sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str))
"""All dtypes of torch, in the same order on all ranks."""


def kind_of(rows: Tensor | None) -> int:
    """A number for the type and the width of a tensor's rows; -1 if ``rows`` is not a tensor that has rows."""
    if not isinstance(rows, Tensor) or rows.dim() == 0:
        return -1
    return rows.shape[1:].numel() * len(DTYPES) + DTYPES.index(rows.dtype)


def kind_text(kind: int) -> str:
    """What a number of :func:`kind_of` means, in words."""
    if kind < 0:
        return "none"
    width, dtype = divmod(kind, len(DTYPES))
    return f"rows of {width} {dtype_text(dtype)}"


def check_kinds(purpose: str, kinds: Sequence[int]) -> None:
    """Raises ValueError unless all ranks exchange rows of one type and width; ``kinds``: what :func:`kind_of` said."""
    for rank, other in enumerate(kinds):
        if other != kinds[0]:
            raise ValueError(
                f"split: {purpose}: expected the same on all ranks, found {kind_text(kinds[0])} and on rank {rank} "
                f"{kind_text(other)}"
            )


def dtype_text(number: int) -> str:
    """The name of a type by its number in ``DTYPES``."""
    return str(DTYPES[number]).removeprefix("torch.")


def check_alike(of_ranks: Sequence[Mapping[str, Any]], ranks: str = "all ranks") -> None:
    """Raises ValueError, equal on all ranks, if the ranks have other values of a name. ``ranks``: which these are."""
    for name in dict.fromkeys(name for found in of_ranks for name in found):  # in one order on all ranks
        values = [found.get(name) for found in of_ranks]
        if any(value != values[0] for value in values):
            raise ValueError(f"{name}: expected the same on {ranks}, found {values}")
