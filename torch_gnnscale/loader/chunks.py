"""Which inputs a batch has: a chunk of all inputs in their order, or of each part's in an order of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import BatchSampler

from ..random import ids_key
from .positions import KeyedShuffle, PositionSampler


@dataclass(frozen=True)
class Chunks:
    """One order of inputs in chunks of ``size``. After the last chunk come those of the order once more, with larger
    numbers."""

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
    def count(self) -> int:
        """How many chunks there are."""
        return self.inputs // self.size if self.drop_last else -(-self.inputs // self.size)

    @property
    def counts(self) -> list[int]:
        """How many chunks each order has; this is the only one."""
        return [self.count]

    def of_epoch(self, epoch: int) -> Callable[[int], np.ndarray]:
        """A function that returns the positions of the inputs of an epoch's chunk, by its number: int64."""
        positions, count = self.order(epoch), self.count

        def chunk(number: int) -> np.ndarray:
            begin = number % count * self.size
            return positions[begin : begin + self.size]

        return chunk

    def size_of(self, number: int) -> int:
        """How many inputs a chunk has."""
        return min(self.size, self.inputs - number % self.count * self.size)


class ChunksOfParts:
    """An order of inputs for each part: batch t has chunk t of each, one part after the other.

    Part i permutes its inputs by batch_key(seed, epoch, i, SHUFFLE). After its last chunk, a part begins again
    (``repeats``), or adds no inputs.

    Args:
        owners: the part of each input: integers, shape [inputs].
        parts: K, the number of parts.
        batch_size: the inputs of a batch; each part adds ``batch_size / K``.
        drop_last: leave out a part's last chunk if it is smaller.
        shuffle: permutes a part's inputs; None: they stay in their order.
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
        owner = owners.numpy()
        self.each = [
            _chunks_of_part(np.flatnonzero(owner == part), part, batch_size // parts, drop_last, shuffle)
            for part in range(parts)
        ]
        self.counts = [chunks.count for chunks in self.each]
        """How many chunks each part has."""

    def options(self) -> dict[str, Any]:
        """What decides the chunks besides inputs, seed, batch size and ``repeats``, in plain values."""
        return {"parts": len(self.each), "key_of_owners": self._key_of_owners}

    def of_epoch(self, epoch: int) -> Callable[[int], np.ndarray]:
        """See :meth:`Chunks.of_epoch`."""
        taken = [chunks.of_epoch(epoch) for chunks in self.each]
        return lambda number: np.concatenate([taken[part](number) for part in self._adding(number)] or [_NONE])

    def size_of(self, number: int) -> int:
        """See :meth:`Chunks.size_of`."""
        return sum(self.each[part].size_of(number) for part in self._adding(number))

    def _adding(self, number: int) -> list[int]:
        """The parts that add inputs to a batch."""
        return [part for part, count in enumerate(self.counts) if number < count or self.repeats]


_NONE = np.empty(0, dtype=np.int64)


def _chunks_of_part(inputs: np.ndarray, part: int, size: int, drop_last: bool, shuffle: KeyedShuffle | None) -> Chunks:
    def order(epoch: int) -> np.ndarray:
        return inputs if shuffle is None else inputs[shuffle.permutation(len(inputs), epoch, part)]

    return Chunks(order, len(inputs), size, drop_last)
