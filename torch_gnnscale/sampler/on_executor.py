"""What NeighborSampler and LayerSampler have in common."""

from __future__ import annotations

import torch
from torch_geometric.typing import NodeType

from ..comm.steps import Steps
from .executor import Executor
from .graph import SampledGraph
from .keyed import KeyedSampler
from .layer_executor import LayerExecutor


class OnExecutor(KeyedSampler):
    """A KeyedSampler whose samples an executor draws."""

    graph: SampledGraph
    executor: Executor | LayerExecutor
    """Draws the samples, on the CPU, on a GPU, or over the stores of a part."""
    device: torch.device

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
