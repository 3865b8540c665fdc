"""Neighbor sampling as a PyG sampler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplerOutput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from .. import ops
from ..random import draw_seed
from ..topology import CSC, GraphStore


@dataclass
class NeighborOutput(SamplerOutput):
    """A SamplerOutput that keeps its CSC: ``row`` and ``col`` are the rows of ``edge_index``, ``edge`` holds the user's
    edge ids."""

    colptr: Tensor | None = None
    """Where each expanded node's edges begin: int64, shape [expanded + 1]; the nodes after them have none."""
    edge_index: Tensor | None = None
    """Local COO, sorted by destination: int64, shape [2, e]."""


def not_implemented(argument: str, value: Any, instead: str = "leave it at its default") -> NotImplementedError:
    """The error for an argument of PyG's that this package does not honour yet."""
    shown = repr(value) if isinstance(value, (str, bool)) else f"<{type(value).__name__}>"
    return NotImplementedError(f"{argument}={shown} is not implemented yet; {instead}")


def homogeneous_fanouts(num_neighbors: NumNeighbors | Sequence[int]) -> list[int]:
    """The fanouts of a homogeneous graph; TypeError or NotImplementedError for anything but ints in order."""
    values = num_neighbors.values if isinstance(num_neighbors, NumNeighbors) else num_neighbors
    if isinstance(values, dict):
        raise NotImplementedError("num_neighbors by edge type is not implemented yet; pass a list for one relation")
    if isinstance(values, np.ndarray) and values.ndim == 1:
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"num_neighbors: expected a list of ints, found {type(values).__name__}")
    if not all(isinstance(value, Integral) and not isinstance(value, bool) for value in values):
        raise TypeError(f"num_neighbors: expected a list of ints, found {list(values)}")
    fanouts = [int(value) for value in values]
    if min(fanouts, default=0) < -1:
        raise ValueError(f"num_neighbors: expected -1 (all) or 0..{ops.MAX_FANOUT} each, found {fanouts}")
    return fanouts


def drawable_fanouts(fanouts: list[int], csc: CSC, replace: bool) -> list[int]:
    """Fanouts that the operator can draw: a larger one takes all neighbors where no node has as many.

    Raises:
        ValueError: the operator would have to choose from more than it can.
    """
    if max(fanouts, default=0) <= ops.MAX_FANOUT:
        return fanouts
    largest = int(csc.colptr.diff().max()) if csc.num_dst else 0
    if replace or largest > ops.MAX_FANOUT:
        raise ValueError(
            f"num_neighbors: expected -1 (all) or 0..{ops.MAX_FANOUT} each, found {fanouts} with "
            f"{'replacement' if replace else f'nodes of {largest} neighbors'}"
        )
    return [-1 if fanout > ops.MAX_FANOUT else fanout for fanout in fanouts]


def csc_of(data: Any, is_sorted: bool = False) -> CSC:
    """The CSC of a Data or of a (FeatureStore, GraphStore) pair, ours without a copy."""
    if isinstance(data, HeteroData):
        raise NotImplementedError("HeteroData is not implemented yet; pass a Data or a homogeneous store")
    if isinstance(data, Data):
        return CSC.from_data(data, is_sorted)
    if not (
        isinstance(data, (tuple, list))
        and len(data) == 2
        and isinstance(data[0], PyGFeatureStore)
        and isinstance(data[1], PyGGraphStore)
    ):
        raise TypeError(f"data: expected a Data or a (FeatureStore, GraphStore) pair, found {type(data).__name__}")
    graph = data[1]
    attrs = graph.get_all_edge_attrs()
    if [attr.edge_type for attr in attrs].count(None) != len(attrs) or not attrs:
        raise NotImplementedError(
            f"a GraphStore with edge types {[attr.edge_type for attr in attrs]} is not implemented yet; "
            f"pass one with the single edge type None"
        )
    if isinstance(graph, GraphStore):
        return graph.relation(None)
    row, colptr, edge_id = graph.csc()
    num_src = attrs[0].size[0] if attrs[0].size is not None else None
    return CSC.from_csc(colptr, row, edge_id, num_src)


def as_ids(name: str, nodes: Tensor) -> Tensor:
    """Node ids of any integer type as one that the operator takes; raises TypeError naming them for another type."""
    if nodes.dtype in (torch.int32, torch.int64):
        return nodes
    if nodes.dtype == torch.bool or nodes.is_floating_point() or nodes.is_complex():
        raise TypeError(f"{name}: expected integers, found {nodes.dtype}")
    return nodes.to(torch.int64)


class NeighborSampler(BaseSampler):
    """Samples neighborhoods with the fused operator; usable wherever PyG takes a sampler.

    A batch is a function of its key (see :mod:`torch_gnnscale.random`). :class:`torch_gnnscale.NeighborLoader` passes
    it; under PyG's own ``NodeLoader``, which knows no keys, one is drawn from torch's generator for each batch.

    Args:
        data: a Data, or a pair of a FeatureStore and a homogeneous GraphStore, ours or anybody's.
        num_neighbors: fanout of each hop; -1 takes all neighbors, as does one that no node has as many of.
        subgraph_type: ``directional``; the others are not implemented yet.
        replace: draw with replacement.
        disjoint: not implemented yet.
        temporal_strategy: of no effect without times, which are not implemented yet.
        time_attr: not implemented yet.
        weight_attr: not implemented yet.
        is_sorted: ``data.edge_index`` is sorted by destination.
        share_memory: of no effect: forked workers share the CSC, spawned ones get it through shared memory.
        directed: PyG's older name of ``subgraph_type``; False is not implemented yet.
        sample_direction: ``forward``; backward is not implemented yet.

    Raises:
        NotImplementedError: an argument that is not implemented yet.
        TypeError, ValueError, IndexError: a malformed graph or fanout.
    """

    def __init__(
        self,
        data: Data | tuple[PyGFeatureStore, PyGGraphStore],
        num_neighbors: NumNeighbors | Sequence[int],
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: str = "forward",
    ) -> None:
        if SubgraphType(subgraph_type) != SubgraphType.directional:
            raise not_implemented("subgraph_type", SubgraphType(subgraph_type).value, "use 'directional'")
        if not directed:
            raise not_implemented("directed", directed)
        if disjoint:
            raise not_implemented("disjoint", disjoint)
        if time_attr is not None:
            raise not_implemented("time_attr", time_attr)
        if weight_attr is not None:
            raise not_implemented("weight_attr", weight_attr)
        if sample_direction != "forward":
            raise not_implemented("sample_direction", sample_direction, "use 'forward'")
        if temporal_strategy not in ("uniform", "last"):
            raise ValueError(f"temporal_strategy: expected 'uniform' or 'last', found {temporal_strategy!r}")
        fanouts = homogeneous_fanouts(num_neighbors)
        self.replace = replace
        self.csc = csc_of(data, is_sorted)
        self.fanouts = drawable_fanouts(fanouts, self.csc, replace)
        if self.csc.num_src != self.csc.num_dst:
            raise ValueError(f"data: expected as many sources as destinations, found {self.csc}")

    @property
    def num_neighbors(self) -> NumNeighbors:
        """The fanouts, as PyG's type."""
        return NumNeighbors(self.fanouts)

    @property
    def edge_permutation(self) -> None:
        """None: the sampler returns the user's edge ids itself."""
        return None

    def sample_from_nodes(self, inputs: NodeSamplerInput, key: int | None = None) -> NeighborOutput:
        """Samples the neighborhood of ``inputs.node``; ``metadata`` is (input_id, time), as PyG's loaders expect."""
        if inputs.time is not None:
            raise not_implemented("input_time", inputs.time)
        sample = ops.sample_neighbors(
            [self.csc.colptr],
            [self.csc.row],
            [as_ids("seeds", inputs.node)],
            self.fanouts,
            draw_seed() if key is None else key,
            edge_id=[self.csc.edge_id],
            replace=self.replace,
        )
        row, col = sample.edge_index[0]
        return NeighborOutput(
            node=sample.node[0],
            row=row,
            col=col,
            edge=sample.edge_id[0],
            num_sampled_nodes=sample.num_nodes[0].tolist(),
            num_sampled_edges=sample.num_edges[0].tolist(),
            metadata=(inputs.input_id, inputs.time),
            colptr=sample.colptr[0],
            edge_index=sample.edge_index[0],
        )

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> NeighborOutput:
        """Not implemented yet."""
        raise NotImplementedError("sampling from links is not implemented yet; sample from nodes")
