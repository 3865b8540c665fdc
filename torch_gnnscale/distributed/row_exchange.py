"""Which rows of a batch lie in which part, and their exchange: ids go to their owners, rows come back.

Rows arrive on the thread of the steps, or on the thread that iterates, on the device where batches have them. In the
latter case the thread of the steps exchanges ids, and gathers what other ranks ask for and what the batch has of this
part; the rows then travel in an all-to-all that the thread that iterates issues: one per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .. import ops
from ..comm.exchange import Exchange, OtherRankFailed
from ..comm.row_transport import ID_BYTES, STATUS_BYTES, RowTransport
from ..feature.tiered_rows import sent
from ..ops.arguments import check_ids
from ..ops.rows import row_bytes
from ..sampler.minibatch import NO_IDS
from .own_rows import OwnRows, merged


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


def exchange_rows(
    transport: RowTransport, asked: Tensor, wanted: Sequence[Tensor], counts: Tensor,
    kinds: Sequence[Sequence[RowKind]], own: Sequence[Sequence[OwnRows]], meanwhile: Callable[[], None] | None = None,
) -> list[list[Travelled]]:  # fmt: skip
    """Fetches rows from other ranks in two rounds, for all types and attributes together.

    A reply is a status, then the rows, ordered by type and attribute. The sender copies each row once, into the reply;
    the receiver leaves them in the bytes that it received.

    Args:
        transport: to the ranks of all parts.
        asked: asked[i, t]: how many rows of type t part i asks this rank for: int64, shape [parts, types].
        wanted: for each type, the rows that this rank asks for, ordered by part, as row numbers in their parts: int64.
        counts: counts[i, t]: how many of wanted[t] lie in part i, 0 for this part: int64, shape [parts, types].
        kinds: for each type, its attributes.
        own: for each type and attribute, this part's rows.
        meanwhile: called while the rows are exchanged.

    Returns:
        For each type and attribute, the rows in the order of ``wanted``.

    Raises:
        OtherRankFailed: another rank could not read the rows.
        Exception: this rank could not read rows for others; the error as it was raised, after the exchange.
    """
    exchange = transport.exchange
    with exchange.awaited():
        given, taken = Layout(asked, kinds, exchange.rank), Layout(counts, kinds, exchange.rank)
        ids = _by_part(wanted, taken.counts)
    failed: list[Exception] = []

    def answer(ids: Sequence[Tensor], replies: Sequence[Tensor]) -> None:
        of_types = [piece for of_part, row in zip(ids, given.counts, strict=True) for piece in of_part.split(row)]
        _answer(given, of_types, own, replies, failed)

    to, by = ([sum(row) for row in of_parts] for of_parts in (taken.counts, given.counts))
    received = transport.answered(ids, to, by, given.lengths, taken.lengths, answer, meanwhile)
    return _read(exchange, taken, received, failed)


def _read(exchange: Exchange, taken: Layout, received: Tensor, failed: Sequence[Exception]) -> list[list[Travelled]]:
    """The rows in replies as ``taken``; ``failed``: why this rank could not answer the others, if it could not."""
    unread = received[taken.status].nonzero().view(-1)
    if failed or len(unread):
        error = failed[0] if failed else None
        why = exchange.reasons(error)  # a reply to every rank says that there are some
        if error is not None:
            raise error
        other = [other for other in range(exchange.size) if other != exchange.rank][int(unread[0])]
        raise OtherRankFailed(
            f"rows: expected those of rank {exchange.world_ranks[other]}, found that it could not read them: "
            f"{why[other]}"
        )
    of_types = enumerate(taken.kinds)
    return [[Travelled(received, taken.offsets(t, a)) for a in range(len(kinds))] for t, kinds in of_types]


def exchange_ids(
    exchange: Exchange, wanted: Sequence[Tensor], taken: list[list[int]], given: list[list[int]]
) -> Sequence[Tensor]:
    """The rows that other parts ask this one for: entry ``i * types + t`` has those of type t that part i asks for.

    Args:
        exchange, wanted: of :func:`exchange_rows`.
        taken, given: ``counts`` and ``asked`` of :func:`exchange_rows`.
    """
    with exchange.awaited():
        requests = _by_part(wanted, taken)
        lengths, sizes = ([sum(row) * ID_BYTES for row in counts] for counts in (taken, given))
    found = exchange.bytes(requests.view(torch.uint8), lengths, sizes, "ids")
    return found.view(torch.int64).split([n for row in given for n in row])


def _by_part(ids: Sequence[Tensor], counts: list[list[int]]) -> Tensor:
    """Reorders ids from (type, part) to (part, type); ``counts[part][type]``: how many of each."""
    if len(ids) == 1:
        return ids[0]
    each = [of_type.split([row[t] for row in counts]) for t, of_type in enumerate(ids)]
    return torch.cat([of_type[part] for part in range(len(counts)) for of_type in each] or [NO_IDS])


class Layout:
    """Where the rows lie in the replies from, or to, all parts, one reply after another; this part's reply is empty.

    Args:
        counts: counts[i, t]: how many rows of type t the reply from, or to, part i has: int64, shape [parts, types].
        kinds: for each type, its attributes.
        own: the number of this part.
        status: the bytes that a reply begins with.
    """

    def __init__(
        self, counts: Tensor, kinds: Sequence[Sequence[RowKind]], own: int, status: int = STATUS_BYTES
    ) -> None:
        self.counts: list[list[int]] = counts.tolist()
        self.kinds = kinds
        self.begins: list[list[list[int]]] = []
        """begins[i][t][a]: where, in the reply of part i, the rows of attribute a of type t begin."""
        self.starts: list[int] = []
        """Where each reply begins."""
        self.lengths: list[int] = []
        """The bytes of each reply."""
        at, end = [], 0
        for part, row in enumerate(self.counts):
            begin = end
            self.starts.append(begin)
            if part != own:
                at.append(begin)
                end += status
            self.begins.append([])
            for count, of_type in zip(row, kinds, strict=True):
                bytes_ = accumulate((count * kind.num_bytes for kind in of_type), initial=end)
                *begins, end = bytes_
                self.begins[-1].append(begins)
            self.lengths.append(end - begin)
        self.total = end
        """The bytes of all replies."""
        self.status = torch.tensor(at, dtype=torch.int64)
        """The first byte of each reply: int64, shape [parts - 1]."""

    def offsets(self, t: int, a: int) -> Tensor:
        """Where each row of attribute ``a`` of type ``t`` begins, in all replies: int64, shape [rows]."""
        size = self.kinds[t][a].num_bytes
        each = [
            torch.arange(row[t]).mul_(size).add_(begins[t][a])
            for row, begins in zip(self.counts, self.begins, strict=True)
            if row[t]
        ]
        return each[0] if len(each) == 1 else torch.cat([*each, NO_IDS])


def _answer(
    layout: Layout, ids: Sequence[Tensor], own: Sequence[Sequence[OwnRows]], replies: Sequence[Tensor],
    failed: list[Exception],
) -> None:  # fmt: skip
    """Writes the replies to all parts. If that fails, they say so, and the error is added to ``failed``.

    Args:
        layout: of the replies.
        ids: entry ``i * types + t`` has the rows of type t that part i asks for.
        own: of :func:`exchange_rows`.
        replies: the memory of each reply: uint8.
    """
    try:
        found = [[rows.table(ids[t :: len(own)]) for rows in of_type] for t, of_type in enumerate(own)]
        for i, reply in enumerate(replies):
            rows, index, at = list[Tensor](), list[Tensor](), list[int]()
            for t, of_type in enumerate(found):
                if layout.counts[i][t]:
                    rows += [table for table, _ in of_type]
                    index += [of_part[i] for _, of_part in of_type]
                    at += [begin - layout.starts[i] for begin in layout.begins[i][t]]
            ops.pack_rows(rows, index, at, reply)
    except Exception as error:
        failed.append(error)
        for reply in replies:
            reply.zero_()[:1] = 1


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
            for t, of_type in enumerate(self.taken.kinds)
        ]


def answered(
    exchange: Exchange, asked: Tensor, wanted: Sequence[Tensor], counts: Tensor, kinds: Sequence[Sequence[RowKind]],
    own: Sequence[Sequence[OwnRows]], of_batch: Sequence[tuple[OwnRows, Tensor]], device: torch.device,
    stream: torch.cuda.Stream | None,
) -> Coming:  # fmt: skip
    """Exchanges ids, in one round, and gathers the rows that other ranks ask for and those of this part.

    Args:
        exchange, asked, wanted, counts, kinds, own: of :func:`exchange_rows`.
        of_batch: what the batch has of this part: rows of attributes, and their ids, which are not checked.
        device: where rows are sent from, and batches have them.
        stream: on which a GPU gathers them; None on the CPU.
    """
    with exchange.awaited():
        given, taken = (Layout(entry, kinds, exchange.rank, status=0) for entry in (asked, counts))
    requested = exchange_ids(exchange, wanted, taken.counts, given.counts)
    with torch.cuda.stream(stream):
        each = [
            _replies(requested[t :: len(kinds)], rows, kind, device)
            for t, of_type in enumerate(own)
            for rows, kind in zip(of_type, kinds[t], strict=True)
        ]
        nothing = torch.empty(0, dtype=torch.uint8, device=device)
        replies = torch.cat([nothing, *(piece for of_part in zip(*each, strict=True) for piece in of_part)])
        mine = [_there(rows.gather(ids), device) for rows, ids in of_batch]
        ready = None if stream is None else stream.record_event()
    return Coming(replies, mine, given, taken, ready)


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
