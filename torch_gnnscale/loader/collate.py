"""Makes the Data or HeteroData that a model gets from a sample and its rows, and the papers' bipartite layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch_geometric.data import Data, HeteroData

from .._host import as_user
from ..random import NoDraws, seeded_draws
from ..sampler import Layer, WeightedLayer
from ..sampler.base import OWN_FIELDS, KeyedSampler
from ..sampler.graph import end_types
from ..sampler.minibatch import MiniBatch, SampledEdges
from ..sampler.outputs import drawn_by_type, output_of, write_output
from ..topology.reorder import Numbering
from .fields import SORTED, EdgeLayouts, FieldsByType, edges_sorted, laid_out
from .row_source import Bounds, CollectiveSource, RowSource

T = TypeVar("T")


def put_layers(batch: MiniBatch, source: RowSource, rows: Any, data: Data | HeteroData, layouts: EdgeLayouts) -> None:
    """Puts ``layers`` into the Data, in the order in which a model computes them, and removes its edges. ``rows``: what
    the source's ``fetch`` returned.

    ``e_id`` and attributes of edges keep the order of sampling: the ``num_sampled_edges[0]`` edges of hop 0 first.
    """
    types = batch.types
    if batch.num_nodes is None or batch.num_edges is None:
        raise ValueError("layers=True: expected a sample with sizes of hops, found one without")
    total = {of: list(counts or ()) for of, counts in zip(types.nodes, batch.num_nodes, strict=True)}
    if not batch.separate_sources:
        total = {of: list(accumulate(counts)) for of, counts in total.items()}
    hops: dict[Any, list[tuple[Any, ...]]] = {}
    for edge_type, found, counts in zip(types.edges, batch.edges, batch.num_edges, strict=True):
        if found.colptr is None:
            raise ValueError("layers=True: expected the sampler's own edges, found edges that were changed")
        src, dst = end_types(edge_type)
        column, edge, hops[edge_type] = 0, 0, []
        for hop, count in enumerate(counts or ()):
            size = (total[src][hop + 1], total[dst][hop])
            some = slice(edge, edge + count)
            edges = SampledEdges(
                found.edge_index[:, some],
                found.colptr[column : column + size[1] + 1] - edge,
                None if found.edge_id is None else found.edge_id[some],
                None if found.weight is None else found.weight[some],
            )
            column, edge = column + size[1], edge + count
            edges, value = source.edges(rows, edge_type, edges, layouts[edge_type])
            laid = laid_out(edges.edge_index, edges.colptr, size, layouts[edge_type], value)
            hops[edge_type].append((laid, edges.edge_id, edges.weight))
        store = data if edge_type is None else data[edge_type]
        for name in ("edge_index", "adj_t"):
            if name in store:
                del store[name]
    weighted = any(edges.weight is not None for edges in batch.edges)
    layers = []
    for hop in reversed(range(max(map(len, total.values())) - 1)):
        laid, ids, weights = ({edge_type: part[hop][i] for edge_type, part in hops.items()} for i in range(3))
        sizes = {node_type: (of_type[hop + 1], of_type[hop]) for node_type, of_type in total.items()}
        fields = (laid, ids, sizes, weights) if weighted else (laid, ids, sizes)
        kind: Any = WeightedLayer if weighted else Layer
        layers.append(kind(*fields) if types.hetero else kind(*(field[None] for field in fields)))
    data.layers = layers


class Collator:
    """Fetches the rows of samples and makes batches with PyG's fields in PyG's order. A loader has one.

    Args:
        source: reads the rows.
        layouts: the layout of a batch's edges, by edge type.
        sampler: the sampler of the outputs.
        label: label(fields by type, metadata) adds what is known of inputs (``input_id``, ``batch_size``, labels, ...).
        numbering: converts the stores' ids of nodes to the user's; None if they are the same.
        owner: the loader, whose ``transform_sampler_output``, if it has one, is called on each output before its rows
            are fetched.
        device: the GPU to which all fields are moved; None leaves them where the data are.
    """

    def __init__(
        self, source: RowSource, layouts: EdgeLayouts, sampler: KeyedSampler,
        label: Callable[[FieldsByType, Any], None], owner: Any, *, numbering: Numbering | None = None,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.source, self.layouts, self.label = source, layouts, label
        self.sampler = sampler
        self.layers = sampler.layers
        self._laid = None if self.layers else layouts  # layers have the edges
        self.weight_name = sampler.weight_name
        self.numbering = numbering if numbering is None or device is None else numbering.to(device)
        self.owner, self.device = owner, device
        self._bounds = Bounds(sampler)
        self.collective = sampler.collective or source.collective
        """Whether all ranks of a process group sample or fetch together."""

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """Notes the versions of attributes in a batch that threads will make. Called in the thread that iterates."""
        batch.versions = self.source.noted()
        return batch

    def fetch(self, batch: MiniBatch) -> MiniBatch:
        """Reads the rows of a sample, after the user's transform."""
        self.transform(batch)
        if batch.versions is None:
            self.begin(batch)
        batch.rows = self._unless_changed(batch, lambda: self.source.fetch(batch, self.bounds(batch), batch.versions))
        return batch

    def needs(self, batch: MiniBatch, inputs: int | None) -> Any:
        """What a batch reads in a step, after the user's transform: ``needs`` of a :class:`CollectiveSource`.

        Args:
            batch: a sample.
            inputs: how many all ranks have together in the step, if the source asks for that.
        """
        source = self.source
        assert isinstance(source, CollectiveSource)
        self.transform(batch)
        bounds = self.bounds(batch)
        if inputs is not None and batch.whole is not None:
            batch.fields["global_batch_size"] = inputs
        self.begin(batch)
        return source.needs(batch, bounds, batch.versions)

    def start(self, batch: MiniBatch) -> Callable[[], MiniBatch]:
        """Starts to read what :meth:`fetch` reads; the function waits for it and returns the batch."""
        self.transform(batch)
        if batch.versions is None:
            self.begin(batch)
        wait = self._unless_changed(batch, lambda: self.source.start(batch, self.bounds(batch), batch.versions))

        def fetched() -> MiniBatch:
            batch.rows = None if wait is None else self._unless_changed(batch, wait)
            return batch

        return fetched

    def _unless_changed(self, batch: MiniBatch, read: Callable[[], T]) -> T | None:
        """What ``read()`` returns; None if it fails because attributes were changed since ``batch.versions``: their
        rows are then read when the batch is delivered."""
        try:
            with torch.no_grad():  # what requires grad is left out, also if it did not when its version was noted
                return read()
        except Exception as error:  # an attribute was removed at the same time, say, and perhaps put there again
            if not isinstance(error, KeyError) and not self.source.changed(batch.versions):
                raise
            return None

    def at_once(self, batch: MiniBatch) -> MiniBatch:
        """:meth:`fetch`, :meth:`collate` and :meth:`deliver`, all in the thread that iterates, so that no row can
        change meanwhile."""
        self.transform(batch)
        rows = self.source.fetch(batch, self.bounds(batch))
        self._complete(batch, rows, FieldsByType(self.source.batch(batch, rows, self._laid), batch.types))
        return batch

    def bounds(self, batch: MiniBatch) -> Bounds:
        """The bounds of a sample's ids; none if the user's transform may have changed them."""
        return Bounds() if batch.transformed else self._bounds

    def transform(self, batch: MiniBatch) -> None:
        """Calls the user's transform, if there is one, once for each sample, and sorts edges by destination where their
        layout needs it."""
        if (transform := self.owner.transform_sampler_output) is not None and not batch.transformed:
            drawn = drawn_by_type(out := output_of(batch))
            with self._draws(batch.transform_key):
                out = as_user(transform, out)
            write_output(batch, out, self.sampler.edge_permutation, drawn)
        for number, edges in enumerate(batch.edges):
            if edges.colptr is None and self.layouts[edge_type := batch.types.edges[number]] in SORTED:
                batch.edges[number] = edges_sorted(edges, len(batch.nodes_of(end_types(edge_type)[1])))

    def _draws(self, key: int | None) -> AbstractContextManager:
        """A context for the user's transform, in which generators that all threads share are seeded by the batch's key;
        or, where other threads run at the same time because ranks work together, may not be drawn from."""
        if self.collective:
            return NoDraws("transform_sampler_output")
        return nullcontext() if key is None else seeded_draws(key)

    def collate(self, batch: MiniBatch) -> MiniBatch:
        """Makes the Data with all of PyG's fields, before ``transform``, if there are rows."""
        if batch.rows is not None:
            rows = batch.rows
            self._complete(batch, rows, FieldsByType(self.source.batch(batch, rows, self._laid), batch.types))
            batch.rows = None
        return batch

    def _complete(self, batch: MiniBatch, rows: Any, of_types: FieldsByType) -> None:
        """Puts all other fields into the Data that the source made of the rows, and the Data into the batch."""
        data = of_types.data
        if self.layers:
            put_layers(batch, self.source, rows, data, self.layouts)
        else:
            self._put_weights(batch, of_types)
        self._put_ids(batch, of_types)
        if fields := batch.fields:
            of_graph = of_types.of_graph
            _check_names(name for name in fields if name in of_graph)
            for name, value in fields.items():
                data[name] = value
            self.label(of_types, batch.metadata)
            _check_names(name for name, value in fields.items() if of_graph[name] is not value)
        else:
            self.label(of_types, batch.metadata)
        batch.data = data if self.device is None else self._on_device(data)

    def _on_device(self, batch: Data | HeteroData) -> Data | HeteroData:
        # The layers are on the GPU already, and PyG's `to` would turn their sizes into lists.
        return batch.to(self.device, *(name for name, _ in batch if name != "layers"), non_blocking=True)

    def relabel(self, batch: MiniBatch) -> None:
        """Puts the fields of the inputs into the Data again."""
        self.label(FieldsByType(batch.data, batch.types), batch.metadata)
        if self.device is not None:
            self._on_device(batch.data)

    def deliver(self, batch: MiniBatch, since: Any = None) -> None:
        """Makes the rows of a batch those of now. Called in the thread that iterates.

        Args:
            batch: after :meth:`collate`.
            since: earlier versions. Rows of attributes that changed after that are read again, too.
        """
        keys = [] if batch.versions is None else self.source.changed(batch.versions)
        if since is not None:
            keys = list(dict.fromkeys([*keys, *self.source.changed(since)]))
        if not keys and batch.data is not None:
            return
        bounds = self.bounds(batch)
        # The loader's own fields may have taken the place of rows that have their names.
        if batch.data is None or any(name in OWN_FIELDS for _, name in keys):
            rows = self.source.fetch(batch, bounds)
            self._complete(batch, rows, FieldsByType(self.source.batch(batch, rows, self._laid), batch.types))
            return
        self.source.renew(batch.data, batch, bounds, keys)
        if self.device is not None:
            batch.data = batch.data.to(self.device, *(name for _, name in keys), non_blocking=True)

    def _put_weights(self, batch: MiniBatch, of_types: FieldsByType) -> None:
        """Puts the weights of sampled edges under their name; in an ``adj_t`` they are its values already."""
        for edge_type, edges in zip(batch.types.edges, batch.edges, strict=True):
            if edges.weight is not None:
                fields, name = of_types[edge_type], self.weight_name
                if name in fields:
                    raise ValueError(
                        f"{name}: expected data without this attribute, because the sampler's weights get this name; "
                        f"pass another weight_name= to the sampler"
                    )
                if "edge_index" in fields:
                    fields[name] = edges.weight.to(fields["edge_index"].device)

    def _put_ids(self, batch: MiniBatch, fields_of: FieldsByType) -> None:
        """Puts ``n_id``, ``e_id`` (unless the data have fields of these names), trees and sizes of hops, in PyG's
        order."""
        types, numbering = batch.types, self.numbering
        of_nodes = [fields_of[node_type] for node_type in types.nodes]
        of_edges = [fields_of[edge_type] for edge_type in types.edges]
        for fields, nodes, node_type in zip(of_nodes, batch.nodes, types.nodes, strict=True):
            if "n_id" not in fields:
                fields["n_id"] = nodes if numbering is None else numbering.to_user(nodes, node_type)
        for fields, edges in zip(of_edges, batch.edges, strict=True):
            if edges.edge_id is not None and "e_id" not in fields:
                fields["e_id"] = edges.edge_id.to(torch.int64)
        for name, entries, each in (
            ("batch", batch.trees, of_nodes),
            ("num_sampled_nodes", batch.num_nodes, of_nodes),
            ("num_sampled_edges", batch.num_edges, of_edges),
            ("_orig_edge_index", batch.original, of_edges),
        ):
            for fields, entry in zip(each, entries or (), strict=False):
                if entry is not None:
                    fields[name] = entry


def label_seeds(loader: Any, fields: FieldsByType, metadata: Any) -> None:
    """Puts what is known of the seeds into the fields of a batch. ``loader``: of ours, or PyG's NodeLoader."""
    input_id, time = metadata
    if not isinstance(input_id, dict):
        input_id, time = {loader.input_data.input_type: input_id}, {loader.input_data.input_type: time}
    for node_type, ids in input_id.items():
        of_type, seed_time = fields[node_type], None if time is None else time.get(node_type)
        of_type["input_id"] = ids
        if seed_time is not None:
            of_type["seed_time"] = seed_time
        else:
            of_type.pop("seed_time", None)
        of_type["batch_size"] = ids.size(0)


def _check_names(taken: Iterable[str]) -> None:
    """Raises ValueError if there are names of a sampler's fields that are ``taken`` in the batch."""
    for name in taken:
        raise ValueError(
            f"{name}: expected a batch without this attribute, because a field of the sampler's output gets this name; "
            f"give the field another name"
        )
