"""The storages of a Data or HeteroData: which of their tensors have rows, and how rows are taken from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader.utils import index_select

from .. import ops

_HOST = torch.device("cpu")


class Ids:
    """Ids, copied at most once to each device."""

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids
        self._on: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The ids on that device."""
        if device == self._ids.device:
            return self._ids
        if device not in self._on:
            self._on[device] = self._ids.to(device)
        return self._on[device]


def rows_at(value: Any, ids: Ids, dim: int, below: int | None = None) -> Any:
    """``value.index_select(dim, ids)``, by the native gather if it can read ``value`` and is faster.

    ``below``: all ids are known to be in [0, below); if the tensor has that many rows, they are not checked again.
    """
    index = ids.on(getattr(value, "device", _HOST))  # NumPy arrays have no device
    if isinstance(value, Tensor) and dim == 0 and ops.can_gather_rows(value):
        check = below is None or below > value.size(0)
        if not check and ops.torch_selects_sooner(value, index.numel()):
            return value.index_select(0, index)
        return ops.gather_rows(value, index, check=check)
    return index_select(value, index, dim=dim)


def typed_storages(data: Any) -> list[tuple[Any, Any, bool, bool]]:
    """(type, storage, storage has nodes, storage has edges) per storage of a Data or HeteroData."""
    if isinstance(data, Data):
        return [(None, data._store, True, True)]
    nodes = [(node_type, store, True, False) for node_type, store in data.node_items()]
    return nodes + [(edge_type, store, False, True) for edge_type, store in data.edge_items()]


def row_tensors(data: Any) -> Iterator[tuple[str, Tensor]]:
    """(name for messages, tensor) per tensor of a Data or HeteroData that has one row per node or edge."""
    for type_name, store, _, _ in typed_storages(data):
        for name, value in store.items():
            if not isinstance(value, Tensor) or value.layout != torch.strided:
                continue
            if (store.is_node_attr(name) or store.is_edge_attr(name)) and data.__cat_dim__(name, value, store) == 0:
                yield (f"data.{name}" if type_name is None else f"data[{type_name!r}].{name}"), value
