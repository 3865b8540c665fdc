"""Reads the rows of a sample's nodes and edges from a Data or from a pair of stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from .._warn import warn
from ..feature.attributes import EDGES, TypedStorage, typed_storages
from ..feature.contract import (
    BoundedAttr,
    CollectiveRowStore,
    RowStore,
    Version,
    all_attrs,
    is_collective,
    may_be_read_by_threads,
    version_of,
)
from ..ranks import Steps
from .classes import as_batch
from .layout import EdgeLayout, EdgeLayouts, adj_t_of, edge_device, has_own_values, laid_out, set_edges, stored_values
from .row_source import NO_ROWS, Bounds, CollectiveSource, RowSource
from .sampled import NO_IDS, SampledEdges, SampledGraphPart
from .storages import Ids, rows_at, storage_of

OF_GRAPH = object()
"""Stands for a type in the keys of attributes of a whole HeteroData."""


_NO_ATTRIBUTE_OF_ROWS = object()


class _Reader:
    """Reads the rows of one storage of a Data or HeteroData for one sample."""

    def __init__(
        self, data: Data | HeteroData, storage: TypedStorage, sampled: SampledGraphPart, bounds: Bounds
    ) -> None:
        self._data, self._storage, self._bounds = data, storage, bounds
        self._nodes = Ids(sampled.nodes.get(storage.type_name, NO_IDS))
        edges = sampled.edges.get(storage.type_name)
        self._edges = None if edges is None or edges.edge_id is None else Ids(edges.edge_id)

    def rows(self, name: str, value: Any) -> Any:
        """The rows of an attribute: None for those of edges whose ids are not known, and
        ``_NO_ATTRIBUTE_OF_ROWS`` for another attribute."""
        if name == "num_nodes":
            return self._nodes.count
        storage = self._storage
        if (of := storage.rows_of(name)) is None:
            return _NO_ATTRIBUTE_OF_ROWS
        if (ids := self._nodes if of == "nodes" else self._edges) is None:
            return None
        of_type, bounds = storage.type_name, self._bounds
        below = bounds.of_nodes.get(of_type) if of == "nodes" else bounds.of_edges(of_type)
        return rows_at(value, ids, self._data.__cat_dim__(name, value, storage.store), below)


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

    def versions(self) -> dict[Any, Version]:
        """See :meth:`RowSource.versions`; of the attributes of the graph as well, whose type is :data:`OF_GRAPH` in a
        HeteroData, and of the values of ``adj_t``."""
        found: dict[Any, Version] = {}
        for type_name, values in self._values_by_type():
            for name, value in values.copy().items():  # a copy, for the loop may change it meanwhile
                if name != "edge_index":
                    found[type_name, name] = value, self._number(type_name, name, value)
        return found

    def changed(self, versions: Mapping[Any, Version]) -> list[Any]:
        """See :meth:`RowSource.changed`."""
        by_type, count, found = dict(self._values_by_type()), 0, []
        for key, (value, number) in versions.items():
            of, name = key
            if number is None or by_type.get(of, {}).get(name) is not value or self._number(of, name, value) != number:
                found.append(key)
        for values in by_type.values():
            count += len(values) - ("edge_index" in values)
        if count != len(versions) or found:
            found += [key for key in self.versions() if key not in versions]
        return found

    def _values_by_type(self) -> list[tuple[Any, dict[str, Any]]]:
        data = self.data
        if isinstance(data, Data):
            return [(None, data._store._mapping)]
        of_types = [(type_name, store._mapping) for type_name, store, *_ in typed_storages(data)]
        return [*of_types, (OF_GRAPH, data._global_store._mapping)]

    def _number(self, type_name: Any, name: str, value: Any) -> int | None:
        if name == "adj_t":
            value = stored_values(self._storage(type_name))
        return version_of(value)[1]

    def fetch(
        self, sampled: SampledGraphPart, bounds: Bounds, versions: Mapping[Any, Version]
    ) -> dict[Any, dict[str, Any]]:
        """found[type][attribute]: its rows."""
        late = [key for key, (_, number) in versions.items() if number is None]
        found: dict[Any, dict[str, Any]] = {}
        for storage in typed_storages(self.data):
            type_name, store, has_nodes, has_edges = storage
            if has_nodes:
                sampled.nodes.setdefault(type_name, NO_IDS)
            if has_edges and type_name not in sampled.edges:
                sampled.edges[type_name] = SampledEdges.none()
            reader = _Reader(self.data, storage, sampled, bounds)
            rows = found[type_name] = {}
            for name, value in store._mapping.copy().items():
                if name in EDGES:
                    continue
                if versions:  # of these very values: the loop may add others meanwhile, and remove them before delivery
                    if (known := versions.get((type_name, name))) is None:
                        continue
                    value = known[0]
                if late and (type_name, name) in late:
                    found_rows = NO_ROWS if storage.has_rows(name) else _NO_ATTRIBUTE_OF_ROWS
                else:
                    found_rows = reader.rows(name, value)
                if found_rows is not _NO_ATTRIBUTE_OF_ROWS:
                    rows[name] = found_rows
        return found

    def renew(self, batch: Data | HeteroData, sampled: SampledGraphPart, bounds: Bounds, keys: Collection[Any]) -> None:
        """See :meth:`RowSource.renew`."""
        for storage in typed_storages(self.data):
            type_name, store, _, _ = storage
            if names := [name for of, name in keys if of == type_name]:
                reader, out = _Reader(self.data, storage, sampled, bounds), storage_of(batch, type_name)
                for name in names:
                    rows = value = store.get(name)
                    if value is not None and (rows := reader.rows(name, value)) is _NO_ATTRIBUTE_OF_ROWS:
                        rows = value
                    out[name] = rows
        for of, name in keys:
            if of is OF_GRAPH:
                batch._global_store[name] = self.data._global_store.get(name)

    def batch(
        self, sampled: SampledGraphPart, rows: dict[Any, dict[str, Any]], layouts: EdgeLayouts | None
    ) -> Data | HeteroData:
        """See :meth:`RowSource.batch`; types that were not sampled have no rows."""
        batch = as_batch(self.data)
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
                if "num_edges" in out:  # set by the user; it would be that of the whole graph
                    out["num_edges"] = edges.edge_index.size(1)
        return batch

    def node_rows(self, rows: dict[Any, dict[str, Any]], name: str) -> Any:
        """See :meth:`RowSource.node_rows`."""
        return _unless_late(rows[None].get(name))

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

    def versions(self) -> Mapping[Any, Version]:
        """See :meth:`RowSource.versions`: what the store says."""
        return self.features.versions() if isinstance(self.features, RowStore) else {}

    def fetch(
        self, sampled: SampledGraphPart, bounds: Bounds, versions: Mapping[Any, Version]
    ) -> list[tuple[Any, Any]]:
        """(attribute, rows) per tensor of a type that was sampled, in the store's order."""
        late = [key for key, (_, number) in versions.items() if number is None]
        wanted = self.wanted(sampled, bounds)
        if not late:
            return list(zip(wanted, self.features.multi_get_tensor(wanted), strict=True))
        rows = iter(self.features.multi_get_tensor([attr for attr in wanted if _key(attr) not in late]))
        return [(attr, NO_ROWS if _key(attr) in late else next(rows)) for attr in wanted]

    def renew(self, batch: Data | HeteroData, sampled: SampledGraphPart, bounds: Bounds, keys: Collection[Any]) -> None:
        """See :meth:`RowSource.renew`."""
        wanted = [attr for attr in self.wanted(sampled, bounds) if _key(attr) in keys]
        rows = zip(map(_key, wanted), self.features.multi_get_tensor(wanted), strict=True)
        for group, name in set(keys) - {_key(attr) for attr in all_attrs(self.features)}:
            if name in (store := batch[group] if sampled.hetero else batch):
                del store[name]
        for (group, name), value in rows:
            (batch[group] if sampled.hetero else batch)[name] = value

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
        return _unless_late(next(found, None))


def _key(attr: Any) -> tuple[Any, str]:
    return attr.group_name, attr.attr_name


def _unless_late(rows: Any) -> Any:
    return None if rows is NO_ROWS else rows


class CollectiveRows(StoreRows, CollectiveSource):
    """Reads all tensors of a CollectiveRowStore."""

    def needs(
        self, sampled: SampledGraphPart, bounds: Bounds, versions: Mapping[Any, Version]
    ) -> tuple[list[Any], Any]:
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


def has_learned_rows(data: Any) -> bool:
    """Whether rows of a loader's data require grad."""
    with torch.enable_grad():
        return any(number is None for _, number in row_source(data).versions().values())
