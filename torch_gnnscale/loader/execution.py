"""How a loader's line runs: which threads run each step, how many batches are made in advance and at once, and on which
CUDA streams, which hand batches to the consumer's stream without blocking the host."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import is_dataclass
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data.data import BaseData

from .._user import of_user, users_device
from ..feature.tiered_rows import StreamTime
from ..sampler.minibatch import MiniBatch
from .line import Line
from .pipeline import USUAL, Pipeline, PrefetchTrial, Stage, Where, in_turn

T = TypeVar("T")


class Handed(NamedTuple):
    """Batches whose work was queued on a stream, and the event recorded after it."""

    batches: list[Any]
    ready: torch.cuda.Event


class Streams:
    """One stream per thread that prepares batches, or ``one`` for all. Their work starts after what the consumer's
    stream had queued when this object was made.

    Streams are taken from ``pool``, which grows as needed; pools are kept, because torch reuses memory per stream. The
    host waits so that at most ``ahead + 1`` lists are handed over that the consumer's stream has not reached yet: this
    bounds the memory in use.
    """

    def __init__(self, device: torch.device, pool: list[torch.cuda.Stream], ahead: int, one: bool = False) -> None:
        self.device, self._ahead = device, ahead
        self._pool, self._used, self._lock = pool, 0, threading.Lock()
        self._begin = torch.cuda.current_stream(device).record_event()
        self._own: Any = SimpleNamespace() if one else threading.local()
        self._handed: deque[torch.cuda.Event] = deque()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Work inside is queued on the calling thread's stream."""
        with self._lock:
            if not hasattr(self._own, "stream"):
                if self._used == len(self._pool):
                    self._pool.append(torch.cuda.Stream(self.device))
                stream = self._pool[self._used]
                self._used += 1
                stream.wait_event(self._begin)
                self._own.stream = stream
        with torch.cuda.stream(self._own.stream):
            yield

    def hand(self, batches: list[Any]) -> Handed:
        """Records the end of the work on these batches. Call it inside :meth:`work`, after the last batch."""
        return Handed(batches, torch.cuda.current_stream(self.device).record_event())

    def take(self, handed: Handed) -> list[Any]:
        """The batches, for use on the current stream, which waits for them. Their memory is not reused before this
        stream has finished with it."""
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(handed.ready)
        self._handed.append(stream.record_event())
        if len(self._handed) > self._ahead + 1:
            self._handed.popleft().synchronize()
        for batch in handed.batches:
            for tensor in tensors_of(batch):
                tensor.record_stream(stream)
        return handed.batches


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All dense CUDA tensors of a batch, including those inside sparse tensors and EdgeIndex."""
    if isinstance(value, Tensor):
        parts: tuple[Any, ...]
        if value.layout == torch.sparse_coo:
            parts = (value._indices(), value._values())
        elif value.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = (value.crow_indices(), value.col_indices(), value.values())
        elif value.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = (value.ccol_indices(), value.row_indices(), value.values())
        elif isinstance(value, EdgeIndex):
            parts = (value.as_tensor(), value._indptr)
        else:
            parts = (value,)
        yield from (part for part in parts if part is not None and part.is_cuda)
    elif isinstance(value, dict):
        for entry in value.values():
            yield from tensors_of(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from tensors_of(entry)
    elif isinstance(value, BaseData):
        yield from tensors_of(value.to_dict())
    elif is_dataclass(value) and hasattr(value, "__dict__"):  # a sampler's output, say
        yield from tensors_of(vars(value))
    elif hasattr(value, "feat_dict"):  # torch_frame's TensorFrame
        yield from tensors_of(value.feat_dict)


def as_here(prepare: Callable[[T], Any]) -> Callable[[T], Any]:
    """``prepare`` for other threads, run in the calling thread's current autograd mode and CUDA stream; functions of
    the user's see the calling thread's default device."""
    modes: list[Callable[[], AbstractContextManager]] = []
    if torch.is_inference_mode_enabled():
        modes.append(torch.inference_mode)
    elif not torch.is_grad_enabled():
        modes.append(torch.no_grad)
    if torch.cuda.is_initialized():
        modes.append(partial(torch.cuda.stream, torch.cuda.current_stream()))

    if (device := users_device()) is not None:
        modes.append(partial(of_user, device))

    def there(item: T) -> Any:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            return prepare(item)

    return there if modes else prepare


class Failed(NamedTuple):
    """Takes the position of a batch that could not be made."""

    error: Exception


def or_failed(make: Callable[[Any], T], item: Any) -> T | Failed:
    """``make(item)``, or its error as :class:`Failed`."""
    try:
        return make(item)
    except Exception as error:
        return Failed(error)


class Unpacked(Generic[T]):
    """Iterates over ``finish(entry)`` for each entry of each list of ``lists``; raises the error of a :class:`Failed`.
    ``around()`` is entered during each wait for a list."""

    def __init__(
        self, lists: Any, finish: Callable[[Any], T], around: Callable[[], AbstractContextManager] = nullcontext
    ) -> None:
        self._lists, self._finish, self._around = lists, finish, around
        self._ready: deque[Any] = deque()

    def __iter__(self) -> Unpacked[T]:
        return self

    def __next__(self) -> T:
        try:
            while not self._ready:
                with self._around():
                    batches = next(self._lists)
                self._ready.extend(batches)
                batches.clear()  # else an error would be in a cycle: error -> traceback -> frame -> list -> error
            batch = self._ready.popleft()
            try:
                if isinstance(batch, Failed):
                    raise batch.error
                return self._finish(batch)
            finally:
                del batch  # as above
        except BaseException as error:
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                self.close()
            raise

    def close(self) -> None:
        """Stops the threads that prepare the lists."""
        self._ready.clear()
        self._lists.close()


class Step(NamedTuple):
    """A step of the line and the threads that may run it."""

    run: Callable[[Any], Any]
    where: Where | Literal["here"]
    """``here``: the thread that iterates."""


def steps_of(line: Line) -> list[Step]:
    """All steps from a number to a batch, with the threads that sampler, rows and the user's transform allow.
    Steps after one that runs ``here`` run ``here`` as well."""
    found: list[Step] = []
    source = line.collator.source
    sampling = _where(line.sampler.thread_safe, line.sampler.collective) if line.sampler.keyed else "here"
    fetching = _where(source.threads, source.collective) if source.threads or source.collective else "here"
    if source.waits:
        fetching = "waiting"
    if line.collator.owner.transform_sampler_output is not None and not line.collective:
        fetching = "here"  # what it draws from are generators of all threads
    for step in (
        Step(line.sample, sampling),
        Step(line.fetch, fetching),
        Step(line.collate, "parallel"),
        Step(line.deliver, "here"),
    ):
        found.append(Step(step.run, "here") if found and found[-1].where == "here" else step)
    return found


def _one_by_one(line: Line, numbered: Iterator[MiniBatch], prefetch: int) -> Pipeline:
    """Iterates over the batches, each made alone."""
    ahead, here = _divided(steps_of(line))

    finish = in_turn([*here, line.finish])
    return Pipeline(numbered, _stages(ahead), finish, prefetch, alone=line.alone, begin=line.collator.begin)


def samples(line: Line, numbered: Iterator[MiniBatch], prefetch: int, *then: Callable[[MiniBatch], Any]) -> Pipeline:
    """Iterates over the samples, of which each is given to ``then``; no rows are read."""
    ahead, here = _divided(steps_of(line)[:1])
    return Pipeline(numbered, _stages(ahead), in_turn([*here, *then]), prefetch)


def _in_bulks(
    line: Line, numbered: Iterator[MiniBatch], bulk: int, prefetch: int, streams: Streams | None,
    around: Callable[[], AbstractContextManager] = nullcontext,
) -> Unpacked[Any]:  # fmt: skip
    """Iterates over the batches, made ``bulk`` at a time; on ``streams`` of a GPU unless that is None. ``around()``
    is entered during each wait for a list of batches."""
    lists = iter(lambda: list(islice(numbered, bulk)), [])
    sample, *others = steps_of(line)
    assert sample.where != "here"
    many = bulk > 1 or line.collator.device is not None
    first = partial(_sample_many_or_each, line) if many else _each(line.sample)
    ahead = [Step(first, sample.where)]
    for step in others:
        if step.where != "here":
            ahead.append(Step(partial(_fetch_many, line) if step.run == line.fetch else _each(step.run), step.where))
    here = [step.run for step in others if step.where == "here"]
    if streams is None:
        pipeline = Pipeline(lists, _stages(ahead), _same, prefetch, begin=_each(line.collator.begin))
        return Unpacked(pipeline, in_turn([*here, line.finish]), around)
    prepare, since = in_turn([step.run for step in ahead]), line.collator.source.own.versions()
    here[-1] = partial(line.deliver, since=since)  # what this stream did since may not have been seen by theirs

    def on_stream(indices: list[MiniBatch]) -> Any:
        with streams.work():
            return streams.hand(prepare(indices))

    where: Where = "in order" if any(step.where == "in order" for step in ahead) else "parallel"
    pipeline = Pipeline(lists, _stages([Step(on_stream, where)]), streams.take, prefetch)
    return Unpacked(pipeline, in_turn([*here, line.finish]), around)


def _sample_many_or_each(line: Line, batches: list[MiniBatch]) -> list[Any]:
    """What :meth:`Line.sample_many` returns. If it raises, each batch is sampled alone, and those that fail are
    :class:`Failed`; of a collective sampler, which other ranks would have to ask again, too, all are."""
    made = or_failed(line.sample_many, batches)
    if not isinstance(made, Failed):
        return made
    return [made] * len(batches) if line.collective else _each(line.sample)(batches)


def _fetch_many(line: Line, batches: list[Any]) -> list[Any]:
    """What :meth:`Line.fetch` returns for each batch, or :class:`Failed` where it raises. All reads are started before
    the first is waited for."""
    begin = time.perf_counter()
    started = _each(line.collator.start)(batches)
    fetched = _each(lambda wait: wait())(started)
    line.seconds["gather"] += time.perf_counter() - begin
    return fetched


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

        If ``prefetch`` is None, a trial chooses it if threads make batches one by one; otherwise it is USUAL. No
        batch is made in advance for a sampler that is not keyed.
        """
        in_bulks = self.bulk > 1 or self.gpu is not None
        tried = prefetch is None and line.sampler.keyed and not in_bulks and not line.collective
        ahead = 0 if not line.sampler.keyed or tried else USUAL if prefetch is None else prefetch
        if not in_bulks:
            pipeline = _one_by_one(line, numbered, ahead)
            return self.trial.follow(pipeline) if tried else pipeline
        lists = -(-ahead // self.bulk)
        return _in_bulks(line, numbered, self.bulk, lists, self.streams(lists), self.around)

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
