"""The fields of a Data or HeteroData by type, copies of data, and the class of batches: that of the data, unless it
would hide fields that a loader puts into its batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from .._warn import warn
from ..feature.attributes import typed_storages
from ..sampler.base import OWN_FIELDS
from ..sampler.minibatch import GraphTypes

_COMPUTED = frozenset(("num_nodes",))
"""Fields that a subclass may define: batches have them where the data have."""
_OF_BATCH = ("_num_graphs", "_slice_dict", "_inc_dict")
"""What a Batch knows of its graphs beside its attributes."""
_POINTER = "ptr"


def hidden_fields(kind: type) -> list[str]:
    """The fields of batches, by name, that a subclass of Data or HeteroData hides by properties, methods or values."""
    if kind in (Data, HeteroData):
        return []
    known = (HeteroData if issubclass(kind, HeteroData) else Data).__mro__
    defined = {name for base in kind.__mro__ if base not in known for name in vars(base)}
    return sorted(defined & (OWN_FIELDS - _COMPUTED))


def as_batch(data: Data | HeteroData) -> Any:
    """A copy of the data whose attributes can be replaced: of their class or, if it hides fields of batches, a Data or
    HeteroData. That of a PyG Batch knows nothing of its graphs, whose nodes it has only some of."""
    batch = copy.copy(data)
    if hidden_fields(type(data)):  # Data's own __setattr__ would take the class for an attribute
        object.__setattr__(batch, "__class__", HeteroData if isinstance(data, HeteroData) else Data)
    if isinstance(data, Batch):
        for name in _OF_BATCH:
            batch.__dict__.pop(name, None)
        for store in batch.stores:
            store.pop(_POINTER, None)
    return batch


def with_fields(data: Data | HeteroData, fields: Mapping[Any, dict[str, Any]]) -> Any:
    """A copy of the data that has copies of these fields, by type, in place of its own; those of a whole HeteroData
    are the last. Unlike ``copy.copy``, it may be made while another thread changes the data."""
    copied = data.__class__.__new__(data.__class__)
    own = copied.__dict__
    own.update(data.__dict__)

    def put(stores: dict[Any, Any], key: Any, store: Any, mapping: dict[str, Any]) -> None:
        made = stores[key] = store.__class__.__new__(store.__class__)
        made.__dict__.update(store.__dict__)
        made.__dict__.pop("_cached_attr", None)  # which attributes have rows: of the data's own
        made.__dict__["_mapping"] = mapping.copy()
        made._parent = copied

    if isinstance(data, Data):
        put(own, "_store", data._store, fields[None])
        return copied
    *types, of_graph = fields
    put(own, "_global_store", data._global_store, fields[of_graph])
    stores = {**data._node_store_dict, **data._edge_store_dict}
    own["_node_store_dict"], own["_edge_store_dict"] = {}, {}
    for type_name in types:
        of_type = own["_edge_store_dict" if isinstance(type_name, tuple) else "_node_store_dict"]
        put(of_type, type_name, stores[type_name], fields[type_name])
    return copied


def check_classes(data: Any, custom_cls: Any) -> None:
    """Warns if batches are of another class than the data that a loader gets; says nothing of a Batch, whose batches
    are no batches of graphs.

    Raises:
        ValueError: ``custom_cls`` hides fields of batches.
    """
    if isinstance(custom_cls, type) and (hidden := hidden_fields(custom_cls)):
        raise ValueError(
            f"custom_cls: expected a class without {', '.join(hidden)}, which a loader puts into its batches, found "
            f"{custom_cls.__name__}"
        )
    if isinstance(data, (Data, HeteroData)) and not isinstance(data, Batch) and (hidden := hidden_fields(type(data))):
        plain = "HeteroData" if isinstance(data, HeteroData) else "Data"
        warn(
            f"batches are of class {plain}, because {', '.join(hidden)} of {type(data).__name__} would hide what the "
            f"loader puts there"
        )


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
        self._batch = batch
        for of in types.nodes if types.nodes == types.edges else (*types.nodes, *types.edges):
            self[of] = storage_of(batch, of)._mapping

    def __missing__(self, type_name: Any) -> dict[str, Any]:
        fields = self[type_name] = storage_of(self._batch, type_name)._mapping
        return fields


def put(fields: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Sets fields, as PyG does: None removes one."""
    for name, value in values.items():
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = value


def row_tensors(data: Any) -> Iterator[tuple[str, Tensor]]:
    """(name for messages, tensor) per tensor of a Data or HeteroData that has one row per node or edge."""
    for storage in typed_storages(data):
        for name, value in storage.store.items():
            if not isinstance(value, Tensor) or value.layout != torch.strided:
                continue
            if storage.has_rows(name) and data.__cat_dim__(name, value, storage.store) == 0:
                yield storage.label(name), value
