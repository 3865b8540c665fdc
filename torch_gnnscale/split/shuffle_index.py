"""Which rows the ranks of a split exchange, so that each layer of a model has those of its sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ..comm.exchange import Exchange
from ..random import digest


class Shuffled(NamedTuple):
    """The rows that travel before a layer."""

    sent: Tensor
    """Own rows, for rank 0, then 1, ...: int64, shape [s]."""
    num_sent: list[int]
    """How many of them go to each rank; 0 to this one."""
    halo: Tensor
    """Positions in the whole halo of the rows that come from rank 0, then 1, ...: int64, shape [t]."""
    num_received: list[int]
    """How many rows come from each rank; 0 from this one."""


@dataclass(frozen=True)
class ShuffleIndex:
    """The rows that ranks exchange for one batch; a field of it, ``shuffle_index``.

    Rows and levels are those of :class:`torch_gnnscale.ops.Cut`. A layer that computes the nodes of groups 0..g-1 needs
    the rows of levels 1..g, which are the first rows of each rank's block of the halo.
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
    """The tensor ``batch.x`` whose rows of the halo ``batch.x_halo`` has; None if the batch has no ``x_halo``."""
    x_version: int = 0
    """The ``_version`` of ``x`` when ``x_halo`` was made."""

    def knows_halo_of(self, x: Tensor | None) -> bool:
        """Whether ``x_halo`` has rows of x: False if x was changed or replaced since ``x_halo`` was made."""
        return x is not None and x is self.x and x._version == self.x_version

    def with_halo_of(self, x: Tensor) -> ShuffleIndex:
        """The index of a batch whose ``x_halo`` has rows of x."""
        return replace(self, x=x, x_version=x._version)

    @property
    def balance(self) -> int:
        """The sum over ranks p of hash(part, p, num_sent[p]) - hash(p, part, num_received[p]): 64 bits, signed. The
        balances of a batch's ranks add up to 0 modulo 2^64, unless two ranks expect different numbers of rows."""
        total = 0
        for peer, (sent, awaited) in enumerate(zip(self.num_sent, self.num_received, strict=True)):
            total += _hash(self.part, peer, sent) - _hash(peer, self.part, awaited)
        return (total + (1 << 63)) % (1 << 64) - (1 << 63)

    def check_balances(self, balances: Sequence[int], exchange: Exchange, column: Sequence[int]) -> None:
        """Compares the balances of a batch's ranks. All ranks of ``exchange`` call it with equal arguments.

        Args:
            balances: of the ranks of a batch, by part.
            exchange: between these ranks; it may have others, too.
            column: the numbers that these ranks have in ``exchange``, by part.

        Raises:
            ValueError: on all ranks, for the first two ranks that expect different numbers of rows.
        """
        if sum(balances) % (1 << 64) == 0:
            return
        said = exchange.objects((self.num_sent, self.num_received))
        for reader, rank in enumerate(column):
            for sender, levels in enumerate(said[rank][1]):
                if said[column[sender]][0][reader] != levels:
                    raise ValueError(
                        f"split: batch: expected {levels} rows by level from part {sender} for part {reader}, found "
                        f"others"
                    )
        raise AssertionError("the hashes of equal numbers differ")

    @property
    def num_halo(self) -> int:
        """The number of nodes of the whole halo."""
        return sum(map(sum, self.num_received))

    def before_layer(self, groups: int) -> Shuffled:
        """The rows that travel before a layer that computes the nodes of groups 0..groups-1."""
        of_sent, num_sent = _prefixes(self.num_sent, groups)
        of_halo, num_received = _prefixes(self.num_received, groups)
        halo = [torch.arange(begin, end, device=self.sent.device) for begin, end in of_halo]
        return Shuffled(
            torch.cat([self.sent[begin:end] for begin, end in of_sent]), num_sent, torch.cat(halo), num_received
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ShuffleIndex:
        """The index on a device; ``Data.to`` calls it. ``x_halo`` stays valid only if ``x`` is on that device
        already."""
        sent = self.sent.to(device, non_blocking=non_blocking)
        if sent is self.sent:
            return self
        return replace(self, sent=sent, x=self.x if self.x is not None and self.x.device == sent.device else None)


def _hash(sender: int, reader: int, levels: Sequence[int]) -> int:
    return digest(repr((sender, reader, list(levels))).encode())


def _prefixes(counts: list[list[int]], groups: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Where the rows of each block's first ``groups`` levels begin and end, and how many each block has of them."""
    begins = accumulate((sum(block) for block in counts), initial=0)
    sizes = [sum(block[:groups]) for block in counts]
    return [(begin, begin + size) for begin, size in zip(begins, sizes, strict=False)], sizes
