"""Host memory: shared by processes, pinned for GPUs, in huge pages, within a budget."""

from .host import (
    Budget,
    HostArray,
    HostLayout,
    HostMemory,
    budget_bytes,
    format_bytes,
    free_on_gpu,
    is_bytes,
    move_to_huge_pages,
    peer_budgets,
    unreadable_peer,
)

__all__ = [
    "Budget", "HostArray", "HostLayout", "HostMemory", "budget_bytes", "format_bytes", "free_on_gpu",
    "is_bytes", "move_to_huge_pages", "peer_budgets", "unreadable_peer",
]  # fmt: skip
