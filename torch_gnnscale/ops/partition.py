"""Operators on neighborhoods of both directions, by which graphs are cut into parts."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Side(NamedTuple):
    """Some neighbors of some nodes: those in the columns of a CSC between two ranges of nodes."""

    colptr: Tensor
    """int64, shape [nodes that have columns + 1]."""
    row: Tensor
    """Neighbors, counted from ``first_neighbor``: int32 or int64, shape [E]; any stride, perhaps mapped."""
    first_node: int
    """The node of the first column."""
    first_neighbor: int
    """The node that ``row`` calls 0."""
    num_neighbors: int
    """How many nodes ``row`` may name."""
