"""The attributes of a Data or HeteroData at one moment, which of them have rows, and whether they have changed
since."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..feature.attributes import EDGES, TypedStorage, typed_storages
from ..feature.composite import is_composite
from ..feature.contract import Version, version_of, without_number
from .fields import stored_values, stores_of, with_fields


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
