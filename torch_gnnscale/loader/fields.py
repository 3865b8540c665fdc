"""The fields of a batch: copies of the data, whose attributes can be replaced; the fields by type; and the layout of
its edges (plain COO, EdgeIndex, or a transposed sparse adjacency matrix), and the papers' bipartite layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData

from .._private import column_pointer
from .._user import warn
from ..feature.attributes import stored_values, stores_of, with_fields
from ..ops.arguments import as_tensor, check_choice
from ..sampler.base import OWN_FIELDS
from ..sampler.graph import GraphTypes, end_types
from ..sampler.minibatch import MiniBatch, SampledEdges
from ..sampler.outputs import Layer, WeightedLayer
from ..topology import CSC

EdgeLayout = Literal["coo", "EdgeIndex", "sparse_csr", "SparseTensor"]
"""The layout of a batch's edges. ``coo``: ``edge_index``, a tensor. ``EdgeIndex``: ``edge_index``, an EdgeIndex with
column pointers. ``sparse_csr``: ``adj_t``, a torch sparse CSR tensor. ``SparseTensor``: ``adj_t``, of torch_sparse."""


class EdgeLayouts(dict[Any, EdgeLayout]):
    """The layout of a batch's edges by edge type; ``usual`` for the types that are no key."""

    def __init__(self, usual: EdgeLayout, both: Iterable[Any] = ()) -> None:
        super().__init__()
        self.usual = usual
        self.both = set(both)
        """The edge types whose batches have ``edge_index`` (COO) beside ``adj_t``, because the input has both."""

    def __missing__(self, key: Any) -> EdgeLayout:
        self[key] = self.usual
        return self.usual

    def __reduce__(self):
        return EdgeLayouts, (self.usual, self.both), None, None, iter(self.items())


def edge_layouts_of(stores: Iterable[tuple[Any, Any]], asked: EdgeLayout | None) -> EdgeLayouts:
    """By edge type, ``asked`` or, if None, the layout of ``adj_t`` in the input, beside ``edge_index`` if the input has
    both (as in PyG), or "coo".

    Warns where the input's ``adj_t`` has values for which ``asked`` has no place, or other edges than ``edge_index``.

    Args:
        stores: the input's storages of edges, each with its type; none of a pair of stores.
        asked: the loader's argument.
    """
    if asked is not None:
        check_choice("edge_layout", asked, get_args(EdgeLayout))
        if asked == "SparseTensor":
            _sparse_tensor()
        if asked in ("coo", "EdgeIndex"):
            for edge_type, store in stores:
                if has_own_values(store):
                    warn(
                        f"edge_layout={asked!r}: batches do not have the values of {adj_t_of(edge_type)}; add them to "
                        f"the data as edge_attr"
                    )
        return EdgeLayouts(asked)
    layouts = EdgeLayouts("coo")
    for edge_type, store in stores:
        if "adj_t" in store:
            layouts[edge_type] = "sparse_csr" if isinstance(store["adj_t"], Tensor) else "SparseTensor"
            if "edge_index" in store:
                layouts.both.add(edge_type)
                if not _same_edges(store):
                    warn(
                        f"{adj_t_of(edge_type)} and edge_index are not the same edges in the same order: batches have "
                        f"edges of adj_t, as in PyG, and the ids and attributes of edges count its entries"
                    )
    return layouts


def _same_edges(store: Any) -> bool:
    """Whether entry i of ``adj_t`` is edge i of ``edge_index``, for all i."""
    csc = CSC.from_adj_t(store["adj_t"])
    ends = torch.stack([csc.row.to(torch.int64), csc.col()])
    found = ends if csc.edge_id is None else ends[:, torch.argsort(csc.edge_id)]
    return torch.equal(found, as_tensor("edge_index", store["edge_index"]).to(torch.int64).cpu())


def _sparse_tensor() -> Any:
    try:
        from torch_sparse import SparseTensor
    except ImportError as error:
        raise ImportError("edge_layout='SparseTensor' needs torch-sparse: pip install torch-sparse") from error
    return SparseTensor


def laid_out(
    edge_index: Tensor, colptr: Tensor | None, size: tuple[int, int], layout: EdgeLayout, value: Tensor | None = None
) -> Any:
    """The edges in a layout.

    Args:
        edge_index: local COO: int64, shape [2, e]; sorted by destination for EdgeIndex and sparse_csr.
        colptr: edges colptr[i]..colptr[i+1]-1 lead to destination i: int64, at most num_dst + 1 entries; later
            destinations have no edges. Needed for EdgeIndex and sparse_csr.
        size: (number of sources, number of destinations).
        layout: the layout to make.
        value: values of ``adj_t``, shape [e, ...], on the device of the edges; None: ones; in a SparseTensor no values.
    """
    if layout == "coo":
        return edge_index
    num_src, num_dst = size
    if layout != "SparseTensor":
        assert colptr is not None
        pointer = torch.cat([colptr, colptr.new_full((num_dst + 1 - colptr.numel(),), edge_index.size(1))])
    if layout == "EdgeIndex":
        edges = EdgeIndex(edge_index, sparse_size=size, sort_order="col")
        edges._indptr = pointer
        return edges
    if layout == "sparse_csr":
        value = torch.ones(edge_index.size(1), device=edge_index.device) if value is None else value
        return torch.sparse_csr_tensor(pointer, edge_index[0], value, (num_dst, num_src), check_invariants=False)
    # Not flagged as sorted, as in PyG: the sources of a destination are in the order of drawing.
    return _sparse_tensor()(
        row=edge_index[1], col=edge_index[0], value=value, sparse_sizes=(num_dst, num_src), is_sorted=False,
        trust_data=True,
    )  # fmt: skip


SORTED = frozenset(("EdgeIndex", "sparse_csr"))
"""The layouts whose edges are sorted by destination."""


def edges_sorted(edges: SampledEdges, num_dst: int) -> SampledEdges:
    """The edges sorted by destination, stably, with column pointers for ``num_dst`` destinations."""
    col = edges.edge_index[1]
    order = torch.argsort(col, stable=True)
    ids, weight = (None if values is None else values[order] for values in (edges.edge_id, edges.weight))
    return SampledEdges(edges.edge_index[:, order], column_pointer(col[order], num_dst), ids, weight)


def has_own_values(store: Any) -> bool:
    """Whether the input's ``adj_t`` has values that are not all 1; False for one without data, on meta."""
    value = stored_values(store)
    return value is not None and not value.is_meta and not bool((value == 1).all())


def adj_t_of(edge_type: Any) -> str:
    """What messages call the ``adj_t`` of an edge type."""
    return "adj_t" if edge_type is None else f"adj_t of {edge_type}"


def put_layers(
    batch: MiniBatch, edges_of: Callable[..., Any], data: Data | HeteroData, layouts: EdgeLayouts
) -> None:  # fmt: skip
    """Puts ``layers`` into the Data, in the order in which a model computes them, and removes its edges.
    ``edges_of(edge_type, edges, layout)``: what :meth:`RowSource.edges` returns.

    ``e_id`` and attributes of edges keep the order of sampling: the ``num_sampled_edges[0]`` edges of hop 0 first.
    """
    types = batch.types
    if batch.num_nodes is None or batch.num_edges is None:
        raise ValueError("layers=True: expected a sample with sizes of hops, found one without")
    total = {of: list(counts or ()) for of, counts in zip(types.nodes, batch.num_nodes, strict=True)}
    if not batch.separate_sources:
        total = {of: list(accumulate(counts)) for of, counts in total.items()}
    hops: dict[Any, list[tuple[Any, ...]]] = {}
    for edge_type, found, counts in zip(types.edges, batch.edges, batch.num_edges, strict=True):
        if found.colptr is None:
            raise ValueError("layers=True: expected the sampler's own edges, found edges that were changed")
        src, dst = end_types(edge_type)
        column, edge, hops[edge_type] = 0, 0, []
        for hop, count in enumerate(counts or ()):
            size = (total[src][hop + 1], total[dst][hop])
            some = slice(edge, edge + count)
            edges = SampledEdges(
                found.edge_index[:, some],
                found.colptr[column : column + size[1] + 1] - edge,
                None if found.edge_id is None else found.edge_id[some],
                None if found.weight is None else found.weight[some],
            )
            column, edge = column + size[1], edge + count
            edges, value = edges_of(edge_type, edges, layouts[edge_type])
            laid = laid_out(edges.edge_index, edges.colptr, size, layouts[edge_type], value)
            hops[edge_type].append((laid, edges.edge_id, edges.weight))
        store = data if edge_type is None else data[edge_type]
        for name in ("edge_index", "adj_t"):
            if name in store:
                del store[name]
    weighted = any(edges.weight is not None for edges in batch.edges)
    layers = []
    for hop in reversed(range(max(map(len, total.values())) - 1)):
        laid, ids, weights = ({edge_type: part[hop][i] for edge_type, part in hops.items()} for i in range(3))
        sizes = {node_type: (of_type[hop + 1], of_type[hop]) for node_type, of_type in total.items()}
        fields = (laid, ids, sizes, weights) if weighted else (laid, ids, sizes)
        kind: Any = WeightedLayer if weighted else Layer
        layers.append(kind(*fields) if types.hetero else kind(*(field[None] for field in fields)))
    data.layers = layers


_COMPUTED = frozenset(("num_nodes",))
"""Fields that a subclass may define: batches have them where the data have."""
_OF_BATCH = ("_num_graphs", "_slice_dict", "_inc_dict")
"""What a Batch knows of its graphs beside its attributes."""
_POINTER = "ptr"


def edge_device(store: Any) -> torch.device:
    """The device of the input's edges, which a batch's edges get as in PyG; the CPU if the input has none."""
    edges = store.get("adj_t", store.get("edge_index"))
    if edges is None or isinstance(edges, np.ndarray):
        return torch.device("cpu")
    return edges.device if isinstance(edges, Tensor) else edges.device()


def plain_kind(kind: type) -> type:
    """Data or HeteroData: the one that a class is, or is derived from."""
    return HeteroData if issubclass(kind, HeteroData) else Data


def hidden_fields(kind: type) -> list[str]:
    """The fields of batches, by name, that a subclass of Data or HeteroData hides by properties, methods or values."""
    if (plain := plain_kind(kind)) is kind:
        return []
    known = plain.__mro__
    defined = {name for base in kind.__mro__ if base not in known for name in vars(base)}
    return sorted(defined & (OWN_FIELDS - _COMPUTED))


def as_batch(data: Data | HeteroData) -> Any:
    """A copy of the data whose attributes can be replaced: of their class or, if it hides fields of batches, a Data or
    HeteroData. That of a PyG Batch knows nothing of its graphs, whose nodes it has only some of."""
    batch = _copied(data)
    if hidden_fields(type(data)):  # Data's own __setattr__ would take the class for an attribute
        object.__setattr__(batch, "__class__", plain_kind(type(data)))
    if isinstance(data, Batch):
        for name in _OF_BATCH:
            batch.__dict__.pop(name, None)
        for store in batch.stores:
            store.pop(_POINTER, None)
    return batch


def _copied(data: Data | HeteroData) -> Any:
    """``copy.copy(data)``. PyG's own, of a HeteroData, sets each storage's attributes by a property of its class."""
    if type(data) is not HeteroData:
        return copy.copy(data)
    stores = stores_of(data, typed=True)
    return with_fields(data, stores, {of: store._mapping for of, store in stores.items()})


def storage_of(batch: Data | HeteroData, type_name: Any) -> Any:
    """The storage of a type."""
    if type_name is None:
        return batch._store
    stores = batch._edge_store_dict if isinstance(type_name, tuple) else batch._node_store_dict
    store = stores.get(type_name)
    return batch[type_name] if store is None else store


class FieldsByType(dict[Any, dict[str, Any]]):
    """The fields of a batch by node and edge type, to be read and set: PyG's storages take several times as long to do
    so. None is no value of a field (:func:`put`). ``types``: those of its sample."""

    def __init__(self, batch: Data | HeteroData, types: GraphTypes) -> None:
        self.data = batch
        self.of_graph: Any = batch._global_store if types.hetero else batch._store
        """The storage of what belongs to the whole graph, if nodes have types; else the only one."""
        for of in types.nodes if types.nodes == types.edges else (*types.nodes, *types.edges):
            self[of] = storage_of(batch, of)._mapping

    def __missing__(self, type_name: Any) -> dict[str, Any]:
        fields = self[type_name] = storage_of(self.data, type_name)._mapping
        return fields


def put(fields: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Sets fields, as PyG does: None removes one."""
    for name, value in values.items():
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = value


def put_edges(
    fields: dict[str, Any], edges: SampledEdges, value: Tensor | None, batch: MiniBatch, edge_type: Any,
    layouts: EdgeLayouts,
) -> None:  # fmt: skip
    """Puts sampled edges into the fields of their type, in its layout; ``value``: as of :func:`laid_out`."""
    layout = layouts[edge_type]
    if layout == "coo":
        laid: Any = edges.edge_index
    else:
        laid = laid_out(edges.edge_index, edges.colptr, batch.size(edge_type), layout, value)
    name, other = ("edge_index", "adj_t") if layout in ("coo", "EdgeIndex") else ("adj_t", "edge_index")
    if edge_type in layouts.both:
        fields[other] = edges.edge_index
    else:
        fields.pop(other, None)
    fields[name] = laid
