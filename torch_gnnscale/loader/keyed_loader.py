"""What our loaders have in common: keyed batches, prepared ahead, from where a run stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput

from .. import ops
from .._warn import warn
from ..feature import FeatureStore
from ..ops.arguments import to_int
from ..random import batch_key, draw_seed, ids_key
from ..sampler import NeighborSampler
from ..sampler.bulk import check_modes, sample_bulk
from ..stream_time import StreamTime
from . import collate, rows
from .batches import InputPositions, KeyedShuffle, NumberedBatch, NumberedBatches
from .collate import Output
from .layout import EdgeLayout, edge_layouts_of
from .pipeline import Pipeline
from .position import FORMAT, Position, check_state
from .streams import Failed, Handed, Streams, Unpacked, as_here, or_failed


class KeyedLoader(DataLoader):
    """The part of a loader that does not know what its inputs are; to be derived from beside one of PyG's loaders.

    A subclass says how its inputs are sampled: ``_draw``, ``_ids`` and ``_label``.
    """

    data: Any
    input_data: Any
    transform: Callable | None
    transform_sampler_output: Callable | None
    filter_per_worker: bool
    custom_cls: Any
    draws_in_bulk = False
    """Whether inputs are nodes, which are drawn many at a time and on GPUs."""

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        *,
        neighbor_sampler: BaseSampler,
        num_inputs: Callable[[], int],
        seed: int | None,
        prefetch: int,
        edge_layout: EdgeLayout | None,
        bulk: int = 1,
        **kwargs: Any,
    ) -> None:
        """Takes the arguments of PyG's loader beside its own; ``num_inputs`` is asked if they are to be shuffled.

        Batches are on the device of the sampler, if that is a GPU.
        """
        if (prefetch := to_int("prefetch", prefetch)) < 0:
            raise ValueError(f"prefetch: expected at least 0, found {prefetch}")
        graph = neighbor_sampler.graph if isinstance(neighbor_sampler, NeighborSampler) else None
        rows.check_features(data, {} if graph is None else dict(zip(graph.node_types, graph.sizes, strict=True)))
        self.seed = draw_seed(kwargs.get("generator")) if seed is None else to_int("seed", seed)
        if kwargs.get("in_order") is False:
            raise ValueError("in_order: expected True, for batches are numbered in their order, found False")
        if kwargs.get("batch_size", 1) is None and kwargs.get("batch_sampler") is None:
            raise ValueError("batch_size: expected a number of seeds, found None")
        self.prefetch = prefetch
        self.edge_layout = edge_layout
        self._edge_layouts = edge_layouts_of(data, edge_layout)
        self._next = (0, 0)
        self._position = Position()
        self._seconds = {"sample": 0.0, "gather": 0.0}
        self.order = collate.order_of(data)
        """How a pair of stores numbers the nodes, if not as the user does."""
        self._sampler = neighbor_sampler
        self._device: torch.device | None = None  # None: batches are where the data is
        if isinstance(neighbor_sampler, NeighborSampler) and neighbor_sampler.device.type != "cpu":
            self._device = neighbor_sampler.device
            if self.order is not None:  # so that n_id is looked up where the batch is
                self.order = self.order._replace(old=self.order.old.to(self._device))
        in_process = kwargs.get("num_workers", 0) == 0 and isinstance(neighbor_sampler, NeighborSampler)
        self._streams_on = self._device or (rows.device_of_tiers(data) if in_process else None)
        """The GPU on which batches are made, or their rows gathered from tiers, on streams of its own."""
        self._streams: list[torch.cuda.Stream] = []  # of all epochs: the memory of each serves the next one's
        self._stall = StreamTime()
        self.bulk = check_bulk(self, bulk, neighbor_sampler, self._device, edge_layout, kwargs)
        self._gather_ahead = isinstance(data, (Data, HeteroData)) or isinstance(data[0], FeatureStore)
        self._sample_ahead = isinstance(neighbor_sampler, NeighborSampler)
        if prefetch > 0 and not self._sample_ahead and kwargs.get("num_workers", 0) == 0:
            warn(
                f"prefetch={prefetch} has no effect: {type(neighbor_sampler).__name__} may keep state, so it is asked "
                f"in the thread that iterates"
            )
        if isinstance(data, (Data, HeteroData)):
            rows.warn_of_slow_rows(data)
            ops.move_to_huge_pages(value for _, value in rows.row_tensors(data) if ops.can_gather_rows(value))
        if self._device is not None:
            rows.warn_of_host_rows(data, self._device)
        if kwargs.pop("shuffle", False):
            if kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None:
                raise ValueError("shuffle=True: expected neither sampler nor batch_sampler beside it")
            kwargs["sampler"] = KeyedShuffle(range(num_inputs()), self.seed)
        if kwargs.get("filter_per_worker") is None and rows.has_rows_on_gpu(data):
            kwargs["filter_per_worker"] = False
        super().__init__(data, num_neighbors, neighbor_sampler=neighbor_sampler, **kwargs)  # type: ignore[call-arg]
        # DataLoader does not let its dataset be replaced; PyG's loaders give it a range, which knows no batches.
        self.__dict__["dataset"] = InputPositions(len(self.dataset))  # type: ignore[arg-type]

    def _draw(self, inputs: Any, key: int | None = None) -> Output:
        """The sample of a batch's inputs; only a sampler of ours is given a key."""
        raise NotImplementedError

    def _ids(self, inputs: Any) -> Tensor:
        """What is hashed for the key of inputs that have no batch number."""
        raise NotImplementedError

    def _label(self, batch: Data | HeteroData, out: Output) -> None:
        """Puts what is known of the inputs into the batch."""
        raise NotImplementedError

    @property
    def seconds(self) -> Mapping[str, float]:
        """Time spent so far in this process's threads, by what was done. Where a GPU makes batches or gathers their
        rows, ``stall`` is how long the stream that takes them had nothing to do until they were there."""
        stall = {} if self._streams_on is None else {"stall": self._stall.seconds()}
        return MappingProxyType({**self._seconds, **stall})

    # Order and epochs ################################################################################################

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next ``iter()``; those after it follow."""
        if epoch < 0:
            raise ValueError(f"epoch: expected at least 0, found {epoch}")
        self._next = (epoch, 0)
        self._position.jump(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iterator is: what :meth:`load_state_dict` of an equal loader needs to go on behind it.

        A batch counts as soon as it has been delivered. Plain values, to be saved with a checkpoint.
        """
        return {
            "format": FORMAT,
            "seed": self.seed,
            "epoch": self._position.epoch,
            "batch": self._position.batch,
            **self._fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next ``iter()`` delivers the batches that would have come next, those after it the next epochs.

        Any ``num_workers`` and ``prefetch`` give the same batches. A ``sampler`` or ``batch_sampler`` of the user's is
        asked for the epoch's order again, and what was delivered is skipped: whether it gives the same one is its own
        matter.

        Raises:
            ValueError: not a state, or one of a loader with other inputs, batches or fanouts.
        """
        check_state(state, self._fingerprint())
        self.seed = state["seed"]
        if isinstance(self.sampler, KeyedShuffle):
            self.sampler.seed = self.seed
        self._next = (state["epoch"], state["batch"])
        self._position.jump(*self._next)

    def _fingerprint(self) -> dict[str, Any]:
        """What decides the batches besides the seed, as far as it can be told in a few plain values."""
        order = "input" if isinstance(self.sampler, SequentialSampler) else "user's"
        ours = self._sampler if isinstance(self._sampler, NeighborSampler) else None
        return {
            "inputs": len(self.dataset),  # type: ignore[arg-type]
            "input_type": None if self.input_data.input_type is None else str(self.input_data.input_type),
            "key_of_inputs": self._key_of_inputs,
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "order": "shuffled" if isinstance(self.sampler, KeyedShuffle) else order,
            **(ours.options() if ours is not None else {}),
        }

    @cached_property
    def _key_of_inputs(self) -> int:
        """Tells these inputs from others."""
        return ids_key(0, self._ids(self.input_data))

    @property
    def _index_sampler(self) -> NumberedBatches:
        """What DataLoader draws batches of positions from, in this process and for its workers."""
        return NumberedBatches(super()._index_sampler, lambda: (self._position.epoch, self._position.batch))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self._position.jump(*self._next)
        self._next = (self._position.epoch + 1, 0)
        if self.num_workers > 0:
            return self._position.follow(super().__iter__())
        if self.pin_memory and not torch.cuda.is_available():
            warn("pin_memory=True has no effect: torch sees no CUDA device")
        numbered = self._index_sampler
        prefetch = self.prefetch if self._sample_ahead else 0
        if self.bulk > 1 or self._streams_on is not None:
            return self._position.follow(self._in_bulk(iter(numbered), -(-prefetch // self.bulk)))
        pipeline = Pipeline(iter(numbered), as_here(self._prepare), self._finish, prefetch)
        return self._position.follow(pipeline)

    def _in_bulk(self, numbered: Iterator[NumberedBatch], ahead: int) -> Unpacked[Any]:
        """The batches of an epoch, made ``bulk`` at a time, ``ahead`` bulks ahead."""
        bulks = iter(lambda: list(islice(numbered, self.bulk)), [])
        if self._streams_on is None:
            pipeline = Pipeline(bulks, as_here(self._prepare_bulk), lambda batches: batches, ahead)
            return Unpacked(pipeline, self._finish)
        streams = Streams(self._streams_on, self._streams, ahead)

        def prepare(indices: list[NumberedBatch]) -> Handed:
            with streams.work():
                return streams.hand(self._prepare_bulk(indices))

        return Unpacked(
            Pipeline(bulks, as_here(prepare), streams.take, ahead),
            self._finish,
            lambda: self._stall.measure(streams.device),
        )

    def samples(self, epoch: int) -> Iterator[Output]:
        """What the sampler gives for an epoch's batches, in order, without features; no iterator is moved by it.

        Node ids are those of the stores.

        Raises:
            ValueError: the order is a ``sampler``'s or ``batch_sampler``'s of the user's, who alone knows the epoch's.
        """
        numbered = NumberedBatches(self._index_sampler.batches, lambda: (epoch, 0))
        if not numbered.keyed:
            raise ValueError("samples: expected an order that follows from seed and epoch, found one of the user's")
        prefetch = self.prefetch if self._sample_ahead else 0
        return Pipeline(iter(numbered), as_here(self._sample), lambda out: out, prefetch)

    # From positions to batches #######################################################################################

    def collate_fn(self, index: NumberedBatch | Tensor | list[int]) -> Output | Data | HeteroData:
        """Samples a batch; in a worker process that filters, also gathers its features."""
        out = self._sample(index)
        return self._finish(self._fill(out)) if self.filter_per_worker else out

    def filter_fn(self, out: Output) -> Data | HeteroData:
        """Gathers a sampled batch's features, in the main process."""
        return self._finish(self._fill(out))

    def _sample(self, index: NumberedBatch | Tensor | list[int]) -> Output:
        start = time.perf_counter()
        positions = index.positions if isinstance(index, NumberedBatch) else index
        if not isinstance(positions, Tensor):
            positions = torch.as_tensor(positions, dtype=torch.int64)
        inputs = self.input_data[positions]
        if not isinstance(self._sampler, NeighborSampler):
            out = self._draw(inputs)
        elif isinstance(index, NumberedBatch):
            out = self._draw(inputs, batch_key(self.seed, index.epoch, index.number))
        else:
            out = self._draw(inputs, ids_key(self.seed, self._ids(inputs)))
        self._seconds["sample"] += time.perf_counter() - start
        return out

    def _prepare_bulk(self, indices: list[NumberedBatch]) -> list[Any]:
        if self.bulk == 1 and self._device is None:
            return [or_failed(self._prepare, index) for index in indices]
        outs = or_failed(self._sample_bulk, indices)
        if isinstance(outs, Failed):
            return [outs] * len(indices)
        return [or_failed(self._fill, out) for out in outs] if self._gather_ahead else outs

    def _sample_bulk(self, indices: list[NumberedBatch]) -> list[Output]:
        start = time.perf_counter()
        inputs = [self.input_data[torch.as_tensor(index.positions, dtype=torch.int64)] for index in indices]
        keys = [batch_key(self.seed, index.epoch, index.number) for index in indices]
        assert isinstance(self._sampler, NeighborSampler)
        outs = sample_bulk(self._sampler, inputs, keys)
        self._seconds["sample"] += time.perf_counter() - start
        return outs

    def _prepare(self, index: NumberedBatch) -> Any:
        out = self._sample(index)
        return self._fill(out) if self._gather_ahead else out

    def _fill(self, out: Output) -> Data | HeteroData:
        """The batch with all of PyG's fields, in PyG's order, before ``transform``."""
        start = time.perf_counter()
        drawn = collate.ends_of(out)
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        layers, known = False, None
        if isinstance(self._sampler, NeighborSampler):
            layers, graph = self._sampler.layers, self._sampler.graph
            if self.transform_sampler_output is None:
                nodes = dict(zip(graph.node_types, graph.sizes, strict=True))
                known = collate.Known(nodes, dict(zip(graph.edge_types, graph.relations, strict=True)))
        permutation = self._sampler.edge_permutation
        batch = collate.fill(
            self.data,
            out,
            drawn,
            permutation,
            self._edge_layouts,
            self.custom_cls,
            layers,
            self.order,
            self._device,
            known,
        )
        self._label(batch, out)
        collate.drop_caches(batch)
        if self._device is not None:
            # The layers are there already; PyG's `to` would make lists of their sizes.
            batch = batch.to(self._device, *(name for name, _ in batch if name != "layers"), non_blocking=True)
        self._seconds["gather"] += time.perf_counter() - start
        return batch

    def _finish(self, batch: Data | HeteroData | Output) -> Any:
        if isinstance(batch, (SamplerOutput, HeteroSamplerOutput)):
            batch = self._fill(batch)
        if self.transform is not None:
            batch = self.transform(batch)
        # Worker processes leave pinning to DataLoader's own thread.
        return batch.pin_memory() if self._pins_itself() else batch

    def _pins_itself(self) -> bool:
        return self.pin_memory and self.num_workers == 0 and torch.cuda.is_available()


def check_bulk(
    loader: KeyedLoader, bulk: int, sampler: BaseSampler, device: torch.device | None, edge_layout: EdgeLayout | None,
    kwargs: dict[str, Any],
) -> int:  # fmt: skip
    """Returns ``bulk``; raises ValueError, TypeError or NotImplementedError if batches cannot be made so."""
    if (bulk := to_int("bulk", bulk)) < 1:
        raise ValueError(f"bulk: expected at least 1, found {bulk}")
    if bulk == 1 and device is None:
        return bulk
    how = f"bulk={bulk}" if device is None else f"device={str(device)!r}"
    if not loader.draws_in_bulk:
        raise NotImplementedError(f"{type(loader).__name__} with {how} is not implemented; use device='cpu' and bulk=1")
    if not isinstance(sampler, NeighborSampler):
        raise ValueError(f"{how}: expected a neighbor_sampler of torch_gnnscale, found {type(sampler).__name__}")
    check_modes(sampler, how)
    if workers := kwargs.get("num_workers", 0):
        raise ValueError(f"{how}: expected num_workers=0, found {workers}")
    if device is not None and kwargs.get("pin_memory"):
        raise ValueError(f"{how}: expected pin_memory=False, for batches are on the GPU, found True")
    if device is not None and "SparseTensor" in loader._edge_layouts.values():
        raise NotImplementedError(f"edge_layout='SparseTensor' with {how} is not implemented; use 'sparse_csr'")
    return bulk
