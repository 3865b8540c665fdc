"""A checksum of a relation's edges that is a sum over them: those of its parts add up to it, in any order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..topology import CSC

_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_LENGTH = 1 << 17
"""Edges that are hashed at a time: what they take fits into caches."""


def edge_sum(*columns: Tensor) -> int:
    """The sum of a hash of 64 bits of each edge, modulo 2^63.

    Args:
        columns: the destinations of edges, their places in the columns of the CSC, their sources and, if they have
            some, their ids: any integer type, shape [m].
    """
    total = 0
    for pieces in zip(*(column.split(_LENGTH) for column in columns), strict=True):
        mixed = np.full(len(pieces[0]), len(columns), np.uint64)  # from 0, the edge of zeros would count for nothing
        for odd, piece in zip(_ODD, pieces, strict=False):
            mixed += piece.numpy().astype(np.int64).view(np.uint64) * np.uint64(odd)
        for shift, odd in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's last steps
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(odd)
        total += int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
    return total % (1 << 63)


def places_of(colptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(column, place in it) of each edge of consecutive columns: int64, shape [m]; ``colptr``: int64, shape [n + 1]."""
    degree = np.diff(colptr)
    column = np.repeat(np.arange(len(degree)), degree)
    return column, np.arange(len(column)) - np.repeat(colptr[:-1] - colptr[0], degree)


def checksum_of(csc: CSC) -> int:
    """The checksum of a relation, whatever the types of integers; mapped arrays are read a piece at a time."""
    total, colptr = 0, csc.colptr.numpy()
    for at in range(0, csc.num_edges, _LENGTH):
        end = min(at + _LENGTH, csc.num_edges)
        begin, last = np.searchsorted(colptr, at, side="right") - 1, np.searchsorted(colptr, end)
        column, place = places_of(colptr[begin : last + 1].clip(at, end))
        place[column == 0] += at - colptr[begin]
        edges = [array[at:end] for array in (csc.row, csc.edge_id) if array is not None]
        total += edge_sum(torch.from_numpy(column + begin), torch.from_numpy(place), *edges)
    return total % (1 << 63)
