"""The operator on rows of nested tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import OPS, check_ids, check_int, check_tensor


def gather_nested(values: Tensor, offset: Tensor, columns: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of a nested tensor, whose cells have any number of values each. Cell j of row i has
    ``values[offset[i * columns + j]:offset[i * columns + j + 1]]``.

    Args:
        values: of any dtype, shape [V], contiguous, on the CPU.
        offset: int64, shape [N * columns + 1], ascending, in [0, V].
        columns: how many cells a row has, at least 1.
        index: int64, shape [n], in [0, N).

    Returns:
        (values, offset) of the rows ``index``, in recycled memory.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, device, strides or number of columns, an index out of
            range.
        RuntimeError: an offset that is out of range or descends.
    """
    check_int("columns", columns, 1)
    for name, tensor, dtype in (
        ("values", values, None),
        ("offset", offset, torch.int64),
        ("index", index, torch.int64),
    ):
        check_tensor(name, tensor)
        if tensor.dim() != 1 or tensor.device.type != "cpu" or dtype not in (None, tensor.dtype):
            raise ValueError(
                f"{name}: expected a vector{'' if dtype is None else f' of {dtype}'} on the CPU, found {tensor.dtype} "
                f"{tuple(tensor.shape)} on {tensor.device}"
            )
    rows, rest = divmod(offset.numel() - 1, columns)
    if rest or rows < 0:
        raise ValueError(f"offset: expected a multiple of {columns} columns and 1 more, found {offset.numel()}")
    if not values.is_contiguous():
        raise ValueError(f"values: expected contiguous ones, found strides {values.stride()}")
    try:
        return OPS.gather_nested(values, offset.contiguous(), columns, index.contiguous())
    except RuntimeError:
        check_ids("index", index, rows, "rows")  # names the first that is out of range
        raise
