"""Workarounds that let our loaders be subclasses of PyG's and torch's:

- Order of bases: a loader derives from (KeyedLoader, PyG's loader), in this order. KeyedLoader overrides
  ``collate_fn``, ``filter_fn`` and ``__iter__`` of PyG's loader, and ``_index_sampler`` of torch's DataLoader.
- ``time_attr=""``: PyG's loaders raise if there are times and ``time_attr`` is None, even though their sampler already
  has the times. They accept "".
- ``__dict__["dataset"]``: PyG's loaders make a range their dataset. We need one that accepts numbered batches, but
  DataLoader forbids assigning ``dataset``.
- ``_index_sampler``: DataLoader, in worker processes too, takes the positions of batches from it. Ours returns numbered
  batches.
- ``sampler``: DataLoader shuffles by torch's generator, so it gets a ``KeyedShuffle`` (``order.py``) instead of
  ``shuffle=True``, and ``InOrder`` otherwise. RandomSampler's constructor refuses an empty dataset; KeyedShuffle sets
  the fields itself then.
- ``dataset`` and ``collate_fn`` are what tools (Accelerate, Ray) make another DataLoader of. The dataset tells their
  batches from ours, and ``collate_fn`` makes whole batches of them.
- ``_iterator``: with ``persistent_workers`` DataLoader keeps its iterator there. Its processes make keys from the seed
  that the loader had when they started, so ``keyed_loader.py`` sets it to None when the seed changes; the next
  ``iter()`` starts others.
- ``_mapping``: PyG's storages keep their fields there. ``fields.py`` reads and sets the fields of batches in it.
- ``enable_cpu_affinity``, ``enable_multithreading``, ``enable_memory_log``: PyG sets these for worker processes, by
  ``worker_init_fn``, and raises without any. Here ``num_workers`` are threads, so programs of PyG's go on, with a
  warning.
- ``input_nodes``, ``edge_label_index`` and ``batch_size``: PyG's constructors get them checked and converted, and of
  several types only the first and the sum. Our loaders then set the attribute to what the user passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, get_worker_info
from torch_geometric.sampler import BaseSampler

from .._warn import warn
from ..sampler.minibatch import MiniBatch
from .order import FromElsewhere, NumberedBatches, Place, SeedOrder

FOREIGN = (
    "another DataLoader, such as those that Accelerate and Ray make, takes this loader's inputs: no batch is prepared "
    "ahead, and state_dict() does not follow. Iterate this loader itself, made with shard=True if there are several "
    "ranks (Accelerate: leave it out of prepare(); Ray: prepare_data_loader(..., add_dist_sampler=False))"
)
WITHOUT_NUMBERS = (
    ". Its batches have no numbers, so their neighbors are drawn by the seeds alone: equal seeds have equal neighbors "
    "in every epoch"
)


class InputPositions(Sequence):
    """A dataset of the positions 0..size-1 for torch's DataLoader.

    Args:
        size: how many inputs there are.
        batch_size: of the loader.
    """

    def __init__(self, size: int, batch_size: int) -> None:
        self.size, self.batch_size = size, batch_size
        self._warned = False

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: Any) -> Any:
        return range(self.size)[position]

    def __getitems__(self, batch: MiniBatch | list[int]) -> MiniBatch | FromElsewhere:
        """What a DataLoader's fetcher calls for a whole batch: our loader gets its MiniBatch back.

        A DataLoader of others gets a :class:`FromElsewhere`, numbered if the positions come from the loader's sampler.
        """
        if isinstance(batch, MiniBatch):
            return batch
        first = batch[0] if len(batch) else None
        worker = get_worker_info()
        if not self._warned and (worker is None or worker.id == 0):
            self._warned = True
            warn(FOREIGN if isinstance(first, Place) else FOREIGN + WITHOUT_NUMBERS)
        if not isinstance(first, Place):
            return FromElsewhere(batch)
        number, rest = divmod(first.place, self.batch_size)
        if rest:  # of another batch size: no other batch of the epoch begins at this place
            number = self.size + first.place
        return FromElsewhere(MiniBatch(first.epoch, number, np.asarray(batch, dtype=np.int64)))


class PyGLoaderAdapter(DataLoader):
    """Calls the constructor of one of PyG's loaders, which must follow it in the bases of a class."""

    _seed_order: SeedOrder

    def __init__(
        self, data: Any, num_neighbors: Any, neighbor_sampler: BaseSampler, input_name: str, inputs: Any,
        time_name: str, time: Any, num_inputs: int, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Calls PyG's constructor.

        Args:
            input_name, inputs: name and value of PyG's argument for seeds or links.
            num_inputs: how many inputs there are; more than PyG knows of if they have several types.
            time_name, time: name and value of PyG's argument for their times; None if there are none.
        """
        inputs_and_times = {input_name: inputs, time_name: time, "time_attr": None if time is None else ""}
        super().__init__(data, num_neighbors, neighbor_sampler=neighbor_sampler, **inputs_and_times, **kwargs)  # type: ignore[call-arg]
        self.__dict__["dataset"] = InputPositions(num_inputs, self.batch_size or 1)

    @property
    def _index_sampler(self) -> NumberedBatches:
        return self._seed_order.numbered(super()._index_sampler)

    def enable_cpu_affinity(
        self, loader_cores: list[list[int]] | list[int] | None = None
    ) -> AbstractContextManager[None]:  # fmt: skip
        """As in PyG, for worker processes; without them a warning says that it has no effect."""
        return self._for_processes("enable_cpu_affinity", super().enable_cpu_affinity, loader_cores)  # type: ignore[misc]

    def enable_multithreading(self, worker_threads: int | None = None) -> AbstractContextManager[None]:
        """As in PyG, for worker processes; without them a warning says that it has no effect."""
        return self._for_processes("enable_multithreading", super().enable_multithreading, worker_threads)  # type: ignore[misc]

    def enable_memory_log(self) -> AbstractContextManager[None]:
        """As in PyG, for worker processes; without them a warning says that it has no effect."""
        return self._for_processes("enable_memory_log", super().enable_memory_log)  # type: ignore[misc]

    def _for_processes(
        self, name: str, pygs: Callable[..., AbstractContextManager[None]], *arguments: Any
    ) -> AbstractContextManager[None]:
        """The context of one of PyG's methods; none, with a warning, if there are no worker processes."""
        if self.num_workers:
            return pygs(*arguments)
        warn(
            f"{name} has no effect: threads prepare the batches, on the cores of this process; for worker processes "
            f"pass num_workers and multiprocessing_context='fork'"
        )
        return nullcontext()
