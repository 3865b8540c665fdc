"""The fields of a batch: copies of the data, whose attributes can be replaced, and the fields by type."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from ..sampler.base import OWN_FIELDS
from ..sampler.graph import GraphTypes
from ..sampler.minibatch import MiniBatch, SampledEdges
from .edge_layouts import EdgeLayouts, laid_out

_COMPUTED = frozenset(("num_nodes",))
"""Fields that a subclass may define: batches have them where the data have."""
_OF_BATCH = ("_num_graphs", "_slice_dict", "_inc_dict")
"""What a Batch knows of its graphs beside its attributes."""
_POINTER = "ptr"
OF_GRAPH = object()
"""Stands for a type in the keys of attributes of a whole HeteroData."""


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


def stores_of(data: Data | HeteroData, typed: bool) -> dict[Any, Any]:
    """The storages by type; that of a whole HeteroData is the last."""
    if not typed:
        return {None: data._store}
    return {**data._node_store_dict, **data._edge_store_dict, OF_GRAPH: data._global_store}


def with_fields(data: Data | HeteroData, stores: Mapping[Any, Any], fields: Mapping[Any, dict[str, Any]]) -> Any:
    """A copy of the data that has copies of these fields, by type, in copies of these storages of its; those of a whole
    HeteroData are the last. Unlike ``copy.copy``, it may be made while another thread changes the data."""
    copied = data.__class__.__new__(data.__class__)
    own = copied.__dict__
    own.update(data.__dict__)
    parent = weakref.ref(copied)

    def put(into: dict[Any, Any], key: Any, store: Any, mapping: dict[str, Any]) -> None:
        made = into[key] = store.__class__.__new__(store.__class__)
        of_store = made.__dict__
        of_store.update(store.__dict__, _mapping=mapping.copy(), _parent=parent)
        of_store.pop("_cached_attr", None)  # which attributes have rows: of the data's own

    if None in fields:  # without types
        put(own, "_store", stores[None], fields[None])
        return copied
    *types, of_graph = fields
    put(own, "_global_store", stores[of_graph], fields[of_graph])
    own["_node_store_dict"], own["_edge_store_dict"] = {}, {}
    for type_name in types:
        of_type = own["_edge_store_dict" if isinstance(type_name, tuple) else "_node_store_dict"]
        put(of_type, type_name, stores[type_name], fields[type_name])
    return copied


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
