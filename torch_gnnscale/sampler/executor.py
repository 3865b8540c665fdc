"""Executors draw the samples of a NeighborSampler or a LayerSampler on a CPU or a GPU that has the graph, or by the
ranks that have its parts together, with equal results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore

from .. import ops
from ..comm.steps import Steps
from ..topology.segmented import SegmentedCSC
from .graph import SampledGraph
from .links import LinkSampling


class Drawing(NamedTuple):
    """The options of :func:`torch_gnnscale.ops.sample_neighbors` that are the same for all batches."""

    fanouts: list[list[int]]
    """fanouts[relation][hop]."""
    replace: bool
    disjoint: bool
    last: bool
    layers: bool
    subgraph: ops.Subgraph


def check_bulk(graph: SampledGraph, drawing: Drawing, how: str) -> None:
    """Raises NotImplementedError naming the first mode in use that :func:`torch_gnnscale.ops.sample_bulk` lacks.

    ``how`` is the argument that requires it, such as "device='cuda:0'".
    """
    modes = ops.beyond_bulks(
        several_types=graph.is_hetero,
        weighted=any(relation.weight is not None for relation in graph.relations),
        timed=any(relation.time is not None for relation in graph.relations),
        disjoint=drawing.disjoint,
        subgraph="directional",
    )
    if drawing.subgraph != "directional":
        modes.append(f"subgraph_type={drawing.subgraph!r}")
    if modes:
        raise NotImplementedError(f"{modes[0]} with {how} is not implemented; use device='cpu'")


class Executor(ABC):
    """Draws samples of a graph. All executors return equal samples; a mode they lack raises NotImplementedError."""

    device: torch.device
    """The device of seeds and samples."""
    collective: bool = False
    """Whether all ranks of a process group must sample together."""

    def __init__(self, graph: SampledGraph) -> None:
        self.graph = graph

    @abstractmethod
    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """Raises NotImplementedError naming the first mode in use that :meth:`sample` lacks, or, if ``many``,
        :meth:`sample_many`. ``how`` is the argument that chose this executor or method, such as "bulk=4"."""

    @abstractmethod
    def check_links(self, links: LinkSampling) -> None:
        """Raises NotImplementedError if samples of links, with these options, cannot be drawn."""

    @abstractmethod
    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`."""

    @abstractmethod
    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        seed_start_time: Sequence[Tensor | None] | None = None, exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """The sample of seeds (one tensor per node type); arguments as in
        :func:`torch_gnnscale.ops.sample_neighbors`."""

    @abstractmethod
    def sample_many(
        self, seeds: Sequence[Sequence[Tensor]], keys: Sequence[int], drawing: Drawing,
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        seed_start_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
    ) -> list[ops.Sample]:  # fmt: skip
        """One sample per batch of seeds; arguments of each batch as in :meth:`sample`."""


class HostExecutor(Executor):
    """Draws on the CPU from a graph in host memory or in mapped files, in every mode."""

    device = torch.device("cpu")
    _last: tuple[Drawing, ops.PreparedNeighbors] | None = None
    """The options of the last sample, and what was prepared of them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}  # as SampledGraph leaves out what is stored

    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """See :meth:`Executor.check`: it has all modes."""

    def check_links(self, links: LinkSampling) -> None:
        """See :meth:`Executor.check_links`: they can."""

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`."""

    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        seed_start_time: Sequence[Tensor | None] | None = None, exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """See :meth:`Executor.sample`."""
        return self._prepared(drawing).sample(seeds, key, seed_time, seed_start_time, exclude)

    def sample_many(
        self, seeds: Sequence[Sequence[Tensor]], keys: Sequence[int], drawing: Drawing,
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        seed_start_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
    ) -> list[ops.Sample]:  # fmt: skip
        """See :meth:`Executor.sample_many`; threads take whole batches."""
        return self._prepared(drawing).sample_many(seeds, keys, seed_time, seed_start_time, exclude)

    def _prepared(self, drawing: Drawing) -> ops.PreparedNeighbors:
        last = self._last
        if last is None or (last[0] is not drawing and last[0] != drawing):
            last = self._last = drawing, ops.PreparedNeighbors(self.graph.stored, **drawing._asdict())
        return last[1]


class GPUExecutor(Executor):
    """Draws on a GPU from a graph in its memory, that of its peers or pinned host memory, always by
    :func:`torch_gnnscale.ops.sample_bulk`."""

    def __init__(self, graph: SampledGraph, csc: SegmentedCSC) -> None:
        super().__init__(graph)
        self.csc = csc
        self.device = csc.device

    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """See :meth:`Executor.check`."""
        check_bulk(self.graph, drawing, how)

    def check_links(self, links: LinkSampling) -> None:
        """See :meth:`Executor.check_links`."""
        raise NotImplementedError(f"links with device={str(self.device)!r} are not implemented; use device='cpu'")

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`."""

    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        seed_start_time: Sequence[Tensor | None] | None = None, exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """See :meth:`Executor.sample`; times and exclusions raise NotImplementedError."""
        return self.sample_many([seeds], [key], drawing, [seed_time], [seed_start_time], [exclude])[0]

    def sample_many(
        self, seeds: Sequence[Sequence[Tensor]], keys: Sequence[int], drawing: Drawing,
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        seed_start_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
    ) -> list[ops.Sample]:  # fmt: skip
        """See :meth:`Executor.sample_many`; times and exclusions raise NotImplementedError."""
        if exclude is not None and any(pairs is not None for pairs in exclude):
            raise NotImplementedError(f"exclusions with device={str(self.device)!r} are not implemented; use 'cpu'")
        self.check(drawing, f"device={str(self.device)!r}", many=True)
        return self.csc.sample(
            [of_types[0] for of_types in seeds], drawing.fanouts[0], keys,
            replace=drawing.replace, layers=drawing.layers,
        )  # fmt: skip


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
    def check_links(self, links: LinkSampling) -> None:
        """Raises NotImplementedError if samples of links, with these options, cannot be drawn."""

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

    def check_links(self, links: LinkSampling) -> None:
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

    def check_links(self, links: LinkSampling) -> None:
        """See :meth:`LayerExecutor.check_links`."""
        raise NotImplementedError(f"links with device={str(self._device)!r} are not implemented; use device='cpu'")

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`LayerExecutor.join`."""

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int]) -> list[ops.Sample]:
        """See :meth:`LayerExecutor.sample_many`: all batches are drawn at once."""
        return self._prepared.sample_many(seeds, keys)


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
