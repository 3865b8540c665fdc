"""Sums the time between calls, by what it was spent on, and between events on CUDA streams, without blocking the
host."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch


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


class StreamTime:
    """Sums the time between pairs of events on CUDA streams. Several threads may measure at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event, float]] = deque()
        self._milliseconds = 0.0

    def __reduce__(self):
        return StreamTime, ()  # unpickled in another process, it begins at 0

    def measure(self, device: torch.device) -> AbstractContextManager[None]:
        """Adds the time from the begin to the end of the work that is queued inside on the thread's current stream."""
        return measured([(self, 1.0)], device)

    def seconds(self, wait: bool = False) -> float:
        """Seconds, summed over the measurements whose work is finished; ``wait``: first waits for all of it."""
        with self._lock:
            while self._pending and (wait or self._pending[0][1].query()):
                begin, end, share = self._pending.popleft()
                if wait:
                    end.synchronize()
                self._milliseconds += share * begin.elapsed_time(end)
            return self._milliseconds / 1e3

    def _add(self, begin: torch.cuda.Event, end: torch.cuda.Event, share: float) -> None:
        with self._lock:
            self._pending.append((begin, end, share))
        self.seconds()  # sums what is finished, so that few pairs stay pending


@contextmanager
def measured(shares: Sequence[tuple[StreamTime, float]], device: torch.device) -> Iterator[None]:
    """Adds to each sum its share of the time from the begin to the end of the work that is queued inside on the
    thread's current stream."""
    stream = torch.cuda.current_stream(device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(stream)
    yield
    end.record(stream)
    for time_of, share in shares:
        time_of._add(begin, end, share)
