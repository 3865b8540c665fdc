"""What draws the samples of samplers: the CPU or a GPU that has the graph, or the ranks that have its parts together,
with equal results; and what a sampler of the user's reads a graph by: all edges into some nodes, whoever has them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.typing import EdgeType
from typing_extensions import override

from .. import ops
from ..comm.steps import Steps
from ..memory import Budget
from ..ops.arguments import as_ids, check_choice, check_int
from ..topology.segmented import Edges, SegmentedCSC
from .graph import SampledGraph, check_times, end_types, ordered_limit
from .links import LinkSampling
from .minibatch import LATEST, PreparedSeeds
from .relations import sampled_graph


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


class HostExecutor(Executor):
    """Draws on the CPU from a graph in host memory or in mapped files, in every mode."""

    _last: tuple[Drawing, ops.PreparedNeighbors] | None = None
    """The options of the last sample, and what was prepared of them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}  # as SampledGraph leaves out what is stored

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: Drawing) -> list[ops.Sample]:
        """As :meth:`Executor.draw`; threads take whole batches."""
        last = self._last
        if last is None or (last[0] is not options and last[0] != options):
            last = self._last = options, ops.PreparedNeighbors(self.graph.stored, **options._asdict())
        if len(keys) == 1:
            of = seeds[0]
            return [last[1].sample(of.nodes, keys[0], of.times, of.start_times, of.pairs)]
        nodes, _, times, starts, pairs, *_ = map(list, zip(*seeds, strict=True))
        return last[1].sample_many(nodes, keys, times, starts, pairs)

    @override
    def edges_into(self, nodes: Tensor, relation: int, limits: Tensor | None) -> ops.Picks:
        stored = self.graph.stored
        time = limits if stored.time[relation] is not None else None
        return ops.pick_neighbors(stored, nodes, [0, len(nodes)], [0], 0, -1, relation=relation, time=time)


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


class EdgesInto(NamedTuple):
    """All edges into n nodes."""

    colptr: Tensor
    """Edges colptr[i]..colptr[i + 1] - 1 lead to the i-th node: int64, [n + 1]."""
    row: Tensor
    """Stored ids of their sources: int64, [e]."""
    edge_id: Tensor
    """Ids of the edges: int64, [e]."""


Ask = Callable[..., EdgesInto]
"""``ask(nodes, edge_type=None, time=None)``: the edges of a type into nodes, given by stored ids, [n], repeats allowed.
``time``: for each node, edges of later times are left out: [n]."""


class Neighbors:
    """The edges into nodes of a graph that this process has, or that the ranks have in parts. Both give the same.

    For a :class:`KeyedSampler` of one's own. Of a partitioned graph, the ranks ask their owners together: all make
    ``rounds`` rounds of a batch, also those that need fewer. The sampler's ``collective`` is this object's, its
    ``join`` calls this one's, and each sample is made within one :meth:`batch`::

        with self.neighbors.batch() as ask:
            colptr, row, edge_id = ask(seeds)

    Args:
        data: a Data, a HeteroData or a (FeatureStore, GraphStore) pair, such as ``(part.features, part.graph)``.
        rounds: how often a batch asks at most, the same on all ranks. They may ask for edges of different types.
        time_attr: name of the times of nodes or of edges, as of :class:`torch_gnnscale.NeighborSampler`.

    Raises:
        NotImplementedError: times that a partitioned graph does not have.
        TypeError, ValueError, IndexError: data of another kind; a malformed graph.
    """

    def __init__(self, data: Any, rounds: int, *, time_attr: str | None = None) -> None:
        self._rounds, store = check_int("rounds", rounds, 1), sampled_store(data)
        self._executor: Executor
        if store is None:
            self._executor = HostExecutor(sampled_graph(data, time_attr=time_attr))
        else:
            graph = store.sampled_graph(data[0], time_attr=time_attr, weight_attr=None, backward=False)
            self._executor = store.executor(graph, torch.device("cpu"))
        self._sizes = self._executor.graph.bounds()

    @property
    def collective(self) -> bool:
        """Whether the ranks ask together."""
        return self._executor.collective

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """As :meth:`KeyedSampler.join`."""
        self._executor.join(steps, own_seeds=False)  # what a batch asks for first need not be its seeds

    @contextmanager
    def batch(self) -> Iterator[Ask]:
        """What asks for the edges of one batch.

        Raises:
            TypeError, ValueError: there is no such edge type; times that are none, or that the graph does not have; a
                batch asks more than ``rounds`` times.
            IndexError: an id that is no node.
            RuntimeError: of a partitioned graph: not in a step of a loader; or another rank failed.
        """
        graph, left = self._executor.graph, self._rounds
        types = graph.edge_types

        def ask(nodes: Tensor, edge_type: EdgeType | None = None, time: Tensor | None = None) -> EdgesInto:
            nonlocal left
            check_choice("edge_type", edge_type, types)
            if left == 0:
                raise ValueError(f"rounds: expected at most {self._rounds} of a batch, found one more")
            nodes, size = as_ids("nodes", nodes).to(torch.int64), self._sizes[end_types(edge_type)[1]]
            if (at := ops.first_outside(nodes, size)) >= 0:
                raise IndexError(f"nodes[{at}] = {int(nodes[at])} is out of range: expected nodes in [0, {size})")
            limits = torch.full_like(nodes, LATEST) if graph.is_temporal else None
            if time is not None:
                if not graph.is_temporal:
                    raise ValueError("time: expected none without time_attr, found some")
                check_times("time", time, len(nodes))
                limits = ordered_limit("time", time, graph.floating_time)
            left -= 1
            found = self._executor.edges_into(nodes, types.index(edge_type), limits)
            assert found.edge_id is not None
            colptr = torch.cat([torch.zeros(1, dtype=torch.int64), found.num_edges.cumsum(0)])
            return EdgesInto(colptr, found.source, found.edge_id)

        yield ask
        while left and self.collective:  # other ranks may ask this one still
            ask(torch.empty(0, dtype=torch.int64), types[0])
