"""The meaning of ``num_workers``: threads, unless something needs processes."""

from __future__ import annotations

from typing import Any

from torch_geometric.data import Data, HeteroData

from .._warn import warn
from ..feature.contract import may_be_read_by_threads
from ..sampler.keyed import KeyedSampler
from .checks import of_part

PROCESS_OPTIONS = ("worker_init_fn", "multiprocessing_context")
"""Arguments of DataLoader that only processes can serve."""


def without_processes(data: Any, sampler: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The DataLoader's options, without worker processes if threads can do the work.

    Threads are faster: processes have to send every batch. Processes are kept for a sampler or store that several
    threads must not use at once, and if ``worker_init_fn`` or ``multiprocessing_context`` is given. A warning names the
    arguments that have no effect.
    """
    if not options.get("num_workers", 0) or any(options.get(name) is not None for name in PROCESS_OPTIONS):
        return options
    rows = isinstance(data, (Data, HeteroData)) or may_be_read_by_threads(data[0])
    sampling = isinstance(sampler, KeyedSampler) and sampler.thread_safe and not sampler.collective
    if not of_part(data) and not (rows and sampling):
        return options
    unused = [name for name in ("num_workers", "persistent_workers", "prefetch_factor") if options.get(name)]
    warn(
        f"{', '.join(f'{name}={options[name]}' for name in unused)}: threads prepare the batches, which is faster than "
        f"processes (see prefetch=); pass multiprocessing_context='fork' for worker processes"
    )
    return {name: value for name, value in options.items() if name not in unused}
