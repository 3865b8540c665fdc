"""Amounts of memory: how users give them, and how they are printed."""

from __future__ import annotations

import math
import re
from numbers import Integral, Real
from typing import TypeAlias

from ..ops.arguments import check_int

_UNITS = {f"{p}{s}": b**i for i, p in enumerate("KMGT", 1) for s, b in (("B", 1000), ("iB", 1024))} | {"B": 1}

Budget: TypeAlias = int | float | str
"""A bound on memory: bytes, as an int or a string such as "8GiB"; or a share of a whole, as a float or "25%"."""


def budget_bytes(name: str, budget: Budget, whole: int) -> int:
    """A budget in bytes; a share is a share of ``whole`` bytes.

    Raises:
        TypeError, ValueError: not a budget; names it ``name``.
    """
    if isinstance(budget, bool) or not isinstance(budget, (Real, str)):
        raise TypeError(f"{name}: expected bytes, a share or a string such as '8GiB', found {type(budget).__name__}")
    if isinstance(budget, Integral):
        return check_int(name, budget)  # type: ignore[arg-type]
    if isinstance(budget, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B|%)", budget.strip())
        if match is None:
            raise ValueError(f"{name}: expected a number and a unit such as '8GiB', '500MB' or '25%', found {budget!r}")
        if match[2] != "%":
            return int(float(match[1]) * _UNITS[match[2]])
        share = float(match[1]) / 100
    else:
        share = float(budget)
    if not 0 <= share <= 1:
        raise ValueError(f"{name}: expected a share of 0 to 1, found {budget!r}")
    return int(share * whole)


def is_bytes(budget: Budget) -> bool:
    """Whether a valid budget is in bytes, and not a share."""
    return isinstance(budget, Integral) or (isinstance(budget, str) and not budget.strip().endswith("%"))


def format_bytes(count: int) -> str:
    """A number of bytes as text: ``512 B``, ``1.5 GiB``."""
    power = min(4, max(0, int(math.log2(count) // 10))) if count else 0
    return f"{count} B" if power == 0 else f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"
