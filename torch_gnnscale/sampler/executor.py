"""What draws the samples of samplers: the CPU or a GPU that has the graph, or the ranks that have its parts together,
with equal results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore

from .. import ops
from ..comm.steps import Steps
from ..memory import Budget
from ..topology.segmented import Edges, SegmentedCSC
from .graph import SampledGraph
from .links import LinkSampling
from .minibatch import PreparedSeeds


class Drawing(NamedTuple):
    """The options of :func:`torch_gnnscale.ops.sample_neighbors` that are the same for all batches."""

    fanouts: list[list[int]]
    """fanouts[relation][hop]."""
    replace: bool
    disjoint: bool
    last: bool
    layers: bool
    subgraph: ops.Subgraph


class LayerOptions(NamedTuple):
    """The options of :func:`torch_gnnscale.ops.sample_layers`, which are the same for all batches."""

    num_nodes: list[int]
    """How many nodes are drawn in each hop."""
    drawing: ops.LayerDrawing
    layers: bool
    include_dst: bool


class Executor:
    """Draws samples of a graph, of neighbors or layer by layer. All executors return equal samples; a mode they lack
    raises NotImplementedError."""

    device: torch.device = torch.device("cpu")
    """The device of samples."""
    seeds_on: torch.device | None = torch.device("cpu")
    """Where seeds must lie; None: anywhere."""
    collective: bool = False
    """Whether all ranks of a process group must sample together."""

    def __init__(self, graph: SampledGraph) -> None:
        self.graph = graph

    def check(self, drawing: Drawing, how: str) -> None:
        """Raises NotImplementedError naming the first mode in use that is lacking. ``how`` is the argument that chose
        this executor or many batches at once, such as "bulk=4"."""

    def check_links(self, links: LinkSampling) -> None:
        """Raises NotImplementedError if samples of links, with these options, cannot be drawn."""

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """As :meth:`KeyedSampler.join`: issues collectives in these steps from now on."""

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: Any) -> list[ops.Sample]:
        """One sample for each batch of seeds.

        Args:
            seeds: of each batch.
            keys: of each batch, 64 bits.
            options: of all batches: a :class:`Drawing`; layer by layer, the :class:`LayerOptions` of the sampler, which
                never change.
        """
        raise NotImplementedError

    def edges_into(self, nodes: Tensor, relation: int, limits: Tensor | None) -> ops.Picks:
        """All edges into nodes, in their order.

        Args:
            nodes: stored ids: int64, [n].
            relation: the number of the relation.
            limits: for each node, edges of later times are left out (:func:`torch_gnnscale.sampler.graph.ordered`):
                int64, [n]; None of a graph without times.
        """
        raise NotImplementedError


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
    def executor(self, graph: SampledGraph, device: torch.device, options: LayerOptions | None = None) -> Executor:
        """An executor that draws from ``graph``, which :meth:`sampled_graph` returned, neighbors or, if there are
        ``options``, layer by layer; raises NotImplementedError for a device that has none."""


def sampled_store(data: Any) -> SampledStore | None:
    """The graph store of a pair of stores, if it is a SampledStore; else None."""
    graph = data[1] if isinstance(data, (tuple, list)) and len(data) == 2 else None
    return graph if isinstance(graph, SampledStore) else None


def on_gpu(
    graph: SampledGraph, device: torch.device, budget: Budget | None, peers: Sequence[Budget]
) -> list[SegmentedCSC]:
    """The edges of all relations as a GPU reads them: see :meth:`SegmentedCSC.all_on_gpu`."""
    edges = [Edges(relation.csc, relation.weight, relation.time) for relation in graph.relations]
    return SegmentedCSC.all_on_gpu(edges, device, budget, peers)


class GPUExecutor(Executor):
    """Draws on a GPU from a graph in its memory, that of its peers or pinned host memory, always by
    :class:`torch_gnnscale.ops.PreparedBulks`. Seeds, times and exclusions may lie in host memory.

    Args:
        graph: what is sampled.
        device: the GPU.
        cscs: the edges of each relation, as the GPU reads them.
    """

    seeds_on = None
    _last: tuple[Drawing, ops.PreparedBulks] | None = None
    """The options of the last bulk, and what was prepared of them."""

    def __init__(self, graph: SampledGraph, device: torch.device, cscs: Sequence[SegmentedCSC]) -> None:
        super().__init__(graph)
        self.cscs = list(cscs)
        self.device = device

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: Drawing) -> list[ops.Sample]:
        """As :meth:`Executor.draw`: all batches in one bulk."""
        last = self._last
        if last is None or (last[0] is not options and last[0] != options):
            given = options._asdict()
            stored = self.graph.stored
            ends = zip(self.cscs, stored.src_type, stored.dst_type, stored.reverse, strict=True)
            edges = [csc.edges(*of_relation) for csc, *of_relation in ends]
            bulks = ops.PreparedBulks(edges, stored.sizes, given.pop("fanouts"), self.device, **given)
            last = self._last = options, bulks
        nodes, _, times, starts, pairs, *_ = map(list, zip(*seeds, strict=True)) if seeds else ([] for _ in range(6))
        return last[1].sample_many(nodes, keys, times, starts, pairs)
