"""The epochs of a loader and its position in one, which its iterators move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from torch.utils.data import DistributedSampler

from .._host import on_host
from .._private import count_function_modes
from .share import Share

T = TypeVar("T")


class Epochs:
    """Keeps the position of training: (epoch, number of the next batch).

    Args:
        seed: the loader's.
        share: what this rank makes of an epoch; None: everything.
        dealt: the user's sampler that deals inputs to ranks, if there is one. Its ``set_epoch`` may go ahead of the
            epochs counted here; keys are made of the later of the two.
    """

    def __init__(self, seed: int, share: Share | None = None, dealt: DistributedSampler | None = None) -> None:
        self.seed = seed
        self.share, self.dealt = share, dealt
        self.epoch, self.batch = 0, 0
        """The epoch of the next batch to be delivered, and how many of its batches all ranks have made before."""
        self._next = (0, 0)  # where the next iterator begins
        self._iterations = 0
        self._fresh = False  # whether the latest iterator exists and has delivered no batch

    @property
    def position(self) -> tuple[int, int]:
        """The epoch of the next batch, and how many of its batches all ranks have made before."""
        if self.dealt is not None and self.dealt.epoch > self.epoch:
            return self.dealt.epoch, 0
        return self.epoch, self.batch

    def set_next(self, epoch: int, batch: int = 0) -> None:
        """The next iterator begins at this position; later iterators begin the epochs after it."""
        self._next = (epoch, batch)
        self._jump(epoch, batch)

    def begin(self) -> None:
        """Called when an iterator begins: sets its position."""
        self._jump(*self._next)
        self._next = (self.epoch + 1, 0)

    def follow_epoch(self, epoch: int) -> None:
        """The latest iterator goes on in ``epoch`` if it has delivered no batch yet, and so does one that takes its
        place before its first batch; otherwise the next one begins there. A position within that epoch stays.

        Lightning calls it between ``iter()`` and the first batch, and between two ``iter()`` of a loader that it has
        just made anew.
        """
        if not self._fresh and self._next[0] != epoch:
            self.set_next(epoch)
        elif self._fresh:
            if self.epoch != epoch:
                self.epoch, self.batch = epoch, 0
            self._next = (self.epoch, self.batch)

    def _jump(self, epoch: int, batch: int) -> None:
        """Sets the position. Iterators that began before no longer move it."""
        self.epoch, self.batch = epoch, batch
        self._iterations += 1
        self._fresh = False

    def follow(self, make: Callable[[], Iterator[T]]) -> Followed[T]:
        """The iterator ``make()`` over the epoch from the current position on. It moves the position, until another
        iterator begins."""
        followed = Followed(make, self, self._iterations)
        self._fresh = True
        return followed

    def forget(self, iteration: int) -> None:
        """The iterator of ``iteration`` delivers no more batches."""
        self._fresh = self._fresh and iteration != self._iterations

    def has_moved(self, iteration: int, begun: tuple[int, int]) -> bool:
        """Whether the latest iterator, of ``iteration``, was sent from where it began to another epoch."""
        return self._fresh and iteration == self._iterations and self.position != begun

    def move(self, iteration: int, ended: bool) -> None:
        """Moves the position by one batch of each rank, or to the next epoch if ``ended``; ignored for an older
        iteration."""
        if iteration != self._iterations:
            return
        if self._fresh:
            (self.epoch, self.batch), self._fresh = self.position, False
            self._next = (self.epoch + 1, 0)
        if ended:
            self.epoch, self.batch = self.epoch + 1, 0
        else:
            self.batch += 1 if self.share is None else self.share.ranks.world


_next = on_host(next)
"""Only called where the thread has modes, of which a default device is one."""


class Followed(Generic[T]):
    """An iterator that moves the position of a loader by each batch that it delivers or that fails.

    The epoch ends when the iterator raises StopIteration; not when it is closed, or stops because of an error.
    """

    def __init__(self, make: Callable[[], Iterator[T]], epochs: Epochs, iteration: int) -> None:
        self._make, self._epochs, self._iteration = make, epochs, iteration
        self._ended = self._failed = False
        self._begin()

    def _begin(self) -> None:
        self._begun = self._epochs.position
        self._iterator = self._make()

    def __iter__(self) -> Followed[T]:
        return self

    def __next__(self) -> T:
        if self._epochs.has_moved(self._iteration, self._begun):
            self._stop()
            self._begin()
        try:
            batch = _next(self._iterator) if count_function_modes() else next(self._iterator)
        except StopIteration:
            if not self._ended and not self._failed:
                self._epochs.move(self._iteration, ended=True)
            self._ended = True
            raise
        except Exception:
            self._failed = True
            self._epochs.move(self._iteration, ended=False)
            raise
        self._failed = False
        self._epochs.move(self._iteration, ended=False)
        return batch

    def close(self) -> None:
        """Stops the threads that prepare batches."""
        self._ended = True
        self._epochs.forget(self._iteration)
        self._stop()

    def _stop(self) -> None:
        if hasattr(self._iterator, "close"):
            self._iterator.close()

    def __del__(self) -> None:
        if "_iterator" in self.__dict__:
            self._epochs.forget(self._iteration)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # while unpickling
            raise AttributeError(name)
        return getattr(self._iterator, name)
