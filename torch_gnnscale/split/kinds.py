"""The type and width of rows as one number, which ranks compare."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = tuple(sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str))
"""All dtypes of torch, in the same order on all ranks."""


def kind_of(rows: Tensor | None) -> int:
    """A number for the type and the width of a tensor's rows; -1 if ``rows`` is not a tensor that has rows."""
    if not isinstance(rows, Tensor) or rows.dim() == 0:
        return -1
    return rows.shape[1:].numel() * len(DTYPES) + DTYPES.index(rows.dtype)


def kind_text(kind: int) -> str:
    """What a number of :func:`kind_of` means, in words."""
    if kind < 0:
        return "none"
    width, dtype = divmod(kind, len(DTYPES))
    return f"rows of {width} {dtype_text(dtype)}"


def check_kinds(purpose: str, kinds: Sequence[int]) -> None:
    """Raises ValueError unless all ranks exchange rows of one type and width; ``kinds``: what :func:`kind_of` said."""
    for rank, other in enumerate(kinds):
        if other != kinds[0]:
            raise ValueError(
                f"split: {purpose}: expected the same on all ranks, found {kind_text(kinds[0])} and on rank {rank} "
                f"{kind_text(other)}"
            )


def dtype_text(number: int) -> str:
    """The name of a type by its number in ``DTYPES``."""
    return str(DTYPES[number]).removeprefix("torch.")
