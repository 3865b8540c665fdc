"""Operators on the topology: checks, COO to CSC, and the reverses of edges."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import (
    MAX_COUNT,
    OPS,
    check_ids,
    check_int,
    check_permutation,
    first_outside,
    resolve_threads,
)
from .graph import Relations


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
