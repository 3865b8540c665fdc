"""Whether narrowing a batch saves more than it costs: decided by sizes alone, so the same batch is always computed in
the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import mul
from typing import NamedTuple

from .batches import EdgeType, NodeType

LEAST_SAVED = 3 << 20
"""Multiply-adds of the forward pass: if narrowing saves fewer, the whole batch is computed. With this constant and the
two below, the way that is chosen is the faster one, or slower by less than a tenth, for GraphSAGE, GIN, GCN and GAT of
two and three layers (benchmarks/bench_narrow.py at commit ad4f2413)."""
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

    def of_one(self, relations: int) -> LayerSize:
        """What it computes for one of its relations."""
        return self._replace(parameters=self.parameters // relations) if relations > 1 else self


class Place(NamedTuple):
    """A call of a layer on one relation."""

    size: LayerSize
    """Of the layer."""
    relation: EdgeType
    """Whose edges it reads."""
    groups: int
    """The number of first groups whose rows it gets."""


def in_order(sizes: Sequence[LayerSize], depth: int) -> list[Place]:
    """The places of layers of which each reads what the one before it returns, in a graph of a single type; those
    beyond ``depth`` hops are left out."""
    return [Place(size, None, depth + 1 - number) for number, size in enumerate(sizes[:depth])]


class Savings:
    """What narrowing leaves out of a batch, by its numbers of nodes and edges.

    Args:
        places: the calls of a model's layers.
        depth: the number of hops.
        others: how many parameters the model has outside of these layers.
    """

    def __init__(self, places: Sequence[Place], depth: int, others: int) -> None:
        self._of_node: dict[NodeType, list[int]] = {}
        self._of_edge: dict[EdgeType, list[int]] = {}
        self._calls = sum(place.relation is not None for place in places)
        per_layer = others // max(len(places), 1)
        for (parameters, of_destinations, channels), relation, groups in places:
            src, dst = (None, None) if relation is None else (relation[0], relation[-1])
            of_src, of_dst = (self._of_node.setdefault(end, [0] * (depth + 1)) for end in (src, dst))
            of_edge = self._of_edge.setdefault(relation, [0] * depth)
            # The rows of later groups are left out: as destinations those from groups - 1 on, as sources from groups.
            for group in range(groups - 1, depth + 1):
                of_dst[group] += per_layer + CHANNEL * channels + parameters * of_destinations
            for group in range(groups, depth + 1):
                of_src[group] += parameters * (not of_destinations)
            for hop in range(groups - 1, depth):
                of_edge[hop] += EDGE
        of_types = [(key, max(each)) for key, each in (*self._of_node.items(), *self._of_edge.items()) if each]
        merged, by_type = ([most for key, most in of_types if (key is None) == none] for none in (True, False))
        self._most = max(by_type, default=0) + max(merged, default=0)
        """What is left out for a node or an edge, at most."""

    def pay(self, num_nodes: Mapping[NodeType, Sequence[int]], num_edges: Mapping[EdgeType, Sequence[int]]) -> bool:
        """Whether a batch is narrowed; arguments as of :meth:`of`. Each call on a relation of types has costs of its
        own: benchmarks/bench_narrow_typed.py."""
        least = LEAST_SAVED if self._calls == 0 else LEAST_SAVED * self._calls * 2 // 3
        count = sum(map(sum, num_nodes.values())) + sum(map(sum, num_edges.values()))
        return count * self._most >= least and self.of(num_nodes, num_edges) >= least

    def of(self, num_nodes: Mapping[NodeType, Sequence[int]], num_edges: Mapping[EdgeType, Sequence[int]]) -> int:
        """How many multiply-adds narrowing leaves out of a batch, about.

        Args:
            num_nodes, num_edges: ``num_sampled_nodes`` by node type, and ``num_sampled_edges`` by relation.
        """
        if None in self._of_node and None not in num_nodes:  # types that are merged; BatchHops refuses unequal lengths
            num_nodes = {**num_nodes, None: [*map(sum, zip(*num_nodes.values(), strict=False))]}
            num_edges = {**num_edges, None: [*map(sum, zip(*num_edges.values(), strict=False))]}
        nodes = sum(sum(map(mul, num_nodes[key], each)) for key, each in self._of_node.items())
        return nodes + sum(sum(map(mul, num_edges[key], each)) for key, each in self._of_edge.items())
