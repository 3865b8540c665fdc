"""Which rows the ranks of a split exchange, so that each layer of a model has those of its sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor


class Shuffled(NamedTuple):
    """The rows that travel before a layer."""

    sent: Tensor
    """Own rows, for rank 0, then 1, ...: int64, shape [s]."""
    num_sent: list[int]
    """How many of them go to each rank; 0 to this one."""
    halo: Tensor
    """Places in the whole halo of the rows that come from rank 0, then 1, ...: int64, shape [t]."""
    num_received: list[int]
    """How many rows come from each rank; 0 from this one."""


@dataclass(frozen=True)
class ShuffleIndex:
    """The rows that ranks exchange for one batch; a field of it, ``shuffle_index``.

    Rows and levels are those of :class:`torch_gnnscale.ops.Cut`. A layer that computes the nodes of groups 0..g-1 needs
    the rows of levels 1..g: of each rank's block of the halo, a prefix.
    """

    parts: int
    """How many ranks the batch is cut over."""
    part: int
    """The number of this one."""
    sent: Tensor
    """See :class:`torch_gnnscale.ops.Cut`."""
    num_sent: list[list[int]]
    """See :class:`torch_gnnscale.ops.Cut`."""
    num_received: list[list[int]]
    """See :class:`torch_gnnscale.ops.Cut`."""
    x: Tensor | None = None
    """The tensor ``batch.x`` of whose rows ``batch.x_halo`` has those of the halo; None without one."""
    x_version: int = 0
    """Its ``_version`` at that time."""

    def knows_halo_of(self, x: Tensor | None) -> bool:
        """Whether ``x_halo`` still has rows of x: not after x was changed or replaced."""
        return x is not None and x is self.x and x._version == self.x_version

    def with_halo_of(self, x: Tensor) -> ShuffleIndex:
        """The index of a batch whose ``x_halo`` has rows of x."""
        return replace(self, x=x, x_version=x._version)

    @property
    def num_halo(self) -> int:
        """The number of nodes of the whole halo."""
        return sum(map(sum, self.num_received))

    def before_layer(self, groups: int) -> Shuffled:
        """What travels before a layer that computes the nodes of groups 0..groups-1."""
        sent, num_sent = _prefixes(self.num_sent, groups)
        halo, num_received = _prefixes(self.num_received, groups)
        return Shuffled(self.sent[sent.to(self.sent.device)], num_sent, halo.to(self.sent.device), num_received)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ShuffleIndex:
        """The index on a device; ``Data.to`` calls it. ``x_halo`` is then not used any more."""
        return replace(self, sent=self.sent.to(device, non_blocking=non_blocking), x=None)


def _prefixes(counts: list[list[int]], groups: int) -> tuple[Tensor, list[int]]:
    """The places of the first ``groups`` levels of each block, and how many of them each block has."""
    begins = accumulate((sum(block) for block in counts), initial=0)
    sizes = [sum(block[:groups]) for block in counts]
    places = [torch.arange(begin, begin + size) for begin, size in zip(begins, sizes, strict=False)]
    return torch.cat(places), sizes
