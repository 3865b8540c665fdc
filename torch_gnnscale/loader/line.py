"""The line of a loader: order -> sample -> fetch -> collate -> finish, and the threads that run each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, NegativeSampling, NodeSamplerInput

from ..random import ids_key
from ..sampler.keyed import Inputs, KeyedSampler, Output
from .collate import Collator, Fetched
from .order import NumberedBatch, SeedOrder
from .pipeline import Pipeline, Stage
from .streams import Failed, Streams, Unpacked, as_here, or_failed

T = TypeVar("T")


class Step(NamedTuple):
    """A step of the line and the threads that may run it."""

    run: Callable[[Any], Any]
    where: str
    """``parallel``: several threads at once; ``in order``: one thread, in the order of batches; ``here``: the thread
    that iterates."""


class Line:
    """The steps from a batch's number to the batch, for one loader.

    Args:
        order: makes the keys of batches.
        sampler: any BaseSampler. One that is no KeyedSampler is called in the thread that iterates: it may keep state.
        collator: fetches rows and makes batches.
        inputs: all inputs of the loader, indexed by position.
        ids_of: returns the ids that are hashed to the key of inputs without a batch number.
        neg_sampling: how negatives of links are drawn; None for seeds.
        seconds: the time of sampling is added to ``seconds["sample"]``, that of fetching and collating to
            ``seconds["gather"]``.
    """

    def __init__(
        self, order: SeedOrder, sampler: BaseSampler, collator: Collator, inputs: Any,
        ids_of: Callable[[Any], Tensor], neg_sampling: NegativeSampling | None, seconds: dict[str, float],
    ) -> None:  # fmt: skip
        self.order, self.sampler, self.collator = order, sampler, collator
        self.inputs, self.ids_of, self.neg_sampling = inputs, ids_of, neg_sampling
        self.seconds = seconds

    # The steps #######################################################################################################

    def inputs_at(self, positions: Any) -> Inputs:
        """The inputs at the given positions."""
        if not isinstance(positions, Tensor):
            positions = torch.as_tensor(positions, dtype=torch.int64)
        return self.inputs[positions]

    def sample(self, index: NumberedBatch | Tensor | list[int]) -> Output:
        """The sample of a numbered batch; or of positions without a number, keyed by a hash of their ids."""
        begin = time.perf_counter()
        out = self._sample(index)
        self.seconds["sample"] += time.perf_counter() - begin
        return out

    def _sample(self, index: NumberedBatch | Tensor | list[int]) -> Output:
        inputs = self.inputs_at(index.positions if isinstance(index, NumberedBatch) else index)
        if not isinstance(self.sampler, KeyedSampler):
            if isinstance(inputs, NodeSamplerInput):
                return self.sampler.sample_from_nodes(inputs)
            return self.sampler.sample_from_edges(inputs, neg_sampling=self.neg_sampling)
        if isinstance(index, NumberedBatch):
            key = self._key(index)
        else:
            key = ids_key(self.order.seed, self.ids_of(inputs))
        return self.sampler.sample_inputs(inputs, key, self.neg_sampling)

    def sample_many(self, indices: list[NumberedBatch]) -> list[Output]:
        """One sample per numbered batch."""
        assert isinstance(self.sampler, KeyedSampler)
        begin = time.perf_counter()
        inputs = [self.inputs_at(index.positions) for index in indices]
        outs = self.sampler.sample_many(inputs, [self._key(index) for index in indices], self.neg_sampling)
        self.seconds["sample"] += time.perf_counter() - begin
        return outs

    def _key(self, index: NumberedBatch) -> int:
        assert isinstance(self.sampler, KeyedSampler)
        return self.order.key(index._replace(number=index.number // self.sampler.batches_per_key))

    def fetch(self, out: Output) -> Fetched:
        """Reads the rows of a sample."""
        begin = time.perf_counter()
        fetched = self.collator.fetch(out)
        self.seconds["gather"] += time.perf_counter() - begin
        return fetched

    def collate(self, fetched: Fetched) -> Data | HeteroData:
        """Makes the batch."""
        begin = time.perf_counter()
        batch = self.collator.collate(fetched)
        self.seconds["gather"] += time.perf_counter() - begin
        return batch

    # Where they run ##################################################################################################

    def steps(self) -> list[Step]:
        """Sample, fetch and collate with the threads that sampler and rows allow. Steps after one that runs
        ``here`` run ``here`` as well."""
        source = self.collator.source
        sampling = _where(self.sampler.thread_safe, self.sampler.collective) if self.ahead else "here"
        fetching = _where(source.threads, source.collective) if source.threads or source.collective else "here"
        found = [Step(self.sample, sampling), Step(self.fetch, fetching), Step(self.collate, "parallel")]
        here = [step.where for step in found].index("here") if "here" in (sampling, fetching) else len(found)
        return [step if number < here else Step(step.run, "here") for number, step in enumerate(found)]

    @property
    def ahead(self) -> bool:
        """Whether batches can be prepared by threads while the model trains."""
        return isinstance(self.sampler, KeyedSampler)

    @property
    def collective(self) -> bool:
        """Whether all ranks of a process group sample or fetch together."""
        return getattr(self.sampler, "collective", False) or self.collator.source.collective

    def pipeline(self, numbered: Iterator[NumberedBatch], finish: Callable[[Any], T], prefetch: int) -> Pipeline:
        """Iterates over the batches, each made alone."""
        steps = self.steps()
        stages = [Stage(as_here(step.run), step.where == "in order") for step in steps if step.where != "here"]
        here = [step.run for step in steps if step.where == "here"]

        def finished(value: Any) -> T:
            for run in here:
                value = run(value)
            return finish(value)

        return Pipeline(numbered, stages, finished if here else finish, prefetch)

    def samples(self, numbered: Iterator[NumberedBatch], prefetch: int) -> Pipeline:
        """Iterates over the samples; no rows are read."""
        sample = self.steps()[0]
        stages = [] if sample.where == "here" else [Stage(as_here(sample.run), sample.where == "in order")]
        finish = self.sample if sample.where == "here" else _unchanged
        return Pipeline(numbered, stages, finish, prefetch)

    def bulks(
        self, numbered: Iterator[NumberedBatch], finish: Callable[[Any], T], bulk: int, prefetch: int
    ) -> Unpacked[T]:
        """Iterates over the batches, made ``bulk`` at a time; ``prefetch`` lists are in preparation."""
        ahead, finished = self._steps_of_lists(bulk)
        stages = [Stage(as_here(step.run), step.where == "in order") for step in ahead]
        return Unpacked(Pipeline(_lists_of(numbered, bulk), stages, finished, prefetch), finish)

    def bulks_on(
        self, streams: Streams, numbered: Iterator[NumberedBatch], finish: Callable[[Any], T], bulk: int, prefetch: int,
        around: Callable[[], AbstractContextManager],
    ) -> Unpacked[T]:  # fmt: skip
        """The same on streams of a GPU. ``around()`` is entered during each wait for a list of batches."""
        ahead, finished = self._steps_of_lists(bulk)

        def prepare(indices: list[NumberedBatch]) -> Any:
            with streams.work():
                values: list[Any] = indices
                for step in ahead:
                    values = step.run(values)
                return streams.hand(values)

        stage = Stage(as_here(prepare), in_order=any(step.where == "in order" for step in ahead))
        pipeline = Pipeline(_lists_of(numbered, bulk), [stage], lambda handed: finished(streams.take(handed)), prefetch)
        return Unpacked(pipeline, finish, around)

    def _steps_of_lists(self, bulk: int) -> tuple[list[Step], Callable[[list[Any]], list[Any]]]:
        """The steps that threads run on lists of batches, and a function that runs the others where it is called."""
        sample, *others = self.steps()
        at_once = bulk > 1 or self.collator.device is not None
        first = _all_or_failed(self.sample_many) if at_once else _each(self.sample)
        steps = [Step(first, sample.where), *(Step(_each(step.run), step.where) for step in others)]
        here = [step.run for step in steps if step.where == "here"]

        def finished(values: list[Any]) -> list[Any]:
            for run in here:
                values = run(values)
            return values

        return [step for step in steps if step.where != "here"], finished


def _lists_of(numbered: Iterator[NumberedBatch], bulk: int) -> Iterator[list[NumberedBatch]]:
    """The batches in lists of ``bulk``; the last may be shorter."""
    return iter(lambda: list(islice(numbered, bulk)), [])


def _unchanged(value: T) -> T:
    return value


def _where(thread_safe: bool, collective: bool) -> str:
    return "parallel" if thread_safe and not collective else "in order"


def _each(run: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    """A function that replaces entries by ``run(entry)``, or by :class:`Failed` if that raises; Failed entries stay."""
    return lambda entries: [entry if isinstance(entry, Failed) else or_failed(run, entry) for entry in entries]


def _all_or_failed(run: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """A function that returns ``run(entries)``, or :class:`Failed` for every entry if that raises."""

    def safely(entries: list[Any]) -> list[Any]:
        made = or_failed(run, entries)
        return [made] * len(entries) if isinstance(made, Failed) else made

    return safely
