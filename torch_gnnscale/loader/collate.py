"""From a sampler's output to the Data or HeteroData that a model gets.

Nodes and edges are told apart by type, None standing for the only one of a homogeneous graph.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from ..feature.feature_store import FeatureStore, KnownAttr, all_attrs
from ..feature.tiered_store import TieredFeatureStore
from ..sampler import HeteroNeighborOutput, Layer, NeighborOutput
from ..sampler.relations import Relation
from ..topology.reorder import Order
from .layout import EdgeLayout, edge_device, laid_out, set_edges, sort_edges, stored_values
from .rows import Ids, rows, stores_of

_NO_IDS = torch.empty(0, dtype=torch.int64)

Output: TypeAlias = SamplerOutput | HeteroSamplerOutput


class Known(NamedTuple):
    """What is known of the ids in the output of a sampler of ours."""

    nodes: dict[Any, int]
    """By node type, how many there are."""
    edges: dict[Any, Relation]


# A sampler's output by type ##########################################################################################


class Edges(NamedTuple):
    """The sampled edges of one type."""

    edge_index: Tensor
    colptr: Tensor | None
    edge_id: Tensor | None


def by_type(out: Output, value: Any) -> dict:
    """A field of the output by type."""
    if isinstance(out, HeteroSamplerOutput):
        return value or {}
    return {} if value is None else {None: value}


def ends_of(out: Output) -> dict[Any, tuple[Tensor, Tensor]]:
    """The sampler's own tensors of sources and destinations, for :func:`edges_of` to know them again."""
    col = by_type(out, out.col)
    return {edge_type: (row, col[edge_type]) for edge_type, row in by_type(out, out.row).items()}


def edges_of(out: Output, drawn: dict, permutation: Any, layouts: dict[Any, EdgeLayout]) -> dict[Any, Edges]:
    """The edges of each type, with the user's ids; sorted by destination where their layout needs it.

    Args:
        out: the output, perhaps changed by the user since ``drawn`` was taken from it.
        drawn: what :func:`ends_of` gave.
        permutation: what leads from the output's edge ids to the user's, if anything does.
        layouts: by edge type.
    """
    keeps = isinstance(out, (NeighborOutput, HeteroNeighborOutput))
    colptrs, indices = (by_type(out, out.colptr), by_type(out, out.edge_index)) if keeps else ({}, {})
    ids, permutations, nodes = by_type(out, out.edge), by_type(out, permutation), by_type(out, out.node)
    found = {}
    for edge_type, (row, col) in ends_of(out).items():
        edge_id, order = ids.get(edge_type), permutations.get(edge_type)
        if edge_id is not None and order is not None:
            edge_id = order[edge_id.to(torch.int64)]
        ends = drawn.get(edge_type)
        if edge_type in colptrs and ends is not None and row is ends[0] and col is ends[1]:
            found[edge_type] = Edges(indices[edge_type], colptrs[edge_type], edge_id)
        elif layouts[edge_type] in ("EdgeIndex", "sparse_csr"):
            num_dst = len(nodes.get(edge_type and edge_type[-1], _NO_IDS))
            found[edge_type] = Edges(*sort_edges(torch.stack([row, col]), num_dst, edge_id))
        else:
            found[edge_type] = Edges(torch.stack([row, col]), None, edge_id)
    return found


# Batches #############################################################################################################


def fill(
    data: Any, out: Output, drawn: dict, permutation: Any, layouts: dict[Any, EdgeLayout], custom_cls: Any = None,
    layers: bool = False, order: Order | None = None, device: torch.device | None = None,
    known: Known | None = None,
) -> Data | HeteroData:  # fmt: skip
    """A batch with what was sampled, in PyG's order of fields; what is known of its inputs is still to come.

    ``order`` is what :func:`order_of` gives for the stores. Edges are on ``device``, by default where those of the
    input are; ``known`` if the output's ids are those of a sampler of ours.
    """
    if not isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
        raise TypeError(f"sampler output: expected PyG's SamplerOutput, found {type(out).__name__}")
    edges = edges_of(out, drawn, permutation, layouts)
    whole = None if layers else layouts
    if isinstance(data, (Data, HeteroData)):
        batch = from_data(data, out, edges, whole, device, known)
    else:
        feature_store, graph_store = data
        batch = from_stores(feature_store, graph_store, out, edges, whole, custom_cls, known.nodes if known else {})
    if layers:
        put_layers(batch, data, out, edges, layouts, device)
    add_ids(batch, out, edges, order)
    return batch


def _filter(
    store: Any, out_store: Any, node: Tensor, edge_id: Tensor | None, num_nodes: int | None, relation: Relation | None
) -> None:
    """Reduces the attributes of nodes and edges to the sampled ones; the edges are still the input's.

    Nodes are known to be below ``num_nodes``, and edges to be of ``relation``, if these are given.
    """
    parent, nodes, edges = store._parent(), Ids(node), None if edge_id is None else Ids(edge_id)
    for key, value in store.items():
        if key == "num_nodes":
            out_store.num_nodes = node.numel()
        elif key in ("edge_index", "adj_t"):
            continue
        elif store.is_node_attr(key):
            out_store[key] = rows(value, nodes, parent.__cat_dim__(key, value, store), num_nodes)
        elif store.is_edge_attr(key):
            dim = parent.__cat_dim__(key, value, store)
            below = None if relation is None else relation.num_ids
            out_store[key] = None if edges is None else rows(value, edges, dim, below)


def drop_caches(batch: Data | HeteroData) -> None:
    """Ends the filling of a batch: what :func:`from_data` left in it would be shared by its deep copies."""
    for store in batch.stores:
        store.__dict__.pop("_cached_attr", None)


def from_data(
    data: Data | HeteroData, out: Output, edges: dict[Any, Edges], layouts: dict | None, device: torch.device | None,
    known: Known | None,
) -> Data | HeteroData:  # fmt: skip
    """The input's attributes at the sampled nodes and edges, edges in these layouts; types that were not sampled have
    none. Without layouts, edges are those of the input. ``device`` and ``known``: see :func:`fill`."""
    num_nodes, relations = known or Known({}, {})
    batch = copy.copy(data)
    nodes = by_type(out, out.node)
    for type_name, store, has_nodes, has_edges in stores_of(data):
        out_store = _store_of(batch, type_name)
        # PyG looks for it with each field that is put, and catches an AttributeError where it is missing.
        out_store._cached_attr = defaultdict(set)
        node = nodes.setdefault(type_name, _NO_IDS) if has_nodes else _NO_IDS
        if has_edges and type_name not in edges:
            edges[type_name] = Edges(_NO_IDS.expand(2, 0), torch.zeros(1, dtype=torch.int64), _NO_IDS)
        edge_id = edges[type_name].edge_id if has_edges else None
        _filter(store, out_store, node, edge_id, num_nodes.get(type_name), relations.get(type_name))
        if layouts is not None and has_edges and (type_name is None or "edge_index" in store or "adj_t" in store):
            layout = layouts[type_name]
            found = on_device(store, edges[type_name], device)
            value = _values(store, found, layout, relations.get(type_name))
            laid = laid_out(found.edge_index, found.colptr, _size(nodes, type_name), layout, value)
            set_edges(out_store, laid, layout)
    return batch


def _values(store: Any, edges: Edges, layout: EdgeLayout, relation: Relation | None = None) -> Tensor | None:
    """The values of the input's ``adj_t`` at the sampled edges, if it has any and the layout takes them."""
    value = stored_values(store) if layout in ("sparse_csr", "SparseTensor") else None
    if value is None or edges.edge_id is None:
        return None
    below = None if relation is None else relation.num_ids
    return rows(value, Ids(edges.edge_id), 0, below).to(edges.edge_index.device)


def on_device(store: Any, edges: Edges, device: torch.device | None) -> Edges:
    """The edges on a device, by default where those of the input are; their ids stay where they were."""
    device = edge_device(store) if device is None else device
    return Edges(edges.edge_index.to(device), edges.colptr if edges.colptr is None else edges.colptr.to(device),
                 edges.edge_id)  # fmt: skip


def from_stores(
    feature_store: Any, graph_store: Any, out: Output, edges: dict[Any, Edges], layouts: dict | None, custom_cls: Any,
    known: dict[Any, int],
) -> Data | HeteroData:  # fmt: skip
    """All tensors of a FeatureStore at the sampled nodes and edges; ids of the types in ``known`` are below that.

    A tensor whose group is a tuple is one of edges: of that type, or of the only one of a homogeneous graph.
    """
    hetero = isinstance(out, HeteroSamplerOutput)
    batch = (HeteroData() if hetero else Data()) if custom_cls is None else custom_cls()
    nodes, required = by_type(out, out.node), []
    ids = {node_type: Ids(node) for node_type, node in nodes.items()}
    ours = feature_store._tensors if type(feature_store) in (FeatureStore, TieredFeatureStore) else {}  # no subclass's

    def put_edges(store: Any, edge_type: Any) -> None:
        if layouts is not None:
            found, layout = edges[edge_type], layouts[edge_type]
            set_edges(store, laid_out(found.edge_index, found.colptr, _size(nodes, edge_type), layout), layout)

    if not hetero:
        put_edges(batch, None)
    for attr in all_attrs(feature_store):
        of_edges = isinstance(attr.group_name, tuple)
        if of_edges:
            found = edges.get(attr.group_name if hetero else None)
            attr.index = None if found is None else found.edge_id
        else:
            node_type = attr.group_name if hetero else None
            attr.index = nodes.get(node_type)
            tensor = ours.get((attr.group_name, attr.attr_name))
            if node_type in known and attr.index is not None and tensor is not None:
                there = ids[node_type].on(tensor.device)
                attr = KnownAttr(attr.group_name, attr.attr_name, there, known[node_type])
        if attr.index is not None:
            required.append(attr)
            if not of_edges:
                (batch[attr.group_name] if hetero else batch).num_nodes = attr.index.numel()
    values = list(zip(required, feature_store.multi_get_tensor(required), strict=True))
    for attr, value in values:
        if not (hetero and isinstance(attr.group_name, tuple)):
            (batch[attr.group_name] if hetero else batch)[attr.attr_name] = value
    if hetero:
        for edge_type in dict.fromkeys(attr.edge_type for attr in graph_store.get_all_edge_attrs()):
            if edge_type in edges:
                put_edges(batch[edge_type], edge_type)
        for attr, value in values:
            if isinstance(attr.group_name, tuple):
                batch[attr.group_name][attr.attr_name] = value
    return batch


def _size(nodes: dict, edge_type: Any) -> tuple[int, int]:
    src, dst = (None, None) if edge_type is None else (edge_type[0], edge_type[-1])
    return len(nodes.get(src, _NO_IDS)), len(nodes.get(dst, _NO_IDS))


def order_of(data: Any) -> Order | None:
    """How a pair of stores numbers the nodes, if not as the user does; ValueError if the two disagree."""
    if isinstance(data, (Data, HeteroData)):
        return None
    orders = (getattr(store, "order", None) for store in data)
    features, graph = (order if isinstance(order, Order) else None for order in orders)  # others may use the name
    if features is not graph and (features is None or graph is None or not torch.equal(features.old, graph.old)):
        names = ["the user's" if order is None else "another" for order in (features, graph)]
        raise ValueError(
            f"data: expected features and graph in one order of nodes, found {names[0]} and {names[1]}; "
            f"use GraphStore.from_data(data, order=features.order)"
        )
    return graph


def add_ids(batch: Data | HeteroData, out: Output, edges: dict[Any, Edges], order: Order | None) -> None:
    """The fields that tell what was sampled, in PyG's order, unless the user has fields of these names.

    Node ids are the user's, to which ``order`` leads back from the stores'.
    """
    for node_type, node in by_type(out, out.node).items():
        store = _store_of(batch, node_type)
        if "n_id" not in store:
            store["n_id"] = node if order is None else order.old[node]
    for edge_type, found in edges.items():
        store = _store_of(batch, edge_type)
        if found.edge_id is not None and "e_id" not in store:
            store["e_id"] = found.edge_id.to(torch.int64)
    for name, value in (
        ("batch", out.batch),
        ("num_sampled_nodes", out.num_sampled_nodes),
        ("num_sampled_edges", out.num_sampled_edges),
    ):
        for type_name, entry in by_type(out, value).items():
            _store_of(batch, type_name)[name] = entry
    if out.orig_row is not None and out.orig_col is not None:
        cols = by_type(out, out.orig_col)
        for edge_type, row in by_type(out, out.orig_row).items():
            store = _store_of(batch, edge_type)
            store["_orig_edge_index"] = torch.stack([row, cols[edge_type]])


def _store_of(batch: Data | HeteroData, type_name: Any) -> Any:
    """The storage of a type: whether it has a field costs less to ask of it than of a Data."""
    return batch._store if type_name is None else batch[type_name]


# Layers ##############################################################################################################


def put_layers(
    batch: Data | HeteroData, data: Any, out: Output, edges: dict[Any, Edges], layouts: dict[Any, EdgeLayout],
    device: torch.device | None,
) -> None:  # fmt: skip
    """Puts ``layers`` into the batch, the one that a model computes first in front, and takes the edges out of it.

    Attributes of edges and ``e_id`` stay in the order of hops, from the seeds outward: ``num_sampled_edges`` many each.
    """
    is_data = isinstance(data, (Data, HeteroData))
    stores = {name: store for name, store, _, of_edges in stores_of(data) if of_edges} if is_data else {}
    nodes = {t: torch.tensor(n).cumsum(0).tolist() for t, n in by_type(out, out.num_sampled_nodes).items()}
    counts = by_type(out, out.num_sampled_edges)
    hops: dict[Any, list[tuple[Any, Tensor | None]]] = {}
    for edge_type, found in edges.items():
        if found.colptr is None:
            raise ValueError("layers=True: expected edges as they were sampled, found some that were changed")
        src, dst = (None, None) if edge_type is None else (edge_type[0], edge_type[-1])
        column, edge, hops[edge_type] = 0, 0, []
        for hop, count in enumerate(counts[edge_type]):
            size = (nodes[src][hop + 1], nodes[dst][hop])
            part = Edges(
                found.edge_index[:, edge : edge + count],
                found.colptr[column : column + size[1] + 1] - edge,
                None if found.edge_id is None else found.edge_id[edge : edge + count],
            )
            column, edge = column + size[1], edge + count
            value = None
            if edge_type in stores:
                part = on_device(stores[edge_type], part, device)
                value = _values(stores[edge_type], part, layouts[edge_type])
            laid = laid_out(part.edge_index, part.colptr, size, layouts[edge_type], value)
            hops[edge_type].append((laid, part.edge_id))
        store = batch if edge_type is None else batch[edge_type]
        for name in ("edge_index", "adj_t"):
            if name in store:
                del store[name]
    layers = []
    for hop in reversed(range(max(map(len, nodes.values())) - 1)):
        sizes = {node_type: (total[hop + 1], total[hop]) for node_type, total in nodes.items()}
        laid_by_type, ids = ({edge_type: part[hop][i] for edge_type, part in hops.items()} for i in (0, 1))
        fields = (laid_by_type, ids, sizes)
        layers.append(Layer(*fields) if isinstance(batch, HeteroData) else Layer(*(field[None] for field in fields)))
    batch.layers = layers
