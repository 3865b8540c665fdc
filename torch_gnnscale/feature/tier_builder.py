"""Allocates the tiers of a tier plan and copies rows into them: the attributes that are put there, the GPUs that hold
rows, and the device that gathers them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from .. import _library, files, ops
from .._user import warn
from ..memory import Budget, HostArray, HostLayout, HostMemory, budget_bytes, free_on_gpu, peer_budgets, unreadable_peer
from ..ops.arguments import checked_device
from ..topology.reorder import Order
from .attributes import EDGES, typed_storages
from .composite import Composite, Composites
from .feature_store import HOMOGENEOUS_EDGES, KIND, FeatureStore
from .tier_plan import TierPlan, TypedTierPlan, ranked
from .tiered_rows import STEP, Attribute, FileRows, Rows, copy_rows, narrowed


def devices_of(
    gpu: Budget, peers: Sequence[Budget], device: torch.device | str | int | None, whole: int
) -> tuple[Budget, Sequence[Budget], torch.device]:
    """Returns ``gpu`` and ``peers`` without the budgets of GPUs that cannot be used, and the device that gathers.

    Warns of each budget that is left out: its rows go to the next tier.

    Args:
        gpu, peers, device: the arguments of ``TieredFeatureStore.from_data``.
        whole: bytes of all features.

    Raises:
        TypeError, ValueError: wrong budgets, a device that does not exist, or a CPU with budgets for GPUs.
    """
    asked = max([budget_bytes("gpu", gpu, whole), *peer_budgets("peers", peers, whole)]) > 0
    where = torch.device("cpu") if device is None and not asked else None
    if device is not None:
        where = checked_device(device)
        if where.type == "cpu" and asked:
            raise ValueError(f"device: expected a GPU for gpu={gpu!r}, peers={list(peers)}, found cpu")
    if where is None and (state := _library.status["_CUDA"]) != "loaded":
        warn(f"gpu={gpu!r}, peers={list(peers)}: the CUDA library is {state}, so their rows go to the next tier")
        return 0, (), torch.device("cpu")
    if where is None:
        where = checked_device("cuda")
    if where.type == "cpu":
        return gpu, (), where
    if (number := unreadable_peer(where, len(peers))) is not None:
        warn(f"peers={list(peers)}: their rows are left to the next tier, for {where} cannot read GPU {number}")
        return gpu, (), where
    return gpu, peers, where


def check_room(plan: TierPlan | TypedTierPlan, device: torch.device, num_peers: int, whole_bytes: int) -> None:
    """Raises MemoryError if a GPU has too little free memory for the plan.

    Args:
        plan: the tier plan.
        device: the device that gathers; nothing is checked for a CPU.
        num_peers: the number of GPUs over which the rows of ``peers`` are interleaved.
        whole_bytes: bytes of the attributes that are not cut and lie in ``gpu``.
    """
    if device.type == "cpu":
        return
    rows = {tier.name: tier.num_bytes for tier in plan.tiers}
    wanted = {device: plan.map_bytes + whole_bytes + rows.get("gpu", 0)}
    for number in range(num_peers):
        gpu = torch.device("cuda", number)
        wanted[gpu] = wanted.get(gpu, 0) + rows.get("peers", 0) // num_peers
    for gpu, size in wanted.items():
        if size > (free := free_on_gpu(gpu, size)):
            raise MemoryError(f"{gpu}: expected {size} bytes of memory, found {free} free; lower gpu= or peers=")


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


def ranked_by_group(sources: list[Source], scores: Mapping[Any, Tensor]) -> tuple[dict[Any, Order], dict[Any, Tensor]]:
    """By group of the sources, the order of its rows by falling score, and the scores in that order.

    Raises:
        ValueError: scores of a group are missing, are not in host memory, or are not one for each row.
    """
    orders: dict[Any, Order] = {}
    falling: dict[Any, Tensor] = {}
    for group in dict.fromkeys(source.key[0] for source in sources):
        if group not in scores:
            kind = "edges" if isinstance(group, tuple) else "nodes"
            names = [source.key[1] for source in sources if source.key[0] == group]
            raise ValueError(
                f"hotness: expected scores of the {kind} of {group!r}, which have {names}, found those of "
                f"{list(scores)}"
            )
        if isinstance(scores[group], Tensor) and scores[group].device.type != "cpu":
            raise ValueError(f"hotness: expected scores in host memory, found {scores[group].device}")
        orders[group], falling[group] = ranked(scores[group], "hotness")
    for source in sources:
        if len(source.tensor) != (found := len(falling[source.key[0]])):
            raise ValueError(f"hotness: expected {len(source.tensor)} scores for {source.key}, found {found}")
    return orders, falling


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


def check_names(names: Any) -> None:
    """Raises TypeError unless ``names`` is a list or None."""
    if isinstance(names, str) or not isinstance(names, (Sequence, type(None))):
        raise TypeError(f"names: expected a list of attributes' names, found {names!r}")


def whole_names(composites: Composites, names: Sequence[str] | None) -> Sequence[str] | None:
    """``names``, in which a composite's name stands for those of its tensors."""
    if names is None:
        return None
    parts = {name: list[str]() for _, name in composites}
    for (_, name), composite in composites.items():
        parts[name] += composite.parts
    return list(dict.fromkeys(part for name in names for part in parts.get(name, [name])))


def composites_of(composites: Composites, keys: Collection[tuple[Any, str]]) -> dict[tuple[Any, str], Composite]:
    """The composites all of whose tensors are among ``keys``."""
    return {
        (group, name): whole
        for (group, name), whole in composites.items()
        if all((group, part) in keys for part in whole.parts)
    }


def attributes_of(
    data: Data | HeteroData, names: Sequence[str] | None, edges: bool
) -> tuple[dict[tuple[Any, str], Tensor], Composites]:
    """The attributes of nodes, and with ``edges`` of edges, that ``names`` asks for, by (group, name); all of them
    without ``names``. Groups are those of :meth:`FeatureStore.from_data`. Beside them, the composites of which they are
    the tensors.

    Raises:
        TypeError, ValueError: ``names`` is no list, or names others; a tensor that is not a plain one in host memory.
        NotImplementedError: an attribute that tiers do not hold.
    """
    check_names(names)
    whole = FeatureStore._from_data(data)
    names = whole_names(whole.composites, names)
    stored = {*whole._tensors, *whole.composites}
    found = {key: tensor for key, tensor in whole._tensors.items() if edges or not isinstance(key[0], tuple)}
    named = {name for _, name in found}
    others = {name: "edges' attributes" for key in whole._tensors if key not in found and (name := key[1]) not in named}
    for storage in typed_storages(data):
        groups = {storage.type_name} | ({HOMOGENEOUS_EDGES} if storage.type_name is None else set())
        for name in storage.store:
            kind = None if name in EDGES else storage.rows_of(name)
            if kind is not None and (edges or kind == "nodes") and stored.isdisjoint((g, name) for g in groups):
                others[name] = f"lists, and of tensors with a column for each {kind[:-1]},"
    for what in dict.fromkeys(others.values()):
        if wrong := [name for name, kind in others.items() if kind == what and (names is None or name in names)]:
            raise NotImplementedError(f"tiers of {what} are not implemented, found {wrong}; name the others by names=")
    known = list(dict.fromkeys(name for _, name in found))
    if (missing := [name for name in names or () if name not in named]) or not found:
        raise ValueError(f"names: expected some of {known}, found {missing}")
    labels = {storage.type_name: storage.label for storage in typed_storages(data)}
    labels |= {HOMOGENEOUS_EDGES: labels[None]} if None in labels else {}
    chosen = {key: tensor for key, tensor in found.items() if names is None or key[1] in names}
    for (group, name), tensor in chosen.items():
        label = labels[group](name)
        if tensor.device.type != "cpu" or not ops.can_gather_rows(tensor):
            what = f"{type(tensor).__name__}, {tensor.layout}, {tensor.device}"
            raise ValueError(f"{label}: expected a plain tensor in host memory, found {what}")
        if tensor.requires_grad:
            warn(f"{label} requires grad: tiers hold a copy, which does not learn; use a Data or FeatureStore")
    return chosen, composites_of(whole.composites, chosen.keys())


def sources_of(
    data: Data | HeteroData, names: Sequence[str] | None, storage: torch.dtype | None
) -> tuple[list[Source], Composites]:
    """:func:`attributes_of` nodes and edges, stored in ``storage`` (float16 or bfloat16; None: each in its own dtype).

    Raises:
        TypeError, ValueError, NotImplementedError: as of :func:`attributes_of`; another ``storage``.
    """
    chosen, composites = attributes_of(data, names, edges=True)
    if storage not in (None, torch.float16, torch.bfloat16):
        raise TypeError(f"storage: expected torch.float16 or torch.bfloat16, found {storage}")
    if storage is not None and not any(ops.can_widen(storage, tensor.dtype) for tensor in chosen.values()):
        found = ", ".join(f"{name} of {tensor.dtype}" for (_, name), tensor in chosen.items())
        warn(f"storage={storage} has no effect: expected attributes of float32 or float64, found {found}")
    sources = [
        Source(key, tensor.detach(), storage if storage and ops.can_widen(storage, tensor.dtype) else tensor.dtype)
        for key, tensor in chosen.items()
    ]
    return sources, composites


def saved_sources(saved: FeatureStore, names: Sequence[str] | None) -> tuple[list[Source], Composites]:
    """The attributes of an opened store, whose rows stay in its files.

    Raises:
        TypeError, ValueError: ``names`` is no list, or names others.
    """
    check_names(names)
    names = whole_names(saved.composites, names)
    known = list(dict.fromkeys(name for _, name in saved._tensors))
    if missing := [name for name in names or () if name not in known]:
        raise ValueError(f"names: expected some of {known}, found {missing}")
    sources = [
        Source(key, tensor, tensor.dtype, FileRows(folder, KIND, array, 0))
        for key, tensor in saved._tensors.items()
        for folder, array in [saved._origins[key]]
        if names is None or key[1] in names
    ]
    return sources, composites_of(saved.composites, {source.key for source in sources})
