"""PyG's NeighborLoader over the fused sampler, the native gather and a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.typing import InputNodes

from .. import ops
from ..sampler import NeighborSampler
from ..sampler.neighbor import as_ids, not_implemented
from . import collate
from .keyed_loader import KeyedLoader


class NeighborLoader(KeyedLoader, torch_geometric.loader.NeighborLoader):
    """A drop-in :class:`torch_geometric.loader.NeighborLoader`: the same arguments, batches and order of fields.

    A batch is a pure function of (graph, seeds, fanouts; ``seed``, epoch, number of the batch): the same on every run,
    with any ``prefetch`` and ``num_workers``. Every ``iter()`` is the next epoch.

    Args:
        data: a Data, or a pair of a FeatureStore and a homogeneous GraphStore, ours or anybody's. Tensors of a Data or
            of our stores are gathered ahead, in the pipeline's threads; a foreign store is asked in the thread that
            iterates.
        num_neighbors: fanout of each hop; -1 takes all neighbors, as does one that no node has as many of.
        input_nodes: seeds: ids, a mask, or None for all nodes. They may repeat; each has its own row.
        input_time: not implemented yet.
        replace: draw with replacement.
        subgraph_type: ``directional``; the others are not implemented yet.
        disjoint: not implemented yet.
        temporal_strategy: of no effect without times, which are not implemented yet.
        time_attr: not implemented yet.
        weight_attr: not implemented yet.
        transform: called on each batch in the thread that iterates, in order.
        transform_sampler_output: called on each sampler output in the thread that prepares it.
        is_sorted: ``data.edge_index`` is sorted by destination.
        filter_per_worker: with ``num_workers > 0``, where features are gathered, as in PyG.
        neighbor_sampler: a sampler to use instead of a new one; one that is not ours has randomness of its own.
        directed: PyG's older name of ``subgraph_type``.
        seed: decides every draw and the order; by default drawn from ``generator`` or torch's own generator.
        prefetch: batches in preparation while the model trains, each by a thread (at most one a core); no effect with a
            ``neighbor_sampler`` that is not ours.
        edge_layout: what a batch's edges are (see :data:`torch_gnnscale.loader.collate.EdgeLayout`); by default as
            the input's.
        **kwargs: ``input_id``, ``custom_cls`` and the arguments of :class:`torch.utils.data.DataLoader`.
            ``num_workers=0``, the default, is the fast way.

    Raises:
        NotImplementedError: an argument that is not implemented yet.
        TypeError, ValueError, IndexError: a malformed graph, fanout or seed.
    """

    def __init__(
        self,
        data: Data | tuple[PyGFeatureStore, PyGGraphStore],
        num_neighbors: NumNeighbors | list[int],
        input_nodes: InputNodes = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable | None = None,
        transform_sampler_output: Callable | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        seed: int | None = None,
        prefetch: int = 4,
        edge_layout: collate.EdgeLayout | None = None,
        **kwargs: Any,
    ) -> None:
        if input_time is not None:
            raise not_implemented("input_time", input_time)
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler(
                data,
                num_neighbors,
                subgraph_type=subgraph_type,
                replace=replace,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                time_attr=time_attr,
                weight_attr=weight_attr,
                is_sorted=is_sorted,
                directed=directed,
            )
        super().__init__(
            data,
            num_neighbors,
            input_nodes=input_nodes,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            num_inputs=lambda: torch_geometric.loader.utils.get_input_nodes(data, input_nodes)[1].numel(),
            seed=seed,
            prefetch=prefetch,
            edge_layout=edge_layout,
            **kwargs,
        )
        if isinstance(neighbor_sampler, NeighborSampler):
            self._check_seeds(neighbor_sampler.csc.num_dst)

    def _check_seeds(self, num_nodes: int) -> None:
        """Raises unless all input nodes are ids of the graph; names them by their place in ``input_nodes``."""
        nodes = as_ids("input_nodes", self.input_data.node)
        if nodes.dim() != 1:
            raise ValueError(f"input_nodes: expected a vector or a mask, found shape {tuple(nodes.shape)}")
        if (at := ops.first_outside(nodes, num_nodes)) < 0:
            return
        given = self.input_nodes[1] if isinstance(self.input_nodes, tuple) else self.input_nodes
        if isinstance(given, Tensor) and given.dtype == torch.bool:
            raise IndexError(
                f"input_nodes[{int(nodes[at])}] is set: expected a mask of {num_nodes} nodes, found one of {len(given)}"
            )
        raise IndexError(f"input_nodes[{at}] = {int(nodes[at])} is out of range: expected nodes in [0, {num_nodes})")

    def _draw(self, inputs: NodeSamplerInput, key: int | None = None) -> SamplerOutput:
        return self._sampler.sample_from_nodes(inputs, **({} if key is None else {"key": key}))

    def _ids(self, inputs: NodeSamplerInput) -> Tensor:
        return inputs.node

    def _label(self, batch: Data, out: SamplerOutput) -> None:
        batch.input_id, batch.seed_time = out.metadata
        batch.batch_size = out.metadata[0].size(0)
