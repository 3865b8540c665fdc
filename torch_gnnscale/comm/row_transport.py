"""Rows that travel between ranks: over Gloo, over NCCL, and what these have in common with memory that ranks share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from .. import ops
from ..ops.rows import row_bytes
from .exchange import Exchange, Moved
from .mesh import check_kinds, kind_of
from .replies import STATUS_BYTES, Replies

ENDED = "expected a connection between the ranks, found one that was closed, or that failed"
"""What is wrong with a call after the end."""


class RowMoves:
    """Which rows travel."""

    sent: Tensor
    """Own rows, for rank 0, then 1, ...: int64, shape [s]. To one rank no row goes twice."""
    num_sent: list[int]
    """How many of them go to each rank; 0 to this one."""
    num_received: list[int]
    """How many rows come from each rank."""
    distinct: tuple[Tensor, Tensor | None] | None
    """(The own rows that travel, each once; for each entry of ``sent`` its place among them), if that is known. The
    second is None if the first is ``sent`` itself, because all go to one rank."""

    def find_distinct(self, num_own: int) -> tuple[Tensor, Tensor | None]:
        """``distinct``, of ``num_own`` own rows in all."""
        travels = torch.zeros(num_own, dtype=torch.bool, device=self.sent.device)
        travels[self.sent] = True
        self.distinct = travels.nonzero()[:, 0], (travels.cumsum(0) - 1)[self.sent]
        return self.distinct


Counted: TypeAlias = Callable[[Tensor], Tensor]
"""``counted(sent)``: rank i gets ``sent[i]``; returns what this one gets of each: int64, shape [ranks, 2]."""


class RowTransport:
    """How ranks get rows of each other: here over a Gloo group, from GPUs through pinned host memory.

    A single rank needs no group.

    Args:
        exchange: between these ranks.
        tells: True: a rank that cannot send its rows in :meth:`pull` says so; it then raises its error, the others
            raise :class:`OtherRankFailed`, and all can go on. False: it raises at once, and the others wait.
    """

    def __init__(self, exchange: Exchange, tells: bool = False) -> None:
        self.exchange, self._tells = exchange, tells
        self.replies = Replies(exchange)
        """How rows come that ranks ask each other for."""
        self.moved: defaultdict[str, Moved] = defaultdict(Moved)
        """The rows that were exchanged, by purpose."""

    def to_device(self, values: Tensor) -> Tensor:
        """``values`` on the device whose memory the ranks exchange; this transport takes those of any device."""
        return values

    def pull(self, own: Tensor, moves: RowMoves, purpose: str, meanwhile: Callable[[], None] | None = None) -> Tensor:
        """The rows of the halo, in its order, [t, ...].

        Args:
            own: contiguous, [n, ...]; the others read rows of it.
            moves: rows in [0, n).
            purpose: what the exchange is counted as.
            meanwhile: called while the rows are exchanged.
        """
        if self._tells:
            return self._told(own, moves, purpose, meanwhile)
        with self.exchange.awaited():
            packed = ops.shuffle_rows(None, [own], None, moves.sent, check=False)
        return self._exchanged(packed, moves.num_sent, moves.num_received, purpose, meanwhile)

    def _told(self, own: Tensor, moves: RowMoves, purpose: str, meanwhile: Callable[[], None] | None) -> Tensor:
        """:meth:`pull`; what goes to each rank begins with an int64: 0, or 1 if this rank cannot send its rows."""
        exchange, width = self.exchange, row_bytes(own)
        lengths, sizes = (
            [0 if rank == exchange.rank else STATUS_BYTES + width * count for rank, count in enumerate(counts)]
            for counts in (moves.num_sent, moves.num_received)
        )
        with exchange.awaited():
            given = ops.empty_bytes(sum(lengths))
        error = None
        try:
            table, ids = (own, moves.sent) if own.device.type == "cpu" else _in_host(own, moves.sent)
            for to, of_rank in zip(given.split(lengths), ids.split(moves.num_sent), strict=True):
                if len(to):
                    ops.pack_rows([table], [of_rank], [STATUS_BYTES], to)
        except Exception as failed:
            error = failed
            for to in given.split(lengths):
                to.zero_()[:1] = 1
        came = exchange.bytes(given, lengths, sizes, purpose, meanwhile).split(sizes)
        if error is not None or any(len(of_rank) and of_rank[0] for of_rank in came):
            exchange.raise_alike(error, f"{purpose}: expected those of {{rank}}, found that it could not read them")
        self.moved[purpose].add(moves.num_sent, moves.num_received)
        with exchange.awaited():
            rows = torch.cat([of_rank[STATUS_BYTES:] for of_rank in came])
            return rows.to(own.device).view(own.dtype).view(sum(moves.num_received), *own.shape[1:])

    def rows(self, own: Tensor, moves: RowMoves, purpose: str, meanwhile: Callable[[], None] | None = None) -> Tensor:
        """The rows of :meth:`pull`. They may lie in memory that the next exchange overwrites."""
        return self.pull(own, moves, purpose, meanwhile)

    def joined(self, own: Tensor, moves: RowMoves, purpose: str) -> Tensor:
        """[own; halo]: ``own`` and after it the rows of :meth:`pull`, [n + t, ...]."""
        out = ops.empty_rows(len(own) + sum(moves.num_received), own)
        out[: len(own)] = own
        out[len(own) :] = self.pull(own, moves, purpose)
        return out

    def swap(
        self, rows: Tensor, num_sent: list[int], num_received: list[int], purpose: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """The rows from rank 0, then 1, ...: [num_received[p], ...] each; valid until the next exchange.

        Args:
            rows: those to rank 0, then 1, ...: contiguous, [sum(num_sent), ...].
            num_sent, num_received: how many rows go to each rank, and come from each.
            purpose: what the exchange is counted as.
            meanwhile: called while the rows are exchanged.
        """
        return self._swapped([rows], num_sent, num_received, purpose, meanwhile)

    def tensors(self, pieces: Sequence[Tensor], lengths: Sequence[int], purpose: str) -> list[Tensor]:
        """What each rank sent to this one, flat; valid until the next exchange. A rank's own piece does not travel.

        Args:
            pieces: for each rank, contiguous and all of one dtype, where rows are.
            lengths: how many elements each rank sends to this one.
            purpose: what the exchange is counted as.
        """
        rank, own = self.exchange.rank, pieces[self.exchange.rank].reshape(-1)
        sent = [own[:0] if other == rank else piece.reshape(-1) for other, piece in enumerate(pieces)]
        received = [0 if other == rank else length for other, length in enumerate(lengths)]
        found = self._swapped(sent, list(map(len, sent)), received, purpose)
        found[rank] = own
        return found

    def messages(
        self, pieces: Sequence[Tensor], beside: Sequence[int] | None, counted: Counted, purpose: str
    ) -> tuple[list[Tensor], list[int]]:
        """:meth:`tensors` of lengths that the others do not know, and with each a number beside it. A rank that fails
        before it meets the others tells them in place of its lengths.

        Args:
            pieces: as of :meth:`tensors`.
            beside: for each rank; None: 0.
            counted: exchanges two numbers for each rank, of which the first are at least 0; it raises on all ranks if
                one has failed.
            purpose: what the exchange is counted as.
        """
        told = torch.tensor([list(map(len, pieces)), beside or [0] * len(pieces)]).T
        lengths, numbers = counted(told).T.tolist()
        return self.tensors(pieces, lengths, purpose), numbers

    def sum(self, values: Tensor, purpose: str) -> Tensor:
        """The sums of ``values`` over all ranks, in 2 rounds: int64, shape [n], like ``values``; n is the same on all
        ranks."""
        slices = list(values.tensor_split(self.exchange.size))
        own = len(slices[self.exchange.rank])
        pieces = self.tensors(slices, [own] * self.exchange.size, purpose)
        with self.exchange.awaited():
            mine = torch.stack(pieces).sum(0)
        return torch.cat(self.tensors([mine] * self.exchange.size, [len(entry) for entry in slices], purpose))

    def _swapped(
        self, pieces: Sequence[Tensor], num_sent: list[int], num_received: list[int], purpose: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """:meth:`swap` of rows in several pieces, one after another."""
        with self.exchange.awaited():
            rows = pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
        return list(self._exchanged(rows, num_sent, num_received, purpose, meanwhile).split(num_received))

    def _exchanged(
        self, rows: Tensor, num_sent: list[int], num_received: list[int], purpose: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:  # fmt: skip
        width = rows.shape[1:].numel() * rows.element_size()
        lengths, sizes = ([width * count for count in counts] for counts in (num_sent, num_received))
        received = self._bytes(rows.reshape(-1).view(torch.uint8), lengths, sizes, purpose, meanwhile)
        self.moved[purpose].add(num_sent, num_received)
        return received.view(rows.dtype).view(sum(num_received), *rows.shape[1:])

    def _bytes(
        self, sent: Tensor, lengths: list[int], sizes: list[int], purpose: str, meanwhile: Callable[[], None] | None
    ) -> Tensor:
        """:meth:`Exchange.bytes`, from and to the device of the rows."""
        if sent.device.type == "cpu":
            return self.exchange.bytes(sent, lengths, sizes, purpose, meanwhile)
        return self._staged(sent, lengths, sizes, purpose, meanwhile)

    def _staged(
        self, sent: Tensor, lengths: list[int], sizes: list[int], purpose: str, meanwhile: Callable[[], None] | None
    ) -> Tensor:
        """:meth:`_bytes` through pinned host memory; other ranks may have their rows on a CPU."""
        there = torch.empty(len(sent), dtype=torch.uint8, pin_memory=True).copy_(sent)
        came = self.exchange.bytes(there, lengths, sizes, purpose, meanwhile, pinned=True)
        return came.to(sent.device, non_blocking=True)

    def close(self) -> None:
        """Frees what the transport holds, but for its group."""


def _in_host(rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a GPU's tensor with these ids, in pinned host memory, and their places there."""
    there = torch.empty((len(ids), *rows.shape[1:]), dtype=rows.dtype, pin_memory=True)
    return there.copy_(ops.shuffle_rows(None, [rows], None, ids, check=False)), torch.arange(len(ids))


# NCCL #################################################################################################################


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
