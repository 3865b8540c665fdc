"""GraphSAGE, LADIES and FastGCN, each a hop of algorithm 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ops.layerwise import SCORES, square_bits
from .algebra import Adjacency, Edges, Frontier, csr_array, one_node_each, stacked_sets
from .choosing import choose, choose_neighbors
from .extracting import extract

Step = Callable[[Frontier, int], Edges]
"""A method's hop: the edges that it samples of a frontier, given the number to draw."""


def graphsage(graph: Adjacency, replace: bool = False) -> Step:
    """Neighbor sampling (section 4.1), as :func:`torch_gnnscale.ops.sample_neighbors` draws."""

    def step(frontier: Frontier, count: int) -> Edges:
        p = one_node_each(frontier, graph.num_nodes) @ graph.position  # NORM: 1 / |N(v)|, a row's entries are equal
        return choose_neighbors(p, count, frontier, replace)  # EXTRACT: the drawn entries themselves

    return step


def ladies(graph: Adjacency, scheme: str = "priority", scores: str = "squares") -> Step:
    """LADIES (section 4.2), as :func:`torch_gnnscale.ops.sample_layers` draws; its schemes and scores."""
    value = edge_scores(graph, scores)

    def step(frontier: Frontier, count: int) -> Edges:
        p = stacked_sets(frontier, value) @ graph.ones
        p = squared(p) if scores == "counts" else p
        return extract(graph, frontier, choose(p, count, scheme, frontier))

    return step


def fastgcn(graph: Adjacency, scheme: str = "priority", scores: str = "squares") -> Step:
    """FastGCN, as :func:`torch_gnnscale.ops.sample_layers` draws; its schemes and scores."""
    everything = csr_array(edge_scores(graph, scores)[None])
    p = everything @ graph.ones  # one row for all batches and hops

    def step(frontier: Frontier, count: int) -> Edges:
        return extract(graph, frontier, choose(p, count, scheme, frontier))

    return step


def edge_scores(graph: Adjacency, scores: str) -> np.ndarray:
    """What an edge into each node adds to its source's score: 1 (``counts``), or max(1, floor(2^B / d_i^2))
    (``squares``): int64, shape [n]. No sum over edges reaches 2^62."""
    if scores not in SCORES:
        raise ValueError(f"scores: expected one of {SCORES}, found {scores!r}")
    if scores == "counts":
        return np.ones(graph.num_nodes, np.int64)
    return np.maximum((1 << square_bits(graph.num_nodes)) // np.clip(graph.degree, 1, 1 << 20) ** 2, 1)


def squared(p: Any) -> Any:
    """NORM of section 2.2.2: e_v^2 for each entry e_v; shifted right by 2 b - 61, and at least 1, in rows whose sum has
    b > 30 bits. The row's sum, which divides it, is left to SAMPLE."""
    bits = [int(total).bit_length() for total in np.asarray(p.sum(axis=1)).ravel()]
    shift = np.array([max(0, 2 * width - 61) for width in bits], np.int64)
    data = np.maximum(p.data**2 >> np.repeat(shift, np.diff(p.indptr)), 1)
    return csr_array((data, p.indices, p.indptr), shape=p.shape)
