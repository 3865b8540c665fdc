"""Numbers that ranks of one machine exchange in memory that they share."""

from __future__ import annotations

import pickle

import torch
from torch import Tensor

from .. import ops
from ..memory import HostArray, HostMemory

_PATIENCE = 20_000
"""Microseconds for which a rank waits before a round takes place in the group, where a rank that is gone is found
out. A round there takes about one millisecond longer, because the backend's threads take part in it."""


class Board:
    """All-to-alls of a few numbers between ranks of one machine, without a message.

    Args:
        memory: of all ranks, 0 at first; closed here, because the board holds its pages.
        ranks: how many share it.
        rank: the number of this process among them.
    """

    most = ops.BOARD_NUMBERS
    """How many numbers a rank sends to another one at most."""

    def __init__(self, memory: HostMemory, ranks: int, rank: int) -> None:
        self._memory, self._rank = memory.tensor(HostArray(0, (ops.board_size(ranks),), torch.int64)), rank
        self._round = -1
        memory.close()

    def leave(self, sent: Tensor) -> None:
        """Begins a round. ``sent[i]``: the numbers for rank i; int64, contiguous, [ranks, n], n at most ``most``."""
        self._round += 1
        ops.board_leave(self._memory, sent, self._rank, self._round)

    def take(self, received: Tensor) -> bool:
        """Ends the round: writes what rank i left to ``received[i]``, like ``sent``. False on all ranks if one of them
        waited too long for the others: the round is to take place in the group."""
        return ops.board_take(self._memory, received, self._rank, self._round, _PATIENCE)


def board_memory(ranks: int) -> HostMemory | None:
    """Memory for the board of so many ranks; None if there is none."""
    try:
        return HostMemory(8 * ops.board_size(ranks), "board")
    except (MemoryError, OSError, RuntimeError):
        return None


def opened(handle: bytes) -> HostMemory | None:
    """The memory that another rank pickled; None if this process cannot open it."""
    try:
        return pickle.loads(handle)
    except (MemoryError, OSError, RuntimeError):
        return None
