"""Rows that ranks of one machine read in each other's memory."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import machine
from ..distributed.exchange import Elsewhere, Exchange
from ..memory import HostMemory
from .connection import ENDED
from .kinds import kind_of, kind_text
from .transport import Moves, Transport, empty_rows

_LEAST = 1 << 20
"""Bytes of each of the first buffers."""
_PAGE = 4096
"""Sizes of buffers are multiples of it."""
_PLACE = 8
"""Bytes of the place of a row."""
_HINT = "make batches smaller"
_WROTE, _GREW, _FAILED = range(3)
"""What a rank says at the barrier: it wrote its rows; it did, into new memory; it could not."""


class _Offered(NamedTuple):
    """The rows that a rank wrote for another one."""

    memory: HostMemory
    turn: int
    """Which of its two buffers they are in."""
    begin: int
    """The byte where they begin or, if rows are listed, the list of their places."""
    listed: int
    """How many rows the rank wrote for several ones, each of which has a list; 0: it wrote rows for this one alone."""


class Peers(Transport):
    """Each rank writes what others need into one of its two buffers, and after a barrier they read it there.

    A rank comes to the barrier of a swap when it has read what it needed of the swap before; so a buffer that is
    written again has been read by all. The barrier carries where each reader's rows begin, or the list of them.

    Args:
        exchange: between the ranks over which batches are cut, all of one machine.
        memories: of all ranks, in their order; each is two buffers of the same size.
        tells: whether a rank that cannot write its rows comes to the barrier, says so, and raises afterwards, when the
            others raise :class:`Elsewhere`; all can then go on. Else it raises at once, and the others wait.
    """

    def __init__(self, exchange: Exchange, memories: list[HostMemory], tells: bool = False) -> None:
        super().__init__(exchange)
        self._memories, self._tells = memories, tells
        self._turn = 0

    @classmethod
    def connect(cls, exchange: Exchange, tells: bool = False) -> Peers | None:
        """The transport, if all ranks are on one machine, and every rank can read the memory of every other; all ranks
        call it together."""
        if exchange.size == 1 or len(set(exchange.objects(machine.identity()))) > 1:
            return None
        memories, given = [], b""
        with suppress(OSError, MemoryError):
            memories.append(HostMemory(2 * _LEAST, "split", _HINT))
            memories[0]._check()[:1] = exchange.place % 251
            given = pickle.dumps(memories[0])
        for place, pickled in enumerate(exchange.objects(given)):
            with suppress(OSError, EOFError, MemoryError):  # the end of what was pickled, b"": that rank has none
                if place != exchange.place:
                    memories.append(pickle.loads(pickled))
        places = [int(memory._check()[0]) for memory in memories]
        expected = [exchange.place, *(place for place in range(exchange.size) if place != exchange.place)]
        if all(exchange.objects(places == [place % 251 for place in expected])):
            memories.insert(exchange.place, memories.pop(0))
            return cls(exchange, memories, tells)
        for memory in memories:
            memory.close()
        return None

    def pull(self, own: Tensor, moves: Moves, purpose: str, out: Tensor) -> None:
        """See :class:`Transport`."""
        width = own.shape[1:].numel() * own.element_size()
        with self._counted(purpose, width * sum(moves.num_sent), width * len(out)):
            for part, offered in zip(out.split(moves.num_received), self._offered(own, moves, purpose), strict=True):
                _take_rows(part, offered)

    def rows(self, own: Tensor, moves: Moves, purpose: str) -> Tensor:
        """See :class:`Transport`: if they come from one rank, which writes them for this one alone, where it did."""
        senders = [place for place, count in enumerate(moves.num_received) if count]
        if len(senders) != 1:
            out = empty_rows(sum(moves.num_received), own)
            self.pull(own, moves, purpose, out)
            return out
        total, width = sum(moves.num_received), own.shape[1:].numel() * own.element_size()
        with self._counted(purpose, width * sum(moves.num_sent), width * total):
            offered = self._offered(own, moves, purpose)[senders[0]]
            if offered.listed == 0:
                return _rows_at(offered.memory, offered.turn, offered.begin, total, own)
            out = empty_rows(total, own)
            _take_rows(out, offered)
            return out

    def _offered(self, own: Tensor, moves: Moves, purpose: str) -> list[_Offered]:
        """Writes the rows that others read, each once, however many ranks read it; where several do, after the rows
        comes, for each reader, the list of places that it reads. Returns where each rank's rows for this one are."""
        with self.exchange.awaited():
            rows, places = moves.once(len(own))
            width = own.shape[1:].numel() * own.element_size()
            listed = -(-width * len(rows) // _PLACE) * _PLACE
            num_bytes = listed + (0 if places is None else _PLACE * len(places))
            begin, step = (0, width) if places is None else (listed, _PLACE)
            begins = [begin + step * count for count in accumulate(moves.num_sent, initial=0)]
            told = [[at, 0 if places is None else len(rows)] for at in begins[:-1]]

        def write(memory: HostMemory, turn: int) -> None:
            torch.index_select(own, 0, rows, out=_rows_at(memory, turn, 0, len(rows), own))
            if places is not None:
                _rows_at(memory, turn, listed, len(places), places).copy_(places)

        return [_Offered(*entry) for entry in self._met(own, num_bytes, write, told, purpose)]

    def swap(self, rows: Tensor, num_sent: list[int], num_received: list[int], purpose: str) -> list[Tensor]:
        """See :class:`Transport`; the rows are those of the peers' buffers."""
        width = rows.shape[1:].numel() * rows.element_size()
        total = width * len(rows)
        told = [[width * count] for count in list(accumulate(num_sent, initial=0))[:-1]]

        def write(memory: HostMemory, turn: int) -> None:
            _rows_at(memory, turn, 0, len(rows), rows).copy_(rows)

        with self._counted(purpose, total, width * sum(num_received)):
            met = self._met(rows, total, write, told, purpose)
            return [
                _rows_at(memory, turn, at, count, rows)
                for (memory, turn, at), count in zip(met, num_received, strict=True)
            ]

    def _met(
        self, rows: Tensor, num_bytes: int, write: Callable[[HostMemory, int], None], told: list[list[int]],
        purpose: str,
    ) -> list[tuple[Any, ...]]:  # fmt: skip
        """Writes into this rank's next buffer, and meets the others. Returns the memory of each rank, which of its
        buffers was written, and what it told this one.

        Args:
            rows: of the type and width that all ranks exchange.
            num_bytes: how many are written at most.
            write: into a buffer, the first or the second of a memory.
            told: numbers for each rank; equally many on all.
            purpose: what the exchange is counted as.

        Raises:
            ValueError: on all ranks, if one of them has rows of another type or width.
            Elsewhere: another rank could not write its rows, and tells.
        """
        exchange, turn = self.exchange, self._turn % 2
        self._turn += 1
        made, error = None, None
        try:
            made = self._written(num_bytes, write, turn)
        except Exception as failed:
            if not self._tells:
                raise
            error = failed
        kind, status = kind_of(rows), _FAILED if error is not None else _WROTE if made is None else _GREW
        heard = exchange.numbers(torch.tensor([[*values, kind, status] for values in told]), purpose).tolist()
        said = [values[-1] for values in heard]
        if _GREW in said:
            try:
                self._take(made, exchange.objects(made))
            except Exception:  # memory of another rank cannot be opened: what is known of it is old
                self.close()
                raise
        if error is not None:
            raise error
        if _FAILED in said:
            part = said.index(_FAILED)
            raise Elsewhere(f"{purpose}: expected those of part {part}, found that its rank could not write them")
        for rank, (*_, other, _) in enumerate(heard):
            if other != heard[0][-2]:
                raise ValueError(
                    f"split: {purpose}: expected the same on all ranks, found {kind_text(heard[0][-2])} and on rank "
                    f"{rank} {kind_text(other)}"
                )
        return [(memory, turn, *values[:-2]) for memory, values in zip(self._memories, heard, strict=True)]

    def _written(self, num_bytes: int, write: Callable[[HostMemory, int], None], turn: int) -> HostMemory | None:
        """Writes into this rank's next buffer, or, if it is too small, into that of new memory, which is returned."""
        if not self._memories:
            raise RuntimeError(f"split: {ENDED}")
        made, known = None, self._memories[self.exchange.place]
        if num_bytes > known.num_bytes // 2:
            made = HostMemory(2 * _PAGE * -(-num_bytes * 5 // (4 * _PAGE)), "split", _HINT)
        write(made or known, turn)
        return made

    def _take(self, made: HostMemory | None, given: list[HostMemory | None]) -> None:
        """Takes new memory, this rank's, ``made``, and that of others, in the place of what they had; called when all
        ranks have come to a barrier after the last that had still to open the old."""
        if not self._memories:
            return
        place = self.exchange.place
        if made is not None:
            self._memories[place].close()
            given = [*given[:place], made, *given[place + 1 :]]
        self._memories = [new or known for known, new in zip(self._memories, given, strict=True)]

    @contextmanager
    def _counted(self, purpose: str, sent: int, received: int) -> Iterator[None]:
        traffic, begin = self.exchange.traffic[purpose], time.perf_counter()
        before = traffic.seconds
        yield
        traffic.rounds += 1
        traffic.bytes_sent += sent
        traffic.bytes_received += received
        traffic.seconds = before + time.perf_counter() - begin

    def close(self) -> None:
        """Closes the memory."""
        memories, self._memories = self._memories, []
        for memory in memories:
            memory.close()


def _take_rows(out: Tensor, offered: _Offered) -> None:
    """Fills ``out`` with rows that another rank wrote."""
    memory, turn, begin, listed = offered
    if listed:
        wanted = _rows_at(memory, turn, begin, len(out), torch.empty(0, dtype=torch.int64))
        torch.index_select(_rows_at(memory, turn, 0, listed, out), 0, wanted, out=out)
    else:
        out.copy_(_rows_at(memory, turn, begin, len(out), out))


def _rows_at(memory: HostMemory, turn: int, offset: int, count: int, like: Tensor) -> Tensor:
    """``count`` rows of one of the two buffers, from a byte on, of the type of ``like`` and its width."""
    shape = (count, *like.shape[1:])
    num_bytes = math.prod(shape) * like.element_size()
    if num_bytes == 0:
        return like.new_empty(shape)
    begin = turn * (memory.num_bytes // 2) + offset
    return memory._check()[begin : begin + num_bytes].view(like.dtype).view(shape)
