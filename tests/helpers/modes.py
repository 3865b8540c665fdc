"""Ways in which a loader prepares batches."""

from __future__ import annotations

from typing import Any

from torch_gnnscale import NeighborLoader

from .data import loader_of

MODES: list[dict[str, Any]] = [
    {"prefetch": 0}, {"prefetch": 1}, {"prefetch": 4}, {"bulk": 4, "prefetch": 0}, {"bulk": 4, "prefetch": 4},
]  # fmt: skip
"""Options: in the thread that iterates, in other threads, and several batches in one call."""


def of_processes(data: Any, **options: Any) -> NeighborLoader:
    """A loader whose batches come from a forked process."""
    return loader_of(data, num_workers=1, multiprocessing_context="fork", **options)
