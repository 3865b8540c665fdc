"""The base of our loaders: connects order, sampler, stores and pipeline with PyG's loader classes, and keeps the
epoch, the position in it, and the state from which an equal loader resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from .._user import on_host, warn
from ..ops.arguments import check_int
from ..random import ids_key
from ..sampler.base import (
    ByType,
    KeyedSampler,
    Output,
    check_weight_name,
    each_type,
    inputs_ids,
    name_of,
    start_time_of,
    users_own,
)
from ..sampler.graph import end_types
from ..sampler.minibatch import MiniBatch
from ..sampler.outputs import output_of, write_output
from . import checks
from .adapter import BatchesOfWorkers, PyGLoaderAdapter, RowsOfWorkers, without_processes
from .checks import warn_of_unused_arguments
from .epochs import FromElsewhere, Shard, SharedOrder, Uneven
from .execution import Execution, samples
from .fields import EdgeLayout, FieldsByType
from .given_data import GivenData
from .given_links import LinkLabels
from .line import Collator, Line
from .order import ChunksOfTypes, InOrder, KeyedShuffle, PositionSampler, SeedOrder
from .pipeline import USUAL, Pipeline
from .sharing import Owned, Sharing, Split, sharing_of

OWN_NAMES = frozenset(
    ("format", "seed", "epoch", "batch", "seed_order", "ranks", "parts", "consecutive", "key_of_owners", "uneven",
     "bulk", "inputs", "input_type", "key_of_inputs", "time_windows", "batch_size", "drop_last", "order", "negatives",
     "positives", "own_negatives", "num_positives", "lists_of")
)  # fmt: skip
"""The entries of a loader's state besides its sampler's options."""

_READ_ANEW = frozenset(("transform", "transform_sampler_output", "filter_per_worker", "prefetch"))
"""The arguments of loaders that may also be set later, as attributes."""


@dataclass(frozen=True)
class LoaderOptions:
    """The arguments that our loaders have in common, with their defaults; :class:`NeighborLoader` explains them."""

    seed: int | None = None
    prefetch: int | None = None
    edge_layout: EdgeLayout | None = None
    bulk: int | None = None
    shard: Shard = None
    seed_order: SharedOrder | None = None
    uneven: Uneven = "pad"
    split: Split | None = None
    transform: Callable | None = None
    transform_sampler_output: Callable | None = None
    filter_per_worker: bool | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> LoaderOptions:
        """Those of a loader's arguments that all loaders have."""
        return cls(**{entry.name: arguments[entry.name] for entry in fields(cls) if entry.name in arguments})

    def of_pyg(self) -> dict[str, Any]:
        """Those that PyG's loaders have, too."""
        names = ("transform", "transform_sampler_output", "filter_per_worker")
        return {name: getattr(self, name) for name in names}


def options_of(sampler: KeyedSampler) -> dict[str, Any]:
    """The options of a sampler, which are entries of a loader's state.

    Raises:
        ValueError: an option has the name of an entry of the loader's own.
    """
    options = sampler.options()
    if taken := sorted(OWN_NAMES.intersection(options)):
        raise ValueError(
            f"options() of a {name_of(sampler)}: expected other names than those of a loader's own entries in "
            f"its state, found {taken}"
        )
    return options


class ResumableLoader(PyGLoaderAdapter):
    """A loader whose batches are functions of its seed, the epoch and the number of the batch."""

    input_data: Any
    _sampler: KeyedSampler
    _sharing: Sharing

    def _ids(self, inputs: Any) -> Tensor:
        """The ids of ``inputs``. Their hash is the key of inputs that have no batch number. Inputs of several types
        begin with how many there are of each type."""
        if not isinstance(inputs, ByType):
            return inputs_ids(inputs)
        return torch.cat([torch.tensor(inputs.counts), *(inputs_ids(entry).view(-1) for entry in inputs.inputs)])

    @property
    def seed(self) -> int:
        """The seed of all draws and of the order of inputs."""
        return self._seed_order.seed

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next ``iter()``; later ones take the epochs after it.

        Raises:
            TypeError, ValueError: not an integer of at least 0.
        """
        self._seed_order.set_next(check_int("epoch", epoch))

    def state_dict(self) -> dict[str, Any]:
        """The position of the latest iterator, for :meth:`load_state_dict` of an equal loader.

        A batch counts as soon as it has been delivered. The values are plain, to be saved with a checkpoint.
        """
        return {**self._seed_order.state(), **self._fingerprint()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes: the next ``iter()`` delivers the rest of the state's epoch, later ones the epochs after it.

        ``num_workers`` and ``prefetch`` may differ. A ``sampler`` or ``batch_sampler`` of the user is iterated from its
        beginning, and the batches already delivered are skipped; it must give the same order again.

        Raises:
            ValueError: not a state, or the state of a loader with other inputs, batch size, order or sampling options.
        """
        before = self.seed
        self._seed_order.load(state, self._fingerprint())
        if self.seed != before:
            self._iterator = None  # its worker processes, if they persist, have the seed before

    def _fingerprint(self) -> dict[str, Any]:
        """What decides the batches besides the seed, as plain values; feature rows and edges are not included."""
        order = "input" if isinstance(self.sampler, SequentialSampler) else "user's"
        return {
            **self._seed_order.options(),  # first: other differences may be consequences of these
            "inputs": len(self.dataset),  # type: ignore[arg-type]
            "input_type": None if self.input_data.input_type is None else str(self.input_data.input_type),
            "key_of_inputs": self._key_of_inputs,
            **({} if start_time_of(self.input_data) is None else {"time_windows": True}),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "order": "shuffled" if isinstance(self.sampler, KeyedShuffle) else order,
            **options_of(self._sampler),
            **self._sharing.said_of_inputs,
        }

    @cached_property
    def _key_of_inputs(self) -> int:
        """A hash of the inputs' ids, times and starts of time windows."""
        ids = self._ids(self.input_data)
        each = ((entry.time, start_time_of(entry)) for entry in each_type(self.input_data))
        times = [time for of_type in each for time in of_type if time is not None]
        if not times:
            return ids_key(0, ids)
        bits = [time.double().view(torch.int64) if time.is_floating_point() else time.long() for time in times]
        return ids_key(0, torch.cat([ids.view(-1), *bits]))


def _read_once(kind: type) -> frozenset[str]:
    """The attributes of a class of loaders that have no effect once one is made."""
    of_loader = next(base for base in kind.__mro__ if base.__module__.startswith(__package__))
    named = (name for name, of in signature(of_loader).parameters.items() if of.kind != of.VAR_KEYWORD)
    others = ("input_data", "node_sampler", "link_sampler", "custom_cls", "input_id", "order", "collate_fn")
    return frozenset((*named, *others)) - _READ_ANEW


class KeyedLoader(ResumableLoader):
    """Base class of our loaders, of seeds or of links. In a class's bases it comes before one of PyG's loaders.

    A subclass defines the ids of its inputs (``_ids``) and the fields that a batch gets from its inputs (``_label``).
    """

    data: Any
    transform: Callable | None
    transform_sampler_output: Callable | None
    filter_per_worker: bool
    custom_cls: Any
    inputs_type: type[NodeSamplerInput] | type[EdgeSamplerInput]
    _label: Callable[[Any, FieldsByType, Any], None]
    """_label(loader, fields, metadata) puts what is known of the inputs into the fields of a batch; the metadata are
    those of its sample."""

    def __init__(
        self,
        given: GivenData,
        num_neighbors: Any,
        neighbor_sampler: KeyedSampler,
        options: LoaderOptions,
        *,
        num_inputs: Callable[[], int],
        by_type: ByType | None = None,
        sizes: dict[Any, int] | None = None,
        **kwargs: Any,
    ) -> None:
        """``kwargs`` are the other arguments of PyG's loader; ``num_inputs()`` returns the number of inputs.

        ``by_type``: the inputs, if they have several types; ``sizes``: how many of each type a batch has, if that is
        fixed. If the sampler's device is a GPU, batches are made there.
        """
        if isinstance(again := kwargs.get("sampler"), PositionSampler):  # of a loader that is made again
            kwargs |= {"sampler": None, "shuffle": isinstance(again, KeyedShuffle)}
        if sizes is not None:
            kwargs["batch_size"] = sum(sizes.values())
            if checks.has_own_order(kwargs):
                raise ValueError(f"batch_size={sizes}: expected neither sampler nor batch_sampler beside it, found one")
        kwargs |= options.of_pyg()
        checks.check_options(kwargs)
        seed, prefetch, edge_layout, bulk, shard = (
            options.seed, options.prefetch, options.edge_layout, options.bulk, options.shard
        )  # fmt: skip
        self.prefetch = checks.checked_prefetch(prefetch)
        """How many batches are in preparation; None: the loader chooses (:mod:`torch_gnnscale.loader.pipeline`)."""
        self._given = given
        self._sharing = sharing_of(
            options.split, shard, options.seed_order, options.uneven, given, neighbor_sampler, self.inputs_type, kwargs,
            seed,
        )  # fmt: skip
        self._sampler = sampler = self._sharing.sampler
        share = self._sharing.share
        options_of(sampler)  # raises here, and not when a state is asked for
        check_weight_name(sampler.weight_name)
        kwargs = without_processes(given, sampler, kwargs, timed=options.split is not None)
        given.check_features(sampler)
        checks.check_part(given, sampler, kwargs)
        checks.check_inputs(kwargs, num_inputs)
        given.check_class(kwargs.get("custom_cls"))
        self._seed_order = SeedOrder(self._sharing.seed(seed, kwargs.get("generator")), share, checks.dealt(kwargs))
        self.edge_layout = edge_layout
        self._edge_layouts = given.edge_layouts(edge_layout)
        self._sharing.check(kwargs, self._edge_layouts)
        self._seconds = {"sample": 0.0, "gather": 0.0}
        self.order = given.numbering
        """The numbering of renumbered stores; None if the stores use the user's ids."""
        self._device = checks.gpu_of(sampler)
        self.bulk = checks.checked_bulk(
            bulk, given, sampler, self._device, self.inputs_type, self._edge_layouts, kwargs
        )
        self._execution = Execution(self.bulk, self._device or checks.gpu_of_rows(given, sampler, kwargs))
        warn_of_unused_arguments(given, sampler, prefetch, seed, kwargs)
        given.warn_of_rows(self._device)
        checks.warn_of_unshared_inputs(shared=checks.has_own_order(kwargs) or share is not None or shard is False)
        given.move_to_huge_pages()
        shuffle = kwargs.pop("shuffle", False)
        if not checks.has_own_order(kwargs):
            own = (range(num_inputs()), self._seed_order, kwargs.get("batch_size", 1))
            part = 0 if share is None else share.part
            kwargs["sampler"] = KeyedShuffle(*own, part) if shuffle else InOrder(*own)
        if kwargs.get("filter_per_worker") is None and (given.has_rows_on_gpu or given.has_learned_rows):
            kwargs["filter_per_worker"] = False
        self._rows_of_workers: RowsOfWorkers | None = None
        super().__init__(given.data, num_neighbors, users_own(sampler), num_inputs=num_inputs(), **kwargs)
        if by_type is not None:
            self.input_data = by_type
        if by_type is not None and sizes is not None:
            shuffled = self.sampler if isinstance(self.sampler, KeyedShuffle) else None
            each = [sizes[of] for of in by_type.input_type]
            self._seed_order.chunks = ChunksOfTypes(by_type.types, each, self.drop_last, shuffled)
            self.__dict__["batch_size"] = sizes

    def __setattr__(self, name: str, value: Any) -> None:
        is_made = (sharing := self.__dict__.get("_sharing")) is not None and sharing.has_met
        if is_made and name in _read_once(type(self)) and value is not self.__dict__.get(name):
            if hasattr(self, name):
                raise ValueError(
                    f"{name}: expected what the loader was made with, found it set later; make another loader"
                )
            warn(f"{name} is set after the loader was made, which does not read it any more; make another loader")
        super().__setattr__(name, value)

    @property
    def keyed_sampler(self) -> KeyedSampler:
        """The sampler of batches; with ``split``, that of this rank's part of them.

        Raises:
            ValueError: it is no KeyedSampler.
        """
        if not self._sampler.keyed:
            raise ValueError(f"neighbor_sampler: expected a KeyedSampler, found {name_of(self._sampler)}")
        return self._sampler

    def _meet_others(self) -> None:
        """Called at the end of a subclass's constructor; see :meth:`Sharing.meet`."""

        def decides() -> dict[str, Any]:
            return {**self._fingerprint(), "bulk": self.bulk}

        batches: Any = self.batch_sampler
        self._sharing.meet(self._seed_order, batches, self._owned_ids, decides)
        self._sharing.make(lambda: self._line)

    def _owned_ids(self) -> Owned:
        """For each type of inputs, (the stores' ids of the nodes that decide which part an input belongs to, their
        type): of links, their destinations."""
        return [
            (entry.node, entry.input_type)
            if isinstance(entry, NodeSamplerInput)
            else (entry.col, end_types(entry.input_type)[1])
            for entry in each_type(self.input_data)
        ]

    # Batches #########################################################################################################

    @cached_property
    def _line(self) -> Line:
        """The steps from numbers to batches. Made on first use, after the subclass's constructor."""
        rows = self._sharing.source(self._given.rows(self.custom_cls, self._device))
        collator = Collator(
            rows, self._edge_layouts, self._sampler, partial(self._label, self), self, numbering=self.order,
            device=self._device,
        )  # fmt: skip
        negatives = getattr(self, "neg_sampling", None)
        labels = LinkLabels(self.input_data) if isinstance(self.input_data, EdgeSamplerInput) else None
        return Line(
            self._seed_order, self._sampler, collator, self.input_data, self._ids, negatives, self._seconds, labels
        )  # fmt: skip

    @on_host
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.pin_memory and self.num_workers == 0 and not torch.cuda.is_available():
            warn("pin_memory=True has no effect: torch sees no CUDA device")
        self._seed_order.begin()
        return self._seed_order.follow(self._of_workers if self.num_workers > 0 else self._batches)

    def _batches(self) -> Iterator[Any]:
        """The rest of the epoch from the current position on, without worker processes."""
        numbered = iter(self._index_sampler)
        return self._sharing.batches(self._line, self._execution, numbered, self.prefetch)

    def _of_workers(self) -> Iterator[Any]:
        """The batches of worker processes."""
        if not self.filter_per_worker:
            return super().__iter__()
        if self._rows_of_workers is None or self._iterator is None:  # else they persist, with what they have copied
            transforms = self.transform is not None
            self._rows_of_workers = RowsOfWorkers(self._line.collator.source.own, self._line.labels, transforms)
        return BatchesOfWorkers(super().__iter__(), self._rows_of_workers)

    def samples(self, epoch: int) -> Iterator[Output]:
        """The sampler's outputs for an epoch's batches, in order, without features. The position of training stays.

        Node ids are those of the stores. The iterator has ``close()``, which ends its threads.

        Raises:
            TypeError, ValueError: the epoch is not an integer of at least 0, or the user passed a ``sampler`` or
                ``batch_sampler``, so that the order does not follow from the seed and the epoch.
        """
        return self._sampled(epoch, output_of)

    def _sampled(self, epoch: int, *then: Callable[[MiniBatch], Any]) -> Pipeline:
        """The batches of an epoch after sampling, given to ``then``; see :meth:`samples`."""
        numbered = self._seed_order.numbered(self._index_sampler.batches, check_int("epoch", epoch))
        if not numbered.keyed:
            raise ValueError("samples: expected an order that follows from seed and epoch, found the user's sampler")
        return samples(self._line, iter(numbered), USUAL if self.prefetch is None else self.prefetch, *then)

    @on_host
    def collate_fn(self, index: MiniBatch | FromElsewhere | Tensor | list[int]) -> MiniBatch | Data | HeteroData:
        """Samples a batch; with ``filter_per_worker``, and for DataLoaders of others, also gathers its features.

        Raises:
            ValueError: from a DataLoader of others, if the ranks make their batches together.
        """
        if isinstance(index, FromElsewhere):
            checks.check_foreign(self, self._line.collective)
            return self.filter_fn(self._line.sample(index.batch))
        batch = self._line.sample(index)
        return self.filter_fn(batch) if self.filter_per_worker else batch

    @on_host
    def filter_fn(self, out: MiniBatch | Output) -> Data | HeteroData:
        """Gathers the features of a sample and makes the batch; ``out``: what ``collate_fn`` returned, or a sampler's
        output."""
        if not isinstance(out, MiniBatch):
            batch = MiniBatch()
            write_output(batch, out, self._sampler.edge_permutation)
            out = batch
        return self._line.finish(self._line.batch(out))

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds spent so far, summed over this process's threads: ``sample``, and ``gather`` (fetching rows and
        making batches). If batches are made or gathered on a GPU, also ``stall``: how long the stream that takes
        them was idle because they were not ready."""
        return MappingProxyType({**self._seconds, **self._execution.stall()})
