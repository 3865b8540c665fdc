"""The contract of row sources: what a loader's line asks of an object that reads the rows of samples; and the source
that reads them from a pair of stores."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, HeteroData, TensorAttr
from typing_extensions import override

from ..comm.steps import Steps
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
from ..sampler.base import KeyedSampler
from ..sampler.minibatch import NO_EDGES, MiniBatch, SampledEdges, sampled_ids
from .fields import EdgeLayout, EdgeLayouts, put_edges, storage_of


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


NO_ROWS = torch.empty(0)
"""Takes the place of rows that are read when their batch is delivered."""


class BatchSource(ABC):
    """Reads the rows of samples (``fetch``) and makes batches of them without reading (``batch``). A loader has one."""

    threads: bool
    """Whether several threads may fetch at once."""
    waits: bool = False
    """Whether reads mostly wait for what is no core of this machine. Only if several threads may fetch at once."""
    collective: bool
    """Whether all ranks of a process group must fetch together."""

    own: RowSource
    """What reads the rows of a sample's own nodes and edges, and knows their versions."""

    @abstractmethod
    def fetch(self, sampled: MiniBatch, bounds: Bounds, versions: Any = None) -> Any:
        """All rows of a sample. Ids are checked unless ``bounds`` show that they are in range.

        ``versions``: as :meth:`RowSource.versions` returned them before. Rows of a version without a number are left
        out; :data:`NO_ROWS` takes their place. None: rows are read when their batch is delivered, all of them."""

    def start(self, sampled: MiniBatch, bounds: Bounds, versions: Any = None) -> Callable[[], Any]:
        """Starts to read what :meth:`fetch` returns; the function waits for it and returns it."""
        rows = self.fetch(sampled, bounds, versions)
        return lambda: rows

    @abstractmethod
    def renew(self, batch: Data | HeteroData, sampled: MiniBatch, bounds: Bounds, keys: Collection[Any]) -> None:
        """Reads rows again and puts them into their batch, in the thread that iterates.

        Args:
            batch, sampled, bounds: of one batch.
            keys: of the attributes; one that there is no more is removed.
        """

    @abstractmethod
    def batch(self, sampled: MiniBatch, rows: Any, layouts: EdgeLayouts | None) -> Data | HeteroData:
        """A batch of these rows with the sampled edges in these layouts; ``layouts=None`` puts no sampled edges."""


class RowSource(BatchSource):
    """Reads the rows of samples by itself.

    Where rows are read ahead, the rows of attributes that have changed since are read again when their batch is
    delivered (``versions``, ``changed``, ``renew``)."""

    @property
    def own(self) -> RowSource:  # type: ignore[override]
        """This object."""
        return self

    @abstractmethod
    def versions(self) -> Any:
        """The versions of all attributes whose rows may change while they are read ahead, for :meth:`changed` and
        :meth:`fetch`. None: there are none."""

    @abstractmethod
    def changed(self, versions: Any) -> list[Any]:
        """The keys (type, name) of attributes that have other versions now, or versions without a number."""

    @abstractmethod
    def learned(self) -> list[Any]:
        """The keys of attributes whose versions have no number."""

    def put_plain(self, batch: Data | HeteroData, versions: Any, keys: list[Any]) -> list[Any]:
        """Puts attributes that were and are numbers or strings, or are not there, into a batch.

        Args:
            batch: of a worker process, made of attributes of these versions.
            versions: as :meth:`versions` returned them.
            keys: of the attributes that have other versions now.

        Returns:
            The keys of all others, which are left as they are.
        """
        return keys

    @abstractmethod
    def edges(
        self, rows: Any, edge_type: Any, edges: SampledEdges, layout: EdgeLayout
    ) -> tuple[SampledEdges, Tensor | None]:
        """Sampled edges of a type on the device of a batch's edges (``edge_id`` is not moved), and their values: those
        that they have in this layout if it is an ``adj_t``. ``rows``: what :meth:`fetch` returned."""

    @abstractmethod
    def node_rows(self, rows: Any, name: str) -> Any:
        """The rows of one attribute of a homogeneous graph's nodes, taken from ``rows``, which :meth:`fetch` returned;
        None if there is no such attribute, or its rows are read later."""


class CollectiveSource(BatchSource):
    """Reads rows in steps that all ranks take together: one step for each sample, in the order of batches. ``needs`` is
    what one batch reads."""

    threads = False
    collective = True
    steps: Steps
    """Of the loader, after :meth:`join`."""
    rows_here: bool = False
    """Whether the thread that iterates exchanges the rows: :meth:`read` asks for them, and :meth:`arrive` gets them."""
    window: int | Literal["epoch"] = 0
    """Of how many later steps :meth:`announce` is told the needs before a step, at most those of the epoch."""
    counted: int = 0
    """How many numbers :meth:`counts` has for each rank, the same on all ranks; 0: it is not called."""

    counts_inputs = False
    """Whether ``sampled.fields`` get ``global_batch_size``, the number of inputs that all ranks have together in a
    step, before :meth:`needs` is called."""

    def join(self, steps: Steps) -> None:
        """Called once, when the ranks have met to make the loader, before rows are read in its steps."""
        self.steps = steps

    @abstractmethod
    def needs(self, sampled: MiniBatch, bounds: Bounds, versions: Any) -> Any:
        """What a sample reads; several threads may call it at once. Arguments as of :meth:`fetch`."""

    def announce(self, needs: Any) -> None:
        """Tells the needs of a step that comes later, in the order of steps; called on their thread."""

    def withdraw(self) -> None:
        """Takes back what was announced of steps that do not come."""

    def counts(self, needs: Any) -> Tensor:
        """``counts`` of :meth:`Steps.step`. Called once for a batch, on the thread of the steps, in their order."""
        raise NotImplementedError

    @abstractmethod
    def read(self, needs: Any, asked: Tensor) -> Callable[[], None] | None:
        """Gets what a batch asks of other ranks, and answers them. ``asked``: their counts. Called in a step.

        Returns a function that is called on the thread of the steps when all ranks have taken this one; it needs no
        other rank, and the others are told of its error. None: nothing is left to do. With ``rows_here``,
        :meth:`arrive` follows.
        """

    def arrive(self, needs: Any) -> None:
        """With ``rows_here``, gets the rows that :meth:`read` asked for. Called by the thread that iterates, on all
        ranks, for each step that was taken, in their order.

        Raises:
            RuntimeError: a rank is gone.
        """

    @abstractmethod
    @override
    def batch(self, sampled: MiniBatch, rows: Any, layouts: EdgeLayouts | None) -> Data | HeteroData:
        """A batch, once the rows have come. ``rows``: the batch's needs. Several threads may call it at once; with
        ``rows_here``, the thread that iterates does, after :meth:`arrive`."""


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

        of_nodes = [(attr, value) for attr, value in rows if not isinstance(attr.group_name, tuple)]
        if not hetero:
            lay(None)
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
