"""Batches of input positions that carry their epoch and number, and the keyed order of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import RandomSampler

from .. import ops
from ..random import Purpose, batch_key


class NumberedBatch(NamedTuple):
    """Positions of a batch's inputs, with what its key is made of."""

    epoch: int
    number: int
    positions: list[int]


class InputPositions(Sequence):
    """The positions 0 .. size as a dataset for torch's DataLoader: a batch of them is the batch as it was numbered."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: Any) -> Any:
        return range(self.size)[position]

    def __getitems__(self, batch: NumberedBatch) -> NumberedBatch:
        """What DataLoader's fetcher calls for a whole batch."""
        return batch


class KeyedShuffle(RandomSampler):
    """A permutation of the inputs that is a function of (seed, epoch)."""

    def __init__(self, data_source: Sequence, seed: int) -> None:
        super().__init__(data_source)
        self.seed = seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        order = ops.permutation(len(self.data_source), batch_key(self.seed, self.epoch, 0, Purpose.SHUFFLE))
        for chunk in order.split(1 << 16):
            yield from chunk.tolist()


class NumberedBatches:
    """A batch sampler's batches, numbered; ``epoch()`` is asked when an iterator is made."""

    def __init__(self, batches: Any, epoch: Callable[[], int]) -> None:
        self.batches = batches
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[NumberedBatch]:
        epoch = self.epoch()
        sampler = getattr(self.batches, "sampler", None)
        if isinstance(sampler, KeyedShuffle):
            sampler.epoch = epoch
        batches = iter(self.batches)
        first = next(batches, None)  # draws the order now, before another iterator sets another epoch
        return self._number(first, batches, epoch)

    @staticmethod
    def _number(first: list[int] | None, rest: Iterator[list[int]], epoch: int) -> Iterator[NumberedBatch]:
        if first is None:
            return
        yield NumberedBatch(epoch, 0, list(first))
        for number, batch in enumerate(rest, 1):
            yield NumberedBatch(epoch, number, list(batch))
