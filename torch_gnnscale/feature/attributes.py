"""The attributes of a Data or HeteroData: those that have a row for each node or edge, and those that look as if they
had; copies of the data with other values of them; and what they were at one moment, and whether they have changed
since."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import TensorFrame

from .._user import warn
from .composite import is_composite
from .contract import Version, version_of, without_number

_OF_NODES = frozenset({"x", "feat", "pos", "y", "node_type", "n_id", "tf"})
_OF_EDGES = frozenset({"edge_attr", "edge_weight", "edge_type", "e_id", "adj"})
EDGES = frozenset({"edge_index", "adj_t"})
"""The attributes that are edges, which have no rows."""


class TypedStorage(NamedTuple):
    """A storage of a Data or HeteroData."""

    type_name: Any
    """Its node or edge type; None in a homogeneous graph."""
    store: Any
    has_nodes: bool
    has_edges: bool

    def label(self, name: str) -> str:
        """What messages call one of its attributes."""
        return f"data.{name}" if self.type_name is None else f"data[{self.type_name!r}].{name}"

    def rows_of(self, name: str) -> Literal["nodes", "edges"] | None:
        """Whether an attribute has an entry for each node or each edge, as PyG decides; None: neither."""
        value = self.store[name]
        sparse = isinstance(value, Tensor) and value.layout != torch.strided
        if sparse and not isinstance(self.store._parent().__cat_dim__(name, value, self.store), int):
            return None  # an ``adj`` beside the edges, of which PyG would ask for the size of two dimensions at once
        return "nodes" if self.store.is_node_attr(name) else "edges" if self.store.is_edge_attr(name) else None

    def kind_of(self, name: str) -> Literal["nodes", "edges"] | None:
        """As :meth:`rows_of`, but "nodes" for ``num_nodes``: batches have a number of their own."""
        return "nodes" if name == "num_nodes" else self.rows_of(name)

    def with_rows(self) -> list[tuple[str, Literal["nodes", "edges"]]]:
        """The attributes that have rows, with what :meth:`kind_of` says of each; edges are not among them."""
        names = (name for name in self.store if name not in EDGES)
        return [(name, of) for name in names if (of := self.kind_of(name)) is not None]

    def has_rows(self, name: str) -> bool:
        """Whether an attribute has an entry for each node or each edge."""
        return self.rows_of(name) is not None


def typed_storages(data: Any) -> list[TypedStorage]:
    """The storages of a Data or HeteroData, those of nodes first."""
    if isinstance(data, Data):
        return [TypedStorage(None, data._store, True, True)]
    nodes = [TypedStorage(node_type, store, True, False) for node_type, store in data.node_items()]
    return nodes + [TypedStorage(edge_type, store, False, True) for edge_type, store in data.edge_items()]


def unlike_rows(data: Any) -> Iterator[tuple[str, str]]:
    """(name for messages, what it has instead of a row for each node or edge) per attribute that seems to have rows:
    its name is one of PyG's names of such attributes (``x``, ``y``, ``pos``, ``edge_attr``, ..., masks) and it has
    several rows, or it has as many rows as there are nodes or edges, but is of a type of which rows are not taken."""
    graphs = getattr(data, "num_graphs", None)  # of PyG's Batch, which may have labels of its graphs
    for storage in typed_storages(data):
        store = storage.store
        if not len(store):
            continue  # PyG would warn that it cannot count its nodes
        counts = {"nodes": store.num_nodes} if storage.has_nodes else {}
        counts |= {"edges": store.num_edges} if storage.has_edges else {}
        for name, value in store.items():
            rows = None if name in EDGES else _count_rows(value)
            if rows is None or rows in (1, graphs) or storage.has_rows(name):
                continue
            known = (storage.has_nodes and name in _OF_NODES) or (storage.has_edges and name in _OF_EDGES)
            is_typed = isinstance(value, (Tensor, np.ndarray, TensorFrame, list, tuple))
            if known or name.endswith("mask") or (not is_typed and rows in counts.values()):
                of = "" if is_typed else f" of a {type(value).__name__}, which is no tensor,"
                beside = " and ".join(f"{count} {what}" for what, count in counts.items())
                yield storage.label(name), f"{rows} rows{of} beside {beside}"


def warn_of_whole_attributes(data: Any) -> None:
    """Warns of each attribute that batches have whole although it seems to have rows of nodes or edges."""
    for label, found in unlike_rows(data):
        warn(f"{label} has {found}: each batch has all of it")


def check_attributes(data: Any) -> None:
    """Raises TypeError for attributes of nodes or edges of which no rows can be taken, or edges in a list."""
    for storage in typed_storages(data):
        if storage.has_edges and isinstance(edges := storage.store.get("edge_index"), (list, tuple)):
            raise TypeError(
                f"{storage.label('edge_index')}: expected a tensor or an array, found a {type(edges).__name__}; use "
                f"torch.tensor(...)"
            )
        for name, value in storage.store.items():
            if isinstance(value, Tensor) and name not in EDGES and storage.has_rows(name):
                check_layout(storage.label(name), value)


def check_layout(name: Any, tensor: Tensor) -> None:
    """Raises TypeError for a tensor of whose layout torch takes no rows."""
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        raise TypeError(
            f"{name}: expected torch.strided or torch.sparse_coo, of which rows are taken, found {tensor.layout}"
        )


def _count_rows(value: Any) -> int | None:
    """The number of rows of a tensor, an array, a list or another table; None for what has none."""
    if isinstance(value, (list, tuple)):
        return len(value)
    shape = value.sizes() if hasattr(value, "sizes") and callable(value.sizes) else getattr(value, "shape", None)
    return int(shape[0]) if shape else None


def stored_values(store: Any) -> Tensor | None:
    """The values of the input's ``adj_t``; None if it has none."""
    if "adj_t" not in store:
        return None
    adj_t = store["adj_t"]
    if isinstance(adj_t, Tensor):
        return adj_t._values() if adj_t.layout == torch.sparse_coo else adj_t.values()
    return adj_t.storage.value()


OF_GRAPH = object()
"""Stands for a type in the keys of attributes of a whole HeteroData."""


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
