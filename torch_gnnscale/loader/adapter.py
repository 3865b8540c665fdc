"""What our loaders do to be subclasses of PyG's and torch's. Worker processes: ``num_workers`` means threads, unless
something needs processes, which read rows from a copy. And workarounds:

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info
from torch_geometric.sampler import BaseSampler

from .._user import warn
from ..feature.attributes import OF_GRAPH
from ..feature.contract import is_collective, may_be_read_by_threads
from ..ops.arguments import to_int
from ..sampler.base import KeyedSampler
from ..sampler.minibatch import MiniBatch
from .checks import check_no_processes
from .epochs import FromElsewhere, NumberedBatches
from .given_data import GivenData
from .given_links import LinkLabels
from .order import Place, SeedOrder
from .row_source import RowSource

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


PROCESS_OPTIONS = ("worker_init_fn", "multiprocessing_context")
"""Arguments of DataLoader that only processes can serve."""


def without_processes(
    given: GivenData, sampler: KeyedSampler, options: dict[str, Any], timed: bool = False
) -> dict[str, Any]:
    """The DataLoader's options, without worker processes if threads can do the work.

    Threads are faster: processes have to send every batch. Processes are kept for a sampler or store that several
    threads must not use at once, and if ``worker_init_fn`` or ``multiprocessing_context`` is given. What is collective
    is asked by one thread, never by processes. A warning names the arguments that have no effect.

    Args:
        given, sampler: of the loader.
        options: its arguments of DataLoader.
        timed: whether the loader waits for other ranks, ``timeout`` seconds at most.

    Raises:
        TypeError, ValueError: a number of workers that is none.
        NotImplementedError: processes are asked for, and the sampler or a store is collective.
    """
    if (workers := to_int("num_workers", options.get("num_workers", 0))) < 0:
        raise ValueError(f"num_workers: expected at least 0, found {workers}")
    kept = _kept(given, sampler, options, workers, timed)
    _warn_of_unused(kept, timed)
    return kept


def _kept(given: GivenData, sampler: Any, options: dict[str, Any], workers: int, timed: bool) -> dict[str, Any]:
    if not workers:
        return options
    collective, part = next((x for x in (sampler, *given.stores) if is_collective(x)), None), given.of_part
    if any(options.get(name) is not None for name in PROCESS_OPTIONS):
        if collective is not None and not part:  # of a part's stores, check_part says it
            check_no_processes(options, f"a {type(collective).__name__}, which is collective,")
        return options
    rows = not given.stores or may_be_read_by_threads(given.features)
    sampling = sampler.thread_safe
    if not part and collective is None and not (rows and sampling):
        return options
    of_processes = ("num_workers", "persistent_workers", "prefetch_factor", *(() if timed else ("timeout",)))
    unused = [name for name in of_processes if options.get(name)]
    if part or collective is None:
        instead = "threads prepare the batches, which is faster than processes (see prefetch=)"
    else:
        instead = f"one thread asks a {type(collective).__name__}, which is collective, in the order of batches"
    if not part and collective is None:
        instead += "; pass multiprocessing_context='fork' for worker processes"
    warn(f"{', '.join(f'{name}={options[name]}' for name in unused)}: {instead}")
    return {name: value for name, value in options.items() if name not in unused}


def _warn_of_unused(options: dict[str, Any], timed: bool) -> None:
    """Warns of arguments that have no effect beside the others."""
    seconds = options.get("timeout", 0)
    if seconds > 0 and not timed and not options.get("num_workers", 0):
        warn(f"timeout={seconds} has no effect without worker processes")
    own = options.get("collate_fn")
    # Tools that make a loader anew, such as Lightning, pass the method of the loader they have.
    if own is not None and not isinstance(getattr(own, "__self__", None), DataLoader):
        warn("collate_fn has no effect, as in PyG: the loader makes its batches itself; use transform=")
    if device := options.get("pin_memory_device"):
        warn(f"pin_memory_device={device!r} has no effect: batches are pinned for the current CUDA device")


class RowsOfWorkers:
    """The attributes that worker processes read (``filter_per_worker``): those that there were when they started.

    Args:
        source: reads the loader's rows.
        labels: of links, if there are some.
        transforms: whether worker processes call the user's ``transform``, which sees what they read.

    Raises:
        ValueError: rows require grad.
    """

    def __init__(self, source: RowSource, labels: LinkLabels | None, transforms: bool) -> None:
        self._source, self._labels, self._transforms = source, labels, transforms
        self._number = None if labels is None else labels.number()
        with torch.enable_grad():
            self._copied, learned = source.versions(), source.learned()
        if learned:
            raise ValueError(
                f"filter_per_worker=True: expected rows that do not require grad, found {names_of(learned)}; worker "
                f"processes gather from a copy, which does not learn: pass filter_per_worker=False"
            )

    def delivered(self, batch: Any) -> Any:
        """The batch with numbers and strings that are attributes as they are now.

        Raises:
            RuntimeError: others, rows or labels of links say, were changed since then; or ``transform`` saw what was.
        """
        found = self._source.changed(self._copied)
        if found and not self._transforms:
            found = self._source.put_plain(batch, self._copied, found)
        if self._labels is not None and self._labels.number() != self._number:
            found.append((None, "edge_label"))
        if found:
            raise RuntimeError(
                f"{names_of(found)}: expected attributes that stay as they are while worker processes gather from a "
                f"copy of them, found changes since it was made; pass filter_per_worker=False, or leave "
                f"multiprocessing_context and worker_init_fn out, so that threads gather"
            )
        return batch


class BatchesOfWorkers:
    """Iterates over the batches of worker processes; each is what ``rows.delivered(batch)`` returns."""

    def __init__(self, batches: Iterator[Any], rows: RowsOfWorkers) -> None:
        self._batches, self._rows = batches, rows

    def __iter__(self) -> BatchesOfWorkers:
        return self

    def __next__(self) -> Any:
        return self._rows.delivered(next(self._batches))


def names_of(keys: Iterable[Any]) -> str:
    """What messages call attributes with these keys, pairs (type, name)."""
    of_graph = None, (None, None), OF_GRAPH
    return ", ".join(f"{name!r}" if of in of_graph else f"{name!r} of {of!r}" for of, name in keys)
