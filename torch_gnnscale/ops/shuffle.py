"""Operators on rows of batches that are cut over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._private import below_autograd
from .arguments import OPS, check_ids, check_tensor, resolve_threads
from .rows import check_row_bytes, has_contiguous_rows

MAX_TABLES = 64
"""Tables of one call of :func:`shuffle_rows`."""
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Types of numbers that are added, or dropped."""


def shuffle_rows(
    base: Tensor | None,
    parts: Sequence[Tensor],
    part: Tensor | None,
    row: Tensor,
    ptr: Tensor | None = None,
    threads: int = 0,
    *,
    check: bool = True,
) -> Tensor:
    """``out[i] = base[i] + sum over j in [ptr[i], ptr[i + 1]) of parts[part[j]][row[j]]``, added in that order.

    It packs the rows that others read, adds the gradients that they send back, and reads their memory directly where
    ``parts`` are tables of theirs (GSplit, section 5). Numbers of 16 bits are added as float32 and rounded once.

    Args:
        base: shape [n, ...], as many rows as the result; None: zeros.
        parts: 1 to 64 tables of the same dtype and shape [N_k, ...]; each row must be contiguous. On a GPU they may
            lie in memory of peers.
        part: the tables of entries: int64, shape [m], in [0, len(parts)); None: the first.
        row: their rows there: int64, shape [m].
        ptr: int64, shape [n + 1], rising from 0 to m. None: entry i is output i's alone; without ``base`` rows are then
            copied as they are, of any dtype.
        threads: see the package.
        check: look for tables, rows and pointers out of range, for which the host waits if they are on a GPU. Without,
            one that is out of range reads foreign memory.

    Returns:
        Shape [n, ...], the dtype of ``parts``; on the CPU in recycled memory. Not differentiable.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, device or strides, an entry out of range.
    """
    parts = list(parts)
    if not 1 <= len(parts) <= MAX_TABLES:
        raise ValueError(f"parts: expected 1 to {MAX_TABLES} tables, found {len(parts)}")
    check_ids("row", row)
    tables = [(f"parts[{k}]", table) for k, table in enumerate(parts)]
    like = parts[0]
    for name, table in tables if base is None else [*tables, ("base", base)]:
        check_tensor(name, table)
        if table.dim() == 0 or not has_contiguous_rows(table):
            raise ValueError(
                f"{name}: expected contiguous rows, found shape {tuple(table.shape)}, strides {table.stride()}"
            )
        if table.dtype != like.dtype or table.shape[1:] != like.shape[1:]:
            raise ValueError(
                f"{name}: expected {like.dtype} rows of shape {tuple(like.shape[1:])} as in parts[0], found "
                f"{table.dtype} {tuple(table.shape[1:])}"
            )
        check_row_bytes(name, table, row.device)
    if not (base is None and ptr is None) and like.dtype not in FLOATS:
        raise TypeError(f"parts: expected floats to add, found {like.dtype}")
    ids = [("row", row)]
    ids += [("part", part)] if part is not None else []
    ids += [("ptr", ptr)] if ptr is not None else []
    for name, values in ids:
        check_ids(name, values)
        if values.dtype != torch.int64 or values.device != row.device:
            raise ValueError(f"{name}: expected int64 on {row.device}, found {values.dtype} on {values.device}")
    if part is not None and part.shape != row.shape:
        raise ValueError(f"part: expected an entry for each of {len(row)} rows, found {len(part)}")
    if ptr is not None and len(ptr) == 0:
        raise ValueError("ptr: expected at least one entry, found none")
    count = len(row) if ptr is None else len(ptr) - 1
    if base is not None and len(base) != count:
        raise ValueError(f"base: expected {count} rows as the result has, found {len(base)}")
    if check:
        _check_entries(parts, part, row, ptr, threads)
    row, part, ptr = (
        row.contiguous(),
        None if part is None else part.contiguous(),
        None if ptr is None else ptr.contiguous(),
    )
    with below_autograd():
        return OPS.shuffle_rows(base, parts, part, row, ptr, resolve_threads(threads))


def _check_entries(parts: list[Tensor], part: Tensor | None, row: Tensor, ptr: Tensor | None, threads: int) -> None:
    if part is None:
        check_ids("row", row, len(parts[0]), "rows", threads)
    else:
        check_ids("part", part, len(parts), "tables", threads)
        sizes = torch.tensor([len(table) for table in parts], device=row.device)[part]
        outside = ((row < 0) | (row >= sizes)).nonzero()
        if len(outside):
            at = int(outside[0])
            raise IndexError(
                f"row[{at}] = {int(row[at])} is out of range: expected rows of parts[{int(part[at])}] in "
                f"[0, {int(sizes[at])})"
            )
    if ptr is not None and (int(ptr[0]) != 0 or int(ptr[-1]) != len(row) or bool((ptr.diff() < 0).any())):
        raise ValueError(f"ptr: expected it to rise from 0 to {len(row)}, found {int(ptr[0])} to {int(ptr[-1])}")
