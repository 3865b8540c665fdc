"""Rows of other parts that the thread that iterates exchanges, on the device where batches have them.

The thread of the steps exchanges ids, and gathers what other ranks ask for and what the batch has of this part; the
rows then travel in an all-to-all that the thread that iterates issues: one per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..comm.exchange import Exchange
from ..comm.row_transport import ID_BYTES
from ..feature.tiered_rows import sent
from ..ops.arguments import check_ids
from .own_rows import OwnRows, merged
from .row_exchange import Layout, PartTables, RowKind, by_part


def exchange_ids(
    exchange: Exchange, wanted: Sequence[Tensor], taken: list[list[int]], given: list[list[int]]
) -> Sequence[Tensor]:
    """The rows that other parts ask this one for: entry ``i * types + t`` has those of type t that part i asks for.

    Args:
        exchange: over the ranks of all parts.
        wanted: for each type, the rows that this rank asks for, ordered by part, as row numbers in their parts: int64.
        taken, given: ``counts`` and ``asked`` of :meth:`PartTables.exchange`.
    """
    with exchange.awaited():
        requests = by_part(wanted, taken)
        lengths, sizes = ([sum(row) * ID_BYTES for row in counts] for counts in (taken, given))
    found = exchange.bytes(requests.view(torch.uint8), lengths, sizes, "ids")
    return found.view(torch.int64).split([n for row in given for n in row])


class Arrived(NamedTuple):
    """Rows of one attribute from other parts, on the device of batches."""

    tensor: Tensor
    """Shape [r, ...]."""

    @classmethod
    def of(cls, rows: Tensor) -> Arrived:
        """The value for these rows."""
        return cls(rows)

    def rows(self, like: Tensor) -> Tensor:
        """The rows; ``like``: of their dtype and shape."""
        return self.tensor

    def joined(self, own: Tensor, place: Tensor) -> Tensor:
        """The rows of a batch: the next of ``own`` where ``place[i] >= 0``, else row ``-1 - place[i]`` of these."""
        is_own = place >= 0
        at = sent(place[~is_own].bitwise_not_(), self.tensor.device)
        return merged(own, ops.gather_rows(self.tensor, at, check=False), is_own)


class Coming(NamedTuple):
    """The rows of a step that the thread that iterates is to exchange."""

    replies: Tensor
    """What this rank sends, reply after reply: uint8, on the device."""
    own: list[Tensor]
    """The batch's rows of this part, on the device."""
    given: Layout
    taken: Layout
    """Where rows lie in the replies to, and from, all parts."""
    ready: torch.cuda.Event | None
    """When ``replies`` and ``own`` are there; None on the CPU."""
    kinds: Sequence[Sequence[RowKind]]
    """Of the rows, by type and attribute."""

    def exchanged(self, exchange: Exchange) -> list[list[Arrived]]:
        """Sends and receives: for each type and attribute, the rows that this rank asked for. Called by the thread that
        iterates; a GPU's rows are those of its current stream."""
        if self.ready is not None:
            stream = torch.cuda.current_stream(self.replies.device)
            stream.wait_event(self.ready)
            for made in (self.replies, *self.own):
                made.record_stream(stream)
        data = exchange.bytes(self.replies, self.given.lengths, self.taken.lengths, "rows")
        return [
            [Arrived(_rows(data, self.taken, t, a, kind)) for a, kind in enumerate(of_type)]
            for t, of_type in enumerate(self.kinds)
        ]


def answered(
    tables: PartTables, exchange: Exchange, asked: Tensor, ids: Sequence[Tensor], counts: Tensor,
    of_batch: Sequence[tuple[OwnRows, Tensor]], device: torch.device, stream: torch.cuda.Stream | None,
) -> Coming:  # fmt: skip
    """Exchanges ids, in one round, and gathers the rows that other ranks ask for and those of this part.

    Args:
        tables: of this part.
        exchange: over the ranks of all parts.
        asked, ids, counts: of :meth:`PartTables.exchange`.
        of_batch: what the batch has of this part: rows of attributes, and their ids, which are not checked.
        device: where rows are sent from, and batches have them.
        stream: on which a GPU gathers them; None on the CPU.
    """
    with exchange.awaited():
        given, taken = (Layout(entry, tables.sizes, exchange.rank, 0) for entry in (asked, counts))
        wanted, kinds = tables.wanted(ids, counts), tables.kinds
    requested = exchange_ids(exchange, wanted, taken.counts, given.counts)
    with torch.cuda.stream(stream):
        each = [
            _replies(requested[t :: len(kinds)], rows, kind, device)
            for t, of_type in enumerate(tables.own)
            for rows, kind in zip(of_type, kinds[t], strict=True)
        ]
        nothing = torch.empty(0, dtype=torch.uint8, device=device)
        replies = torch.cat([nothing, *(piece for of_part in zip(*each, strict=True) for piece in of_part)])
        mine = [_there(rows.gather(ids), device) for rows, ids in of_batch]
        ready = None if stream is None else stream.record_event()
    return Coming(replies, mine, given, taken, ready, kinds)


def _replies(ids: Sequence[Tensor], rows: OwnRows, kind: RowKind, device: torch.device) -> Sequence[Tensor]:
    """The bytes of one attribute in the reply to each part; ``ids``: the rows that each part asks for."""
    wanted = torch.cat(list(ids))
    check_ids("ids", wanted, len(rows), "rows")
    found = _there(rows.gather(wanted), device).reshape(-1)
    return found.view(torch.uint8).split([len(some) * kind.num_bytes for some in ids])


def _there(rows: Tensor, device: torch.device) -> Tensor:
    return rows if rows.device == device else sent(rows, device)


def _rows(data: Tensor, layout: Layout, t: int, a: int, kind: RowKind) -> Tensor:
    """The rows of one attribute in all replies, shape [rows, ...]: a copy, for other bytes lie between the replies."""
    counts = [row[t] for row in layout.counts]
    pieces = [
        data[begins[t][a] :][: count * kind.num_bytes] for begins, count in zip(layout.begins, counts, strict=True)
    ]
    return torch.cat(pieces).view(kind.dtype).view(sum(counts), *kind.shape)
