"""PyG's LinkNeighborLoader with the fused sampler, the native gather and prefetching threads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
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

from .._host import on_host
from .._warn import warn
from ..ops.arguments import as_tensor, check_tensor
from ..sampler.base import KeyedSampler, Output
from ..sampler.fanouts import NumNeighborsLike
from ..sampler.graph import end_types
from ..sampler.inputs import each_type
from ..sampler.links import ExcludeSeedEdges, check_links, check_weights
from ..sampler.methods import NEIGHBOR, make_sampler
from ..sampler.sources import check_data
from ..topology import CSC
from ..topology.numbering import Numbering
from . import checks
from .checks import warn_of_negatives, warn_of_options_beside_sampler
from .fields import fields_of, put
from .keyed_loader import KeyedLoader
from .layout import EdgeLayout
from .refusal import told_to_all
from .share import Shard, SharedOrder, Uneven
from .sharing import Owned


class LinkNeighborLoader(KeyedLoader, torch_geometric.loader.LinkNeighborLoader):
    """A drop-in :class:`torch_geometric.loader.LinkNeighborLoader`: the same arguments, batches and order of fields.

    batch = f(graph, links, options; ``seed``, epoch, number of the batch), negatives included. Order, state and
    prefetching are those of :class:`torch_gnnscale.NeighborLoader`.

    Args:
        data: a Data, a HeteroData, or a pair of a FeatureStore and a GraphStore, ours or foreign ones. With renumbered
            stores (``GraphStore.order``), links, weights of negatives and ``n_id`` are still by the user's ids.
        num_neighbors: fanout of each hop; -1 takes all neighbors. In a heterogeneous graph also a list per edge type.
        edge_label_index: the links (source, destination), shape [2, m], or None for all edges. In a heterogeneous graph
            an edge type, or a pair of an edge type and links or None.
        edge_label: a label per link, shape [m, ...]. Binary negatives have label 0; if the smallest label is 0, 1 is
            added to the labels of links, as in PyG.
        edge_label_time: a time per link, shape [m]. A node, or edge, is drawn for a link only if its time is at most
            the link's.
        replace: draw with replacement.
        subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
        disjoint: each link gets a tree of its own; trees share no nodes.
        temporal_strategy: ``uniform``, or ``last`` to draw the latest neighbors.
        neg_sampling: PyG's NegativeSampling or its arguments: ``binary`` or ``triplet``, negatives per link, weights of
            sources and destinations. Nodes of weight 0 and nodes later than the link are never drawn.
        neg_sampling_ratio: deprecated: binary negatives per link.
        time_attr: name of the times of nodes or edges; to be given together with ``edge_label_time``.
        weight_attr: name of the weights of edges: P(edge) is proportional to its weight.
        transform: called on each batch in the thread that iterates, in order; by worker processes that gather
            (``filter_per_worker``), there, where a random one draws from generators of their own.
        transform_sampler_output: called on each sampler output, in order, in the thread that iterates, which then also
            gathers the rows. Meanwhile torch's, Python's and NumPy's generators are seeded by the batch's key, so that
            random ones give equal batches for any ``prefetch``, ``bulk`` and workers. Where ranks read or sample
            together, other threads call it: there it must not keep state, nor draw but by ``generator=`` of its own.
        is_sorted: edges are sorted by destination already.
        filter_per_worker: with worker processes, whether they also gather features, as in PyG; False by default if a
            store has rows on a GPU, or rows that require grad.
        neighbor_sampler: the sampler to use instead of a new one; its own fanouts and options apply. One that is not a
            KeyedSampler makes its random draws itself.
        directed: deprecated; False means ``subgraph_type="induced"``.
        method: as in :class:`torch_gnnscale.NeighborLoader`.
        exclude_seed_edges: True: the edges between the ends of a batch's links are excluded from its sample;
            ``"reverse"``: their reverses, too (see :class:`torch_gnnscale.NeighborSampler`).
        strict_negatives: True: no negative is an edge of the links' type or a link of the loader. Links [2, m]: no
            negative is one of these either. If every edge of that type has its reverse, the reverses of links are not
            drawn either.
        seed: decides every draw and the order; by default drawn from ``generator`` or torch's own generator.
        prefetch: how many batches threads prepare while the model trains; the default is that of
            :class:`torch_gnnscale.NeighborLoader`.
        bulk: how many batches are sampled by one call, as in :class:`torch_gnnscale.NeighborLoader`; by default 1.
        edge_layout: the layout of a batch's edges (see :data:`torch_gnnscale.loader.layout.EdgeLayout`).
        shard, seed_order, uneven: as in :class:`torch_gnnscale.NeighborLoader`.
        **kwargs: ``input_id``, ``custom_cls`` and the arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        NotImplementedError: what only :class:`torch_gnnscale.NeighborLoader` has: a GPU, ``layers=True`` (pass a
            sampler that has it), ``split``.
        TypeError, ValueError, IndexError: a malformed graph, fanout, link, label, time or weight. While iterating: a
            link for which there is no negative.
    """

    inputs_type = EdgeSamplerInput
    neg_sampling: NegativeSampling | None

    @told_to_all
    @on_host
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
        method: str = NEIGHBOR,
        exclude_seed_edges: ExcludeSeedEdges = False,
        strict_negatives: bool | Tensor = False,
        seed: int | None = None,
        prefetch: int | None = None,
        bulk: int | None = None,
        edge_layout: EdgeLayout | None = None,
        shard: Shard = None,
        seed_order: SharedOrder | None = None,
        uneven: Uneven = "pad",
        **kwargs: Any,
    ) -> None:
        check_data(data)
        _pop_options_of_seeds(kwargs)
        edge_type, links = _links_of(data, edge_label_index)
        for name, value in (("edge_label", edge_label), ("edge_label_time", edge_label_time)):
            if value is not None:
                check_tensor(name, value)
        made = neighbor_sampler is None
        options: dict[str, Any] = {
            "subgraph_type": subgraph_type,
            "replace": replace,
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy,
            "time_attr": time_attr,
            "weight_attr": weight_attr,
            "is_sorted": is_sorted,
            "directed": directed,
        }
        if neighbor_sampler is None:
            if (edge_label_time is None) != (time_attr is None):
                given = ["is not set" if value is None else "is set" for value in (edge_label_time, time_attr)]
                raise ValueError(
                    f"'edge_label_time' {given[0]} while 'time_attr' {given[1]}: expected both for temporal sampling"
                )
            typed = isinstance(strict_negatives, Tensor) and edge_type is not None
            options |= {
                "exclude_seed_edges": exclude_seed_edges,
                "strict_negatives": {edge_type: strict_negatives} if typed else strict_negatives,
            }
            neighbor_sampler = make_sampler(method, data, num_neighbors, options)
            if isinstance(strict_negatives, Tensor) and (order := checks.common_numbering(data)) is not None:
                stored = _to_stored(order, strict_negatives, edge_type)
                neighbor_sampler.strict_negatives = stored if edge_type is None else {edge_type: stored}
        elif method != NEIGHBOR:
            raise ValueError(f"method={method!r}: expected none beside a neighbor_sampler")
        elif exclude_seed_edges is not False or strict_negatives is not False:
            raise ValueError(
                "exclude_seed_edges, strict_negatives: expected none beside a neighbor_sampler; pass them to it"
            )
        else:
            times = edge_label_time is not None
            warn_of_options_beside_sampler(neighbor_sampler, num_neighbors, options, times)
        if isinstance(neighbor_sampler, KeyedSampler):
            check_links("edge_label_index", links, edge_type, neighbor_sampler.node_bounds())
        for name, value in (("edge_label", edge_label), ("edge_label_time", edge_label_time)):
            if value is not None and value.shape[:1] != links.shape[1:]:
                found = len(value) if value.dim() else "a number"
                raise ValueError(f"{name}: expected one for each of {links.size(1)} links, found {found}")
        warn_of_negatives(neighbor_sampler, neg_sampling, neg_sampling_ratio)
        _warn_of_labels(edge_label, NegativeSampling("binary") if neg_sampling_ratio else neg_sampling)
        no_labels = edge_label is not None and edge_label.numel() == 0  # PyG's constructor asks for their minimum
        super().__init__(
            data,
            num_neighbors,
            neighbor_sampler,
            input_name="edge_label_index",
            inputs=links if isinstance(data, Data) else (edge_type, links),
            time_name="edge_label_time",
            time=edge_label_time,
            edge_label=None if no_labels else edge_label,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            num_inputs=lambda: links.size(1),
            seed=seed,
            prefetch=prefetch,
            bulk=bulk,
            edge_layout=edge_layout,
            shard=shard,
            seed_order=seed_order,
            uneven=uneven,
            **kwargs,
        )
        self.edge_label_index = edge_label_index
        if no_labels:
            if self.neg_sampling is not None and self.neg_sampling.is_triplet():
                raise ValueError("edge_label: expected none with negatives in triplets, found some")
            self.input_data.label = edge_label
        if self.order is not None:
            links = _to_stored(self.order, links, edge_type)
            self.input_data.row, self.input_data.col = links
            bounds = neighbor_sampler.node_bounds() if isinstance(neighbor_sampler, KeyedSampler) else None
            self._renumber_weights(self.order, edge_type, bounds or {})
        if isinstance(neighbor_sampler, KeyedSampler):
            all_edges = _type_and_links(edge_label_index)[1] is None
            known = links if made and not all_edges else None
            neighbor_sampler.prepare_links(edge_type, self.neg_sampling, known)
        self._meet_others()

    def _renumber_weights(self, order: Numbering, edge_type: EdgeType | None, num_nodes: Mapping[Any, int]) -> None:
        """Reorders the weights of negatives from the user's ids to the stores'. ``num_nodes``: by type, if known."""
        if self.neg_sampling is None:
            return
        self.neg_sampling = copy.copy(self.neg_sampling)
        for name, node_type in zip(("src_weight", "dst_weight"), end_types(edge_type), strict=True):
            if (weight := getattr(self.neg_sampling, name)) is not None:
                size = num_nodes.get(node_type, len(weight))
                check_weights(name, weight, size)  # here, so that the error names the user's id
                stored = torch.empty_like(weight)
                stored[order.to_stored(torch.arange(len(weight)), node_type)] = weight
                setattr(self.neg_sampling, name, stored)

    def _owned_ids(self) -> Owned:
        return [(entry.col, end_types(entry.input_type)[1]) for entry in each_type(self.input_data)]

    def _fingerprint(self) -> dict[str, Any]:
        negatives = self.neg_sampling
        return {
            **super()._fingerprint(),
            "negatives": None if negatives is None else [negatives.mode.value, negatives.amount],
        }

    def _label(self, batch: Data | HeteroData, out: Output) -> None:
        label_links(self, batch, out)


def label_links(loader: Any, batch: Data | HeteroData, out: Output) -> None:
    """Puts the fields of the links into a batch. ``loader``: of ours, or PyG's LinkLoader."""
    edge_type = loader.input_data.input_type
    types = (None,) * 3 if edge_type is None else (edge_type, *end_types(edge_type))
    links, src, dst = (fields_of(batch, name) for name in types)
    put(links, {"input_id": out.metadata[0]})
    if loader.neg_sampling is None or loader.neg_sampling.is_binary():
        put(links, dict(zip(("edge_label_index", "edge_label", "edge_label_time"), out.metadata[1:], strict=True)))
        return
    src["src_index"], dst["dst_pos_index"], dst["dst_neg_index"] = out.metadata[1:4]
    for end in (src, dst):
        put(end, {"seed_time": out.metadata[4]})
    for name in ("edge_label_index", "edge_label_time"):  # attributes of the input
        links.pop(name, None)


def _warn_of_labels(edge_label: Tensor | None, neg_sampling: Any) -> None:
    """Warns if links have the label that binary negatives get, 0: as in PyG, 1 is added to labels only if 0 is the
    smallest of them."""
    if edge_label is None or edge_label.numel() == 0 or neg_sampling is None:
        return
    if NegativeSampling.cast(neg_sampling).is_binary() and bool((edge_label < 0).any() & (edge_label == 0).any()):
        warn(
            f"edge_label: links of label 0 look like negatives, which have label 0: 1 is not added to the labels, as "
            f"in PyG, because the smallest is {edge_label.min().item()}; pass labels of at least 0"
        )


def _pop_options_of_seeds(options: dict[str, Any]) -> None:
    """Removes arguments that only NeighborLoader has. Raises NotImplementedError unless they have the values by which
    nothing is asked for."""
    if (device := options.pop("device", None)) is not None and str(device) != "cpu":
        raise NotImplementedError(f"links with device={str(device)!r} are not implemented; use device='cpu'")
    for name in ("graph_on_gpu", "graph_on_peers"):
        if (budget := options.pop(name, None)) not in (None, (), []):
            raise NotImplementedError(f"links with {name}={budget!r} are not implemented; they are sampled on the CPU")
    if options.pop("layers", False):
        raise NotImplementedError(
            "layers=True is not an argument of LinkNeighborLoader; pass neighbor_sampler=NeighborSampler(data, "
            "num_neighbors, layers=True)"
        )


def _links_of(data: Any, edge_label_index: Any) -> tuple[EdgeType | None, Tensor]:
    """(edge type, links in the user's ids) for a value of ``edge_label_index``."""
    edge_type, links = _type_and_links(edge_label_index)
    if isinstance(data, Data):
        _check_type(edge_type, links, [None])
        if links is None:
            links = _stored_links(data, (data.num_nodes, data.num_nodes))
    elif isinstance(data, HeteroData):
        edge_type = None if edge_type is None else data._to_canonical(*edge_type)
        _check_type(edge_type, links, data.edge_types)
        if links is None:
            links = _stored_links(data[edge_type], [data[end].num_nodes for end in end_types(edge_type)])
    else:
        _check_type(edge_type, links, list(dict.fromkeys(attr.edge_type for attr in data[1].get_all_edge_attrs())))
    if links is None:
        rows, cols, _ = data[1].coo(None if edge_type is None else [edge_type])
        links = torch.stack([rows, cols] if edge_type is None else [rows[edge_type], cols[edge_type]])
        order = checks.common_numbering(data)
        if order is not None:
            users = [order.to_user(ids, t) for ids, t in zip(links, end_types(edge_type), strict=True)]
            if any(ids is None for ids in users):
                raise NotImplementedError("edge_label_index=None over these stores is not implemented; give the links")
            links = torch.stack(users)  # type: ignore[arg-type]
    return edge_type, links.as_tensor() if isinstance(links, EdgeIndex) else links


def _check_type(edge_type: EdgeType | None, links: Any, known: list) -> None:
    """Raises ValueError for a type of links that a graph of the ``known`` edge types does not have. Links that are
    given may be of an edge type without edges."""
    if known == [None]:
        if edge_type is not None:
            raise ValueError(f"edge_label_index: expected links of a graph without edge types, found type {edge_type}")
    elif edge_type is None:
        raise ValueError("edge_label_index: expected an edge type, or a pair of an edge type and links, found neither")
    elif links is None and edge_type not in known:
        raise ValueError(f"edge_label_index: expected an edge type of {known}, found {edge_type}")


def _type_and_links(edge_label_index: Any) -> tuple[tuple[str, ...] | None, Any]:
    """(edge type as given, possibly shortened, or None; links as given or None)."""
    if edge_label_index is None or isinstance(edge_label_index, Tensor):
        return None, edge_label_index
    given = (edge_label_index,) if isinstance(edge_label_index, str) else edge_label_index
    if isinstance(given, (tuple, list)) and any(isinstance(entry, Tensor) for entry in given[:1]):
        raise TypeError(
            f"edge_label_index: expected links in a tensor of shape (2, num_links), found a {type(given).__name__} of "
            f"tensors; use torch.stack"
        )
    if isinstance(given, (tuple, list)):
        if given and all(isinstance(entry, str) for entry in given):
            return tuple(given), None
        if len(given) == 2 and (given[1] is None or isinstance(given[1], Tensor)):
            return (given[0],) if isinstance(given[0], str) else given[0], given[1]
    raise TypeError(
        f"edge_label_index: expected links, an edge type, or a pair of an edge type and links, found "
        f"{type(edge_label_index).__name__}"
    )


def _to_stored(order: Numbering, links: Tensor, edge_type: EdgeType | None) -> Tensor:
    """Links [2, m], converted from the user's ids to the stores' ids."""
    ends = zip(links.to(torch.int64).cpu(), end_types(edge_type), strict=True)
    return torch.stack([order.to_stored(ids, node_type) for ids, node_type in ends])


def _stored_links(store: Any, size: Any) -> Tensor:
    """All edges of a type in the order of their ids: shape [2, E]."""
    if "edge_index" in store:
        return as_tensor("edge_index", store["edge_index"])
    csc = CSC.from_storage(store, tuple(size))
    links = torch.stack([csc.row.to(torch.int64), csc.col()])
    return links if csc.edge_id is None else links[:, torch.argsort(csc.edge_id)]
