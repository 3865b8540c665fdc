"""The rows of one attribute in tiers: filling the tiers, gathering from them, and what was read from each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from .. import files, ops
from ..laps import StreamTime
from ..memory import HostArray, HostMemory
from ..ops.arguments import check_ids
from ..ops.rows import as_words
from .tier_plan import TierPlan


class TierUse(NamedTuple):
    """What was read from one tier."""

    rows: int
    num_bytes: int
    hit_rate: float
    """The share of all reads of nodes and edges, of all types, that the tier served; 0 if nothing was read. One read of
    a node or edge takes a row of each of its attributes that are cut."""
    seconds: float
    """The time of the gather, summed over calls; calls may overlap. On a GPU one kernel reads all tiers in memory: each
    of them has the whole time from the call to the end of the kernel."""
    gb_per_s: float
    """``num_bytes`` / ``seconds`` / 1e9; 0 if ``seconds`` is 0."""


def use_by_type(plans: Mapping[Any, TierPlan], attributes: Iterable[TieredRows]) -> dict[Any, dict[str, TierUse]]:
    """What was read of each type, by the name of the tier.

    Args:
        plans: by type.
        attributes: all that are cut, of all types.
    """
    reads: dict[Any, list[float]] = {group: [0.0] * len(plan.tiers) for group, plan in plans.items()}
    totals = {group: [[0, 0, 0] for _ in plan.tiers] for group, plan in plans.items()}
    opened = list(attributes)
    for rows in opened:
        cut = sum(other.key[0] == rows.key[0] for other in opened)
        for number, (count, taken) in enumerate(rows.total().tolist()):
            reads[rows.key[0]][number] += count / cut
            of_tier = totals[rows.key[0]][number]
            of_tier[:] = of_tier[0] + count, of_tier[1] + count * rows.row_bytes, of_tier[2] + taken
    every = sum(map(sum, reads.values())) or 1.0
    return {
        group: {
            tier.name: TierUse(count, size, share / every, taken / 1e9, size / taken if taken else 0.0)
            for tier, share, (count, size, taken) in zip(plan.tiers, reads[group], totals[group], strict=True)
        }
        for group, plan in plans.items()
    }


def summed(uses: Iterable[TierUse]) -> TierUse:
    """What was read from one tier by several types."""
    rows, size, hit_rate, seconds, _ = map(sum, zip(*uses, strict=True))
    return TierUse(rows, size, hit_rate, seconds, size / seconds / 1e9 if seconds else 0.0)


STEP = 64 << 20
"""Bytes that are copied at a time while tiers are filled."""


class FileRows(NamedTuple):
    """Rows ``first``, ``first`` + 1, ... of an array in a directory of arrays (:mod:`torch_gnnscale.files`)."""

    path: str
    kind: str
    array: str
    first: int


Rows: TypeAlias = HostArray | FileRows | Tensor
"""An array as it is pickled. A tensor is one on a GPU, which torch.multiprocessing shares with the other process."""


def open_rows(rows: Rows, memory: HostMemory) -> Tensor:
    """``rows`` as a tensor in this process."""
    if isinstance(rows, HostArray):
        return memory.tensor(rows)
    if isinstance(rows, FileRows):
        return files.load(rows.path, rows.kind, verify=False)[0][rows.array][rows.first :]
    return rows


@dataclass(frozen=True)
class Attribute:
    """An attribute in tiers, as it is pickled."""

    key: tuple[Any, str]
    shape: tuple[int, ...]
    dtype: torch.dtype
    """The dtype of gathered rows."""
    storage: torch.dtype
    """The dtype of stored rows."""
    tiers: tuple[str, ...]
    """The names of the tiers that have rows, the fastest first."""
    spread: tuple[int, ...]
    """The number of segments of each tier."""
    segments: tuple[Rows, ...]
    """The arrays of rows, tier after tier: see :func:`torch_gnnscale.ops.gather_tiers`."""
    place: Rows | None
    """The map from ids to places; None if ids are places."""
    counts: Rows
    """Rows read from each tier, and nanoseconds: int64, shape [tiers, 2], in memory that all processes share."""

    @property
    def disk(self) -> bool:
        """Whether the last tier is mapped from a file."""
        return self.tiers[-1] == "disk"


class TieredRows:
    """An attribute in tiers, opened in this process; a FeatureStore has it where it would have the tensor."""

    def __init__(self, attribute: Attribute, memory: HostMemory, device: torch.device) -> None:
        self.attribute, self.key = attribute, attribute.key
        self.shape = attribute.shape
        self._memory = memory
        self.counts = open_rows(attribute.counts, memory)
        self.segments = [open_rows(segment, memory) for segment in attribute.segments]
        self.place = None if attribute.place is None else open_rows(attribute.place, memory)
        self.device = device
        self._device_counts = self.counts if device.type == "cpu" else torch.zeros_like(self.counts, device=device)
        self._time = StreamTime()

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        return math.prod(self.shape[1:]) * self.attribute.storage.itemsize

    def gather(self, index: Tensor, check: bool = True) -> Tensor:
        """The rows of the ids ``index``, on the device that gathers; ``check``: see :func:`ops.gather_tiers`."""
        entry, on_gpu = self.attribute, self.device.type != "cpu"
        index, timed = index.to(self.device), self._time.measure(self.device) if on_gpu else nullcontext()
        with self._memory.reading():
            if entry.disk and on_gpu:
                return gather_beside_disk(
                    self.segments, index, spread=entry.spread, place=self.place, dtype=entry.dtype,
                    counts=self._device_counts, disk_counts=self.counts[-1:], check=check, timed=timed,
                )  # fmt: skip
            if check and on_gpu:
                check_ids("index", index, self.shape[0], "rows")
                check = False  # done before the clock starts, since the host waits for it
            with timed:
                return ops.gather_tiers(
                    self.segments, index, spread=entry.spread, place=self.place, disk=entry.disk, dtype=entry.dtype,
                    counts=self._device_counts, check=check,
                )  # fmt: skip

    def segments_of(self, tier: str) -> list[int]:
        """The positions in ``segments`` of a tier's segments."""
        bounds = pairwise(accumulate(self.attribute.spread, initial=0))
        return [
            number
            for name, (first, last) in zip(self.attribute.tiers, bounds, strict=True)
            for number in range(first, last)
            if name == tier
        ]

    def on(self, device: torch.device, place: Tensor | None) -> Attribute:
        """The attribute for another GPU.

        Args:
            device: the GPU, to which the segments of ``gpu`` are copied; all others are shared.
            place: the map from ids to places on that GPU, if there is a map.
        """
        segments = list(self.attribute.segments)
        for number in self.segments_of("gpu"):
            segments[number] = self.segments[number].to(device)
        return replace(self.attribute, segments=tuple(segments), place=None if self.place is None else place)

    def total(self) -> Tensor:
        """Rows read from each tier so far, and nanoseconds: int64, shape [tiers, 2]."""
        if self.device.type == "cpu":
            return self.counts
        nanoseconds = round(self._time.seconds(wait=True) * 1e9)  # first, since it waits for the kernels that count
        on_device = self._device_counts.cpu()
        on_device[:, 1] = nanoseconds
        if self.attribute.disk:
            on_device[-1] = 0  # the host reads these rows, and counts them in self.counts
        return self.counts + on_device


def gather_beside_disk(
    segments: Sequence[Tensor], index: Tensor, *, spread: Sequence[int], place: Tensor | None, dtype: torch.dtype,
    counts: Tensor, disk_counts: Tensor, check: bool, timed: AbstractContextManager[None],
) -> Tensor:  # fmt: skip
    """:func:`torch_gnnscale.ops.gather_tiers` on a GPU, where the host reads the last tier from a file.

    The host waits once, for the places of the rows, and finds those on disk. It reads them while the GPU gathers the
    others, and queues a copy that writes them into the output.

    Args:
        segments: the last one is the last tier, mapped from a file.
        index, spread, place, dtype, check: as for ``gather_tiers``; ``index`` and ``place`` on the GPU.
        counts: int64, shape [tiers, 2], on the GPU: the number of rows of each tier is added to column 0.
        disk_counts: int64, shape [1, 2], in host memory: rows read from disk and their nanoseconds are added to it.
        timed: a context that is entered around the GPU's gather.

    Returns:
        Shape [n, ...], on the device.
    """
    *memory, disk = segments
    # One row on the GPU stands for every row on disk, so that one kernel can write the whole output.
    stand_in = torch.empty((1, *disk.shape[1:]), dtype=disk.dtype, device=index.device).expand(disk.shape)
    if check:
        check_ids("index", index, sum(map(len, segments)) if place is None else len(place), "rows")
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
    as_words(out).index_copy_(0, sent(at, index.device), as_words(sent(cold, index.device).to(dtype)))
    return out


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on the device of a tensor in host memory, through pinned memory; the host does not wait for it."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def copy_rows(out: Tensor, source: Tensor, ids: Tensor) -> None:
    """Sets ``out[i]`` to ``source[ids[i]]``, reading ``source`` from its first row to its last.

    Args:
        out: shape [n, ...], on any device, of the dtype of ``source`` or a narrower one.
        source: shape [N, ...], in host memory or mapped.
        ids: int64, shape [n].
    """
    ids, at = ids.sort()
    step = max(1, STEP // max(source[:1].nbytes, 1))
    for some, to in zip(ids.split(step), at.split(step), strict=True):
        rows = narrowed(ops.gather_rows(source, some), out.dtype)
        as_words(out)[to.to(out.device)] = as_words(rows).to(out.device)


def narrowed(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """``rows`` as ``dtype``. Raises ValueError if a finite number becomes infinite."""
    out = rows.to(dtype)
    if dtype != rows.dtype and bool((out.isinf() & rows.isfinite()).any()):
        largest = float(rows[rows.isfinite()].abs().max())
        raise ValueError(
            f"storage: expected numbers of at most {torch.finfo(dtype).max:g} for {dtype}, found {largest:g}"
        )
    return out
