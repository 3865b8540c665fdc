"""The rows that data and stores have for nodes and edges: where they lie, and those of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import index_select

from .. import ops
from .._warn import warn
from ..feature.feature_store import FeatureStore
from ..feature.tiered_store import TieredFeatureStore
from ..ops.rows import has_contiguous_rows

_HOST = torch.device("cpu")


def stores_of(data: Any) -> list[tuple[Any, Any, bool, bool]]:
    """(type, storage, whether it has nodes, whether it has edges) of a Data or HeteroData."""
    if isinstance(data, Data):
        return [(None, data._store, True, True)]
    nodes = [(node_type, store, True, False) for node_type, store in data.node_items()]
    return nodes + [(edge_type, store, False, True) for edge_type, store in data.edge_items()]


def row_tensors(data: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors that have a row for each node or edge, with their names."""
    for type_name, store, _, _ in stores_of(data):
        yield from tensors_of_rows(data, type_name, store)


def tensors_of_rows(data: Any, type_name: Any, store: Any) -> Iterator[tuple[str, Tensor]]:
    """Those of one storage."""
    for name, value in store.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            continue
        if (store.is_node_attr(name) or store.is_edge_attr(name)) and data.__cat_dim__(name, value, store) == 0:
            yield (f"data.{name}" if type_name is None else f"data[{type_name!r}].{name}"), value


def check_features(data: Any, sizes: dict[Any, int]) -> None:
    """Raises for features of our stores that are not those of the graph: fewer rows than a type of nodes has, by
    ``sizes``, or rows of no type beside a graph of several, whose batches would have none."""
    if isinstance(data, (tuple, list)) and isinstance(data[0], FeatureStore):
        for (group, name), value in data[0]._tensors.items():
            if group in sizes and value.shape[0] < sizes[group]:
                raise ValueError(
                    f"data: expected a row of {(group, name)} for each of {sizes[group]} nodes, found {value.shape[0]}"
                )
    if isinstance(data, (Data, HeteroData)) or all(attr.edge_type is None for attr in data[1].get_all_edge_attrs()):
        return
    if isinstance(data[0], TieredFeatureStore):
        raise NotImplementedError("tiers beside a heterogeneous graph are not implemented: use FeatureStore.from_data")
    if isinstance(data[0], FeatureStore) and (names := [name for group, name in data[0]._tensors if group is None]):
        raise ValueError(f"data: expected features of types of nodes or edges, as the graph has, found {names} of none")


def warn_of_slow_rows(data: Any) -> None:
    """Names the tensors whose rows the native gather cannot copy, but could."""
    for name, value in row_tensors(data):
        if not has_contiguous_rows(value):
            warn(
                f"{name} has no contiguous rows (strides {value.stride()}), so torch.index_select gathers them, "
                f"which is slower; use {name} = {name}.contiguous()"
            )


def warn_of_host_rows(data: Any, device: torch.device) -> None:
    """Names the tensors whose rows are gathered in host memory for batches on a GPU."""
    if isinstance(data, (Data, HeteroData)):
        found, instead = list(row_tensors(data)), f"data.to({str(device)!r}) if it fits"
    else:
        ours = data[0]._tensors if isinstance(data[0], FeatureStore) else {}
        found, instead = [(f"features{list(key)}", value) for key, value in ours.items()], "tensors or tiers there"
    for name, value in found:
        if value.device.type == "cpu":
            warn(
                f"{name} is in host memory, where its rows are gathered and copied to {device}, which is slower than "
                f"from there; use {instead}"
            )


def has_rows_on_gpu(data: Any) -> bool:
    """Whether a FeatureStore of ours has rows on a GPU, which forked workers cannot gather."""
    ours = data[0]._tensors if isinstance(data, (tuple, list)) and isinstance(data[0], FeatureStore) else {}
    return any(rows.device.type == "cuda" for rows in ours.values())


def device_of_tiers(data: Any) -> torch.device | None:
    """The GPU that gathers the rows of tiers, which are never changed, so that any stream may read them."""
    ours = isinstance(data, (tuple, list)) and type(data[0]) is TieredFeatureStore  # a user's own may read what changes
    return data[0].device if ours and data[0].device.type != "cpu" else None


class Ids:
    """Ids, copied once to each device where they are asked for."""

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids
        self._on: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The ids there."""
        if device == self._ids.device:
            return self._ids
        if device not in self._on:
            self._on[device] = self._ids.to(device)
        return self._on[device]


def rows(value: Any, ids: Ids, dim: int, below: int | None = None) -> Any:
    """The entries of ``value`` at ``ids`` along a dimension, by the native gather where it can; all of them are known
    to be in [0, ``below``) if that is given."""
    index = ids.on(getattr(value, "device", _HOST))  # an array has none
    if isinstance(value, Tensor) and dim == 0 and ops.can_gather_rows(value):
        return ops.gather_rows(value, index, check=below is None or below > value.size(0))
    return index_select(value, index, dim=dim)
