"""The tensors of a Data or HeteroData that have rows, and how rows are taken from attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import index_select

from .. import ops
from ..feature.attributes import typed_storages

_HOST = torch.device("cpu")


class Ids:
    """Ids, copied at most once to each device."""

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids
        self._on: dict[torch.device, Tensor] = {}

    @property
    def count(self) -> int:
        """How many there are."""
        return self._ids.numel()

    def on(self, device: torch.device) -> Tensor:
        """The ids on that device."""
        if device == self._ids.device:
            return self._ids
        if device not in self._on:
            self._on[device] = self._ids.to(device)
        return self._on[device]


def rows_at(value: Any, ids: Ids, dim: int, below: int | None = None) -> Any:
    """``value.index_select(dim, ids)``, by the native gather if it can read ``value`` and is faster. Entries of a list
    or a tuple are in a list; rows of an array whose numbers torch does not have, or of strings, in an array.

    ``below``: all ids are known to be in [0, below); if the tensor has that many rows, they are not checked again.
    """
    index = ids.on(getattr(value, "device", _HOST))  # NumPy arrays have no device
    if isinstance(value, Tensor) and dim == 0 and ops.can_gather_rows(value):
        check = below is None or below > value.size(0)
        if not check and ops.torch_selects_sooner(value, index.numel()):
            return value.index_select(0, index)
        return ops.gather_rows(value, index, check=check)
    if isinstance(value, (list, tuple)):
        return [value[i] for i in index.tolist()]
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        return np.take(value, index.numpy(), axis=dim)
    return index_select(value, index, dim=dim)


def storage_of(batch: Data | HeteroData, type_name: Any) -> Any:
    """The storage of a type."""
    if type_name is None:
        return batch._store
    stores = batch._edge_store_dict if isinstance(type_name, tuple) else batch._node_store_dict
    store = stores.get(type_name)
    return batch[type_name] if store is None else store


def fields_of(batch: Data | HeteroData, type_name: Any) -> dict[str, Any]:
    """The fields of a type, to be read and set: PyG's storages take several times as long to do so. None is no value of
    a field (:func:`put`)."""
    return storage_of(batch, type_name)._mapping


def put(fields: dict[str, Any], name: str, value: Any) -> None:
    """Sets a field, as PyG does: None removes it."""
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
