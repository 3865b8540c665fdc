"""Allocates the tiers of a tier plan and copies rows into them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import files, ops
from ..memory import HostArray, HostLayout, HostMemory
from ..topology.reorder import Order
from .tier_plan import TierPlan
from .tiered_rows import STEP, Attribute, FileRows, Rows, copy_rows, narrowed

SPILLED, ROWS = "tier", "rows"
"""The kind of a directory (:mod:`torch_gnnscale.files`) of rows that were written to disk, and its array's name."""


class Source(NamedTuple):
    """An attribute that is to lie in tiers."""

    key: tuple[Any, str]
    tensor: Tensor
    """Shape [N, ...], in host memory or mapped."""
    storage: torch.dtype
    """The dtype in which rows are stored."""
    origin: FileRows | None = None
    """The array in a saved directory that ``tensor`` is mapped from; None if it is not."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return math.prod(self.tensor.shape[1:]) * self.storage.itemsize


def build(
    plans: Mapping[Any, TierPlan], sources: list[Source], orders: Mapping[Any, Order], renumbered: Collection[Any],
    device: torch.device, num_peers: int, folder: str | None, insist: bool, sharers: int,
) -> tuple[list[Attribute], HostMemory]:  # fmt: skip
    """Allocates the tiers of plans and copies the rows into them.

    Args:
        plans: the tier plan of each type of nodes or edges.
        sources: the attributes; either all are mapped from saved directories, or none is.
        orders: the nodes or edges of each type by falling score.
        renumbered: the types whose ids are places. Their rows in saved directories are in the order of places already.
        device: where rows are gathered.
        num_peers: the number of GPUs over which the rows of ``peers`` are interleaved.
        folder: the directory that rows on disk are written to, if they are not in saved directories.
        insist, sharers: of :class:`torch_gnnscale.memory.HostMemory`.

    Returns:
        The attributes in tiers, and the host memory of all of them.

    Raises:
        MemoryError, OSError: less memory, or less room on the disk, than the plan needs; nothing was written.
    """
    in_files = all(source.origin is not None for source in sources)
    layout = HostLayout()
    todo: list[tuple[HostArray, Tensor, Tensor]] = []
    to_disk: list[tuple[Path, Source, Tensor]] = []

    def segments_of(tier: str, source: Source, first: int, ids: Tensor, is_cut: bool) -> list[Rows]:
        """The segments of one tier; ``first``: the place of its first row, ``ids``: of the rows in it."""
        shape = (len(ids), *source.tensor.shape[1:])
        if tier == "host":
            todo.append((layout.add(shape, source.storage), source.tensor, ids))
            return [todo[-1][0]]
        if tier == "disk":
            if source.origin is None:  # the directory is a number, since the attribute's name may be no file name
                to_disk.append((Path(str(folder)) / str(len(to_disk)), source, ids))
                return [FileRows(str(to_disk[-1][0]), SPILLED, ROWS, 0)]
            # The file has all rows: if renumbered, by rank, and those of this tier from `first` on; else by id.
            return [source.origin._replace(first=first if source.key[0] in renumbered and is_cut else 0)]
        where = [device] if tier == "gpu" else [torch.device("cuda", number) for number in range(num_peers)]
        tensors = []
        for number, gpu in enumerate(where):
            mine = ids[number :: len(where)]
            tensors.append(torch.empty((len(mine), *shape[1:]), dtype=source.storage, device=gpu))
            copy_rows(tensors[-1], source.tensor, mine)
        return list(tensors)

    places: list[tuple[HostArray, Tensor]] = []
    maps: dict[Any, Rows | None] = {}
    taken: dict[Any, tuple[Tensor, Tensor]] = {}
    """By type: ids in the order of places, of attributes that are whole in a tier, and of those that are cut."""
    for group, plan in plans.items():
        by_id, by_rank = torch.arange(len(orders[group].old)), orders[group].old
        if group in renumbered:
            taken[group] = (by_id, by_id) if in_files else (by_rank, by_rank)
        else:
            taken[group] = by_id, by_rank if plan.map_bytes else by_id
        place = _places(plan, orders[group], in_files) if plan.map_bytes else None
        if place is not None and device.type == "cpu":
            places.append((layout.add((len(place),), place.dtype), place))
            maps[group] = places[-1][0]
        else:
            maps[group] = None if place is None else place.to(device)
    attributes = []
    tiers: tuple[str, ...]
    spread: tuple[int, ...]
    for source in sources:
        plan, (whole, cut) = plans[source.key[0]], taken[source.key[0]]
        if (tier := plan.whole.get(source.key[1])) is not None:
            tiers, spread = (tier,), (1,)
            segments = segments_of(tier, source, 0, whole, False)
        else:
            segments, first = [], 0
            for planned in plan.tiers:
                segments += segments_of(planned.name, source, first, cut[first : first + planned.rows], True)
                first += planned.rows
            tiers = tuple(planned.name for planned in plan.tiers)
            spread = tuple(num_peers if tier == "peers" else 1 for tier in tiers)
        counts = layout.add((len(tiers), 2), torch.int64)
        is_cut = source.key[1] not in plan.whole
        attributes.append(
            Attribute(
                source.key, tuple(source.tensor.shape), source.tensor.dtype, source.storage, tiers, spread,
                tuple(segments), maps[source.key[0]] if is_cut else None, counts,
            )
        )  # fmt: skip
    memory = HostMemory(layout.num_bytes, insist=insist, sharers=sharers)
    if to_disk:
        _spill(to_disk)
    for rows, tensor, ids in todo:
        copy_rows(memory.tensor(rows), tensor, ids)
    for rows, place in places:
        memory.tensor(rows).copy_(place)
    memory.use_huge_pages()
    return attributes, memory


def _places(plan: TierPlan, order: Order, in_files: bool) -> Tensor:
    """The place of each id's row: its rank, or the rows in memory plus its id if files have the rows of all ids."""
    in_memory = len(order.new) - plan.rows("disk")
    places = order.new
    if in_files and in_memory < len(places):
        places = torch.where(places < in_memory, places, in_memory + torch.arange(len(places)))
    return places.to(ops.place_dtype(2 * len(places)))


def _spill(todo: list[tuple[Path, Source, Tensor]]) -> None:
    """Writes for each (path, source, ids) the rows of ``ids`` to a new directory ``path``; all have the same parent."""
    needed, disk = sum(len(ids) * source.row_bytes for _, source, ids in todo), todo[0][0].parent
    if needed > (free := shutil.disk_usage(disk).free):
        raise OSError(
            f"{disk.parent}: expected room for {needed} bytes of rows on disk, found {free} free; raise host= or give "
            f"another disk="
        )
    for folder, source, ids in todo:
        step = max(1, STEP // max(source.row_bytes, 1))
        shape = (len(ids), *source.tensor.shape[1:])
        with files.creating(folder) as path:
            with files.ArrayWriter(path / f"{ROWS}.npy", source.storage, shape) as writer:
                for some in ids.split(step):
                    writer.append(narrowed(ops.gather_rows(source.tensor, some), source.storage))
            files.finish(path, SPILLED, {ROWS: writer.entry}, {})
