"""The rows of a batch that lie in this part and in others, and their exchange: ids go to their owners, rows come back,
on the thread of the steps or on the thread that iterates.

On the latter, rows arrive on the device where batches have them. The thread of the steps exchanges ids, and gathers
what other ranks ask for and what the batch has of this part; the rows then travel in an all-to-all that the thread that
iterates issues: one per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .. import ops
from ..comm.exchange import Exchange
from ..comm.replies import ID_BYTES, Layout, by_rank
from ..comm.row_transport import RowTransport
from ..feature.tiered_rows import sent
from ..ops.arguments import NO_IDS, check_ids
from ..ops.rows import join_each, row_bytes
from .own_rows import MappedRows, OwnRows, merged


class Located(NamedTuple):
    """Where the rows of n ids of one type lie."""

    place: Tensor
    """For an id of this part: its row in the part. For another one: -1 - its index in ``remote``. int64, shape [n]."""
    remote: Tensor
    """The ids of other parts, each once, ascending, and so ordered by part: int64, shape [r]."""


NOWHERE = Located(NO_IDS, NO_IDS)
"""The value for no ids."""


def locate(ids: Tensor, bounds: Tensor, part: int) -> Located:
    """Where the rows of ids lie.

    Args:
        ids: int64, shape [n], in [0, bounds[-1]); repeats allowed.
        bounds: part i has the ids bounds[i]..bounds[i + 1] - 1.
        part: the number of this part.
    """
    low, high = int(bounds[part]), int(bounds[part + 1])
    place = ids - low
    at = ((ids < low) | (ids >= high)).nonzero().view(-1)
    if not len(at):
        return Located(place, NO_IDS)
    remote, inverse = torch.unique(ids[at], return_inverse=True)
    place[at] = inverse.bitwise_not_()
    return Located(place, remote)


def counts_by_part(ids: Tensor, bounds: Tensor) -> Tensor:
    """How many of the ids, which ascend, lie in each part: int64, shape [parts]."""
    return torch.searchsorted(ids, bounds).diff()


class Wanted(NamedTuple):
    """What a rank asks other parts for."""

    counts: Tensor
    """How many rows of each type it asks each part for: int64, shape [parts, types]."""
    rows: Sequence[Tensor]
    """By type, those of part 0, then 1, ..., by their numbers there: int64."""

    @classmethod
    def of(cls, ids: Sequence[Tensor], bounds: Sequence[Tensor]) -> Wanted:
        """Those of ids by type, which ascend: int64; ``bounds``: by type, as of :func:`locate`."""
        found = [counts_by_part(of, b) for of, b in zip(ids, bounds, strict=True)]
        rows = [of - b[:-1].repeat_interleave(count) for of, b, count in zip(ids, bounds, found, strict=True)]
        return cls(torch.stack(found, 1) if found else NOTHING.counts, rows)


NOTHING = Wanted(torch.empty(1, 0, dtype=torch.int64), ())
"""What a single part without rows asks for."""


class RowKind(NamedTuple):
    """The rows of one attribute."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of a row."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Came(Protocol):
    """Rows of one attribute from other parts."""

    @classmethod
    def of(cls, rows: Tensor) -> Came:
        """The value for contiguous rows."""

    def rows(self, like: Tensor) -> Tensor:
        """The rows as a tensor; ``like``: any tensor of rows of their dtype and shape, [..., *shape]."""


class Travelled(NamedTuple):
    """Rows of one attribute from other parts, left in the bytes in which they were received."""

    data: Tensor
    """All received bytes: uint8, shape [b]."""
    at: Tensor
    """Where each row begins in ``data``: int64, shape [r]."""

    @classmethod
    def of(cls, rows: Tensor) -> Travelled:
        """The value for contiguous rows; shares their memory."""
        return cls(rows.view(-1).view(torch.uint8), torch.arange(len(rows)) * row_bytes(rows))

    def rows(self, like: Tensor) -> Tensor:
        """A copy of the rows as a tensor; ``like``: any tensor of rows of their dtype and shape, [..., *shape]."""
        return ops.join_rows(like[:0], self.data, self.at, torch.arange(len(self.at)).bitwise_not_(), check=False)


class PartTables:
    """The rows of one part by type and attribute, and in which parts the others lie.

    Args:
        part: the number of this part.
        bounds: by type: part i has the ids bounds[i] .. bounds[i + 1] - 1: int64, shape [parts + 1].
        kinds: by type, those of its attributes.
        own: by type and attribute, this part's rows.
    """

    def __init__(
        self, part: int, bounds: Sequence[Tensor], kinds: Sequence[Sequence[RowKind]], own: Sequence[Sequence[OwnRows]]
    ) -> None:
        self.part, self.bounds, self.kinds, self.own = part, bounds, kinds, own
        self.sizes = [[kind.num_bytes for kind in of_type] for of_type in kinds]

    def locate(self, ids: Sequence[Tensor | None]) -> list[Located]:
        """By type, where the rows of ids lie; None: of no ids."""
        each = zip(ids, self.bounds, strict=True)
        return [NOWHERE if of is None else locate(of, bounds, self.part) for of, bounds in each]

    def exchange(
        self, transport: RowTransport, asked: Tensor, wanted: Wanted, meanwhile: Callable[[], None] | None = None
    ) -> list[list[Travelled]]:
        """Fetches rows from other ranks in two rounds, for all types and attributes together. The sender copies each
        row once, into the reply; the receiver leaves them in the bytes that it received.

        Args:
            transport: to the ranks of all parts.
            asked: asked[i, t]: how many rows of type t part i asks this rank for: int64, shape [parts, types].
            wanted: what this rank asks for.
            meanwhile: called while the rows are exchanged.

        Returns:
            For each type and attribute, the rows in the order of ``wanted``.

        Raises:
            OtherRankFailed: another rank could not read the rows.
            Exception: this rank could not read rows for others; the error as it was raised, after the exchange.
        """
        received, begins = transport.replies.exchanged(
            wanted.rows, wanted.counts, asked, self.sizes, self._tables, meanwhile
        )
        return [[Travelled(received, at) for at in of_type] for of_type in begins]

    def _tables(self, requested: Sequence[Sequence[Tensor]]) -> list[list[tuple[Tensor, Sequence[Tensor]]]]:
        return [[rows.table(of) for rows in of_type] for of_type, of in zip(self.own, requested, strict=True)]

    def joined(
        self, which: Sequence[tuple[int, int]], located: Sequence[Located], came: Sequence[Sequence[Travelled]]
    ) -> list[Tensor]:
        """The rows of a batch.

        Args:
            which: of the attributes that it reads, the number of the type, and that among those of the type.
            located: by type, where they lie.
            came: those of ``located[t].remote``, by type and attribute.
        """
        own, place = [self.own[t][a] for t, a in which], [located[t].place for t, _ in which]
        other, at = zip(*(came[t][a] for t, a in which), strict=True) if which else ((), ())
        if all(isinstance(rows, MappedRows) for rows in own):
            return join_each([rows.tensor for rows in own], other, at, place)  # type: ignore[attr-defined]
        return [rows.join(*of) for rows, *of in zip(own, place, other, at, strict=True)]


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
        requests = by_rank(wanted, taken)
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
    tables: PartTables, exchange: Exchange, asked: Tensor, wanted: Wanted,
    of_batch: Sequence[tuple[OwnRows, Tensor]], device: torch.device, stream: torch.cuda.Stream | None,
) -> Coming:  # fmt: skip
    """Exchanges ids, in one round, and gathers the rows that other ranks ask for and those of this part.

    Args:
        tables: of this part.
        exchange: over the ranks of all parts.
        asked, wanted: of :meth:`PartTables.exchange`.
        of_batch: what the batch has of this part: rows of attributes, and their ids, which are not checked.
        device: where rows are sent from, and batches have them.
        stream: on which a GPU gathers them; None on the CPU.
    """
    with exchange.awaited():
        given, taken = (Layout(entry, tables.sizes, exchange.rank, 0) for entry in (asked, wanted.counts))
    kinds = tables.kinds
    requested = exchange_ids(exchange, wanted.rows, taken.counts, given.counts)
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
