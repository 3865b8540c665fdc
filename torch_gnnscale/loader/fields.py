"""The fields of a batch: copies of the data, whose attributes can be replaced, and the fields by type; and the
attributes of the data at one moment, and whether they have changed since."""

from __future__ import annotations

import copy
import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

from ..feature.attributes import EDGES, TypedStorage, typed_storages
from ..feature.composite import is_composite
from ..feature.contract import Version, version_of, without_number
from ..sampler.base import OWN_FIELDS
from ..sampler.graph import GraphTypes
from ..sampler.minibatch import MiniBatch, SampledEdges
from .edge_layouts import EdgeLayouts, laid_out, stored_values

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


class WithRows(NamedTuple):
    """The attributes of a type that have rows."""

    names: list[tuple[str, Literal["nodes", "edges"]]]
    """What :meth:`TypedStorage.with_rows` returns."""
    tensors: list[str]
    """Those of nodes that are plain tensors whose first dimension is that of the nodes."""
    composites: list[str]
    """Those of nodes that are made of several tensors."""

    @classmethod
    def of(cls, data: Data | HeteroData, storage: TypedStorage) -> WithRows:
        """Those of a storage of the data."""
        store, names = storage.store, storage.with_rows()
        values = {name: store._mapping.get(name) for name, of in names if of == "nodes"}
        plain = [name for name, value in values.items() if type(value) is Tensor]
        tensors = [name for name in plain if data.__cat_dim__(name, values[name], store) == 0]
        return cls(names, tensors, [name for name, value in values.items() if is_composite(value)])


Kinds: TypeAlias = dict[Any, WithRows]
"""By type, the attributes that have rows."""

PLAIN = int, float, str  # bool is an int

_changes = operator.attrgetter("_version")
_requires_grad = operator.attrgetter("requires_grad")


def fields_of(stores: dict[Any, Any]) -> dict[Any, dict[str, Any]]:
    """The attributes by type: copies, because the loop may set attributes while a thread is here."""
    return {of: store._mapping.copy() for of, store in stores.items()}


class DataVersions:
    """The attributes of a Data or HeteroData at one moment, and their versions, with those of the graph and of the
    values of ``adj_t``. What is compared is kept in flat lists, since each batch compares it.

    Args:
        data: another thread may change it meanwhile.
        typed: whether its nodes and edges have types.
    """

    def __init__(self, data: Data | HeteroData, typed: bool) -> None:
        self._data, self._typed, self.stores = data, typed, stores_of(data, typed)
        self.fields = fields_of(self.stores)
        """By type, in the order of the data."""
        self._mappings = [store._mapping for store in self.stores.values()]
        self._names, self._values = list(_names(self.fields.values())), list(_values(self.fields.values()))
        self._lengths = list(map(len, self.fields.values()))
        named = list(zip(self._names, self._values, strict=True))
        counted = [stored_values({name: value}) if name == "adj_t" else value for name, value in named]
        self._numbers = [number for _, number in map(version_of, counted)]
        self._matrices = [value for name, value in named if name == "adj_t"]
        self._of_matrices = list(map(_of_matrix, self._matrices))
        self._counted = [value for name, value in named if name not in EDGES and _is_counted(value)]
        self._counts = list(map(_changes, self._counted))
        self._floats = [value for value in self._counted if value.is_floating_point() or value.is_complex()]
        self._learn, self._with_grad = list(map(_requires_grad, self._floats)), torch.is_grad_enabled()
        self.learned = without_number(self.by_key()) if None in self._numbers else []
        """The keys of attributes whose versions have no number."""
        self.kinds: Kinds = {}

    @cached_property
    def graph(self) -> tuple[Any, list[TypedStorage]]:
        """A copy of the data with these attributes, which nobody changes, and its storages."""
        copied = with_fields(self._data, self.stores, self.fields)
        return copied, typed_storages(copied)

    def hold(self) -> bool:
        """Whether the data have the very same attributes in the same versions now."""
        data = self._data
        if self._typed:
            stores = [*data._node_store_dict.values(), *data._edge_store_dict.values(), data._global_store]
        else:
            stores = [data._store]
        fields = self._mappings
        try:
            return (
                all(map(operator.is_, stores, self.stores.values()))
                and list(map(len, fields)) == self._lengths
                and list(_names(fields)) == self._names
                and all(map(operator.is_, _values(fields), self._values))
                and list(map(_changes, self._counted)) == self._counts
                and list(map(_requires_grad, self._floats)) == self._learn
                and (self._with_grad == torch.is_grad_enabled() or not any(self._learn))
                and (not self._matrices or list(map(_of_matrix, self._matrices)) == self._of_matrices)
            )
        except RuntimeError:  # another thread sets an attribute
            return False

    def by_key(self) -> dict[Any, Version]:
        """The versions of all attributes of which batches have rows or copies, by (type, name)."""
        keys = ((of, name) for of, fields in self.fields.items() for name in fields)
        versions = zip(keys, self._values, self._numbers, strict=True)
        return {key: (value, number) for key, value, number in versions if key[1] != "edge_index"}


def _names(fields: Iterable[dict[str, Any]]) -> Iterator[str]:
    return chain.from_iterable(fields)


def _values(fields: Iterable[dict[str, Any]]) -> Iterator[Any]:
    return chain.from_iterable(map(dict.values, fields))


def _of_matrix(adj_t: Any) -> int | None:
    return version_of(stored_values({"adj_t": adj_t}))[1]


def _is_counted(value: Any) -> bool:
    """Whether a value is a tensor that counts its changes."""
    return isinstance(value, Tensor) and not value.is_inference()
