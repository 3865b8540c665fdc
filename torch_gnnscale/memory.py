"""Host memory that processes share and GPUs read, large tensors that move into huge pages in the background, and
budgets of memory, in bytes or as shares."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import re
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from . import ops
from ._private import before_threads_end
from ._user import warn
from .machine import available_memory, local_world_size
from .ops.arguments import check_int, check_tensor
from .ops.tiers import MAX_SEGMENTS, MAX_TIERS

__all__ = [
    "Budget", "HostArray", "HostLayout", "HostMemory", "budget_bytes", "format_bytes", "free_on_gpu",
    "is_bytes", "move_to_huge_pages", "peer_budgets", "unreadable_peer",
]  # fmt: skip

ALIGNMENT = 4096
"""The offset of every array is a multiple of it, the size of a page, in bytes."""
_REGISTER = 1 | 2  # cudaHostRegisterPortable, cudaHostRegisterMapped


def memory_file(name: str) -> int:
    """The descriptor of a new, empty file that has no path: a memfd, or where there are none, as on macOS, a temporary
    file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class HostMemory:
    """Memory that processes share: a forked process has it, and others can unpickle it.

    A pickle names the process that made or unpickled the memory; it must still have it open when the pickle is loaded.
    The memory is a memfd: the size of /dev/shm does not bound it, and nothing is left when the processes end, even if
    they are killed. Where the system has no memfds, it is an unnamed temporary file, which other processes cannot
    unpickle. It is freed when every process has closed it and dropped the tensors over it.

    Args:
        num_bytes: its size.
        name: what it holds; errors begin with it.
        hint: what a user can do if there is too little memory; the MemoryError ends with it.
        insist: whether too little available memory is a warning instead of an error, because some machines give more
            memory than they say is available.
        sharers: how many of the LOCAL_WORLD_SIZE processes of this machine are going to share it. The memory may take
            what is available to all of these together.

    Raises:
        MemoryError: less is available (:func:`torch_gnnscale.machine.available_memory`), even after the pool's idle
            buffers were freed, and ``insist`` is False.
    """

    _name = "host"

    def __init__(
        self,
        num_bytes: int,
        name: str = "host",
        hint: str = "less as host= leaves rows to disk=",
        insist: bool = False,
        sharers: int = 1,
    ) -> None:
        self._name = name
        if num_bytes > sharers * available_memory():
            ops.pool_trim()
        if num_bytes > (available := sharers * available_memory()):
            found, ranks, of = f"{available} available", local_world_size(), "each" if sharers == 1 else f"{sharers}"
            found += f" to {of} of LOCAL_WORLD_SIZE={ranks} processes" if ranks > 1 else ""
            found = f"{name}: expected {num_bytes} bytes of memory, found {found}"
            if not insist:
                raise MemoryError(f"{found}; {hint}")
            warn(f"{found}: they are taken, as asked, and the process is killed if the machine does not have them")
        descriptor = memory_file("gnnscale-tiers")
        try:
            os.ftruncate(descriptor, num_bytes)
            self._attach(descriptor, num_bytes)
        except BaseException:
            os.close(descriptor)
            raise

    def _attach(self, descriptor: int, num_bytes: int) -> None:
        self._descriptor, self._owner, self.num_bytes = descriptor, os.getpid(), num_bytes
        self._closing = False
        self._start()
        self._bytes: Tensor | None = ops.map_shared(descriptor, num_bytes)
        _open.add(self)

    def _start(self) -> None:
        """Sets the state of a process that has just mapped the memory or was just forked: no call reads it, and it is
        not registered with CUDA."""
        self._readers, self._idle = 0, threading.Condition()
        self._gpus: set[torch.device] = set()  # that close() waits for
        self._pinned: int | None = None  # the address that is registered with CUDA

    @classmethod
    def _of(cls, owner: int, descriptor: int, identity: tuple[int, int], num_bytes: int) -> HostMemory:
        path = f"/proc/{owner}/fd/{descriptor}"
        try:
            opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise OSError(f"{path}: expected host memory that process {owner} has open: {error}") from None
        found = os.fstat(opened)
        if (found.st_dev, found.st_ino) != identity:
            os.close(opened)
            raise OSError(f"{path}: expected host memory that process {owner} has open, found that it closed it")
        memory = cls.__new__(cls)
        try:
            memory._attach(opened, num_bytes)
        except BaseException:
            os.close(opened)
            raise
        return memory

    def __reduce__(self):
        self._check()
        found = os.fstat(self._descriptor)
        return HostMemory._of, (self._owner, self._descriptor, (found.st_dev, found.st_ino), self.num_bytes)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closing

    def _check(self) -> Tensor:
        if self._closing or self._bytes is None:
            raise ValueError("the store is closed")
        return self._bytes

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A context for calls that read the memory or queue reads on a GPU: :meth:`close` waits until it is left."""
        with self._idle:
            self._check()
            self._readers += 1
        try:
            yield
        finally:
            with self._idle:
                self._readers -= 1
                self._idle.notify_all()

    def tensor(self, array: HostArray) -> Tensor:
        """The array as a tensor. Its pages stay valid as long as it lives, even if the memory is closed."""
        count = math.prod(array.shape) * array.dtype.itemsize
        if count == 0:
            return torch.empty(array.shape, dtype=array.dtype)
        return self._check()[array.offset : array.offset + count].view(array.dtype).view(array.shape)

    def use_huge_pages(self) -> None:
        """Moves the memory into huge pages, for all processes: see :func:`torch_gnnscale.ops.huge_pages`."""
        ops.huge_pages(self._check())

    def close_after(self, gpu: torch.device) -> None:
        """Lets :meth:`close` wait for what this process has queued on a GPU."""
        self._gpus.add(gpu)

    def pin(self, device: torch.device) -> None:
        """Registers the memory with CUDA, so that this process's GPUs can read it; :meth:`close` waits for ``device``.

        Raises:
            OSError: CUDA refuses; gives its reason.
        """
        if self._pinned is not None:
            self.close_after(device)
            return
        address = self._check().data_ptr()
        with torch.cuda.device(device):
            error = torch.cuda.cudart().cudaHostRegister(address, self.num_bytes, _REGISTER)
            if int(error) != 0:
                reason = torch.cuda.cudart().cudaGetErrorString(error)
                with contextlib.suppress(RuntimeError):  # clears the error, which the next launch would report
                    torch.zeros(1, device=device)
                raise OSError(
                    f"{self._name}: expected memory that can be pinned, found {self.num_bytes} bytes: {reason}"
                )
        self._pinned = address
        self.close_after(device)

    def close(self) -> None:
        """Ends the registration with CUDA, and frees the memory once the tensors over it are dropped.

        Waits for the calls of this process that read it, and for the GPUs of :meth:`pin` and :meth:`close_after`.
        """
        with self._idle:
            self._closing = True
            self._idle.wait_for(lambda: self._readers == 0)
            if self._bytes is None:
                return
            try:
                for gpu in self._gpus:
                    torch.cuda.synchronize(gpu)
                if self._pinned is not None:
                    torch.cuda.cudart().cudaHostUnregister(self._pinned)
            finally:
                self._pinned = self._bytes = None
                os.close(self._descriptor)

    def __del__(self) -> None:
        if getattr(self, "_bytes", None) is not None:
            self.close()


_open: weakref.WeakSet[HostMemory] = weakref.WeakSet()


def _forked() -> None:
    for memory in list(_open):
        memory._start()  # a forked process has neither the threads that read nor CUDA


os.register_at_fork(after_in_child=_forked)


def free_on_gpu(gpu: torch.device, wanted: int) -> int:
    """Bytes of a GPU that can still be allocated, including those that torch's allocator keeps idle.

    If less than ``wanted`` is free, Python's garbage is collected first: loaders refer to themselves, so a dropped one
    keeps what it has on the GPU until then.
    """

    def free() -> int:
        return torch.cuda.mem_get_info(gpu)[0] + torch.cuda.memory_reserved(gpu) - torch.cuda.memory_allocated(gpu)

    if free() < wanted:
        gc.collect()
    return free()


class HostArray(NamedTuple):
    """An array in a :class:`HostMemory`."""

    offset: int
    """Where it begins, in bytes from the beginning of the memory."""
    shape: tuple[int, ...]
    dtype: torch.dtype


class HostLayout:
    """Offsets of arrays in one HostMemory of ``num_bytes`` bytes, each array after the one that was added before it."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def add(self, shape: tuple[int, ...], dtype: torch.dtype) -> HostArray:
        """Adds an array at the end."""
        array = HostArray(self.num_bytes, tuple(shape), dtype)
        size = math.prod(shape) * dtype.itemsize
        self.num_bytes += -(-size // ALIGNMENT) * ALIGNMENT
        return array


MOVING = "gnnscale-huge-pages"
"""The name of the threads of :func:`move_to_huge_pages`."""
_SMALLEST = 16 << 20  # bytes of a tensor that is moved
_PIECE = 64 << 20  # bytes that are moved between two looks at whether to stop
_HUGE_PAGE = 2 << 20  # bytes


class _Move(threading.Thread):
    """Moves tensors into huge pages, one piece at a time, until it is done or stopped. It takes no core but its own."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__(name=MOVING, daemon=True)
        self._left = tensors
        self._stopped = threading.Event()

    def run(self) -> None:
        while self._left:
            flat = self._left.pop().detach().view(-1)
            piece, page = (max(size // flat.element_size(), 1) for size in (_PIECE, _HUGE_PAGE))
            for begin in range(0, len(flat), piece):
                if self._stopped.is_set():
                    return
                # And the page that lies across the border.
                ops.huge_pages(flat[begin : begin + piece + page], threads=1)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _stop_moves() -> None:
    for move in list(_moves):
        move.stop()


_moves: weakref.WeakSet[_Move] = weakref.WeakSet()


# Moves stop before Python ends, since a thread that returns from native code after that aborts the process, and before
# a fork, since moving a page that processes share copies it in each of them.
before_threads_end(_stop_moves)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_stop_moves)


def move_to_huge_pages(tensors: Iterable[Tensor]) -> None:
    """Calls :func:`torch_gnnscale.ops.huge_pages` for the large ones of ``tensors``, in a thread of its own.

    Tensors of less than 16 MiB are left out, since the processor caches most of their page table entries; so are those
    that are not contiguous, not on the CPU, or in shared memory. When the process forks or ends, the move ends.
    """
    large = []
    for tensor in tensors:
        check_tensor("tensors", tensor)
        on_cpu = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if on_cpu and tensor.nbytes >= _SMALLEST and tensor.is_contiguous() and not tensor.is_shared():
            large.append(tensor)
    if large:
        move = _Move(large)
        _moves.add(move)
        move.start()


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
