"""GraphSAGE, LADIES and FastGCN: a hop of each by algorithm 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ops.layer_drawing import SCORES
from ..ops.layerwise import square_bits
from .algebra import Adjacency, Frontier, FrontierEdges, csr_array, one_node_each, stacked_sets
from .choosing import choose, choose_neighbors
from .extracting import extract

Step = Callable[[Frontier, int], FrontierEdges]
"""A hop of a method: takes the frontier and the number to draw, and returns the sampled edges."""


def graphsage(graph: Adjacency, replace: bool = False) -> Step:
    """Neighbor sampling (section 4.1), with the draws of :func:`torch_gnnscale.ops.sample_neighbors`."""

    def step(frontier: Frontier, count: int) -> FrontierEdges:
        p = one_node_each(frontier, graph.num_nodes) @ graph.position  # NORM would give a row equal entries, 1 / |N(v)|
        return choose_neighbors(p, count, frontier, replace)  # EXTRACT returns the drawn entries

    return step


def ladies(graph: Adjacency, scheme: str = "priority", scores: str = "squares", keep_known: bool = False) -> Step:
    """LADIES (section 4.2), with the draws and options of :func:`torch_gnnscale.ops.sample_layers`."""
    value = edge_scores(graph, scores)

    def step(frontier: Frontier, count: int) -> FrontierEdges:
        p = stacked_sets(frontier, value) @ graph.ones
        p = squared(p) if scores == "counts" else p
        return extract(graph, frontier, choose(p, count, scheme, frontier, keep_known))

    return step


def fastgcn(graph: Adjacency, scheme: str = "priority", scores: str = "squares", keep_known: bool = False) -> Step:
    """FastGCN, with the draws and options of :func:`torch_gnnscale.ops.sample_layers`."""
    everything = csr_array(edge_scores(graph, scores)[None])
    p = everything @ graph.ones  # one row for all batches and hops

    def step(frontier: Frontier, count: int) -> FrontierEdges:
        return extract(graph, frontier, choose(p, count, scheme, frontier, keep_known))

    return step


def edge_scores(graph: Adjacency, scores: str) -> np.ndarray:
    """For each node i, what an edge into it adds to its source's score: int64, shape [n]. ``counts``: 1; ``squares``:
    max(1, floor(2^B / d_i^2)). No sum over edges reaches 2^62."""
    if scores not in SCORES:
        raise ValueError(f"scores: expected one of {SCORES}, found {scores!r}")
    if scores == "counts":
        return np.ones(graph.num_nodes, np.int64)
    return np.maximum((1 << square_bits(graph.num_nodes)) // np.clip(graph.degree, 1, 1 << 20) ** 2, 1)


def squared(p: Any) -> Any:
    """NORM of section 2.2.2: e_v^2 for each entry e_v; in rows whose sum has b > 30 bits, max(1, floor(e_v^2 /
    2^(2 b - 61))). The division by the row's sum is left to SAMPLE."""
    bits = [int(total).bit_length() for total in np.asarray(p.sum(axis=1)).ravel()]
    shift = np.array([max(0, 2 * width - 61) for width in bits], np.int64)
    data = np.maximum(p.data**2 >> np.repeat(shift, np.diff(p.indptr)), 1)
    return csr_array((data, p.indices, p.indptr), shape=p.shape)
