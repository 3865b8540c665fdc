"""The line of a loader: order -> sample -> fetch -> collate -> finish, the threads that run each step, how many
batches are made in advance and at once, and on which streams of a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from .._host import as_user
from ..feature.contract import Version, version_of
from ..laps import StreamTime
from ..random import Purpose, batch_key, ids_key
from ..sampler.base import Inputs, KeyedSampler, LinksByType
from ..sampler.minibatch import MiniBatch
from ..sampler.outputs import drawing_into_batches
from .collate import Collator
from .order import SeedOrder
from .pipeline import USUAL, Pipeline, PrefetchTrial, Stage, Where, in_turn
from .streams import Failed, Streams, Unpacked, as_here, or_failed

T = TypeVar("T")


class Step(NamedTuple):
    """A step of the line and the threads that may run it."""

    run: Callable[[Any], Any]
    where: Where | Literal["here"]
    """``here``: the thread that iterates."""


def as_positions(given: Any) -> Tensor:
    """What a user gives as positions of inputs, as a vector of integers; TypeError for others."""
    try:
        found = torch.as_tensor(given)
    except (RuntimeError, TypeError, ValueError):  # torch makes no tensor of it
        found = torch.zeros((), dtype=torch.bool)
    others = found.dtype == torch.bool or found.is_floating_point() or found.is_complex()
    if found.numel() and (found.dim() != 1 or others):
        raise TypeError(f"index: expected a list of positions of the loader's inputs, found {given!r}")
    return found.to(torch.int64)


class Line:
    """The steps from a batch's number to the batch, for one loader.

    Args:
        order: makes the keys of batches.
        sampler: any BaseSampler. If it is not a KeyedSampler, the thread that iterates calls it: it may keep state.
        collator: fetches rows and makes batches.
        inputs: all inputs of the loader, indexed by position.
        ids_of: returns the ids that are hashed to the key of inputs without a batch number.
        neg_sampling: how negatives of links are drawn; None for seeds.
        seconds: the time of sampling is added to ``seconds["sample"]``, that of fetching and collating to
            ``seconds["gather"]``.
    """

    def __init__(
        self, order: SeedOrder, sampler: KeyedSampler, collator: Collator, inputs: Any,
        ids_of: Callable[[Any], Tensor], neg_sampling: NegativeSampling | None, seconds: dict[str, float],
    ) -> None:  # fmt: skip
        self.order, self.sampler, self.collator = order, sampler, collator
        self.inputs, self.ids_of, self.neg_sampling = inputs, ids_of, neg_sampling
        self.seconds = seconds
        self.drawing = drawing_into_batches(sampler)
        self._batches_per_key = sampler.batches_per_key

    # The steps #######################################################################################################

    def inputs_at(self, positions: Any) -> Inputs:
        """The inputs at the given positions. Raises TypeError or IndexError for what are no positions."""
        if not isinstance(positions, Tensor):
            positions = as_positions(positions)
        try:
            return self.inputs[positions]
        except IndexError as error:
            raise IndexError(f"index: expected positions of the loader's inputs: {error}") from None

    def sample(self, index: MiniBatch | Tensor | list[int]) -> MiniBatch:
        """Samples a numbered batch; or one of positions without a number, keyed by a hash of their ids."""
        begin = time.perf_counter()
        given = index if isinstance(index, MiniBatch) else MiniBatch(positions=as_positions(index))
        batch = self._begun(given)
        self.drawing.draw(batch, self.neg_sampling)
        self.seconds["sample"] += time.perf_counter() - begin
        return batch

    def sample_many(self, batches: list[MiniBatch]) -> list[MiniBatch]:
        """Samples numbered batches at once."""
        begin = time.perf_counter()
        self.drawing.draw_many([self._begun(batch) for batch in batches], self.neg_sampling)
        self.seconds["sample"] += time.perf_counter() - begin
        return batches

    def _begun(self, batch: MiniBatch) -> MiniBatch:
        """A batch with its inputs, its keys and the version of its labels."""
        batch.labels = None if (labels := self.labels()) is None else labels[1]
        inputs = batch.inputs = self.inputs_at(batch.positions)
        batch.out, batch.transformed, seed = None, False, self.order.seed
        transforms = self.collator.owner.transform_sampler_output is not None
        if batch.number < 0:
            batch.key = ids_key(seed, self.ids_of(inputs))
            batch.transform_key = batch_key(batch.key, purpose=Purpose.TRANSFORM) if transforms else None
        else:
            batch.key = batch_key(seed, batch.epoch, batch.number // self._batches_per_key)
            batch.transform_key = self.order.key(batch, Purpose.TRANSFORM) if transforms else None
        return batch

    def labels(self) -> Version | None:
        """The version of the labels of links, of all relations together; None without labels."""
        label = getattr(self.inputs, "label", None)
        if not isinstance(label, dict):
            return None if label is None else version_of(label)
        numbers = [version_of(of_type)[1] for of_type in label.values()]
        return label, None if None in numbers else sum(numbers)  # type: ignore[arg-type]

    def _sample_many_or_each(self, batches: list[MiniBatch]) -> list[Any]:
        """What :meth:`sample_many` returns. If it raises, each batch is sampled alone, and those that fail are
        :class:`Failed`; of a collective sampler, which other ranks would have to ask again, too, all are."""
        made = or_failed(self.sample_many, batches)
        if not isinstance(made, Failed):
            return made
        return [made] * len(batches) if self.collective else _each(self.sample)(batches)

    def fetch(self, batch: MiniBatch) -> MiniBatch:
        """Reads the rows of a sample, after the user's ``transform_sampler_output``."""
        begin = time.perf_counter()
        self.collator.fetch(batch)
        self.seconds["gather"] += time.perf_counter() - begin
        return batch

    def fetch_many(self, batches: list[Any]) -> list[Any]:
        """What :meth:`fetch` returns for each batch, or :class:`Failed` where it raises. All reads are started before
        the first is waited for."""
        begin = time.perf_counter()
        started = _each(self.collator.start)(batches)
        fetched = _each(lambda wait: wait())(started)
        self.seconds["gather"] += time.perf_counter() - begin
        return fetched

    def collate(self, batch: MiniBatch) -> MiniBatch:
        """Makes the Data of a batch."""
        begin = time.perf_counter()
        self.collator.collate(batch)
        self.seconds["gather"] += time.perf_counter() - begin
        return batch

    def deliver(self, batch: MiniBatch, since: Any = None) -> Data | HeteroData:
        """The Data of a batch, with rows as they are now; ``since`` as of :meth:`Collator.deliver`."""
        self.collator.deliver(batch, since)
        self._relabel(batch)
        return _data_of(batch)

    def _relabel(self, batch: MiniBatch) -> None:
        """Puts labels of links into a batch again if they were changed since it was sampled."""
        if (now := self.labels()) is None or batch.positions is None:
            return
        if batch.labels == now[1] and now[1] is not None:
            return
        inputs = self.inputs_at(batch.positions)
        if isinstance(inputs, LinksByType):
            before = batch.metadata
            batch.metadata = {of.input_type: _relabelled(before[of.input_type], of.label) for of in inputs.inputs}
        else:
            batch.metadata = _relabelled(batch.metadata, inputs.label)
        self.collator.relabel(batch)

    def batch(self, batch: MiniBatch) -> Data | HeteroData:
        """The Data of a sample, made in the thread that it is delivered to: rows cannot change meanwhile."""
        begin = time.perf_counter()
        self.collator.at_once(batch)
        self._relabel(batch)
        self.seconds["gather"] += time.perf_counter() - begin
        return _data_of(batch)

    def finish(self, data: Data | HeteroData) -> Any:
        """The last step, in the thread that iterates: transform and pin."""
        loader = self.collator.owner
        if loader.transform is not None:
            data = as_user(loader.transform, data)
        # With worker processes, DataLoader's own thread pins.
        pins = loader.pin_memory and loader.num_workers == 0 and torch.cuda.is_available()
        return data.pin_memory() if pins else data

    # Where they run ##################################################################################################

    def steps(self) -> list[Step]:
        """All steps from a number to a batch, with the threads that sampler, rows and the user's transform allow.
        Steps after one that runs ``here`` run ``here`` as well."""
        found: list[Step] = []
        source = self.collator.source
        sampling = _where(self.sampler.thread_safe, self.sampler.collective) if self.may_prefetch else "here"
        fetching = _where(source.threads, source.collective) if source.threads or source.collective else "here"
        if source.waits:
            fetching = "waiting"
        if self.collator.owner.transform_sampler_output is not None and not self.collective:
            fetching = "here"  # what it draws from are generators of all threads
        for step in (
            Step(self.sample, sampling),
            Step(self.fetch, fetching),
            Step(self.collate, "parallel"),
            Step(self.deliver, "here"),
        ):
            found.append(Step(step.run, "here") if found and found[-1].where == "here" else step)
        return found

    @property
    def may_prefetch(self) -> bool:
        """Whether batches can be prepared by threads while the model trains."""
        return self.sampler.keyed

    @property
    def collective(self) -> bool:
        """Whether all ranks of a process group sample or fetch together."""
        return self.collator.collective

    def pipeline(self, numbered: Iterator[MiniBatch], prefetch: int) -> Pipeline:
        """Iterates over the batches, each made alone."""
        ahead, here = _divided(self.steps())

        def alone(batch: MiniBatch) -> Any:
            return self.finish(self.batch(self.sample(batch)))

        finish = in_turn([*here, self.finish])
        return Pipeline(numbered, _stages(ahead), finish, prefetch, alone=alone, begin=self.collator.begin)

    def samples(self, numbered: Iterator[MiniBatch], prefetch: int, *then: Callable[[MiniBatch], Any]) -> Pipeline:
        """Iterates over the samples, of which each is given to ``then``; no rows are read."""
        ahead, here = _divided(self.steps()[:1])
        return Pipeline(numbered, _stages(ahead), in_turn([*here, *then]), prefetch)

    def bulks(
        self, numbered: Iterator[MiniBatch], bulk: int, prefetch: int, streams: Streams | None,
        around: Callable[[], AbstractContextManager] = nullcontext,
    ) -> Unpacked[Any]:  # fmt: skip
        """Iterates over the batches, made ``bulk`` at a time; on ``streams`` of a GPU unless that is None. ``around()``
        is entered during each wait for a list of batches."""
        lists = iter(lambda: list(islice(numbered, bulk)), [])
        sample, *others = self.steps()
        assert sample.where != "here"
        many = bulk > 1 or self.collator.device is not None
        first = self._sample_many_or_each if many else _each(self.sample)
        ahead = [Step(first, sample.where)]
        for step in others:
            if step.where != "here":
                ahead.append(Step(self.fetch_many if step.run == self.fetch else _each(step.run), step.where))
        here = [step.run for step in others if step.where == "here"]
        if streams is None:
            pipeline = Pipeline(lists, _stages(ahead), _same, prefetch, begin=_each(self.collator.begin))
            return Unpacked(pipeline, in_turn([*here, self.finish]), around)
        prepare, since = in_turn([step.run for step in ahead]), self.collator.source.versions()
        here[-1] = partial(self.deliver, since=since)  # what this stream did since may not have been seen by theirs

        def on_stream(indices: list[MiniBatch]) -> Any:
            with streams.work():
                return streams.hand(prepare(indices))

        where: Where = "in order" if any(step.where == "in order" for step in ahead) else "parallel"
        pipeline = Pipeline(lists, _stages([Step(on_stream, where)]), streams.take, prefetch)
        return Unpacked(pipeline, in_turn([*here, self.finish]), around)


def _data_of(batch: MiniBatch) -> Data | HeteroData:
    """The Data of a batch, which the batch itself keeps no longer: a bulk has its batches until the last is made."""
    data, batch.data = batch.data, None
    return data


def _relabelled(metadata: tuple, label: Tensor | None) -> tuple:
    """The metadata of links with the labels ``label``."""
    if label is None:
        return metadata
    before = metadata[2]
    if len(label) < len(before):  # those of negatives follow
        label = torch.cat([label, before[len(label) :].detach()])
    return *metadata[:2], label, *metadata[3:]


def _divided(steps: list[Step]) -> tuple[list[Step], list[Callable[[Any], Any]]]:
    """The steps that run in threads, and the functions of those that run in the thread that iterates."""
    ahead = [step for step in steps if step.where != "here"]
    return ahead, [step.run for step in steps if step.where == "here"]


def _stages(steps: list[Step]) -> list[Stage]:
    return [Stage(as_here(step.run), step.where) for step in steps if step.where != "here"]


def _where(thread_safe: bool, collective: bool) -> Where:
    return "parallel" if thread_safe and not collective else "in order"


def _same(item: T) -> T:
    return item


def _each(run: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
    """A function that replaces entries by ``run(entry)``, or by :class:`Failed` if that raises; Failed entries stay."""
    return lambda entries: [entry if isinstance(entry, Failed) else or_failed(run, entry) for entry in entries]


class Execution:
    """Runs a loader's line, epoch after epoch.

    Args:
        bulk: how many batches are made at once.
        gpu: the GPU that makes batches or gathers their rows, on streams of its own; None without one.
    """

    def __init__(self, bulk: int, gpu: torch.device | None) -> None:
        self.bulk, self.gpu = bulk, gpu
        self.trial = PrefetchTrial()
        self._streams: list[torch.cuda.Stream] = []  # kept between epochs: torch reuses memory per stream
        self._stall = StreamTime()
        self.around: Callable[[], AbstractContextManager] = nullcontext if gpu is None else self._measured
        """Entered by the consumer's thread during each wait for batches: what :meth:`stall` measures."""

    def batches(self, line: Line, numbered: Iterator[MiniBatch], prefetch: int | None) -> Iterator[Any]:
        """Iterates over the batches of an epoch, and keeps ``prefetch`` of them in preparation.

        If ``prefetch`` is None, a trial chooses it if threads make batches one by one; otherwise it is USUAL. If
        ``line.may_prefetch`` is False, no batch is made in advance.
        """
        in_bulks = self.bulk > 1 or self.gpu is not None
        tried = prefetch is None and line.may_prefetch and not in_bulks and not line.collective
        ahead = 0 if not line.may_prefetch or tried else USUAL if prefetch is None else prefetch
        if not in_bulks:
            pipeline = line.pipeline(numbered, ahead)
            return self.trial.follow(pipeline) if tried else pipeline
        lists = -(-ahead // self.bulk)
        return line.bulks(numbered, self.bulk, lists, self.streams(lists), self.around)

    def streams(self, ahead: int, one: bool = False) -> Streams | None:
        """Those of one iteration, without a GPU None; arguments as of :class:`Streams`."""
        return None if self.gpu is None else Streams(self.gpu, self._streams, ahead, one)

    def _measured(self) -> AbstractContextManager:
        assert self.gpu is not None
        return self._stall.measure(self.gpu)

    def stall(self) -> dict[str, float]:
        """``{"stall": seconds}``: how long the consumer's stream was idle because batches were not ready; {} without
        a GPU."""
        return {} if self.gpu is None else {"stall": self._stall.seconds()}
