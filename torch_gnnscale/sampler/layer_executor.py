"""Executors of layer-wise samples: a CPU or a GPU that has the graph, or the ranks that have its parts together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..comm.steps import Steps
from ..topology.segmented import SegmentedCSC
from .graph import SampledGraph


class LayerOptions(NamedTuple):
    """The options of :func:`torch_gnnscale.ops.sample_layers`, which are the same for all batches."""

    num_nodes: list[int]
    """How many nodes are drawn in each hop."""
    drawing: ops.LayerDrawing
    layers: bool
    include_dst: bool


class LayerExecutor(ABC):
    """Draws the samples of a LayerSampler. All executors return equal samples."""

    collective: bool = False
    """Whether all ranks of a process group must sample together."""

    @abstractmethod
    def check_links(self) -> None:
        """Raises NotImplementedError if samples of links cannot be drawn."""

    @abstractmethod
    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`."""

    @abstractmethod
    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int]) -> list[ops.Sample]:
        """One sample per batch of seeds; each as :func:`torch_gnnscale.ops.sample_layers` returns it."""


class HostLayers(LayerExecutor):
    """Draws on the CPU from a graph in host memory or in mapped files."""

    def __init__(self, graph: SampledGraph, options: LayerOptions) -> None:
        self._graph, self._options = graph, options
        drawing = options.drawing
        self._score = ops.node_scores(graph.stored, drawing.scores) if drawing.method == "fastgcn" else None
        self._prepared: ops.PreparedLayers | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": None}  # made again on first use; its tensors would be copied

    def check_links(self) -> None:
        """See :meth:`LayerExecutor.check_links`: does nothing, because links can be sampled."""

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`LayerExecutor.join`."""

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int]) -> list[ops.Sample]:
        """See :meth:`LayerExecutor.sample_many`; threads take whole batches."""
        prepared, options = self._prepared, self._options
        if prepared is None:
            prepared = self._prepared = ops.PreparedLayers(
                self._graph.stored, options.num_nodes, options.drawing,
                score=self._score, layers=options.layers, include_dst=options.include_dst,
            )  # fmt: skip
        if len(keys) == 1:
            return [prepared.sample(seeds[0], keys[0])]
        return prepared.sample_many(seeds, keys)


class GPULayers(LayerExecutor):
    """Draws on a GPU, from a graph there, on its peers or in pinned host memory. Links raise NotImplementedError.

    Args:
        graph: of one type.
        csc: the same graph, as the GPU reads it.
        options: those of all batches.
    """

    def __init__(self, graph: SampledGraph, csc: SegmentedCSC, options: LayerOptions) -> None:
        drawing = options.drawing
        self.graph, self.csc, self.options = graph, csc, options
        score = ops.node_scores(graph.stored, drawing.scores).to(csc.device) if drawing.method == "fastgcn" else None
        self._device = csc.device
        self._prepared = ops.PreparedLayerBulks(
            csc.colptr, csc.row, csc.edge_id, csc.spread, options.num_nodes, drawing, csc.device,
            score=score, layers=options.layers, include_dst=options.include_dst,
        )  # fmt: skip

    def __reduce__(self):
        return GPULayers, (self.graph, self.csc, self.options)

    def on(self, device: torch.device | str | int) -> GPULayers:
        """See :meth:`SegmentedCSC.on`."""
        return GPULayers(self.graph, self.csc.on(device), self.options)

    def check_links(self) -> None:
        """See :meth:`LayerExecutor.check_links`."""
        raise NotImplementedError(f"links with device={str(self._device)!r} are not implemented; use device='cpu'")

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`LayerExecutor.join`."""

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int]) -> list[ops.Sample]:
        """See :meth:`LayerExecutor.sample_many`: all batches are drawn at once."""
        return self._prepared.sample_many(seeds, keys)
