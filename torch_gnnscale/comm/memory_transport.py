"""Rows that ranks of one machine read in each other's memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from .. import machine
from .exchange import Broken, Exchange
from .mesh import Transport, check_kinds, kind_of
from .peer_memory import (
    BUFFERS,
    LEAST,
    PAGE,
    HostMemories,
    Offered,
    PeerEvents,
    PeerMemories,
    PeerMemory,
    Turns,
)
from .rendezvous import Rendezvous
from .replies import FAILED, GREW, ID_BYTES, WROTE, ReplyMemories
from .row_transport import ENDED, Counted, RowMoves, RowTransport

_PATTERN = 251
"""The first byte of a rank's first memory is its number modulo this, by which the others see that they read it."""
_TOLD = torch.zeros(1, 3, dtype=torch.int64)
"""What is told of a piece: where it begins, its length, the number beside it."""


class MemoryTransport(RowTransport):
    """Each rank writes what others need into one of its two buffers, and after they have met they read it there, in the
    order of :class:`Turns`. When they meet, they say where each reader's rows begin, or the list of them.

    Args:
        exchange: between these ranks, all of one machine.
        shared: how they share memory, the same way on all ranks.
        memories: of all ranks, in their order; each is two buffers of the same size.
        events: of all ranks, open; None if what a rank does is done when the call returns, so that meeting is enough.
        tells: of :class:`RowTransport`; also of rows of :meth:`swap`.
    """

    def __init__(
        self, exchange: Exchange, shared: PeerMemories, memories: list[PeerMemory], events: PeerEvents | None,
        tells: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(exchange, tells)
        self.shared, self._memories = shared, memories
        self._replaced: list[PeerMemory] = []  # this rank's, which all others have closed when they meet next
        self._turn = -1  # that of buffer `_turn` mod 2
        self._order = None if events is None else Turns(events, exchange.rank, exchange.size)
        self._like: tuple[torch.dtype, torch.Size] | None = None  # type and shape of the last rows, of which `_kind` is
        self._kind = -1
        self.replies = ReplyMemories(exchange, shared)

    @classmethod
    def connect(cls, exchange: Exchange, shared: PeerMemories, tells: bool = False) -> MemoryTransport | str:
        """The transport, if all ranks are on one machine, and every rank can read the memory of every other, which each
        tries; else why not, the same text on all ranks. All ranks call it together; arguments as of the class."""
        said = exchange.objects((machine.identity(), shared.device.type))
        machines, kinds = (set(values) for values in zip(*said, strict=True))
        if exchange.size == 1 or len(machines) > 1:
            return "one rank" if exchange.size == 1 else "ranks on several machines"
        if len(kinds) > 1:
            return f"rows on {' and '.join(sorted(kinds))}"
        memories: list[PeerMemory] = []
        handles, problem = None, None
        try:
            events = shared.events()
            memories.append(shared.allocated(BUFFERS * LEAST))
            memories[0].bytes[:1] = exchange.rank % _PATTERN
            shared.settle()
            handles = [memories[0].handle() for _ in range(exchange.size - 1)], events and events.handles()
        except Exception as error:  # of a kind that only the driver knows
            problem = f"rank {exchange.rank}: {type(error).__name__}: {error}"
        given = exchange.objects(handles)
        try:
            for rank, of_rank in enumerate(given):
                if rank != exchange.rank and of_rank is not None and handles is not None:
                    memories.append(shared.opened(of_rank[0][exchange.rank - (exchange.rank > rank)]))
                    if events is not None:
                        events.open(rank, of_rank[1])
                    found = shared.joined(memories[0].bytes[:0], [Offered(memories[-1].bytes[:1], None, 1)])
                    if int(found) != rank % _PATTERN:
                        problem = f"rank {exchange.rank}: not the memory that rank {rank} has written"
        except Exception as error:
            problem = f"rank {exchange.rank}: {type(error).__name__}: {error}"
        problems = [text for text in exchange.objects(problem) if text is not None]
        if not problems:
            memories.insert(exchange.rank, memories.pop(0))
            return cls(exchange, shared, memories, events, tells)
        _close(memories)  # its own, the first, last
        return problems[0]

    @override
    def to_device(self, values: Tensor) -> Tensor:
        """``values`` on the device where the ranks share memory."""
        return values.to(self.shared.device)

    @override
    def pull(self, own: Tensor, moves: RowMoves, purpose: str, meanwhile: Callable[[], None] | None = None) -> Tensor:
        return self._read(own[:0], own, moves, purpose, meanwhile)

    @override
    def joined(self, own: Tensor, moves: RowMoves, purpose: str) -> Tensor:
        return self._read(own, own, moves, purpose)

    def rows(self, own: Tensor, moves: RowMoves, purpose: str, meanwhile: Callable[[], None] | None = None) -> Tensor:
        """The rows that ranks sent, joined; if all come from one rank, which wrote them for this one alone, its
        memory."""
        senders = [rank for rank, count in enumerate(moves.num_received) if count]
        if len(senders) != 1:
            return self.pull(own, moves, purpose, meanwhile)
        with self._counted(own, moves.num_sent, moves.num_received, purpose):
            offered = self._offered(own, moves, purpose, meanwhile)[senders[0]]
            return offered.rows if offered.places is None else self.shared.joined(own[:0], [offered])

    def _read(
        self, first: Tensor, own: Tensor, moves: RowMoves, purpose: str, meanwhile: Callable[[], None] | None = None
    ) -> Tensor:
        """``first`` and after it the rows of the halo."""
        with self._counted(own, moves.num_sent, moves.num_received, purpose):
            offered = self._offered(own, moves, purpose, meanwhile)
            try:
                return self.shared.joined(first, [entry for entry in offered if entry.num_rows])
            except BaseException:
                self.exchange.broken = True  # a rank that has no memory for them cannot go on alone
                raise

    def _offered(
        self, own: Tensor, moves: RowMoves, purpose: str, meanwhile: Callable[[], None] | None
    ) -> list[Offered]:
        """Writes the rows that others read, each once, however many ranks read it. If several do, the list of places of
        each reader follows the rows. Returns what each rank wrote for this one."""
        rows, places = moves.sent, None
        if self.shared.writes_once:
            rows, places = moves.distinct or moves.find_distinct(len(own))
        width = own.shape[1:].numel() * own.element_size()
        listed = -(-width * len(rows) // ID_BYTES) * ID_BYTES
        num_bytes = listed + (0 if places is None else ID_BYTES * len(places))
        begin, step = (0, width) if places is None else (listed, ID_BYTES)
        begins = [begin + step * count for count in accumulate(moves.num_sent, initial=0)]
        told = [[at, 0 if places is None else len(rows)] for at in begins[:-1]]

        def write(memory: PeerMemory, turn: int) -> None:
            torch.index_select(own, 0, rows, out=_rows_at(memory, turn, 0, len(rows), own))
            if places is not None:
                _rows_at(memory, turn, listed, len(places), places).copy_(places)

        def offered(count: int, memory: PeerMemory, turn: int, begin: int, listed: int) -> Offered:
            if count == 0 or listed == 0:
                return Offered(_rows_at(memory, turn, begin, count, own), None, count)
            ids = _rows_at(memory, turn, begin, count, rows)
            return Offered(_rows_at(memory, turn, 0, listed, own), ids, count)

        met = self._met(own, num_bytes, write, told, moves.num_received, purpose, meanwhile)
        return [offered(count, *entry) for entry, count in zip(met, moves.num_received, strict=True)]

    @override
    def _swapped(
        self, pieces: Sequence[Tensor], num_sent: list[int], num_received: list[int], purpose: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Tensor]:  # fmt: skip
        like = pieces[0]
        width = like.shape[1:].numel() * like.element_size()
        told = [[width * count] for count in list(accumulate(num_sent, initial=0))[:-1]]

        def write(memory: PeerMemory, turn: int) -> None:
            at = 0
            for piece in pieces:
                _rows_at(memory, turn, at, len(piece), piece).copy_(piece)
                at += width * len(piece)

        with self._counted(like, num_sent, num_received, purpose):
            met = self._met(like, width * sum(num_sent), write, told, num_received, purpose, meanwhile)
            return [
                _rows_at(memory, turn, at, count, like)
                for (memory, turn, at), count in zip(met, num_received, strict=True)
            ]

    @override
    def messages(
        self, pieces: Sequence[Tensor], beside: Sequence[int] | None, counted: Counted, purpose: str
    ) -> tuple[list[Tensor], list[int]]:
        """As :meth:`RowTransport.messages`, in one meeting: what is told of each piece stands before all of them."""
        assert self._order is None
        begin, rank, buffer = time.perf_counter(), self.exchange.rank, (self._turn + 1) % BUFFERS
        own, numbers = pieces[rank], list(beside or [0] * len(pieces))
        lengths = [0 if to == rank else len(piece) for to, piece in enumerate(pieces)]
        first, width = _TOLD.nbytes * len(pieces), own.element_size()
        begins = [first + width * at for at in accumulate(lengths, initial=0)]

        def write(memory: PeerMemory, buffer: int) -> None:
            told = torch.tensor([begins[:-1], lengths, numbers]).T
            _rows_at(memory, buffer, 0, len(pieces), _TOLD).copy_(told)
            for to, piece in enumerate(pieces):
                _rows_at(memory, buffer, begins[to], lengths[to], piece).copy_(piece[: lengths[to]])

        made = self._written(begins[-1], write, buffer)
        seconds = time.perf_counter() - begin
        try:
            met = counted(torch.tensor([[made is not None, 0]] * len(pieces), dtype=torch.int64))
        except BaseException:
            if made is not None:
                made.close()
            raise
        begin = time.perf_counter()
        self._turn += 1  # not before, for a rank that failed has begun no turn
        _close(self._replaced)
        if bool(met[:, 0].any()):
            self._renew(made)
        found, came = [], [0] * len(pieces)
        for of, memory in enumerate(self._memories):
            if of == rank:
                found.append(own)
                continue
            at, came[of], numbers[of] = _rows_at(memory, buffer, _TOLD.nbytes * rank, 1, _TOLD)[0].tolist()
            found.append(_rows_at(memory, buffer, at, came[of], own))
        self.moved[purpose].add(lengths, came)
        seconds += time.perf_counter() - begin
        self.exchange.count(purpose, width * sum(lengths), width * sum(came), seconds)
        return found, numbers

    def _met(
        self, rows: Tensor, num_bytes: int, write: Callable[[PeerMemory, int], None], told: list[list[int]],
        num_received: list[int], purpose: str, meanwhile: Callable[[], None] | None,
    ) -> list[tuple[Any, ...]]:  # fmt: skip
        """Writes into this rank's next buffer, and meets the others. Returns the memory of each rank, which of its
        buffers was written, and what it told this one.

        Args:
            rows: of the type and width that all ranks exchange.
            num_bytes: how many are written at most.
            write: into a buffer, the first or the second of a memory.
            told: numbers for each rank; equally many on all.
            num_received: how many rows this rank reads of each.
            purpose: what the exchange is counted as.
            meanwhile: called while this rank waits for the others. What it raises is raised here when the exchange has
                ended, so that the next one is in step.

        Raises:
            ValueError: on all ranks, if one of them has rows of another type or width.
            OtherRankFailed: another rank could not write its rows, and tells.
        """
        exchange, order = self.exchange, self._order
        made, error = None, None
        self._turn += 1
        buffer = self._turn % BUFFERS
        try:
            if order is not None:
                order.begin(self._turn)
            made = self._written(num_bytes, write, buffer)
            if order is not None:
                order.written(self._turn)
        except Exception as failed:
            if not self._tells:
                raise
            error = failed
        if (rows.dtype, rows.shape[1:]) != self._like:
            self._like, self._kind = (rows.dtype, rows.shape[1:]), kind_of(rows)
        kind, status = self._kind, FAILED if error is not None else WROTE if made is None else GREW
        said_here = torch.tensor([[*values, kind, status] for values in told])

        def caught() -> None:
            nonlocal error
            assert meanwhile is not None
            try:
                meanwhile()
            except Exception as failed:  # raised below: new memory is taken first, which others wait for
                error = error or failed

        while_waiting = None if meanwhile is None else caught
        if self._tells:  # in steps, which count the same for all transports
            heard = exchange.meet(said_here, while_waiting).tolist()
        else:
            heard = exchange.numbers(said_here, purpose, while_waiting).tolist()
        _close(self._replaced)
        said = [values[-1] for values in heard]
        why = exchange.reasons(error if status == FAILED else None) if FAILED in said else []
        if GREW in said:
            self._renew(made)
        if error is not None:
            raise error
        if FAILED in said:
            text = f"{purpose}: expected those of {{rank}}, found that it could not write them"
            raise exchange.other_failed(why, text)
        if any(values[-2] != kind for values in heard):
            check_kinds(purpose, [values[-2] for values in heard])
        if order is not None:
            order.read(self._turn, [rank for rank, count in enumerate(num_received) if count and rank != exchange.rank])
        return [(memory, buffer, *values[:-2]) for memory, values in zip(self._memories, heard, strict=True)]

    def _written(self, num_bytes: int, write: Callable[[PeerMemory, int], None], turn: int) -> PeerMemory | None:
        """Writes into this rank's next buffer, or, if it is too small, into that of new memory, which is returned."""
        if not self._memories:
            raise RuntimeError(f"split: {ENDED}")
        made, known = None, self._memories[self.exchange.rank]
        if num_bytes > len(known.bytes) // BUFFERS:
            made = self.shared.allocated(BUFFERS * PAGE * -(-num_bytes * 5 // (4 * PAGE)))
        write(made or known, turn)
        return made

    def _renew(self, made: PeerMemory | None) -> None:
        """When all have met, replaces the memory of ranks that have new memory, of this one by ``made``; no rank reads
        the old memory any more. That of other ranks is closed now. This rank's own is closed when they meet next, for
        all others have closed it then."""
        own = self.exchange.rank
        with self.exchange.awaited():
            self.shared.settle()  # old memory is closed now, and by its rank when all meet next
            handles = None if made is None else [made.handle() for _ in range(self.exchange.size - 1)]
        given = self.exchange.objects(handles)
        if not self._memories:
            return
        try:
            for rank, of_rank in enumerate(given):
                if of_rank is None:
                    continue
                if rank == own:
                    assert made is not None
                    self._replaced.append(self._memories[rank])
                    self._memories[rank] = made
                else:
                    new = self.shared.opened(of_rank[own - (own > rank)])
                    self._memories[rank].close()
                    self._memories[rank] = new
        except Exception:  # memory of another rank cannot be opened: what is known of it is old
            self.close()
            raise

    @contextmanager
    def _counted(self, rows: Tensor, num_sent: list[int], num_received: list[int], purpose: str) -> Iterator[None]:
        """Counts an exchange of rows like ``rows``."""
        traffic, begin = self.exchange.traffic[purpose], time.perf_counter()
        before, width = traffic.seconds, rows.shape[1:].numel() * rows.element_size()
        yield
        self.moved[purpose].add(num_sent, num_received)
        traffic.seconds = before  # without those of its header, which are among the seconds of the whole
        self.exchange.count(purpose, width * sum(num_sent), width * sum(num_received), time.perf_counter() - begin)

    def close(self) -> None:
        """Closes the memory: what others have written first."""
        self.replies.close()
        memories, self._memories = self._memories, []
        _close([memory for rank, memory in enumerate(memories) if rank != self.exchange.rank])
        _close(memories)
        _close(self._replaced)


def row_transport(exchange: Exchange, rendezvous: Rendezvous, wanted: Transport) -> RowTransport:
    """How ranks exchange rows in host memory. All ranks of a run call it together.

    Args:
        exchange: between this rank and those that it exchanges rows with.
        rendezvous: of all ranks.
        wanted: "auto": memory, where the ranks of ``exchange`` can read each other's, else Gloo; "memory"; else Gloo.

    Raises:
        ValueError: on all ranks, if some cannot read each other's memory, and that is wanted.
    """
    if wanted not in ("auto", "memory") or rendezvous.world == 1:
        return RowTransport(exchange, tells=True)
    found: MemoryTransport | str = "one rank"
    if exchange.size > 1:
        try:
            found = MemoryTransport.connect(exchange, HostMemories(), tells=True)
        except Broken as error:
            raise RuntimeError(rendezvous.lost(error)) from error
        except Exception as error:
            rendezvous.fail(f"{type(error).__name__}: {error}")
            raise
    problem = None if exchange.size == 1 or isinstance(found, MemoryTransport) else found
    problems = [text for text in rendezvous.gather(problem) if text is not None]
    if problems and wanted == "memory":
        if isinstance(found, MemoryTransport):
            found.close()
        raise ValueError(f"transport='memory': expected ranks that can read each other's memory, found {problems[0]}")
    return found if isinstance(found, MemoryTransport) else RowTransport(exchange, tells=True)


def _close(memories: list[PeerMemory]) -> None:
    while memories:
        memories.pop().close()


def _rows_at(memory: PeerMemory, turn: int, offset: int, count: int, like: Tensor) -> Tensor:
    """``count`` rows of one of the two buffers, from a byte on, of the type of ``like`` and its width."""
    shape = (count, *like.shape[1:])
    num_bytes = math.prod(shape) * like.element_size()
    if num_bytes == 0:
        return like.new_empty(shape)
    begin = turn * (len(memory.bytes) // BUFFERS) + offset
    return memory.bytes[begin : begin + num_bytes].view(like.dtype).view(shape)
