"""The samplers of a loader: its inputs in order or shuffled by a key, for our line and for DataLoaders of others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from .. import ops
from ..random import Purpose, batch_key
from .epochs import Epochs


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

    def positions(self, epoch: int) -> np.ndarray:
        """See :meth:`PositionSampler.positions`."""
        return self.permutation(len(self.data_source), epoch, self.part)

    def permutation(self, count: int, epoch: int, part: int) -> np.ndarray:
        """A permutation of ``count`` inputs of a part, for an epoch: int64, shape [count]."""
        return ops.permutation(count, batch_key(self.epochs.seed, epoch, part, Purpose.SHUFFLE)).numpy()


class InOrder(PositionSampler, SequentialSampler):
    """The inputs in their order; arguments as of :class:`KeyedShuffle`."""

    def __init__(self, data_source: Sequence, epochs: Epochs, batch_size: int = 1) -> None:
        SequentialSampler.__init__(self, data_source)
        self.epochs, self.batch_size = epochs, batch_size

    def positions(self, epoch: int) -> np.ndarray:
        """See :meth:`PositionSampler.positions`."""
        return np.arange(len(self.data_source))
