"""The default of ``prefetch``: 0 or 4, whichever is faster for the first batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from .pipeline import Pipeline

USUAL = 4
"""Batches in preparation, where threads prepare batches."""
WINDOW = 12
"""The least number of batches per window; within a window ``prefetch`` does not change."""
LEAST_SECONDS = 0.02
"""The least seconds of a window's steps. In a shorter window, of tiny batches, one pause of the system would decide."""
TURNS = 6
"""The most windows of a trial; they have prefetch 0 and :data:`USUAL` in turn."""
GAIN = 0.97
"""Preparing ahead is chosen if its time per step < GAIN * (the time without): it costs memory and threads."""
SLOWEST = 1.2
"""The trial ends without preparing ahead after a window with it that takes SLOWEST * (the median of those without)."""


class PrefetchTrial:
    """Times a loader's first steps with prefetch 0 and :data:`USUAL` in turn, then keeps the faster of the two.

    A step is the time from one request for a batch to the next: it includes making or awaiting the batch and what the
    user does with it. Whether threads help depends on what else uses the cores, so it is measured. A trial that
    does not fit into an epoch goes on in the next; a window that an epoch cuts off is repeated. If epochs are shorter
    than a window, whole epochs are windows, with their first steps, in which threads start. Epochs of one batch are not
    timed, because nothing can be prepared ahead.

    The time per step is the mean over a window, since threads deliver batches in bursts. Other work on the machine
    makes some windows slower, never faster, so threads are chosen only if both the median of their windows and the
    fastest of them are better than without threads. One window with threads that is much slower ends the trial without
    them: with tiny batches they may spend most of the time waiting for Python's lock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.choice: int | None = None
        """0 or :data:`USUAL`; None until the trial ends."""
        self._clock = clock
        self._windows: dict[int, list[float]] = {0: [], USUAL: []}
        """The mean time of each window's steps, by prefetch."""
        self._turn = 0
        self._in_turn, self._seconds = 0, 0.0
        """How many steps the window has within the epoch, and the time of those that count."""
        self._in_epoch: list[float] | None = []
        """The times of the epoch's steps; None after a window in it, and after its end."""
        self._in_epochs: list[float] = []
        """The times of the steps of whole epochs since the last window."""

    @property
    def prefetch(self) -> int:
        """The value for the next batch."""
        return (0, USUAL)[self._turn % 2] if self.choice is None else self.choice

    def begin(self) -> None:
        """Called when an epoch begins: repeats a window that was not finished."""
        self._in_turn, self._seconds = 0, 0.0
        self._in_epoch = []

    def step(self, seconds: float) -> None:
        """Called after each step with its duration."""
        if self.choice is not None:
            return
        # The first steps of a window are not representative: batches in preparation are used up, or build up.
        if self._in_turn > USUAL:
            self._seconds += seconds
        self._in_turn += 1
        if self._in_epoch is not None:
            self._in_epoch.append(seconds)
        if self._in_turn >= WINDOW and self._seconds >= LEAST_SECONDS:
            self._end_window(self._seconds / (self._in_turn - USUAL - 1))

    def end(self) -> None:
        """Called when an epoch has delivered all of its batches."""
        if self.choice is not None or self._in_epoch is None or len(self._in_epoch) < 2:
            return
        self._in_epochs += self._in_epoch
        self._in_epoch = None
        if sum(self._in_epochs) >= LEAST_SECONDS:
            self._end_window(sum(self._in_epochs) / len(self._in_epochs))

    def _end_window(self, mean: float) -> None:
        self._windows[self.prefetch].append(mean)
        self._turn += 1
        self._in_turn, self._seconds = 0, 0.0
        self._in_epoch, self._in_epochs = None, []
        ahead, without = self._windows[USUAL], self._windows[0]
        if ahead and max(ahead) >= SLOWEST * median(without):
            self.choice = 0
        elif self._turn == TURNS:
            self.choice = USUAL if all(of(ahead) < GAIN * of(without) for of in (min, median)) else 0

    def follow(self, pipeline: Pipeline) -> Any:
        """Wraps an epoch's pipeline: sets its prefetch and times its steps until the trial ends."""
        self.begin()
        if self.choice is not None:
            pipeline.set_prefetch(self.choice)
            return pipeline
        return _Timed(pipeline, self, self._clock)


class _Timed:
    """A pipeline whose steps are timed for a trial."""

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
        try:
            return next(self._pipeline)
        except StopIteration:
            self._trial.end()
            self._asked = None
            raise

    def close(self) -> None:
        """Stops what prepares batches."""
        self._pipeline.close()
