"""Which rows of a batch lie in which part, and their exchange: ids to their owners, rows back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..sampler.output import NO_IDS
from .exchange import Exchange

STATUS_BYTES = 8
"""A reply begins with an int64: 0, or 1 where its rank could not read the rows."""


class Located(NamedTuple):
    """Ids of one type, by where their rows lie."""

    own: Tensor
    """Positions of ids of this part: int64, shape [o]."""
    own_rows: Tensor
    """The rows of these in this part: int64, shape [o]."""
    remote: Tensor
    """The other ids, each once, rising, and so by part: int64, shape [r]."""
    at: Tensor
    """Positions of ids of other parts: int64, shape [m]."""
    inverse: Tensor
    """Their places in ``remote``: int64, shape [m]."""

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.own) + len(self.at)


NOWHERE = Located(*[NO_IDS] * 5)
"""Of no ids."""


def locate(ids: Tensor, bounds: Tensor, part: int) -> Located:
    """Where rows lie.

    Args:
        ids: int64, shape [n], in [0, bounds[-1]); repeats allowed.
        bounds: part i has the rows bounds[i]..bounds[i + 1] - 1.
        part: this one.
    """
    low, high = int(bounds[part]), int(bounds[part + 1])
    is_own = (ids >= low) & (ids < high)
    own = is_own.nonzero().view(-1)
    if len(own) == len(ids):
        nothing = own.new_empty(0)
        return Located(own, ids - low, nothing, nothing, nothing)
    at = (~is_own).nonzero().view(-1)
    remote, inverse = torch.unique(ids[at], return_inverse=True)
    return Located(own, ids[own] - low, remote, at, inverse)


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


def exchange_rows(
    exchange: Exchange, asked: Tensor, wanted: Sequence[Tensor], counts: Tensor, kinds: Sequence[Sequence[RowKind]],
    read: Sequence[Sequence[Tensor]], meanwhile: Callable[[], None] | None = None,
) -> list[list[Tensor]]:  # fmt: skip
    """Fetches rows from other ranks in two rounds, all types and attributes together.

    Args:
        exchange: over the ranks of all parts.
        asked: asked[i, t]: how many rows of type t rank i asks this one for: int64, shape [parts, types].
        wanted: for each type, the rows that this rank wants, numbered within their parts, by part: int64.
        counts: counts[i, t]: how many of these lie in part i; int64, shape [parts, types].
        kinds: for each type, its attributes.
        read: this rank's rows, for each type and attribute: shape [rows of the part, ...].
        meanwhile: called while the rows travel.

    Returns:
        For each type and attribute, the rows in the order of ``wanted``.

    Raises:
        RuntimeError: another rank could not read the rows, or an error of this rank's own.
    """
    parts, own = exchange.size, exchange.place
    each = [list(ids.split(counts[:, t].tolist())) for t, ids in enumerate(wanted)]
    requests = [torch.cat([by_part[i] for by_part in each]) if each else NO_IDS for i in range(parts)]
    sizes = (asked.sum(1) * 8).tolist()
    sizes[own] = 0
    requests[own] = NO_IDS
    found = exchange.bytes(requests, sizes, "ids")
    row_bytes = torch.tensor([sum(kind.num_bytes for kind in of_type) for of_type in kinds])

    def reply_size(of: Tensor) -> list[int]:
        lengths = (of @ row_bytes + STATUS_BYTES).tolist()
        lengths[own] = 0
        return lengths

    replies, error = [], None
    for i, length in enumerate(reply_size(asked)):
        reply = torch.zeros(length, dtype=torch.uint8)
        replies.append(reply)
        if i == own or error is not None:
            continue
        try:
            _fill(reply, found[i].view(torch.int64).split(asked[i].tolist()), kinds, read)
        except Exception as failed:  # the others expect replies of this size
            error = failed
    if error is not None:
        for reply in replies:
            reply[:STATUS_BYTES].fill_(1)
    received = exchange.bytes(replies, reply_size(counts), "rows", meanwhile)
    if error is not None:
        raise error
    for i, reply in enumerate(received):
        if i != own and int(reply[0]):
            raise RuntimeError(f"rows: expected those of part {i}, found that its rank could not read them")
    return _unpacked(received, counts, own, kinds)


def _fill(
    reply: Tensor, ids: Sequence[Tensor], kinds: Sequence[Sequence[RowKind]], read: Sequence[Sequence[Tensor]]
) -> None:
    """Writes the rows of ids, by type and attribute, after the status."""
    at = STATUS_BYTES
    for of_type, kinds_of_type, rows_of_type in zip(ids, kinds, read, strict=True):
        for kind, rows in zip(kinds_of_type, rows_of_type, strict=True):
            length = len(of_type) * kind.num_bytes
            if length:
                gathered = ops.gather_rows(rows, of_type)
                reply[at : at + length] = gathered.contiguous().view(-1).view(torch.uint8)
            at += length


def _unpacked(
    received: Sequence[Tensor], counts: Tensor, own: int, kinds: Sequence[Sequence[RowKind]]
) -> list[list[Tensor]]:
    pieces: list[list[list[Tensor]]] = [[[] for _ in of_type] for of_type in kinds]
    for i, reply in enumerate(received):
        if i == own:
            continue
        at = STATUS_BYTES
        for t, of_type in enumerate(kinds):
            for a, kind in enumerate(of_type):
                length = int(counts[i, t]) * kind.num_bytes
                pieces[t][a].append(reply[at : at + length])
                at += length
    return [
        [_as_rows(entries, kind, int(counts[:, t].sum())) for entries, kind in zip(pieces[t], of_type, strict=True)]
        for t, of_type in enumerate(kinds)
    ]


def _as_rows(pieces: list[Tensor], kind: RowKind, count: int) -> Tensor:
    """Bytes as ``count`` rows."""
    together = torch.cat([*pieces, torch.empty(0, dtype=torch.uint8)])
    return together.view(kind.dtype).view(count, *kind.shape)
