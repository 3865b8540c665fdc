"""Operators of a board: memory in which processes of one machine leave numbers for each other, round by round."""

from __future__ import annotations

from torch import Tensor

from .arguments import OPS

BOARD_NUMBERS = 64
"""How many numbers a rank can leave for another one in a round; as in cuda/memory/board.cpp, like the next one."""
_HEAD = 32


def board_size(ranks: int) -> int:
    """How many int64 a board for so many ranks has; all are 0 before the first round."""
    return _HEAD + 2 * ranks * ranks * BOARD_NUMBERS


def board_leave(board: Tensor, sent: Tensor, rank: int, round: int) -> None:
    """Leaves ``sent[i]`` for rank i, and comes to a round.

    Args:
        board: int64, [at least :func:`board_size`], in memory of all ranks.
        sent: int64, contiguous, [ranks, at most :data:`BOARD_NUMBERS`].
        rank: of this process.
        round: 0, 1, ..., each once; a rank begins one when the one before has ended for it.

    Raises:
        RuntimeError: arguments that do not fit the board.
    """
    OPS.board_leave(board, sent, rank, round)


def board_take(board: Tensor, received: Tensor, rank: int, round: int, microseconds: int) -> bool:
    """Waits until all ranks have come to a round to which this one came, and writes to ``received[i]`` what rank i left
    for this rank.

    Args:
        board, rank, round: as of :func:`board_leave`.
        received: like ``sent``.
        microseconds: how long this rank waits.

    Returns:
        Whether it took the numbers. False: before all had come, some rank had waited as long as it was told to. Then
        every rank gets False in this round.

    Raises:
        RuntimeError: arguments that do not fit the board.
    """
    return OPS.board_take(board, received, rank, round, microseconds)
