"""Whether narrowing a batch saves more than it costs: decided by sizes alone, so the same batch is always computed in
the same way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

LEAST_SAVED = 3 << 20
"""Multiply-adds of the forward pass: if narrowing saves fewer, the whole batch is computed. With this constant and the
two below, the way that is chosen is the faster one, or slower by less than a tenth, for GraphSAGE, GIN, GCN and GAT of
two and three layers (benchmarks/bench_narrow.py)."""
EDGE = 1750
"""The cost of an edge in multiply-adds: PyG computes and aggregates its message in the time of that many."""
CHANNEL = 60
"""The cost of a channel of an output row in multiply-adds: its bias, its activation and their gradients take the time
of that many."""


class LayerSize(NamedTuple):
    """What a MessagePassing layer computes per row."""

    parameters: int
    """Multiply-adds per row, about: how many parameters the layer has."""
    of_destinations: bool
    """Whether it multiplies the rows of destinations alone, after the aggregation; else those of sources."""
    channels: int
    """How many numbers it computes per output row, in all heads together; 0 if its attributes do not say."""


def saved(num_nodes: Sequence[int], num_edges: Sequence[int], layers: Sequence[LayerSize], others: int) -> int:
    """How many multiply-adds narrowing leaves out, about.

    Args:
        num_nodes, num_edges: ``num_sampled_nodes`` and ``num_sampled_edges`` of the batch.
        layers: in the order in which the model calls them.
        others: how many parameters the model has outside of these layers.
    """
    of_node, of_edge = _saved_by_hop(len(num_edges), tuple(layers), others)
    return sum(map(mul, num_nodes, of_node)) + sum(map(mul, num_edges, of_edge))


@lru_cache
def _saved_by_hop(hops: int, layers: tuple[LayerSize, ...], others: int) -> tuple[list[int], list[int]]:
    """The multiply-adds that all layers together leave out per node of each group and per edge of each hop.

    The layer that computes the rows of groups 0..h leaves out the rows of later groups: as destinations those after h,
    as sources those after h + 1, and the edges of the hops after h.
    """
    of_node, of_edge, per_layer = [0] * (hops + 1), [0] * hops, others // max(len(layers), 1)
    for layer, hop in zip(layers, reversed(range(hops)), strict=False):
        for group in range(hop + 1, hops + 1):
            computed = layer.of_destinations or group > hop + 1
            of_node[group] += per_layer + layer.parameters * computed + CHANNEL * layer.channels
        for later in range(hop + 1, hops):
            of_edge[later] += EDGE
    return of_node, of_edge
