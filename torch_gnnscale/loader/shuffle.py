"""Orders of inputs: as they are, or shuffled by a key; all of them, or in groups, one for each part or type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import RandomSampler, SequentialSampler
from typing_extensions import override

from .. import ops
from ..random import Purpose, batch_key, ids_key
from .order import BatchChunks, Chunks, Epochs, PositionSampler


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
