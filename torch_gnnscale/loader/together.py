"""The line of a loader whose ranks read rows together, or sample together: one step of all ranks per batch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ..feature.contract import Steps
from ..sampler.keyed import KeyedSampler
from .collate import Fetched
from .fetch import CollectiveRows
from .line import Line
from .order import NumberedBatch
from .pipeline import Pipeline, Stage
from .share import Share
from .streams import as_here

T = TypeVar("T")


class Turn(NamedTuple):
    """A step of this rank: its batch, or one without seeds where the rank only serves others."""

    batch: NumberedBatch
    serves: bool


@dataclass
class _Prepared:
    """What one step needs, as far as no other rank is needed for it."""

    turn: Turn
    sampled: Any = None
    plan: Any = None
    error: Exception | None = None


class Served:
    """The result of a turn that makes no batch: this rank has none left and only serves others, or the batch is made in
    a later turn, because the prefetch buffer looks ahead."""


class Together:
    """Makes batches in steps that all ranks take together.

    Where sampling needs no other rank, threads sample ahead and plan what rows are read; the rows come on the thread of
    the steps.

    Args:
        line: the loader's line; its rows are :class:`CollectiveRows`.
        steps: of this loader.
        share: of this rank.
    """

    def __init__(self, line: Line, steps: Steps, share: Share) -> None:
        assert isinstance(line.collator.source, CollectiveRows)
        self.line, self.steps, self.share = line, steps, share
        self.source: CollectiveRows = line.collator.source
        self._samples_together = isinstance(line.sampler, KeyedSampler) and line.sampler.collective
        self._ahead: deque[_Prepared] = deque()  # steps whose plans were announced
        self._window = 0

    def batches(
        self, numbered: Iterator[NumberedBatch], epoch: int, first: int, finish: Callable[[Any], T], prefetch: int
    ) -> TogetherBatches[T]:
        """Iterates over this rank's batches of an epoch of which ``first`` were made before, by all ranks."""
        count = self.share.rounds(first) if self.share.uneven == "serve" else self.share.steps(first)
        self.steps.thread.submit(self._begin, epoch, first, count).result()
        turns = self._turns(numbered, epoch, first, count)
        stages = [
            Stage(as_here(self._prepare)),
            Stage(as_here(self._step), in_order=True),
            Stage(as_here(self._collate)),
        ]

        def finished(made: Any) -> Any:
            return made if isinstance(made, Served) else finish(made)

        return TogetherBatches(Pipeline(turns, stages, finished, prefetch, self.steps.thread), self.steps)

    def _begin(self, epoch: int, first: int, count: int) -> None:
        self.steps.begin(epoch, first, count)
        self._ahead.clear()
        self.source.features.withdraw(self.steps)
        wanted = 0 if self._samples_together else self.source.features.plans_ahead(self.steps)
        self._window = count if wanted == "epoch" else min(wanted, count)

    def _turns(self, numbered: Iterator[NumberedBatch], epoch: int, first: int, count: int) -> Iterator[Turn | None]:
        """The turns of ``count`` steps, then None ``_window`` times: a step is taken that many turns after its own."""
        ranks = self.share.ranks
        for step in range(count):
            index = next(numbered, None)
            if index is not None:
                yield Turn(index, serves=False)
                continue
            number = first + step * ranks.world + ranks.rank
            yield Turn(NumberedBatch(epoch, number, np.empty(0, dtype=np.int64)), serves=True)
        yield from repeat(None, self._window)

    def _prepare(self, turn: Turn | None) -> _Prepared | None:
        if turn is None:
            return None
        prepared = _Prepared(turn)
        if not self._samples_together:
            try:
                self._sample(prepared)
            except Exception as error:  # raised in the step, on all ranks
                prepared.error = error
        return prepared

    def _sample(self, prepared: _Prepared) -> None:
        collator = self.line.collator
        prepared.sampled = collator.sampled(self.line.sample(prepared.turn.batch))
        prepared.plan = self.source.plan(prepared.sampled, collator.bounds)

    def _step(self, coming: _Prepared | None) -> _Prepared | Served:
        """Announces a turn, and takes the step that is ``_window`` turns before it."""
        if self._window == 0:
            assert coming is not None
            return self._take(coming)
        if coming is not None:
            self._announce(coming)
            self._ahead.append(coming)
            if len(self._ahead) <= self._window:
                return Served()
        return self._take(self._ahead.popleft())

    def _announce(self, coming: _Prepared) -> None:
        if coming.plan is not None:
            self.source.announce(coming.plan, self.steps)

    def _take(self, prepared: _Prepared) -> _Prepared | Served:
        begin, counts = time.perf_counter(), None
        if prepared.plan is not None:
            try:
                counts = self.source.counts(prepared.plan, self.steps)
            except Exception as error:
                prepared.error = error

        def run(asked: Any) -> None:
            if self._samples_together:
                asked = self._sample_together(prepared)
            self.source.read(prepared.plan, asked, self.steps)

        self.steps.step(prepared.turn.batch.number, prepared.error, counts, run)
        self.line.seconds["gather"] += time.perf_counter() - begin
        return Served() if prepared.turn.serves else prepared

    def _sample_together(self, prepared: _Prepared) -> Any:
        """Samples within a step; returns what the other ranks ask this one for."""
        counts, error = None, None
        try:
            self._sample(prepared)
            counts = self.source.counts(prepared.plan, self.steps)
        except Exception as failed:
            error = failed
        return self.steps.sampled(error, counts)

    def _collate(self, made: _Prepared | Served) -> Any:
        if isinstance(made, Served):
            return made
        begin = time.perf_counter()
        fetched = Fetched(made.sampled, self.source.rows(made.plan))
        self.line.seconds["gather"] += time.perf_counter() - begin
        return self.line.collate(fetched)


class TogetherBatches(Generic[T]):
    """Iterates over this rank's batches; closed or dropped before its end, this rank leaves the iteration."""

    def __init__(self, pipeline: Pipeline, steps: Steps) -> None:
        self._pipeline, self._steps = pipeline, steps
        self._delivered = 0
        self._open = True

    def __iter__(self) -> TogetherBatches[T]:
        return self

    def __next__(self) -> T:
        while True:
            try:
                made = next(self._pipeline)
            except StopIteration:
                self.close()
                raise
            except Exception:
                self._delivered += 1
                raise
            if not isinstance(made, Served):
                self._delivered += 1
                return made

    def close(self) -> None:
        """Leaves the iteration."""
        if self._open:
            self._open = False
            self._pipeline.close(wait=False)
            self._steps.thread.submit(self._steps.leave, self._delivered)

    def __del__(self) -> None:
        self.close()
