"""Neighbor sampling as a PyG sampler."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.typing import EdgeType

from .. import ops
from .._host import on_host
from .._warn import warn
from ..memory import Budget
from ..ops.arguments import checked_device
from ..random import draw_seed
from ..topology.segmented import SegmentedCSC, check_graph_budgets
from .anchors import AnchorInput
from .base import Inputs
from .executor import Drawing, Executor, GPUExecutor, HostExecutor, check_bulk, sampled_store
from .fanouts import NumNeighborsLike, as_num_neighbors, drawable, fanouts_of
from .inputs import SeedRequest, request_of_nodes
from .links import ExcludeSeedEdges, LinkSampling, StrictNegatives
from .on_executor import OnExecutor, PyGAttributes
from .output import HeteroNeighborOutput, NeighborOutput, Seeds, as_output, renumbered_trees
from .relations import sampled_graph
from .reverse import ReverseIds, with_original_edges
from .seeds import PreparedSeeds, check_starts, prepared_seeds
from .sources import warn_of_sorted


class NeighborSampler(PyGAttributes, OnExecutor):
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
        NotImplementedError: times with ``sample_direction='backward'``; on a GPU, types, weights, times, disjoint
            trees, ``bidirectional``, ``induced``, ``backward``, and links.
        TypeError, ValueError, IndexError: a malformed graph, fanout, time or weight.
    """

    _latest: tuple[tuple, Drawing] | None = None
    """The options of the last drawing, and the drawing."""

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
        where = checked_device(device)
        check_graph_budgets(where, graph_on_gpu, graph_on_peers)
        if not directed:
            if SubgraphType(subgraph_type) == SubgraphType.bidirectional:
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
        if layers and SubgraphType(subgraph_type) != SubgraphType.directional:
            found = SubgraphType(subgraph_type).value
            raise ValueError(f"layers=True: expected subgraph_type='directional', found {found!r}")
        if layers and sample_direction == "backward":
            raise ValueError("layers=True: expected sample_direction='forward', found 'backward'")
        self.replace = replace
        self.temporal_strategy = temporal_strategy
        self.sample_direction = sample_direction
        self.layers = layers
        self.keep_orig_edges = False
        self._attrs = {"time_attr": time_attr, "weight_attr": weight_attr}
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
        self.subgraph_type = SubgraphType(subgraph_type)
        self.executor: Executor
        """Draws the samples, on the CPU or on a GPU."""
        if store is not None:
            self.executor = store.executor(self.graph, where)
            self.executor.check(self.drawing, "the stores of a part", many=False)
        elif where.type == "cpu":
            self.graph.move_to_huge_pages()
            self.executor = HostExecutor(self.graph)
        else:
            check_bulk(self.graph, self.drawing, f"device={str(device)!r}")
            csc = SegmentedCSC.on_gpu(self.graph.relations[0].csc, where, graph_on_gpu, graph_on_peers)
            self.executor = GPUExecutor(self.graph, csc)
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
        other.executor = GPUExecutor(self.graph, self.executor.csc.on(device))
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
        self._subgraph_type = SubgraphType(subgraph_type)
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

    @property
    def exclude_seed_edges(self) -> ExcludeSeedEdges:
        """Which edges between the ends of links are excluded."""
        return self.links.exclude_seed_edges

    @exclude_seed_edges.setter
    def exclude_seed_edges(self, exclude_seed_edges: ExcludeSeedEdges) -> None:
        self.links = LinkSampling(self.graph, exclude_seed_edges, self.strict_negatives)

    @property
    def strict_negatives(self) -> StrictNegatives:
        """Which links are never negatives."""
        return self.links.strict_negatives

    @strict_negatives.setter
    def strict_negatives(self, strict_negatives: StrictNegatives) -> None:
        self.links = LinkSampling(self.graph, self.exclude_seed_edges, strict_negatives)

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

    def options(self) -> dict[str, Any]:
        """See :meth:`KeyedSampler.options`."""
        return {
            "num_neighbors": [list(fanouts) for fanouts in self.fanouts] if self.is_hetero else list(self.fanouts[0]),
            "replace": self.replace,
            "subgraph_type": self.subgraph_type.value,
            "disjoint": self.disjoint,
            "temporal_strategy": self.temporal_strategy,
            "layers": self.layers,
            "nodes": list(self.graph.sizes),
            "edges": [relation.num_edges for relation in self.graph.relations],
            "sample_direction": self.sample_direction,
            **self._attrs,
            "exclude_seed_edges": self.exclude_seed_edges,
            "strict_negatives": self.strict_negatives is not False,
        }

    def edge_bound(self, edge_type: EdgeType | None) -> int:
        """All of the user's edge ids of a type are in [0, edge_bound)."""
        return self.graph.relations[self.graph.edge_types.index(edge_type)].id_bound

    def check_many(self, inputs: type[Inputs], how: str) -> None:
        """See :meth:`KeyedSampler.check_many`."""
        if not issubclass(inputs, NodeSamplerInput):
            self.executor.check_links(self.links)
        self.executor.check(self.drawing, how, many=True)

    def prepare_links(
        self, edge_type: EdgeType | None, neg_sampling: NegativeSampling | None, links: Tensor | None
    ) -> None:
        """See :meth:`KeyedSampler.prepare_links`."""
        self.executor.check_links(self.links)
        self.links.prepare(edge_type, neg_sampling, links)

    # Sampling ########################################################################################################

    @on_host
    def sample_from_nodes(
        self, inputs: NodeSamplerInput, key: int | None = None
    ) -> NeighborOutput | HeteroNeighborOutput:
        """Samples the neighborhood of ``inputs.node``; ``metadata`` is (input_id, time), as PyG's loaders expect."""
        return self._sample_one(inputs, None, key)

    @on_host
    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None, key: int | None = None
    ) -> NeighborOutput | HeteroNeighborOutput:
        """Samples the neighborhood of links and their negatives; ``metadata`` is what PyG's loaders expect.

        Negatives are a function of the key as well. P(node) is proportional to its weight in ``neg_sampling``, over the
        nodes whose time is at most the link's (all nodes if they have no times). With ``strict_negatives`` no negative
        is an edge.

        Raises:
            ValueError: some link has no such negative.
        """
        return self._sample_one(inputs, neg_sampling, key)

    def _sample_one(
        self, inputs: Inputs, neg_sampling: NegativeSampling | None, key: int | None
    ) -> NeighborOutput | HeteroNeighborOutput:
        key = draw_seed() if key is None else key
        request = self._request(inputs, neg_sampling, key)
        return request.finish(self._sampled(request, key))

    @on_host
    def sample_many(
        self, inputs: Sequence[Inputs], keys: Sequence[int], neg_sampling: NegativeSampling | None = None
    ) -> list[Any]:
        """The samples of many batches. On a CPU, threads take whole batches; on a GPU, all are drawn at once.

        Raises:
            NotImplementedError: links, or a mode that :func:`torch_gnnscale.ops.sample_bulk` does not have, on a GPU.
        """
        for kind in {type(entry) for entry in inputs}:
            self.check_many(kind, "bulk")
        requests = [self._request(entry, neg_sampling, key) for entry, key in zip(inputs, keys, strict=True)]
        prepared = [prepared_seeds(self.graph, request, self.device) for request in requests]
        drawing = self._drawing_of_outputs()
        samples = self.executor.sample_many(
            [of.nodes for of in prepared],
            keys,
            drawing,
            [of.times for of in prepared],
            [of.start_times for of in prepared],
            [of.pairs for of in prepared],
        )
        return [
            request.finish(self._output(sample, of, drawing))
            for request, of, sample in zip(requests, prepared, samples, strict=True)
        ]

    @on_host
    def sample(
        self,
        seeds: Seeds,
        seed_time: Seeds | None,
        key: int,
        exclude: Tensor | dict[EdgeType, Tensor] | None = None,
        seed_start_time: Seeds | None = None,
    ) -> NeighborOutput | HeteroNeighborOutput:
        """Samples the neighborhood of seeds.

        Args:
            seeds: ids of any integer type, shape [s]; by node type in a heterogeneous graph. They may repeat.
                ``node[:s]`` of the output are the seeds as given.
            seed_time: times of the seeds, in the same form; by default the nodes' own times.
            key: 64 bits, from :func:`torch_gnnscale.random.batch_key`.
            exclude: pairs (source, destination) whose edges are not sampled: int64, shape [2, m], in any order; by edge
                type in a heterogeneous graph.
            seed_start_time: the starts of the seeds' time windows, in the form of ``seed_time``: a tree has edges of
                times from its seed's start to its seed's time, both included.

        Returns:
            PyG's output without metadata. ``batch[i]`` is the tree of node i; trees are numbered like the seeds given.
            ``num_sampled_nodes`` and ``num_sampled_edges`` are None for ``bidirectional`` and ``induced``.
        """
        request = SeedRequest(seeds, seed_time, exclude, seed_start_time=seed_start_time)
        check_starts(self.graph, request)
        return self._sampled(request, key)

    def _sampled(self, request: SeedRequest, key: int) -> NeighborOutput | HeteroNeighborOutput:
        of = prepared_seeds(self.graph, request, self.device)
        drawing = self._drawing_of_outputs()
        return self._output(
            self.executor.sample(of.nodes, key, drawing, of.times, of.start_times, of.pairs), of, drawing
        )

    def _request(self, inputs: Inputs, neg_sampling: NegativeSampling | None, key: int) -> SeedRequest:
        """What is sampled for a batch."""
        if isinstance(inputs, AnchorInput):
            return inputs.lists.request(inputs, key, self.disjoint)
        if isinstance(inputs, NodeSamplerInput):
            return request_of_nodes(inputs, self.graph)
        self.executor.check_links(self.links)
        return self.links.request(inputs, neg_sampling, key, self.disjoint)

    def _output(self, sample: ops.Sample, of: PreparedSeeds, drawing: Drawing) -> NeighborOutput | HeteroNeighborOutput:
        """PyG's output of a sample that was drawn by :meth:`_drawing_of_outputs`."""
        if sample.tree and len(of.numbers) > 1:
            seeds = [(number, len(of.nodes[number])) for number in of.numbers]
            sample = sample._replace(tree=renumbered_trees(sample.tree, seeds))
        if drawing.subgraph == "bidirectional":
            return as_output(sample, self.graph, drawing.subgraph, self._reverse_ids.found)
        out = as_output(sample, self.graph, drawing.subgraph)
        return with_original_edges(out, self.graph, self._reverse_ids) if self._keeps_both else out

    @property
    def _keeps_both(self) -> bool:
        """Whether PyG makes samples bidirectional, with the original edges kept."""
        return self.keep_orig_edges and self._subgraph_type == SubgraphType.bidirectional

    def _drawing_of_outputs(self) -> Drawing:
        drawing = self.drawing
        return drawing._replace(subgraph="directional") if self._keeps_both else drawing

    @property
    def drawing(self) -> Drawing:
        """The current options of drawing; the same object as long as no option changes."""
        options = (
            self.fanouts, self.replace, self._disjoint, self.temporal_strategy, self.layers, self._subgraph_type,
        )  # fmt: skip
        if (latest := self._latest) is None or latest[0] != options:
            last, subgraph = self.temporal_strategy == "last", self.subgraph_type.value
            drawing = Drawing(self.fanouts, self.replace, self.disjoint, last, self.layers, subgraph)
            latest = self._latest = options, drawing
        return latest[1]
