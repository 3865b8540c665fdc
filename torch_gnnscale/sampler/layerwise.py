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
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.typing import EdgeType

from .. import ops
from .._host import on_host
from ..memory import Budget
from ..ops.arguments import as_ids, check_int, check_key, checked_device
from ..ops.layer_drawing import SCHEMES_OF, check_drawing, check_num_nodes
from ..random import Purpose, batch_key, draw_seed
from ..topology.segmented import SegmentedCSC, check_graph_budgets
from .anchors import AnchorInput
from .base import Inputs, check_weight_name
from .executor import GPULayers, HostLayers, LayerExecutor, LayerOptions, sampled_store
from .inputs import SeedRequest, request_of_nodes
from .links import LinkSampling, StrictNegatives
from .on_executor import OnExecutor, PyGAttributes
from .output import NeighborOutput, as_output
from .relations import sampled_graph
from .sources import warn_of_sorted


class LayerSampler(PyGAttributes, OnExecutor):
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
        NotImplementedError: several types; on a GPU, links, and the stores of a part.
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
        check_weight_name(weight_name)
        if layers and weight_name != type(self).weight_name:
            raise ValueError(f"weight_name={weight_name!r}: expected layers=False, found True: layers have edge_weight")
        self.weight_name = weight_name
        options = LayerOptions(self.num_nodes_of_hops, self.drawing, layers, include_dst)
        self.executor: LayerExecutor
        """Draws the samples."""
        if (store := sampled_store(data)) is not None:
            if self.device.type != "cpu":
                raise NotImplementedError(
                    f"device={str(device)!r} with the stores of a part is not implemented; use device='cpu'"
                )
            self.graph = store.sampled_graph(data[0], time_attr=None, weight_attr=None, backward=False)
            self._check_one_type()
            self.executor = store.layer_executor(self.graph, options)
        else:
            self.graph = sampled_graph(data, is_sorted=is_sorted)
            self._check_one_type()
            if self.device.type == "cpu":
                self.graph.move_to_huge_pages()
                self.executor = HostLayers(self.graph, options)
            else:
                csc = SegmentedCSC.on_gpu(self.graph.relations[0].csc, self.device, graph_on_gpu, graph_on_peers)
                self.executor = GPULayers(self.graph, csc, options)
        self.links = LinkSampling(self.graph, False, strict_negatives)
        self._disjoint = False

    def _check_one_type(self) -> None:
        if self.graph.is_hetero:
            method = self.drawing.method
            raise NotImplementedError(f"method={method!r} with edge types is not implemented; use method='neighbor'")

    def on(self, device: torch.device | str | int) -> LayerSampler:
        """See :meth:`NeighborSampler.on`."""
        if not isinstance(self.executor, GPULayers):
            raise ValueError(f"device: expected a sampler on a GPU, found one on {self.device}")
        other = copy.copy(self)
        other.executor = self.executor.on(device)
        other.device = other.executor.csc.device
        return other

    @property
    def strict_negatives(self) -> StrictNegatives:
        """Which links are never negatives."""
        return self.links.strict_negatives

    @strict_negatives.setter
    def strict_negatives(self, strict_negatives: StrictNegatives) -> None:
        self.links = LinkSampling(self.graph, False, strict_negatives)

    # The contract of samplers ########################################################################################

    def options(self) -> dict[str, Any]:
        """See :meth:`KeyedSampler.options`."""
        return {
            **self.drawing._asdict(),
            "num_nodes": list(self.num_nodes_of_hops),
            "batch_dependency": self.batches_per_key,
            "layers": self.layers,
            "include_dst": self.include_dst,
            "nodes": list(self.graph.sizes),
            "edges": [relation.num_edges for relation in self.graph.relations],
            "strict_negatives": self.strict_negatives is not False,
        }

    def edge_bound(self, edge_type: EdgeType | None) -> int:
        """All of the user's edge ids are in [0, edge_bound)."""
        return self.graph.relations[0].id_bound

    def check_many(self, inputs: type[Inputs], how: str) -> None:
        """See :meth:`KeyedSampler.check_many`."""
        if not issubclass(inputs, NodeSamplerInput):
            self.executor.check_links(self.links)

    def prepare_links(
        self, edge_type: EdgeType | None, neg_sampling: NegativeSampling | None, links: Tensor | None
    ) -> None:
        """See :meth:`KeyedSampler.prepare_links`."""
        self.executor.check_links(self.links)
        if neg_sampling is not None and self.batches_per_key > 1:
            raise ValueError(
                f"batch_dependency={self.batches_per_key}: expected 1 with negatives, which are drawn for each batch"
            )
        self.links.prepare(edge_type, neg_sampling, links)

    # Sampling ########################################################################################################

    @on_host
    def sample_from_nodes(self, inputs: NodeSamplerInput, key: int | None = None) -> NeighborOutput:
        """Samples for ``inputs.node``; ``metadata`` is (input_id, time), as PyG's loaders expect."""
        return self._sample_one(inputs, None, key)

    @on_host
    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None, key: int | None = None
    ) -> Any:
        """Samples for the ends of links and their negatives; see :meth:`NeighborSampler.sample_from_edges`."""
        return self._sample_one(inputs, neg_sampling, key)

    @on_host
    def sample_many(
        self, inputs: Sequence[Inputs], keys: Sequence[int], neg_sampling: NegativeSampling | None = None
    ) -> list[Any]:
        """The samples of many batches. On a CPU, threads take whole batches; on a GPU, all are drawn at once."""
        requests = [self._request(entry, neg_sampling, key) for entry, key in zip(inputs, keys, strict=True)]
        outputs = self._sample_many([self._seeds_of(request.seeds, request.seed_time) for request in requests], keys)
        return [request.finish(out) for request, out in zip(requests, outputs, strict=True)]

    @on_host
    def sample(self, seeds: Any, seed_time: Any, key: int, exclude: None = None) -> NeighborOutput:
        """Samples for seeds.

        Args:
            seeds: ids of any integer type, shape [s]; a repeated one has its own row and its own copy of its edges.
            seed_time: None.
            key: 64 bits, from :func:`torch_gnnscale.random.batch_key`.
            exclude: None.

        Returns:
            PyG's output, with ``edge_weight`` and without metadata.
        """
        return self._sample_many([self._seeds_of(seeds, seed_time)], [key])[0]

    def _sample_one(self, inputs: Inputs, neg_sampling: NegativeSampling | None, key: int | None) -> NeighborOutput:
        key = draw_seed() if key is None else key
        request = self._request(inputs, neg_sampling, key)
        return request.finish(self.sample(request.seeds, request.seed_time, key))

    def _request(self, inputs: Inputs, neg_sampling: NegativeSampling | None, key: int) -> SeedRequest:
        """What is sampled for a batch."""
        if isinstance(inputs, AnchorInput):
            return inputs.lists.request(inputs, key, False)
        if isinstance(inputs, NodeSamplerInput):
            return request_of_nodes(inputs, self.graph)
        self.executor.check_links(self.links)
        return self.links.request(inputs, neg_sampling, key, False)

    def _seeds_of(self, seeds: Any, seed_time: Any) -> Tensor:
        if seed_time is not None:
            raise ValueError(f"seed_time: expected none with method={self.drawing.method!r}, found some")
        return as_ids("seeds", seeds)

    def _sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int]) -> list[NeighborOutput]:
        outputs = []
        keys = [batch_key(check_key(key), purpose=Purpose.LAYER) for key in keys]
        for sample in self.executor.sample_many(seeds, keys):
            out = as_output(sample, self.graph, "directional")
            assert isinstance(out, NeighborOutput)
            out.separate_sources = not self.include_dst
            outputs.append(out)
        return outputs
