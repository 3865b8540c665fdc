"""Puts rows where a plan says."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import files, ops
from ..memory import HostArray, HostLayout, HostMemory
from ..topology.reorder import Order
from .feature_store import KIND
from .tier_plan import TierPlan
from .tiered_rows import STEP, Attribute, FileRows, Rows, fill, narrowed

SPILLED, ROWS = "tier", "rows"
"""The kind of the directories that rows without room in memory are written into, and their array."""


class Source(NamedTuple):
    """An attribute as it is given."""

    key: tuple[Any, str]
    tensor: Tensor
    """Shape [N, ...], in host memory or mapped."""
    storage: torch.dtype
    """Of the stored rows."""
    origin: tuple[str, str] | None = None
    """Directory and array of a saved FeatureStore that it is mapped from."""

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        return math.prod(self.tensor.shape[1:]) * self.storage.itemsize


def build(
    plan: TierPlan, sources: list[Source], order: Order, renumbered: bool, device: torch.device, num_peers: int,
    folder: str | None, insist: bool,
) -> tuple[list[Attribute], HostMemory]:  # fmt: skip
    """Allocates what the plan says and puts the rows there.

    Args:
        plan: what lies where.
        sources: the attributes; all of them mapped from a saved store, or none.
        order: the nodes by falling score.
        renumbered: rows are asked for by their places. Those of a saved store are in this order already.
        device: where rows are gathered.
        num_peers: over how many GPUs the rows of ``peers`` are interleaved.
        folder: where rows that have room in no memory are written, if they are not in a saved store.
        insist: less available host memory than the plan needs is a warning.

    Raises:
        MemoryError, OSError: less memory, or less room on the disk, than the plan needs; nothing was written.
    """
    num_nodes = len(order.old)
    in_files = all(source.origin is not None for source in sources)
    by_id, by_rank = torch.arange(num_nodes), order.old
    if renumbered:
        whole = cut = by_id if in_files else by_rank
    else:
        whole, cut = by_id, by_rank if plan.map_bytes else by_id
    layout = HostLayout()
    todo: list[tuple[HostArray, Tensor, Tensor]] = []
    to_disk: list[tuple[Path, Source, Tensor]] = []

    def part(tier: str, source: Source, first: int, ids: Tensor, is_cut: bool) -> list[Rows]:
        shape = (len(ids), *source.tensor.shape[1:])
        if tier == "host":
            todo.append((layout.add(shape, source.storage), source.tensor, ids))
            return [todo[-1][0]]
        if tier == "disk":
            if source.origin is None:
                to_disk.append((Path(str(folder)) / str(len(to_disk)), source, ids))  # no name of the user's is a path
                return [FileRows(str(to_disk[-1][0]), SPILLED, ROWS, 0)]
            # The file has all rows: behind those in memory by rank, or from the first on by id.
            return [FileRows(source.origin[0], KIND, source.origin[1], first if renumbered and is_cut else 0)]
        where = [device] if tier == "gpu" else [torch.device("cuda", number) for number in range(num_peers)]
        tensors = []
        for number, gpu in enumerate(where):
            mine = ids[number :: len(where)]
            tensors.append(torch.empty((len(mine), *shape[1:]), dtype=source.storage, device=gpu))
            fill(tensors[-1], source.tensor, mine)
        return list(tensors)

    place = _places(plan, order, in_files) if plan.map_bytes else None
    where: Rows | None = None
    if place is not None:
        where = layout.add((num_nodes,), place.dtype) if device.type == "cpu" else place.to(device)
    attributes = []
    tiers: tuple[str, ...]
    spread: tuple[int, ...]
    for source in sources:
        if (tier := plan.whole.get(source.key[1])) is not None:
            tiers, spread = (tier,), (1,)
            parts = part(tier, source, 0, whole, False)
        else:
            parts, first = [], 0
            for planned in plan.tiers:
                parts += part(planned.name, source, first, cut[first : first + planned.rows], True)
                first += planned.rows
            tiers = tuple(planned.name for planned in plan.tiers)
            spread = tuple(num_peers if tier == "peers" else 1 for tier in tiers)
        counts = layout.add((len(tiers), 2), torch.int64)
        is_cut = source.key[1] not in plan.whole
        attributes.append(
            Attribute(
                source.key, tuple(source.tensor.shape), source.tensor.dtype, source.storage, tiers, spread,
                tuple(parts), where if is_cut else None, counts,
            )
        )  # fmt: skip
    memory = HostMemory(layout.num_bytes, insist=insist)
    if to_disk:
        _spill(to_disk)
    for rows, tensor, ids in todo:
        fill(memory.tensor(rows), tensor, ids)
    if isinstance(where, HostArray):
        assert place is not None
        memory.tensor(where).copy_(place)
    memory.use_huge_pages()
    return attributes, memory


def _places(plan: TierPlan, order: Order, in_files: bool) -> Tensor:
    """Where each id's row lies: at its rank, but on disk by its id if the files have all rows by id."""
    in_memory = len(order.new) - plan.rows("disk")
    places = order.new
    if in_files and in_memory < len(places):
        places = torch.where(places < in_memory, places, in_memory + torch.arange(len(places)))
    return places.to(ops.place_dtype(2 * len(places)))


def _spill(todo: list[tuple[Path, Source, Tensor]]) -> None:
    """Writes rows of attributes, in the order of these ids, into new directories that are beside each other."""
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
