"""Operators on the topology: checks, COO to CSC, the reverses of edges, and neighborhoods of both directions, by which
graphs are cut into parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import (
    MAX_COUNT,
    OPS,
    check_ids,
    check_int,
    check_key,
    check_permutation,
    check_tensor,
    first_outside,
    resolve_threads,
)
from .graph_arguments import Relations


def check_colptr(colptr: Tensor, num_edges: int, threads: int = 0) -> None:
    """Checks a CSC column pointer.

    Args:
        colptr: int64, shape [num_columns + 1]: starts at 0, never falls, ends at ``num_edges``.
        num_edges: the number of edges it points into.
        threads: see the package.

    Raises:
        TypeError: not an int64 tensor.
        ValueError: malformed; names the first entry that is wrong.
    """
    if not isinstance(colptr, Tensor) or colptr.dtype != torch.int64:
        found = colptr.dtype if isinstance(colptr, Tensor) else type(colptr).__name__
        raise TypeError(f"colptr: expected an int64 tensor, found {found}")
    if colptr.dim() != 1 or colptr.numel() == 0:
        raise ValueError(f"colptr: expected a vector of at least one entry, found shape {tuple(colptr.shape)}")
    at = int(OPS.first_malformed(colptr.contiguous(), check_int("num_edges", num_edges), resolve_threads(threads)))
    if at < 0:
        return
    value = int(colptr[at])
    if at == 0 and value != 0:
        raise ValueError(f"colptr[0]: expected 0, found {value}")
    if at > 0 and value < int(colptr[at - 1]):
        raise ValueError(f"colptr[{at}] = {value} is less than colptr[{at - 1}] = {int(colptr[at - 1])}")
    raise ValueError(f"colptr[{at}] (the last): expected the number of edges {num_edges}, found {value}")


def coo_to_csc(src: Tensor, dst: Tensor, num_src: int, num_dst: int, threads: int = 0) -> tuple[Tensor, Tensor]:
    """Sorts edges by destination, stably, in parallel; the input is not changed.

    Args:
        src: source of each edge, int32 or int64, shape [E], in [0, num_src).
        dst: destination of each edge, the dtype and shape of ``src``, in [0, num_dst).
        num_src: number of source nodes.
        num_dst: number of destination nodes.
        threads: see the package.

    Returns:
        ``colptr``, int64, shape [num_dst + 1]; and ``edges``, shape [E, 2]: an edge's source and its position in the
        input, side by side because they are read together; int32 where both numbers fit, else int64.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, unequal lengths, an id out of range.
    """
    check_int("num_src", num_src)
    check_int("num_dst", num_dst, most=MAX_COUNT)
    check_ids("src", src)
    check_ids("dst", dst)
    if src.dtype != dst.dtype or len(src) != len(dst):
        raise ValueError(
            f"src and dst: expected one dtype and length, found {src.dtype} [{len(src)}] and {dst.dtype} [{len(dst)}]"
        )
    int32 = max(num_src, len(src)) <= torch.iinfo(torch.int32).max
    try:
        return OPS.coo_to_csc(src.contiguous(), dst.contiguous(), num_src, num_dst, int32, resolve_threads(threads))
    except RuntimeError:  # an id out of range, which this names
        check_ids("src", src, num_src, threads=threads)
        check_ids("dst", dst, num_dst, threads=threads)
        raise


def colptr_of_sorted(dst: Tensor, num_dst: int, threads: int = 0) -> Tensor:
    """The column pointer of edges that are sorted by destination, in one pass over them, in parallel.

    Args:
        dst: destination of each edge, int32 or int64, shape [E], in [0, num_dst), never falling.
        num_dst: number of destination nodes.
        threads: see the package.

    Returns:
        int64, shape [num_dst + 1].

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, an id out of range, edges that are not sorted.
    """
    check_int("num_dst", num_dst, most=MAX_COUNT)
    check_ids("dst", dst)
    try:
        return OPS.colptr_of_sorted(dst.contiguous(), num_dst, resolve_threads(threads))
    except RuntimeError:  # which this explains
        check_ids("dst", dst, num_dst, threads=threads)
        falls = (dst[1:] < dst[:-1]).nonzero()
        if len(falls) == 0:
            raise
        at = int(falls[0]) + 1
        raise ValueError(
            f"dst: expected edges sorted by destination, found dst[{at}] = {int(dst[at])} after {int(dst[at - 1])}"
        ) from None


def renumber(
    colptr: Tensor, row: Tensor, order: Tensor, *, edge_id: Tensor | None = None, threads: int = 0
) -> tuple[Tensor, Tensor]:
    """The CSC of a graph whose nodes are put in another order (Data Tiering, section 3.2, algorithm 2), in parallel.

    Args:
        colptr: int64, shape [n + 1].
        row: sources, int32 or int64, shape [E]; any stride.
        order: the old id of each new node, a permutation of [0, n): int64, shape [n].
        edge_id: the original id of each stored edge, or None where it is the position.
        threads: see the package.

    Returns:
        As :func:`coo_to_csc`: the new ``colptr``, and ``edges``: new sources and original edge ids. A node's edges
        keep their order.

    Raises:
        TypeError, ValueError: wrong dtypes or shapes, an order that is no permutation.
        RuntimeError: ``row`` holds numbers that are no nodes.
    """
    check_ids("row", row)
    check_colptr(colptr, len(row), threads)
    num_nodes = colptr.numel() - 1
    rank = check_permutation("order", order, num_nodes, threads)
    if edge_id is not None:
        check_ids("edge_id", edge_id)
        if len(edge_id) != len(row):
            raise ValueError(f"edge_id: expected one for each of {len(row)} edges, found {len(edge_id)}")
    int32 = max(num_nodes, len(row)) <= torch.iinfo(torch.int32).max
    if edge_id is not None and edge_id.dtype == torch.int64 and int32:
        int32 = first_outside(edge_id, 1 << 31, threads) < 0
    return OPS.renumber(colptr.contiguous(), row, edge_id, order.contiguous(), rank, int32, resolve_threads(threads))


def reverse_edges(
    graph: Relations, number: int, num_ids: int, *, same_time: bool = False, threads: int = 0
) -> Tensor | None:
    """The ids of the edges that lead the other way, if each edge has one.

    The reverse of an edge from u to v is an edge from v to u of the reverse relation; of several, the k-th that is
    stored belongs to the k-th.

    Args:
        graph: from :func:`relations`.
        number: a relation that has a reverse relation.
        num_ids: ids of the edges of the reverse relation are in [0, num_ids).
        same_time: an edge and its reverse must also have the same time.
        threads: see the package; each takes 8 bytes a node.

    Returns:
        ``result[id of an edge of the reverse relation]`` is the id of this relation's edge that leads the other way, -1
        for ids that no edge has: int32 where both fit, else int64, shape [num_ids]. None if some edge of either
        relation has no reverse.

    Raises:
        TypeError, ValueError: wrong numbers, a relation without a reverse relation.
        RuntimeError: edges hold numbers that are no nodes, or ids that are not below ``num_ids``.
    """
    check_int("number", number, most=len(graph.colptr) - 1)
    check_int("num_ids", num_ids, most=MAX_COUNT)
    if (reverse := graph.reverse[number]) < 0:
        raise ValueError(f"number: expected a relation with a reverse relation, found relation {number} without")
    row, edge_id, other = graph.row[number], graph.edge_id[number], graph.row[reverse]
    times = (graph.time[number], graph.time[reverse]) if same_time else (None, None)
    if len(row) != len(other) or (times[0] is None) != (times[1] is None):
        return None
    if row.dtype != other.dtype:
        row, other = row.to(torch.int64), other.to(torch.int64)
    bound = len(row) if edge_id is None else 0 if edge_id.dtype == torch.int32 else MAX_COUNT
    table, complete = OPS.reverse_edges(
        graph.colptr[number], row, edge_id, times[0], graph.colptr[reverse], other, graph.edge_id[reverse], times[1],
        num_ids, max(bound, num_ids) <= 1 << 31, resolve_threads(threads),
    )  # fmt: skip
    return table if complete else None


MAX_ROUNDS = 1 << 16
"""Of :func:`propagate_labels`, which cannot be interrupted."""
MAX_STEPS = 1 << 12
"""Steps of a round of :func:`propagate_labels`."""


class Side(NamedTuple):
    """Some neighbors of some nodes: those in the columns of a CSC between two ranges of nodes."""

    colptr: Tensor
    """int64, shape [nodes that have columns + 1]."""
    row: Tensor
    """Neighbors, counted from ``first_neighbor``: int32 or int64, shape [E], of any stride; it may be mapped."""
    first_node: int
    """The node of the first column."""
    first_neighbor: int
    """The node that ``row`` calls 0."""
    num_neighbors: int
    """How many nodes ``row`` may name."""

    def transposed(self, threads: int = 0) -> Side:
        """The same edges from their other ends (see :func:`transpose`)."""
        colptr, row = transpose(self.colptr, self.row, self.num_neighbors, threads)
        return Side(colptr, row, self.first_neighbor, self.first_node, self.colptr.numel() - 1)


def transpose(colptr: Tensor, row: Tensor, num_src: int, threads: int = 0) -> tuple[Tensor, Tensor]:
    """A CSC by source, without the ids of edges.

    Args:
        colptr: int64, shape [num_dst + 1].
        row: sources, int32 or int64, shape [E], in [0, num_src); any stride.
        num_src: the number of sources.
        threads: see the package; each takes 8 bytes a source.

    Returns:
        Where each source's edges begin, int64, shape [num_src + 1], and their destinations, rising for each source:
        int32 where they fit, else int64, shape [E].

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes or shapes, a source out of range.
    """
    num_src = check_int("num_src", num_src, 0, MAX_COUNT)
    check_ids("row", row)
    check_colptr(colptr, len(row), threads)
    try:
        return OPS.transpose(colptr.contiguous(), row, num_src, resolve_threads(threads))
    except RuntimeError:
        check_ids("row", row, num_src, "nodes", threads)
        raise


def contract(
    sides: Sequence[Side],
    num_nodes: int,
    group: Tensor | None = None,
    num_groups: int | None = None,
    *,
    most: int = MAX_COUNT,
    threads: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The graph between groups of nodes: parallel edges are merged and counted, those within a group are dropped.

    Args:
        sides: the edges. For a symmetric result every relation is given twice, once transposed.
        num_nodes: the number of nodes.
        group: the group of each node, int64, shape [num_nodes], in [0, num_groups); None: each is its own.
        num_groups: the number of groups, where ``group`` is given.
        most: of how many merged edges more than ``colptr`` is wanted.
        threads: see the package.

    Returns:
        As CSC: ``colptr``, shape [num_groups + 1]; the neighbors of each group, rising; and how many edges each stands
        for. All int64. The last two are empty if there are more than ``most`` merged edges.

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes or ranges.
        RuntimeError: a graph is malformed.
    """
    flat = _checked_sides(sides, num_nodes, threads)
    if (group is None) != (num_groups is None):
        raise ValueError("num_groups: expected it with group, found one of them alone")
    count = num_nodes if num_groups is None else check_int("num_groups", num_groups, 0, MAX_COUNT)
    group = _checked_group(group, num_nodes, count, threads)
    return OPS.contract(*flat, group, count, check_int("most", most), resolve_threads(threads))


def propagate_labels(
    sides: Sequence[Side],
    num_nodes: int,
    label: Tensor,
    weight: Tensor,
    most: Sequence[int],
    *,
    key: int,
    fewest: Sequence[int] | None = None,
    group: Tensor | None = None,
    rounds: int = 1,
    steps: int = 16,
    least: int = 1,
    threads: int = 0,
) -> Tensor:
    """Size-constrained label propagation (Meyerhenke, Sanders and Schulz, "Partitioning Complex Networks via
    Size-constrained Clustering", SEA 2014), which moves groups of nodes to the labels of their neighbors.

    In each round every group has its turn in one of ``steps`` steps, drawn for it. The groups of a step look at the
    state before it. Each chooses the label of which it has the most neighbors (stored edges to nodes outside the group)
    among those that can take its weight, if these are more than it has of its own label; of equals the one with the
    least draw. Where a label cannot take all that chose it, or lose all that leave it, they move one after the other as
    the sums allow, least draws first; within a step, no move makes room for another.
    The draws of group g in round r are the words of the Philox block (g, r) of ``key``: words 0 and 1 for the step,
    word 2 where groups or labels are compared, and then their numbers. It ends after a round in which fewer than
    ``least`` groups moved.

    Args:
        sides: the edges, each as often as it shall count; for both directions every relation is given twice, once
            transposed.
        num_nodes: the number of nodes.
        label: the labels to begin with, int64, shape [groups], in [0, groups).
        weight: what a group adds to each constraint: int64, shape [groups, constraints], at least 0.
        most: per constraint, the sum of weights above which no move brings a label.
        fewest: per constraint, the sum of weights below which no move brings a label; 0 by default.
        key: 64 bits.
        group: the group of each node, int64, shape [num_nodes]; None: each is its own.
        rounds: at most so many, from 0 to :data:`MAX_ROUNDS`.
        steps: of a round, at least 1. The fewer, the more groups move at once by a state that their moves change.
        least: moves of a round that are worth another one.
        threads: see the package.

    Returns:
        The label of each group: int64, shape [groups].

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes or ranges.
        RuntimeError: a graph is malformed.
    """
    flat = _checked_sides(sides, num_nodes, threads)
    check_tensor("label", label)
    groups = num_nodes if group is None else label.numel()
    if label.dtype != torch.int64 or label.shape != (groups,):
        raise ValueError(f"label: expected int64 of shape ({groups},), found {label.dtype} {tuple(label.shape)}")
    check_ids("label", label, groups, "labels", threads)
    group = _checked_group(group, num_nodes, groups, threads)
    check_tensor("weight", weight)
    if weight.dtype != torch.int64 or weight.shape != (groups, len(most)):
        raise ValueError(
            f"weight: expected int64 of shape ({groups}, {len(most)}), found {weight.dtype} {tuple(weight.shape)}"
        )
    if weight.numel() and (int(weight.min()) < 0 or float(weight.sum(0, dtype=torch.float64).max()) >= 2**62):
        raise ValueError("weight: expected numbers of at least 0 with sums below 2^62")
    fewest = [0] * len(most) if fewest is None else fewest
    if len(fewest) != len(most):
        raise ValueError(f"fewest: expected one for each of {len(most)} constraints, found {len(fewest)}")
    return OPS.propagate_labels(
        *flat, num_nodes, group, label.contiguous(), weight.contiguous(), [check_int("most", bound) for bound in most],
        [check_int("fewest", bound) for bound in fewest],
        check_int("rounds", rounds, 0, MAX_ROUNDS), check_int("steps", steps, 1, MAX_STEPS),
        check_int("least", least), check_key(key), resolve_threads(threads),
    )  # fmt: skip


def _checked_sides(sides: Sequence[Side], num_nodes: int, threads: int) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """What the operators take for sides: pointers, rows, and three numbers each."""
    check_int("num_nodes", num_nodes, 0, MAX_COUNT)
    nothing = torch.zeros(1, dtype=torch.int64)
    sides = sides or [Side(nothing, nothing[:0], 0, 0, 0)]  # no operator is found without a tensor
    for side in sides:
        check_ids("row", side.row)
        check_colptr(side.colptr, len(side.row), threads)
        for first, count in ((side.first_node, side.colptr.numel() - 1), (side.first_neighbor, side.num_neighbors)):
            if not 0 <= first <= first + count <= num_nodes:
                raise ValueError(f"sides: expected nodes in [0, {num_nodes}), found {first} to {first + count - 1}")
    ranges = [number for side in sides for number in side[2:]]
    return [side.colptr.contiguous() for side in sides], [side.row for side in sides], ranges


def _checked_group(group: Tensor | None, num_nodes: int, num_groups: int, threads: int) -> Tensor | None:
    if group is None:
        return None
    check_tensor("group", group)
    if group.dtype != torch.int64 or group.shape != (num_nodes,):
        raise ValueError(f"group: expected int64 of shape ({num_nodes},), found {group.dtype} {tuple(group.shape)}")
    check_ids("group", group, num_groups, "groups", threads)
    return group.contiguous()
