"""Moving large tensors into huge pages in the background."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from .. import ops
from .._private import before_threads_end
from ..ops.arguments import check_tensor

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
