"""The order of seeds: as they are, or shuffled by a key; all of them, or in groups, one for each part or type. Batches
are numbered, take chunks of the inputs, and go on where a run was stopped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler
from typing_extensions import override

from .. import ops
from ..random import Purpose, batch_key, ids_key
from ..sampler.minibatch import MiniBatch
from .epochs import Epochs, Share


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


class KeyedShuffle(PositionSampler, RandomSampler):
    """A permutation of the inputs that is a function of (seed, epoch, part).

    Args:
        data_source: the inputs.
        epochs: of the loader, with its seed.
        batch_size: the inputs of a batch.
        part: 0 unless each part's seeds are ordered by themselves.
    """

    def __init__(self, data_source: Sequence, epochs: Epochs, batch_size: int = 1, part: int = 0) -> None:
        if len(data_source):
            RandomSampler.__init__(self, data_source)
        else:  # RandomSampler refuses an empty data source, although a rank may have no seeds
            self.data_source, self.replacement, self._num_samples, self.generator = data_source, False, None, None
        self.epochs, self.batch_size, self.part = epochs, batch_size, part

    @override
    def positions(self, epoch: int) -> np.ndarray:
        return self.permutation(len(self.data_source), epoch, self.part)

    def permutation(self, count: int, epoch: int, part: int) -> np.ndarray:
        """A permutation of ``count`` inputs of a part, for an epoch: int64, shape [count]."""
        return ops.permutation(count, batch_key(self.epochs.seed, epoch, part, Purpose.SHUFFLE)).numpy()


class InOrder(PositionSampler, SequentialSampler):
    """The inputs in their order; arguments as of :class:`KeyedShuffle`."""

    def __init__(self, data_source: Sequence, epochs: Epochs, batch_size: int = 1) -> None:
        SequentialSampler.__init__(self, data_source)
        self.epochs, self.batch_size = epochs, batch_size

    @override
    def positions(self, epoch: int) -> np.ndarray:
        return np.arange(len(self.data_source))


class ChunksOfGroups(BatchChunks):
    """Groups of inputs, each with an order of its own: batch t has chunk t of the first group, then of the second, and
    so on.

    Group i of n permutes its inputs by batch_key(seed, epoch, shuffle.part * n + i, SHUFFLE).

    Args:
        groups: the group of each input: integers, shape [inputs].
        sizes: sizes[i]: how many inputs group i adds to a batch.
        drop_last: leave out a group's last chunk if it is smaller.
        shuffle: permutes a group's inputs; None: they stay in their order.
    """

    def __init__(self, groups: Tensor, sizes: list[int], drop_last: bool, shuffle: KeyedShuffle | None) -> None:
        of = groups.numpy()
        first = 0 if shuffle is None else shuffle.part * len(sizes)
        self.each = [
            _chunks_of_group(np.flatnonzero(of == group), first + group, size, drop_last, shuffle)
            for group, size in enumerate(sizes)
        ]

    @property
    @override
    def count(self) -> int:
        return max(chunks.count for chunks in self.each)

    @override
    def of_epoch(self, epoch: int) -> Callable[[int], np.ndarray]:
        taken = [chunks.of_epoch(epoch) for chunks in self.each]
        return lambda number: np.concatenate([taken[group](at) for group, at in self._adding(number)] or [_NONE])

    @override
    def size_of(self, number: int) -> int:
        return sum(self.each[group].size_of(at) for group, at in self._adding(number))

    def _adding(self, number: int) -> list[tuple[int, int]]:
        """(group, number of its chunk) for the groups that add inputs to a batch."""
        raise NotImplementedError


class ChunksOfParts(ChunksOfGroups):
    """A group for each part. After its last chunk, a part begins again (``repeats``), or adds no inputs.

    Args:
        owners: the part of each input: integers, shape [inputs].
        parts: K, the number of parts.
        batch_size: the inputs of a batch; each part adds ``batch_size / K``.
        drop_last, shuffle: as of :class:`ChunksOfGroups`.
        repeats: whether a part begins again.

    Raises:
        ValueError: a batch size that is not a multiple of K.
    """

    def __init__(
        self, owners: Tensor, parts: int, batch_size: int, drop_last: bool, shuffle: KeyedShuffle | None, repeats: bool
    ) -> None:
        if batch_size % parts:
            raise ValueError(
                f"batch_size: expected a multiple of {parts} parts with seed_order='owned', found {batch_size}"
            )
        self._key_of_owners, self.repeats = ids_key(0, owners), repeats
        super().__init__(owners, [batch_size // parts] * parts, drop_last, shuffle)

    @property
    @override
    def counts(self) -> list[int]:
        return [chunks.count for chunks in self.each]

    @override
    def options(self) -> dict[str, Any]:
        """The parts; ``repeats`` is said elsewhere, as ``uneven``."""
        return {"parts": len(self.each), "key_of_owners": self._key_of_owners}

    @override
    def _adding(self, number: int) -> list[tuple[int, int]]:
        return [(part, number) for part, of in enumerate(self.each) if number < of.count or self.repeats]


class ChunksOfTypes(ChunksOfGroups):
    """A group for each type of inputs, which adds no more inputs after its last chunk. After the last batch come the
    batches once more, with larger numbers."""

    def _adding(self, number: int) -> list[tuple[int, int]]:
        at = number % self.count
        return [(group, at) for group, chunks in enumerate(self.each) if at < chunks.count]


_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class _OrderOfGroup:
    """The positions of a group's inputs, in the order of an epoch. A class, so that worker processes can be sent it."""

    inputs: np.ndarray
    number: int
    shuffle: KeyedShuffle | None

    def __call__(self, epoch: int) -> np.ndarray:
        if self.shuffle is None:
            return self.inputs
        return self.inputs[self.shuffle.permutation(len(self.inputs), epoch, self.number)]


def _chunks_of_group(
    inputs: np.ndarray, number: int, size: int, drop_last: bool, shuffle: KeyedShuffle | None
) -> Chunks:  # fmt: skip
    return Chunks(_OrderOfGroup(inputs, number, shuffle), len(inputs), size, drop_last)
