"""The line of a loader: the steps from a batch's number to the batch. Order -> sample -> fetch -> collate -> finish."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from .._user import as_user
from ..random import NoDraws, Purpose, batch_key, ids_key, seeded_draws
from ..sampler.base import OWN_FIELDS, Inputs, KeyedSampler
from ..sampler.graph import end_types
from ..sampler.minibatch import MiniBatch
from ..sampler.outputs import drawing_into_batches, drawn_by_type, output_of, write_output
from ..topology.reorder import Numbering
from .fields import SORTED, EdgeLayouts, FieldsByType, edges_sorted, put_layers
from .given_links import LinkLabels
from .order import SeedOrder
from .row_source import BatchSource, Bounds, CollectiveSource

T = TypeVar("T")


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
        self, source: BatchSource, layouts: EdgeLayouts, sampler: KeyedSampler,
        label: Callable[[FieldsByType, Any], None], owner: Any, *, numbering: Numbering | None = None,
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.source, self.layouts, self.label = source, layouts, label
        self.own = source.own
        """What knows the versions of rows."""
        self.sampler = sampler
        self.layers = sampler.layers
        self._laid = None if self.layers else layouts  # layers have the edges
        self.weight_name = sampler.weight_name
        self.numbering = numbering if numbering is None or device is None else numbering.to(device)
        self.owner, self.device = owner, device
        self._bounds = Bounds(sampler)
        self._noted: Callable[[], Any] | None = None
        """Returns the versions that were noted last, while a batch has them."""
        self.collective = sampler.collective or source.collective
        """Whether all ranks of a process group sample or fetch together."""

    def begin(self, batch: MiniBatch) -> MiniBatch:
        """Notes the versions of attributes in a batch that threads will make: those of a batch that is still in
        preparation, or else those of now. Nothing is compared here: what was changed in between is read again when the
        batch is delivered. Called in the thread that iterates."""
        noted = self._noted  # which another thread may reset
        batch.versions = None if noted is None else noted()
        if batch.versions is None and (found := self.own.versions()) is not None:
            batch.versions, self._noted = found, weakref.ref(found)
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_noted": None}

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
        """Starts to read the rows of a sample, after the user's transform; the function waits for them and returns the
        batch."""
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
            if not isinstance(error, KeyError) and not self.own.changed(batch.versions):
                raise
            return None

    def at_once(self, batch: MiniBatch) -> MiniBatch:
        """:meth:`start`, :meth:`collate` and :meth:`deliver`, all in the thread that iterates, so that no row can
        change meanwhile."""
        self.transform(batch)
        self._complete(batch, self.source.fetch(batch, self.bounds(batch)))
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
            self._complete(batch, batch.rows)
            batch.rows = None
        return batch

    def _complete(self, batch: MiniBatch, rows: Any) -> None:
        """Makes the Data of the rows, with all other fields, and puts it into the batch."""
        data = self.source.batch(batch, rows, self._laid)
        of_types = FieldsByType(data, batch.types)
        if self.layers:
            put_layers(batch, partial(self.own.edges, rows), data, self.layouts)
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
        keys = [] if batch.versions is None else self.own.changed(batch.versions)
        if keys:
            self._noted = None  # batches that are begun later have those of now
        if since is not None:
            keys = list(dict.fromkeys([*keys, *self.own.changed(since)]))
        if not keys and batch.data is not None:
            return
        bounds = self.bounds(batch)
        # The loader's own fields may have taken the place of rows that have their names.
        if batch.data is None or any(name in OWN_FIELDS for _, name in keys):
            self._complete(batch, self.source.fetch(batch, bounds))
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
            if (ids := edges.edge_id) is not None and "e_id" not in fields:
                fields["e_id"] = ids if ids.dtype == torch.int64 else ids.to(torch.int64)  # a call takes a microsecond
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


def as_positions(given: Any) -> Tensor:
    """What a user gives as positions of inputs, as a vector of integers; TypeError for others."""
    try:
        found = torch.as_tensor(given)
    except (RuntimeError, TypeError, ValueError):  # torch makes no tensor of it
        found = torch.zeros((), dtype=torch.bool)
    others = found.dtype == torch.bool or found.is_floating_point() or found.is_complex()
    if found.numel() and (found.dim() != 1 or others):
        raise TypeError(f"index: expected a list of positions of the loader's inputs, found {given!r}")
    return found.to(torch.int64)


class Line:
    """The steps from a batch's number to the batch, for one loader.

    Args:
        order: makes the keys of batches.
        sampler: any BaseSampler. If it is not a KeyedSampler, the thread that iterates calls it: it may keep state.
        collator: fetches rows and makes batches.
        inputs: all inputs of the loader, indexed by position.
        ids_of: returns the ids that are hashed to the key of inputs without a batch number.
        neg_sampling: how negatives of links are drawn; None for seeds.
        seconds: the time of sampling is added to ``seconds["sample"]``, that of fetching and collating to
            ``seconds["gather"]``.
        labels: of the inputs, if these are links.
    """

    def __init__(
        self, order: SeedOrder, sampler: KeyedSampler, collator: Collator, inputs: Any,
        ids_of: Callable[[Any], Tensor], neg_sampling: NegativeSampling | None, seconds: dict[str, float],
        labels: LinkLabels | None,
    ) -> None:  # fmt: skip
        self.order, self.sampler, self.collator = order, sampler, collator
        self.inputs, self.ids_of, self.neg_sampling = inputs, ids_of, neg_sampling
        self.seconds, self.labels = seconds, labels
        self.drawing = drawing_into_batches(sampler)
        self._batches_per_key = sampler.batches_per_key
        self.collective = collator.collective
        """Whether all ranks of a process group sample or fetch together."""

    def inputs_at(self, positions: Any) -> Inputs:
        """The inputs at the given positions. Raises TypeError or IndexError for what are no positions."""
        if not isinstance(positions, Tensor):
            positions = as_positions(positions)
        try:
            return self.inputs[positions]
        except IndexError as error:
            raise IndexError(f"index: expected positions of the loader's inputs: {error}") from None

    def sample(self, index: MiniBatch | Tensor | list[int]) -> MiniBatch:
        """Samples a numbered batch; or one of positions without a number, keyed by a hash of their ids."""
        begin = time.perf_counter()
        given = index if isinstance(index, MiniBatch) else MiniBatch(positions=as_positions(index))
        batch = self._begun(given)
        self.drawing.draw(batch, self.neg_sampling)
        self.seconds["sample"] += time.perf_counter() - begin
        return batch

    def sample_many(self, batches: list[MiniBatch]) -> list[MiniBatch]:
        """Samples numbered batches at once."""
        begin = time.perf_counter()
        self.drawing.draw_many([self._begun(batch) for batch in batches], self.neg_sampling)
        self.seconds["sample"] += time.perf_counter() - begin
        return batches

    def _begun(self, batch: MiniBatch) -> MiniBatch:
        """A batch with its inputs, its keys and the version of its labels."""
        if self.labels is not None:
            batch.labels = self.labels.number()
        inputs = batch.inputs = self.inputs_at(batch.positions)
        batch.out, batch.transformed, seed = None, False, self.order.seed
        transforms = self.collator.owner.transform_sampler_output is not None
        if batch.number < 0:
            batch.key = ids_key(seed, self.ids_of(inputs))
            batch.transform_key = batch_key(batch.key, purpose=Purpose.TRANSFORM) if transforms else None
        else:
            batch.key = batch_key(seed, batch.epoch, batch.number // self._batches_per_key)
            batch.transform_key = self.order.key(batch, Purpose.TRANSFORM) if transforms else None
        return batch

    def fetch(self, batch: MiniBatch) -> MiniBatch:
        """Reads the rows of a sample, after the user's ``transform_sampler_output``."""
        begin = time.perf_counter()
        self.collator.start(batch)()
        self.seconds["gather"] += time.perf_counter() - begin
        return batch

    def collate(self, batch: MiniBatch) -> MiniBatch:
        """Makes the Data of a batch."""
        begin = time.perf_counter()
        self.collator.collate(batch)
        self.seconds["gather"] += time.perf_counter() - begin
        return batch

    def deliver(self, batch: MiniBatch, since: Any = None) -> Data | HeteroData:
        """The Data of a batch, with rows as they are now; ``since`` as of :meth:`Collator.deliver`."""
        self.collator.deliver(batch, since)
        self._relabel(batch)
        return _data_of(batch)

    def _relabel(self, batch: MiniBatch) -> None:
        """Puts labels of links into a batch again if they were changed since it was sampled."""
        if self.labels is None or batch.positions is None or not self.labels.changed(batch.labels):
            return
        self.labels.put(batch, self.inputs_at(batch.positions))
        self.collator.relabel(batch)

    def batch(self, batch: MiniBatch) -> Data | HeteroData:
        """The Data of a sample, made in the thread that it is delivered to: rows cannot change meanwhile."""
        begin = time.perf_counter()
        self.collator.at_once(batch)
        self._relabel(batch)
        self.seconds["gather"] += time.perf_counter() - begin
        return _data_of(batch)

    def alone(self, index: MiniBatch) -> Any:
        """All steps of a numbered batch, in the thread that iterates."""
        return self.finish(self.batch(self.sample(index)))

    def finish(self, data: Data | HeteroData) -> Any:
        """The last step, in the thread that iterates: transform and pin."""
        loader = self.collator.owner
        if loader.transform is not None:
            data = as_user(loader.transform, data)
        # With worker processes, DataLoader's own thread pins.
        pins = loader.pin_memory and loader.num_workers == 0 and torch.cuda.is_available()
        return data.pin_memory() if pins else data


def _data_of(batch: MiniBatch) -> Data | HeteroData:
    """The Data of a batch, which the batch itself keeps no longer: a bulk has its batches until the last is made."""
    data, batch.data = batch.data, None
    return data
