"""Rows of batches that are cut over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .draws import WORD, philox


def shuffle_rows(
    base: Tensor | None, parts: Sequence[Tensor], part: Tensor | None, row: Tensor, ptr: Tensor | None = None
) -> Tensor:
    """Rows are copied, or added up, one by one; numbers of 16 bits are added as float32."""
    wide = torch.promote_types(parts[0].dtype, torch.float32) if ptr is not None or base is not None else None
    tables = [0] * len(row) if part is None else part.tolist()
    entries = [parts[table][at] for table, at in zip(tables, row.tolist(), strict=True)]
    ends = list(range(len(row) + 1)) if ptr is None else ptr.tolist()
    out = torch.empty((len(ends) - 1, *parts[0].shape[1:]), dtype=parts[0].dtype)
    for i in range(len(out)):
        if wide is None:
            out[i] = entries[i]
            continue
        total = torch.zeros(out.shape[1:], dtype=wide) if base is None else base[i].to(wide)
        for entry in entries[ends[i] : ends[i + 1]]:
            total = total + entry.to(wide)
        out[i] = total
    return out


def dropout_rows(x: Tensor, id: Tensor, key: int, p: float) -> Tensor:
    """Column c of the row of node v is kept if word c % 4 of block (v, c // 4) of the key is at least p 2^32."""
    wide, threshold = torch.promote_types(x.dtype, torch.float32), round(p * (1 << 32))
    scale = torch.tensor(1 / (1 - p) if p < 1 else 0.0, dtype=wide)
    out = torch.zeros_like(x)
    for i, node in enumerate(id.tolist()):
        for c in range(x.size(1)):
            if philox(key, node & WORD, node >> 32 & WORD, c // 4, 0)[c % 4] >= threshold:
                out[i, c] = (x[i, c].to(wide) * scale).to(x.dtype)
    return out
