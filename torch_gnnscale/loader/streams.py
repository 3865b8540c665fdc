"""Batches made on streams of a GPU beside the consumer's, and handed over to it without a wait of the host."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data.data import BaseData
from torch_geometric.sampler import SamplerOutput

T = TypeVar("T")


class Handed(NamedTuple):
    """What was queued on another stream, and the event behind it."""

    batches: list[Any]
    ready: torch.cuda.Event


class Streams:
    """A stream for each thread that prepares batches, none of which overtakes what was queued when this was made.

    They are taken from ``pool``, which grows as needed: the memory that was used on a stream is only reused there.
    The host hands over at most ``ahead + 1`` times more than the consumer's stream has got to, so that this bounds the
    memory of batches that are in use.
    """

    def __init__(self, device: torch.device, pool: list[torch.cuda.Stream], ahead: int) -> None:
        self.device, self._ahead = device, ahead
        self._pool, self._used, self._lock = pool, 0, threading.Lock()
        self._begin = torch.cuda.current_stream(device).record_event()
        self._own = threading.local()
        self._handed: deque[torch.cuda.Event] = deque()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Queues what is done inside on the calling thread's stream."""
        if not hasattr(self._own, "stream"):
            with self._lock:
                if self._used == len(self._pool):
                    self._pool.append(torch.cuda.Stream(self.device))
                self._own.stream = self._pool[self._used]
                self._used += 1
            self._own.stream.wait_event(self._begin)
        with torch.cuda.stream(self._own.stream):
            yield

    def hand(self, batches: list[Any]) -> Handed:
        """To be called inside :meth:`work`, behind the last of the batches."""
        return Handed(batches, torch.cuda.current_stream(self.device).record_event())

    def take(self, handed: Handed) -> list[Any]:
        """The batches, for use on the current stream, which waits for them; their memory is not reused before that."""
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
    """Every dense tensor on a GPU that a batch consists of, those that sparse tensors and EdgeIndex keep included."""
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
    elif isinstance(value, SamplerOutput):
        yield from tensors_of(vars(value))
    elif hasattr(value, "feat_dict"):  # torch_frame's TensorFrame
        yield from tensors_of(value.feat_dict)


def as_here(prepare: Callable[[T], Any]) -> Callable[[T], Any]:
    """``prepare`` for threads that make what the calling thread uses: in its modes of autograd, and on its stream."""
    modes: list[Callable[[], AbstractContextManager]] = []
    if torch.is_inference_mode_enabled():
        modes.append(torch.inference_mode)
    elif not torch.is_grad_enabled():
        modes.append(torch.no_grad)
    if torch.cuda.is_initialized():
        modes.append(partial(torch.cuda.stream, torch.cuda.current_stream()))

    def there(item: T) -> Any:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            return prepare(item)

    return there if modes else prepare


class Failed(NamedTuple):
    """What stands for a batch that could not be made."""

    error: Exception


def or_failed(make: Callable[[Any], T], item: Any) -> T | Failed:
    """What ``make`` gives, or the error that it raises."""
    try:
        return make(item)
    except Exception as error:
        return Failed(error)


class Unpacked(Generic[T]):
    """The entries of an iterator's lists, one by one, each as ``finish`` leaves it, errors where batches failed;
    ``around`` each wait for a list."""

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
                batches.clear()  # the frames that an error keeps alive would keep the list, and it the error
            batch = self._ready.popleft()
            try:
                if isinstance(batch, Failed):
                    raise batch.error
                return self._finish(batch)
            finally:
                del batch  # which an error's traceback would keep, and it the error
        except BaseException as error:
            if isinstance(error, StopIteration) or not isinstance(error, Exception):
                self.close()
            raise

    def close(self) -> None:
        """Stops what prepares the lists."""
        self._ready.clear()
        self._lists.close()
