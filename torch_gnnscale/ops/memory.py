"""The memory pool that outputs on the CPU come from, huge pages and mapped files."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import OPS, check_int, check_tensor

MOVING = "gnnscale-huge-pages"
"""The name of the threads of :func:`move_to_huge_pages`."""
_HUGE_FROM = 16 << 20  # bytes


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

    At first it is a quarter of the machine's memory, or of what the process's control groups allow if that is less.
    """
    OPS.pool_limit(check_int("num_bytes", num_bytes))


def _memory_groups(root: Path) -> Iterator[tuple[int, Path, bool]]:
    """The limit in bytes, the folder and whether it is of version 2, of each of the process's control groups, and of
    those above them, that has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        below = Path(group.strip("/"))
        for part in (below, *below.parents):  # in a container only the last, its root, may be there
            folder = root / "sys/fs/cgroup" / base / part
            try:
                yield int((folder / name).read_text()), folder, not controllers
            except (OSError, ValueError):  # not there, or "max"
                continue


def allowed_memory(root: Path = Path("/")) -> int | None:
    """The least memory in bytes that the process's control groups and those above them allow, of version 1 or 2; None
    where nothing is known of them."""
    return min((limit for limit, _, _ in _memory_groups(root)), default=None)


def spare_memory(root: Path = Path("/")) -> int | None:
    """What is left of it: without what the groups use, but for pages of files that nobody has used lately."""
    spare = []
    for limit, folder, second in _memory_groups(root):
        usage, inactive = ("memory.current", "inactive_file") if second else (
            "memory.usage_in_bytes", "total_inactive_file")  # fmt: skip
        try:
            used = int((folder / usage).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            spare.append(max(limit - used + int(stat[inactive]), 0))
        except (OSError, ValueError, KeyError):
            spare.append(limit)
    return min(spare, default=None)


if (_allowed := allowed_memory()) is not None:
    pool_limit(min(pool_stats().limit_bytes, _allowed // 4))


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


class _Move(threading.Thread):
    """Moves tensors into huge pages, piece by piece, until all are or it is stopped."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__(name=MOVING, daemon=True)
        self._left = tensors
        self._stopped = threading.Event()

    def run(self) -> None:
        while self._left:
            flat = self._left.pop().detach().view(-1)
            piece, page = (max(size // flat.element_size(), 1) for size in (_PIECE, 2 << 20))
            for begin in range(0, len(flat), piece):
                if self._stopped.is_set():
                    return
                OPS.huge_pages(flat[begin : begin + piece + page])  # the page on the border, too

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _stop_moves() -> None:
    for move in list(_moves):
        move.stop()


_PIECE = 64 << 20  # bytes between two looks at whether to stop
_moves: weakref.WeakSet[_Move] = weakref.WeakSet()
# A thread that comes back from native code while Python ends aborts the process, and pages that a fork shares would be
# copied in each of the processes.
threading._register_atexit(_stop_moves)  # type: ignore[attr-defined]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_stop_moves)


def move_to_huge_pages(tensors: Iterable[Tensor]) -> None:
    """:func:`huge_pages` of the large ones among the tensors, in a thread beside the caller's.

    Left out are those of less than 16 MiB, of which the processor keeps most page table entries, those that are not
    contiguous or not on the CPU, and shared memory. What is not moved when the process forks stays where it is.
    """
    large = []
    for tensor in tensors:
        check_tensor("tensors", tensor)
        on_cpu = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if on_cpu and tensor.nbytes >= _HUGE_FROM and tensor.is_contiguous() and not tensor.is_shared():
            large.append(tensor)
    if large:
        move = _Move(large)
        _moves.add(move)
        move.start()


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
