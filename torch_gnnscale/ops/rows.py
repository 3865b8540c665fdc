"""Operators on rows of features, also of nested ones, and on those that ranks exchange as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .. import _library
from .._private import below_autograd
from .arguments import OPS, check_ids, check_int, check_tensor, first_outside, resolve_threads

MAX_ROW_BYTES = 1 << 29
"""Of a row that a GPU gathers."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_ORDINARY = (Tensor, torch.nn.Parameter)
_SELECTED = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool}
_FEW_ROWS = 128
_FEW_ELEMENTS = 1 << 15
"""Torch selects so many on one thread, more on all of its threads."""


def can_gather_rows(src: Tensor) -> bool:
    """Whether :func:`gather_rows` gives what ``src[index]`` would.

    It does for contiguous rows on a device for which the operator is loaded, unless ``src`` is of a subclass of Tensor.
    """
    device = src.device.type
    loaded = device == "cpu" or (device == "cuda" and _library.status.get("_CUDA") == "loaded")
    ordinary = type(src) in _ORDINARY and src.layout == torch.strided and src.dim() > 0 and not src.is_quantized
    return loaded and ordinary and has_contiguous_rows(src)


def select_rows(src: Tensor, index: Tensor, *, check: bool = True) -> Tensor:
    """``src[index]``, by :func:`gather_rows` or, of few rows that are not checked, by torch.

    A call of torch's costs 4 us less. It is slower for many rows of several numbers that are far apart in memory, and
    it would start threads, which the model needs, for more than ``_FEW_ELEMENTS`` numbers.
    """
    if check:
        return gather_rows(src, index)
    count = index.numel()
    by_torch = (
        (count <= _FEW_ROWS or src.dim() == 1)
        and src.device.type == "cpu"
        and src.dtype in _SELECTED
        and src.is_contiguous()
        and count * src.stride(0) <= _FEW_ELEMENTS
    )
    return src.index_select(0, index) if by_torch else gather_rows(src, index, check=False)


def select_each(groups: Sequence[tuple[Sequence[Tensor], Tensor, int]]) -> list[list[Tensor | None]]:
    """For each CPU tensor of each group what :func:`select_rows` returns, or None where :func:`gather_rows` would not
    do. What torch does not select as fast is read in one call, and rows of several tensors that lie side by side, as
    columns of one matrix, together.

    Args:
        groups: of each its tensors, of any dtype and shape; ``index``, int64, shape [n], in host memory, which is not
            checked to be such; and ``below``: all indices are known to be in [0, below), so that tensors with that many
            rows are not checked again.
    """
    found: list[list[Tensor | None]] = [[None] * len(sources) for sources, _, _ in groups]
    at_once: list[tuple[int, int]] = []
    tensors: list[Tensor] = []
    counts: list[int] = []
    alone = len(groups) == 1 and len(groups[0][0]) == 1  # others are read in one call anyway
    for group, (sources, index, below) in enumerate(groups):
        few, before = index.numel() <= _FEW_ROWS, len(tensors)
        for number, src in enumerate(sources):
            if src.layout != torch.strided or not src.dim() or src.is_quantized or not (
                (whole := src.is_contiguous()) or src[0].is_contiguous()
            ):  # fmt: skip
                continue
            rows = src.size(0)
            if below > rows or src.requires_grad:
                found[group][number] = gather_rows(src, index, check=below > rows)
            elif (
                whole
                and (few or (alone and src.dim() == 1))
                and src.dtype in _SELECTED
                and index.numel() * (src.stride(0) if rows else 0) <= _FEW_ELEMENTS
            ):
                found[group][number] = src.index_select(0, index)
            else:
                at_once.append((group, number))
                tensors.append(src)
        counts.append(len(tensors) - before)
    if tensors:
        indices = [index.contiguous() for _, index, _ in groups]
        with below_autograd():
            gathered = _gather_each()(tensors, indices, counts, resolve_threads(0))
        for (group, number), rows_of in zip(at_once, gathered, strict=True):
            found[group][number] = rows_of
    return found


@cache
def _gather_each() -> Any:
    """The operator, without a choice among overloads in each call."""
    return OPS.gather_each.default


def has_contiguous_rows(src: Tensor) -> bool:
    """Whether each row of a strided tensor is contiguous."""
    return src.is_contiguous() or src[0].is_contiguous()  # without elements it is contiguous


def as_words(rows: Tensor) -> Tensor:
    """The same memory in a dtype of the same size that torch can write at indices, which it cannot for every dtype."""
    return rows.view(_WORDS[rows.dtype.itemsize])


def check_row_bytes(name: str, src: Tensor, device: torch.device) -> None:
    """Raises ValueError for rows too large for a GPU's kernel."""
    if device.type == "cuda" and len(src) and (size := src[:1].nbytes) > MAX_ROW_BYTES:
        raise ValueError(f"{name}: expected rows of at most {MAX_ROW_BYTES} bytes on a GPU, found {size}")


def gather_rows(src: Tensor, index: Tensor, threads: int = 0, *, check: bool = True) -> Tensor:
    """``src[index]`` for rows of any dtype and size, into recycled memory on the CPU; differentiable in ``src``.

    Args:
        src: shape [N, ...]; rows may be strided, each row must be contiguous.
        index: int32 or int64, shape [n], in [0, N), on the device of ``src``.
        threads: see the package.
        check: on a GPU, look for indices out of range, for which the host waits. Without, one that is out of range
            reads foreign memory. In host memory they are found in any case.

    Returns:
        Shape [n, ...], the dtype of ``src``.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, device or strides, an index out of range, rows of more
            than 512 MiB on a GPU.
    """
    check_tensor("src", src)
    check_tensor("index", index)
    if src.dim() == 0:
        raise ValueError("src: expected at least one dimension, found a scalar")
    if index.device != src.device:
        raise ValueError(f"index: expected it on {src.device} like src, found {index.device}")
    if not (src.is_contiguous() or has_contiguous_rows(src)):
        raise ValueError(f"src: expected contiguous rows, found strides {src.stride()} for shape {tuple(src.shape)}")
    if src.is_cuda:
        check_row_bytes("src", src, src.device)
    checks_itself = src.device.type == "cpu" and src.numel() > 0  # while it copies
    check_ids("index", index, src.size(0) if check and not checks_itself else None, "rows", threads)
    index, threads = index.contiguous(), resolve_threads(threads)
    if torch.compiler.is_compiling():
        return OPS.gather_rows(src, index, threads)
    try:
        if src.requires_grad:
            return OPS.gather_rows(src, index, threads)
        with below_autograd():  # the way through autograd costs more than a small batch's rows
            return OPS.gather_rows(src, index, threads)
    except RuntimeError:
        check_ids("index", index, src.size(0), "rows", threads)  # names the first that is out of range
        raise


def pack_rows(
    rows: Sequence[Tensor], index: Sequence[Tensor], at: Sequence[int], out: Tensor, threads: int = 0
) -> Tensor:
    """Writes rows of several tables one after another: the bytes of ``rows[k][index[k]]`` begin at ``out[at[k]]``.

    Args:
        rows: CPU tensors of any dtype, shape [N_k, ...]; each row must be contiguous.
        index: for each, int64, shape [n_k], in [0, N_k).
        at: for each, where its first row begins; not before the end of the rows of the table before.
        out: uint8, shape [total], contiguous, on the CPU; its bytes that belong to no row become 0.
        threads: see the package.

    Returns:
        ``out``.

    Raises:
        TypeError, ValueError, IndexError: of wrong tensors, an index out of range, rows that overlap or do not fit.
    """
    _check_bytes("out", out)
    total, filled = len(out), 0
    if not len(rows) == len(index) == len(at):
        raise ValueError(f"rows, index, at: expected as many of each, found {len(rows)}, {len(index)}, {len(at)}")
    for k, (table, ids, begin) in enumerate(zip(rows, index, at, strict=True)):
        _check_table(f"rows[{k}]", table)
        if k == 0 or ids is not index[k - 1]:  # attributes of a type have the same ids
            _check_int64(f"index[{k}]", ids)
        end = begin + len(ids) * row_bytes(table)
        if begin < filled or end > total:
            raise ValueError(f"at[{k}]: expected bytes between {filled} and {total}, found {begin} to {end}")
        filled = end
    checked, below = None, 0  # ids that are known to be below `below`
    for k, (table, ids) in enumerate(zip(rows, index, strict=True)):
        if checked is not ids or below > len(table):
            check_ids(f"index[{k}]", ids, len(table), "rows", threads)
            checked, below = ids, len(table)
    OPS.pack_rows(list(rows), list(map(Tensor.contiguous, index)), list(at), out, resolve_threads(threads))
    return out


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
    _check_joined(own, other, at, place)
    if check:
        check_ids("at", at, max(len(other) - row_bytes(own) + 1, 0), "rows", threads)
        if (bad := first_outside(place + len(at), len(at) + len(own), threads)) >= 0:
            raise IndexError(
                f"place[{bad}] = {int(place[bad])} is out of range: expected places in [{-len(at)}, {len(own)})"
            )
    return OPS.join_rows(own, other, at.contiguous(), place.contiguous(), resolve_threads(threads))


def join_each(
    own: Sequence[Tensor], other: Sequence[Tensor], at: Sequence[Tensor], place: Sequence[Tensor]
) -> list[Tensor]:
    """For each table what :func:`join_rows` returns without ``check``."""
    each = list(zip(own, other, at, place, strict=True))
    for of in each:
        _check_joined(*of)
    threads = resolve_threads(0)
    return [OPS.join_rows(own, other, at.contiguous(), place.contiguous(), threads) for own, other, at, place in each]


def _check_joined(own: Tensor, other: Tensor, at: Tensor, place: Tensor) -> None:
    _check_table("own", own)
    _check_bytes("other", other)
    _check_int64("at", at)
    _check_int64("place", place)


def row_bytes(rows: Tensor) -> int:
    """The bytes of one row."""
    return rows.shape[1:].numel() * rows.element_size()


def _check_table(name: str, table: Tensor) -> None:
    if isinstance(table, Tensor) and table.dim() and table.device.type == "cpu" and has_contiguous_rows(table):
        return
    check_tensor(name, table)
    raise ValueError(
        f"{name}: expected contiguous rows on the CPU, found shape {tuple(table.shape)}, strides {table.stride()} "
        f"on {table.device}"
    )


def _check_bytes(name: str, data: Tensor) -> None:
    if not isinstance(data, Tensor):
        check_tensor(name, data)
    if (data.dtype, data.dim(), data.device.type, data.is_contiguous()) != (torch.uint8, 1, "cpu", True):
        raise ValueError(f"{name}: expected bytes in a row on the CPU, found {data.dtype} {tuple(data.shape)}")


def _check_int64(name: str, ids: Tensor) -> None:
    if not isinstance(ids, Tensor):
        check_tensor(name, ids)
    if (ids.dtype, ids.dim(), ids.device.type) != (torch.int64, 1, "cpu"):
        raise ValueError(f"{name}: expected an int64 vector on the CPU, found {ids.dtype} {tuple(ids.shape)}")


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
        return OPS.gather_nested.default(values, offset.contiguous(), columns, index.contiguous())
    except RuntimeError:
        check_ids("index", index, rows, "rows")  # names the first that is out of range
        raise
