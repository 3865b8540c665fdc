"""Reads the rows of a sample's nodes and edges from a Data or HeteroData."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Collection
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
from .._user import warn
from ..feature.attributes import (
    OF_GRAPH,
    PLAIN,
    DataVersions,
    Kinds,
    TypedStorage,
    WithRows,
    fields_of,
    stored_values,
    stores_of,
    typed_storages,
    warn_of_whole_attributes,
    with_fields,
)
from ..feature.composite import composite_rows, is_composite, plain_tensors
from ..feature.contract import changed
from ..ops.arguments import NO_IDS
from ..ops.rows import select_each
from ..sampler.base import OWN_FIELDS
from ..sampler.minibatch import NO_EDGES, MiniBatch, SampledEdges
from .fields import EdgeLayout, EdgeLayouts, adj_t_of, as_batch, edge_device, has_own_values, put, put_edges, storage_of
from .row_source import NO_ROWS, Bounds, Ids, RowSource

_HOST = torch.device("cpu")


def rows_at(
    value: Any, ids: Ids, dim: int, below: int | None = None, read: dict[int, Tensor | None] | None = None
) -> Any:
    """``value.index_select(dim, ids)``, by the native gather if it can read ``value`` and is faster. Entries of a list
    or a tuple are in a list; rows of an array whose numbers torch does not have, or of strings, in an array; those of a
    TensorFrame in one.

    ``below``: all ids are known to be in [0, below); if the tensor has that many rows, they are not checked again.
    ``read``: rows of a TensorFrame's tensors that were read before, by the ``id`` of the tensor; taken out.
    """
    index = ids.on(getattr(value, "device", _HOST))  # NumPy arrays have no device
    if isinstance(value, Tensor) and dim == 0 and ops.can_gather_rows(value):
        return ops.select_rows(value, index, check=below is None or below > value.size(0))
    if is_composite(value):

        def take(part: Tensor) -> Tensor:
            rows = None if read is None else read.pop(id(part), None)
            return rows_at(part, ids, 0, below) if rows is None else rows

        return composite_rows(value, index, take)
    if isinstance(value, (list, tuple)):
        return [value[i] for i in index.tolist()]
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        return np.take(value, index.numpy(), axis=dim)
    return index_select(value, index, dim=dim)


class KnownKinds:
    """What has rows, kept while the data have the very same attributes: it follows from the numbers of nodes and edges,
    and these from all of them. No value is kept alive."""

    def __init__(self) -> None:
        self._known: tuple[list[int], list[Any], list[Callable[[], Any]], Kinds] = [], [], [], {}
        """(numbers of attributes by type, the types and then their names, references to the values, what has rows)."""

    def of(self, fields: dict[Any, dict[str, Any]]) -> Kinds | None:
        """Those of data with these attributes, by type; None if they are not known."""
        sizes, names, references, kinds = self._known  # as one thread left it
        of_types = fields.values()
        if [*map(len, of_types)] != sizes or [*fields, *chain.from_iterable(of_types)] != names:
            return None
        values = chain.from_iterable(map(dict.values, of_types))
        return kinds if all(map(operator.is_, [known() for known in references], values)) else None

    def keep(self, fields: dict[Any, dict[str, Any]], kinds: Kinds) -> None:
        """Keeps those of data with these attributes."""
        sizes, names = [*map(len, fields.values())], [*fields, *chain.from_iterable(fields.values())]
        values = chain.from_iterable(map(dict.values, fields.values()))
        self._known = sizes, names, list(map(_reference, values)), kinds

    def __getstate__(self) -> dict[str, Any]:
        """Of another process, which is given copies of the attributes."""
        return {"_known": ([], [], [], {})}


def _reference(value: Any) -> Callable[[], Any]:
    """Returns the value while it is there, or None; always None for a list or the like, which Python cannot watch."""
    if isinstance(value, PLAIN):
        return lambda: value
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: None


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
        self.read: dict[int, Tensor | None] = {}
        """Rows that were read together, by the ``id`` of their tensor, which the data hold meanwhile; None for a tensor
        that is to be read alone. An attribute takes those of its tensors out, for no two attributes of a batch share
        memory."""

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
        value, dim = store._mapping.get(name), 0
        below = self.bounds.of_nodes.get(of_type) if of == "nodes" else self.bounds.of_edges(of_type)
        try:
            if not is_composite(value):
                dim = self.data.__cat_dim__(name, value := store[name], store)
            return rows_at(value, ids, dim, below, self.read)
        except IndexError as error:  # it was long enough when the loader was made
            expected = f"a row for each of {'' if below is None else f'{below} '}{of}"
            found = value.shape[dim] if hasattr(value, "shape") else len(value)
            raise IndexError(f"{self.storage.label(name)}: expected {expected}, found {found} rows: {error}") from None

    def together(self, kinds: WithRows) -> tuple[list[Tensor], Tensor, int] | None:
        """What is read in one call with that of other storages, as :func:`select_each` asks for it: plain tensors with
        rows of nodes in host memory, and those of TensorFrames; None if there are none."""
        stored, below = self.storage.store._mapping, self.bounds.of_nodes.get(self.storage.type_name)
        if below is None:
            return None
        tensors = [tensor for name in kinds.tensors if (tensor := stored[name]).is_cpu]
        for name in kinds.composites:
            tensors += [part for part in plain_tensors(stored[name]) if type(part) is Tensor and part.is_cpu]
        if not tensors:
            return None
        return tensors, self._of_nodes if self._of_nodes.is_cpu else self.nodes.on(_HOST), below

    def all_rows(self, kinds: WithRows) -> dict[str, Any]:
        """:meth:`rows` of all attributes."""
        stored, read = self.storage.store._mapping, self.read
        return {
            name: rows if (rows := read.pop(id(stored.get(name)), None)) is not None else self.rows(name, of)
            for name, of in kinds.names
        }


def _read_together(readers: list[tuple[_Reader, WithRows]]) -> None:
    """Reads in one call what readers can read so."""
    asked: list[tuple[_Reader, tuple[list[Tensor], Tensor, int]]] = []
    for reader, kinds in readers:
        if (group := reader.together(kinds)) is not None:
            asked.append((reader, group))
    if not asked:
        return
    try:
        found = select_each([group for _, group in asked])
    except IndexError:  # :meth:`_Reader.rows` names the one
        return
    for (reader, group), rows in zip(asked, found, strict=True):
        reader.read = dict(zip(map(id, group[0]), rows, strict=True))


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
        self._known = KnownKinds()
        self._storages: tuple[list[Any], list[TypedStorage]] = [], []
        """PyG's storages of the last batch, and what :func:`typed_storages` says of them."""

    @override
    def versions(self) -> DataVersions:
        made = DataVersions(self.data, self.typed)
        of_types = {of: fields for of, fields in made.fields.items() if of is not OF_GRAPH}
        made.kinds = self._kinds_of(of_types, lambda: with_fields(self.data, made.stores, made.fields))
        return made

    def _storages_now(self) -> list[TypedStorage]:
        """The storages of the data; the loop may add and remove types."""
        data = self.data
        stores = [*data._node_store_dict.values(), *data._edge_store_dict.values()] if self.typed else [data._store]
        before, storages = self._storages  # as one thread left it
        if len(stores) != len(before) or not all(map(operator.is_, stores, before)):
            self._storages = stores, (storages := typed_storages(data))
        return storages

    def _kinds_of(self, fields: dict[Any, dict[str, Any]], graph: Callable[[], Any]) -> Kinds:
        """Which of these attributes have rows, by type; ``graph()`` returns data that have them. Warns of those that
        have no longer a row for each node or edge, if others had."""
        if (kinds := self._known.of(fields)) is None:
            graph = graph()
            kinds = {storage.type_name: WithRows.of(graph, storage) for storage in typed_storages(graph)}
            counts = {of: len(found.names) for of, found in kinds.items()}
            if any(count < self._with_rows.get(of, 0) for of, count in counts.items()):
                warn_of_whole_attributes(graph)
            self._with_rows |= counts
            self._known.keep(fields, kinds)
        return kinds

    @override
    def changed(self, versions: DataVersions) -> list[Any]:
        if versions.hold():
            return versions.learned
        return changed(versions.by_key(), self.versions().by_key())

    @override
    def learned(self) -> list[Any]:
        return self.versions().learned

    def fetch(
        self, sampled: MiniBatch, bounds: Bounds, versions: DataVersions | None = None,
        wanted: Callable[[Any], bool] | None = None,
    ) -> FoundRows:  # fmt: skip
        """Reads the rows of a sample. ``wanted(key)``: whether those of an attribute are read."""
        if versions is None:
            graph, storages, late = self.data, self._storages_now(), []
            kinds = self._kinds_of({of: store._mapping for of, store, _, _ in storages}, lambda: graph)
        else:  # of these very versions: the loop may add attributes meanwhile, and remove them before delivery
            (graph, storages), late, kinds = versions.graph, versions.learned, versions.kinds
        found: dict[Any, dict[str, Any]] = {}
        readers: list[tuple[_Reader, WithRows]] = []
        for storage in storages:
            found[storage.type_name] = {}
            if (of_storage := kinds[storage.type_name]).names:
                readers.append((_Reader(graph, storage, sampled, bounds), of_storage))
        if not late and wanted is None:
            _read_together(readers)
            for reader, of_storage in readers:
                found[reader.storage.type_name] = reader.all_rows(of_storage)
            return FoundRows(graph, found, storages)
        for reader, of_storage in readers:
            of_type = reader.storage.type_name
            found[of_type] = {
                name: NO_ROWS
                if (of_type, name) in late or (wanted is not None and not wanted((of_type, name)))
                else reader.rows(name, of)
                for name, of in of_storage.names
            }
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
        for of in types - {OF_GRAPH, *sampled.types.nodes, *sampled.types.edges}:
            if of in readers:
                storage_of(batch, of)._mapping.setdefault(_ids_of(of), NO_IDS)
            else:
                (batch._edge_store_dict if isinstance(of, tuple) else batch._node_store_dict).pop(of, None)

    @override
    def put_plain(self, batch: Data | HeteroData, versions: DataVersions, keys: list[Any]) -> list[Any]:
        now, others = fields_of(stores_of(self.data, self.typed)), []
        for of, name in keys:
            before, after = (fields.get(of, {}).get(name) for fields in (versions.fields, now))
            there = of in versions.fields and of in now and name not in OWN_FIELDS and name != "num_edges"
            if there and all(value is None or isinstance(value, PLAIN) for value in (before, after)):
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
                fields.setdefault(_ids_of(type_name), NO_IDS)
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


def _ids_of(of_type: Any) -> str:
    """The field with the ids of a type of nodes or edges."""
    return "e_id" if isinstance(of_type, tuple) else "n_id"
