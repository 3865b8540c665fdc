"""The line of a loader whose ranks read rows together, or sample together: one step of all ranks per batch."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from ..comm.steps import Steps
from ..sampler.minibatch import MiniBatch
from .epochs import Share
from .execution import Execution, as_here
from .line import Line
from .pipeline import Pipeline, Stage
from .row_source import CollectiveSource

T = TypeVar("T")


class Turn(NamedTuple):
    """A step of this rank: its batch, or one without seeds where the rank only serves others."""

    batch: MiniBatch
    serves: bool


class _Bulk:
    """Consecutive turns whose batches are sampled at once, by the first call of :meth:`samples`."""

    def __init__(self, turns: list[Turn]) -> None:
        self._turns = turns
        self._lock = threading.Lock()  # threads prepare the turns
        self._made: list[Any] | Exception | None = None

    @property
    def made(self) -> bool:
        """Whether they were sampled, with or without success."""
        return self._made is not None

    def samples(self, line: Line) -> list[Any]:
        """The sample of each turn. If sampling failed, every call raises its error."""
        with self._lock:
            if self._made is None:
                batches = [turn.batch for turn in self._turns]
                try:
                    self._made = line.sample_many(batches) if len(batches) > 1 else [line.sample(batches[0])]
                except Exception as error:
                    self._made = error
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


@dataclass
class _Prepared:
    """What one step needs that can be prepared without other ranks."""

    turn: Turn
    bulk: _Bulk
    at: int
    """Which turn of its bulk it is."""
    sampled: MiniBatch | None = None
    needs: Any = None
    error: Exception | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it is known what rows are read, or why not."""
        return self.needs is not None or self.error is not None


class Served:
    """The result of a turn that makes no batch: this rank has none left and only serves others, or the batch is made in
    a later turn, because the prefetch buffer looks ahead."""


class Made(NamedTuple):
    """A batch before it is delivered, and its number."""

    number: int
    batch: Any


class Together:
    """Makes batches in steps that all ranks take together.

    If sampling needs no other rank, threads sample ahead and find out what rows are read; the rows come on the thread
    of the steps. If it needs other ranks, the first step of a bulk samples the batches of all of its steps; or, if a
    prefetch buffer looks W batches ahead, a step samples the bulk of the batch that is announced before the next one.
    On a GPU, all work for the batches of an iteration is queued on one stream.

    Args:
        line: the loader's line; its rows are a :class:`CollectiveSource`.
        steps: of this loader.
        share: of this rank.
        execution: how many batches are sampled at once, and on which GPU.
        size_of: returns how many inputs a batch has, by its number.
        decides: returns what decides the batches of an iteration, see :meth:`Steps.begin`.
    """

    def __init__(
        self, line: Line, steps: Steps, share: Share, execution: Execution, size_of: Callable[[int], int],
        decides: Callable[[], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        assert isinstance(line.collator.source, CollectiveSource)
        self.line, self.steps, self.share, self.execution, self.size_of = line, steps, share, execution, size_of
        self._decides = decides
        self.source: CollectiveSource = line.collator.source
        self._samples_together = line.sampler.collective
        self._counts_inputs = self.source.counts_inputs and share.seed_order == "global" and share.ranks.world > 1
        self._latest: weakref.ref[TogetherBatches] | None = None
        self._ahead: deque[_Prepared] = deque()  # steps whose needs were announced
        self._window = 0
        self._here = self.source.rows_here
        self._owed: deque[_Prepared] = deque()  # steps that were taken, whose rows the thread that iterates exchanges
        self._wanted = self.source.window
        if self._samples_together:  # ranks without remote rows, which have no buffer, look ahead as the others do
            each = steps.gather(self._wanted)
            self._wanted = "epoch" if "epoch" in each else max(each)

    def batches(self, numbered: Iterator[MiniBatch], epoch: int, first: int, prefetch: int) -> TogetherBatches[Any]:
        """Iterates over this rank's batches of an epoch of which ``first`` were made before, by all ranks. The iterator
        before this one ends."""
        if self._latest is not None and (before := self._latest()) is not None:
            before.supersede()
        count = self.share.steps_of_all(first) if self.share.uneven == "serve" else self.share.steps(first)
        self.steps.thread.submit(self._begin, epoch, first, count).result()
        while self._owed:  # of an iteration that was left: the others may wait for rows
            self._arrive()
        turns, streams = self._turns(numbered, epoch, first, count), self.execution.streams(prefetch, one=True)
        since = None if streams is None else self.source.own.versions()

        def on_stream(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def queued(item: Any) -> Any:
                with nullcontext() if streams is None else streams.work():
                    return run(item)

            return as_here(queued)

        def collated(prepared: Any) -> Any:
            made = self._collate(prepared)
            if streams is None or isinstance(made, Served):
                return made
            return made._replace(batch=streams.hand([made.batch]))

        stages = [Stage(on_stream(self._prepare)), Stage(on_stream(self._step), "in order")]
        if not self._here:
            stages.append(Stage(on_stream(collated)))

        def taken(made: Any) -> Any:
            if isinstance(made, _Prepared):
                assert self._owed[0] is made
                self._arrive()
                return self._collate(made)
            if streams is None or isinstance(made, Served):
                return made
            return made._replace(batch=streams.take(made.batch)[0])

        def finished(made: Made) -> Any:
            return self._telling(made.number, lambda: self.line.finish(self.line.deliver(made.batch, since)))

        pipeline = Pipeline(turns, stages, taken, prefetch, self.steps.thread)
        made: TogetherBatches[Any] = TogetherBatches(
            pipeline, finished, self.steps, count + self._window, self.execution.around
        )
        self._latest = weakref.ref(made)
        return made

    def _begin(self, epoch: int, first: int, count: int) -> None:
        self.steps.begin(epoch, first, count, self.source.counted, self._decides())
        self._ahead.clear()
        self.source.withdraw()
        self._window = count if self._wanted == "epoch" else min(self._wanted, count)
        if self._samples_together and self._window:
            self._window = min(self._window + 1, count)  # what is announced before a step is sampled in the one before

    def _turns(self, numbered: Iterator[MiniBatch], epoch: int, first: int, count: int) -> Iterator[_Prepared | None]:
        """The turns of ``count`` steps, then None ``_window`` times: a step is taken that many turns after its own."""
        turns = (self._turn(next(numbered, None), epoch, first, step) for step in range(count))
        while of_bulk := list(islice(turns, self.execution.bulk)):
            bulk = _Bulk(of_bulk)
            yield from (_Prepared(turn, bulk, at) for at, turn in enumerate(of_bulk))
        yield from repeat(None, self._window)

    def _turn(self, index: MiniBatch | None, epoch: int, first: int, step: int) -> Turn:
        if index is not None:
            return Turn(index, serves=False)
        number = first + step * self.share.ranks.world + self.share.ranks.rank
        return Turn(MiniBatch(epoch, number, np.empty(0, dtype=np.int64)), serves=True)

    def _prepare(self, prepared: _Prepared | None) -> _Prepared | None:
        if prepared is not None and not self._samples_together:
            self._sample_alone(prepared)
        return prepared

    def _sample_alone(self, prepared: _Prepared) -> None:
        try:
            self._sample(prepared)
        except Exception as error:  # raised in the step, on all ranks
            prepared.error = error

    def _sample(self, prepared: _Prepared) -> None:
        batch = prepared.sampled = prepared.bulk.samples(self.line)[prepared.at]
        inputs = None
        if self._counts_inputs:
            inputs = self.share.inputs_of_step(prepared.turn.batch.number, self.size_of)
        prepared.needs = self.line.collator.needs(batch, inputs)

    def _step(self, coming: _Prepared | None) -> _Prepared | Served:
        """Announces a turn, and takes the step that is ``_window`` turns before it."""
        if coming is not None:
            if not self._samples_together:
                self._announce(coming)
            self._ahead.append(coming)
            if len(self._ahead) <= self._window:
                return Served()
        return self._take(self._ahead.popleft())

    def _announce(self, coming: _Prepared) -> None:
        if coming.needs is not None:
            self.source.announce(coming.needs)

    def _take(self, prepared: _Prepared) -> _Prepared:
        begin, sampled, counts = time.perf_counter(), self.line.seconds["sample"], None
        together = self._samples_together and not prepared.bulk.made
        if not together and not prepared.is_ready:
            self._sample_alone(prepared)
        if prepared.needs is not None and self.source.counted:
            try:
                counts = self.source.counts(prepared.needs)
            except Exception as error:
                prepared.error = error

        def run(asked: Any) -> Callable[[], None] | None:
            if together:
                asked = self._sample_together(prepared)
            if self._ahead:
                self._sample_ahead(self._ahead)
            return self.source.read(prepared.needs, asked)

        left = self.steps.step(number := prepared.turn.batch.number, prepared.error, counts, run)
        if left is not None:
            self._telling(number, left)
        if self._here:
            self._owed.append(prepared)
        took = time.perf_counter() - begin
        if self._samples_together:
            took -= self.line.seconds["sample"] - sampled
        self.line.seconds["gather"] += took
        return prepared

    def _sample_together(self, prepared: _Prepared) -> torch.Tensor:
        """Samples within a step, and what is announced before it; returns what the other ranks ask this one for."""
        counts: Any = None
        error = None
        try:
            if self._window:
                self._sample_ahead([prepared, *islice(self._ahead, self._window - 1)])
            else:
                self._sample(prepared)
            if prepared.error is not None:
                raise prepared.error
            if self.source.counted:
                counts = self.source.counts(prepared.needs)
        except Exception as failed:
            error = failed
        self.steps.agree(error, "sampling")
        if not self.source.counted:
            return torch.empty(self.steps.rows.size, 0, dtype=torch.int64)
        return self.steps.rows.numbers(counts, "counts")

    def _sample_ahead(self, turns: Iterable[_Prepared]) -> None:
        """Within a step, samples those of the turns that are not ready yet, and announces them. An error is raised in
        a turn's own step."""
        for turn in turns:
            if turn.is_ready:
                continue
            if not turn.bulk.made:
                error = None
                try:
                    turn.bulk.samples(self.line)
                except Exception as failed:
                    error = failed
                self.steps.sampled_ahead(error)
            self._sample_alone(turn)
            self._announce(turn)

    def _arrive(self) -> None:
        """Exchanges the rows of the first step that waits for it, in the thread that iterates."""
        begin = time.perf_counter()
        self.source.arrive(self._owed.popleft().needs)
        self.line.seconds["gather"] += time.perf_counter() - begin

    def _collate(self, prepared: _Prepared | Served) -> Made | Served:
        if isinstance(prepared, Served):
            return prepared
        if prepared.turn.serves:
            return Served()
        batch, number = prepared.sampled, prepared.turn.batch.number
        assert batch is not None
        batch.rows = prepared.needs

        def make() -> Made:
            begin = time.perf_counter()
            made = Made(number, self.line.collator.collate(batch))
            self.line.seconds["gather"] += time.perf_counter() - begin
            return made

        return self._telling(number, make)

    def _telling(self, number: int, make: Callable[[], T]) -> T:
        """Calls ``make()`` for a batch whose step was taken, and returns its result; the other ranks are told of an
        error in it."""
        try:
            return make()
        except Exception as error:
            self.steps.tell(number, error)
            raise


class TogetherBatches(Generic[T]):
    """Iterates over ``finish(made)`` for this rank's batches, which a pipeline makes in ``turns`` turns. If it is
    closed or dropped before its end, this rank leaves the iteration. ``around()`` is entered during each wait for a
    turn."""

    def __init__(
        self, pipeline: Pipeline, finish: Callable[[Made], T], steps: Steps, turns: int,
        around: Callable[[], AbstractContextManager],
    ) -> None:  # fmt: skip
        self._pipeline, self._finish, self._steps, self._around = pipeline, finish, steps, around
        self._turns, self._delivered = turns, 0
        self._open = True
        self._superseded = False

    def __iter__(self) -> TogetherBatches[T]:
        return self

    def __next__(self) -> T:
        if self._superseded:
            raise RuntimeError("expected one iterator at a time over a loader whose ranks read or sample together, "
                               "found that a later one has begun")  # fmt: skip
        while True:
            try:
                with self._around():
                    made = next(self._pipeline)
                made = made if isinstance(made, Served) else self._finish(made)
            except StopIteration:
                self.close()
                raise
            except Exception:
                self._turns -= 1
                self._delivered += 1
                raise
            self._turns -= 1
            if not isinstance(made, Served):
                self._delivered += 1
                return made

    def close(self) -> None:
        """Leaves the iteration."""
        if self._open:
            self._open = False
            self._pipeline.close(wait=False)
            self._steps.thread.submit(self._steps.leave, self._delivered if self._turns else None)

    def supersede(self) -> None:
        """Leaves the iteration, if it is not over: another one begins."""
        self._superseded = self._open
        self.close()

    def __del__(self) -> None:
        self.close()
