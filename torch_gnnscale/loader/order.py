"""The order of seeds: batches are numbered, shuffled by a key, and resumed where a run was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from .._host import on_host
from ..random import Purpose, batch_key
from .chunks import Chunks, ChunksOfParts
from .share import Share

FORMAT = 3
"""Version of the format of states."""
T = TypeVar("T")


class NumberedBatch(NamedTuple):
    """A batch's epoch and number, from which its key is made, and the positions of its inputs."""

    epoch: int
    number: int
    positions: np.ndarray


class NumberedBatches:
    """The batches of an epoch, numbered.

    Args:
        batches: a torch batch sampler.
        chunks: the inputs of batches; None if the sampler is the user's.
        start: returns (epoch, number of the first batch, counted over all ranks).
        share: which batches this rank makes; None: all.
    """

    def __init__(
        self, batches: Any, chunks: Chunks | ChunksOfParts | None, start: Callable[[], tuple[int, int]],
        share: Share | None = None,
    ) -> None:  # fmt: skip
        self.batches, self.chunks = batches, chunks
        self.start = start
        self.share = share

    def __len__(self) -> int:
        return len(self.batches) if self.share is None else self.share.steps(0)

    @property
    def keyed(self) -> bool:
        """Whether an epoch's batches are a function of (seed, epoch); False for a sampler of the user's."""
        return self.chunks is not None

    def __iter__(self) -> Iterator[NumberedBatch]:
        epoch, first = self.start()
        if self.chunks is None:
            return self._number(islice(iter(self.batches), first, None), epoch, first)
        inputs, share = self.chunks.of_epoch(epoch), self.share
        chosen = ((k, k) for k in range(first, len(self.batches))) if share is None else share.positions(first)
        return (NumberedBatch(epoch, number, inputs(chunk)) for number, chunk in chosen)

    @staticmethod
    def _number(chosen: Iterator[Any], epoch: int, first: int) -> Iterator[NumberedBatch]:
        for number, positions in enumerate(chosen, first):
            yield NumberedBatch(epoch, number, np.asarray(positions, dtype=np.int64))


class SeedOrder:
    """Numbers batches, makes their keys, and keeps the position of training (epoch, number of the next batch).

    Args:
        seed: the loader's.
        share: what this rank makes of an epoch; None: everything.
    """

    def __init__(self, seed: int, share: Share | None = None) -> None:
        self.seed = seed
        self.share = share
        self.chunks_of_parts: ChunksOfParts | None = None
        """The inputs of batches, where each batch has some of every part's; set by the loader."""
        self.epoch, self.batch = 0, 0
        """The epoch of the next batch to be delivered, and how many of its batches all ranks have made before."""
        self._next = (0, 0)  # where the next iterator begins
        self._iterations = 0

    def key(self, index: NumberedBatch, purpose: Purpose = Purpose.SAMPLE) -> int:
        """The key of a batch."""
        return batch_key(self.seed, index.epoch, index.number, purpose)

    def numbered(self, batches: Any, epoch: int | None = None) -> NumberedBatches:
        """A batch sampler's batches from the current position on, or all batches of ``epoch``."""
        chunks = Chunks.of(batches) if self.chunks_of_parts is None else self.chunks_of_parts

        def start() -> tuple[int, int]:
            return (self.epoch, self.batch) if epoch is None else (epoch, 0)

        return NumberedBatches(batches, chunks, start, self.share)

    # The position of training ########################################################################################

    def set_next(self, epoch: int, batch: int = 0) -> None:
        """The next iterator begins at this position; later iterators begin the epochs after it."""
        self._next = (epoch, batch)
        self._jump(epoch, batch)

    def begin(self) -> None:
        """Called when an iterator begins: sets its position."""
        self._jump(*self._next)
        self._next = (self.epoch + 1, 0)

    def _jump(self, epoch: int, batch: int) -> None:
        """Sets the position. Iterators that began before no longer move it."""
        self.epoch, self.batch = epoch, batch
        self._iterations += 1

    def follow(self, iterator: Iterator[T]) -> Followed[T]:
        """Wraps an iterator so that it moves the position, until another iterator begins."""
        return Followed(iterator, self, self._iterations)

    def move(self, iteration: int, ended: bool) -> None:
        """Moves the position by one batch of each rank, or to the next epoch if ``ended``; ignored for an older
        iteration."""
        if iteration != self._iterations:
            return
        if ended:
            self.epoch, self.batch = self.epoch + 1, 0
        else:
            self.batch += 1 if self.share is None else self.share.ranks.world

    # States ##########################################################################################################

    def options(self) -> dict[str, Any]:
        """What decides which batches an epoch has, in plain values. With one order for the seeds of all parts, neither
        the ranks nor ``uneven`` are among them: a run may go on with others."""
        share = self.share
        if share is None or (share.seed_order == "global" and self.chunks_of_parts is None):
            return {"seed_order": "global"}
        ranks = share.ranks
        of_parts: dict[str, Any] = {"ranks": ranks.world, "parts": ranks.parts, "consecutive": ranks.consecutive}
        if self.chunks_of_parts is not None:
            of_parts = self.chunks_of_parts.options()
        return {"seed_order": "owned", **of_parts, "uneven": share.uneven}

    def state(self) -> dict[str, Any]:
        """The seed and the position in plain values."""
        return {"format": FORMAT, "seed": self.seed, "epoch": self.epoch, "batch": self.batch}

    def load(self, state: dict[str, Any], expected: dict[str, Any]) -> None:
        """Sets the seed and the position from a state; ValueError unless it has all entries of ``expected``."""
        check_state(state, expected)
        self.seed = state["seed"]
        self.set_next(state["epoch"], state["batch"])


_next = on_host(next)


class Followed(Generic[T]):
    """An iterator that moves the position of a SeedOrder by each batch that it delivers or that fails.

    The epoch ends when the iterator raises StopIteration; not when it is closed, or stops because of an error.
    """

    def __init__(self, iterator: Iterator[T], order: SeedOrder, iteration: int) -> None:
        self._iterator = iterator
        self._seed_order = order
        self._iteration = iteration
        self._ended = self._failed = False

    def __iter__(self) -> Followed[T]:
        return self

    def __next__(self) -> T:
        try:
            batch = _next(self._iterator)
        except StopIteration:
            if not self._ended and not self._failed:
                self._seed_order.move(self._iteration, ended=True)
            self._ended = True
            raise
        except Exception:
            self._failed = True
            self._seed_order.move(self._iteration, ended=False)
            raise
        self._failed = False
        self._seed_order.move(self._iteration, ended=False)
        return batch

    def close(self) -> None:
        """Stops the threads that prepare batches."""
        self._ended = True
        if hasattr(self._iterator, "close"):
            self._iterator.close()

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # while unpickling
            raise AttributeError(name)
        return getattr(self._iterator, name)


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
