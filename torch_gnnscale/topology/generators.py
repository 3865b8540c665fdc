"""Random graphs, each a pure function of its seed."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from .. import ops
from ..ops.arguments import to_int
from ..random import Purpose, batch_key
from .csc import CHUNK

GRAPH500 = (0.57, 0.19, 0.19)
"""Quadrant probabilities a, b, c of the Graph500 benchmark."""


def rmat(num_nodes: int, num_edges: int, seed: int = 0, quadrants: tuple[float, float, float] = GRAPH500) -> Tensor:
    """The edges of an R-MAT graph whose node ids are shuffled, so that ids and degrees are independent.

    Args:
        num_nodes: number of nodes; it need not be a power of two.
        num_edges: number of directed edges; repeated edges and self loops are kept, as in Graph500.
        seed: the edges are a function of it and of the other arguments.
        quadrants: probabilities a, b, c.

    Returns:
        int64, shape [2, num_edges].
    """
    (edges,) = rmat_chunks(num_nodes, num_edges, seed, quadrants, max(num_edges, 1))
    return edges


def rmat_chunks(
    num_nodes: int,
    num_edges: int,
    seed: int = 0,
    quadrants: tuple[float, float, float] = GRAPH500,
    chunk: int = CHUNK,
) -> Iterator[Tensor]:
    """The edges of :func:`rmat`, in order, at most ``chunk`` at a time: int64, shape [2, chunk] each."""
    seed = to_int("seed", seed)
    names = ops.permutation(num_nodes, batch_key(seed, 0, 1, Purpose.GENERATE))
    key = batch_key(seed, 0, 0, Purpose.GENERATE)
    for first in range(0, max(num_edges, 1), chunk):
        edges = ops.rmat_edges(num_nodes, min(chunk, num_edges - first), key, quadrants, first)
        yield ops.gather_rows(names, edges.view(-1)).view(2, -1)
