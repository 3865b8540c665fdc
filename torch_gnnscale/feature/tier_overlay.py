"""Rows of a process's own on top of tiers that it shares with others: its GPU's, and what it counts."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .. import ops
from ..memory import Budget, budget_bytes
from ..topology.reorder import by_score
from .tier_builder import check_room, devices_of
from .tier_plan import Tier, TierPlan
from .tiered_rows import Attribute, TieredRows
from .tiered_store import TieredFeatureStore


def own_view(
    store: TieredFeatureStore, own: Tensor, score: Tensor, gpu: Budget = 0,
    device: torch.device | str | int | None = None,
) -> TieredFeatureStore:  # fmt: skip
    """The rows of a store in host memory and files, which other processes may share, as one process reads them.

    The hottest of its own rows lie on its GPU too. Its tier plan expects, and its ``stats()`` count, its own reads
    alone. Closing it closes the store.

    Args:
        store: opened by this process; ids are not renumbered.
        own: ids of the nodes whose rows this process reads: int64, shape [m].
        score: how often it reads each of them: int64, shape [m].
        gpu: the budget on this process's GPU, with the map from ids to places; a share is one of the own rows.
        device: the GPU that gathers; by default the current one if ``gpu`` is above 0, else the CPU.

    Raises:
        TypeError, ValueError: a wrong budget or device, or a budget that is smaller than the map.
        MemoryError: too little memory is free on the GPU.
    """
    assert isinstance(store.plan, TierPlan)
    row_bytes, (num_nodes,) = store.plan.row_bytes, {rows.shape[0] for rows in store._tensors.values()}
    gpu, _, where = devices_of(gpu, (), device, row_bytes * len(own))
    return view_on(store, own, score, budget_bytes("gpu", gpu, row_bytes * len(own)), where, num_nodes)


def view_on(
    store: TieredFeatureStore, own: Tensor, score: Tensor, room: int, device: torch.device, num_nodes: int
) -> TieredFeatureStore:
    """:func:`own_view` with ``room`` bytes on a device that was checked, which may be the CPU."""
    assert isinstance(store.plan, TierPlan)
    cut: list[TieredRows] = [rows for rows in store._tensors.values() if rows.key[1] not in store.plan.whole]
    below = next((rows.place for rows in cut if rows.place is not None), None)
    below = torch.arange(num_nodes) if below is None else below.to(torch.int64)
    count, map_bytes = 0, num_nodes * ops.place_dtype(3 * num_nodes).itemsize
    if room and cut:
        if room < map_bytes:
            raise ValueError(f"gpu: expected room for the map of {num_nodes} nodes, {map_bytes} bytes, found {room}")
        count = min(len(own), (room - map_bytes) // max(store.plan.row_bytes, 1))
    hot = own[by_score(score).old[:count]]
    place = (below + count).to(ops.place_dtype(3 * num_nodes))
    place[hot] = torch.arange(count, dtype=place.dtype)
    tiers = [Tier("gpu", count, count * store.plan.row_bytes, 0.0)] * (count > 0) + list(store.plan.tiers)
    plan = TierPlan(
        _expected(tiers, place[own], score), store.plan.whole, store.plan.row_bytes,
        place.nbytes if count else store.plan.map_bytes, "host" if device.type == "cpu" else "gpu",
    )  # fmt: skip
    check_room(plan, device, 0, 0)
    place = place.to(device)
    attributes = [
        _on_top(rows, hot, place, device) if rows.key[1] not in plan.whole else rows.attribute
        for rows in store._tensors.values()
    ]
    view = TieredFeatureStore(plan, None, attributes, store._memory, device)
    view.__dict__["_origin"] = store  # kept open: rows that it wrote to disk are deleted with it
    return view


def _expected(tiers: list[Tier], places: Tensor, score: Tensor) -> tuple[Tier, ...]:
    """The tiers with the share of the score of the rows at ``places`` that each has."""
    ends = torch.tensor([tier.rows for tier in tiers[:-1]], dtype=torch.int64).cumsum(0)
    tier_of = torch.searchsorted(ends, places.to(torch.int64), right=True)
    score = score if bool(score.any()) else torch.ones_like(score)
    sums = torch.zeros(len(tiers), dtype=torch.int64).index_add_(0, tier_of, score.to(torch.int64))
    shares = (sums / sums.sum().clamp(min=1).to(torch.float64)).tolist()
    return tuple(replace(tier, hit_rate=share) for tier, share in zip(tiers, shares, strict=True))


def _on_top(rows: TieredRows, hot: Tensor, place: Tensor, device: torch.device) -> Attribute:
    """An attribute with the rows of ``hot`` on a device, before all others, and counts of its own."""
    entry = rows.attribute
    if len(hot) == 0:
        mapped = entry.place if rows.place is None or device.type == "cpu" else place  # the one that all share
        return replace(entry, place=mapped, counts=torch.zeros(len(entry.tiers), 2, dtype=torch.int64))
    first = rows.gather(hot).to(entry.storage).to(device)
    return replace(
        entry, tiers=("gpu", *entry.tiers), spread=(1, *entry.spread), segments=(first, *entry.segments), place=place,
        counts=torch.zeros(len(entry.tiers) + 1, 2, dtype=torch.int64),
    )  # fmt: skip
