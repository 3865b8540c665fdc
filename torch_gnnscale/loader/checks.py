"""What is told when a loader is made: stores that do not fit the graph, rows that will be slow to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from .._warn import warn
from ..feature.contract import RowStore
from ..ops.rows import has_contiguous_rows
from ..sampler.keyed import KeyedSampler
from ..topology.numbering import Numbering
from .fetch import row_tensors


def check_features(data: Any, sampler: Any) -> None:
    """Raises for a RowStore whose rows are not those of the graph's nodes and edges."""
    if isinstance(data, (Data, HeteroData)) or not isinstance(data[0], RowStore):
        return
    hetero = any(attr.edge_type is not None for attr in data[1].get_all_edge_attrs())
    bounds = sampler.node_bounds() if isinstance(sampler, KeyedSampler) else None
    data[0].check_graph(hetero, bounds or {})


def warn_of_slow_rows(data: Data | HeteroData) -> None:
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
        found, instead = [(name, value.device) for name, value in row_tensors(data)], f"data.to({str(device)!r})"
        instead += " if it fits"
    else:
        found, instead = list(_rows_of_store(data)), "tensors or tiers there"
    for name, where in found:
        if where.type == "cpu":
            warn(
                f"{name} is in host memory, where its rows are gathered and copied to {device}, which is slower than "
                f"from there; use {instead}"
            )


def has_rows_on_gpu(data: Any) -> bool:
    """Whether a RowStore has rows on a GPU, which forked workers cannot gather."""
    return any(where.type == "cuda" for _, where in _rows_of_store(data))


def _rows_of_store(data: Any) -> Iterator[tuple[str, torch.device]]:
    """The attributes of a RowStore, and where they are gathered."""
    if isinstance(data, (tuple, list)) and isinstance(data[0], RowStore):
        for attr in data[0].all_attrs():
            yield f"features{[attr.group_name, attr.attr_name]}", data[0].device_of(attr)


def warn_of_unshared_inputs(shared: bool) -> None:
    """Warns where torch.distributed has several ranks and the loader takes all inputs on each, which it does
    unless they are ``shared`` out by a sampler of the user's. No rank is asked."""
    distributed = torch.distributed
    if shared or not (distributed.is_available() and distributed.is_initialized()):
        return
    if (world := distributed.get_world_size()) > 1:
        warn(
            f"torch.distributed has {world} ranks, and this loader takes all of its inputs on each: unless every rank "
            f"was given inputs of its own, pass sampler=torch.utils.data.DistributedSampler(range(num_inputs)) and a "
            f"seed of its own to the loader of each rank"
        )


def common_numbering(data: Any) -> Numbering | None:
    """How a pair of stores numbers the nodes, if not as the user does; ValueError if the two disagree."""
    if isinstance(data, (Data, HeteroData)):
        return None
    orders = (getattr(store, "order", None) for store in data)
    features, graph = (order if isinstance(order, Numbering) else None for order in orders)  # others may use the name
    if features is not graph and (features is None or graph is None or not features.equals(graph)):
        names = ["the user's" if order is None else "another" for order in (features, graph)]
        raise ValueError(
            f"data: expected features and graph in one order of nodes, found {names[0]} and {names[1]}; "
            f"use GraphStore.from_data(data, order=features.order)"
        )
    return graph
