"""The steps of a loader whose ranks read or sample together: a header on which all agree, then the step's exchanges."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from .exchange import Broken, Exchange, OneThread, OtherRankFailed, keep_for_ever
from .memory_transport import row_transport
from .mesh import COMPLETED, Grid, Header, Status, Transport, check_alike, check_positions, fingerprint_of
from .rendezvous import Rendezvous, end_groups
from .row_transport import RowTransport

T = TypeVar("T")

FAILED = -1
"""In place of a count."""
GIVING_UP = 5.0
"""Seconds that the thread of the steps may take to end after :meth:`Exchange.give_up`."""


class Steps:
    """The steps of one loader over the ranks of a grid.

    Headers go to all ranks, rows only to those of this rank's column.

    Args:
        rendezvous: of all ranks.
        grid: of all ranks.
        identity: what all ranks must have alike besides what their loaders compare, by name.
        dropped: called with this object, on its thread, when :meth:`drop` has ended its groups.
        by_column: the ranks of a column make one batch together; else each rank makes one.
        transport: how the thread of the steps exchanges rows; or over what the thread that iterates does.

    Raises:
        ValueError: on all ranks, if those of a column cannot read each other's memory and ``transport`` is "memory".
    """

    def __init__(
        self, rendezvous: Rendezvous, grid: Grid, identity: dict[str, Any], dropped: Callable[[Steps], None], *,
        by_column: bool = False, transport: Transport = "auto",
    ) -> None:  # fmt: skip
        self._rendezvous, self.rank, self.grid, self._identity = rendezvous, rendezvous.rank, grid, identity
        self._dropped = dropped
        self.headers, self.rows, self.rows_here = rendezvous.exchanges(grid, transport)
        """``headers``: over all ranks. ``rows``: over the ranks of this one's column, by part. ``rows_here``: the same
        ranks, in the group in which the thread that iterates exchanges rows, if it does."""
        try:
            self.transport = row_transport(self.rows, rendezvous, transport)
            """How the thread of the steps exchanges rows between the ranks of ``rows``."""
        except BaseException:
            end_groups([exchange for exchange in (self.headers, self.rows, self.rows_here) if exchange])
            raise
        self.row = RowTransport(Exchange(None, 1, 0)) if grid.copies == 1 else None
        """Over the ranks of this one's row, by copy; with copies, once :meth:`open_row` was called."""
        self._counting = self.rows  # the exchange of :meth:`counted`
        self.thread: OneThread = OneThread("gnnscale-steps")
        self._column, self._several = grid.column(grid.copy(self.rank)), grid.copies > 1
        self._turns = [grid.copy(other) if by_column else other for other in range(grid.ranks)]
        self._iteration = self._epoch = self._first = self._count = self._counted = self._taken = 0
        self._about = rendezvous.topic()  # under which the ranks say why these steps have ended
        self._left = COMPLETED  # or how many batches the last iteration had delivered when it was left
        self._decides: dict[str, Any] = {}  # what decides the batches of the iteration
        self._fingerprint = 0
        self._untold: deque[str] = deque()  # which batches this rank failed to make after their steps, and why
        self._stopped: str | None = None  # why the iteration has ended before its last step
        self._lost: str | None = None  # the error of all later steps, which names the rank that is gone or has failed
        self._behind = False  # whether that is this rank, whose groups have ended or will
        self._losing = threading.Lock()
        self._running: int | None = None  # the thread on which a step is under way
        self._failed = False  # whether the ranks of this step know that it failed
        self._closed = False  # whether the steps end, or have ended
        self._ended = False  # whether they were closed

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, in the order of ranks. Called while the loader is made."""
        found = self.thread.submit(self._gathered, (self._identity, value)).result()
        check_alike([identity for identity, _ in found])
        return [value for _, value in found]

    def _gathered(self, value: Any) -> list[Any]:
        return self.named(lambda: self.headers.objects(value))

    def begin(self, epoch: int, first: int, count: int, counted: int, decides: Mapping[str, Any]) -> None:
        """An iteration begins.

        Args:
            epoch: its epoch.
            first: the epoch's batch at which it begins.
            count: how many steps it has.
            counted: n of :meth:`step`, the same on all ranks.
            decides: what else decides its batches, in plain values by name, which all ranks must have alike.
        """
        self._iteration += 1
        self._epoch, self._first, self._count, self._counted, self._taken = epoch, first, count, counted, 0
        self._decides = {**self._identity, **decides, "number of steps": count}
        self._fingerprint = fingerprint_of(self._decides)
        self._stopped = self._lost

    def tell(self, number: int, error: Exception) -> None:
        """This rank failed to make a batch whose step was taken: all ranks raise in the next step. Any thread may call
        it.

        Args:
            number: of the batch.
            error: which this rank raises in place of the batch.
        """
        if self.grid.ranks > 1:
            self._untold.append(self._failure(number, error))

    def _failure(self, number: int, error: Exception) -> str:
        return f"rank {self.rank} failed to make batch {number}: {type(error).__name__}: {error}"

    def step(self, number: int, error: Exception | None, counts: Tensor | None, run: Callable[[Tensor], T]) -> T:
        """One step: all ranks agree to take it, then ``run(counts of all ranks)`` is called.

        Args:
            number: the number of this rank's batch.
            error: why this rank cannot take the step; all ranks then raise.
            counts: int64, shape [ranks of the group of rows, n]: what this rank is going to ask each of them for. None
                if that is not known yet.
            run: issues the collectives of the step; gets what each of these ranks is going to ask this one for.

        Raises:
            ValueError: the ranks are not at the same step, or began an iteration with other values. Every rank raises
                the same error.
            RuntimeError: a rank failed, now or in :meth:`tell`; has left the loop; or is gone.
        """
        earlier = [self._untold.popleft() for _ in range(len(self._untold))]
        headers, asked = self._agree(Status.GO if error is None and not earlier else Status.FAIL, number, counts)
        self._taken += 1
        self._raise_alike(headers, error, earlier)
        self._running, self._failed = threading.get_ident(), False
        found: list[Exception] = []
        made: Any = None
        try:
            made = self.named(lambda: run(asked))
        except Exception as failed:
            if self._lost is not None:
                raise
            found.append(failed)
        finally:
            self._running = None
        own = None if not found or isinstance(found[0], OtherRankFailed) else found[0]
        if self._several:  # a column does not notice the error of another one
            status = Status.GO if own is None else Status.FAIL
            told = torch.tensor([status, number]).expand(self.grid.ranks, -1)
            self._raise_alike(self.named(lambda: self.headers.numbers(told, "headers")).tolist(), own)
        if own is not None:
            raise own
        if found:
            raise RuntimeError(str(found[0])) from None
        return made

    def _raise_alike(
        self, headers: Sequence[Sequence[int]], error: Exception | None, earlier: Sequence[str] = ()
    ) -> None:
        """Raises ``error``, or what another rank failed with, if one says FAIL. ``earlier``: which batches this rank
        failed to make after their steps, and why."""
        failed = [rank for rank, header in enumerate(headers) if header[0] == Status.FAIL]
        if not failed:
            return
        own = [] if error is None else [self._failure(headers[self.rank][1], error)]
        texts = self._gathered("; ".join([*earlier, *own]))
        if isinstance(error, OtherRankFailed):  # a later batch of a bulk that another rank could not sample
            raise RuntimeError(str(error)) from None
        if error is not None:
            raise error
        raise RuntimeError(texts[failed[0]])

    def open_row(self) -> None:
        """Opens ``row``. All ranks call it; from then on all ranks learn of an error in :meth:`counted`, as those of a
        row would not notice what fails in a column."""
        if self.row is None:
            self.row, self._counting = RowTransport(self._rendezvous.row_exchange(self.grid)), self.headers

    def sum_of_column(self, values: Tensor, purpose: str) -> Tensor:
        """The sums over the ranks of this one's column; see :meth:`RowTransport.sum`. Called while a loader is made."""
        return self.thread.submit(self.named, lambda: self.transport.sum(values, purpose)).result()

    @property
    def running(self) -> bool:
        """Whether a step is under way on the thread that asks: collectives may be issued."""
        return self._running == threading.get_ident()

    def counted(self, counts: Tensor, error: Exception | None = None, *, what: str) -> Tensor:
        """Within a step, exchanges numbers with the ranks of this one's column or, after :meth:`open_row`, with all
        ranks. All of these learn of an error.

        Args:
            counts: two numbers for each rank: int64, shape [ranks, 2], the first ones at least 0.
            error: why this rank has no counts; it must not communicate in this step any more.
            what: what the rank was to do, for the others' error.

        Raises:
            OtherRankFailed: another rank failed. All of these ranks raise.
        """
        exchange = self._counting
        received = exchange.numbers(counts if error is None else torch.full_like(counts, FAILED), "counts")
        if bool((received[:, 0] == FAILED).any()):
            self._failed = True
            exchange.raise_alike(error, f"{what}: expected it of all ranks, found that {{rank}} failed")
        return received

    def counted_with(self, numbers: Tensor, *, ranks: Sequence[int], what: str) -> Tensor:
        """:meth:`counted`, of numbers for some of all ranks, and from them: int64, shape [len(ranks), 2]. All ranks
        call it."""
        table = torch.zeros(self._counting.size, 2, dtype=torch.int64)
        table[ranks] = numbers
        return self.counted(table, what=what)[ranks]

    def agree(self, error: Exception | None, what: str) -> None:
        """Within a step, ends a part of its work on all ranks of :meth:`counted` alike.

        Args:
            error: why this rank failed. It is raised here; the others, unless they know of it, raise OtherRankFailed.
            what: what the rank was to do, for the others' error.
        """
        if error is not None and (self._failed or self._is_broken):
            raise error
        self.counted(torch.zeros(self._counting.size, 2, dtype=torch.int64), error, what=what)

    def sampled_ahead(self, error: Exception | None) -> None:
        """Within a step in which the ranks sampled batches of later steps together: ends that on all of them alike. It
        returns although one failed, whose ``error`` is raised in the steps of these batches.

        Args:
            error: why this rank has no samples.

        Raises:
            RuntimeError: a rank is gone.
        """
        if error is not None and self._is_broken:
            raise error
        try:
            if not self._failed:
                self.agree(error, "sampling")
        except Exception as found:
            if found is not error and not isinstance(found, OtherRankFailed):
                raise
        self._failed = False

    @property
    def _is_broken(self) -> bool:
        return any(exchange.broken for exchange in self.exchanges if exchange is not self.rows_here)

    @property
    def exchanges(self) -> list[Exchange]:
        """All of them."""
        row = None if self.row is None else self.row.exchange
        return [entry for entry in (self.headers, self.rows, self.rows_here, row) if entry is not None]

    def leave(self, delivered: int | None) -> None:
        """This rank leaves the iteration after so many batches; None: after the last step. Ranks that take a further
        step raise; if ranks left after different numbers of batches, all raise in the next iteration."""
        with contextlib.suppress(Exception):  # this rank has left, so errors of the others do not matter to it
            if self._untold and self._goes_on:
                self.step(self._numbers()[self.rank], None, None, lambda _: None)
        with contextlib.suppress(Exception):
            if self._goes_on:
                self._agree(Status.STOP, 0)
        self._left = COMPLETED if delivered is None else delivered

    @property
    def _goes_on(self) -> bool:
        """Whether the other ranks expect a further step of this one."""
        return self._taken < self._count and self._stopped is None

    def _numbers(self) -> list[int]:
        """The batches that the ranks make in the next step."""
        begin = self._first + self._taken * (max(self._turns) + 1)
        return [begin + turn for turn in self._turns]

    def _agree(self, status: Status, number: int, counts: Tensor | None = None) -> tuple[list[list[int]], Tensor]:
        """Exchanges headers, and ``counts`` with the ranks of this one's column: returns the headers of all ranks, and
        the counts of that column, by part; zeros of a rank that has none.

        Raises:
            RuntimeError: a rank has left the iteration.
            ValueError: the ranks are not at the same step, or differ in what decides their batches.
        """
        if self._stopped is None:
            own = Header(
                status, number, self._iteration, self._epoch, self._first, self._taken, self._left, self._fingerprint
            )
            column, size = self._column, len(own)

            def exchanged() -> Tensor:
                with self.headers.awaited():
                    sent = torch.zeros(self.grid.ranks, size + self._counted, dtype=torch.int64)
                    sent[:, :size] = torch.tensor(own)
                    if counts is not None:
                        sent[column, size:] = counts
                return self.headers.numbers(sent, "headers")

            received = self.named(exchanged)
            headers = received[:, :size].tolist()
            says, numbers, *alike = map(list, zip(*headers, strict=True))
            if Status.STOP not in says:
                if numbers != self._numbers() or any(of_ranks != of_ranks[:1] * len(headers) for of_ranks in alike):
                    check_positions([Header(*header) for header in headers], self._numbers())
                    check_alike(self._gathered(self._decides))
                return headers, received[column, size:]
            left = f"rank {says.index(Status.STOP)} left the loop of epoch {self._epoch}"
            self._stopped = f"{left}: all ranks must leave it after the same batch"
        raise RuntimeError(self._stopped)

    def named(self, communicate: Callable[[], T]) -> T:
        """Calls ``communicate()`` and returns its result.

        Raises:
            RuntimeError: another rank is gone. The error names it, and so do the errors of all later steps.
            Exception: what ``communicate`` raised. If the others wait for this rank, the steps end on all ranks, and
                the others' errors name this one.
        """
        if self._behind:
            raise RuntimeError(self._lost)
        try:
            return communicate()
        except Broken as error:
            if not self._behind:  # else the others know why, which must not be overwritten
                self._stopped = self._lost = self._rendezvous.lost(error, self._about)
            raise RuntimeError(self._lost) from error
        except Exception as error:
            if self._is_broken and not self._closed:
                self.lose(f"{type(error).__name__}: {error}")
            raise

    def lose(self, why: str) -> None:
        """Makes all later steps fail, because this rank does not come to what the others wait for. Tells them why, and
        ends its groups, so that they wait no longer. Called by the thread of the steps or by the one that exchanges
        rows; by the latter again if the former has failed."""
        with self._losing:  # both threads may fail at once
            if self._lost is None:
                self._stopped = self._lost = f"rank {self.rank}: {why}"
                self._rendezvous.fail(why, self._about)
                self._behind = True
        if not self._behind:
            return
        of_thread = [exchange for exchange in self.exchanges if exchange is not self.rows_here]
        if threading.current_thread() is self.thread.thread:
            end_groups(of_thread)
            return
        here = self.rows_here
        if here is not None and here.group is not None and dist.get_backend(here.group) == "gloo" and not here.waits:
            end_groups([here])
        self.thread.submit(end_groups, of_thread)

    def close(self, timeout: float | None = None) -> None:
        """Leaves an iteration that has not ended, then ends the thread and the groups. If the other ranks have not left
        it within ``timeout`` seconds, this rank waits no longer; the groups then remain. After :meth:`drop`, waits in
        the same way for what that began."""
        if self._ended:
            return
        if not self._closed:
            self._closed = True
            self.thread.submit(self.leave, 0)
        self._ended = True
        if not self.thread.end(timeout):
            for exchange in self.exchanges:
                exchange.give_up()
            self.thread.end(GIVING_UP)
            # The end of a group in which a collective waits would wait, too.
            keep_for_ever([exchange.group for exchange in self.exchanges])
            return
        end_groups(self.exchanges)
        self.transport.close()

    def drop(self) -> None:
        """Called when the loader is gone: ends the steps without waiting for that. Any thread may call it, also the
        garbage collector."""
        if self._closed:
            return
        self._closed = True
        ends = partial(end_groups, self.exchanges), self.transport.close, partial(self._dropped, self)
        for call in (partial(self.leave, 0), *ends):
            self.thread.submit(call)
        self.thread.end(0.0)
