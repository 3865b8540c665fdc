"""Makes batches on CUDA streams of their own and hands them to the consumer's stream without blocking the host."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data.data import BaseData

from .._host import of_user, users_device

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
