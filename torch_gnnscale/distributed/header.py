"""The header of a step: numbers that each rank sends to all others, by which they agree to take the step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

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
    text = repr(sorted(values.items())).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


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
