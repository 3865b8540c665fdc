"""Rows that travel from GPU to GPU, for ranks that cannot read each other's memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .exchange import Exchange
from .header import check_kinds, kind_of
from .row_transport import RowTransport


class NcclTransport(RowTransport):
    """Over a group of NCCL, after a round of headers over Gloo: a rank that is gone, or has rows of another type, is
    found out there, for NCCL would wait for it, or read bytes of another type.

    Args:
        exchange: over a Gloo group.
        rows: over the same ranks, in a group whose collectives take tensors on GPUs.
    """

    def __init__(self, exchange: Exchange, rows: Exchange) -> None:
        super().__init__(exchange)
        self._rows = rows
        rows.traffic = exchange.traffic

    def _exchanged(
        self, rows: Tensor, num_sent: list[int], num_received: list[int], purpose: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:  # fmt: skip
        kinds = self.exchange.numbers(torch.full((self.exchange.size, 1), kind_of(rows)), purpose)
        check_kinds(purpose, kinds[:, 0].tolist())
        return super()._exchanged(rows, num_sent, num_received, purpose, meanwhile)

    def _bytes(
        self, sent: Tensor, lengths: list[int], sizes: list[int], purpose: str, meanwhile: Callable[[], None] | None
    ) -> Tensor:
        return self._rows.bytes(sent, lengths, sizes, purpose, meanwhile)
