"""Layer-wise sampling as a PyG sampler."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.sampler import NegativeSampling
from torch_geometric.typing import EdgeType
from typing_extensions import override

from .. import ops
from .._user import on_host
from ..memory import Budget
from ..ops.arguments import check_flags, check_int, checked_device
from ..ops.layer_drawing import SCHEMES_OF, check_drawing, check_num_nodes
from ..random import Purpose, batch_key
from ..topology.segmented import SegmentedCSC, check_graph_budgets
from .base import check_weight_name
from .executor import Executor, LayerOptions, sampled_store
from .graph import SampledGraph
from .links import LinkSampling, StrictNegatives
from .minibatch import PreparedSeeds
from .on_executor import OnExecutor
from .relations import sampled_graph, warn_of_sorted


class LayerSampler(OnExecutor):
    """Samples layer by layer, by LADIES, FastGCN or LABOR; sampled edges have weights.

    A sample is a function of (inputs, key). :func:`torch_gnnscale.ops.sample_layers` has the formulas. Batches have
    PyG's fields, and ``edge_weight``, in the order of ``edge_index``. The values of an ``adj_t`` are the weights.

    Args:
        data: a Data, or a pair of a FeatureStore and a GraphStore, of one node type and one edge type.
        num_nodes: for each hop, how many nodes are drawn for the whole frontier; with LABOR, how many neighbors are
            drawn for each of its nodes (``poisson``: in expectation). -1 takes all.
        method: ``ladies``: nodes, by scores from the frontier's edges; ``fastgcn``: nodes, by scores from all edges;
            ``labor``: neighbors of each node, where a source has the same random number for all destinations.
        scheme: how nodes are drawn by their scores: ``priority`` (default), ``poisson``, ``replace`` or ``successive``;
            with LABOR ``sequential`` (default) or ``poisson``.
        scores: of a node, from its edges into the frontier (FastGCN: from all of its edges); not with LABOR.
            ``squares``: the sum of 1 / d^2, d being the degree of an edge's destination (Zou et al. 2019); ``counts``:
            the squared number of these edges (FastGCN: their number).
        aggregation: which aggregation over all neighbors the weighted sum over sampled edges estimates: ``mean``,
            ``sum``, or ``gcn``: the sum of x_j / sqrt(d_i d_j). Degrees are those of the stored graph; self loops are
            not added.
        weights: ``unbiased``: the expectation of a node's weighted sum is the aggregation over all of its neighbors;
            ``self_normalized``: the weights of a node's edges are scaled to the sum that they have with all neighbors.
        keep_known: LADIES and FastGCN take all candidates that are already in the batch, and draw the hop's number of
            others. Not with ``include_dst=False``.
        layer_dependency: with LABOR: all hops have the same random numbers, so that fewer nodes are found.
        batch_dependency: with LABOR: this many consecutive batches have the same random numbers, so that they have
            many rows in common.
        layers: the frontier is every node found so far, as in the papers; batches have ``layers``, a list of
            :class:`torch_gnnscale.sampler.WeightedLayer`.
        include_dst: False, with ``layers``: a layer's sources, and the next frontier, are the drawn nodes alone. The
            rows of a batch are then the rows of the nodes of each hop, hop after hop.
        is_sorted: edges are sorted by destination, so that an edge's id is its position.
        strict_negatives: as in :class:`torch_gnnscale.NeighborSampler`.
        weight_name: the name of the batches' field with the weights; not one that loaders themselves give to a field.
            Not with ``layers``.
        device, graph_on_gpu, graph_on_peers: as in :class:`torch_gnnscale.NeighborSampler`.

    Raises:
        NotImplementedError: several types; on a GPU, the stores of a part; of ``sample``, excluded edges.
        TypeError, ValueError, IndexError: a malformed graph; an option that is unknown or does not fit the method.
    """

    @on_host
    def __init__(
        self,
        data: Data | HeteroData | tuple[PyGFeatureStore, PyGGraphStore],
        num_nodes: Sequence[int],
        method: str = "ladies",
        *,
        scheme: str | None = None,
        scores: str = "squares",
        aggregation: str = "mean",
        weights: str = "self_normalized",
        keep_known: bool = False,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        layers: bool = False,
        include_dst: bool = True,
        is_sorted: bool = False,
        strict_negatives: StrictNegatives = False,
        weight_name: str = "edge_weight",
        device: torch.device | str | None = None,
        graph_on_gpu: Budget | None = None,
        graph_on_peers: Sequence[Budget] = (),
    ) -> None:
        check_flags(
            keep_known=keep_known, layer_dependency=layer_dependency, layers=layers, include_dst=include_dst,
            is_sorted=is_sorted,
        )  # fmt: skip
        warn_of_sorted(data, is_sorted)
        self.device = checked_device(device)
        check_graph_budgets(self.device, graph_on_gpu, graph_on_peers)
        if scheme is None and method in SCHEMES_OF:
            scheme = SCHEMES_OF[method][0]
        self.drawing = ops.LayerDrawing(
            method, str(scheme), scores, aggregation, weights, bool(keep_known), bool(layer_dependency)
        )
        """The options that decide what is drawn."""
        check_drawing(self.drawing, layers, include_dst)
        self.num_nodes_of_hops = check_num_nodes(num_nodes.tolist() if isinstance(num_nodes, np.ndarray) else num_nodes)
        """How many nodes are drawn in each hop."""
        self.batches_per_key = check_int("batch_dependency", batch_dependency, 1)
        if batch_dependency > 1 and method != "labor":
            raise ValueError(f"batch_dependency={batch_dependency}: expected method='labor', found {method!r}")
        self.layers, self.include_dst = layers, include_dst
        self._separate_sources = not include_dst
        check_weight_name(weight_name)
        if layers and weight_name != type(self).weight_name:
            raise ValueError(f"weight_name={weight_name!r}: expected layers=False, found True: layers have edge_weight")
        self.weight_name = weight_name
        self.layer_options = LayerOptions(self.num_nodes_of_hops, self.drawing, layers, include_dst)
        self.executor: Executor
        """Draws the samples."""
        if (store := sampled_store(data)) is not None:
            if self.device.type != "cpu":
                raise NotImplementedError(
                    f"device={str(device)!r} with the stores of a part is not implemented; use device='cpu'"
                )
            self.graph = store.sampled_graph(data[0], time_attr=None, weight_attr=None, backward=False)
            self._check_one_type()
            self.executor = store.executor(self.graph, self.device, self.layer_options)
        else:
            self.graph = sampled_graph(data, is_sorted=is_sorted)
            self._check_one_type()
            if self.device.type == "cpu":
                self.graph.move_to_huge_pages()
                self.executor = HostLayers(self.graph, self.layer_options)
            else:
                csc = SegmentedCSC.on_gpu(self.graph.relations[0].csc, self.device, graph_on_gpu, graph_on_peers)
                self.executor = GPULayers(self.graph, csc, self.layer_options)
        self.links = LinkSampling(self.graph, False, strict_negatives)
        self._disjoint = False

    def _check_one_type(self) -> None:
        if self.graph.is_hetero:
            method = self.drawing.method
            raise NotImplementedError(f"method={method!r} with edge types is not implemented; use method='neighbor'")

    def on(self, device: torch.device | str | int) -> LayerSampler:
        """The same sampler on another GPU of this machine, as :meth:`NeighborSampler.on`."""
        if not isinstance(self.executor, GPULayers):
            raise ValueError(f"device: expected a sampler on a GPU, found one on {self.device}")
        other = copy.copy(self)
        other.executor = GPULayers(self.graph, self.executor.csc.on(device), self.layer_options)
        other.device = other.executor.device
        return other

    # The contract of samplers ########################################################################################

    @override
    def options(self) -> dict[str, Any]:
        return {
            **self.drawing._asdict(),
            "num_nodes": list(self.num_nodes_of_hops),
            "batch_dependency": self.batches_per_key,
            "layers": self.layers,
            "include_dst": self.include_dst,
            **self._said_of_graph,
            "strict_negatives": self.strict_negatives is not False,
        }

    @override
    def prepare_links(
        self, edge_type: EdgeType | None, neg_sampling: NegativeSampling | None, links: Tensor | None
    ) -> None:
        if neg_sampling is not None and self.batches_per_key > 1:
            raise ValueError(
                f"batch_dependency={self.batches_per_key}: expected 1 with negatives, which are drawn for each batch"
            )
        super().prepare_links(edge_type, neg_sampling, links)

    # Sampling ########################################################################################################

    def _drawn(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int]) -> list[ops.Sample]:
        if any(of.pairs is not None for of in seeds):
            method = self.drawing.method
            raise NotImplementedError(f"exclude with method={method!r} is not implemented; use method='neighbor'")
        keys = [batch_key(key, purpose=Purpose.LAYER) for key in keys]
        return self.executor.draw(seeds, keys, self.layer_options)


class HostLayers(Executor):
    """Draws on the CPU from a graph in host memory or in mapped files."""

    def __init__(self, graph: SampledGraph, options: LayerOptions) -> None:
        super().__init__(graph)
        self.options, drawing = options, options.drawing
        self._score = ops.node_scores(graph.stored, drawing.scores) if drawing.method == "fastgcn" else None
        self._prepared: ops.PreparedLayers | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": None}  # made again on first use; its tensors would be copied

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: LayerOptions) -> list[ops.Sample]:
        """As :meth:`Executor.draw`; threads take whole batches."""
        if (prepared := self._prepared) is None:
            prepared = self._prepared = ops.PreparedLayers(
                self.graph.stored, options.num_nodes, options.drawing,
                score=self._score, layers=options.layers, include_dst=options.include_dst,
            )  # fmt: skip
        if len(keys) == 1:
            return [prepared.sample(seeds[0].nodes[0], keys[0])]
        return prepared.sample_many([of.nodes[0] for of in seeds], keys)


class GPULayers(Executor):
    """Draws on a GPU, from a graph there, on its peers or in pinned host memory.

    Args:
        graph: of one type.
        csc: the same graph, as the GPU reads it.
        options: those of all batches.
    """

    seeds_on = None

    def __init__(self, graph: SampledGraph, csc: SegmentedCSC, options: LayerOptions) -> None:
        super().__init__(graph)
        drawing = options.drawing
        self.csc, self.options, self.device = csc, options, csc.device
        score = ops.node_scores(graph.stored, drawing.scores).to(csc.device) if drawing.method == "fastgcn" else None
        self._prepared = ops.PreparedLayerBulks(
            csc.colptr, csc.row, csc.edge_id, csc.spread, options.num_nodes, drawing, csc.device,
            score=score, layers=options.layers, include_dst=options.include_dst,
        )  # fmt: skip

    def __reduce__(self):
        return GPULayers, (self.graph, self.csc, self.options)

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: LayerOptions) -> list[ops.Sample]:
        """As :meth:`Executor.draw`: all batches are drawn at once."""
        return self._prepared.sample_many([of.nodes[0] for of in seeds], keys)
