"""Rows of nodes that ranks of a split send to one another before a layer, their gradients on the way back, and counts
of both (GSplit, section 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from ..comm.row_transport import Moved, RowMoves, RowTransport
from ..nn.aggregate import Apart, sort_edges
from .shuffle_index import ShuffleIndex


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
