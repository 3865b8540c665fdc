"""Makes the Data or HeteroData that a model gets from a sample and its rows, and the papers' bipartite layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch_geometric.data import Data, HeteroData

from .._host import as_user
from ..random import NoDraws, seeded_draws
from ..sampler import Layer, WeightedLayer
from ..sampler.base import OWN_FIELDS, KeyedSampler, Output
from ..sampler.graph import end_types
from ..topology.numbering import Numbering
from .fields import fields_of, put
from .layout import EdgeLayouts, laid_out
from .row_source import Bounds, RowSource
from .sampled import MiniBatch, SampledEdges, by_type, drawn_by_type, mini_batch

T = TypeVar("T")


def put_layers(
    batch: Data | HeteroData, source: RowSource, sampled: MiniBatch, rows: Any, layouts: EdgeLayouts
) -> None:
    """Puts ``layers`` into the batch, in the order in which a model computes them, and removes its edges. ``rows``:
    what the source's ``fetch`` returned.

    ``e_id`` and attributes of edges keep the order of sampling: the ``num_sampled_edges[0]`` edges of hop 0 first.
    """
    out = sampled.out
    nodes = by_type(out, out.num_sampled_nodes)
    if not getattr(out, "separate_sources", False):
        nodes = {t: torch.tensor(n).cumsum(0).tolist() for t, n in nodes.items()}
    counts = by_type(out, out.num_sampled_edges)
    hops: dict[Any, list[tuple[Any, ...]]] = {}
    for edge_type, found in sampled.edges.items():
        if found.colptr is None:
            raise ValueError("layers=True: expected the sampler's own edges, found edges that were changed")
        src, dst = end_types(edge_type)
        column, edge, hops[edge_type] = 0, 0, []
        for hop, count in enumerate(counts[edge_type]):
            size = (nodes[src][hop + 1], nodes[dst][hop])
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
        store = batch if edge_type is None else batch[edge_type]
        for name in ("edge_index", "adj_t"):
            if name in store:
                del store[name]
    weighted = any(edges.weight is not None for edges in sampled.edges.values())
    layers = []
    for hop in reversed(range(max(map(len, nodes.values())) - 1)):
        laid, ids, weights = ({edge_type: part[hop][i] for edge_type, part in hops.items()} for i in range(3))
        sizes = {node_type: (total[hop + 1], total[hop]) for node_type, total in nodes.items()}
        fields = (laid, ids, sizes, weights) if weighted else (laid, ids, sizes)
        kind: Any = WeightedLayer if weighted else Layer
        layers.append(kind(*fields) if isinstance(batch, HeteroData) else kind(*(field[None] for field in fields)))
    batch.layers = layers


class Noted(NamedTuple):
    """What a loader notes at an output, because outputs are all that PyG's ``filter_fn`` gets, from worker processes,
    too."""

    key: int | None
    """Of the draws of the user's transform, if there is one."""
    positions: Any
    """Of the batch's inputs."""
    labels: int | None
    """The number of the version of links' labels, if there are labels."""

    def put(self, out: Output) -> None:
        """Notes it at an output."""
        setattr(out, _NOTED, self)

    @staticmethod
    def of(out: Output) -> Noted | None:
        """What was noted; None if nothing was."""
        return getattr(out, _NOTED, None)


_NOTED = "_noted"


class Collator:
    """Fetches the rows of samples and makes batches with PyG's fields in PyG's order. A loader has one.

    Args:
        source: reads the rows.
        layouts: the layout of a batch's edges, by edge type.
        sampler: the sampler of the outputs.
        label: label(batch, output) adds the fields of the inputs (``input_id``, ``batch_size``, labels, times).
        numbering: converts the stores' ids of nodes to the user's; None if they are the same.
        transform_of: returns the user's ``transform_sampler_output``, which is called on each output before its rows
            are fetched, or None. It is asked for each output.
        device: the GPU to which all fields are moved; None leaves them where the data are.
    """

    def __init__(
        self, source: RowSource, layouts: EdgeLayouts, sampler: Any, label: Callable[[Any, Output], None],
        transform_of: Callable[[], Callable | None], *, numbering: Numbering | None = None,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.source, self.layouts, self.label = source, layouts, label
        self.sampler = sampler
        self.layers = isinstance(sampler, KeyedSampler) and sampler.layers
        self.weight_name = getattr(sampler, "weight_name", "edge_weight")
        self.numbering = numbering if numbering is None or device is None else numbering.to(device)
        self.transform_of, self.device = transform_of, device
        self._bounds = Bounds(sampler if isinstance(sampler, KeyedSampler) else None)
        self.collective = getattr(sampler, "collective", False) or source.collective
        """Whether all ranks of a process group sample or fetch together."""

    def fetch(self, out: Output) -> MiniBatch:
        """Reads the rows of an output, after the user's transform."""
        batch = self.sampled(out)
        batch.versions = self.source.versions()
        batch.rows = self._unless_changed(batch, lambda: self.source.fetch(batch, self.bounds(batch), batch.versions))
        return batch

    def start(self, out: Output) -> Callable[[], MiniBatch]:
        """Starts to read what :meth:`fetch` returns; the function waits for it and returns it."""
        batch = self.sampled(out)
        batch.versions = self.source.versions()
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

    def at_once(self, out: Output) -> MiniBatch:
        """What :meth:`fetch`, :meth:`collate` and :meth:`delivered` make of an output, all in the thread that iterates,
        so that no row can change meanwhile."""
        batch = self.sampled(out)
        batch.data = self._batch(batch, self.source.fetch(batch, self.bounds(batch)))
        return batch

    def bounds(self, sampled: MiniBatch) -> Bounds:
        """The bounds of an output's ids; none if the user's transform may have changed them."""
        return Bounds() if sampled.transformed else self._bounds

    def sampled(self, out: Output) -> MiniBatch:
        """An output, after the user's transform, by type."""
        if (transform := self.transform_of()) is None:
            return mini_batch(out, None, self.sampler.edge_permutation, self.layouts)
        drawn, noted = drawn_by_type(out), Noted.of(out)
        with self._draws(noted):
            out = as_user(transform, out)
        sampled = mini_batch(out, drawn, self.sampler.edge_permutation, self.layouts)
        if noted is not None:
            noted.put(out)
        return sampled

    def _draws(self, noted: Noted | None) -> AbstractContextManager:
        """A context for the user's transform, in which generators that all threads share are seeded by the batch's key;
        or, where other threads run at the same time because ranks work together, may not be drawn from."""
        if self.collective:
            return NoDraws("transform_sampler_output")
        return nullcontext() if noted is None or noted.key is None else seeded_draws(noted.key)

    def collate(self, batch: MiniBatch) -> MiniBatch:
        """Makes the Data with all of PyG's fields, before ``transform``, if there are rows."""
        if batch.rows is not None:
            batch.data, batch.rows = self._batch(batch, batch.rows), None
        return batch

    def _batch(self, sampled: MiniBatch, rows: Any) -> Data | HeteroData:
        batch = self.source.batch(sampled, rows, None if self.layers else self.layouts)
        if self.layers:
            put_layers(batch, self.source, sampled, rows, self.layouts)
        else:
            self._put_weights(batch, sampled)
        _put_ids(batch, sampled, self.numbering)
        if fields := getattr(sampled.out, "fields", None):
            of_graph = batch._store if isinstance(batch, Data) else batch._global_store
            _check_names(name for name in fields if name in of_graph)
            for name, value in fields.items():
                batch[name] = value
            self.label(batch, sampled.out)
            _check_names(name for name, value in fields.items() if of_graph[name] is not value)
        else:
            self.label(batch, sampled.out)
        return self._on_device(batch)

    def _on_device(self, batch: Data | HeteroData) -> Data | HeteroData:
        if self.device is None:
            return batch
        # The layers are on the GPU already, and PyG's `to` would turn their sizes into lists.
        return batch.to(self.device, *(name for name, _ in batch if name != "layers"), non_blocking=True)

    def relabel(self, batch: Data | HeteroData, out: Output) -> None:
        """Puts the fields of the inputs into the batch again."""
        self.label(batch, out)
        self._on_device(batch)

    def delivered(self, made: MiniBatch, since: Any = None) -> Data | HeteroData:
        """The batch with rows as they are now. Called in the thread that iterates.

        Args:
            made: what :meth:`collate` returned.
            since: earlier versions. Rows of attributes that changed after that are read again, too.
        """
        batch = made.data
        keys = self.source.changed(made.versions)
        if since is not None:
            keys = list(dict.fromkeys([*keys, *self.source.changed(since)]))
        if not keys and batch is not None:
            return batch
        bounds = self.bounds(made)
        # The loader's own fields may have taken the place of rows that have their names.
        if batch is None or any(name in OWN_FIELDS for _, name in keys):
            return self._batch(made, self.source.fetch(made, bounds))
        self.source.renew(batch, made, bounds, keys)
        return batch if self.device is None else batch.to(self.device, *(name for _, name in keys), non_blocking=True)

    def _put_weights(self, batch: Data | HeteroData, sampled: MiniBatch) -> None:
        """Puts the weights of sampled edges under their name; in an ``adj_t`` they are its values already."""
        for edge_type, edges in sampled.edges.items():
            if edges.weight is not None:
                fields, name = fields_of(batch, edge_type), self.weight_name
                if name in fields:
                    raise ValueError(
                        f"{name}: expected data without this attribute, because the sampler's weights get this name; "
                        f"pass another weight_name= to the sampler"
                    )
                if self.layouts.with_edge_index(edge_type):
                    fields[name] = edges.weight.to(fields["edge_index"].device)


def _check_names(taken: Iterable[str]) -> None:
    """Raises ValueError if there are names of a sampler's fields that are ``taken`` in the batch."""
    for name in taken:
        raise ValueError(
            f"{name}: expected a batch without this attribute, because a field of the sampler's output gets this name; "
            f"give the field another name"
        )


def _put_ids(batch: Data | HeteroData, sampled: MiniBatch, numbering: Numbering | None) -> None:
    """Puts ``n_id``, ``e_id`` (unless the data have fields of these names), trees and sizes of hops, in PyG's order."""
    out = sampled.out
    for node_type, node in sampled.nodes.items():
        fields = fields_of(batch, node_type)
        if "n_id" not in fields:
            fields["n_id"] = node if numbering is None else numbering.to_user(node, node_type)
    for edge_type, edges in sampled.edges.items():
        fields = fields_of(batch, edge_type)
        if edges.edge_id is not None and "e_id" not in fields:
            fields["e_id"] = edges.edge_id.to(torch.int64)
    found = {name: by_type(out, getattr(out, name)) for name in ("batch", "num_sampled_nodes", "num_sampled_edges")}
    for name, entries in found.items():
        for type_name, entry in entries.items():
            put(fields_of(batch, type_name), {name: entry})
    if out.orig_row is not None and out.orig_col is not None:
        cols = by_type(out, out.orig_col)
        for edge_type, row in by_type(out, out.orig_row).items():
            fields_of(batch, edge_type)["_orig_edge_index"] = torch.stack([row, cols[edge_type]])
