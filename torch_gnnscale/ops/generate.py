"""Random numbers and graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import MAX_COUNT, OPS, check_ids, check_int, check_key, check_tensor, resolve_threads
from .shuffle import FLOATS


def random_bits(count: int, key: int, offset: int = 0, threads: int = 0) -> Tensor:
    """Draws ``offset .. offset + count`` of a key, 64 random bits each: int64, shape [count]."""
    check_int("count", count, most=MAX_COUNT)
    check_int("offset", offset)
    return OPS.random_bits(count, check_key(key), offset, resolve_threads(threads))


def dropout_rows(x: Tensor, id: Tensor, key: int, p: float, threads: int = 0) -> Tensor:
    """Each number of x is 0 with probability p, else itself times ``1 / (1 - p)``; differentiable in x.

    What is kept is a function of (key, the row's id, the column): the backward pass draws it again, and a row has the
    same mask wherever it is computed.

    Args:
        x: floats, shape [n, columns].
        id: int64, shape [n], on the device of x.
        key: 64 bits.
        p: in [0, 1], rounded to a multiple of 2^-32.
        threads: see the package.

    Raises:
        TypeError, ValueError: wrong dtype, shape or device, p out of range.
    """
    check_tensor("x", x)
    check_ids("id", id)
    if x.dtype not in FLOATS or x.dim() != 2:
        raise ValueError(f"x: expected a matrix of floats, found {x.dtype} {tuple(x.shape)}")
    if id.dtype != torch.int64 or id.shape != x.shape[:1] or id.device != x.device:
        raise ValueError(
            f"id: expected int64 of shape ({len(x)},) on {x.device}, found {id.dtype} {tuple(id.shape)} on {id.device}"
        )
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected 0 <= p <= 1, found {p}")
    threshold, scale = round(p * (1 << 32)), 1 / (1 - p) if p < 1 else 0.0
    return OPS.dropout_rows(x.contiguous(), id.contiguous(), check_key(key), threshold, scale, resolve_threads(threads))


def permutation(count: int, key: int) -> Tensor:
    """A random permutation of [0, count) by the shuffle of Fisher and Yates: int64, shape [count]."""
    return OPS.permutation(check_int("count", count, most=MAX_COUNT), check_key(key))


def rmat_edges(
    num_nodes: int, num_edges: int, key: int, quadrants: Sequence[float], first: int = 0, threads: int = 0
) -> Tensor:
    """Edges ``first .. first + num_edges`` of an R-MAT graph (Chakrabarti et al., SDM 2004).

    Args:
        num_nodes: nodes; edges that leave [0, num_nodes) of the next power of two are drawn again.
        num_edges: how many edges to return.
        key: 64 bits; an edge is a function of (key, its number).
        quadrants: probabilities a, b, c of the quadrants (d is the rest), rounded to multiples of 2^-16.
        first: the number of the first edge.
        threads: see the package.

    Returns:
        int64, shape [2, num_edges]: sources and destinations.
    """
    check_int("num_nodes", num_nodes, 1, MAX_COUNT)
    check_int("num_edges", num_edges, most=MAX_COUNT)
    check_int("first", first)
    # Each level keeps an edge within range with probability a: it must not be so small that drawing again never ends.
    if len(quadrants) != 3 or not (quadrants[0] >= 0.01 and min(quadrants) >= 0 and sum(quadrants) <= 1):
        raise ValueError(f"quadrants: expected a >= 0.01, b, c >= 0 with a sum of at most 1, found {tuple(quadrants)}")
    a, b, c = quadrants
    thresholds = [round(65536 * p) for p in (a, a + b, a + b + c)]
    return OPS.rmat_edges(first, num_edges, num_nodes, thresholds, check_key(key), resolve_threads(threads))
