"""Columns of a relation, renumbered piece by piece in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..topology import CSC
from ..topology.sort_on_disk import id_dtype

_PIECE_BYTES = 64  # of memory per edge or node, while a piece is made


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
        """The order of which the stored ids of the user's ids are known."""
        dtype = id_dtype(len(new))
        new, old = new.to(dtype), torch.empty(len(new), dtype=dtype)
        for at in range(0, len(new), step):
            ids = new[at : at + step].to(torch.int64)
            old[ids] = torch.arange(at, at + len(ids), dtype=dtype)
        return cls(old, new)


def piece_length(memory: int) -> int:
    """How many edges or nodes a piece has that is made within ``memory`` bytes."""
    return max(1, memory // _PIECE_BYTES)


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


def edges(csc: CSC, columns: Tensor, new: Tensor | None, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The edges of columns, in their order, up to ``step`` at a time.

    Args:
        csc: the user's relation.
        columns: destinations, user's ids of any integer type, shape [m].
        new: the stored id of each source; None if only the edges' ids are needed.
        step: edges in a piece.

    Yields:
        Stored ids of the sources (without ``new``, the user's), and the user's ids of the edges: equal length, the
        latter int64 if an edge's id is its position.
    """
    for part in columns.split(step):
        ids = part.to(torch.int64)
        first = csc.colptr[ids]
        degree = csc.colptr[ids + 1] - first
        ends = degree.cumsum(0)
        begins = ends - degree
        total = int(degree.sum())
        for at in range(0, total, step):
            end = min(at + step, total)
            # The columns that have an edge in [at, end); a column of many edges may lie in several pieces.
            low = int(torch.searchsorted(ends, at, right=True))
            high = int(torch.searchsorted(begins, end))
            count = ends[low:high].clamp(max=end) - begins[low:high].clamp(min=at)
            shift = (first - begins)[low:high].repeat_interleave(count, output_size=end - at)
            place = torch.arange(at, end) + shift
            row = csc.row[place]
            if new is not None:
                row = new[row.to(torch.int64)]
            yield row, place if csc.edge_id is None else csc.edge_id[place]
