"""What NeighborSampler and LayerSampler have in common, attributes of PyG's NeighborSampler included."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler.base import DataType
from torch_geometric.typing import EdgeType, NodeType

from ..comm.steps import Steps
from .base import KeyedSampler
from .executor import Executor, LayerExecutor
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


class OnExecutor(KeyedSampler):
    """A KeyedSampler whose samples an executor draws."""

    graph: SampledGraph
    executor: Executor | LayerExecutor
    """Draws the samples, on the CPU, on a GPU, or over the stores of a part."""
    device: torch.device
    takes_types = True

    @property
    def collective(self) -> bool:  # type: ignore[override]
        """Whether all ranks of a process group sample together."""
        return self.executor.collective

    @property
    def usual_bulk(self) -> int:  # type: ignore[override]
        """1 on a CPU; 4 on a GPU, which one batch does not fill."""
        return 1 if self.device.type == "cpu" else 4

    def node_bounds(self) -> dict[NodeType | None, int]:
        """The number of nodes per type."""
        return self.graph.bounds()

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`."""
        self.executor.join(steps, own_seeds)
