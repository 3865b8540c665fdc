"""Rows of a torch_frame TensorFrame, by semantic type: one native gather for each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def frame_rows(frame: Any, ids: Tensor, take: Callable[[Tensor], Tensor]) -> Any:
    """``frame[ids]``: a TensorFrame of the same columns.

    Args:
        frame: a TensorFrame.
        ids: int64, shape [n], on its device.
        take: returns the rows ``ids`` of a tensor with a row for each of the frame's.
    """

    def rows(value: Any) -> Any:
        if isinstance(value, Tensor):
            return take(value)
        if isinstance(value, dict):  # tokens of text: one nested tensor for each kind
            return {name: rows(nested) for name, nested in value.items()}
        found = copy.copy(value)
        found.num_rows = ids.numel()
        if value.values.dim() == 2:  # MultiEmbeddingTensor: offsets are of columns
            found.values = take(value.values)
        else:  # MultiNestedTensor
            found.values, found.offset = _nested_rows(value, ids, take)
        return found

    found = copy.copy(frame)
    found.feat_dict = {of: rows(value) for of, value in frame.feat_dict.items()}
    found.y = None if frame.y is None else rows(frame.y)
    if frame._num_rows is not None:
        found._num_rows = ids.numel()
    return found


def _nested_rows(value: Any, ids: Tensor, take: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """(values, offset) of a MultiNestedTensor's rows: cell (i, j) has values[offset[i * C + j]:offset[i * C + j + 1]],
    with C columns."""
    offset, columns = value.offset, value.num_cols
    begins = take(offset[:-1].view(-1, columns)).view(-1)
    sizes = take(offset[1:].view(-1, columns)).view(-1) - begins
    found = offset.new_zeros(sizes.numel() + 1)
    torch.cumsum(sizes, 0, out=found[1:])
    cell = torch.repeat_interleave(begins - found[:-1], sizes)
    return value.values[cell + torch.arange(cell.numel(), device=cell.device)], found
