"""A batch on which numbers of rows tell at which hop each layer of a model is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData

from .hops import NodeType, device_of, relations_of


def has_nodes_as_edges(batch: Any) -> bool:
    """Whether it has as many nodes as edges, so that the names of fields alone say which are nodes'; False for types,
    whose fields are apart."""
    return not isinstance(batch, HeteroData) and sum(batch.num_sampled_nodes) == batch.edge_index.size(1)


def with_nodes_in_every_group(batch: Any, empty_types: bool = True) -> Any:
    """The batch, which has seeds, with more nodes: of each type at least one in each later group, and two in the first
    groups that have any, for a single row would be broadcast. No edge leads to such a node or from it; its row of every
    field is that of the type's first node, or zeros. Without ``empty_types``, a type of which the batch has no node
    gets none."""
    found, device = copy.copy(batch), device_of(batch)
    by_name = has_nodes_as_edges(batch)
    place: dict[NodeType, tuple[Tensor, int]] = {}
    for node_type, before, store in _node_stores(batch, found):
        sizes = before.num_sampled_nodes
        larger = _larger(sizes) if empty_types or any(sizes) else sizes
        num_nodes, origin, place[node_type] = sum(sizes), *_places(sizes, larger, device)
        for name, value in [*before.to_dict().items()]:
            of_nodes = isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == num_nodes
            if of_nodes and name != "edge_index" and not (by_name and ("edge" in name or name == "e_id")):
                rows = value if num_nodes else value.new_zeros(1, *value.shape[1:])
                store[name] = rows[origin.to(value.device)]
        store.num_sampled_nodes = larger
        store.num_nodes = len(origin)
    before_edges = relations_of(batch)
    for key, store in relations_of(found).items():
        (src, num_src), (dst, num_dst) = (place[None if key is None else key[end]] for end in (0, -1))
        index = before_edges[key].edge_index
        plain = index.as_tensor() if isinstance(index, EdgeIndex) else index
        numbered = torch.stack([src[plain[0]], dst[plain[1]]])
        if isinstance(index, EdgeIndex):
            numbered = EdgeIndex(numbered, sparse_size=(num_src, num_dst), sort_order=index.sort_order)
        store.edge_index = numbered
    return found


def _node_stores(batch: Any, copied: Any) -> Iterator[tuple[NodeType, Any, Any]]:
    """(type, what holds the nodes' fields in the batch, and in its copy)."""
    if not isinstance(batch, HeteroData):
        yield None, batch, copied
        return
    for node_type in batch.node_types:
        yield node_type, batch[node_type], copied[node_type]


def _larger(sizes: list[int]) -> list[int]:
    """How many nodes the groups of a type have in the larger batch."""
    found = sizes[:1]
    for size in sizes[1:]:
        found.append(max(size, 1 if sum(found) else 2))
    return found


def _places(sizes: list[int], larger: list[int], device: torch.device) -> tuple[Tensor, tuple[Tensor, int]]:
    """For each node of the larger batch, the node whose rows it gets; where the nodes of the batch are in it, and how
    many it has."""
    origins, places, first, place = list[Tensor](), list[Tensor](), 0, 0
    for size, more in zip(sizes, larger, strict=True):
        origins += [torch.arange(first, first + size), torch.zeros(more - size, dtype=torch.int64)]
        places.append(torch.arange(place, place + size))
        first, place = first + size, place + more
    return torch.cat(origins).to(device), (torch.cat(places).to(device), place)
