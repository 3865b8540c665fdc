"""The process group over which the thread that iterates exchanges rows, on the device where batches have them."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import distributed as dist


class RowGroup(NamedTuple):
    """How rows of other parts come, where the thread that iterates exchanges them."""

    backend: str
    """Of torch.distributed."""
    device: torch.device
    """Where rows are sent from and arrive."""


Backend: TypeAlias = Literal["gloo", "nccl"] | RowGroup
"""The argument ``backend`` of ``open_part``."""


def row_group_of(backend: Backend) -> RowGroup | None:
    """None for "gloo": the thread of the steps exchanges rows, in host memory.

    Raises:
        ValueError: an unknown backend; "nccl" without what it needs.
    """
    if isinstance(backend, RowGroup):
        return backend
    if backend not in ("gloo", "nccl"):
        raise ValueError(f"backend: expected 'gloo' or 'nccl', found {backend!r}")
    if backend == "gloo":
        return None
    needed = {"GPU that torch sees": torch.cuda.is_available(), "NCCL in torch": dist.is_nccl_available()}
    if missing := [name for name, there in needed.items() if not there]:
        raise ValueError(f"backend='nccl': expected a {' and '.join(needed)}, found no {' and no '.join(missing)}")
    return RowGroup("nccl", torch.device("cuda", torch.cuda.current_device()))
