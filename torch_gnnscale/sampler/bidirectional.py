"""Sampling along edges in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .._host import on_host
from .base import Inputs
from .fanouts import NumNeighborsLike
from .minibatch import MiniBatch, PreparedSeeds, SampledEdges, exclusions
from .neighbor import NeighborSampler


class BidirectionalNeighborSampler(NeighborSampler):
    """Samples homogeneous graphs along edges in both directions, like PyG's BidirectionalNeighborSampler.

    Each hop draws ``fanout`` of a node's incoming edges and ``fanout`` of its outgoing edges. Every node found is
    expanded in both directions in the next hop. An edge that is found twice is returned once.

    ``num_sampled_edges`` has two entries per hop: the new edges found forward, then those found backward.
    ``num_sampled_nodes`` has four entries per hop: forward, the number of seeds (0 after the first hop) and of new
    nodes; backward, 0 and the number of new nodes.

    Args:
        data: a Data, or a pair of a FeatureStore and a homogeneous GraphStore.
        num_neighbors: fanout of each hop and direction; -1 takes all neighbors.
        subgraph_type: ``directional``.
        replace, disjoint, weight_attr, is_sorted, share_memory, directed: as in :class:`NeighborSampler`.
        temporal_strategy: no effect, because times are not implemented; ``last`` warns.
        time_attr: must be None.

    Raises:
        NotImplementedError: a heterogeneous graph, times, or another ``subgraph_type``.
        TypeError, ValueError, IndexError: as in :class:`NeighborSampler`.
    """

    @on_host
    def __init__(
        self, data: Any, num_neighbors: NumNeighborsLike, subgraph_type: Any = "directional", replace: bool = False,
        disjoint: bool = False, temporal_strategy: str = "uniform", time_attr: str | None = None,
        weight_attr: str | None = None, is_sorted: bool = False, share_memory: bool = False, directed: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            data, num_neighbors, subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr,
            is_sorted, share_memory, directed,
        )  # fmt: skip
        for name, wrong in (
            ("a heterogeneous graph", self.is_hetero),
            (f"time_attr={time_attr!r}", self.is_temporal),
            (f"subgraph_type={self.subgraph_type.value!r}", self.subgraph_type.value != "directional"),
        ):
            if wrong:
                raise NotImplementedError(f"{name}: not implemented in both directions at once; use NeighborSampler")
        self._backward = NeighborSampler(
            data, num_neighbors, replace=replace, weight_attr=weight_attr, is_sorted=is_sorted,
            sample_direction="backward",
        )  # fmt: skip
        self._both: ops.Relations | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_both": None}  # built again on first use

    def _both_ways(self) -> ops.Relations:
        """Two relations: the edges forward, the edges backward. Built on first use."""
        if self._both is None:
            forward, backward = self.graph.stored, self._backward.graph.stored
            self._both = ops.relations(
                forward.colptr + backward.colptr, forward.row + backward.row,
                edge_id=forward.edge_id + backward.edge_id, weight=forward.weight + backward.weight,
            )  # fmt: skip
        return self._both

    def check_many(self, inputs: type[Inputs], how: str) -> None:
        """Accepts all inputs: batches are sampled one after another."""

    def _drawn(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int]) -> list[ops.Sample]:
        found = []
        for of, key in zip(seeds, keys, strict=True):
            if of.start_times is not None:
                raise ValueError("seed_start_time: expected none from a sampler without time_attr, found some")
            forward = None if of.pairs is None else of.pairs[0]
            backward = None if forward is None else exclusions(self._backward.graph, forward)[0]
            found.append(
                ops.sample_neighbors(
                    self._both_ways(),
                    of.nodes,
                    self.fanouts * 2,
                    key,
                    exclude=[forward, backward],
                    replace=self.replace,
                    disjoint=self.disjoint,
                )
            )
        return found

    def _write(self, batch: MiniBatch, sample: ops.Sample) -> None:
        # A step is one direction of one hop. Its edges are (neighbor, node) forward and (node, neighbor) backward.
        ways = [
            torch.cat([index, ids.unsqueeze(0)]).split(counts, dim=1)
            for index, ids, counts in zip(sample.edge_index, sample.edge_id, sample.num_edges, strict=True)
        ]
        steps = [step for hop in zip(*ways, strict=True) for step in hop]
        num_nodes, known = [], 0
        for number, step in enumerate(steps):
            new_seeds = sample.num_nodes[0][0] if number == 0 else 0
            found = max(known + new_seeds, int(step[0].max()) + 1 if step.numel() else 0)
            num_nodes += [new_seeds, found - known - new_seeds]
            known = found
        steps[1::2] = [step[[1, 0, 2]] for step in steps[1::2]]
        edges = torch.cat([torch.empty(3, 0, dtype=torch.int64), *steps], dim=1)
        kept = _first_occurrences(edges)
        edge_counts = [int(part.sum()) for part in kept.split([step.size(1) for step in steps])]
        edges = edges[:, kept]
        batch.types, batch.nodes, batch.trees = self.graph.types, sample.node, sample.tree or None
        batch.edges = [SampledEdges(edges[:2], None, edges[2])]
        batch.num_nodes, batch.num_edges = [num_nodes], [edge_counts]


def _first_occurrences(columns: Tensor) -> Tensor:
    """result[i]: whether column i differs from columns 0..i-1. bool, shape [n]."""
    position = torch.arange(columns.size(1))
    inverse = torch.unique(columns, dim=1, return_inverse=True)[1]
    first = torch.zeros_like(position).scatter_reduce(0, inverse, position, "amin", include_self=False)
    return first[inverse] == position
