"""Which rows of nodes the ranks of a split batch exchange (GSplit, section 5), and the exchange before each layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from ..comm.exchange import Exchange
from ..comm.row_transport import Moved, RowMoves, RowTransport
from ..nn.aggregate import Apart, sort_edges
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


# Layers ###############################################################################################################


@dataclass
class Work:
    """What one rank has done so far."""

    batches: int = 0
    """Of how many batches it had a share."""
    rows: int = 0
    """Own nodes of these shares: this rank alone has loaded their features."""
    halo: int = 0
    """Rows of other ranks' features that came with the batches, in ``x_halo``."""
    edges: dict[str, int] = field(default_factory=dict)
    """By layer: the edges into own nodes that it computed, forward; with the self loops that a layer adds."""
    shuffled: dict[str, Moved] = field(default_factory=dict)
    """By purpose, as in :attr:`torch_gnnscale.split.Parallelized.traffic`: ``forward NAME`` are rows that the layer
    NAME reads, ``backward NAME`` their gradients, ``forward degrees`` numbers of nodes."""


class Moves(RowMoves):
    """The rows that travel before layers that compute the nodes of a batch's first ``groups`` groups.

    Args:
        index: the batch's.
        groups: of the nodes that are computed.
    """

    def __init__(self, index: ShuffleIndex, groups: int) -> None:
        sent, num_sent, self.halo, num_received = index.before_layer(groups)
        super().__init__(sent, num_sent, num_received)
        self._added: tuple[Tensor, Tensor, Tensor] | None = None

    def added(self, num_own: int) -> tuple[Tensor, Tensor, Tensor]:
        """``ptr``, ``part`` and ``row`` of :func:`torch_gnnscale.ops.shuffle_rows`: the gradients that ranks send back
        for each own row, in the order of ranks."""
        if self._added is None or len(self._added[0]) != num_own + 1:
            edges, order = sort_edges(torch.stack([self.sent, self.sent]), num_own, num_own)
            ends = torch.tensor(self.num_sent, device=order.device).cumsum(0)
            part = torch.bucketize(order, ends, right=True)
            begins = torch.cat([ends.new_zeros(1), ends])
            self._added = edges.forward.ptr, part, order - begins[part]
        return self._added


def mixed(transport: RowTransport, own: Tensor, moves: Moves, purpose: str) -> Tensor:
    """[own; halo]: the own rows and after them those of other ranks, in the order of the halo; differentiable.

    Every rank calls it, forward and backward, also with no rows.

    Args:
        transport: to the ranks over which the batch is cut.
        own: [n, ...]; of floats if a gradient is asked for.
        moves: rows in [0, n).
        purpose: what the exchanges are counted as.
    """
    return _Mixed.apply(own, transport, moves, purpose)


def apart(transport: RowTransport, own: Tensor, moves: Moves, purpose: str) -> Apart:
    """The rows of :func:`mixed` that are not ``own``, float32 or float64; valid until the next exchange. On the way
    back, where own needs a gradient, the others' shares are added to it without a copy."""
    given = own.detach().contiguous()

    def receive(meanwhile: Callable[[], None]) -> Tensor:
        return transport.rows(given, moves, f"forward {purpose}", meanwhile)

    def give_back(of_rows: Callable[[], Tensor], of_x: Callable[[], Tensor]) -> Tensor:
        found: list[Tensor] = []
        came = transport.swap(
            of_rows(), moves.num_received, moves.num_sent, f"backward {purpose}", lambda: found.append(of_x())
        )
        (of_own,) = found
        for sent, of_sent in zip(moves.sent.split(moves.num_sent), came, strict=True):
            of_own.index_add_(0, sent, of_sent)  # of one rank no row comes twice
        return of_own

    return Apart(receive, give_back)


class _Mixed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, transport: RowTransport, moves: Moves, purpose: str) -> Tensor:
        ctx.transport, ctx.moves, ctx.purpose = transport, moves, purpose
        return transport.joined(own.contiguous(), moves, f"forward {purpose}")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        moves, grad = ctx.moves, grad.contiguous()
        own, of_halo = grad.split([len(grad) - sum(moves.num_received), sum(moves.num_received)])
        came = ctx.transport.swap(of_halo, moves.num_received, moves.num_sent, f"backward {ctx.purpose}")
        ptr, part, row = moves.added(len(own))
        return ops.shuffle_rows(own, came, part, row, ptr, check=False), None, None, None


class _OfAllRanks(torch.autograd.Function):
    """The values of all ranks, [P, n]. In the backward pass a rank's gradient is the sum over all ranks, added in the
    order of ranks."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, transport: RowTransport, purpose: str) -> Tensor:
        ctx.transport, ctx.purpose = transport, purpose
        return _everyone(values.repeat(transport.exchange.size, 1), transport, f"forward {purpose}")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        came = _everyone(grad.contiguous(), ctx.transport, f"backward {ctx.purpose}")
        total = came[0].clone()
        for other in came[1:]:
            total += other
        return total, None, None


def of_all_ranks(values: Tensor, transport: RowTransport, purpose: str) -> Tensor:
    """The ``values`` of each rank, [n] on every rank, as [P, n]; differentiable."""
    return _OfAllRanks.apply(values, transport, purpose)


def _everyone(rows: Tensor, transport: RowTransport, purpose: str) -> Tensor:
    """Row p of the result is the row that rank p has for this one; row p of ``rows`` goes to rank p."""
    exchange = transport.exchange
    pieces = list(rows.cpu().unbind())
    found = exchange.tensors(pieces, [rows.size(1)] * exchange.size, purpose, transport.swap)
    return torch.stack(found).to(rows.device)
