"""The memory pool that outputs on the CPU come from, huge pages and mapped files."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch import Tensor

from .. import machine
from .arguments import OPS, check_int, check_tensor


class PoolStats(NamedTuple):
    """The state of the memory pool, in bytes, and how often a buffer was at hand."""

    idle_bytes: int
    live_bytes: int
    limit_bytes: int
    hits: int
    misses: int


def pool_stats() -> PoolStats:
    """The state of the pool that outputs on the CPU come from.

    The sampler's relabel maps are no part of it: 4 bytes a node of the graph for each call that ran at the same time as
    others, at most 16 of them while idle, which :func:`pool_trim` frees too. Graphs of a billion nodes and more have
    tables of the batch's size instead.
    """
    return PoolStats(*OPS.pool_stats())


def pool_limit(num_bytes: int) -> None:
    """Bounds the bytes that the pool keeps for later use.

    At first it is a quarter of the process's share of the machine's memory: of all of it, or of what the process's
    control groups allow if that is less, divided by LOCAL_WORLD_SIZE.
    """
    OPS.pool_limit(check_int("num_bytes", num_bytes))


pool_limit(machine.memory_limit() // 4)


def pool_trim() -> None:
    """Frees every buffer and relabel map that is not in use."""
    OPS.pool_trim()


def huge_pages(tensor: Tensor) -> None:
    """Moves a contiguous CPU tensor's memory into huge pages where the system can (Linux 6.1 and later).

    Contents and addresses stay. Rows that are read at random then cost fewer walks through the page table; moving takes
    about a second for each GB, once. Where the system cannot, nothing happens.
    """
    check_tensor("tensor", tensor)
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"tensor: expected a contiguous CPU tensor, found {tensor.device}, strides {tensor.stride()}")
    OPS.huge_pages(tensor)


def map_file(path: str | os.PathLike, offset: int = 0, num_bytes: int | None = None) -> Tensor:
    """The bytes of a file as a tensor over its pages, which all processes share: uint8, shape [num_bytes].

    Nothing is read before it is used. What is written to the tensor stays in this process: the file never changes. The
    file may be larger than the memory; it must not be truncated while the tensor lives. No descriptor is kept, and the
    mapping ends with the tensor's memory.

    Args:
        path: an ordinary file.
        offset: where to begin, in bytes.
        num_bytes: how many; by default all to the end.

    Raises:
        OSError: names the file that is missing, cannot be read or cannot be mapped.
        ValueError: the file does not reach that far; names it.
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


def map_shared(descriptor: int, num_bytes: int) -> Tensor:
    """The first bytes of an open file as a tensor that writes to it: uint8, shape [num_bytes].

    Processes that map a memfd so share memory; from 2 MiB on in huge pages, where the system gives them. The mapping
    needs the descriptor no longer, and ends with the tensor's memory.

    Args:
        descriptor: open for reading and writing.
        num_bytes: at least 1.

    Raises:
        OSError: the file cannot be mapped.
        ValueError: it does not reach that far.
    """
    check_int("num_bytes", num_bytes, 1)
    if (size := os.fstat(descriptor).st_size) < num_bytes:
        raise ValueError(f"descriptor: expected a file of at least {num_bytes} bytes, found {size}")
    try:
        return OPS.map_file(descriptor, 0, num_bytes, True)
    except RuntimeError as error:
        reason = str(error).rsplit(": ", 1)[-1]
        raise OSError(f"descriptor: expected a file that can be mapped, found {num_bytes} bytes: {reason}") from None
