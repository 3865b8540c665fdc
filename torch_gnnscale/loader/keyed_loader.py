"""The base of our loaders: connects order, sampler, stores and pipeline with PyG's loader classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, HeteroSamplerOutput, NodeSamplerInput, SamplerOutput

from .. import ops
from .._warn import warn
from ..feature.contract import CollectiveRowStore, Steps
from ..memory import move_to_huge_pages
from ..ops.arguments import to_int
from ..sampler.keyed import KeyedSampler, Output
from . import checks
from .chunks import Chunks, ChunksOfParts, KeyedShuffle
from .collate import Collator
from .execution import Execution
from .fetch import row_source, row_tensors
from .layout import EdgeLayout, edge_layouts_of
from .line import Line
from .order import NumberedBatch, SeedOrder
from .prefetch import USUAL
from .resumable import ResumableLoader, options_of
from .share import Shard, SharedOrder, Uneven, agreed_share, common_seed, share_of
from .split import Split, SplitBatches
from .together import Together
from .workers import without_processes


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

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        neighbor_sampler: BaseSampler,
        *,
        num_inputs: Callable[[], int],
        seed: int | None,
        prefetch: int | None,
        edge_layout: EdgeLayout | None,
        bulk: int | None = None,
        shard: Shard = None,
        seed_order: SharedOrder | None = None,
        uneven: Uneven = "pad",
        split: Split | None = None,
        **kwargs: Any,
    ) -> None:
        """``kwargs`` are the arguments of PyG's loader, passed on; ``num_inputs()`` returns the number of inputs.

        If the sampler's device is a GPU, batches are made there.
        """
        if prefetch is not None and (prefetch := to_int("prefetch", prefetch)) < 0:
            raise ValueError(f"prefetch: expected at least 0, found {prefetch}")
        sampler = neighbor_sampler
        self._split: SplitBatches | None = None  # of batches that several ranks make together
        if split is not None:
            self._split = checks.opened_split(split, sampler, self.inputs_type, data)
            sampler = self._split.sampler
        kwargs = without_processes(data, sampler, kwargs, timed=split is not None)
        checks.check_features(data, sampler)
        checks.check_part(data, sampler, kwargs)
        if split is not None:
            checks.check_split(kwargs)
        checks.check_input_id(kwargs.get("input_id"), num_inputs)
        groups = None if self._split is None else self._split.ranks
        share = share_of(shard, seed_order, uneven, data, kwargs, seed, groups)
        self._seeds_of_parts = self._split is not None and seed_order == "owned"  # in each batch
        self._order = SeedOrder(common_seed(share, seed, kwargs.get("generator")), share)
        if kwargs.get("in_order") is False:
            raise ValueError("in_order: expected True, because batches are numbered in their order, found False")
        if kwargs.get("batch_size", 1) is None and kwargs.get("batch_sampler") is None:
            raise ValueError("batch_size: expected a number of seeds, found None")
        self.prefetch = prefetch
        """How many batches are in preparation; None: the loader chooses (:mod:`torch_gnnscale.loader.prefetch`)."""
        self.edge_layout = edge_layout
        self._edge_layouts = edge_layouts_of(data, edge_layout)
        if split is not None and (layout := self._edge_layouts[None]) != "coo":
            raise NotImplementedError(f"edge_layout={layout!r} with split= is not implemented; use 'coo'")
        self._seconds = {"sample": 0.0, "gather": 0.0}
        self.order = checks.common_numbering(data)
        """The numbering of renumbered stores; None if the stores use the user's ids."""
        self._sampler = sampler
        options_of(sampler)  # raises here, and not when a state is asked for
        keyed = isinstance(sampler, KeyedSampler)
        self._device: torch.device | None = None  # the GPU that makes batches; None: the data's device
        if keyed and sampler.device.type != "cpu":
            self._device = sampler.device
        of_rows = None if isinstance(data, (Data, HeteroData)) else getattr(data[0], "stream_device", None)
        in_process = kwargs.get("num_workers", 0) == 0
        self.bulk = checks.checked_bulk(bulk, data, sampler, self._device, self.inputs_type, self._edge_layouts, kwargs)
        self._execution = Execution(self.bulk, self._device or (of_rows if keyed and in_process else None))
        if prefetch and not keyed and in_process:
            warn(
                f"prefetch={prefetch} has no effect: {type(sampler).__name__} may keep state (it is no KeyedSampler), "
                f"so it is called in the thread that iterates"
            )
        if isinstance(data, (Data, HeteroData)):
            checks.warn_of_slow_rows(data)
            move_to_huge_pages(value for _, value in row_tensors(data) if ops.can_gather_rows(value))
        if self._device is not None:
            checks.warn_of_host_rows(data, self._device)
        own_order = kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None
        checks.warn_of_unshared_inputs(shared=own_order or share is not None or shard is False)
        if kwargs.pop("shuffle", False):
            if own_order:
                raise ValueError("shuffle=True: expected neither sampler nor batch_sampler beside it")
            kwargs["sampler"] = KeyedShuffle(range(num_inputs()), self.seed, 0 if share is None else share.part)
        if kwargs.get("filter_per_worker") is None and checks.has_rows_on_gpu(data):
            kwargs["filter_per_worker"] = False
        super().__init__(data, num_neighbors, sampler, **kwargs)
        self._steps: Steps | None = None  # of stores that all ranks read together
        self._said_of_inputs: dict[str, Any] = {}  # what the ranks said of their inputs
        if share is not None and self._split is None and not checks.reads_together(data):
            self._order.share = share.with_counts([len(self.batch_sampler)])  # type: ignore[arg-type]

    @property
    def keyed_sampler(self) -> KeyedSampler:
        """The sampler of batches; with ``split``, that of this rank's part of them.

        Raises:
            ValueError: it is no KeyedSampler.
        """
        if not isinstance(self._sampler, KeyedSampler):
            raise ValueError(f"neighbor_sampler: expected a KeyedSampler, found {type(self._sampler).__name__}")
        return self._sampler

    def _meet_others(self) -> None:
        """Called at the end of a subclass's constructor. If all ranks read together, they compare what decides their
        batches, and tell each other how many batches they have.

        Raises:
            ValueError: on all ranks, if they differ; or if the sampler of one cannot sample with the others.
        """
        share, problem = self._order.share, None
        if share is None:
            return
        if self._split is not None:
            self._steps = self._split.open_steps(self.timeout)
            if self._seeds_of_parts:
                problem = self._order_parts(self._split, repeats=share.uneven != "serve")
        elif checks.reads_together(self.data):
            store: CollectiveRowStore = self.data[0]
            self._steps = store.open_steps()
            problem = store.beyond_part(*self._owned_ids()) if share.seed_order == "owned" else None
        else:
            return
        self._order.share, self._said_of_inputs = agreed_share(
            share, self._steps, self._decides(share.uneven), self._chunks.counts, problem
        )
        if isinstance(self._sampler, KeyedSampler):
            self._sampler.join(self._steps, own_seeds=share.seed_order == "owned")

    def _decides(self, uneven: Uneven) -> dict[str, Any]:
        """What decides the batches of ranks that make them together, in plain values."""
        return {**self._fingerprint(), "seed": self.seed, "uneven": uneven, "bulk": self.bulk}

    def _order_parts(self, split: SplitBatches, repeats: bool) -> str | None:
        """Orders the seeds of each part by themselves; returns None, or why that is not possible."""
        owners = split.owners_of(self._owned_ids()[0])
        shuffle = self.sampler if isinstance(self.sampler, KeyedShuffle) else None
        assert self.batch_size is not None
        try:
            self._order.chunks_of_parts = ChunksOfParts(
                owners, split.parts, self.batch_size, self.drop_last, shuffle, repeats
            )
        except ValueError as error:
            return str(error)
        return None

    @property
    def _chunks(self) -> Chunks | ChunksOfParts:
        """The inputs of batches, by number, of a loader whose batches ranks share."""
        chunks = self._index_sampler.chunks
        assert chunks is not None  # a loader with a share refuses a sampler of the user's
        return chunks

    def _owned_ids(self) -> tuple[Tensor, Any]:
        """(The stores' ids of the nodes that decide which part an input belongs to, their type)."""
        raise NotImplementedError

    def _label(self, batch: Data | HeteroData, out: Output) -> None:
        """Puts the fields of the inputs into the batch."""
        raise NotImplementedError

    # Batches #########################################################################################################

    @cached_property
    def _line(self) -> Line:
        """The steps from numbers to batches. Made on first use, after the subclass's constructor."""
        source = row_source(self.data, self.custom_cls, self._device)
        if self._split is not None:
            source = self._split.source(source)
        collator = Collator(
            source, self._edge_layouts, self._sampler, self._label, numbering=self.order,
            transform=self.transform_sampler_output, device=self._device,
        )  # fmt: skip
        negatives = getattr(self, "neg_sampling", None)
        return Line(self._order, self._sampler, collator, self.input_data, self._ids, negatives, self._seconds)

    @cached_property
    def _together(self) -> Together | None:
        """The line in steps of all ranks, if they read together."""
        share = self._order.share
        if self._steps is None or share is None:
            return None
        decides = partial(self._decides, share.uneven)
        return Together(self._line, self._steps, share, self._execution, self._chunks.size_of, decides)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._order.begin()
        if self.num_workers > 0:
            return self._order.follow(super().__iter__())
        if self.pin_memory and not torch.cuda.is_available():
            warn("pin_memory=True has no effect: torch sees no CUDA device")
        numbered = iter(self._index_sampler)
        if self._together is not None:
            start, prefetch = (self._order.epoch, self._order.batch), USUAL if self.prefetch is None else self.prefetch
            return self._order.follow(self._together.batches(numbered, *start, self._finish, prefetch))
        return self._order.follow(self._execution.batches(self._line, numbered, self._finish, self.prefetch))

    def samples(self, epoch: int) -> Iterator[Output]:
        """The sampler's outputs for an epoch's batches, in order, without features. The position of training stays.

        Node ids are those of the stores.

        Raises:
            ValueError: the user passed a ``sampler`` or ``batch_sampler``, so that the order does not follow from the
                seed and the epoch.
        """
        numbered = self._order.numbered(self._index_sampler.batches, epoch)
        if not numbered.keyed:
            raise ValueError("samples: expected an order that follows from seed and epoch, found the user's sampler")
        return self._line.samples(iter(numbered), USUAL if self.prefetch is None else self.prefetch)

    def collate_fn(self, index: NumberedBatch | Tensor | list[int]) -> Output | Data | HeteroData:
        """Samples a batch; with ``filter_per_worker``, also gathers its features."""
        out = self._line.sample(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: Output) -> Data | HeteroData:
        """Gathers the features of a sample and makes the batch."""
        return self._finish(self._line.collate(self._line.fetch(out)))

    def _finish(self, batch: Any) -> Any:
        """The last step, in the thread that iterates: transform and pin."""
        if isinstance(batch, (SamplerOutput, HeteroSamplerOutput)):  # from a worker process without filter_per_worker
            return self.filter_fn(batch)
        if self.transform is not None:
            batch = self.transform(batch)
        # With worker processes, DataLoader's own thread pins.
        pins = self.pin_memory and self.num_workers == 0 and torch.cuda.is_available()
        return batch.pin_memory() if pins else batch

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds spent so far, summed over this process's threads: ``sample``, and ``gather`` (fetching rows and
        making batches). If batches are made or gathered on a GPU, also ``stall``: how long the stream that takes
        them was idle because they were not ready."""
        return MappingProxyType({**self._seconds, **self._execution.stall()})
