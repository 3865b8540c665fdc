"""Whether batches are prepared ahead, unless the user says: what the first batches show to be faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from .pipeline import Pipeline

USUAL = 4
"""Batches in preparation, where there are any."""
WINDOW = 12
"""Batches that are timed one way before the other way is."""
TURNS = 4
"""Windows, every other one with batches in preparation."""
GAIN = 0.97
"""Preparing ahead takes memory and threads, so its steps must be this much shorter."""


class PrefetchTrial:
    """Times a loader's first steps in turn without and with batches in preparation, and then keeps the faster way.

    A step is the time from one request for a batch to the next: making the batch, or waiting for it, and what the user
    does with it. Whether threads help depends on what else runs on the cores, which nothing but a trial tells. An epoch
    that is too short for the trial is followed by the next; loaders of few batches so start no threads.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.choice: int | None = None
        """0 or :data:`USUAL`, once it is known."""
        self._clock = clock
        self._steps: dict[int, list[float]] = {0: [], USUAL: []}
        self._turn, self._in_turn = 0, 0

    @property
    def prefetch(self) -> int:
        """For the next batch."""
        return (0, USUAL)[self._turn % 2] if self.choice is None else self.choice

    def begin(self) -> None:
        """An epoch begins: the window that was not finished is timed anew."""
        self._in_turn = 0

    def step(self, seconds: float) -> None:
        """A step took so long."""
        if self.choice is not None:
            return
        # The first steps of a window still have, or do not have yet, the batches of the other way.
        if self._in_turn > USUAL:
            self._steps[self.prefetch].append(seconds)
        self._in_turn += 1
        if self._in_turn == WINDOW:
            self._turn, self._in_turn = self._turn + 1, 0
        if self._turn == TURNS:
            without, ahead = (median(self._steps[prefetch]) for prefetch in (0, USUAL))
            self.choice = USUAL if ahead < GAIN * without else 0

    def follow(self, pipeline: Pipeline) -> Any:
        """The pipeline, with as many batches in preparation as the trial says."""
        self.begin()
        if self.choice is not None:
            pipeline.set_prefetch(self.choice)
            return pipeline
        return _Timed(pipeline, self, self._clock)


class _Timed:
    """A pipeline whose steps are timed."""

    def __init__(self, pipeline: Pipeline, trial: PrefetchTrial, clock: Callable[[], float]) -> None:
        self._pipeline, self._trial, self._clock = pipeline, trial, clock
        self._asked: float | None = None

    def __iter__(self) -> _Timed:
        return self

    def __next__(self) -> Any:
        now = self._clock()
        if self._asked is not None:
            self._trial.step(now - self._asked)
        self._asked = now
        self._pipeline.set_prefetch(self._trial.prefetch)
        return next(self._pipeline)

    def close(self) -> None:
        """Stops what prepares batches."""
        self._pipeline.close()
