"""Operators that score nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import MAX_COUNT, OPS, check_ids, check_int, check_tensor, resolve_threads
from .topology import check_colptr

MAX_ITERATIONS = 1 << 16
"""Of :func:`reverse_pagerank`: scores of the usual damping do not change any more after some hundreds."""


def score_unit(num_nodes: int) -> int:
    """What a score of 1 is in the integers of :func:`reverse_pagerank`: a power of two, for sums below 2^62."""
    return 1 << (60 - max(num_nodes, 1).bit_length())


def reverse_pagerank(
    colptr: Tensor, row: Tensor, initial: Tensor, iterations: int = 5, damping: float = 0.85, threads: int = 0
) -> Tensor:
    """Reverse PageRank (Data Tiering, section 3.1, algorithm 1), in integers.

    In each iteration a node's score becomes ``(1 - damping) * unit`` plus, over the nodes that it points to, their
    scores times ``damping``, divided by their in-degrees, rounded down. Integers do not depend on the order of sums.

    Args:
        colptr: int64, shape [n + 1].
        row: sources, int32 or int64, shape [E]; any stride.
        initial: the scores to begin with, in units of :func:`score_unit`: int64, shape [n], in [0, 2^62), with a sum of
            at most twice what n nodes of score 1 have.
        iterations: how many, from 0 to :data:`MAX_ITERATIONS`.
        damping: in [0, 1].
        threads: see the module; every further one takes 8 bytes per node.

    Returns:
        int64, shape [n].

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or numbers.
        RuntimeError: the graph is malformed after all.
    """
    check_ids("row", row)
    check_colptr(colptr, len(row), threads)
    num_nodes = colptr.numel() - 1
    check_tensor("initial", initial)
    if initial.dtype != torch.int64 or initial.shape != (num_nodes,):
        raise ValueError(
            f"initial: expected int64 of shape ({num_nodes},), found {initial.dtype} {tuple(initial.shape)}"
        )
    if not 0 <= damping <= 1:
        raise ValueError(f"damping: expected 0 <= damping <= 1, found {damping}")
    unit = score_unit(num_nodes)
    if num_nodes and (int(initial.min()) < 0 or float(initial.to(torch.float64).sum()) > 2.001 * unit * num_nodes):
        raise ValueError(f"initial: expected scores of at least 0 with a sum of at most {2 * unit * num_nodes}")
    share = round(damping * (1 << 32))
    teleport = unit - (unit * share >> 32)
    check_int("iterations", iterations, most=MAX_ITERATIONS)
    return OPS.reverse_pagerank(
        colptr.contiguous(), row, initial.contiguous(), iterations, teleport, share, resolve_threads(threads)
    )


def count_ids(ids: Tensor, size: int, threads: int = 0) -> Tensor:
    """How often each id occurs.

    Args:
        ids: int32 or int64, shape [n], in [0, ``size``); any stride; it may be mapped from a file.
        size: how many different ids there may be.
        threads: see the module; every further one takes 8 bytes per id.

    Returns:
        int64, shape [size].

    Raises:
        TypeError, ValueError, IndexError: wrong dtype or shape, an id out of range.
    """
    check_ids("ids", ids)
    size = check_int("size", size, 0, MAX_COUNT)
    try:
        return OPS.count_ids(ids, size, resolve_threads(threads))
    except RuntimeError:
        check_ids("ids", ids, size, "ids", threads)
        raise
