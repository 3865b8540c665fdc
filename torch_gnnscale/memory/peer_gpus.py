"""The GPUs over which rows or edges are interleaved, and what each of them may hold."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import torch

from ..ops.tiers import MAX_SEGMENTS, MAX_TIERS
from .budget import Budget, budget_bytes

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
