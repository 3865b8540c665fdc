"""Columns of a relation, renumbered piece by piece in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..topology import CSC
from ..topology.sort_on_disk import id_dtype

_PIECE_BYTES = 128  # of memory per edge or node of a piece, while it is made
_LONGEST = 1 << 18  # edges or nodes; larger pieces take more time per edge, because fresh memory is slow


class NodeOrder(NamedTuple):
    """Stored and user's ids of the nodes of one type, int32 where they fit: shape [n] each."""

    old: Tensor
    """The user's id of each stored node."""
    new: Tensor
    """The stored id of each node of the user."""

    @classmethod
    def by_part(cls, owner: Tensor, parts: int, step: int) -> tuple[NodeOrder, Tensor]:
        """(order, bounds) that make parts contiguous; within a part, nodes keep the user's order.

        Args:
            owner: the part of each node: int32, shape [n].
            parts: their number.
            step: nodes that are sorted at a time.
        """
        counts = torch.bincount(owner, minlength=parts) if len(owner) else torch.zeros(parts, dtype=torch.int64)
        bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        place = bounds[:-1].clone()
        new = torch.empty(len(owner), dtype=id_dtype(len(owner)))
        for at in range(0, len(owner), step):
            part, order = torch.sort(owner[at : at + step], stable=True)
            counts = torch.bincount(part, minlength=parts)
            before = counts.cumsum(0) - counts
            new[at + order] = (torch.arange(len(part)) + (place - before)[part]).to(new.dtype)
            place += counts
        return cls.from_new(new, step), bounds

    @classmethod
    def from_new(cls, new: Tensor, step: int) -> NodeOrder:
        """The order that has these stored ids, by the user's ids."""
        dtype = id_dtype(len(new))
        new, old = new.to(dtype), torch.empty(len(new), dtype=dtype)
        for at in range(0, len(new), step):
            ids = new[at : at + step].to(torch.int64)
            old[ids] = torch.arange(at, at + len(ids), dtype=dtype)
        return cls(old, new)


def piece_length(memory: int) -> int:
    """How many edges or nodes a piece has that is made within ``memory`` bytes."""
    return min(max(1, memory // _PIECE_BYTES), _LONGEST)


def degrees(csc: CSC, columns: Tensor, step: int) -> Iterator[Tensor]:
    """The numbers of edges of ``columns``, user's ids of any integer type: int64, up to ``step`` at a time."""
    for part in columns.split(step):
        ids = part.to(torch.int64)
        yield csc.colptr[ids + 1] - csc.colptr[ids]


def pointers(csc: CSC, columns: Tensor, step: int) -> Iterator[Tensor]:
    """Pieces of the ``colptr`` of the relation that has only ``columns``: int64, [len(columns) + 1] in all."""
    last = torch.zeros(1, dtype=torch.int64)
    yield last
    for degree in degrees(csc, columns, step) if len(columns) else ():
        colptr = last + degree.cumsum(0)
        yield colptr
        last = colptr[-1:].clone()


def sources(csc: CSC, columns: Tensor, new: Tensor, step: int) -> Iterator[Tensor]:
    """The stored ids, from the user's by ``new``, of the sources of the edges of columns, up to ``step`` at a time."""
    return (new[csc.row[place].to(torch.int64)] for place in _places(csc, columns, step))


def edge_ids(csc: CSC, columns: Tensor, step: int) -> Iterator[Tensor]:
    """The user's ids of the edges of columns, in their order, up to ``step`` at a time; int64 if they are positions."""
    for place in _places(csc, columns, step):
        yield place if csc.edge_id is None else csc.edge_id[place]


def edges(csc: CSC, columns: Tensor, new: Tensor, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """What :func:`sources` and :func:`edge_ids` give, together."""
    for place in _places(csc, columns, step):
        yield new[csc.row[place].to(torch.int64)], place if csc.edge_id is None else csc.edge_id[place]


def positions(csc: CSC, order: Tensor, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The positions of edges in the relation whose columns are ``order``, a permutation of all columns.

    Yields:
        The user's ids of up to ``step`` edges, in the user's order, and their positions: int64.
    """
    begins, last = torch.empty(len(order), dtype=torch.int64), 0
    for columns, degree in zip(order.split(step), degrees(csc, order, step), strict=True):
        ends = last + degree.cumsum(0)
        begins[columns.to(torch.int64)] = ends - degree
        last = int(ends[-1]) if len(ends) else last
    at = 0
    for first in range(0, len(order), step):
        degree = csc.colptr[first : first + step + 1].diff()
        for place in _ranges(begins[first : first + step], degree, step):
            end = at + len(place)
            yield torch.arange(at, end) if csc.edge_id is None else csc.edge_id[at:end].to(torch.int64), place
            at = end


def _places(csc: CSC, columns: Tensor, step: int) -> Iterator[Tensor]:
    """The positions of the edges of columns in the user's relation: int64, up to ``step`` at a time."""
    for part in columns.split(step):
        first = csc.colptr[part.to(torch.int64)]
        yield from _ranges(first, csc.colptr[part.to(torch.int64) + 1] - first, step)


def _ranges(first: Tensor, count: Tensor, step: int) -> Iterator[Tensor]:
    """first[i], first[i] + 1, ..., first[i] + count[i] - 1 for each i, up to ``step`` numbers at a time."""
    ends = count.cumsum(0)
    begins = ends - count
    shift = first - begins
    total = int(count.sum())
    for at in range(0, total, step):
        end = min(at + step, total)
        # Those that have a number in [at, end); one of a large count may be in several pieces.
        low = int(torch.searchsorted(ends, at, right=True))
        high = int(torch.searchsorted(begins, end))
        here = ends[low:high].clamp(max=end) - begins[low:high].clamp(min=at)
        yield torch.arange(at, end) + shift[low:high].repeat_interleave(here, output_size=end - at)
