"""The attributes of a Data or HeteroData that have a row for each node or edge, and those that look as if they had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.typing import TensorFrame

from .._user import warn

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
