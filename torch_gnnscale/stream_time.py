"""How long a GPU's streams took over something, known without a wait of the host."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class StreamTime:
    """Sums the time between pairs of events on GPUs' streams; any thread may measure."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._milliseconds = 0.0

    def __reduce__(self):
        return StreamTime, ()  # what a process measures is its own

    @contextmanager
    def measure(self, device: torch.device) -> Iterator[None]:
        """Counts what is queued inside on the thread's current stream, from one end of it to the other."""
        stream = torch.cuda.current_stream(device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        yield
        end.record(stream)
        with self._lock:
            self._pending.append((begin, end))
        self.seconds()  # so that few are pending

    def seconds(self, wait: bool = False) -> float:
        """The sum over what the GPUs have done; ``wait``: over all that was queued, which is waited for."""
        with self._lock:
            while self._pending and (wait or self._pending[0][1].query()):
                begin, end = self._pending.popleft()
                if wait:
                    end.synchronize()
                self._milliseconds += begin.elapsed_time(end)
            return self._milliseconds / 1e3
