"""The pool that gives outputs on the CPU their memory, huge pages, mapped files, and boards: memory in
which processes of one machine leave numbers for each other, round by round."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch import Tensor

from .. import machine
from .arguments import OPS, check_int, check_tensor, resolve_threads


class PoolStats(NamedTuple):
    """The state of the pool."""

    idle_bytes: int
    """Bytes of buffers that are kept for later outputs."""
    live_bytes: int
    """Bytes of buffers that are in use."""
    limit_bytes: int
    """The most that ``idle_bytes`` may be."""
    hits: int
    """How often an idle buffer was used again."""
    misses: int
    """How often memory was asked of the system."""


def pool_stats() -> PoolStats:
    """The state of the pool that gives outputs on the CPU their memory.

    It does not count the relabel maps of samplers, 4 bytes per node of the graph. There is one for each of the calls
    that ran at the same time, and at most 16 are kept idle; :func:`pool_trim` frees those as well. Graphs of a billion
    nodes and more have no such map, but tables of the batch's size, which are counted.
    """
    return PoolStats(*OPS.pool_stats())


def pool_limit(num_bytes: int) -> None:
    """Bounds the bytes that the pool keeps for later outputs.

    Until this is called the bound is a quarter of :func:`torch_gnnscale.machine.memory_limit`.
    """
    OPS.pool_limit(check_int("num_bytes", num_bytes))


pool_limit(machine.memory_limit() // 4)


def pool_trim() -> None:
    """Frees every buffer and relabel map that is not in use."""
    OPS.pool_trim()


def empty_bytes(count: int) -> Tensor:
    """Recycled memory for what others write: uint8, shape [count], with any contents."""
    return OPS.empty_bytes(check_int("count", count))


def empty_rows(count: int, like: Tensor) -> Tensor:
    """[count, ...] with any contents, of the type of ``like`` and its width; on the CPU in recycled memory."""
    shape = torch.Size((count, *like.shape[1:]))
    if like.device.type != "cpu":
        return like.new_empty(shape)
    return OPS.empty_bytes(shape.numel() * like.element_size()).view(like.dtype).view(shape)


def huge_pages(tensor: Tensor, threads: int = 0) -> None:
    """Moves the memory of a contiguous CPU tensor into huge pages, if the system can (Linux 6.1 and later).

    Contents and addresses stay the same. Rows that are read at random then cost fewer walks through the page table. One
    thread moves a GB in about a second. If the system cannot move a page, or refuses, the page stays as it is.

    Args:
        tensor: what is moved.
        threads: see the package.

    Raises:
        TypeError, ValueError: not a contiguous CPU tensor, or fewer than 0 threads.
    """
    check_tensor("tensor", tensor)
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"tensor: expected a contiguous CPU tensor, found {tensor.device}, strides {tensor.stride()}")
    OPS.huge_pages(tensor, resolve_threads(threads))


def map_file(path: str | os.PathLike, offset: int = 0, num_bytes: int | None = None) -> Tensor:
    """A range of a file's bytes as a tensor over the pages of the file: uint8, shape [num_bytes].

    Pages are read when they are used, and shared by all processes that map the file. Writing to the tensor changes
    this process's copy of a page, never the file. The file may be larger than the memory. It must not be truncated as
    long as the tensor is used. No descriptor stays open; the mapping ends when torch frees the tensor's storage.

    Args:
        path: an ordinary file.
        offset: the first byte.
        num_bytes: the number of bytes; by default all up to the end of the file.

    Raises:
        OSError: the file is missing, cannot be read or cannot be mapped; names it.
        ValueError: the file ends before the range does; names it.
    """
    check_int("offset", offset)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        num_bytes = max(size - offset, 0) if num_bytes is None else check_int("num_bytes", num_bytes)
        if offset + num_bytes > size:
            raise ValueError(f"{path}: expected at least {offset + num_bytes} bytes, found {size}")
        if num_bytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        try:
            return OPS.map_file(file.fileno(), offset, num_bytes, False)
        except RuntimeError as error:
            reason = str(error).rsplit(": ", 1)[-1]
            raise OSError(f"{path}: expected a file that can be mapped, found {num_bytes} bytes: {reason}") from None


def release_pages(tensor: Tensor) -> None:
    """Takes the pages of mapped files that lie under a tensor out of this process's resident memory.

    They stay in the system's cache of files, and come back when they are used. Pages that are no file's, or that this
    process has written, stay as they are, and so do all where the system does not tell which (Linux tells). No other
    thread may write to the tensor meanwhile.

    Args:
        tensor: on the CPU, of any shape and strides.

    Raises:
        TypeError, ValueError: not a CPU tensor.
    """
    check_tensor("tensor", tensor)
    if tensor.device.type != "cpu":
        raise ValueError(f"tensor: expected a CPU tensor, found {tensor.device}")
    OPS.release_pages(tensor)


def map_shared(descriptor: int, num_bytes: int) -> Tensor:
    """The first bytes of an open file as a tensor; writing to it changes the file: uint8, shape [num_bytes].

    Processes that map the same memfd share its memory. From 2 MiB on it lies in huge pages, if the system gives them to
    files in memory. The descriptor may be closed afterwards; the mapping ends when torch frees the tensor's storage.

    Args:
        descriptor: open for reading and writing.
        num_bytes: at least 1.

    Raises:
        OSError: the file cannot be mapped.
        ValueError: the file has fewer bytes.
    """
    check_int("num_bytes", num_bytes, 1)
    if (size := os.fstat(descriptor).st_size) < num_bytes:
        raise ValueError(f"descriptor: expected a file of at least {num_bytes} bytes, found {size}")
    try:
        return OPS.map_file(descriptor, 0, num_bytes, True)
    except RuntimeError as error:
        reason = str(error).rsplit(": ", 1)[-1]
        raise OSError(f"descriptor: expected a file that can be mapped, found {num_bytes} bytes: {reason}") from None


BOARD_NUMBERS = 64
"""How many numbers a rank can leave for another one in a round; as in cuda/memory/board.cpp, like the next one."""
_HEAD = 32


def board_size(ranks: int) -> int:
    """How many int64 a board for so many ranks has; all are 0 before the first round."""
    return _HEAD + 2 * ranks * ranks * BOARD_NUMBERS


board_leave = OPS.board_leave.default
"""Leaves ``sent[i]`` for rank i, and comes to a round: ``board_leave(board, sent, rank, round)``. Called as it is,
because ranks wait for it.

Args:
    board: int64, [at least :func:`board_size`], in memory of all ranks.
    sent: int64, contiguous, [ranks, at most :data:`BOARD_NUMBERS`].
    rank: of this process.
    round: 0, 1, ..., each once; a rank begins one when the one before has ended for it.

Raises:
    RuntimeError: arguments that do not fit the board.
"""
board_take = OPS.board_take.default
"""Waits until all ranks have come to a round to which this one came, and writes to ``received[i]`` what rank i left for
this rank: ``board_take(board, received, rank, round, microseconds)``.

Args:
    board, rank, round: as of :data:`board_leave`.
    received: like ``sent``.
    microseconds: how long this rank waits.

Returns:
    Whether it took the numbers. False: before all had come, some rank had waited as long as it was told to. Then every
    rank gets False in this round.

Raises:
    RuntimeError: arguments that do not fit the board.
"""
