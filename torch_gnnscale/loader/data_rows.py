"""Reads the rows of a sample's nodes and edges from a Data or HeteroData."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import index_select
from typing_extensions import override

from .. import ops
from .._warn import warn
from ..feature.attributes import EDGES, TypedStorage, typed_storages, warn_of_whole_attributes
from ..feature.composite import composite_rows, is_composite
from ..feature.contract import Version, changed, version_of, without_number
from ..ops.rows import select_each
from ..sampler.base import OWN_FIELDS
from ..sampler.minibatch import NO_EDGES, NO_IDS, MiniBatch, SampledEdges
from .fields import (
    EdgeLayout,
    EdgeLayouts,
    adj_t_of,
    as_batch,
    edge_device,
    has_own_values,
    put,
    put_edges,
    storage_of,
    stored_values,
    with_fields,
)
from .row_source import NO_ROWS, Bounds, Ids, RowSource

OF_GRAPH = object()
"""Stands for a type in the keys of attributes of a whole HeteroData."""

_HOST = torch.device("cpu")
_PLAIN = int, float, str  # bool is an int


def rows_at(value: Any, ids: Ids, dim: int, below: int | None = None) -> Any:
    """``value.index_select(dim, ids)``, by the native gather if it can read ``value`` and is faster. Entries of a list
    or a tuple are in a list; rows of an array whose numbers torch does not have, or of strings, in an array; those of a
    TensorFrame in one.

    ``below``: all ids are known to be in [0, below); if the tensor has that many rows, they are not checked again.
    """
    index = ids.on(getattr(value, "device", _HOST))  # NumPy arrays have no device
    if isinstance(value, Tensor) and dim == 0 and ops.can_gather_rows(value):
        return ops.select_rows(value, index, check=below is None or below > value.size(0))
    if is_composite(value):
        return composite_rows(value, index, lambda part: rows_at(part, ids, 0, below))
    if isinstance(value, (list, tuple)):
        return [value[i] for i in index.tolist()]
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        return np.take(value, index.numpy(), axis=dim)
    return index_select(value, index, dim=dim)


class _Reader:
    """Reads the rows of one storage of a Data or HeteroData for one sample.

    Args:
        data: of the storage.
        storage: whose attributes are read.
        sampled: the sample; a type that was not sampled has no rows.
        bounds: of its ids.
    """

    def __init__(self, data: Data | HeteroData, storage: TypedStorage, sampled: MiniBatch, bounds: Bounds) -> None:
        self.data, self.storage, self.bounds = data, storage, bounds
        types, self._sampled = sampled.types, sampled
        number = types.node_number.get(storage.type_name) if storage.has_nodes else None
        self._of_nodes = NO_IDS if number is None else sampled.nodes[number]

    @cached_property
    def nodes(self) -> Ids:
        """The ids of nodes."""
        return Ids(self._of_nodes)

    @cached_property
    def edges(self) -> Ids | None:
        """The ids of edges; None if they are not known."""
        edges = (self._sampled.edges_of(self.storage.type_name) or NO_EDGES) if self.storage.has_edges else NO_EDGES
        return None if edges.edge_id is None else Ids(edges.edge_id)

    def rows(self, name: str, of: Literal["nodes", "edges"]) -> Any:
        """The rows of an attribute of nodes or edges: None for those of edges whose ids are not known."""
        if name == "num_nodes":
            return self._of_nodes.numel()
        if (ids := self.nodes if of == "nodes" else self.edges) is None:
            return None
        of_type, store = self.storage.type_name, self.storage.store
        below = self.bounds.of_nodes.get(of_type) if of == "nodes" else self.bounds.of_edges(of_type)
        try:
            return rows_at(value := store[name], ids, dim := self.data.__cat_dim__(name, value, store), below)
        except IndexError as error:  # it was long enough when the loader was made
            expected = f"a row for each of {'' if below is None else f'{below} '}{of}"
            found = value.shape[dim] if hasattr(value, "shape") else len(value)
            raise IndexError(f"{self.storage.label(name)}: expected {expected}, found {found} rows: {error}") from None

    def all_rows(self, names: list[tuple[str, Literal["nodes", "edges"]]]) -> dict[str, Any]:
        """:meth:`rows` of several attributes. Plain tensors with rows of nodes in host memory are read in one call."""
        below = self.bounds.of_nodes.get(self.storage.type_name)
        store, read = self.storage.store._mapping, {}
        if below is not None:
            plain = [
                (name, value)
                for name, of in names
                if of == "nodes" and type(value := store.get(name)) is Tensor and value.device.type == "cpu"
                and self.data.__cat_dim__(name, value, self.storage.store) == 0
            ]  # fmt: skip
            if plain:
                try:
                    ids = self._of_nodes if self._of_nodes.device == _HOST else self.nodes.on(_HOST)
                    found = select_each([value for _, value in plain], ids, below)
                except IndexError:
                    found = []  # :meth:`rows` names the one
                read = {name: rows for (name, _), rows in zip(plain, found, strict=False)}
        return {name: rows if (rows := read.get(name)) is not None else self.rows(name, of) for name, of in names}


class DataVersions:
    """The attributes of a Data or HeteroData at one moment, and their versions.

    Args:
        fields: by type.
        numbers: of changes of each attribute, in the same order; None for what requires grad.
    """

    def __init__(self, fields: dict[Any, dict[str, Any]], numbers: list[int | None]) -> None:
        self.fields, self.numbers = fields, numbers

    def equal(self, other: DataVersions) -> bool:
        """Whether both are the same values in the same versions, all of which have a number. In few steps of Python's:
        each batch is compared."""
        fields, others = self.fields.values(), other.fields.values()
        return (
            self.numbers == other.numbers
            and None not in self.numbers
            and list(self.fields) == list(other.fields)
            and list(map(tuple, fields)) == list(map(tuple, others))  # names
            and all(map(operator.is_, _values(fields), _values(others)))
        )

    def by_key(self) -> dict[Any, Version]:
        """The versions of all attributes of which batches have rows or copies, by (type, name)."""
        keys = ((of, name) for of, fields in self.fields.items() for name in fields)
        versions = zip(keys, _values(self.fields.values()), self.numbers, strict=True)
        return {key: (value, number) for key, value, number in versions if key[1] != "edge_index"}

    def learned(self) -> list[Any]:
        """The keys of attributes whose versions have no number."""
        return without_number(self.by_key()) if None in self.numbers else []


def _values(fields: Iterable[dict[str, Any]]) -> Iterator[Any]:
    return chain.from_iterable(map(dict.values, fields))


def _reference(value: Any) -> Callable[[], Any]:
    """Returns the value while it is there, or None; always None for a list or the like, which Python cannot watch."""
    if isinstance(value, _PLAIN):
        return lambda: value
    try:
        return weakref.ref(value)
    except TypeError:
        return _nothing


def _nothing() -> None:
    return None


def _number(name: str, value: Any) -> int | None:
    if name == "edge_index":
        return 0
    return version_of(stored_values({name: value}) if name == "adj_t" else value)[1]


class FoundRows(NamedTuple):
    """The rows of a sample."""

    graph: Data | HeteroData
    """The data as they were when the rows were read."""
    by_type: dict[Any, dict[str, Any]]
    """By type and attribute: None for rows of edges whose ids are not known."""
    storages: list[TypedStorage]
    """Those of ``graph``."""


class DataRows(RowSource):
    """Reads the attributes of a Data or HeteroData, in its order.

    Args:
        data: read anew for each batch, so that changes show in later batches. While threads read them, the thread that
            iterates may add, replace and remove attributes and types: threads read a copy, made in a moment.
        typed: whether its nodes and edges have types.
        device: the device of a batch's edges; by default that of the edges of ``data``.
    """

    threads = True
    collective = False

    def __init__(self, data: Data | HeteroData, typed: bool, device: torch.device | None = None) -> None:
        self.data, self.typed = data, typed
        self.device = device
        self._weighted: dict[Any, object] = {}  # edge types for which the sampler has given weights
        self._with_rows: dict[Any, int] = {}
        """How many attributes had rows, by type."""
        self._kinds: tuple[list[Any], list[Callable[[], Any]], dict[Any, Any]] = [], [], {}

    def __getstate__(self) -> dict[str, Any]:
        """Of another process, which is given copies of the attributes."""
        return {**self.__dict__, "_kinds": ([], [], {})}

    def versions(self) -> DataVersions:
        """The versions of all attributes, of those of the graph as well, whose type is :data:`OF_GRAPH` in a
        HeteroData, and of the values of ``adj_t``."""
        fields = self._fields()
        try:  # in few steps of Python's: twice for each batch
            numbers = [
                value._version
                if type(value) is Tensor and not value.requires_grad and name not in EDGES
                else _number(name, value)
                for attributes in fields.values()
                for name, value in attributes.items()
            ]
        except RuntimeError:  # an inference tensor has no number of changes
            numbers = [_number(name, value) for attributes in fields.values() for name, value in attributes.items()]
        return DataVersions(fields, numbers)

    def _fields(self) -> dict[Any, dict[str, Any]]:
        """The attributes by type: copies, because the loop may set attributes while a thread is here."""
        data = self.data
        if not self.typed:
            return {None: data._store._mapping.copy()}
        stores = {**data._node_store_dict, **data._edge_store_dict, OF_GRAPH: data._global_store}
        return {of: store._mapping.copy() for of, store in stores.items()}

    def _kinds_of(self, fields: dict[Any, dict[str, Any]]) -> dict[Any, Any]:
        """What :meth:`TypedStorage.with_rows` said, kept while the data have the very same attributes: what has
        rows follows from the numbers of nodes and edges, and these from all of them. No value is kept alive."""
        keys, values = [(of, *names) for of, names in fields.items()], list(_values(fields.values()))
        of_keys, references, kinds = self._kinds  # as one thread left it
        if of_keys == keys and all(map(operator.is_, [reference() for reference in references], values)):
            return kinds
        self._kinds = keys, [_reference(value) for value in values], (kinds := {})
        return kinds

    @override
    def changed(self, versions: DataVersions) -> list[Any]:
        now = self.versions()
        return [] if now.equal(versions) else changed(versions.by_key(), now.by_key())

    @override
    def learned(self) -> list[Any]:
        return self.versions().learned()

    def fetch(
        self, sampled: MiniBatch, bounds: Bounds, versions: DataVersions | None = None,
        wanted: Callable[[Any], bool] | None = None,
    ) -> FoundRows:  # fmt: skip
        """Reads the rows of a sample. ``wanted(key)``: whether those of an attribute are read."""
        # Of the values of these very versions: the loop may add others meanwhile, and remove them before delivery.
        graph, late = self.data, []
        fields = self._fields() if versions is None else versions.fields
        if versions is not None:
            graph, late = with_fields(graph, fields), versions.learned()
        kinds, found = self._kinds_of(fields), {}
        storages = typed_storages(graph) if self.typed else [TypedStorage(None, graph._store, True, True)]
        for storage in storages:
            of_type = storage.type_name
            if (names := kinds.get(of_type)) is None:
                names = kinds[of_type] = storage.with_rows()
                if len(names) < self._with_rows.get(of_type, 0):
                    warn_of_whole_attributes(graph)
                self._with_rows[of_type] = len(names)
            reader = _Reader(graph, storage, sampled, bounds)
            if late or wanted is not None:
                found[of_type] = {
                    name: NO_ROWS
                    if (of_type, name) in late or (wanted is not None and not wanted((of_type, name)))
                    else reader.rows(name, of)
                    for name, of in names
                }
            else:
                found[of_type] = reader.all_rows(names)
        return FoundRows(graph, found, storages)

    @override
    def renew(self, batch: Data | HeteroData, sampled: MiniBatch, bounds: Bounds, keys: Collection[Any]) -> None:
        types = {of for of, _ in keys}
        storages = [storage for storage in typed_storages(self.data) if storage.type_name in types]
        readers = {storage.type_name: _Reader(self.data, storage, sampled, bounds) for storage in storages}
        for of, name in keys:
            if of is OF_GRAPH:
                batch._global_store[name] = self.data._global_store.get(name)
                continue
            reader = readers.get(of)  # None: of a type that was removed
            value = None if reader is None else reader.storage.store.get(name)
            if name == "num_edges" and value is not None:  # of the whole graph
                storage_of(batch, of)._mapping.pop(name, None)
                value = (batch if of is None else batch[of]).num_edges
            elif reader is not None and value is not None and (kind := reader.storage.kind_of(name)) is not None:
                value = reader.rows(name, kind)
            put(storage_of(batch, of)._mapping, {name: value})

    @override
    def put_plain(self, batch: Data | HeteroData, versions: DataVersions, keys: list[Any]) -> list[Any]:
        now, others = self._fields(), []
        for of, name in keys:
            before, after = (fields.get(of, {}).get(name) for fields in (versions.fields, now))
            there = of in versions.fields and of in now and name not in OWN_FIELDS and name != "num_edges"
            if there and all(value is None or isinstance(value, _PLAIN) for value in (before, after)):
                put((batch._global_store if of is OF_GRAPH else storage_of(batch, of))._mapping, {name: after})
            else:
                others.append((of, name))
        return others

    def batch(self, sampled: MiniBatch, rows: FoundRows, layouts: EdgeLayouts | None) -> Data | HeteroData:
        """Makes a batch of rows; types that were not sampled have none."""
        batch, types = as_batch(rows.graph), sampled.types
        for type_name, store, has_nodes, has_edges in rows.storages:
            fields = storage_of(batch, type_name)._mapping
            for name, value in rows.by_type[type_name].items():
                if value is None:
                    fields.pop(name, None)
                else:
                    fields[name] = value
            number = (types.node_number if has_nodes else types.edge_number).get(type_name)
            if number is None:
                fields.setdefault("n_id" if has_nodes else "e_id", NO_IDS)
            if layouts is not None and has_edges and (type_name is None or "edge_index" in store or "adj_t" in store):
                edges = NO_EDGES if number is None else sampled.edges[number]
                edges, value = self._edges(store, type_name, edges, layouts[type_name])
                put_edges(fields, edges, value, sampled, type_name, layouts)
                if "num_edges" in fields:  # set by the user; it would be that of the whole graph
                    fields["num_edges"] = edges.edge_index.size(1)
        return batch

    @override
    def node_rows(self, rows: FoundRows, name: str) -> Any:
        found = rows.by_type[None].get(name)
        return None if found is NO_ROWS else found

    @override
    def edges(
        self, rows: FoundRows, edge_type: Any, edges: SampledEdges, layout: EdgeLayout
    ) -> tuple[SampledEdges, Tensor | None]:
        return self._edges(storage_of(rows.graph, edge_type), edge_type, edges, layout)

    def _edges(
        self, store: Any, edge_type: Any, edges: SampledEdges, layout: EdgeLayout
    ) -> tuple[SampledEdges, Tensor | None]:
        """Sampled edges of a type on the device of the edges in ``store``, and their values."""
        device = edge_device(store) if self.device is None else self.device
        if edges.edge_index.device != device:  # `to` takes longer, also where there is nothing to do
            edges = edges._replace(
                edge_index=edges.edge_index.to(device),
                colptr=edges.colptr if edges.colptr is None else edges.colptr.to(device),
                weight=edges.weight if edges.weight is None else edges.weight.to(device),
            )
        if layout in ("sparse_csr", "SparseTensor"):
            return edges, self._values(store, edge_type, edges)
        return edges, edges.weight

    def _values(self, store: Any, edge_type: Any, edges: SampledEdges) -> Tensor | None:
        """The values of a batch's ``adj_t``: the sampler's edge weights, else the values of the input's ``adj_t``.

        Where there are both, a warning says so once per edge type.
        """
        if edges.weight is not None:
            first = object()  # several threads may be here at once, and one of them finds its own object
            if self._weighted.setdefault(edge_type, first) is first and has_own_values(store):
                warn(f"{adj_t_of(edge_type)}: batches have the sampler's edge weights in place of the input's values")
            return edges.weight
        value = stored_values(store)
        if value is None or edges.edge_id is None:
            return None
        return rows_at(value, Ids(edges.edge_id), 0).to(edges.edge_index.device)
