"""Reads the rows of a sample's nodes and edges from a Data or from a pair of stores."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from .._warn import warn
from ..feature.attributes import typed_storages
from ..feature.contract import (
    BoundedAttr,
    CollectiveRowStore,
    RowStore,
    all_attrs,
    is_collective,
    may_be_read_by_threads,
)
from ..ranks import Steps
from ..sampler.keyed import KeyedSampler
from .layout import EdgeLayout, EdgeLayouts, adj_t_of, edge_device, has_own_values, laid_out, set_edges, stored_values
from .sampled import NO_IDS, SampledEdges, SampledGraphPart
from .storages import Ids, rows_at


class Bounds:
    """Bounds of the sampled ids, as the sampler states them; no bounds if it is None. They do not hold for an output
    that the user's transform has changed."""

    def __init__(self, sampler: KeyedSampler | None = None) -> None:
        self._sampler = sampler
        self.of_nodes: Mapping[Any, int] = {} if sampler is None else sampler.node_bounds() or {}
        """By node type: all sampled ids are below it."""

    def of_edges(self, edge_type: Any) -> int | None:
        """All sampled ids of this edge type are below it; None if not known."""
        return None if self._sampler is None else self._sampler.edge_bound(edge_type)


class RowSource(ABC):
    """Reads the rows of samples (``fetch``) and makes batches of them without reading (``batch``). A loader has one."""

    threads: bool
    """Whether several threads may fetch at once."""
    collective: bool
    """Whether all ranks of a process group must fetch together."""

    @abstractmethod
    def fetch(self, sampled: SampledGraphPart, bounds: Bounds) -> Any:
        """All rows of a sample. Ids are checked unless ``bounds`` show that they are in range."""

    @abstractmethod
    def batch(self, sampled: SampledGraphPart, rows: Any, layouts: EdgeLayouts | None) -> Data | HeteroData:
        """A batch of these rows with the sampled edges in these layouts; ``layouts=None`` puts no sampled edges."""

    @abstractmethod
    def edges(self, edge_type: Any, edges: SampledEdges, layout: EdgeLayout) -> tuple[SampledEdges, Tensor | None]:
        """Sampled edges of a type on the device of a batch's edges (``edge_id`` is not moved), and their values: those
        that they have in this layout if it is an ``adj_t``."""

    @abstractmethod
    def node_rows(self, rows: Any, name: str) -> Any:
        """The rows of one attribute of a homogeneous graph's nodes, taken from ``rows``, which :meth:`fetch` returned;
        None if there is no such attribute."""


class DataRows(RowSource):
    """Reads the attributes of a Data or HeteroData, in its order.

    Args:
        data: read anew for each batch, so that changes show in later batches.
        device: the device of a batch's edges; by default that of the edges of ``data``.
    """

    threads = True
    collective = False

    def __init__(self, data: Data | HeteroData, device: torch.device | None = None) -> None:
        self.data = data
        self.device = device
        self._weighted: dict[Any, object] = {}  # edge types for which the sampler has given weights

    def fetch(self, sampled: SampledGraphPart, bounds: Bounds) -> dict[Any, dict[str, Any]]:
        """found[type][attribute]: its rows."""
        found: dict[Any, dict[str, Any]] = {}
        for storage in typed_storages(self.data):
            type_name, store, has_nodes, has_edges = storage
            node = sampled.nodes.setdefault(type_name, NO_IDS) if has_nodes else NO_IDS
            edges = None
            if has_edges:
                if type_name not in sampled.edges:
                    sampled.edges[type_name] = SampledEdges.none()
                if (edge_id := sampled.edges[type_name].edge_id) is not None:
                    edges = Ids(edge_id)
            rows = found[type_name] = {}
            nodes, below = Ids(node), bounds.of_nodes.get(type_name)
            for name, value in store.items():
                if name == "num_nodes":
                    rows[name] = node.numel()
                elif name in ("edge_index", "adj_t"):
                    continue
                elif (of := storage.rows_of(name)) == "nodes":
                    dim = self.data.__cat_dim__(name, value, store)
                    rows[name] = rows_at(value, nodes, dim, below)
                elif of == "edges":
                    rows[name] = None
                    if edges is not None:
                        dim = self.data.__cat_dim__(name, value, store)
                        rows[name] = rows_at(value, edges, dim, bounds.of_edges(type_name))
        return found

    def batch(
        self, sampled: SampledGraphPart, rows: dict[Any, dict[str, Any]], layouts: EdgeLayouts | None
    ) -> Data | HeteroData:
        """See :meth:`RowSource.batch`; types that were not sampled have no rows."""
        batch = copy.copy(self.data)
        for type_name, store, _, has_edges in typed_storages(self.data):
            out = batch._store if type_name is None else batch[type_name]
            # Faster: PyG reads it with each field that is put, and catches an AttributeError where it is missing.
            out._cached_attr = defaultdict(set)
            for name, value in rows[type_name].items():
                out[name] = value
            if layouts is not None and has_edges and (type_name is None or "edge_index" in store or "adj_t" in store):
                layout = layouts[type_name]
                edges, value = self.edges(type_name, sampled.edges[type_name], layout)
                laid = laid_out(edges.edge_index, edges.colptr, sampled.size(type_name), layout, value)
                set_edges(out, laid, layout, edges.edge_index if type_name in layouts.both else None)
        return batch

    def node_rows(self, rows: dict[Any, dict[str, Any]], name: str) -> Any:
        """See :meth:`RowSource.node_rows`."""
        return rows[None].get(name)

    def edges(self, edge_type: Any, edges: SampledEdges, layout: EdgeLayout) -> tuple[SampledEdges, Tensor | None]:
        """See :meth:`RowSource.edges`."""
        device = edge_device(self._storage(edge_type)) if self.device is None else self.device
        moved = edges._replace(
            edge_index=edges.edge_index.to(device),
            colptr=edges.colptr if edges.colptr is None else edges.colptr.to(device),
            weight=edges.weight if edges.weight is None else edges.weight.to(device),
        )
        return moved, self._values(edge_type, moved, layout)

    def _values(self, edge_type: Any, edges: SampledEdges, layout: EdgeLayout) -> Tensor | None:
        """The values of a batch's ``adj_t``: the sampler's edge weights, else the values of the input's ``adj_t``.

        Where there are both, a warning says so once per edge type.
        """
        if layout not in ("sparse_csr", "SparseTensor"):
            return edges.weight
        if edges.weight is not None:
            first = object()  # several threads may be here at once, and one of them finds its own object
            if self._weighted.setdefault(edge_type, first) is first and has_own_values(self._storage(edge_type)):
                warn(f"{adj_t_of(edge_type)}: batches have the sampler's edge weights in place of the input's values")
            return edges.weight
        value = stored_values(self._storage(edge_type))
        if value is None or edges.edge_id is None:
            return None
        return rows_at(value, Ids(edges.edge_id), 0).to(edges.edge_index.device)

    def _storage(self, edge_type: Any) -> Any:
        return self.data._store if edge_type is None else self.data[edge_type]


class StoreRows(RowSource):
    """Reads all tensors of a FeatureStore, ours or a foreign one.

    A tensor whose group is a tuple has rows of edges: of that edge type or, in a homogeneous graph, of all edges. Other
    groups have rows of nodes.
    """

    def __init__(self, features: Any, graph: Any, custom_cls: Any = None) -> None:
        self.features, self.graph, self.custom_cls = features, graph, custom_cls
        self.threads = may_be_read_by_threads(features)
        self.collective = is_collective(features)

    def fetch(self, sampled: SampledGraphPart, bounds: Bounds) -> list[tuple[Any, Any]]:
        """(attribute, rows) per tensor of a type that was sampled, in the store's order."""
        wanted = self.wanted(sampled, bounds)
        return list(zip(wanted, self.features.multi_get_tensor(wanted), strict=True))

    def wanted(self, sampled: SampledGraphPart, bounds: Bounds) -> list[Any]:
        """The attributes of the types that were sampled, with the ids as their index."""
        hetero, features = sampled.hetero, self.features
        ids = {node_type: Ids(node) for node_type, node in sampled.nodes.items()}
        wanted = []
        for attr in all_attrs(features):
            if isinstance(attr.group_name, tuple):
                found = sampled.edges.get(attr.group_name if hetero else None)
                attr.index = None if found is None else found.edge_id
            else:
                node_type = attr.group_name if hetero else None
                attr.index = sampled.nodes.get(node_type)
                below = bounds.of_nodes.get(node_type)
                if below is not None and attr.index is not None and isinstance(features, RowStore):
                    there = ids[node_type].on(features.device_of(attr))
                    attr = BoundedAttr(attr.group_name, attr.attr_name, there, below, there)
            if attr.index is not None:
                wanted.append(attr)
        return wanted

    def batch(
        self, sampled: SampledGraphPart, rows: list[tuple[Any, Any]], layouts: EdgeLayouts | None
    ) -> Data | HeteroData:
        """See :meth:`RowSource.batch`."""
        hetero = sampled.hetero
        kind = self.custom_cls or (HeteroData if hetero else Data)
        batch = kind()

        def put_edges(store: Any, edge_type: Any) -> None:
            if layouts is not None:
                layout = layouts[edge_type]
                edges, value = self.edges(edge_type, sampled.edges[edge_type], layout)
                laid = laid_out(edges.edge_index, edges.colptr, sampled.size(edge_type), layout, value)
                set_edges(store, laid, layout)

        if not hetero:
            put_edges(batch, None)
        of_nodes = [(attr, value) for attr, value in rows if not isinstance(attr.group_name, tuple)]
        for attr, _ in of_nodes:
            (batch[attr.group_name] if hetero else batch).num_nodes = attr.index.numel()
        for attr, value in of_nodes if hetero else rows:
            (batch[attr.group_name] if hetero else batch)[attr.attr_name] = value
        if hetero:
            for edge_type in dict.fromkeys(attr.edge_type for attr in self.graph.get_all_edge_attrs()):
                if edge_type in sampled.edges:
                    put_edges(batch[edge_type], edge_type)
            for attr, value in rows:
                if isinstance(attr.group_name, tuple):
                    batch[attr.group_name][attr.attr_name] = value
        return batch

    def edges(self, edge_type: Any, edges: SampledEdges, layout: EdgeLayout) -> tuple[SampledEdges, Tensor | None]:
        """See :meth:`RowSource.edges`: they stay where they were sampled, and have the sampler's weights as values."""
        return edges, edges.weight

    def node_rows(self, rows: list[tuple[Any, Any]], name: str) -> Any:
        """See :meth:`RowSource.node_rows`."""
        found = (value for attr, value in rows if attr.attr_name == name and not isinstance(attr.group_name, tuple))
        return next(found, None)


class CollectiveSource(RowSource):
    """Reads rows in steps that all ranks take together: one step for each sample, in the order of batches."""

    threads = False
    collective = True

    def in_step(self, sampled: SampledGraphPart, inputs: int) -> None:
        """Says how many inputs all ranks have together in the step of a sample. Called before :meth:`needs` if the
        order of inputs is global."""

    @abstractmethod
    def needs(self, sampled: SampledGraphPart, bounds: Bounds) -> Any:
        """What :meth:`counts` and :meth:`read` need for a sample; several threads may call it at once."""

    def looks_ahead(self, steps: Steps) -> int | Literal["epoch"]:
        """See :meth:`CollectiveRowStore.looks_ahead`."""
        return 0

    def announce(self, needs: Any, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.announce`."""

    def withdraw(self, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.withdraw`."""

    @property
    @abstractmethod
    def counted(self) -> int:
        """See :meth:`CollectiveRowStore.counted`."""

    @abstractmethod
    def counts(self, needs: Any, steps: Steps) -> Tensor:
        """See :meth:`CollectiveRowStore.counts`."""

    @abstractmethod
    def read(self, needs: Any, asked: Tensor, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.read`."""

    @property
    def rows_here(self) -> bool:
        """See :class:`CollectiveRowStore`."""
        return False

    def taken(self, needs: Any, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.taken`."""

    def arrive(self, needs: Any, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.arrive`."""

    @abstractmethod
    def rows(self, needs: Any) -> Any:
        """What :meth:`fetch` returns; called as :meth:`CollectiveRowStore.rows`."""


class CollectiveRows(StoreRows, CollectiveSource):
    """Reads all tensors of a CollectiveRowStore."""

    def needs(self, sampled: SampledGraphPart, bounds: Bounds) -> tuple[list[Any], Any]:
        """See :meth:`CollectiveSource.needs`."""
        wanted = self.wanted(sampled, bounds)
        return wanted, self.features.needs(wanted)

    def looks_ahead(self, steps: Steps) -> int | Literal["epoch"]:
        """See :meth:`CollectiveRowStore.looks_ahead`."""
        return self.features.looks_ahead(steps)

    def announce(self, needs: tuple[list[Any], Any], steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.announce`."""
        self.features.announce(needs[1], steps)

    def withdraw(self, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.withdraw`."""
        self.features.withdraw(steps)

    @property
    def counted(self) -> int:
        """See :meth:`CollectiveRowStore.counted`."""
        return self.features.counted

    def counts(self, needs: tuple[list[Any], Any], steps: Steps) -> Tensor:
        """See :meth:`CollectiveRowStore.counts`."""
        return self.features.counts(needs[1], steps)

    def read(self, needs: tuple[list[Any], Any], asked: Tensor, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.read`."""
        self.features.read(needs[1], asked, steps)

    @property
    def rows_here(self) -> bool:
        """See :class:`CollectiveRowStore`."""
        return self.features.rows_here

    def taken(self, needs: tuple[list[Any], Any], steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.taken`."""
        self.features.taken(needs[1], steps)

    def arrive(self, needs: tuple[list[Any], Any], steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.arrive`."""
        self.features.arrive(needs[1], steps)

    def rows(self, needs: tuple[list[Any], Any]) -> list[tuple[Any, Any]]:
        """See :meth:`CollectiveSource.rows`."""
        return list(zip(needs[0], self.features.rows(needs[1]), strict=True))


def row_source(data: Any, custom_cls: Any = None, device: torch.device | None = None) -> RowSource:
    """A :class:`DataRows` for a Data or HeteroData, a :class:`StoreRows` for a pair of stores."""
    if isinstance(data, (Data, HeteroData)):
        return DataRows(data, device)
    features, graph = data
    kind = CollectiveRows if isinstance(features, CollectiveRowStore) else StoreRows
    return kind(features, graph, custom_cls)
