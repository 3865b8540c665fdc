"""Sampling along edges in both directions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import ops
from .fanouts import NumNeighborsLike
from .inputs import as_ids
from .keyed import Inputs, KeyedSampler
from .neighbor import NeighborSampler
from .output import NeighborOutput, Seeds


class BidirectionalNeighborSampler(NeighborSampler):
    """Follows edges forward and backward in each hop, as PyG's BidirectionalNeighborSampler; of homogeneous graphs.

    A hop draws from the edges into a node and from those out of it, as many of each as its fanout says; a node that
    either finds is expanded both ways in the next hop. An edge that is found twice counts once.

    ``num_sampled_edges`` has two entries a hop, new edges that were found forward and backward, and
    ``num_sampled_nodes`` four: for each direction the new seeds and the new nodes.

    Args:
        data: a Data, or a pair of a FeatureStore and a homogeneous GraphStore.
        num_neighbors: fanout of each hop and direction; -1 takes all neighbors.
        subgraph_type: ``directional``.
        replace, disjoint, weight_attr, is_sorted, share_memory, directed: as of :class:`NeighborSampler`.
        temporal_strategy: of no effect, for there are no times.
        time_attr: not implemented.

    Raises:
        NotImplementedError: a heterogeneous graph, times, or another ``subgraph_type``.
        TypeError, ValueError, IndexError: as of :class:`NeighborSampler`.
    """

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
        return {**self.__dict__, "_both": None}  # as SampledGraph leaves out what is stored

    def _both_ways(self) -> ops.Relations:
        """The edges forward and backward as two relations; made when first asked for."""
        if self._both is None:
            forward, backward = self.graph.stored, self._backward.graph.stored
            self._both = ops.relations(
                forward.colptr + backward.colptr, forward.row + backward.row,
                edge_id=forward.edge_id + backward.edge_id, weight=forward.weight + backward.weight,
            )  # fmt: skip
        return self._both

    def check_many(self, inputs: type[Inputs], how: str) -> None:
        """Batches are sampled one after the other."""

    sample_many = KeyedSampler.sample_many

    def sample(self, seeds: Seeds, seed_time: Seeds | None, key: int, exclude: Any = None) -> NeighborOutput:
        """See :meth:`NeighborSampler.sample`; there are no times."""
        if seed_time is not None:
            raise ValueError("seed_time: expected none from a sampler without time_attr, found some")
        excluded = [pairs for s in (self, self._backward) for pairs in s._exclusions(exclude) or [None]]
        sample = ops.sample_neighbors(
            self._both_ways(),
            [as_ids("seeds", self._typed("seeds", seeds)[None])],
            self.fanouts * 2,
            key,
            exclude=excluded,
            replace=self.replace,
            disjoint=self.disjoint,
        )
        # A step is one direction of a hop; its edges of the user's graph are (neighbor, node) or (node, neighbor).
        ways = [
            torch.cat([index, ids.unsqueeze(0)]).split(counts, dim=1)
            for index, ids, counts in zip(sample.edge_index, sample.edge_id, sample.num_edges.tolist(), strict=True)
        ]
        steps = [step for hop in zip(*ways, strict=True) for step in hop]
        num_nodes, known = [], 0
        for number, step in enumerate(steps):
            new_seeds = len(seeds) if number == 0 else 0
            found = max(known + new_seeds, int(step[0].max()) + 1 if step.numel() else 0)
            num_nodes += [new_seeds, found - known - new_seeds]
            known = found
        steps[1::2] = [step[[1, 0, 2]] for step in steps[1::2]]
        edges = torch.cat([torch.empty(3, 0, dtype=torch.int64), *steps], dim=1)
        kept = _first_occurrences(edges)
        edge_counts = [int(part.sum()) for part in kept.split([step.size(1) for step in steps])]
        row, col, edge = edges[:, kept]
        tree = sample.tree[0] if sample.tree else None
        return NeighborOutput(sample.node[0], row, col, edge, tree, num_nodes, edge_counts)


def _first_occurrences(columns: Tensor) -> Tensor:
    """Which columns have not come before: bool, shape [n]."""
    place = torch.arange(columns.size(1))
    inverse = torch.unique(columns, dim=1, return_inverse=True)[1]
    first = torch.zeros_like(place).scatter_reduce(0, inverse, place, "amin", include_self=False)
    return first[inverse] == place
