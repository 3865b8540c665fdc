"""Operators on rows of features that lie in several memories."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import OPS, check_ids, check_int, check_tensor, resolve_threads
from .rows import check_row_bytes, has_contiguous_rows

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
    table = TieredTable(segments, spread, place, disk, dtype)
    own, tiers, places, dtype = _checked_table("", table, index, counts, check, threads)
    return OPS.gather_tiers(own, tiers, places, index.contiguous(), bool(disk), dtype, counts, resolve_threads(threads))


class TieredTable(NamedTuple):
    """One of the tables of :func:`gather_tables`; the fields are arguments of :func:`gather_tiers`."""

    segments: Sequence[Tensor]
    spread: Sequence[int] | None = None
    place: Tensor | None = None
    disk: bool = False
    dtype: torch.dtype | None = None


def gather_tables(
    tables: Sequence[TieredTable],
    index: Sequence[Tensor],
    *,
    counts: Sequence[Tensor] = (),
    threads: int = 0,
    check: bool = True,
) -> list[Tensor]:
    """Rows of several tables, of any widths and dtypes: for each what :func:`gather_tiers` returns.

    On a GPU one kernel gathers them all, however many they are.

    Args:
        tables: their segments, and how rows lie in them.
        index: the ids of each table, all on one device.
        counts: the counts of each table; none are counted if there are none.
        threads, check: as for :func:`gather_tiers`.

    Returns:
        The rows of each table, shape [n, ...] with its own n.

    Raises:
        TypeError, ValueError, IndexError, NotImplementedError, RuntimeError: as :func:`gather_tiers`, the argument
            named with the number of its table; another number of ids or counts than of tables.
    """
    if len(index) != len(tables) or len(counts) not in (0, len(tables)):
        found = f"{len(index)} and {len(counts)}"
        raise ValueError(f"index, counts: expected as many as {len(tables)} tables, or no counts, found {found}")
    if not tables:
        return []
    segments, spread, layout, place = list[Tensor](), list[int](), list[int](), list[Tensor | None]()
    for number, (table, ids) in enumerate(zip(tables, index, strict=True)):
        if isinstance(ids, Tensor) and ids.device != index[0].device:
            raise ValueError(f"index[{number}]: expected it on {index[0].device} like index[0], found {ids.device}")
        counted = counts[number] if counts else None
        own, tiers, places, dtype = _checked_table(f"[{number}]", table, ids, counted, check, threads)
        segments += own
        spread += tiers
        place.append(places)
        layout += [len(tiers), int(table.disk), 0 if dtype == own[0].dtype else dtype.itemsize]
    index = [ids.contiguous() for ids in index]
    return OPS.gather_tables(segments, spread, layout, place, index, list(counts), resolve_threads(threads))


def _checked_table(
    of: str, table: TieredTable, index: Tensor, counts: Tensor | None, check: bool, threads: int
) -> tuple[list[Tensor], list[int], Tensor | None, torch.dtype]:
    """The segments, spread, places and dtype of a table; see :func:`gather_tiers` for what is raised. In errors, ``of``
    follows the names of arguments."""
    given, spread, place, disk, dtype = table
    segments = list(given)
    _check_segments(f"segments{of}", segments)
    sizes = [segment.size(0) for segment in segments]
    tiers = check_spread(f"segments{of}", sizes, [1] * len(segments) if spread is None else spread)
    num_ids = sum(sizes)
    check_ids(f"index{of}", index)
    if place is not None:
        check_ids(f"place{of}", place)
        if place.device != index.device:
            raise ValueError(f"place{of}: expected it on {index.device} like index, found {place.device}")
        num_ids = len(place)
    check_ids(f"index{of}", index, num_ids if check else None, "rows", threads)
    if index.device.type == "cpu" and any(segment.device.type != "cpu" for segment in segments):
        raise ValueError(
            f"index{of}: expected it on the GPU that gathers, for segments are not in host memory; found cpu"
        )
    for segment in segments:
        check_row_bytes(f"segments{of}", segment, index.device)
    for device in {segment.device for segment in segments if segment.numel()}:
        if device.type == "cuda":
            open_peer(f"index{of}", index.device, device)
    if disk and index.device.type != "cpu":
        raise NotImplementedError(f"rows on disk are not gathered on {index.device}: use an index on the CPU")
    dtype = segments[0].dtype if dtype is None else dtype
    if not can_widen(segments[0].dtype, dtype):
        raise TypeError(
            f"dtype{of}: expected {segments[0].dtype}, or float32 or float64 of rows stored in 16 bits, found {dtype}"
        )
    if counts is not None:
        check_tensor(f"counts{of}", counts)
        good = counts.dtype == torch.int64 and counts.shape == (len(tiers), 2) and counts.is_contiguous()
        if not good or counts.device != index.device:
            raise ValueError(
                f"counts{of}: expected contiguous int64 of shape ({len(tiers)}, 2) on {index.device}, "
                f"found {counts.dtype} {tuple(counts.shape)} on {counts.device}"
            )
    return segments, tiers, None if place is None else place.contiguous(), dtype


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


def _check_segments(name: str, segments: list[Tensor]) -> None:
    if not 1 <= len(segments) <= MAX_SEGMENTS:
        raise ValueError(f"{name}: expected 1 to {MAX_SEGMENTS}, found {len(segments)}")
    for i, segment in enumerate(segments):
        check_tensor(f"{name}[{i}]", segment)
        if segment.dim() == 0:
            raise ValueError(f"{name}[{i}]: expected at least one dimension, found a scalar")
        if segment.dtype != segments[0].dtype or segment.shape[1:] != segments[0].shape[1:]:
            raise ValueError(
                f"{name}[{i}]: expected {segments[0].dtype} rows of shape {tuple(segments[0].shape[1:])}, "
                f"found {segment.dtype} {tuple(segment.shape[1:])}"
            )
        if not has_contiguous_rows(segment):
            raise ValueError(f"{name}[{i}]: expected contiguous rows, found strides {segment.stride()}")


def place_dtype(places: int) -> torch.dtype:
    """int32 if it holds all of 0 .. ``places`` - 1, else int64."""
    return torch.int32 if places <= 1 << 31 else torch.int64
