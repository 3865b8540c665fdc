"""Operators on rows of features, those in several memories, and those that ranks exchange as bytes."""

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


def select_each(sources: Sequence[Tensor], index: Tensor, below: int) -> list[Tensor | None]:
    """For each CPU tensor what :func:`select_rows` returns, or None where :func:`gather_rows` would not do. Rows of
    several tensors that lie side by side, as columns of one matrix, are read together.

    Args:
        sources: of any dtype and shape.
        index: int64, shape [n], in host memory; not checked to be such.
        below: all indices are known to be in [0, below): tensors with that many rows are not checked again.
    """
    found: list[Tensor | None] = [None] * len(sources)
    at_once: list[int] = []
    few = index.numel() <= _FEW_ROWS
    for number, src in enumerate(sources):
        if src.layout != torch.strided or not src.dim() or src.is_quantized or not (
            (whole := src.is_contiguous()) or src[0].is_contiguous()
        ):  # fmt: skip
            continue
        rows = src.size(0)
        if below > rows or src.requires_grad:
            found[number] = gather_rows(src, index, check=below > rows)
        elif (
            whole
            and (few or src.dim() == 1)
            and src.dtype in _SELECTED
            and index.numel() * (src.stride(0) if rows else 0) <= _FEW_ELEMENTS
        ):
            found[number] = src.index_select(0, index)
        else:
            at_once.append(number)
    if at_once:
        with below_autograd():
            gathered = _gather_each()([sources[number] for number in at_once], index.contiguous(), resolve_threads(0))
        for number, rows_of in zip(at_once, gathered, strict=True):
            found[number] = rows_of
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
    total, filled, below = len(out), 0, 0
    checked: Tensor | None = None  # ids that are known to be below `below`
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
    each, threads = list(zip(own, other, at, place, strict=True)), resolve_threads(0)
    for of in each:
        _check_joined(*of)
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


MAX_TIERS = 4
"""The most tiers that a table may have."""
MAX_SEGMENTS = 32
"""The most segments that all tiers of a table may have together."""
_WIDENED = {torch.float16: (torch.float32, torch.float64), torch.bfloat16: (torch.float32, torch.float64)}


def can_widen(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether :func:`gather_tiers` can return rows of ``dtype`` if ``stored`` is the dtype of the segments."""
    return stored == dtype or dtype in _WIDENED.get(stored, ())


def gather_tiers(
    segments: Sequence[Tensor],
    index: Tensor,
    *,
    spread: Sequence[int] | None = None,
    place: Tensor | None = None,
    disk: bool = False,
    dtype: torch.dtype | None = None,
    counts: Tensor | None = None,
    threads: int = 0,
    check: bool = True,
) -> Tensor:
    """Rows of a table whose tiers lie in different memories (Data Tiering, section 4 and appendix A.3).

    A tier consists of one or more segments, each an array in one memory. Its rows are interleaved over them: with P
    segments, the r-th row of the tier is row r // P of segment r mod P. Places 0, 1, ... number the rows of all tiers:
    first those of the first tier, then those of the next one. Row i of the output is the row at place
    ``place[index[i]]``.

    On the CPU, rows in memory are copied while rows on disk are read. On a GPU one kernel reads all tiers: the GPU's
    own memory, that of peers which it can access, and host memory that is registered with CUDA.

    Args:
        segments: shape [rows, ...] each, all of one dtype and with contiguous rows; those of the fastest tier first. A
            GPU reads segments in host memory when its stream reaches the kernel: keep them until then.
        index: ids, int32 or int64, shape [n], on the device that gathers.
        spread: the number of segments of each tier; by default 1.
        place: the place of each id: int32 or int64, shape [N], on the device of ``index``. None: an id is a place.
        disk: whether the last tier is mapped from a file.
        dtype: of the output, by default that of the segments. float32 and float64 may be stored as float16 or bfloat16.
        counts: int64, shape [tiers, 2], contiguous, on the device of ``index``. The number of rows read from each tier
            is added to column 0. On the CPU the nanoseconds that they took are added to column 1: for all tiers in
            memory together to that of the first tier, and for the tier on disk to its own.
        threads: see the package.
        check: whether to look for ids out of range. For ids on a GPU the host waits for the result. Without the check,
            an id out of range reads memory that is not the table's.

    Returns:
        Shape [n, ...], on the device of ``index``.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, device, strides or number of segments, an index out of
            range, rows of more than 512 MiB on a GPU.
        NotImplementedError: rows on disk with an index on a GPU.
        RuntimeError: ``place`` has an entry out of range, or host memory is not registered with CUDA.
    """
    segments = list(segments)
    _check_segments(segments)
    sizes = [segment.size(0) for segment in segments]
    spread = check_spread("segments", sizes, [1] * len(segments) if spread is None else spread)
    num_ids = sum(sizes)
    check_ids("index", index)
    if place is not None:
        check_ids("place", place)
        if place.device != index.device:
            raise ValueError(f"place: expected it on {index.device} like index, found {place.device}")
        num_ids = len(place)
    check_ids("index", index, num_ids if check else None, "rows", threads)
    if index.device.type == "cpu" and any(segment.device.type != "cpu" for segment in segments):
        raise ValueError("index: expected it on the GPU that gathers, for segments are not in host memory; found cpu")
    for segment in segments:
        check_row_bytes("segments", segment, index.device)
    for device in {segment.device for segment in segments if segment.numel()}:
        if device.type == "cuda":
            open_peer("index", index.device, device)
    if disk and index.device.type != "cpu":
        raise NotImplementedError(f"rows on disk are not gathered on {index.device}: use an index on the CPU")
    dtype = segments[0].dtype if dtype is None else dtype
    if not can_widen(segments[0].dtype, dtype):
        raise TypeError(
            f"dtype: expected {segments[0].dtype}, or float32 or float64 of rows stored in 16 bits, found {dtype}"
        )
    if counts is not None:
        check_tensor("counts", counts)
        good = counts.dtype == torch.int64 and counts.shape == (len(spread), 2) and counts.is_contiguous()
        if not good or counts.device != index.device:
            raise ValueError(
                f"counts: expected contiguous int64 of shape ({len(spread)}, 2) on {index.device}, "
                f"found {counts.dtype} {tuple(counts.shape)} on {counts.device}"
            )
    place = None if place is None else place.contiguous()
    return OPS.gather_tiers(
        segments, spread, place, index.contiguous(), bool(disk), dtype, counts, resolve_threads(threads)
    )


def check_spread(name: str, sizes: list[int], spread: Sequence[int]) -> list[int]:
    """``spread`` as a list. Raises ValueError unless it divides the segments ``name``, which have ``sizes`` rows, into
    tiers whose rows are interleaved over their segments."""
    counts = [check_int("spread", count, 1) for count in spread]
    if not 1 <= len(counts) <= MAX_TIERS or sum(counts) != len(sizes):
        raise ValueError(f"spread: expected 1 to {MAX_TIERS} tiers of {len(sizes)} {name} in all, found {counts}")
    if len(sizes) > MAX_SEGMENTS:
        raise ValueError(f"{name}: expected 1 to {MAX_SEGMENTS}, found {len(sizes)}")
    first = 0
    for count in counts:
        found = sizes[first : first + count]
        expected = [(sum(found) - p + count - 1) // count for p in range(count)]
        if found != expected:
            raise ValueError(f"{name}: expected a tier of {sum(found)} rows interleaved as {expected}, found {found}")
        first += count
    return counts


@cache
def open_peer(name: str, reader: torch.device, owner: torch.device) -> None:
    """Lets a GPU read another one's memory. Raises ValueError if it cannot; ``name``: what lies on the reader.

    A copy between the two makes torch open the access. ``cudaDeviceEnablePeerAccess`` is not enough: it does not open
    memory that torch's allocator maps itself (``expandable_segments``).
    """
    if reader == owner:
        return
    if not torch.cuda.can_device_access_peer(reader, owner):
        raise ValueError(f"{name}: expected it on a GPU that can read {owner}, found {reader}")
    torch.empty(1, device=reader).copy_(torch.empty(1, device=owner))


def _check_segments(segments: list[Tensor]) -> None:
    if not 1 <= len(segments) <= MAX_SEGMENTS:
        raise ValueError(f"segments: expected 1 to {MAX_SEGMENTS}, found {len(segments)}")
    for i, segment in enumerate(segments):
        check_tensor(f"segments[{i}]", segment)
        if segment.dim() == 0:
            raise ValueError(f"segments[{i}]: expected at least one dimension, found a scalar")
        if segment.dtype != segments[0].dtype or segment.shape[1:] != segments[0].shape[1:]:
            raise ValueError(
                f"segments[{i}]: expected {segments[0].dtype} rows of shape {tuple(segments[0].shape[1:])}, "
                f"found {segment.dtype} {tuple(segment.shape[1:])}"
            )
        if not has_contiguous_rows(segment):
            raise ValueError(f"segments[{i}]: expected contiguous rows, found strides {segment.stride()}")


def place_dtype(places: int) -> torch.dtype:
    """int32 if it holds all of 0 .. ``places`` - 1, else int64."""
    return torch.int32 if places <= 1 << 31 else torch.int64
