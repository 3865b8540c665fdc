"""One attribute's rows in tiers: how they are put there, and how they are gathered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import files, ops
from ..memory import HostArray, HostMemory
from ..ops.arguments import check_ids
from ..stream_time import StreamTime

STEP = 64 << 20
"""Bytes that are moved at a time while tiers are filled."""
# Items as torch puts them at indices, which it does not for every type.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


class FileRows(NamedTuple):
    """Rows of an array in a directory of arrays, from ``first`` on."""

    path: str
    kind: str
    array: str
    first: int


Rows: TypeAlias = HostArray | FileRows | Tensor
"""What names an array to another process; a tensor is one on a GPU, which torch.multiprocessing opens there."""


def open_rows(rows: Rows, memory: HostMemory) -> Tensor:
    """The array that ``rows`` names, in this process."""
    if isinstance(rows, HostArray):
        return memory.tensor(rows)
    if isinstance(rows, FileRows):
        return files.load(rows.path, rows.kind, verify=False)[0][rows.array][rows.first :]
    return rows


@dataclass(frozen=True)
class Attribute:
    """What another process needs to know of an attribute."""

    key: tuple[Any, str]
    shape: tuple[int, ...]
    dtype: torch.dtype
    """Of what is gathered."""
    storage: torch.dtype
    """Of what is stored."""
    tiers: tuple[str, ...]
    spread: tuple[int, ...]
    parts: tuple[Rows, ...]
    place: Rows | None
    counts: Rows
    """int64, shape [tiers, 2], shared by all processes: rows and nanoseconds."""

    @property
    def disk(self) -> bool:
        """Whether the last tier lies in a file."""
        return self.tiers[-1] == "disk"


class TieredRows:
    """An attribute opened in this process; stands for its tensor in a FeatureStore."""

    def __init__(self, attribute: Attribute, memory: HostMemory, device: torch.device) -> None:
        self.attribute, self.key = attribute, attribute.key
        self.shape = attribute.shape
        self._memory = memory
        self.counts = open_rows(attribute.counts, memory)
        self.parts = [open_rows(part, memory) for part in attribute.parts]
        self.place = None if attribute.place is None else open_rows(attribute.place, memory)
        self.device = device
        self._device_counts = self.counts if device.type == "cpu" else torch.zeros_like(self.counts, device=device)
        self._time = StreamTime()

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        return math.prod(self.shape[1:]) * self.attribute.storage.itemsize

    def gather(self, index: Tensor, check: bool = True) -> Tensor:
        """The rows at ``index``, on the device that gathers; ``check``: see :func:`torch_gnnscale.ops.gather_tiers`."""
        entry, on_gpu = self.attribute, self.device.type != "cpu"
        index, timed = index.to(self.device), self._time.measure(self.device) if on_gpu else nullcontext()
        with self._memory.reading():
            if entry.disk and on_gpu:
                return gather_beside_disk(
                    self.parts, index, spread=entry.spread, place=self.place, dtype=entry.dtype,
                    counts=self._device_counts, disk_counts=self.counts[-1:], check=check, timed=timed,
                )  # fmt: skip
            if check and on_gpu:
                check_ids("index", index, self.shape[0], "rows")
                check = False  # the host's wait for it is no time of the gather
            with timed:
                return ops.gather_tiers(
                    self.parts, index, spread=entry.spread, place=self.place, disk=entry.disk, dtype=entry.dtype,
                    counts=self._device_counts, check=check,
                )  # fmt: skip

    def parts_of(self, tier: str) -> list[int]:
        """The numbers of a tier's parts."""
        begin = list(accumulate(self.attribute.spread, initial=0))
        return [
            number
            for name, first, last in zip(self.attribute.tiers, begin, begin[1:], strict=True)
            for number in range(first, last)
            if name == tier
        ]

    def on(self, device: torch.device, place: Tensor | None) -> Attribute:
        """The attribute with its rows of ``gpu`` copied to another GPU, where ``place`` is; other parts are shared."""
        parts = list(self.attribute.parts)
        for number in self.parts_of("gpu"):
            parts[number] = self.parts[number].to(device)
        return replace(self.attribute, parts=tuple(parts), place=None if self.place is None else place)

    def total(self) -> Tensor:
        """Rows and nanoseconds of each tier so far: int64, shape [tiers, 2]."""
        if self.device.type == "cpu":
            return self.counts
        nanoseconds = round(self._time.seconds(wait=True) * 1e9)  # first: it waits for the streams that count
        on_device = self._device_counts.cpu()
        on_device[:, 1] = nanoseconds
        if self.attribute.disk:
            on_device[-1] = 0  # those are counted where they are read
        return self.counts + on_device


def gather_beside_disk(
    parts: Sequence[Tensor], index: Tensor, *, spread: Sequence[int], place: Tensor | None, dtype: torch.dtype,
    counts: Tensor, disk_counts: Tensor, check: bool, timed: AbstractContextManager[None],
) -> Tensor:  # fmt: skip
    """What :func:`torch_gnnscale.ops.gather_tiers` gives, on a device that does not read the file of the last tier.

    The host waits once for the places of the rows, to know which of them are on disk; it reads these while the device
    gathers the others, and queues the copy that puts them into the output.

    Args:
        parts: the last one, a tier of its own, is mapped from a file.
        index, spread, place, dtype, check: as for ``gather_tiers``; ``index`` and ``place`` on the device.
        counts: int64, shape [tiers, 2], on the device: each tier's rows are added to it.
        disk_counts: int64, shape [1, 2], in host memory: the rows read from disk and their nanoseconds.
        timed: entered around the device's gather.

    Returns:
        Shape [n, ...], on the device.
    """
    *memory, disk = parts
    # On the device one row stands for all of those on disk, so that a single kernel fills the rest of the output.
    stand_in = torch.empty((1, *disk.shape[1:]), dtype=disk.dtype, device=index.device).expand(disk.shape)
    if check:
        check_ids("index", index, sum(map(len, parts)) if place is None else len(place), "rows")
    places = (index if place is None else place[index]).cpu()
    with timed:
        out = ops.gather_tiers(
            [*memory, stand_in], index, spread=spread, place=place, dtype=dtype, counts=counts, check=False
        )
    places = places - sum(map(len, memory))
    at = (places >= 0).nonzero().view(-1)
    if len(at) == 0:
        return out
    cold = ops.gather_tiers([disk], places[at], disk=True, counts=disk_counts, check=False)
    words = _WORDS[dtype.itemsize]
    out.view(words).index_copy_(0, _sent(at, index.device), _sent(cold, index.device).to(dtype).view(words))
    return out


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor in host memory, copied to the device without a wait, from pinned memory that torch keeps until then."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def fill(out: Tensor, source: Tensor, ids: Tensor) -> None:
    """Puts the rows of ``source`` at ``ids`` into ``out``, in the order in which they are stored in ``source``.

    Args:
        out: shape [n, ...], on any device, of the dtype of ``source`` or a narrower one.
        source: shape [N, ...], in host memory or mapped.
        ids: int64, shape [n].
    """
    ids, at = ids.sort()
    words = _WORDS[out.dtype.itemsize]
    step = max(1, STEP // max(source[:1].nbytes, 1))
    for some, to in zip(ids.split(step), at.split(step), strict=True):
        rows = narrowed(ops.gather_rows(source, some), out.dtype)
        out.view(words)[to.to(out.device)] = rows.view(words).to(out.device)


def narrowed(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows as they are stored; ValueError for a finite number that becomes infinite."""
    out = rows.to(dtype)
    if dtype != rows.dtype and bool((out.isinf() & rows.isfinite()).any()):
        largest = float(rows[rows.isfinite()].abs().max())
        raise ValueError(
            f"storage: expected numbers of at most {torch.finfo(dtype).max:g} for {dtype}, found {largest:g}"
        )
    return out
