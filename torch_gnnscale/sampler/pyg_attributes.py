"""Attributes of PyG's NeighborSampler that users and PyG's loaders read."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.sampler.base import DataType
from torch_geometric.typing import EdgeType, NodeType

from .graph import SampledGraph


class PyGAttributes:
    """What a sampler tells of its graph under PyG's names; before KeyedSampler in a class's bases."""

    graph: SampledGraph
    is_temporal: bool
    """Whether nodes or edges have times."""
    _disjoint: bool
    """Whether disjoint trees were asked for."""

    @property
    def data_type(self) -> DataType:
        """homogeneous, heterogeneous or remote (a pair of stores)."""
        return self.graph.data_type

    @property
    def is_hetero(self) -> bool:
        """Whether nodes and edges have types."""
        return self.graph.is_hetero

    @property
    def node_types(self) -> list[NodeType | None]:
        """The node types; [None] in a homogeneous graph."""
        return self.graph.node_types

    @property
    def edge_types(self) -> list[EdgeType | None]:
        """The edge types; [None] in a homogeneous graph."""
        return self.graph.edge_types

    @property
    def num_nodes(self) -> int | dict[NodeType, int]:
        """The number of nodes; per type in a heterogeneous graph."""
        return self._by_type(self.graph.bounds())

    @property
    def node_time(self) -> Tensor | dict[NodeType, Tensor] | None:
        """The nodes' times, by type in a heterogeneous graph; None if they have none."""
        return self._by_type(self.graph.node_time)

    @property
    def edge_time(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """The edges' times in the user's order, by type in a heterogeneous graph; None if they have none."""
        return self._by_type(self.graph.edge_time)

    def _by_type(self, values: dict | None) -> Any:
        return values if values is None or self.is_hetero else values[None]

    @property
    def disjoint(self) -> bool:
        """Whether trees of different seeds share no nodes."""
        return self._disjoint or self.is_temporal

    @disjoint.setter
    def disjoint(self, disjoint: bool) -> None:
        self._disjoint = disjoint

    @property
    def edge_permutation(self) -> None:
        """None: the sampler returns the user's edge ids already."""
        return None
