"""Operators on rows that ranks exchange as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import OPS, check_ids, check_int, check_tensor, first_outside, resolve_threads
from .feature_rows import has_contiguous_rows


def pack_rows(
    rows: Sequence[Tensor], index: Sequence[Tensor], at: Sequence[int], total: int, threads: int = 0
) -> Tensor:
    """Rows of several tables one after another: the bytes of ``rows[k][index[k]]`` begin at ``at[k]``.

    Args:
        rows: CPU tensors of any dtype, shape [N_k, ...]; each row must be contiguous.
        index: for each, int64, shape [n_k], in [0, N_k).
        at: for each, where its first row begins; not before the end of the rows of the table before.
        total: the number of bytes of the result; bytes that belong to no row are 0.
        threads: see the package.

    Returns:
        uint8, shape [total], in recycled memory.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, strides or device, an index out of range, rows that
            overlap or do not fit.
    """
    total, filled = check_int("total", total), 0
    checked: Tensor | None = None  # ids that are known to be below `below`
    below = 0
    if not len(rows) == len(index) == len(at):
        raise ValueError(f"rows, index, at: expected as many of each, found {len(rows)}, {len(index)}, {len(at)}")
    for k, (table, ids, begin) in enumerate(zip(rows, index, at, strict=True)):
        _check_table(f"rows[{k}]", table)
        if checked is not ids or below > len(table):  # attributes of a type have the same ids
            _check_int64(f"index[{k}]", ids)
            check_ids(f"index[{k}]", ids, len(table), "rows", threads)
            checked, below = ids, len(table)
        end = begin + len(ids) * row_bytes(table)
        if begin < filled or end > total:
            raise ValueError(f"at[{k}]: expected bytes between {filled} and {total}, found {begin} to {end}")
        filled = end
    return OPS.pack_rows(list(rows), [ids.contiguous() for ids in index], list(at), total, resolve_threads(threads))


def join_rows(own: Tensor, other: Tensor, at: Tensor, place: Tensor, threads: int = 0, *, check: bool = True) -> Tensor:
    """Row i is ``own[place[i]]`` if ``place[i] >= 0``, else the row whose bytes begin at ``other[at[-1 - place[i]]]``.

    Args:
        own: a CPU tensor of any dtype, shape [N, ...]; each row must be contiguous.
        other: the bytes of further rows: uint8, shape [b], contiguous.
        at: where these rows begin in ``other``: int64, shape [m].
        place: int64, shape [n], in [-m, N).
        threads: see the package.
        check: raise for places and rows out of range. Without this check, they read memory outside the tensors.

    Returns:
        Shape [n, ...], the dtype of ``own``, in recycled memory.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, strides or device, a place or row out of range.
    """
    _check_table("own", own)
    check_tensor("other", other)
    if (other.dtype, other.dim(), other.device.type, other.is_contiguous()) != (torch.uint8, 1, "cpu", True):
        raise ValueError(f"other: expected bytes in a row on the CPU, found {other.dtype} {tuple(other.shape)}")
    _check_int64("at", at)
    _check_int64("place", place)
    if check:
        check_ids("at", at, max(len(other) - row_bytes(own) + 1, 0), "rows", threads)
        if (bad := first_outside(place + len(at), len(at) + len(own), threads)) >= 0:
            raise IndexError(
                f"place[{bad}] = {int(place[bad])} is out of range: expected places in [{-len(at)}, {len(own)})"
            )
    return OPS.join_rows(own, other, at.contiguous(), place.contiguous(), resolve_threads(threads))


def row_bytes(rows: Tensor) -> int:
    """The bytes of one row."""
    return rows.shape[1:].numel() * rows.element_size()


def _check_table(name: str, table: Tensor) -> None:
    check_tensor(name, table)
    if table.dim() == 0 or table.device.type != "cpu" or not has_contiguous_rows(table):
        raise ValueError(
            f"{name}: expected contiguous rows on the CPU, found shape {tuple(table.shape)}, strides {table.stride()} "
            f"on {table.device}"
        )


def _check_int64(name: str, ids: Tensor) -> None:
    check_tensor(name, ids)
    if (ids.dtype, ids.dim(), ids.device.type) != (torch.int64, 1, "cpu"):
        raise ValueError(f"{name}: expected an int64 vector on the CPU, found {ids.dtype} {tuple(ids.shape)}")
