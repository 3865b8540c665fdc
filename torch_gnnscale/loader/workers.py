"""Worker processes: ``num_workers`` means threads, unless something needs processes, which read rows from a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from .._warn import warn
from ..feature.contract import is_collective, may_be_read_by_threads
from ..ops.arguments import to_int
from ..sampler.base import KeyedSampler
from .checks import check_no_processes
from .fields import OF_GRAPH
from .given_data import GivenData
from .given_links import LinkLabels
from .row_source import RowSource

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
