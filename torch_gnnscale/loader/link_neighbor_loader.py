"""PyG's LinkNeighborLoader over the fused sampler, the native gather and a pipeline."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.typing import EdgeType, InputEdges

from ..ops.arguments import check_tensor
from ..sampler import NeighborSampler
from ..sampler.fanouts import NumNeighborsLike
from ..sampler.inputs import ends_of
from ..sampler.links import ExcludeSeedEdges, LinkSampling, check_links
from ..topology import CSC
from .ahead import usual_prefetch
from .collate import Output, order_of
from .keyed_loader import KeyedLoader
from .layout import EdgeLayout


class LinkNeighborLoader(KeyedLoader, torch_geometric.loader.LinkNeighborLoader):
    """A drop-in :class:`torch_geometric.loader.LinkNeighborLoader`: the same arguments, batches and order of fields.

    A batch, its negatives included, is a pure function of (graph, links, options; ``seed``, epoch, number of the
    batch), as those of :class:`torch_gnnscale.NeighborLoader` are; order, state and pipeline are the same, too.

    Args:
        data: a Data, a HeteroData, or a pair of a FeatureStore and a GraphStore, ours or anybody's. Of renumbered
            stores (``GraphStore.order``), links, weights of negatives and ``n_id`` are still by the user's ids.
        num_neighbors: fanout of each hop; -1 takes all neighbors. In a heterogeneous graph also lists by edge type.
        edge_label_index: the links: sources and destinations, shape [2, m], or None for all edges. In a heterogeneous
            graph an edge type, or a pair of one and of links or None.
        edge_label: what is known of each link, shape [m, ...]. Binary negatives have label 0; if the smallest label is
            0, the labels of links grow by 1, as in PyG.
        edge_label_time: each link's time, shape [m]: its tree has only nodes, or edges, of times up to that.
        replace: draw with replacement.
        subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
        disjoint: every link has nodes of its own.
        temporal_strategy: ``uniform``, or ``last`` to draw the latest neighbors.
        neg_sampling: PyG's NegativeSampling, or what it is made of: ``binary`` or ``triplet``, how many, weights of
            sources and destinations. A weight of 0 is never drawn, and neither is a node later than its link.
        neg_sampling_ratio: the older way to ask for so many binary negatives a link.
        time_attr: an attribute of nodes or edges; to be given together with ``edge_label_time``.
        weight_attr: an attribute of edges: they are drawn in proportion to it.
        transform: called on each batch in the thread that iterates, in order.
        transform_sampler_output: called on each sampler output in the thread that prepares it.
        is_sorted: edges are sorted by destination.
        filter_per_worker: with ``num_workers > 0``, where features are gathered, as in PyG; by default not in the
            workers if a store has rows on a GPU.
        neighbor_sampler: a sampler to use instead of a new one; one that is not ours has randomness of its own.
        directed: PyG's older name of ``subgraph_type``.
        exclude_seed_edges: leave the edges between the ends of a batch's links out of its sample; with ``"reverse"``,
            those the other way round, too (see :class:`torch_gnnscale.NeighborSampler`).
        strict_negatives: no negative is an edge of the links' type, nor any of the loader's links; given links [2, m],
            nor one of these. Where all edges of that type have their reverses, links count both ways.
        seed: decides every draw and the order; by default drawn from ``generator`` or torch's own generator.
        prefetch: batches in preparation while the model trains, each by a thread (at most one a core); by default as
            for :class:`torch_gnnscale.NeighborLoader`.
        edge_layout: what a batch's edges are (see :data:`torch_gnnscale.loader.layout.EdgeLayout`).
        **kwargs: ``input_id``, ``custom_cls`` and the arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        TypeError, ValueError, IndexError: a malformed graph, fanout, link, label, time or weight; while iterating, a
            link that has no negative.
    """

    neg_sampling: NegativeSampling | None

    def __init__(
        self,
        data: Data | HeteroData | tuple[PyGFeatureStore, PyGGraphStore],
        num_neighbors: NumNeighborsLike,
        edge_label_index: InputEdges = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | str | dict | tuple | None = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable | None = None,
        transform_sampler_output: Callable | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        exclude_seed_edges: ExcludeSeedEdges = False,
        strict_negatives: bool | Tensor = False,
        seed: int | None = None,
        prefetch: int | None = None,
        edge_layout: EdgeLayout | None = None,
        **kwargs: Any,
    ) -> None:
        edge_type, links = _links_of(data, edge_label_index)
        for name, value in (("edge_label", edge_label), ("edge_label_time", edge_label_time)):
            if value is not None:
                check_tensor(name, value)
        made = neighbor_sampler is None
        if neighbor_sampler is None:
            if (edge_label_time is None) != (time_attr is None):
                given = ["is not set" if value is None else "is set" for value in (edge_label_time, time_attr)]
                raise ValueError(
                    f"'edge_label_time' {given[0]} while 'time_attr' {given[1]}: expected both for temporal sampling"
                )
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
                exclude_seed_edges=exclude_seed_edges,
                strict_negatives=(
                    {edge_type: strict_negatives}
                    if isinstance(strict_negatives, Tensor) and edge_type is not None
                    else strict_negatives
                ),
            )
        elif exclude_seed_edges is not False or strict_negatives is not False:
            raise ValueError(
                "exclude_seed_edges, strict_negatives: expected none beside a neighbor_sampler, which is made with them"
            )
        if isinstance(neighbor_sampler, NeighborSampler):
            check_links("edge_label_index", links, neighbor_sampler.graph, edge_type)
        if prefetch is None:
            drawn = NegativeSampling.cast(neg_sampling)
            each = 1 + float(neg_sampling_ratio or 0.0 if drawn is None else drawn.amount)
            src, dst = ends_of(edge_type)
            seeds = {src: each, dst: each} if src != dst else {src: 2 * each}
            prefetch = usual_prefetch(data, neighbor_sampler, seeds, kwargs)
        super().__init__(
            data,
            num_neighbors,
            edge_label_index=links if isinstance(data, Data) else (edge_type, links),
            edge_label=edge_label,
            edge_label_time=edge_label_time,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            time_attr="" if edge_label_time is not None else None,  # whether there are times, is known by now
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            num_inputs=lambda: links.size(1),
            seed=seed,
            prefetch=prefetch,
            edge_layout=edge_layout,
            **kwargs,
        )
        self.edge_label_index = edge_label_index
        for name, value in (("edge_label", edge_label), ("edge_label_time", edge_label_time)):
            if value is not None and len(value) != links.size(1):
                raise ValueError(f"{name}: expected one for each of {links.size(1)} links, found {len(value)}")
        if self.order is not None:
            links = self._renumber(links, strict_negatives)
        if isinstance(neighbor_sampler, NeighborSampler):
            edges = _type_and_links(edge_label_index)[1] is None
            neighbor_sampler.links.prepare(edge_type, self.neg_sampling, links if made and not edges else None)

    def _renumber(self, links: Tensor, strict_negatives: bool | Tensor) -> Tensor:
        """Replaces the user's ids and what is ordered by them by the stores'; returns the links in these."""
        assert self.order is not None
        old, new = self.order
        if isinstance(self._sampler, NeighborSampler):  # names wrong weights by the user's ids
            LinkSampling(self._sampler.graph, False, False).prepare(None, self.neg_sampling)
            if isinstance(strict_negatives, Tensor):
                self._sampler.strict_negatives = new[strict_negatives.to(torch.int64).cpu()]
        if self.neg_sampling is not None:
            self.neg_sampling = copy.copy(self.neg_sampling)
            for name in ("src_weight", "dst_weight"):
                if (weight := getattr(self.neg_sampling, name)) is not None:
                    setattr(self.neg_sampling, name, weight[old])
        links = new[links.to(torch.int64).cpu()]
        self.input_data.row, self.input_data.col = links
        return links

    def _draw(self, inputs: EdgeSamplerInput, key: int | None = None) -> Output:
        return self._sampler.sample_from_edges(
            inputs, neg_sampling=self.neg_sampling, **({} if key is None else {"key": key})
        )

    def _ids(self, inputs: EdgeSamplerInput) -> Tensor:
        return torch.stack([inputs.row, inputs.col])

    def _fingerprint(self) -> dict[str, Any]:
        negatives = self.neg_sampling
        return {
            **super()._fingerprint(),
            "negatives": None if negatives is None else [negatives.mode.value, negatives.amount],
        }

    def _label(self, batch: Data | HeteroData, out: Output) -> None:
        edge_type = self.input_data.input_type
        types = (None,) * 3 if edge_type is None else (edge_type, *ends_of(edge_type))
        store, src, dst = (batch if name is None else batch[name] for name in types)
        store["input_id"] = out.metadata[0]
        if self.neg_sampling is None or self.neg_sampling.is_binary():
            store["edge_label_index"], store["edge_label"], store["edge_label_time"] = out.metadata[1:]
            return
        src["src_index"], dst["dst_pos_index"], dst["dst_neg_index"] = out.metadata[1:4]
        src["seed_time"] = dst["seed_time"] = out.metadata[4]
        for name in ("edge_label_index", "edge_label_time"):  # those of the input
            if name in store:
                del store[name]


def _links_of(data: Any, edge_label_index: Any) -> tuple[EdgeType | None, Tensor]:
    """The edge type and the links, in the user's ids, that an argument stands for."""
    edge_type, links = _type_and_links(edge_label_index)
    if isinstance(data, Data):
        if edge_type is not None:
            raise ValueError(f"edge_label_index: expected links of a graph without edge types, found type {edge_type}")
        if links is None:
            links = _stored_links(data, (data.num_nodes, data.num_nodes))
    elif isinstance(data, HeteroData):
        if edge_type is None:
            raise ValueError("edge_label_index: expected an edge type, or a pair of one and of links, found neither")
        edge_type = data._to_canonical(*edge_type)
        if edge_type not in data.edge_types and links is None:
            raise ValueError(f"edge_label_index: expected an edge type of {data.edge_types}, found {edge_type}")
        if links is None:
            links = _stored_links(data[edge_type], [data[end].num_nodes for end in ends_of(edge_type)])
    elif links is None:
        rows, cols, _ = data[1].coo(None if edge_type is None else [edge_type])
        links = torch.stack([rows, cols] if edge_type is None else [rows[edge_type], cols[edge_type]])
        order = order_of(data)
        links = links if order is None else order.old[links]
    return edge_type, links.as_tensor() if isinstance(links, EdgeIndex) else links


def _type_and_links(edge_label_index: Any) -> tuple[tuple[str, ...] | None, Any]:
    """The edge type, perhaps in short, and the links that are given, if any."""
    if edge_label_index is None or isinstance(edge_label_index, Tensor):
        return None, edge_label_index
    given = (edge_label_index,) if isinstance(edge_label_index, str) else edge_label_index
    if isinstance(given, (tuple, list)):
        if given and all(isinstance(entry, str) for entry in given):
            return tuple(given), None
        if len(given) == 2 and (given[1] is None or isinstance(given[1], Tensor)):
            return (given[0],) if isinstance(given[0], str) else given[0], given[1]
    raise TypeError(
        f"edge_label_index: expected links, an edge type, or a pair of one and of links, found "
        f"{type(edge_label_index).__name__}"
    )


def _stored_links(store: Any, size: Any) -> Tensor:
    """All edges of a type, in the order of their ids."""
    if "edge_index" in store:
        return store["edge_index"]
    csc = CSC.from_storage(store, tuple(size))
    links = torch.stack([csc.row.to(torch.int64), csc.col()])
    return links if csc.edge_id is None else links[:, torch.argsort(csc.edge_id)]
