"""Reads the rows of a sample's nodes and edges from a pair of stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from torch import Tensor
from torch_geometric.data import Data, FeatureStore, HeteroData, TensorAttr
from typing_extensions import override

from ..feature.composite import Composites, keys_of_parts, with_composites
from ..feature.contract import (
    BoundedAttr,
    RowStore,
    Version,
    all_attrs,
    changed,
    is_collective,
    may_be_read_by_threads,
    reads_wait,
    without_number,
)
from ..sampler.minibatch import NO_EDGES, MiniBatch, SampledEdges
from .fields import EdgeLayout, EdgeLayouts, put_edges, storage_of
from .row_source import NO_ROWS, Bounds, Ids, RowSource


class StoreVersions(dict[Any, Version]):
    """The versions of attributes at one moment, by key; it may be referred to weakly."""


class StoreRows(RowSource):
    """Reads all tensors of a FeatureStore, ours or a foreign one.

    A tensor whose group is a tuple has rows of edges: of that edge type or, in a homogeneous graph, of all edges. Other
    groups have rows of nodes.
    """

    def __init__(self, features: Any, graph: Any, custom_cls: Any = None) -> None:
        self.features, self.graph, self.custom_cls = features, graph, custom_cls
        self.threads = may_be_read_by_threads(features)
        self.collective = is_collective(features)
        self.waits = self.threads and not self.collective and reads_wait(features)
        self._reads = Reads(features) if self.waits else None

    @override
    def versions(self) -> StoreVersions:
        """The versions of all attributes of a :class:`RowStore`, which says them."""
        if not isinstance(self.features, RowStore):
            return StoreVersions()
        attrs, said = self.features.all_attrs(), self.features.versions()
        return StoreVersions({(key := _key(attr)): said.get(key, (None, 0)) for attr in attrs})

    @override
    def changed(self, versions: Mapping[Any, Version]) -> list[Any]:
        return changed(versions, self.versions())

    @override
    def learned(self) -> list[Any]:
        return without_number(self.versions() or {})

    def fetch(
        self, sampled: MiniBatch, bounds: Bounds, versions: Mapping[Any, Version] | None = None,
        wanted: Callable[[Any], bool] | None = None,
    ) -> list[tuple[Any, Any]]:  # fmt: skip
        """(attribute, rows) per tensor of a type that was sampled, in the store's order. ``wanted(key)``: whether those
        of an attribute are read.

        Raises:
            KeyError: an attribute that has a version was removed meanwhile.
        """
        return self.start(sampled, bounds, versions, wanted)()

    def start(
        self, sampled: MiniBatch, bounds: Bounds, versions: Mapping[Any, Version] | None = None,
        wanted: Callable[[Any], bool] | None = None,
    ) -> Callable[[], list[tuple[Any, Any]]]:  # fmt: skip
        """Starts to read the rows of a sample; arguments as of :meth:`fetch`. Reads that do not wait are made by the
        function that is returned."""
        stored = all_attrs(self.features)
        if versions is not None and isinstance(self.features, RowStore):
            stored = [attr for attr in stored if _key(attr) in versions]  # others were added meanwhile
            if len(stored) < len(versions):
                raise KeyError(f"expected attributes {list(versions)}, found {[_key(attr) for attr in stored]}")
        attrs, left_out = self.wanted(sampled, bounds, stored), without_number(versions or {})
        if wanted is not None:
            left_out += [key for key in map(_key, attrs) if not wanted(key)]
        if not left_out:
            read = self._read(attrs)
            return lambda: list(zip(attrs, read(), strict=True))
        read = self._read([attr for attr in attrs if _key(attr) not in left_out])

        def rows() -> list[tuple[Any, Any]]:
            found = iter(read())
            return [(attr, NO_ROWS if _key(attr) in left_out else next(found)) for attr in attrs]

        return rows

    def _read(self, attrs: list[TensorAttr]) -> Callable[[], list[Any]]:
        """The function returns the rows of attributes."""
        return partial(self.features.multi_get_tensor, attrs) if self._reads is None else self._reads.start(attrs)

    @override
    def renew(self, batch: Data | HeteroData, sampled: MiniBatch, bounds: Bounds, keys: Collection[Any]) -> None:
        stored, keys = all_attrs(self.features), keys_of_parts(self._composites, keys)
        wanted = self.wanted(sampled, bounds, [attr for attr in stored if _key(attr) in keys])
        rows = list(zip(wanted, self._read(wanted)(), strict=True))
        for group, name in set(keys) - {_key(attr) for attr in stored}:
            if name in (store := batch[group] if sampled.types.hetero else batch):
                del store[name]
        for attr, value in with_composites(self._composites, rows, NO_ROWS):
            (batch[attr.group_name] if sampled.types.hetero else batch)[attr.attr_name] = value

    @property
    def _composites(self) -> Composites:
        return self.features.composites if isinstance(self.features, RowStore) else {}

    def wanted(self, sampled: MiniBatch, bounds: Bounds, attrs: list[TensorAttr] | None = None) -> list[Any]:
        """The attributes among these, by default all, of the types that were sampled, with the ids as their index."""
        features, hetero, wanted = self.features, sampled.types.hetero, []
        attrs = all_attrs(features) if attrs is None else attrs
        groups = list(dict.fromkeys(attr.group_name for attr in attrs))
        found = dict(zip(groups, sampled_ids(sampled, groups), strict=True))
        there = {group: Ids(ids) for group, ids in found.items() if ids is not None}
        for attr in attrs:
            if (ids := found[group := attr.group_name]) is None:
                continue
            below = None if isinstance(group, tuple) else bounds.of_nodes.get(group if hetero else None)
            if below is not None and isinstance(features, RowStore):
                ids = there[group].on(features.device_of(attr))
                attr = BoundedAttr(group, attr.attr_name, ids, below, ids)
            attr.index = ids
            wanted.append(attr)
        return wanted

    @override
    def batch(self, sampled: MiniBatch, rows: list[tuple[Any, Any]], layouts: EdgeLayouts | None) -> Data | HeteroData:
        hetero = sampled.types.hetero
        if composites := self._composites:
            rows = with_composites(composites, rows, NO_ROWS)
        kind = self.custom_cls or (HeteroData if hetero else Data)
        batch = kind()

        def lay(edge_type: Any) -> None:
            if layouts is not None:
                edges = sampled.edges_of(edge_type) or NO_EDGES
                put_edges(storage_of(batch, edge_type)._mapping, edges, edges.weight, sampled, edge_type, layouts)

        if not hetero:
            lay(None)
        of_nodes = [(attr, value) for attr, value in rows if not isinstance(attr.group_name, tuple)]
        for attr, _ in of_nodes:
            (batch[attr.group_name] if hetero else batch).num_nodes = attr.index.numel()
        for attr, value in of_nodes if hetero else rows:
            (batch[attr.group_name] if hetero else batch)[attr.attr_name] = value
        if hetero:
            for edge_type in dict.fromkeys(attr.edge_type for attr in self.graph.get_all_edge_attrs()):
                if edge_type in sampled.types.edge_number:
                    lay(edge_type)
            for attr, value in rows:
                if isinstance(attr.group_name, tuple):
                    batch[attr.group_name][attr.attr_name] = value
        return batch

    def edges(
        self, rows: Any, edge_type: Any, edges: SampledEdges, layout: EdgeLayout
    ) -> tuple[SampledEdges, Tensor | None]:
        """The edges, which stay where they were sampled, and the sampler's weights as values."""
        return edges, edges.weight

    @override
    def node_rows(self, rows: list[tuple[Any, Any]], name: str) -> Any:
        for attr, value in rows:
            if attr.attr_name == name and not isinstance(attr.group_name, tuple):
                return None if value is NO_ROWS else value
        return None


def _key(attr: Any) -> tuple[Any, str]:
    return attr.group_name, attr.attr_name


def sampled_ids(sampled: MiniBatch, groups: Iterable[Any]) -> list[Tensor | None]:
    """By group of rows, the ids of its sampled nodes or edges; None of a group that was not sampled."""
    types, found = sampled.types, list[Tensor | None]()
    for group in groups:
        of, key = types.edge_number if isinstance(group, tuple) else types.node_number, group if types.hetero else None
        if (number := of.get(key)) is None:
            found.append(None)
        else:
            found.append(sampled.edges[number].edge_id if isinstance(group, tuple) else sampled.nodes[number])
    return found


MOST_READS = 256
"""The most reads of one loader that are under way at once. There are no more threads than that."""


class Reads:
    """Reads the rows of a store; all attributes of a batch at once.

    Args:
        features: a store that several threads may ask at once. One that defines ``multi_get_tensor`` or
            ``_multi_get_tensor`` itself is asked for all attributes of a batch in one read. Of one with ``read_async``,
            no thread waits.
    """

    def __init__(self, features: Any) -> None:
        self.features = features
        self._together = any(
            getattr(type(features), name, None) is not getattr(FeatureStore, name)
            for name in ("multi_get_tensor", "_multi_get_tensor")
        )
        self._new_pool()

    def start(self, attrs: list[TensorAttr]) -> Callable[[], list[Any]]:
        """Starts to read attributes; the function waits for their rows and returns them, in the order of ``attrs``."""
        if hasattr(self.features, "read_async"):
            reads = [self.features.read_async(attr, attr.index) for attr in attrs]
        elif self._together:
            return self._pool().submit(self.features.multi_get_tensor, attrs).result
        else:
            reads = [self._pool().submit(self.features.get_tensor, attr) for attr in attrs]
        return lambda: [read.result() for read in reads]

    def _pool(self) -> ThreadPoolExecutor:
        """Threads of this process: a fork has none of those that were started before."""
        if self._process != os.getpid():
            self._new_pool()
        return self._threads

    def _new_pool(self) -> None:
        self._threads, self._process = ThreadPoolExecutor(MOST_READS, "gnnscale-reads"), os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return Reads, (self.features,)
