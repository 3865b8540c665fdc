"""Reads a graph's edges, times and weights from PyG's data or from a pair of stores."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.typing import EdgeType, NodeType
from typing_extensions import override

from .._warn import warn
from ..feature.contract import all_attrs
from ..ops.arguments import check_tensor
from ..topology import CSC, GraphStore
from ..topology.graph_store import count_nodes, edges_of

_PREFERRED = [EdgeLayout.CSC, EdgeLayout.COO, EdgeLayout.CSR]
"""The layout that is read if a store has several: the first of these, as in PyG."""


def check_data(data: Any) -> None:
    """Raises TypeError unless it is a Data, a HeteroData or a (FeatureStore, GraphStore) pair.

    PyG's Data is both kinds of store, but a pair of two, or of one twice, is refused: it is taken for two graphs.
    """
    if isinstance(data, (Data, HeteroData)):
        return
    pair = isinstance(data, (tuple, list)) and len(data) == 2
    kinds = (Data, HeteroData)
    if pair and all(isinstance(store, kinds) for store in data):
        raise TypeError(
            f"data: expected one graph, or a (FeatureStore, GraphStore) pair, found a {type(data).__name__} of two "
            f"graphs; make one graph of them (torch_geometric.data.Batch.from_data_list), or a loader for each"
        )
    if not (pair and isinstance(data[0], PyGFeatureStore) and isinstance(data[1], PyGGraphStore)):
        raise TypeError(
            f"data: expected a Data, a HeteroData or a (FeatureStore, GraphStore) pair, found {type(data).__name__}"
        )


def warn_of_sorted(data: Any, is_sorted: bool) -> None:
    """Warns of ``is_sorted`` where the data themselves say how their edges are sorted."""
    if is_sorted and isinstance(data, (tuple, list)):
        warn("is_sorted=True has no effect with stores: a GraphStore says itself how its edges are sorted")


class Source(ABC):
    """Edges and attributes by type. The only type of a homogeneous graph is None."""

    is_hetero: bool

    @abstractmethod
    def edges(self) -> dict[EdgeType | None, CSC]:
        """The edges of each type."""

    @abstractmethod
    def num_nodes(self) -> dict[NodeType | None, int | None]:
        """The number of nodes per type; None where the data do not tell."""

    @abstractmethod
    def of_nodes(self, name: str, sizes: dict) -> dict[NodeType | None, Tensor]:
        """The attribute ``name`` per node type that has it. ``sizes``: the number of nodes per type."""

    @abstractmethod
    def of_edges(self, name: str, edges: dict) -> dict[EdgeType | None, Tensor]:
        """The attribute ``name`` per edge type that has it. ``edges``: what :meth:`edges` returned."""

    @abstractmethod
    def shapes(self, name: str) -> list[tuple[int, ...]]:
        """The shapes of all tensors of this name, of nodes, of edges or of neither."""


class DataSource(Source):
    """A Data or HeteroData. ``is_sorted``: its edges are sorted by destination already."""

    def __init__(self, data: Data | HeteroData, is_sorted: bool) -> None:
        self.data, self.is_sorted = data, is_sorted
        self.is_hetero = isinstance(data, HeteroData)

    @override
    def num_nodes(self) -> dict[NodeType | None, int | None]:
        if not self.is_hetero:
            return {None: self.data.num_nodes}
        return dict(count_nodes(self.data))

    @override
    def edges(self) -> dict[EdgeType | None, CSC]:
        return edges_of(self.data, self.is_sorted)

    @override
    def of_nodes(self, name: str, sizes: dict) -> dict[NodeType | None, Tensor]:
        if not self.is_hetero:
            return {None: _tensor(name, self.data[name])} if name in self.data and self.data.is_node_attr(name) else {}
        return {t: _tensor(name, store[name]) for t, store in self.data.node_items() if name in store}

    @override
    def of_edges(self, name: str, edges: dict) -> dict[EdgeType | None, Tensor]:
        if self.is_hetero:
            return {t: _tensor(name, store[name]) for t, store in self.data.edge_items() if name in store}
        if name not in self.data:
            return {}
        value = _tensor(name, self.data[name])
        return {None: value} if value.shape[:1] == (edges[None].num_edges,) else {}

    @override
    def shapes(self, name: str) -> list[tuple[int, ...]]:
        return [tuple(_tensor(name, store[name]).shape) for store in self.data.stores if name in store]


class StoreSource(Source):
    """A pair of stores, ours or foreign ones."""

    def __init__(self, features: PyGFeatureStore, graph: PyGGraphStore) -> None:
        self.features, self.graph = features, graph
        self.attrs = graph.get_all_edge_attrs()
        self.edge_types = list(dict.fromkeys(attr.edge_type for attr in self.attrs))
        self.is_hetero = self.edge_types != [None]
        if self.is_hetero and None in self.edge_types:
            raise ValueError(f"data: expected typed edges, or only edges of type None, found {self.edge_types}")

    @override
    def num_nodes(self) -> dict[NodeType | None, int | None]:
        named = [attr for attr in self.features.get_all_tensor_attrs() if isinstance(attr.group_name, str)]
        counts: dict[NodeType | None, int | None] = {attr.group_name: None for attr in named if self.is_hetero}
        for attr in self.attrs:
            ends = (attr.edge_type[0], attr.edge_type[-1]) if attr.edge_type is not None else (None, None)
            for node_type, count in zip(ends, attr.size or (None, None), strict=True):
                if counts.get(node_type) is not None and count is not None and count != counts[node_type]:
                    found = f"{counts[node_type]} and {count}"
                    raise ValueError(
                        f"data: expected one number of nodes{of_type(node_type)} in all edges, found {found}; "
                        f"pass size= to put_edge_index"
                    )
                counts[node_type] = count if counts.get(node_type) is None else counts[node_type]
        for attr in named:
            if attr.group_name in counts and counts[attr.group_name] is None:
                size = self.features.get_tensor_size(attr)
                counts[attr.group_name] = None if size is None else size[0]
        return counts

    @override
    def edges(self) -> dict[EdgeType | None, CSC]:
        if isinstance(self.graph, GraphStore):
            return {edge_type: self.graph.relation(edge_type) for edge_type in self.edge_types}
        ours = GraphStore()  # converts every layout by a stable sort, so that samples do not depend on the store
        counts = self.num_nodes()
        for edge_type in self.edge_types:
            attrs = [attr for attr in self.attrs if attr.edge_type == edge_type]
            attr = min(attrs, key=lambda attr: _PREFERRED.index(attr.layout))
            put = copy.copy(attr)
            if put.size is None and edge_type is not None:  # a pointer says how many nodes its own end has
                src, dst = counts[edge_type[0]], counts[edge_type[-1]]
                put.size = None if put.layout == EdgeLayout.CSR else src, None if put.layout == EdgeLayout.CSC else dst
            ours.put_edge_index(self.graph.get_edge_index(attr), put)
        return {edge_type: ours.relation(edge_type) for edge_type in self.edge_types}

    @override
    def of_nodes(self, name: str, sizes: dict) -> dict[NodeType | None, Tensor]:
        if self.is_hetero:
            return self._groups(name, lambda group: isinstance(group, str))
        # A tuple as group means edges. Else PyG decides: "time" belongs to nodes, others to what has their length.
        found = self._groups(name, lambda group: not isinstance(group, tuple))
        return _only({g: v for g, v in found.items() if name == "time" or len(v) == sizes[None]})

    @override
    def of_edges(self, name: str, edges: dict) -> dict[EdgeType | None, Tensor]:
        if self.is_hetero:
            return self._groups(name, lambda group: isinstance(group, tuple))
        found = self._groups(name, lambda group: isinstance(group, tuple))
        if not found:
            others = self._groups(name, lambda group: not isinstance(group, tuple))
            found = {} if name == "time" else {g: v for g, v in others.items() if len(v) == edges[None].num_edges}
        return _only(found)

    @override
    def shapes(self, name: str) -> list[tuple[int, ...]]:
        return [tuple(value.shape) for value in self._groups(name, lambda group: True).values()]

    def _groups(self, name: str, wanted: Callable[[Any], bool]) -> dict:
        found = {}
        for attr in all_attrs(self.features):
            if attr.attr_name == name and wanted(attr.group_name):
                attr.index = None
                found[attr.group_name] = _tensor(name, self.features.get_tensor(attr))
        return found


def _only(found: dict) -> dict[None, Any]:
    """{None: value} of the first group: a homogeneous graph has one, of any name."""
    return dict.fromkeys([None], next(iter(found.values()))) if found else {}


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(value)
    check_tensor(name, value)
    return value.detach().cpu()


def of_type(type_name: Any) -> str:
    """ " of TYPE" for error texts; "" in a homogeneous graph."""
    return "" if type_name is None else f" of {type_name!r}"
