"""Neighbor sampling as a PyG sampler, along the edges or in both of their directions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from typing_extensions import override

from .. import ops
from .._user import on_host, warn
from ..memory import Budget
from ..ops.arguments import check_flags, checked_device
from ..topology.segmented import check_graph_budgets
from .base import Inputs
from .executor import Drawing, Executor, GPUExecutor, HostExecutor, on_gpu, sampled_store
from .fanouts import DrawingOptions, NumNeighborsLike, as_num_neighbors, drawable, fanouts_of
from .graph import ReverseIds, subgraph_kind
from .links import ExcludeSeedEdges, LinkSampling, StrictNegatives
from .minibatch import MiniBatch, PreparedSeeds, SampledEdges, exclusions
from .on_executor import OnExecutor
from .relations import sampled_graph, warn_of_sorted


class NeighborSampler(OnExecutor):
    """Samples neighborhoods with the fused operator. It can be passed wherever PyG takes a sampler.

    A sample is a function of (inputs, key); see :mod:`torch_gnnscale.random`. :class:`torch_gnnscale.NeighborLoader`
    passes the key. PyG's own loaders do not: then each batch's key is drawn from torch's generator.

    Args:
        data: a Data, a HeteroData, or a pair of a FeatureStore and a GraphStore, ours or foreign ones.
        num_neighbors: fanout of each hop; -1, or more than any node has, takes all neighbors. In a heterogeneous graph
            also a list per edge type; a NumNeighbors may have a default for the other edge types.
        subgraph_type: which edges a sample has. ``directional``: those that were drawn; ``bidirectional``: these and
            their reverses, which have the ids and attributes of the graph's own reverse edges, or none if the graph has
            edges without a reverse (a warning says so); ``induced``: all edges between the sampled nodes.
        replace: draw with replacement.
        disjoint: each seed gets a tree of its own; trees share no nodes.
        temporal_strategy: ``uniform``, or ``last`` to draw the latest neighbors; without times, ``last`` warns that
            it has no effect.
        time_attr: name of the times of nodes or of edges. A neighbor, or edge, is drawn for a seed only if its time
            is at most the seed's; types without the attribute are drawn always. Implies ``disjoint``.
        weight_attr: name of the weights of edges: P(edge) is proportional to its weight. Edges of weight 0 are removed
            from the graph in every mode; relations without the attribute are sampled uniformly.
        is_sorted: edges are sorted by destination, so that an edge's id is its position.
        share_memory: no effect: forked workers share the CSC, spawned workers receive it through shared memory.
        directed: deprecated; False means ``subgraph_type="induced"``.
        sample_direction: ``forward`` follows edges from their destinations to their sources; ``backward`` from their
            sources to their destinations.
        layers: expand in each hop every node found so far, not only the new ones: the papers' message-flow graphs.
        exclude_seed_edges: exclude all edges between the ends of a batch's links from its sample, so that the sample
            does not contain the answer. ``"reverse"`` also excludes their reverses; in a heterogeneous graph, edges of
            the type that PyG takes for the reverse (``rev_...``).
        strict_negatives: negatives of links are never edges of the links' type. Given links [2, m] (by edge type in a
            heterogeneous graph), they are none of these either.
        device: where to sample: ``cpu``, or a CUDA device, which then holds the graph and the samples.
        graph_on_gpu: how much of the graph the GPU holds, in bytes or as a share; the rest is copied to pinned host
            memory. By default all if it fits (see :func:`torch_gnnscale.topology.segmented.SegmentedCSC.on_gpu`).
        graph_on_peers: a budget for each of the GPUs 0, 1, ..., all equal, as ``peers`` of a TieredFeatureStore: the
            edges that do not fit in ``graph_on_gpu`` are interleaved over them. ``graph_on_gpu`` is then by default the
            column pointers alone. :meth:`on` gives another process's GPU the same edges.

    Raises:
        NotImplementedError: times with ``sample_direction='backward'``.
        TypeError, ValueError, IndexError: a malformed graph, fanout, time or weight.
    """

    _asked: Drawing
    """:attr:`drawing`, of the options that :attr:`_drawn_by` was made of."""

    @on_host
    def __init__(
        self,
        data: Data | HeteroData | tuple[PyGFeatureStore, PyGGraphStore],
        num_neighbors: NumNeighborsLike,
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
        *,
        layers: bool = False,
        exclude_seed_edges: ExcludeSeedEdges = False,
        strict_negatives: StrictNegatives = False,
        device: torch.device | str | None = None,
        graph_on_gpu: Budget | None = None,
        graph_on_peers: Sequence[Budget] = (),
    ) -> None:
        check_flags(replace=replace, directed=directed, disjoint=disjoint, layers=layers, is_sorted=is_sorted)
        where = checked_device(device)
        check_graph_budgets(where, graph_on_gpu, graph_on_peers)
        if not directed:
            if subgraph_kind(subgraph_type) == SubgraphType.bidirectional:
                raise ValueError(
                    "directed=False: expected no other subgraph_type than 'induced', found 'bidirectional'"
                )
            subgraph_type = SubgraphType.induced
            warn("directed=False is deprecated: use subgraph_type='induced'")
        if temporal_strategy not in ("uniform", "last"):
            raise ValueError(f"temporal_strategy: expected 'uniform' or 'last', found {temporal_strategy!r}")
        if sample_direction not in ("forward", "backward"):
            raise ValueError(f"sample_direction: expected 'forward' or 'backward', found {sample_direction!r}")
        if sample_direction == "backward" and time_attr is not None:
            raise NotImplementedError(
                f"time_attr={time_attr!r} with sample_direction='backward' is not implemented: an edge has the time of "
                f"its source; use 'forward'"
            )
        if layers and subgraph_kind(subgraph_type) != SubgraphType.directional:
            found = subgraph_kind(subgraph_type).value
            raise ValueError(f"layers=True: expected subgraph_type='directional', found {found!r}")
        if layers and sample_direction == "backward":
            raise ValueError("layers=True: expected sample_direction='forward', found 'backward'")
        self.replace = replace
        self.temporal_strategy = temporal_strategy
        self.sample_direction = sample_direction
        self.layers = layers
        self.keep_orig_edges = False
        self.time_attr, self.weight_attr = time_attr, weight_attr
        self._disjoint = disjoint
        store, backward = sampled_store(data), sample_direction == "backward"
        if store is not None:
            self.graph = store.sampled_graph(data[0], time_attr=time_attr, weight_attr=weight_attr, backward=backward)
        else:
            self.graph = sampled_graph(
                data, is_sorted=is_sorted, time_attr=time_attr, weight_attr=weight_attr, backward=backward
            )
        warn_of_sorted(data, is_sorted)
        self._reverse_ids = ReverseIds(self.graph)
        self.links = LinkSampling(self.graph, exclude_seed_edges, strict_negatives)
        self.num_neighbors = num_neighbors
        self._warn_of_unused(replace, temporal_strategy == "last", weight_attr)
        self.subgraph_type = subgraph_kind(subgraph_type)
        self.executor: Executor
        """Draws the samples, on the CPU or on a GPU."""
        if store is not None:
            self.executor = store.executor(self.graph, where)
            self.executor.check(self.drawing, "the stores of a part")
        elif where.type == "cpu":
            self.graph.move_to_huge_pages()
            self.executor = HostExecutor(self.graph)
        else:
            self.executor = GPUExecutor(self.graph, where, on_gpu(self.graph, where, graph_on_gpu, graph_on_peers))
        if self._subgraph_type == SubgraphType.bidirectional:
            self._warn_of_missing_ids()

    def on(self, device: torch.device | str | int) -> NeighborSampler:
        """The same sampler on another GPU of this machine, for processes that have a GPU each: edges on peers and in
        host memory are shared, what the GPU itself holds is copied.

            def rank(number, sampler):          # started by torch.multiprocessing.spawn
                sampler = sampler.on(f"cuda:{number}")

        Without edges on peers nothing is shared: each process makes the graph anew, first on this sampler's GPU. Make
        the sampler in the process instead.

        Raises:
            ValueError: this sampler or the device is on a CPU, or the GPU cannot read the peers.
            MemoryError, OSError: too little memory is free, or it cannot be pinned.
        """
        if not isinstance(self.executor, GPUExecutor):
            raise ValueError(f"device: expected a sampler on a GPU, found one on {self.device}")
        other = copy.copy(self)
        cscs = [csc.on(device) for csc in self.executor.cscs]
        other.executor = GPUExecutor(self.graph, checked_device(device), cscs)
        return other

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where samples are drawn and returned."""
        return self.executor.device

    # Options that may be changed later ###############################################################################

    @property
    def subgraph_type(self) -> SubgraphType:
        """Which edges a sample has. Setting ``bidirectional`` warns of each relation that has no unique reverse, or has
        edges whose reverse is not an edge of the graph."""
        return self._subgraph_type

    @subgraph_type.setter
    def subgraph_type(self, subgraph_type: SubgraphType | str) -> None:
        self._subgraph_type = subgraph_kind(subgraph_type)
        if self._subgraph_type == SubgraphType.bidirectional:
            reverses = self.graph.stored.reverse
            for number, (edge_type, reverse) in enumerate(zip(self.graph.edge_types, reverses, strict=True)):
                is_reverse = edge_type is not None and edge_type[1].startswith("rev_") and number in reverses
                if reverse < 0 and not is_reverse:
                    warn(f"edge type {edge_type} stays directional: there is no reverse edge type, or not a unique one")
            if hasattr(self, "executor"):  # else the constructor does it
                self._warn_of_missing_ids()

    def _warn_of_missing_ids(self) -> None:
        """Warns of each relation whose edges have no ids in samples, and prepares the ids of the others' reverses."""
        for number, edge_type in enumerate(self.graph.edge_types):
            if self.graph.stored.reverse[number] >= 0 and self._reverse_ids[number] is None:
                whose = "edges" if edge_type is None else f"edges of {edge_type}"
                warn(
                    f"subgraph_type='bidirectional': samples have no ids (e_id) and no attributes of {whose}, because "
                    f"the graph does not have the reverse of each of them"
                )

    @OnExecutor.exclude_seed_edges.setter  # type: ignore[attr-defined]
    def exclude_seed_edges(self, exclude_seed_edges: ExcludeSeedEdges) -> None:
        """Sets which edges between the ends of links are excluded."""
        self.links = LinkSampling(self.graph, exclude_seed_edges, self.strict_negatives)

    def _warn_of_unused(self, replace: bool, last: bool, weight_attr: str | None) -> None:
        """Warns of options that have no effect beside the others. ``last``: the ``temporal_strategy``."""
        takes_all = {fanout for entry in self.fanouts for fanout in entry} - {0} == {-1}
        if replace and takes_all:
            warn("replace=True has no effect: num_neighbors takes all neighbors")
        if last and not self.is_temporal:
            warn("temporal_strategy='last' has no effect: without time_attr there are no times")
        elif last and takes_all:
            warn("temporal_strategy='last' has no effect: num_neighbors takes all neighbors")
        if weight_attr is not None and (takes_all or (last and self.is_temporal and not replace)):
            what = "num_neighbors=-1" if takes_all else "temporal_strategy='last'"
            taken = "all" if takes_all else "the last"
            warn(
                f"weight_attr={weight_attr!r} has no effect on draws with {what}, which takes {taken} neighbors "
                f"whatever their weights; edges of weight 0 are still left out"
            )

    @property
    def num_neighbors(self) -> NumNeighbors:
        """The fanouts, as PyG's type; a dictionary if it has edge types that PyG's type takes for one."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, num_neighbors: NumNeighborsLike) -> None:
        fanouts = fanouts_of(num_neighbors, self.graph.edge_types)
        self.fanouts = drawable(fanouts, self.graph.largest_degree, self.replace)
        """fanouts[relation][hop]."""
        self._num_neighbors = as_num_neighbors(num_neighbors)

    # The contract of samplers ########################################################################################

    takes_windows = True

    @property
    def is_temporal(self) -> bool:  # type: ignore[override]
        """Whether nodes or edges have times."""
        return self.graph.is_temporal

    @override
    def options(self) -> dict[str, Any]:
        return {
            "num_neighbors": [list(fanouts) for fanouts in self.fanouts] if self.is_hetero else list(self.fanouts[0]),
            **DrawingOptions.said_by(self),
            "sample_direction": self.sample_direction,
            **self._said_of_graph,
        }

    @override
    def check_many(self, inputs: type[Inputs], how: str) -> None:
        super().check_many(inputs, how)
        self.executor.check(self.drawing, how)

    # Sampling ########################################################################################################

    @property
    def drawing(self) -> Drawing:
        """The current options of drawing; the same object as long as no option changes."""
        if self._drawn_by is None:
            self._options_of_draws()
        return self._asked

    @override
    def _options_of_draws(self) -> Drawing:
        """Where PyG makes samples bidirectional and keeps the original edges, the reverses are added later."""
        last, subgraph = self.temporal_strategy == "last", self.subgraph_type.value
        asked = drawn = Drawing(self.fanouts, self.replace, self.disjoint, last, self.layers, subgraph)
        if self.keep_orig_edges and subgraph == "bidirectional":
            drawn = asked._replace(subgraph="directional")
        self._directional = drawn.subgraph == "directional"
        self._ids = self._reverse_ids.found if drawn.subgraph == "bidirectional" else None
        self._reversed = self._reverse_ids if asked is not drawn else None
        self._asked, self._drawn_by = asked, drawn
        return drawn

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in _OF_DRAWING:
            self.__dict__["_drawn_by"] = None


_OF_DRAWING = frozenset(
    ("fanouts", "replace", "_disjoint", "temporal_strategy", "layers", "_subgraph_type", "keep_orig_edges")
)
"""The attributes that :attr:`NeighborSampler.drawing` is made of."""


class BidirectionalNeighborSampler(NeighborSampler):
    """Samples homogeneous graphs along edges in both directions, like PyG's BidirectionalNeighborSampler.

    Each hop draws ``fanout`` of a node's incoming edges and ``fanout`` of its outgoing edges. Every node found is
    expanded in both directions in the next hop. An edge that is found twice is returned once.

    ``num_sampled_edges`` has two entries per hop: the new edges found forward, then those found backward.
    ``num_sampled_nodes`` has four entries per hop: forward, the number of seeds (0 after the first hop) and of new
    nodes; backward, 0 and the number of new nodes.

    Args:
        data: a Data, or a pair of a FeatureStore and a homogeneous GraphStore.
        num_neighbors: fanout of each hop and direction; -1 takes all neighbors.
        subgraph_type: ``directional``.
        replace, disjoint, weight_attr, is_sorted, share_memory, directed: as in :class:`NeighborSampler`.
        temporal_strategy: no effect, because times are not implemented; ``last`` warns.
        time_attr: must be None.

    Raises:
        NotImplementedError: a heterogeneous graph, times, or another ``subgraph_type``.
        TypeError, ValueError, IndexError: as in :class:`NeighborSampler`.
    """

    @on_host
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
        return {**self.__dict__, "_both": None}  # built again on first use

    def _both_ways(self) -> ops.Relations:
        """Two relations: the edges forward, the edges backward. Built on first use."""
        if self._both is None:
            forward, backward = self.graph.stored, self._backward.graph.stored
            self._both = ops.relations(
                forward.colptr + backward.colptr, forward.row + backward.row,
                edge_id=forward.edge_id + backward.edge_id, weight=forward.weight + backward.weight,
            )  # fmt: skip
        return self._both

    def check_many(self, inputs: type[Inputs], how: str) -> None:
        """Accepts all inputs: batches are sampled one after another."""

    def _drawn(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int]) -> list[ops.Sample]:
        found = []
        for of, key in zip(seeds, keys, strict=True):
            if of.start_times is not None:
                raise ValueError("seed_start_time: expected none from a sampler without time_attr, found some")
            forward = None if of.pairs is None else of.pairs[0]
            backward = None if forward is None else exclusions(self._backward.graph, forward)[0]
            found.append(
                ops.sample_neighbors(
                    self._both_ways(),
                    of.nodes,
                    self.fanouts * 2,
                    key,
                    exclude=[forward, backward],
                    replace=self.replace,
                    disjoint=self.disjoint,
                )
            )
        return found

    def _write(self, batch: MiniBatch, sample: ops.Sample) -> None:
        # A step is one direction of one hop. Its edges are (neighbor, node) forward and (node, neighbor) backward.
        ways = [
            torch.cat([index, ids.unsqueeze(0)]).split(counts, dim=1)
            for index, ids, counts in zip(sample.edge_index, sample.edge_id, sample.num_edges, strict=True)
        ]
        steps = [step for hop in zip(*ways, strict=True) for step in hop]
        num_nodes, known = [], 0
        for number, step in enumerate(steps):
            new_seeds = sample.num_nodes[0][0] if number == 0 else 0
            found = max(known + new_seeds, int(step[0].max()) + 1 if step.numel() else 0)
            num_nodes += [new_seeds, found - known - new_seeds]
            known = found
        steps[1::2] = [step[[1, 0, 2]] for step in steps[1::2]]
        edges = torch.cat([torch.empty(3, 0, dtype=torch.int64), *steps], dim=1)
        kept = _first_occurrences(edges)
        edge_counts = [int(part.sum()) for part in kept.split([step.size(1) for step in steps])]
        edges = edges[:, kept]
        batch.types, batch.nodes, batch.trees = self.graph.types, sample.node, sample.tree or None
        batch.edges = [SampledEdges(edges[:2], None, edges[2])]
        batch.num_nodes, batch.num_edges = [num_nodes], [edge_counts]


def _first_occurrences(columns: Tensor) -> Tensor:
    """result[i]: whether column i differs from columns 0..i-1. bool, shape [n]."""
    position = torch.arange(columns.size(1))
    inverse = torch.unique(columns, dim=1, return_inverse=True)[1]
    first = torch.zeros_like(position).scatter_reduce(0, inverse, position, "amin", include_self=False)
    return first[inverse] == position
