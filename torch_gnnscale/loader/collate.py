"""Makes the Data or HeteroData that a model gets from a sample and its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch_geometric.data import Data, HeteroData

from ..sampler.keyed import KeyedSampler, Output
from ..topology.numbering import Numbering
from .fetch import Bounds, RowSource
from .layers import put_layers
from .layout import EdgeLayouts
from .sampled import SampledGraphPart, by_type, drawn_by_type, sampled_part


class Fetched(NamedTuple):
    """A sample and the rows of its nodes and edges."""

    sampled: SampledGraphPart
    rows: Any


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

    def fetch(self, out: Output) -> Fetched:
        """Reads the rows of an output."""
        sampled = self.sampled(out)
        return Fetched(sampled, self.source.fetch(sampled, self.bounds(sampled)))

    def bounds(self, sampled: SampledGraphPart) -> Bounds:
        """The bounds of an output's ids; none if the user's transform may have changed them."""
        return Bounds() if sampled.transformed else self._bounds

    def sampled(self, out: Output) -> SampledGraphPart:
        """An output, after the user's transform, by type."""
        drawn = None
        if (transform := self.transform_of()) is not None:
            drawn = drawn_by_type(out)
            out = transform(out)
        return sampled_part(out, drawn, self.sampler.edge_permutation, self.layouts)

    def collate(self, fetched: Fetched) -> Data | HeteroData:
        """The batch with all of PyG's fields, before ``transform``."""
        sampled, rows = fetched
        batch = self.source.batch(sampled, rows, None if self.layers else self.layouts)
        if self.layers:
            put_layers(batch, self.source, sampled, self.layouts)
        else:
            self._put_weights(batch, sampled)
        _put_ids(batch, sampled, self.numbering)
        fields = getattr(sampled.out, "fields", {})
        of_graph = batch._store if isinstance(batch, Data) else batch._global_store
        _check_names(name for name in fields if name in of_graph)
        for name, value in fields.items():
            batch[name] = value
        self.label(batch, sampled.out)
        _check_names(name for name, value in fields.items() if of_graph[name] is not value)
        for store in batch.stores:  # else deep copies of the batch would share this cache
            store.__dict__.pop("_cached_attr", None)
        if self.device is not None:
            # The layers are on the GPU already, and PyG's `to` would turn their sizes into lists.
            batch = batch.to(self.device, *(name for name, _ in batch if name != "layers"), non_blocking=True)
        return batch

    def _put_weights(self, batch: Data | HeteroData, sampled: SampledGraphPart) -> None:
        """Puts the weights of sampled edges under their name; in an ``adj_t`` they are its values already."""
        for edge_type, edges in sampled.edges.items():
            if edges.weight is not None:
                store, name = storage_of(batch, edge_type), self.weight_name
                if name in store:
                    raise ValueError(
                        f"{name}: expected data without this attribute, because the sampler's weights get this name; "
                        f"pass another weight_name= to the sampler"
                    )
                if self.layouts.with_edge_index(edge_type):
                    store[name] = edges.weight.to(store["edge_index"].device)


def _check_names(taken: Iterable[str]) -> None:
    """Raises ValueError if there are names of a sampler's fields that are ``taken`` in the batch."""
    for name in taken:
        raise ValueError(
            f"{name}: expected a batch without this attribute, because a field of the sampler's output gets this name; "
            f"give the field another name"
        )


def _put_ids(batch: Data | HeteroData, sampled: SampledGraphPart, numbering: Numbering | None) -> None:
    """Puts ``n_id``, ``e_id`` (unless the data have fields of these names), trees and sizes of hops, in PyG's order."""
    out = sampled.out
    for node_type, node in sampled.nodes.items():
        store = storage_of(batch, node_type)
        if "n_id" not in store:
            store["n_id"] = node if numbering is None else numbering.to_user(node, node_type)
    for edge_type, found in sampled.edges.items():
        store = storage_of(batch, edge_type)
        if found.edge_id is not None and "e_id" not in store:
            store["e_id"] = found.edge_id.to(torch.int64)
    for name, value in (
        ("batch", out.batch),
        ("num_sampled_nodes", out.num_sampled_nodes),
        ("num_sampled_edges", out.num_sampled_edges),
    ):
        for type_name, entry in by_type(out, value).items():
            storage_of(batch, type_name)[name] = entry
    if out.orig_row is not None and out.orig_col is not None:
        cols = by_type(out, out.orig_col)
        for edge_type, row in by_type(out, out.orig_row).items():
            storage_of(batch, edge_type)["_orig_edge_index"] = torch.stack([row, cols[edge_type]])


def storage_of(batch: Data | HeteroData, type_name: Any) -> Any:
    """The storage of a type. Looking up a field in it is faster than in a Data."""
    return batch._store if type_name is None else batch[type_name]
