"""The contract of graph stores of which no process has all edges."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore

from .executor import Executor
from .graph import SampledGraph
from .layer_executor import LayerExecutor, LayerOptions


class SampledStore(PyGGraphStore):
    """Base class of graph stores that bring the executors by which they are sampled. A sampler does not ask them for
    edges."""

    @abstractmethod
    def sampled_graph(
        self, features: PyGFeatureStore, *, time_attr: str | None, weight_attr: str | None, backward: bool
    ) -> SampledGraph:
        """What a sampler is told of the graph; its relations may have fewer columns than there are nodes.

        Raises:
            NotImplementedError: a mode in which the store cannot be sampled.
            TypeError, ValueError: times or weights that are missing or malformed.
        """

    @abstractmethod
    def executor(self, graph: SampledGraph, device: torch.device) -> Executor:
        """An executor that draws from ``graph``, which :meth:`sampled_graph` returned; raises NotImplementedError for a
        device that has none."""

    @abstractmethod
    def layer_executor(self, graph: SampledGraph, options: LayerOptions) -> LayerExecutor:
        """An executor that draws layer-wise samples from ``graph``, which :meth:`sampled_graph` returned."""


def sampled_store(data: Any) -> SampledStore | None:
    """The graph store of a pair of stores, if it is a SampledStore; else None."""
    graph = data[1] if isinstance(data, (tuple, list)) and len(data) == 2 else None
    return graph if isinstance(graph, SampledStore) else None
