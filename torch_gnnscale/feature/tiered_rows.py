"""The rows of one attribute in tiers: filling the tiers, gathering from them, what was read from each, and the time
that it took on CUDA streams, summed without blocking the host."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import TensorAttr

from .. import files, ops
from ..memory import HostArray, HostMemory
from ..ops.arguments import check_ids
from ..ops.rows import as_words
from .contract import BoundedAttr
from .feature_store import row_ids
from .tier_plan import TierPlan


class StreamTime:
    """Sums the time between pairs of events on CUDA streams. Several threads may measure at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event, float]] = deque()
        self._milliseconds = 0.0

    def __reduce__(self):
        return StreamTime, ()  # unpickled in another process, it begins at 0

    def measure(self, device: torch.device) -> AbstractContextManager[None]:
        """Adds the time from the begin to the end of the work that is queued inside on the thread's current stream."""
        return measured([(self, 1.0)], device)

    def seconds(self, wait: bool = False) -> float:
        """Seconds, summed over the measurements whose work is finished; ``wait``: first waits for all of it."""
        with self._lock:
            while self._pending and (wait or self._pending[0][1].query()):
                begin, end, share = self._pending.popleft()
                if wait:
                    end.synchronize()
                self._milliseconds += share * begin.elapsed_time(end)
            return self._milliseconds / 1e3

    def _add(self, begin: torch.cuda.Event, end: torch.cuda.Event, share: float) -> None:
        with self._lock:
            self._pending.append((begin, end, share))
        self.seconds()  # sums what is finished, so that few pairs stay pending


@contextmanager
def measured(shares: Sequence[tuple[StreamTime, float]], device: torch.device) -> Iterator[None]:
    """Adds to each sum its share of the time from the begin to the end of the work that is queued inside on the
    thread's current stream."""
    stream = torch.cuda.current_stream(device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(stream)
    yield
    end.record(stream)
    for time_of, share in shares:
        time_of._add(begin, end, share)


class TierUse(NamedTuple):
    """What was read from one tier."""

    rows: int
    num_bytes: int
    hit_rate: float
    """The share of all reads of nodes and edges, of all types, that the tier served; 0 if nothing was read. One read of
    a node or edge takes a row of each of its attributes that are cut."""
    seconds: float
    """The time of the gather, summed over calls; calls may overlap. On a GPU one kernel reads all attributes and tiers
    in memory: its time from the call to its end is shared out among the attributes by their bytes, and each of the
    tiers of an attribute has all of that."""
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
        entry = self.attribute
        if self.device.type != "cpu":
            return gather_together([(self, index, check)])[0]
        with self._memory.reading():
            return ops.gather_tiers(
                self.segments, index.to(self.device), spread=entry.spread, place=self.place, disk=entry.disk,
                dtype=entry.dtype, counts=self._device_counts, check=check,
            )  # fmt: skip

    def table(self) -> ops.TieredTable:
        """The tiers as a GPU gathers from them: one row there stands for every row on disk, so that one kernel can
        write the whole output."""
        entry, segments = self.attribute, self.segments
        if entry.disk:
            *memory, disk = segments
            row = torch.empty((1, *disk.shape[1:]), dtype=disk.dtype, device=self.device)
            segments = [*memory, row.expand(disk.shape)]
        return ops.TieredTable(segments, entry.spread, self.place, False, entry.dtype)

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


def gather_together(asked: Sequence[tuple[TieredRows, Tensor, bool]]) -> list[Tensor]:
    """Rows of attributes in the tiers of one store, which a GPU gathers by one kernel.

    The kernel's time is shared out among the attributes by the bytes of their rows. For attributes with rows on disk
    the host waits once, for the places of their rows. It reads the rows on disk while the GPU gathers the others, and
    queues copies that write them into the outputs.

    Args:
        asked: attributes, the ids of their rows, on any device, and whether these are looked through; attributes that
            are given one tensor have one on the GPU, too.

    Returns:
        For each what :meth:`TieredRows.gather` returns.
    """
    if not asked:
        return []
    device, memory = asked[0][0].device, asked[0][0]._memory
    there = {id(index): index.to(device) for _, index, _ in asked}
    known: set[tuple[int, int]] = set()
    for rows, given, check in asked:
        if check and (seen := (id(given), rows.shape[0])) not in known:  # before the clock starts, for the host waits
            known.add(seen)
            check_ids("index", there[id(given)], rows.shape[0], "rows")
    with memory.reading():
        tables, index = [rows.table() for rows, *_ in asked], [there[id(given)] for _, given, _ in asked]
        places = _places([(rows, ids) for (rows, *_), ids in zip(asked, index, strict=True) if rows.attribute.disk])
        sizes = [rows.row_bytes * len(ids) for (rows, *_), ids in zip(asked, index, strict=True)]
        whole = max(sum(sizes), 1)
        shares = [(rows._time, size / whole) for (rows, *_), size in zip(asked, sizes, strict=True)]
        with measured(shares, device):
            found = ops.gather_tables(tables, index, counts=[rows._device_counts for rows, *_ in asked], check=False)
        of_disk = iter(places)
        for (rows, *_), out in zip(asked, found, strict=True):
            if rows.attribute.disk:
                _fill_from_disk(rows, next(of_disk), out)
    return found


def ids_asked(attr: TensorAttr, count: int) -> tuple[Tensor, bool]:
    """The ids of the rows that are asked for among ``count``, and whether they must be looked through."""
    index = slice(None) if attr.index is None else attr.index
    if isinstance(index, slice):
        return torch.arange(*index.indices(count)), True
    if isinstance(index, int):
        if not -count <= index < count:
            raise IndexError(f"index: expected a row in [{-count}, {count}), found {index}")
        return torch.tensor([index % count]), True
    return row_ids(index, count), not BoundedAttr.covers(attr, count)


def _places(asked: list[tuple[TieredRows, Tensor]]) -> list[Tensor]:
    """The places of ids in host memory; the host waits once."""
    found = [index if rows.place is None else rows.place[index] for rows, index in asked]
    return list(torch.cat(found).cpu().split(list(map(len, found)))) if found else []


def _fill_from_disk(rows: TieredRows, places: Tensor, out: Tensor) -> None:
    """Writes the rows on disk among those at ``places`` into ``out``, which is on a GPU."""
    *memory, disk = rows.segments
    places = places - sum(map(len, memory))
    at = (places >= 0).nonzero().view(-1)
    if len(at) == 0:
        return
    cold = ops.gather_tiers([disk], places[at], disk=True, counts=rows.counts[-1:], check=False)
    as_words(out).index_copy_(0, sent(at, out.device), as_words(sent(cold, out.device).to(out.dtype)))


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
