"""Rows that ranks ask each other for: where they lie in replies, and how ids and replies travel."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from .. import ops
from ..ops.arguments import NO_IDS
from .exchange import Exchange
from .peer_memory import LEAST, PAGE, PeerMemories, PeerMemory

ID_BYTES = 8
"""An id is sent as an int64."""
STATUS_BYTES = 8
"""A reply begins with an int64, its status: 0, or 1 if its rank could not read the rows."""
WROTE, GREW, FAILED = range(3)
"""What a rank says when all meet: it wrote what it sends; it wrote it into new memory; it could not write it."""

Answer: TypeAlias = Callable[[Sequence[Sequence[Tensor]]], Sequence[Sequence[tuple[Tensor, Sequence[Tensor]]]]]
"""``answer(ids)``: the rows that ranks ask for. ``ids[t][r]``: those of type t that rank r asks for, int64. Returns by
type and attribute a table in host memory, and for each rank the positions of its rows there."""


class Layout:
    """Where rows lie in the replies from, or to, all ranks, one reply after another; this rank's own is empty. A reply
    is a status, then the rows, ordered by type and attribute.

    Args:
        counts: counts[i, t]: how many rows of type t the reply from, or to, rank i has: int64, shape [ranks, types].
        sizes: by type and attribute, the bytes of a row.
        own: the number of this rank.
        status: the bytes of the status.
    """

    def __init__(self, counts: Tensor, sizes: Sequence[Sequence[int]], own: int, status: int = STATUS_BYTES) -> None:
        self.counts: list[list[int]] = counts.tolist()
        self.num_rows = list(map(sum, self.counts))
        """How many ids are asked of, or by, each rank."""
        self._sizes, self._own = sizes, own
        self.begins: list[list[list[int]]] = []
        """begins[i][t][a]: where, in the reply of rank i, the rows of attribute a of type t begin."""
        self.starts: list[int] = []
        """Where each reply begins."""
        self.lengths: list[int] = []
        """The bytes of each reply."""
        at, end = [], 0
        for rank, row in enumerate(self.counts):
            begin = end
            self.starts.append(begin)
            if rank != own:
                at.append(begin)
                end += status
            self.begins.append([])
            for count, of_type in zip(row, sizes, strict=True):
                *begins, end = accumulate([count * size for size in of_type], initial=end)
                self.begins[-1].append(begins)
            self.lengths.append(end - begin)
        self.total = end
        """The bytes of all replies."""
        self.status = torch.tensor(at, dtype=torch.int64)
        """The first byte of each reply: int64, shape [ranks - 1]."""

    def offsets(self) -> list[list[Tensor]]:
        """By type and attribute, where each row begins, in all replies: int64, shape [rows]."""
        return [[self._offsets(t, a) for a in range(len(of_type))] for t, of_type in enumerate(self._sizes)]

    def _offsets(self, t: int, a: int) -> Tensor:
        each = [
            torch.arange(row[t]).mul_(self._sizes[t][a]).add_(begins[t][a])
            for row, begins in zip(self.counts, self.begins, strict=True)
            if row[t]
        ]
        return each[0] if len(each) == 1 else torch.cat([*each, NO_IDS])

    def write(self, requests: Sequence[Tensor], answer: Answer, replies: Sequence[Tensor]) -> Exception | None:
        """Writes the replies to all ranks. They say so if the rows cannot be read, and the error is returned.

        Args:
            requests: the ids that each rank asks for.
            answer: finds their rows.
            replies: the memory of each reply: uint8.
        """
        try:
            each = [ids.split(row) for ids, row in zip(requests, self.counts, strict=True)]
            found = answer([[of_rank[t] for of_rank in each] for t in range(len(self._sizes))])
            for rank, reply in enumerate(replies):
                if rank != self._own:
                    self._pack(rank, found, reply)
            return None
        except Exception as error:
            for reply in replies:
                reply.zero_()[:1] = 1
            return error

    def _pack(self, rank: int, found: Sequence[Sequence[tuple[Tensor, Sequence[Tensor]]]], reply: Tensor) -> None:
        rows, index, at = list[Tensor](), list[Tensor](), list[int]()
        for t, of_type in enumerate(found):
            if self.counts[rank][t]:
                rows += [table for table, _ in of_type]
                index += [of_ranks[rank] for _, of_ranks in of_type]
                at += [begin - self.starts[rank] for begin in self.begins[rank][t]]
        ops.pack_rows(rows, index, at, reply)


def by_rank(ids: Sequence[Tensor], counts: list[list[int]]) -> Tensor:
    """Reorders ids from (type, rank) to (rank, type); ``counts[rank][type]``: how many of each."""
    if len(ids) == 1:
        return ids[0]
    each = [of_type.split([row[t] for row in counts]) for t, of_type in enumerate(ids)]
    return torch.cat([of_type[rank] for rank in range(len(counts)) for of_type in each] or [NO_IDS])


class Replies:
    """How ids and replies travel: here over Gloo.

    Args:
        exchange: between these ranks; a single one needs no group.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def exchanged(
        self, ids: Sequence[Tensor], counts: Tensor, asked: Tensor, sizes: Sequence[Sequence[int]], answer: Answer,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[Tensor, list[list[Tensor]]]:  # fmt: skip
        """Asks other ranks for rows in host memory, and answers them: a round of ``ids``, and one of ``rows``.

        Args:
            ids: by type, those for rank 0, then 1, ...: int64.
            counts: counts[i, t]: how many ids of type t rank i is asked for, 0 for this one: int64, shape [ranks,
                types].
            asked: how many each rank asks this one for, like ``counts``.
            sizes: by type and attribute, the bytes of a row.
            answer: finds the rows that others ask for.
            meanwhile: called while the rows are exchanged.

        Returns:
            (The replies of rank 0, then 1, ...: uint8, shape [b]; by type and attribute, where in them each row begins,
            in the order of ``ids``: int64, shape [r]).

        Raises:
            OtherRankFailed: a rank has no memory for its ids, or could not read the rows.
            Exception: what ``answer`` raised on this rank, when all have their replies.
        """
        exchange = self.exchange
        with exchange.awaited():
            taken, given = (Layout(of_ranks, sizes, exchange.rank) for of_ranks in (counts, asked))
            requests = by_rank(ids, taken.counts).view(torch.uint8)
            to, by = ([ID_BYTES * count for count in of.num_rows] for of in (taken, given))
        came = exchange.bytes(requests, to, by, "ids").view(torch.int64)
        with exchange.awaited():
            replies = ops.empty_bytes(given.total)
            error = given.write(came.split(given.num_rows), answer, replies.split(given.lengths))
        received = exchange.bytes(replies, given.lengths, taken.lengths, "rows", meanwhile)
        self._check(received, taken, error)
        return received, taken.offsets()

    def _check(self, received: Tensor, layout: Layout, error: Exception | None) -> None:
        """Raises if a reply says that its rank could not read the rows; ``error``: why this one could not, which all
        its replies say."""
        if error is not None or bool(received[layout.status].any()):
            self.exchange.raise_alike(error, "rows: expected those of {rank}, found that it could not read them")

    def close(self) -> None:
        """Frees what replies are written into."""


# Through memory of one machine ########################################################################################


class ReplyMemories(Replies):
    """Replies between ranks of one machine. A rank writes its ids into memory of its own, in which the others read them
    and write the rows. It is used again when the bytes that :meth:`exchanged` returned are gone; views of them do not
    count. So each rank has several memories, which all ranks have open.

    Args:
        exchange: between these ranks.
        shared: how they share memory.
    """

    def __init__(self, exchange: Exchange, shared: PeerMemories) -> None:
        super().__init__(exchange)
        self._shared = shared
        self._of: list[dict[int, PeerMemory]] = [{} for _ in range(exchange.size)]  # of each rank, by number
        self._count = 0  # numbers of this rank's
        self._idle: set[int] = set()  # those that nobody reads or writes; one that was dropped has no memory

    @override
    def exchanged(
        self, ids: Sequence[Tensor], counts: Tensor, asked: Tensor, sizes: Sequence[Sequence[int]], answer: Answer,
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[Tensor, list[list[Tensor]]]:  # fmt: skip
        exchange, begin = self.exchange, time.perf_counter()
        number, is_new, error = -1, False, None
        told = torch.full((exchange.size, 4), FAILED)
        try:
            taken, given = (Layout(of_ranks, sizes, exchange.rank) for of_ranks in (counts, asked))
            requests = by_rank(ids, taken.counts)
            written = requests.nbytes
            number, is_new = self.take(written + taken.total)
            self.bytes_of(exchange.rank, number)[:written].view(torch.int64).copy_(requests)
            begins = accumulate([ID_BYTES * count for count in taken.num_rows], initial=0)
            status = GREW if is_new else WROTE
            told = torch.tensor([
                [number, first, written + at, status] for first, at in zip(begins, taken.starts, strict=False)
            ])  # fmt: skip
        except Exception as failed:
            error = failed
        heard = exchange.meet(told).tolist()
        said = [status for *_, status in heard]
        if FAILED in said:
            if is_new:
                self.drop(number)
            elif number >= 0:
                self.give_back(number)
            exchange.raise_alike(error, "ids: expected those of {rank}, found that it failed")
        if GREW in said:
            try:
                self.share(number if is_new else None)
            except Exception:
                if not is_new:
                    self.give_back(number)
                raise
        exchange.count("ids", written, ID_BYTES * sum(given.num_rows), time.perf_counter() - begin)
        begin = time.perf_counter()
        with exchange.awaited():
            received = self.held(number, written, written + taken.total)
            found, replies = [], []
            for rank, (of, first, at, _) in enumerate(heard):
                bytes_ = self.bytes_of(rank, of)
                found.append(bytes_[first : first + ID_BYTES * given.num_rows[rank]].view(torch.int64))
                replies.append(bytes_[at : at + given.lengths[rank]])
            error = given.write(found, answer, replies)
        exchange.meet(torch.zeros(exchange.size, 1, dtype=torch.int64), meanwhile)
        exchange.count("rows", given.total, taken.total, time.perf_counter() - begin)
        self._check(received, taken, error)
        return received, taken.offsets()

    def take(self, num_bytes: int) -> tuple[int, bool]:
        """(The number of a memory of this rank with at least so many bytes, which is idle no more; whether it is new,
        and all ranks are to call :meth:`share`.)"""
        own = self._of[self.exchange.rank]
        idle = tuple(self._idle)
        fitting = [number for number in idle if number in own and len(own[number].bytes) >= num_bytes]
        if fitting:
            number = min(fitting, key=lambda of: len(own[of].bytes))
            self._idle.discard(number)
            return number, False
        made = self._shared.allocated(PAGE * -(-max(num_bytes * 5 // 4, LEAST) // PAGE))
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
        if (memory := self._of[self.exchange.rank].pop(number, None)) is not None:
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
        found = self.bytes_of(self.exchange.rank, number)[begin:end]
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
        rank, error = self.exchange.rank, None
        with self.exchange.awaited():
            handle = None if new is None else (new, self._of[rank][new].handle())
        given = self.exchange.objects(handle)
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
        why = self.exchange.reasons(error)
        if not any(why):
            return
        for memories, entry in zip(self._of, given, strict=True):
            if entry is not None and entry[0] in memories and memories is not self._of[rank]:
                memories.pop(entry[0]).close()
        if new is not None:
            self.drop(new)
        if error is not None:
            raise error
        raise self.exchange.other_failed(why, "rows: expected memory that all ranks can open, found that {rank} cannot")

    def close(self) -> None:
        """Closes all memory: what other ranks allocated first."""
        own = self._of[self.exchange.rank]
        for memories in [*(of for of in self._of if of is not own), own]:
            while memories:
                memories.popitem()[1].close()
        self._idle.clear()
