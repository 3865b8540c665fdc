"""Host memory: shared by processes, pinned for GPUs, in huge pages, within a budget."""

from .budget import Budget, budget_bytes, format_bytes, is_bytes, peer_budgets, unreadable_peer
from .host import HostArray, HostLayout, HostMemory, free_on_gpu, move_to_huge_pages

__all__ = [
    "Budget", "HostArray", "HostLayout", "HostMemory", "budget_bytes", "format_bytes", "free_on_gpu",
    "is_bytes", "move_to_huge_pages", "peer_budgets", "unreadable_peer",
]  # fmt: skip
