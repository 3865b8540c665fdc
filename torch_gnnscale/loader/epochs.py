"""The numbered batches of epochs, each with a chunk of the inputs: which of them a rank makes, and a loader's position
in them, which its iterators move."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from torch.utils.data import DistributedSampler
from typing_extensions import override

from .._private import count_function_modes
from .._user import on_host
from ..comm.mesh import Ranks
from ..sampler.minibatch import MiniBatch

Shard: TypeAlias = bool | tuple[int, int] | None
"""A loader's ``shard``: True for the ranks of torch.distributed, or (rank, number of ranks)."""
SharedOrder: TypeAlias = Literal["global", "owned"]
"""``global``: the batches that one process would make, dealt to the ranks in turn. ``owned``: each part's seeds are
ordered by themselves, and the ranks of a part take its batches in turn. With a split plan, ranks share batches of every
part's seeds, so that a :class:`Share` is global either way (:class:`torch_gnnscale.loader.order.ChunksOfParts`)."""
Uneven: TypeAlias = Literal["pad", "drop", "serve"]
"""Where some ranks have more batches than others: ``pad`` repeats seeds under new keys, ``drop`` leaves batches out,
``serve`` lets the others end earlier; they still answer requests for rows."""


class Position(NamedTuple):
    """One step of a rank."""

    number: int
    """The number of the batch over all ranks, which its key is made of."""
    chunk: int
    """The number of the chunk that the batch takes from its order of seeds; numbers go on after the last chunk
    (:class:`torch_gnnscale.loader.epochs.Chunks`)."""


@dataclass(frozen=True)
class Share:
    """What one rank takes of an epoch.

    Step s of rank r of P is batch k = k0 + sP + r, where k0 batches were made before. With the order ``global`` it
    takes chunk k of all seeds; with ``owned`` chunk t of its part's seeds, t = (k0 / P + s)c + j, where c ranks share
    the part and this is rank j of them, from 0.
    """

    ranks: Ranks
    seed_order: SharedOrder
    uneven: Uneven
    counts: tuple[int, ...] = ()
    """The number of chunks of each order of seeds: one entry per part, or one for all seeds. If the share is global and
    there are several orders, each of them adds a chunk to every batch."""

    @property
    def copies(self) -> int:
        """c: how many ranks take the batches of one order of seeds; all of them if it is global."""
        return self.ranks.world if self.seed_order == "global" else self.ranks.copies

    @property
    def part(self) -> int:
        """The order of seeds that this rank takes batches of: its part's number; 0 if the order is global."""
        return 0 if self.seed_order == "global" else self.ranks.part

    def with_counts(self, counts: list[int]) -> Share:
        """The share of an epoch that has ``counts[i]`` chunks of order of seeds i.

        Raises:
            ValueError: a part without a batch, or ``drop`` that leaves no step, unless ``serve``.
        """
        share = replace(self, counts=tuple(counts))
        if self.uneven != "serve":
            if 0 in counts:
                of = f"part {counts.index(0)} to have " if self.seed_order == "owned" or len(counts) > 1 else ""
                instead = "'serve' or seed_order='global'" if of else "'serve'"
                raise ValueError(f"uneven={self.uneven!r}: expected {of}at least one batch, found none; use {instead}")
            if share.steps(0) == 0:
                raise ValueError(
                    f"uneven='drop': expected a batch for each of {self.ranks.world} ranks, found {counts} in all"
                )
        return share

    def steps(self, first: int) -> int:
        """Steps of this rank in an epoch of which ``first`` batches were made, by all ranks together."""
        if self.uneven == "serve":
            walked = [self.part] if self.seed_order == "owned" else range(len(self.counts))
            return max(self._own_steps(part, self._turn, first) for part in walked)
        # Turns of lower numbers have as many batches as later ones, or one more.
        turn = 0 if self.uneven == "pad" else self.copies - 1
        each = [self._own_steps(part, turn, first) for part in range(len(self.counts))]
        return max(each) if self.uneven == "pad" else min(each)

    def steps_of_all(self, first: int) -> int:
        """The number of steps in which all ranks take part: that of the rank with most batches."""
        return max(self._own_steps(part, 0, first) for part in range(len(self.counts)))

    @property
    def _turn(self) -> int:
        """j: this rank's number among those that take the batches of one order of seeds in turn."""
        return self.ranks.rank if self.seed_order == "global" else self.ranks.copy

    def _own_steps(self, part: int, turn: int, first: int) -> int:
        left = self.counts[part] - first * self.copies // self.ranks.world - turn
        return max(0, -(-left // self.copies))

    def inputs_of_step(self, number: int, size_of: Callable[[int], int]) -> int:
        """How many inputs all ranks have together in a step; the order is global.

        Args:
            number: of this rank's batch in that step.
            size_of: returns how many inputs a batch has, by its number.
        """
        numbers = [number - self.ranks.rank + rank for rank in range(self.ranks.world)]
        return sum(size_of(of_rank) for of_rank in numbers if self.uneven != "serve" or of_rank < max(self.counts))

    def positions(self, first: int) -> Iterator[Position]:
        """The steps of this rank after ``first`` batches of all ranks."""
        world, copies = self.ranks.world, self.copies
        number, chunk = first + self.ranks.rank, first * copies // world + self._turn
        return map(Position, count(number, world), range(chunk, chunk + self.steps(first) * copies, copies))


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
