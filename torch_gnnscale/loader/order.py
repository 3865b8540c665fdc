"""The order of seeds: batches are numbered, take chunks of the inputs, and go on where a run was stopped. An iterator
moves the position of its loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from torch.utils.data import BatchSampler, DistributedSampler, Sampler
from typing_extensions import override

from .._private import count_function_modes
from .._user import on_host
from ..random import Purpose, batch_key
from ..sampler.minibatch import MiniBatch
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


class Place(int):
    """The position of an input that knows its epoch and its place in the order of that epoch.

    Tools that make another DataLoader of a loader's samplers (Accelerate) deal out its batches as lists of these.
    """

    epoch: int
    place: int

    @classmethod
    def of(cls, position: int, epoch: int, place: int) -> Place:
        """The ``place``-th input of an epoch is ``position``."""
        found = cls(position)
        found.epoch, found.place = epoch, place
        return found


class PositionSampler(Sampler):
    """A torch sampler whose epochs are those of a loader.

    Our loaders ask :meth:`positions`. Only DataLoaders of others iterate it: each ``iter()`` takes the loader's next
    epoch, or the rest of the one that a state was loaded of, as :class:`Place` objects.
    """

    epochs: Epochs
    batch_size: int

    def positions(self, epoch: int) -> np.ndarray:
        """The positions of the inputs in the order of an epoch: int64, shape [inputs]."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning and Accelerate before an epoch: sets the loader's epoch unless it is there already."""
        self.epochs.follow_epoch(epoch)

    def __iter__(self) -> Iterator[Place]:
        self.epochs.begin()
        epoch, first = self.epochs.epoch, self.epochs.batch * self.batch_size
        for place, position in enumerate(self.positions(epoch)[first:].tolist(), first):
            yield Place.of(position, epoch, place)


class BatchChunks(ABC):
    """Which inputs each batch of an epoch has."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many batches there are; those with larger numbers are these once more."""

    @property
    def counts(self) -> list[int]:
        """How many batches each of its orders of inputs is enough for."""
        return [self.count]

    @abstractmethod
    def of_epoch(self, epoch: int) -> Callable[[int], np.ndarray]:
        """A function that returns the positions of a batch's inputs, by its number: int64."""

    @abstractmethod
    def size_of(self, number: int) -> int:
        """How many inputs a batch has."""

    def options(self) -> dict[str, Any]:
        """What decides them besides inputs, seed and batch size, in plain values."""
        return {}


@dataclass(frozen=True)
class Chunks(BatchChunks):
    """One order of inputs in chunks of ``size``, a chunk for each batch."""

    order: Callable[[int], np.ndarray]
    """Returns the positions of the inputs, in the order of an epoch."""
    inputs: int
    size: int
    drop_last: bool
    """Leaves out a last chunk that is smaller."""

    @classmethod
    def of(cls, batches: Any) -> Chunks | None:
        """The chunks that a torch batch sampler makes of its sampler's order; None for samplers of the user's own."""
        if type(batches) is not BatchSampler or not isinstance(batches.sampler, PositionSampler):
            return None
        sampler = batches.sampler
        return cls(sampler.positions, len(sampler), batches.batch_size, batches.drop_last)  # type: ignore[arg-type]

    @property
    @override
    def count(self) -> int:
        return self.inputs // self.size if self.drop_last else -(-self.inputs // self.size)

    @override
    def of_epoch(self, epoch: int) -> Callable[[int], np.ndarray]:
        positions, count = self.order(epoch), self.count

        def chunk(number: int) -> np.ndarray:
            begin = number % count * self.size
            return positions[begin : begin + self.size]

        return chunk

    @override
    def size_of(self, number: int) -> int:
        return min(self.size, self.inputs - number % self.count * self.size)


FORMAT = 3
"""Version of the format of states."""


class FromElsewhere(NamedTuple):
    """A batch that a DataLoader of others took from a loader's inputs."""

    batch: MiniBatch | list[int]
    """A list of positions, if nothing says the number."""


class NumberedBatches:
    """The batches of an epoch, numbered.

    Args:
        batches: a torch batch sampler.
        chunks: the inputs of batches; None if the sampler is the user's.
        start: returns (epoch, number of the first batch, counted over all ranks).
        share: which batches this rank makes; None: all.
        dealt: the user's sampler that deals inputs to ranks: batch s of rank r of P has number sP + r.
    """

    def __init__(
        self, batches: Any, chunks: BatchChunks | None, start: Callable[[], tuple[int, int]],
        share: Share | None = None, dealt: DistributedSampler | None = None,
    ) -> None:  # fmt: skip
        self.batches, self.chunks = batches, chunks
        self.start = start
        self.share, self.dealt = share, dealt

    def __len__(self) -> int:
        if self.share is not None:
            return self.share.steps(0)
        return len(self.batches) if self.chunks is None else self.chunks.count

    @property
    def keyed(self) -> bool:
        """Whether an epoch's batches are a function of (seed, epoch); False for a sampler of the user's."""
        return self.chunks is not None

    def __iter__(self) -> Iterator[MiniBatch]:
        epoch, first = self.start()
        if self.chunks is None:
            return self._number(islice(iter(self.batches), first, None), epoch, first, self.dealt)
        inputs, share = self.chunks.of_epoch(epoch), self.share
        chosen = ((k, k) for k in range(first, self.chunks.count)) if share is None else share.positions(first)
        return (MiniBatch(epoch, number, inputs(chunk)) for number, chunk in chosen)

    @staticmethod
    def _number(chosen: Iterator[Any], epoch: int, first: int, dealt: DistributedSampler | None) -> Iterator[MiniBatch]:
        rank, world = (0, 1) if dealt is None else (dealt.rank, dealt.num_replicas)
        for step, positions in enumerate(chosen, first):
            yield MiniBatch(epoch, step * world + rank, np.asarray(positions, dtype=np.int64))


class SeedOrder(Epochs):
    """Numbers batches, makes their keys, and keeps the position of training; arguments as of :class:`Epochs`."""

    chunks: BatchChunks | None = None
    """The inputs of batches, where each batch has some of every part's or type's; set by the loader."""

    def key(self, index: MiniBatch, purpose: Purpose = Purpose.SAMPLE) -> int:
        """The key of a batch."""
        return batch_key(self.seed, index.epoch, index.number, purpose)

    def numbered(self, batches: Any, epoch: int | None = None) -> NumberedBatches:
        """A batch sampler's batches from the current position on, or all batches of ``epoch``."""
        chunks = Chunks.of(batches) if self.chunks is None else self.chunks

        def start() -> tuple[int, int]:
            return self.position if epoch is None else (epoch, 0)

        return NumberedBatches(batches, chunks, start, self.share, self.dealt)

    # States ##########################################################################################################

    def options(self) -> dict[str, Any]:
        """What decides which batches an epoch has, in plain values. With one order for the seeds of all parts, neither
        the ranks nor ``uneven`` are among them: a run may go on with others."""
        share, of_parts = self.share, {} if self.chunks is None else self.chunks.options()
        if share is None or (share.seed_order == "global" and not of_parts):
            return {"seed_order": "global"}
        ranks = share.ranks
        own = {"ranks": ranks.world, "parts": ranks.parts, "consecutive": ranks.consecutive}
        return {"seed_order": "owned", **(of_parts or own), "uneven": share.uneven}

    def state(self) -> dict[str, Any]:
        """The seed and the position in plain values."""
        epoch, batch = self.position
        return {"format": FORMAT, "seed": self.seed, "epoch": epoch, "batch": batch}

    def load(self, state: dict[str, Any], expected: dict[str, Any]) -> None:
        """Sets the seed and the position from a state; ValueError unless it has all entries of ``expected``."""
        check_state(state, expected)
        self.seed = state["seed"]
        self.set_next(state["epoch"], state["batch"])


def check_state(state: Any, expected: dict[str, Any]) -> None:
    """Raises ValueError unless ``state`` has the format of a loader's state and all entries of ``expected``."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = f"format {state.get('format')!r}" if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"state: expected what state_dict() returned (format {FORMAT}), found {found}")
    for name, value in expected.items():
        if state.get(name) != value:
            raise ValueError(f"state: expected a loader with {name}={state.get(name)!r}, found {name}={value!r}")
    for name in ("seed", "epoch", "batch"):
        if type(state.get(name)) is not int or (name != "seed" and state[name] < 0):
            raise ValueError(f"state: expected a number as {name}, found {state.get(name)!r}")
