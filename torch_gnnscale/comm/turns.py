"""The order in which ranks write and read shared buffers, where the work that a rank queues is done later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from typing_extensions import override

from .exchange import keep_for_ever

BUFFERS = 2
"""Of each rank; they take turns."""


class PeerEvents(ABC):
    """Events of the ranks that share memory: points in what a rank has queued, for which others wait."""

    @abstractmethod
    def handles(self) -> Any:
        """What other processes need to open this rank's events; pickle takes it."""

    @abstractmethod
    def open(self, rank: int, handles: Any) -> None:
        """Opens the events of another rank."""

    @abstractmethod
    def record(self, event: int) -> None:
        """This rank's event becomes the point after all that it has queued so far."""

    @abstractmethod
    def wait(self, rank: int, event: int) -> None:
        """What this rank queues from now on is done after the point that another rank's event is now."""


class Turns:
    """When each rank may write its buffers and read those of the others. In a turn, each rank writes rows for the
    others into one of its two buffers, meets them, and reads theirs. Turn s uses buffer s mod 2:

    1. A rank records that it has read what it wanted of turn s - 1.
    2. It waits until all others have read what it wrote in turn s - 2, and writes; it records that it has written.
    3. All ranks meet: a rank goes on when all others have come, whatever is still queued.
    4. It waits until those that it reads have written, and reads, until its next turn begins.

    An event that a rank waits for was recorded before the last meeting, and is recorded again after the next one at the
    earliest. So it is the same point for all ranks, whichever is faster.

    Args:
        events: 2 * BUFFERS of each rank, those of the other ranks open.
        rank, ranks: the number of this one, and how many there are.
    """

    def __init__(self, events: PeerEvents, rank: int, ranks: int) -> None:
        self._events = events
        self._others = [other for other in range(ranks) if other != rank]

    def begin(self, turn: int) -> None:
        """Begins a turn, whose buffer this rank may then write (steps 1 and 2)."""
        if turn >= 1:
            self._events.record(BUFFERS + (turn - 1) % BUFFERS)
        if turn >= BUFFERS:
            for other in self._others:
                self._events.wait(other, BUFFERS + turn % BUFFERS)

    def written(self, turn: int) -> None:
        """Called when this rank has queued all that it writes, before it meets the others (step 2)."""
        self._events.record(turn % BUFFERS)

    def read(self, turn: int, senders: Iterable[int]) -> None:
        """Called after the ranks have met, before this one reads what ``senders`` wrote (step 4)."""
        for sender in senders:
            self._events.wait(sender, turn % BUFFERS)


class GPUEvents(PeerEvents):
    """Of ranks on GPUs: events of CUDA that other processes open. The host waits for none of them.

    Args:
        device: the GPU of this rank. Points are those of its current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = [torch.cuda.Event(interprocess=True) for _ in range(2 * BUFFERS)]
        self._of: dict[int, list[torch.cuda.Event]] = {}

    @override
    def handles(self) -> list[bytes]:
        keep_for_ever(self._own)  # when this rank has ended, another one may be about to wait for them
        with torch.cuda.device(self._device):
            return [event.ipc_handle() for event in self._own]

    @override
    def open(self, rank: int, handles: list[bytes]) -> None:
        self._of[rank] = [torch.cuda.Event.from_ipc_handle(self._device, handle) for handle in handles]

    @override
    def record(self, event: int) -> None:
        self._own[event].record(torch.cuda.current_stream(self._device))

    @override
    def wait(self, rank: int, event: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._of[rank][event])
