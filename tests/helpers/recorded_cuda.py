"""What would be asked of CUDA, in order, where there is no GPU to ask. Nothing is run: what a GPU does with it, tests
with the mark ``cuda`` say."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch


class Event:
    """Recorded on a stream; ``done`` and ``at`` are set by tests."""

    def __init__(self, log: list, name: str) -> None:
        self.log, self.name, self.done, self.at = log, name, False, 0.0

    def record(self, stream) -> None:
        self.log.append(f"{stream.name} records {self.name}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")

    def query(self) -> bool:
        return self.done

    def elapsed_time(self, later: "Event") -> float:
        return later.at - self.at


class Recorded:
    """Stands for ``torch.cuda``; ``log`` is what was asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.events: list[Event] = []
        self.streams = 0
        self.consumer = self.make_stream("consumer")
        self._own = threading.local()
        self.refusal = 0  # what registering host memory returns
        runtime = SimpleNamespace(
            cudaHostRegister=self._register,
            cudaHostUnregister=lambda address: self.log.append("unregisters"),
            cudaGetErrorString=lambda error: f"error {error}",
        )
        for name, value in {
            "Event": lambda **options: self.make_event(),
            "Stream": lambda device: self.make_stream(),
            "current_stream": lambda device=None: self.current,
            "stream": self.within,
            "device": lambda device: self.within(self.current),
            "synchronize": lambda device: self.log.append(f"host waits for {device}"),
            "cudart": lambda: runtime,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def _register(self, address: int, num_bytes: int, flags: int) -> int:
        self.log.append(f"registers {num_bytes} bytes, flags {flags}")
        return self.refusal

    def make_event(self) -> Event:
        self.events.append(Event(self.log, f"event {len(self.events)}"))
        return self.events[-1]

    def make_stream(self, name: str | None = None) -> SimpleNamespace:
        if name is None:
            self.streams += 1
        stream = SimpleNamespace(name=name or f"stream {self.streams}")

        def record_event() -> Event:
            event = self.make_event()
            event.record(stream)
            return event

        stream.record_event = record_event
        stream.wait_event = lambda event: self.log.append(f"{stream.name} waits for {event.name}")
        return stream

    @property
    def current(self) -> SimpleNamespace:
        """The stream of the calling thread."""
        return getattr(self._own, "stream", self.consumer)

    @contextmanager
    def within(self, stream):
        before, self._own.stream = self.current, stream
        yield
        self._own.stream = before

    def taken(self) -> list[str]:
        """What was asked since the last call."""
        found = self.log[:]
        self.log.clear()
        return found
