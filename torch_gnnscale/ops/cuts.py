"""What cutting a batch over ranks gives one of them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Cut(NamedTuple):
    """One rank's share of a batch: the nodes that it owns, and the edges into them (GSplit, section 5).

    A node's group is the hop that found it, 0 for seeds. The halo are the nodes of other ranks from which an edge leads
    to an own node; the level of a halo node is 1 + the least group of such an edge's destination. A layer that computes
    the nodes of groups 0..g-1 reads the halo's nodes of levels 1..g.
    """

    local: Tensor
    """The own nodes, as numbers in the batch, by group; seeds in the batch's order, later groups by rising id: int64,
    shape [m]."""
    num_nodes: list[int]
    """Own nodes in each group: L + 1 numbers."""
    num_edges: list[int]
    """Edges into own nodes of groups 0..L-1: L numbers."""
    colptr: Tensor
    """Edges colptr[i]..colptr[i+1]-1 lead to own node i: int64, shape [m - num_nodes[-1] + 1]."""
    row: Tensor
    """Sources: i for own node i, m + j for node j of the halo: int64, shape [e]."""
    edge: Tensor
    """The edges, as numbers in the batch: int64, shape [e]."""
    halo: Tensor
    """The halo, as numbers in the batch, by (owner, level, id): int64, shape [h]."""
    num_received: list[list[int]]
    """num_received[p][g]: how many nodes of the halo are rank p's and have level g + 1."""
    sent: Tensor
    """The own nodes in the halo of rank 0, then 1, ..., each in that halo's order; values in [0, m): int64, shape
    [s]."""
    num_sent: list[list[int]]
    """num_sent[p][g]: how many of them are in the halo of rank p with level g + 1."""
