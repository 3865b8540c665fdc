"""All-to-alls of rows on GPUs, for ranks that cannot read each other's memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist

from .. import machine
from ..comm.exchange import Exchange
from ..comm.header import check_kinds, kind_of
from .connection import Connection
from .transport import Transport


class Staged(Transport):
    """Over a Gloo group, through pinned host memory; other ranks may have their rows on a CPU."""

    def _bytes(
        self, sent: Tensor, lengths: list[int], sizes: list[int], purpose: str, meanwhile: Callable[[], None] | None
    ) -> Tensor:
        there = torch.empty(len(sent), dtype=torch.uint8, pin_memory=True).copy_(sent)
        came = self.exchange.bytes(there, lengths, sizes, purpose, meanwhile, pinned=True)
        return came.to(sent.device, non_blocking=True)


class FromGPUToGPU(Transport):
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


def nccl_exchange(
    connection: Connection, columns: list[list[int]], device: torch.device, wanted: bool
) -> Exchange | None:
    """An exchange over NCCL between the ranks of this one's column; None without. All ranks call it alike.

    There is one if torch.distributed was initialized with NCCL, any rank wants one, and each rank has a GPU of its own:
    NCCL refuses two ranks on one.

    Args:
        connection: between all ranks.
        columns: of ranks.
        device: of this rank's rows.
        wanted: whether this rank's column needs one.
    """
    has_nccl = device.type == "cuda" and "cuda:nccl" in dist.get_backend_config().split(",")
    gpu = machine.identity(), str(torch.cuda.get_device_properties(device).uuid) if has_nccl else ""
    wants, have, gpus = zip(*connection.all.objects((wanted, has_nccl, gpu)), strict=True)
    if any(wants) and all(have) and len(set(gpus)) == len(gpus):
        return connection.exchange(columns, "nccl")
    return None
