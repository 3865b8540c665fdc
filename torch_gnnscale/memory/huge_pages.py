"""Large tensors are moved into huge pages in the background."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from .. import ops
from ..ops.arguments import check_tensor

MOVING = "gnnscale-huge-pages"
"""The name of the threads of :func:`move_to_huge_pages`."""
_SMALLEST = 16 << 20  # bytes of a tensor that is moved
_PIECE = 64 << 20  # bytes that are moved between two looks at whether to stop
_HUGE_PAGE = 2 << 20  # bytes


class _Move(threading.Thread):
    """Moves tensors into huge pages, piece by piece, until all are or it is stopped."""

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
                ops.huge_pages(flat[begin : begin + piece + page])  # the page on the border, too

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _stop_moves() -> None:
    for move in list(_moves):
        move.stop()


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
        if on_cpu and tensor.nbytes >= _SMALLEST and tensor.is_contiguous() and not tensor.is_shared():
            large.append(tensor)
    if large:
        move = _Move(large)
        _moves.add(move)
        move.start()
