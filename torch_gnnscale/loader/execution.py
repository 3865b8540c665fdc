"""How a loader makes its batches: how many in advance, how many at once, and on which streams of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..stream_time import StreamTime
from .line import Line
from .order import NumberedBatch
from .prefetch import USUAL, PrefetchTrial
from .streams import Streams


class Execution:
    """Runs a loader's line, epoch after epoch.

    Args:
        bulk: how many batches are made at once.
        gpu: the GPU that makes batches or gathers their rows, on streams of its own; None without one.
    """

    def __init__(self, bulk: int, gpu: torch.device | None) -> None:
        self.bulk, self.gpu = bulk, gpu
        self.trial = PrefetchTrial()
        self._streams: list[torch.cuda.Stream] = []  # kept between epochs: torch reuses memory per stream
        self._stall = StreamTime()

    def batches(
        self, line: Line, numbered: Iterator[NumberedBatch], finish: Callable[[Any], Any], prefetch: int | None
    ) -> Iterator[Any]:
        """Iterates over the batches of an epoch, and keeps ``prefetch`` of them in preparation.

        If ``prefetch`` is None, a trial chooses it if threads make batches one by one; otherwise it is USUAL. If
        ``line.may_prefetch`` is False, no batch is made in advance.
        """
        in_bulks = self.bulk > 1 or self.gpu is not None
        tried = prefetch is None and line.may_prefetch and not in_bulks and not line.collective
        ahead = 0 if not line.may_prefetch or tried else USUAL if prefetch is None else prefetch
        if not in_bulks:
            pipeline = line.pipeline(numbered, finish, ahead)
            return self.trial.follow(pipeline) if tried else pipeline
        lists = -(-ahead // self.bulk)
        return line.bulks(numbered, finish, self.bulk, lists, self.streams(lists), self.around)

    def streams(self, ahead: int, one: bool = False) -> Streams | None:
        """Those of one iteration, without a GPU None; arguments as of :class:`Streams`."""
        return None if self.gpu is None else Streams(self.gpu, self._streams, ahead, one)

    def around(self) -> AbstractContextManager:
        """Entered by the consumer's thread during each wait for batches: what :meth:`stall` measures."""
        return nullcontext() if self.gpu is None else self._stall.measure(self.gpu)

    def stall(self) -> dict[str, float]:
        """``{"stall": seconds}``: how long the consumer's stream was idle because batches were not ready; {} without
        a GPU."""
        return {} if self.gpu is None else {"stall": self._stall.seconds()}
