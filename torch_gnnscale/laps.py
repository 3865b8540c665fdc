"""Sums the time between calls, by what it was spent on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable


class Laps:
    """A clock that one thread reads between the steps of its work: a call costs a tenth of a microsecond.

    Args:
        names: of what time is spent on.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.clock: Callable[[], float] = time.perf_counter
        """What is read, in seconds; ``time.process_time`` in its place counts the CPU time of the process."""
        self.seconds = dict.fromkeys(names, 0.0)
        """The sum so far, by name."""
        self._mark = self.clock()

    def skip(self) -> None:
        """The time since the last call counts for nothing."""
        self._mark = self.clock()

    def lap(self, name: str) -> float:
        """Adds the time since the last call to ``seconds[name]``; returns it."""
        before, self._mark = self._mark, self.clock()
        self.seconds[name] += self._mark - before
        return self._mark - before
