"""Random numbers and graphs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .arguments import MAX_COUNT, OPS, check_int, check_key, resolve_threads


def random_bits(count: int, key: int, offset: int = 0, threads: int = 0) -> Tensor:
    """Draws ``offset .. offset + count`` of a key, 64 random bits each: int64, shape [count]."""
    check_int("count", count, most=MAX_COUNT)
    check_int("offset", offset)
    return OPS.random_bits(count, check_key(key), offset, resolve_threads(threads))


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
