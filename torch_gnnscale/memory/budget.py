"""Amounts of memory: how users give them, how they are printed, and what each GPU of several may hold."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TypeAlias

import torch

from ..ops.arguments import check_int
from ..ops.tiers import MAX_SEGMENTS, MAX_TIERS

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


MAX_PEERS = MAX_SEGMENTS - (MAX_TIERS - 1)
"""The most GPUs over which rows may be interleaved: each is a segment, and so is each of the other tiers."""


def peer_budgets(name: str, peers: Sequence[Budget], whole: int) -> list[int]:
    """The bytes of each peer's budget; ``whole``: see :func:`torch_gnnscale.memory.budget_bytes`.

    Raises:
        TypeError, ValueError: not budgets, not equal, or more than MAX_PEERS; names them ``name``.
    """
    if isinstance(peers, (str, Real)):
        raise TypeError(f"{name}: expected a budget for each GPU, found {peers!r}")
    budgets = [budget_bytes(f"{name}[{i}]", budget, whole) for i, budget in enumerate(peers)]
    if len(set(budgets)) > 1:
        raise ValueError(f"{name}: expected equal budgets, for rows are interleaved, found {list(peers)}")
    if len(budgets) > MAX_PEERS:
        raise ValueError(f"{name}: expected at most {MAX_PEERS} GPUs, found {len(budgets)}")
    return budgets


def unreadable_peer(device: torch.device, count: int) -> int | None:
    """The first of the GPUs 0 .. ``count`` - 1 whose memory the GPU ``device`` cannot read; None if it reads all."""
    for number in range(count):
        if number == device.index:
            continue
        if number >= torch.cuda.device_count() or not torch.cuda.can_device_access_peer(device, number):
            return number
    return None
