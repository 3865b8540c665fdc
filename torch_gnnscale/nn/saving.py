"""Whether narrowing a batch saves more than it costs: decided by sizes alone, so the same batch is always computed in
the same way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

LEAST_SAVED = 3 << 20
"""Multiply-adds of the forward pass: if narrowing saves fewer, the whole batch is computed. Narrowing begins to pay at
about this number for GraphSAGE of two layers, and at half of it for GCN and GAT (benchmarks/bench_narrow.py)."""
EDGE = 1000
"""The cost of an edge in multiply-adds: PyG computes and aggregates its message in the time of that many."""


class LayerSize(NamedTuple):
    """What a MessagePassing layer computes per row."""

    parameters: int
    """Multiply-adds per row, about: how many parameters the layer has."""
    of_destinations: bool
    """Whether it multiplies the rows of destinations alone, after the aggregation; else those of sources."""


def saved(num_nodes: Sequence[int], num_edges: Sequence[int], layers: Sequence[LayerSize], others: int) -> int:
    """How many multiply-adds narrowing leaves out, about.

    Args:
        num_nodes, num_edges: ``num_sampled_nodes`` and ``num_sampled_edges`` of the batch.
        layers: in the order in which the model calls them.
        others: how many parameters the model has outside of these layers.
    """
    rows, ends = list(accumulate(num_nodes)), list(accumulate(num_edges))
    total, per_layer = 0, others // max(len(layers), 1)
    for layer, hop in zip(layers, reversed(range(len(ends))), strict=False):
        without_dst, without_src = rows[-1] - rows[hop], rows[-1] - rows[hop + 1]
        total += layer.parameters * (without_dst if layer.of_destinations else without_src)
        total += per_layer * without_dst + EDGE * (ends[-1] - ends[hop])
    return total
