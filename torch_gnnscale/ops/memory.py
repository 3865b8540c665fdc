"""The memory pool that outputs on the CPU come from, and huge pages."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .arguments import OPS, check_int, check_tensor


class PoolStats(NamedTuple):
    """The state of the memory pool, in bytes, and how often a buffer was at hand."""

    idle_bytes: int
    live_bytes: int
    limit_bytes: int
    hits: int
    misses: int


def pool_stats() -> PoolStats:
    """The state of the pool that outputs on the CPU come from."""
    return PoolStats(*OPS.pool_stats())


def pool_limit(num_bytes: int) -> None:
    """Bounds the bytes that the pool keeps for later use (a quarter of the machine's memory at first)."""
    OPS.pool_limit(check_int("num_bytes", num_bytes))


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
