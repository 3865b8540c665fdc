"""Memory of a rank into which the other ranks of its machine write what it asked them for."""

from __future__ import annotations

import weakref

from torch import Tensor

from .exchange import Exchange, OtherRankFailed
from .peer_memory import PeerMemories, PeerMemory

_PAGE = 4096
"""Sizes are multiples of it."""
_LEAST = 1 << 20
"""Bytes of the smallest memory."""


class ReplyMemories:
    """Several memories of each rank, which all ranks have open: one for each exchange whose replies are still read.

    Args:
        exchange: between ranks of one machine.
        shared: how they share memory.
    """

    def __init__(self, exchange: Exchange, shared: PeerMemories) -> None:
        self._exchange, self._shared = exchange, shared
        self._of: list[dict[int, PeerMemory]] = [{} for _ in range(exchange.size)]  # of each rank, by number
        self._count = 0  # numbers of this rank's
        self._idle: set[int] = set()  # those that nobody reads or writes; one that was dropped has no memory

    def take(self, num_bytes: int) -> tuple[int, bool]:
        """(The number of a memory of this rank with at least so many bytes, which is idle no more; whether it is new,
        and all ranks are to call :meth:`share`.)"""
        own = self._of[self._exchange.rank]
        idle = tuple(self._idle)
        fitting = [number for number in idle if number in own and len(own[number].bytes) >= num_bytes]
        if fitting:
            number = min(fitting, key=lambda of: len(own[of].bytes))
            self._idle.discard(number)
            return number, False
        made = self._shared.allocated(_PAGE * -(-max(num_bytes * 5 // 4, _LEAST) // _PAGE))
        if idle:
            self.drop(number := idle[0])
            self._idle.discard(number)
        else:
            number = self._count
            self._count += 1
        own[number] = made
        return number, True

    def drop(self, number: int) -> None:
        """Closes a memory of this rank; its number is idle."""
        if (memory := self._of[self._exchange.rank].pop(number, None)) is not None:
            memory.close()
        self._idle.add(number)

    def give_back(self, number: int) -> None:
        """A memory of this rank is idle again; any thread may call it."""
        self._idle.add(number)

    def bytes_of(self, rank: int, number: int) -> Tensor:
        """The bytes of a memory of a rank: uint8."""
        return self._of[rank][number].bytes

    def held(self, number: int, begin: int, end: int) -> Tensor:
        """Some bytes of a memory of this rank, which is idle again when the tensor is gone; views do not count."""
        found = self.bytes_of(self._exchange.rank, number)[begin:end]
        weakref.finalize(found, self.give_back, number).atexit = False
        return found

    def share(self, new: int | None) -> None:
        """All ranks call it when one of them has a new memory: the others open it in place of the one with its number.

        Args:
            new: the number of this rank's; None if it has none.

        Raises:
            Exception: this rank cannot open one; none of the new ones is kept, on any rank.
            OtherRankFailed: another rank cannot.
        """
        rank, error = self._exchange.rank, None
        with self._exchange.awaited():
            handle = None if new is None else (new, self._of[rank][new].handle())
        given = self._exchange.objects(handle)
        for other, entry in enumerate(given):
            if entry is None or other == rank:
                continue
            number, of_rank = entry
            if number in self._of[other]:
                self._of[other].pop(number).close()
            try:
                self._of[other][number] = self._shared.opened(of_rank)
            except Exception as failed:  # of a kind that only the system knows
                error = failed
        why = self._exchange.reasons(error)
        if not any(why):
            return
        for memories, entry in zip(self._of, given, strict=True):
            if entry is not None and entry[0] in memories and memories is not self._of[rank]:
                memories.pop(entry[0]).close()
        if new is not None:
            self.drop(new)
        if error is not None:
            raise error
        failed_rank = next(other for other, text in enumerate(why) if text)
        raise OtherRankFailed(
            f"rows: expected memory that all ranks can open, found that part {failed_rank}'s cannot: {why[failed_rank]}"
        )

    def close(self) -> None:
        """Closes all memory: what other ranks allocated first."""
        own = self._of[self._exchange.rank]
        for memories in [*(of for of in self._of if of is not own), own]:
            while memories:
                memories.popitem()[1].close()
        self._idle.clear()
