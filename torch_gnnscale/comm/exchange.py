"""Collectives over the ranks of a group, counted: numbers of a fixed size, through memory where one machine has all
ranks, and bytes of any size; and the thread that issues them."""

from __future__ import annotations

import ctypes
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch import distributed as dist

from .. import ops
from ..memory import HostArray, HostMemory

_PATIENCE = 20_000
"""Microseconds for which a rank waits before a round takes place in the group, where a rank that is gone is found
out. A round there takes about one millisecond longer, because the backend's threads take part in it."""


class Board:
    """All-to-alls of a few numbers between ranks of one machine, without a message.

    Args:
        memory: of all ranks, 0 at first; closed here, because the board holds its pages.
        ranks: how many share it.
        rank: the number of this process among them.
    """

    most = ops.BOARD_NUMBERS
    """How many numbers a rank sends to another one at most."""

    def __init__(self, memory: HostMemory, ranks: int, rank: int) -> None:
        self._memory, self._rank = memory.tensor(HostArray(0, (ops.board_size(ranks),), torch.int64)), rank
        self._round = -1
        memory.close()

    def leave(self, sent: Tensor) -> None:
        """Begins a round. ``sent[i]``: the numbers for rank i; int64, contiguous, [ranks, n], n at most ``most``."""
        self._round += 1
        ops.board_leave(self._memory, sent, self._rank, self._round)

    def take(self, received: Tensor) -> bool:
        """Ends the round: writes what rank i left to ``received[i]``, like ``sent``. False on all ranks if one of them
        waited too long for the others: the round is to take place in the group."""
        return ops.board_take(self._memory, received, self._rank, self._round, _PATIENCE)


@dataclass
class Traffic:
    """What a rank exchanged with the others of its group for one purpose."""

    rounds: int = 0
    """All-to-alls of bytes."""
    bytes_sent: int = 0
    """To other ranks."""
    bytes_received: int = 0
    """From other ranks."""
    headers: int = 0
    """All-to-alls of numbers of a fixed size."""
    header_bytes: int = 0
    """Bytes of headers sent to other ranks."""
    seconds: float = 0.0
    """Time in all of these calls, with waiting for other ranks and with what is done meanwhile."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, entry.name) + getattr(other, entry.name) for entry in fields(self)))


@dataclass
class Moved:
    """Rows of nodes that a rank exchanged with the others for one purpose."""

    sent: int = 0
    received: int = 0

    def add(self, sent: Sequence[int], received: Sequence[int]) -> None:
        """Counts rows that went to each rank and came from it."""
        self.sent += sum(sent)
        self.received += sum(received)


class OtherRankFailed(RuntimeError):
    """Another rank failed and raises its own error. Raised within a step, which raises it again as a RuntimeError."""


class Broken(RuntimeError):
    """A collective failed: another rank has ended or does not answer. Its text is the backend's."""


_LOOK = timedelta(seconds=0.5)
"""How long a thread waits for other ranks before it looks whether :meth:`Exchange.give_up` was called."""


class Exchange:
    """All-to-alls over a process group of Gloo or, for bytes on GPUs, of NCCL. A single rank needs no group.

    One thread calls these methods, in the same order on all ranks, with sizes on which the ranks agreed before: Gloo
    would not notice sizes that disagree, or two threads in one group, and would return wrong rows. A collective that
    fails raises :class:`Broken`; the ranks may then be at different steps.

    Args:
        group: the process group; None for a single rank.
        size: the number of ranks.
        rank: the number of this process among them.
        world_ranks: their numbers among all ranks, in the order in which this exchange numbers them; by default the
            same. A group has its ranks in rising order.
    """

    def __init__(
        self, group: dist.ProcessGroup | None, size: int, rank: int, world_ranks: Sequence[int] | None = None
    ) -> None:
        assert (group is None) <= (size == 1)
        self.group, self.size, self.rank = group, size, rank
        self.world_ranks = range(size) if world_ranks is None else world_ranks
        self._order = sorted(range(size), key=self.world_ranks.__getitem__)
        """By number in the group: the number here."""
        self.board: Board | None = None
        """Where numbers are exchanged, if the ranks are on one machine; set alike on all ranks."""
        self.traffic: dict[str, Traffic] = defaultdict(Traffic)
        """By purpose."""
        self.broken = False
        """Whether a collective failed, or did not come about: the other ranks may wait for this one."""
        self.waits = False
        """Whether a collective was begun and has not ended: its thread waits for it, or the wait was interrupted."""
        self.waiting: Callable[[float], Any] = float
        """Called again and again while a collective waits for other ranks, with the seconds so far."""
        self._given_up = threading.Event()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """A context in which a collective is prepared to which the other ranks come. An error in it leaves them
        waiting, so this exchange is then ``broken``. The context may contain other collectives."""
        before, self.broken = self.broken, self.size > 1
        yield
        self.broken = before

    def numbers(self, sent: Tensor, purpose: str, meanwhile: Callable[[], None] | None = None) -> Tensor:
        """Sends ``sent[i]`` to rank i, and returns ``received``: ``received[i]`` is what rank i sent to this one. Both
        int64, shape [size, n], with the same n on all ranks. ``meanwhile`` is called while they are exchanged; if it
        raises, the others have got their numbers nevertheless."""
        traffic, begin = self.traffic[purpose], time.perf_counter()
        received = self.meet(sent, meanwhile)
        traffic.headers += 1
        traffic.header_bytes += (self.size - 1) * sent[0].nbytes
        traffic.seconds += time.perf_counter() - begin
        return received

    def meet(self, sent: Tensor, meanwhile: Callable[[], None] | None = None) -> Tensor:
        """As :meth:`numbers`, but not counted: for ranks that only wait for each other."""
        assert (sent.dtype, sent.dim(), len(sent)) == (torch.int64, 2, self.size)
        with self.awaited():
            given, board = sent.contiguous(), self.board
            received = given if self.group is None else torch.empty_like(given)
        if board is None or given.size(1) > board.most:
            self._all_to_all(received, given, meanwhile=meanwhile)
        else:
            self._on_board(board, received, given, meanwhile)
        return received

    def _on_board(self, board: Board, received: Tensor, sent: Tensor, meanwhile: Callable[[], None] | None) -> None:
        before, self.broken = self.broken, True
        board.leave(sent)
        try:
            if meanwhile is not None:
                meanwhile()
        finally:
            if not board.take(received):
                self._all_to_all(received, sent)
            self.broken = before

    def bytes(
        self, sent: Tensor, lengths: Sequence[int], sizes: Sequence[int], purpose: str,
        meanwhile: Callable[[], None] | None = None, pinned: bool = False,
    ) -> Tensor:  # fmt: skip
        """The bytes from all ranks, one after another: uint8, shape [sum(sizes)], on the device of ``sent``; on the CPU
        in recycled memory.

        Args:
            sent: the bytes to all ranks, one after another: uint8, shape [sum(lengths)], contiguous.
            lengths: how many bytes go to each rank; 0 to this rank.
            sizes: how many bytes come from each rank; 0 from this rank.
            purpose: the entry of ``traffic`` in which they are counted.
            meanwhile: called while the bytes are exchanged.
            pinned: whether they come in pinned memory instead, from which a GPU copies them.
        """
        assert len(lengths) == len(sizes) == self.size
        assert sizes[self.rank] == lengths[self.rank] == 0
        begin = time.perf_counter()
        total, device = sum(sizes), sent.device
        with self.awaited():
            if device.type == "cpu" and not pinned:
                received = ops.empty_bytes(total)
            else:
                received = torch.empty(total, dtype=torch.uint8, device=device, pin_memory=pinned)
        self._all_to_all(received, sent, list(sizes), list(lengths), meanwhile)
        self.count(purpose, len(sent), len(received), time.perf_counter() - begin)
        return received

    def count(self, purpose: str, sent: int, received: int, seconds: float) -> None:
        """Counts a round in which so many bytes went to other ranks and came from them."""
        traffic = self.traffic[purpose]
        traffic.rounds += 1
        traffic.bytes_sent += sent
        traffic.bytes_received += received
        traffic.seconds += seconds

    def objects(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank. Not counted in ``traffic``.

        This is an all-to-all, in which every rank notices at once if one is gone; in a ring only its neighbors would.

        Args:
            value: this rank's; anything that can be pickled.
        """
        if self.group is None:
            return [value]
        with self.awaited():
            own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
            sizes = torch.empty(self.size, dtype=torch.int64)
            length = torch.full_like(sizes, len(own))
        self._all_to_all(sizes, length)
        with self.awaited():
            received, lengths = torch.empty(int(sizes.sum()), dtype=torch.uint8), sizes.tolist()
            sent = own.repeat(self.size)
        self._all_to_all(received, sent, lengths, [len(own)] * self.size)
        return [pickle.loads(of_rank.numpy().tobytes()) for of_rank in received.split(lengths)]

    def reasons(self, error: Exception | None) -> list[str]:
        """Why each rank has failed, "" where it has not: all ranks call it, once they know that one of them has.
        ``error``: this rank's."""
        return self.objects("" if error is None else f"{type(error).__name__}: {error}")

    def raise_alike(self, error: Exception | None, text: str) -> NoReturn:
        """Raises on all ranks, once they know that one of them has failed: ``error``, if that is this one, else
        :meth:`other_failed`."""
        why = self.reasons(error)
        raise self.other_failed(why, text) if error is None else error

    def other_failed(self, why: Sequence[str], text: str) -> OtherRankFailed:
        """The error of a rank that has not failed. ``why``: what :meth:`reasons` returned. ``text``: what was expected,
        and what was found of ``{rank}``."""
        first = next(rank for rank, reason in enumerate(why) if reason)
        return OtherRankFailed(f"{text.replace('{rank}', f'rank {self.world_ranks[first]}')}: {why[first]}")

    def give_up(self) -> None:
        """Called by any thread: a collective that waits for other ranks fails within a second, now and later.

        The backend's own threads go on waiting, and so would the end of the group, also when the interpreter ends.
        """
        self._given_up.set()

    def _all_to_all(
        self, received: Tensor, sent: Tensor, sizes: list[int] | None = None, lengths: list[int] | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        if self.group is None:
            if meanwhile is not None:
                meanwhile()
            return
        before, self.broken = self.broken, True
        order, found = self._order, received
        if renumbered := order != [*range(self.size)]:
            one = len(sent) // self.size
            sizes, lengths = sizes or [one] * self.size, lengths or [one] * self.size
            pieces, places = sent.split(lengths), [order.index(number) for number in range(self.size)]
            sent, found = torch.cat([pieces[number] for number in order]), torch.empty_like(received)
            sizes, lengths = ([of[number] for number in order] for of in (sizes, lengths))
        try:
            work = dist.all_to_all_single(found, sent, sizes, lengths, self.group, async_op=True)
        except RuntimeError as error:
            raise Broken(str(error)) from error
        try:
            if meanwhile is not None:
                meanwhile()
        finally:
            self._wait(work, (found, sent))
            if renumbered:
                pieces = found.split(sizes)
                torch.cat([pieces[place] for place in places], out=received)
            self.broken = before

    def _wait(self, work: Any, tensors: tuple[Tensor, Tensor]) -> None:
        """Returns when a collective has ended.

        It waits ``_LOOK`` at a time, because a thread that is in native code when the interpreter ends aborts the
        process when it comes back. If the tensors are on a GPU, the GPU's current stream waits instead.
        """
        if tensors[0].is_cuda:
            work.wait()
            return
        self.waits, begin = True, time.monotonic()
        while not _has_ended(work):
            self.waiting(time.monotonic() - begin)
            if self._given_up.is_set():
                keep_for_ever((work, tensors))  # the backend's thread would need the interpreter to free them
                raise RuntimeError("the part was closed before other ranks came to this step")
        self.waits = False
        try:
            work.wait()
        except RuntimeError as error:
            raise Broken(str(error)) from error


def keep_for_ever(value: Any) -> None:
    """Keeps an object for ever, also when the interpreter ends: for tensors and groups of a collective that has not
    ended."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _has_ended(work: Any) -> bool:
    """Whether a collective has ended, well or not, after waiting for a moment."""
    with suppress(RuntimeError):
        work.wait(_LOOK)
    return work.is_completed()


# The thread of collectives ############################################################################################

CLOSED = "expected the stores of an open part, found that it was closed"
"""The error of a call that is submitted after the end."""


class OneThread(Executor):
    """Runs calls one after another on a thread of its own.

    An iterator that is dropped submits its last call from ``__del__``, which may run anywhere: also within
    ThreadPoolExecutor.submit, which holds a lock that all pools share. This executor takes no lock.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future, Callable[[], Any]] | None] = SimpleQueue()  # its put is reentrant
        self._ended = False
        self.thread = threading.Thread(target=_run, args=(self._calls,), name=name, daemon=True)
        """The thread."""
        self.thread.start()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """A future of the call; after :meth:`shutdown`, one with a RuntimeError."""
        future: Future = Future()
        if self._ended:
            future.set_exception(RuntimeError(CLOSED))
        else:
            self._calls.put((future, partial(function, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the thread after the calls so far."""
        assert not cancel_futures, "not implemented"
        self.end(None if wait else 0.0)

    def end(self, timeout: float | None) -> bool:
        """Ends the thread after the calls so far. Waits for that at most ``timeout`` seconds, and returns whether it
        has ended. With ``timeout=0`` this does not wait, so that any thread may call it."""
        if not self._ended:
            self._ended = True
            self._calls.put(None)
        if timeout != 0.0:
            self.thread.join(timeout)
        return not self.thread.is_alive()


def _run(calls: SimpleQueue) -> None:
    while (entry := calls.get()) is not None:
        future, call = entry
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        del future, call, entry  # else this thread would keep what they refer to until the next call
