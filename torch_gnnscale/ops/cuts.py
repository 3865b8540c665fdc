"""What cutting a batch over ranks gives one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from .arguments import OPS, check_device, check_ids, check_int, check_same, check_tensor, first_outside
from .graph import check_vector
from .sample_options import MAX_HOPS

MAX_PARTS = 1 << 16
"""Over so many ranks a batch can be cut."""


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


def cut_batch(
    node: Tensor, num_nodes: Sequence[int], colptr: Tensor, row: Tensor, owner: Tensor, parts: int, part: int
) -> Cut:
    """One rank's share of a batch (GSplit, section 5).

    Its time is linear in the nodes and edges of the batch: all edges are read once, for what this rank sends follows
    from the edges into the nodes of others; nodes are sorted by their digits. On a GPU, where the result is the same,
    4 n ``parts`` bytes and more are needed, and the host waits three times.

    Args:
        node: the batch's nodes, seeds first, each group (the nodes that one hop found) in any order: int64, shape [n].
        num_nodes: how many of them each group has: L + 1 numbers, L at least 1.
        colptr: edges colptr[i]..colptr[i+1]-1 lead to node i: int64, shape [nodes of groups 0..L-1, + 1].
        row: sources, as numbers in the batch: int64, shape [e].
        owner: owner[i]: the rank of node i of the batch; int32 or int64, shape [n].
        parts: the number of ranks.
        part: the number of the rank whose share is returned.

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes or numbers; an owner that is no rank; 2^31 nodes or
            more.
        NotImplementedError: nodes that are neither in host memory nor on a GPU.
        RuntimeError: ``colptr`` falls or goes beyond the edges, or a source is no node.
    """
    counts = [check_int("num_nodes", count) for count in num_nodes]
    hops = len(counts) - 1
    if not 1 <= hops <= MAX_HOPS:
        raise ValueError(f"num_nodes: expected 2 to {MAX_HOPS + 1} numbers, found {len(counts)}")
    parts = check_int("parts", parts, 1, MAX_PARTS)
    part = check_int("part", part, 0, parts - 1)
    check_vector("node", node, total := sum(counts))
    check_vector("colptr", colptr, total - counts[-1] + 1)
    check_ids("owner", owner)
    if len(owner) != total:
        raise ValueError(f"owner: expected one for each of {total} nodes, found {len(owner)}")
    check_tensor("row", row)
    check_vector("row", row, row.numel())
    if total >= 1 << 31:
        raise ValueError(f"node: expected less than 2^31, found {total}")
    check_device("node", node)
    check_same({"colptr": colptr, "row": row, "owner": owner}, node.device, "node is")
    given = (node.contiguous(), counts, colptr.contiguous(), row.contiguous(), owner.contiguous(), parts, part)
    try:
        *found, numbers = OPS.cut_batch(*given)
    except RuntimeError as error:
        if (at := first_outside(owner, parts)) >= 0:
            raise IndexError(
                f"owner[{at}] = {int(owner[at])} is out of range: expected ranks in [0, {parts})"
            ) from error
        raise
    local, own_colptr, own_row, edge, halo, sent = found
    of = numbers.tolist()
    tables = [[of[at : at + hops] for at in range(begin, begin + parts * hops, hops)] for begin in (
        2 * hops + 1, 2 * hops + 1 + parts * hops,
    )]  # fmt: skip
    return Cut(
        local, of[: hops + 1], of[hops + 1 : 2 * hops + 1], own_colptr, own_row, edge, halo, tables[0], sent, tables[1]
    )
