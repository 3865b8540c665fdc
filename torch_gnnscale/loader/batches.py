"""Batches of input positions that carry their epoch and number, and the keyed order of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from .. import ops
from ..random import Purpose, batch_key


class NumberedBatch(NamedTuple):
    """Positions of a batch's inputs, with what its key is made of."""

    epoch: int
    number: int
    positions: np.ndarray


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

    def order(self, epoch: int) -> np.ndarray:
        """The positions of an epoch, int64."""
        return ops.permutation(len(self.data_source), batch_key(self.seed, epoch, 0, Purpose.SHUFFLE)).numpy()

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(self.epoch).tolist())


class NumberedBatches:
    """A batch sampler's batches, numbered; ``start()`` gives the epoch and first batch when an iterator is made."""

    def __init__(self, batches: Any, start: Callable[[], tuple[int, int]]) -> None:
        self.batches = batches
        self.start = start

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def keyed(self) -> bool:
        """Whether an epoch's batches are a function of (seed, epoch), and not of a sampler of the user's."""
        return type(self.batches) is BatchSampler and type(self.batches.sampler) in (KeyedShuffle, SequentialSampler)

    def __iter__(self) -> Iterator[NumberedBatch]:
        epoch, first = self.start()
        batches = self.batches
        if self.keyed:
            # What iterating over positions one by one would give.
            shuffle = batches.sampler if isinstance(batches.sampler, KeyedShuffle) else None
            order = np.arange(len(batches.sampler)) if shuffle is None else shuffle.order(epoch)
            size = batches.batch_size
            parts: Iterator[Any] = (order[i * size : (i + 1) * size] for i in range(first, len(batches)))
        else:
            parts = islice(iter(batches), first, None)
        return self._number(parts, epoch, first)

    @staticmethod
    def _number(parts: Iterator[Any], epoch: int, first: int) -> Iterator[NumberedBatch]:
        for number, part in enumerate(parts, first):
            yield NumberedBatch(epoch, number, np.asarray(part, dtype=np.int64))
