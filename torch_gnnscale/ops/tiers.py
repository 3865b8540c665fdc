"""Rows of features that lie in several memories."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from .arguments import OPS, check_ids, check_int, check_tensor, resolve_threads
from .rows import check_row_bytes, has_contiguous_rows

MAX_TIERS = 4
"""Tiers of one table."""
MAX_PARTS = 32
"""Parts of all tiers of one table."""
_WIDENED = {torch.float16: (torch.float32, torch.float64), torch.bfloat16: (torch.float32, torch.float64)}


def can_widen(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether :func:`gather_tiers` makes rows of ``dtype`` of stored ones."""
    return stored == dtype or dtype in _WIDENED.get(stored, ())


def gather_tiers(
    parts: Sequence[Tensor],
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

    Places number the rows of all tiers, one tier behind the other. A tier is spread over one or more parts: with P of
    them, its r-th row is row r // P of part r mod P. On the CPU rows on disk are read ahead, and rows in memory are
    copied in the meantime. On a GPU one kernel reads all tiers: its own memory, that of peers which it may access, and
    host memory that is registered with CUDA.

    Args:
        parts: shape [n_p, ...] each, of one dtype, with contiguous rows; tier by tier, the fastest first. A GPU reads
            those in host memory after the call, when its stream gets there: keep them until then.
        index: int32 or int64, shape [n], on the device that gathers.
        spread: of how many parts each tier consists; by default of one.
        place: the place of each id: int32 or int64, shape [N], on the device of ``index``, values in the number of
            rows of all parts. None: an id is a place.
        disk: the last tier is mapped from a file.
        dtype: of the output, by default that of the parts. float32 and float64 may be stored as float16 or bfloat16.
        counts: int64, shape [tiers, 2], contiguous, on the device of ``index``: each tier's rows and, on the CPU,
            nanoseconds are added to it. Tiers in memory are copied together; their time is added to the first.
        threads: see the package.
        check: look for indices out of range, for which the host waits if they are on a GPU. Without, one that is out of
            range reads foreign memory.

    Returns:
        Shape [n, ...], on the device of ``index``.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, device, strides or number of parts, an index out of
            range, rows of more than 512 MiB on a GPU.
        NotImplementedError: rows on disk with an index on a GPU.
        RuntimeError: ``place`` has an entry out of range, or host memory is not registered with CUDA.
    """
    parts = list(parts)
    _check_parts(parts)
    spread = [1] * len(parts) if spread is None else [check_int("spread", count, 1) for count in spread]
    if not 1 <= len(spread) <= MAX_TIERS or sum(spread) != len(parts):
        raise ValueError(f"spread: expected 1 to {MAX_TIERS} tiers of {len(parts)} parts in all, found {spread}")
    sizes = [part.size(0) for part in parts]
    first = 0
    for count in spread:
        total = sum(sizes[first : first + count])
        expected = [(total - p + count - 1) // count for p in range(count)]
        if sizes[first : first + count] != expected:
            found = sizes[first : first + count]
            raise ValueError(f"parts: expected a tier of {total} rows interleaved as {expected}, found {found}")
        first += count
    num_ids = sum(sizes)
    if place is not None:
        check_ids("place", place)
        if place.device != index.device:
            raise ValueError(f"place: expected it on {index.device} like index, found {place.device}")
        num_ids = len(place)
    check_ids("index", index, num_ids if check else None, "rows", threads)
    if index.device.type == "cpu" and any(part.device.type != "cpu" for part in parts):
        raise ValueError("index: expected it on the GPU that gathers, for parts are not in host memory; found cpu")
    for part in parts:
        check_row_bytes("parts", part, index.device)
    for device in {part.device for part in parts if part.numel()} - {index.device}:
        if device.type == "cuda":
            _open_peer(index.device, device)
    if disk and index.device.type != "cpu":
        raise NotImplementedError(f"rows on disk are not gathered on {index.device}: use an index on the CPU")
    dtype = parts[0].dtype if dtype is None else dtype
    if not can_widen(parts[0].dtype, dtype):
        raise TypeError(
            f"dtype: expected {parts[0].dtype}, or float32 or float64 of rows stored in 16 bits, found {dtype}"
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
        parts, spread, place, index.contiguous(), bool(disk), dtype, counts, resolve_threads(threads)
    )


@cache
def _open_peer(reader: torch.device, owner: torch.device) -> None:
    """Lets a GPU read another one's memory.

    By a copy of torch's own, which alone knows how its allocator got the memory: what it maps itself (expandable
    segments) is closed to ``cudaDeviceEnablePeerAccess``.
    """
    if not torch.cuda.can_device_access_peer(reader, owner):
        raise ValueError(f"index: expected it on a GPU that can read {owner}, found {reader}")
    torch.empty(1, device=reader).copy_(torch.empty(1, device=owner))


def _check_parts(parts: list[Tensor]) -> None:
    if not 1 <= len(parts) <= MAX_PARTS:
        raise ValueError(f"parts: expected 1 to {MAX_PARTS}, found {len(parts)}")
    for i, part in enumerate(parts):
        check_tensor(f"parts[{i}]", part)
        if part.dim() == 0:
            raise ValueError(f"parts[{i}]: expected at least one dimension, found a scalar")
        if part.dtype != parts[0].dtype or part.shape[1:] != parts[0].shape[1:]:
            raise ValueError(
                f"parts[{i}]: expected {parts[0].dtype} rows of shape {tuple(parts[0].shape[1:])}, "
                f"found {part.dtype} {tuple(part.shape[1:])}"
            )
        if not has_contiguous_rows(part):
            raise ValueError(f"parts[{i}]: expected contiguous rows, found strides {part.stride()}")


def place_dtype(places: int) -> torch.dtype:
    """The narrower dtype that holds places below ``places``."""
    return torch.int32 if places <= 1 << 31 else torch.int64
