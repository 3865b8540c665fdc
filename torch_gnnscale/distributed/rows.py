"""Which rows of a batch lie in which part, and their exchange: ids to their owners, rows back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..ops.exchanged_rows import row_bytes
from ..sampler.output import NO_IDS
from .exchange import Elsewhere, Exchange

ID_BYTES = 8
"""An id is sent as an int64."""
STATUS_BYTES = 8
"""A reply begins with an int64: 0, or 1 where its rank could not read the rows."""


class Located(NamedTuple):
    """Ids of one type, by where their rows lie."""

    place: Tensor
    """Of an id of this part, its row there; of another one, -1 - its place in ``remote``: int64, shape [n]."""
    remote: Tensor
    """The ids of other parts, each once, rising, and so by part: int64, shape [r]."""


NOWHERE = Located(NO_IDS, NO_IDS)
"""Of no ids."""


def locate(ids: Tensor, bounds: Tensor, part: int) -> Located:
    """Where rows lie.

    Args:
        ids: int64, shape [n], in [0, bounds[-1]); repeats allowed.
        bounds: part i has the rows bounds[i]..bounds[i + 1] - 1.
        part: this one.
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
    """How many rising ids lie in each part: int64, shape [parts]."""
    return torch.searchsorted(ids, bounds).diff()


class RowKind(NamedTuple):
    """The rows of one attribute."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of a row."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Travelled(NamedTuple):
    """Rows of one attribute that have come from other parts, among the other bytes that came."""

    data: Tensor
    """uint8, shape [b]."""
    at: Tensor
    """Where each row begins: int64, shape [r]."""

    @classmethod
    def of(cls, rows: Tensor) -> Travelled:
        """Contiguous rows."""
        return cls(rows.view(-1).view(torch.uint8), torch.arange(len(rows)) * row_bytes(rows))

    def rows(self, like: Tensor) -> Tensor:
        """The rows by themselves; ``like``: has their dtype and their shape [..., *shape]."""
        return ops.join_rows(like[:0], self.data, self.at, torch.arange(len(self.at)).bitwise_not_(), check=False)


def exchange_rows(
    exchange: Exchange, asked: Tensor, wanted: Sequence[Tensor], counts: Tensor, kinds: Sequence[Sequence[RowKind]],
    read: Sequence[Sequence[Tensor]], meanwhile: Callable[[], None] | None = None,
) -> list[list[Travelled]]:  # fmt: skip
    """Fetches rows from other ranks in two rounds, all types and attributes together.

    A reply is a status and, by type and attribute, the rows: gathered once into what is sent, and left where they
    arrive.

    Args:
        exchange: over the ranks of all parts.
        asked: asked[i, t]: how many rows of type t rank i asks this one for: int64, shape [parts, types].
        wanted: for each type, the rows that this rank wants, numbered within their parts, by part: int64.
        counts: counts[i, t]: how many of these lie in part i; int64, shape [parts, types]; none in this rank's.
        kinds: for each type, its attributes.
        read: this rank's rows, for each type and attribute: shape [rows of the part, ...].
        meanwhile: called while the rows travel.

    Returns:
        For each type and attribute, the rows in the order of ``wanted``.

    Raises:
        Elsewhere: another rank could not read the rows; or an error of this rank's own.
    """
    given, taken = _Layout(asked, kinds, exchange.place), _Layout(counts, kinds, exchange.place)
    requests = wanted[0] if len(wanted) == 1 else _by_part(wanted, taken.counts)
    lengths, sizes = ([sum(row) * ID_BYTES for row in layout.counts] for layout in (taken, given))
    found = exchange.bytes(requests.view(torch.uint8), lengths, sizes, "ids")
    error = None
    try:
        replies = _packed(given, found.view(torch.int64).split([n for row in given.counts for n in row]), read)
    except Exception as failed:  # the others expect replies of this size
        error, replies = failed, torch.zeros(given.total, dtype=torch.uint8)
        replies[given.status] = 1
    received = exchange.bytes(replies, given.lengths, taken.lengths, "rows", meanwhile)
    if error is not None:
        raise error
    if (unread := received[taken.status]).any():
        part = [part for part in range(exchange.size) if part != exchange.place][int(unread.nonzero()[0])]
        raise Elsewhere(f"rows: expected those of part {part}, found that its rank could not read them")
    return [[Travelled(received, taken.offsets(t, a)) for a in range(len(of_type))] for t, of_type in enumerate(kinds)]


def _by_part(ids: Sequence[Tensor], counts: list[list[int]]) -> Tensor:
    """Ids that are given by type and then by part, by part and then by type; ``counts[part][type]``: how many."""
    each = [of_type.split([row[t] for row in counts]) for t, of_type in enumerate(ids)]
    return torch.cat([of_type[part] for part in range(len(counts)) for of_type in each] or [NO_IDS])


class _Layout:
    """Where the rows lie in replies from or to all parts, one after another; this rank's own has no bytes.

    Args:
        counts: counts[i, t]: how many rows of type t that of part i has: int64, shape [parts, types].
        kinds: for each type, its attributes.
        own: this part.
    """

    def __init__(self, counts: Tensor, kinds: Sequence[Sequence[RowKind]], own: int) -> None:
        self.counts: list[list[int]] = counts.tolist()
        self.kinds = kinds
        self.begins: list[list[list[int]]] = []
        """begins[i][t][a]: where the rows of an attribute of part i begin."""
        self.lengths: list[int] = []
        """Bytes of each reply."""
        status, end = [], 0
        for part, row in enumerate(self.counts):
            begin = end
            if part != own:
                status.append(begin)
                end += STATUS_BYTES
            self.begins.append([])
            for count, of_type in zip(row, kinds, strict=True):
                bytes_ = accumulate((count * kind.num_bytes for kind in of_type), initial=end)
                *begins, end = bytes_
                self.begins[-1].append(begins)
            self.lengths.append(end - begin)
        self.total = end
        """Bytes of all replies."""
        self.status = torch.tensor(status, dtype=torch.int64)
        """The first byte of each reply: int64, shape [parts - 1]."""

    def offsets(self, t: int, a: int) -> Tensor:
        """Where each row of an attribute begins: int64, shape [rows of all parts]."""
        size = self.kinds[t][a].num_bytes
        each = [
            torch.arange(row[t]).mul_(size).add_(begins[t][a])
            for row, begins in zip(self.counts, self.begins, strict=True)
            if row[t]
        ]
        return each[0] if len(each) == 1 else torch.cat([*each, NO_IDS])


def _packed(layout: _Layout, ids: Sequence[Tensor], read: Sequence[Sequence[Tensor]]) -> Tensor:
    """Replies with these rows; ``ids[i * types + t]``: those of type t that part i asks for."""
    rows: list[Tensor] = []
    index: list[Tensor] = []
    at: list[int] = []
    for i, begins in enumerate(layout.begins):
        for t, tables in enumerate(read):
            if layout.counts[i][t]:
                rows += tables
                index += [ids[i * len(read) + t]] * len(tables)
                at += begins[t]
    return ops.pack_rows(rows, index, at, layout.total)
