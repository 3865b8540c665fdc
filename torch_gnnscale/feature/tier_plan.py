"""Tier plans: which feature rows lie in which memory, by their scores (Data Tiering, sections 3.2 and 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..memory import Budget, budget_bytes, format_bytes, peer_budgets
from ..ops import place_dtype
from ..ops.arguments import check_int
from ..text import table
from ..topology.reorder import Order, by_score

TIERS = ("gpu", "peers", "host", "disk")
"""The tiers, the fastest first: a copy on each GPU, interleaved over GPUs, host memory, files."""
NARROW = 16
"""An attribute is not cut if NARROW times the bytes of its rows are at most those of the widest attribute's rows."""


@dataclass(frozen=True)
class Tier:
    """The rows of one tier."""

    name: str
    """One of :data:`TIERS`."""
    rows: int
    """The number of nodes whose rows lie there."""
    num_bytes: int
    """The bytes of these rows: over all GPUs together for ``peers``, on each GPU for ``gpu``."""
    hit_rate: float
    """The share of all reads that is expected there: the sum of these nodes' scores over that of all scores."""


@dataclass(frozen=True)
class TierPlan:
    """Which rows lie in which memory; ``str(plan)`` is a table. Made by :func:`plan_tiers`."""

    tiers: tuple[Tier, ...]
    """The tiers that have rows, the fastest first. Together they have the rows of all nodes."""
    whole: Mapping[Any, str]
    """The attributes that are not cut, and the tier that has all of their rows."""
    row_bytes: int
    """Stored bytes of a node's row, summed over the attributes that are cut."""
    map_bytes: int
    """Bytes of the map from ids to places; 0 if there is none."""
    map_tier: str
    """The tier of the map, which lies where rows are gathered: ``gpu`` or ``host``."""

    def rows(self, name: str) -> int:
        """The number of rows of a tier; 0 if the plan has no such tier."""
        return sum(tier.rows for tier in self.tiers if tier.name == name)

    def bytes_per_read(self, name: str) -> float:
        """The bytes that are expected to be read from a tier, per row that is read from any tier."""
        return sum(tier.hit_rate for tier in self.tiers if tier.name == name) * self.row_bytes

    def __str__(self) -> str:
        head = ("tier", "rows", "bytes", "expected hit rate", "expected bytes per row read")
        lines = [head]
        for tier in self.tiers:
            share, read = f"{tier.hit_rate:.3f}", f"{self.bytes_per_read(tier.name):.1f}"
            lines.append((tier.name, f"{tier.rows:,}", format_bytes(tier.num_bytes), share, read))
        whole = [f"{name}: whole in {tier}" for name, tier in self.whole.items()]
        return "\n".join([*table(lines), *whole, f"map of places: {format_bytes(self.map_bytes)} in {self.map_tier}"])


def plan_tiers(
    score: Tensor,
    row_bytes: Mapping[Any, int],
    *,
    gpu: Budget = 0,
    peers: Sequence[Budget] = (),
    host: Budget | None = None,
    disk: bool = False,
    mapped: bool = True,
    on_gpu: bool = False,
) -> TierPlan:
    """Assigns nodes' rows to tiers by falling score: first to the fastest tier, as many as its budget holds.

    An attribute is not cut if its rows have at most 1/16 of the bytes of the widest attribute's rows, as labels have.
    All of its rows lie in the first of ``gpu``, ``host`` and ``disk`` that has room for them beside the map.

    The map from ids to places takes 4 bytes per node, 8 from 2^30 nodes on. It lies where rows are gathered: on a GPU
    if ``gpu`` or ``peers`` is above 0 or ``on_gpu`` is True, else in host memory. Its bytes are part of the budget
    there; with ``gpu=0`` they are part of none. There is no map if one tier has all rows, or if ``mapped`` is False.

    Args:
        score: how often each node's row will be read, up to a common factor: at least 0, any real dtype, shape [N].
        row_bytes: stored bytes of a row of each attribute, by its name.
        gpu: the budget on each GPU for rows of which each has a copy.
        peers: a budget for each GPU over which rows are interleaved. They must be equal: row r lies on GPU r mod P.
        host: the budget of host memory; by default it holds all rows that the GPUs' budgets do not.
        disk: whether rows that no budget holds may lie in files.
        mapped: whether rows are asked for by ids that are not places; False for rows that are renumbered by score.
        on_gpu: whether a GPU gathers although no GPU has a budget.

    Raises:
        TypeError, ValueError: wrong scores or budgets, or, without ``disk``, budgets that do not hold all rows.
    """
    _, falling = ranked(score, "score")
    return plan_ranked(falling, row_bytes, gpu=gpu, peers=peers, host=host, disk=disk, mapped=mapped, on_gpu=on_gpu)


def ranked(score: Tensor, name: str) -> tuple[Order, Tensor]:
    """The order of falling scores, and the scores in this order, float64.

    Raises:
        TypeError, ValueError: the errors of :func:`plan_tiers` for wrong scores, which call them ``name``.
    """
    order = by_score(score, name)
    falling = score[order.old].to(torch.float64)
    if len(score) and float(falling[-1]) < 0:
        raise ValueError(f"{name}: expected numbers of at least 0, found {float(falling[-1])}")
    if len(score) and not math.isfinite(float(falling[0])):
        raise ValueError(f"{name}: expected finite numbers, found {float(falling[0])}")
    return order, falling


def plan_ranked(
    score: Tensor, row_bytes: Mapping[Any, int], *, gpu: Budget, peers: Sequence[Budget], host: Budget | None,
    disk: bool, mapped: bool, on_gpu: bool,
) -> TierPlan:  # fmt: skip
    """:func:`plan_tiers` of scores that are sorted: each is at most the one before it."""
    num_nodes = len(score)
    sizes = {name: check_int(f"row_bytes[{name!r}]", size) for name, size in row_bytes.items()}
    whole_bytes = sum(sizes.values()) * num_nodes
    per_peer = peer_budgets("peers", peers, whole_bytes)
    left = {"gpu": budget_bytes("gpu", gpu, whole_bytes), "peers": sum(per_peer)}
    if host is not None:
        left["host"] = budget_bytes("host", host, whole_bytes)
    map_tier = "gpu" if on_gpu or left["gpu"] or left["peers"] else "host"
    plan = _cut(score, sizes, left, len(per_peer), disk, map_tier)
    map_bytes = num_nodes * place_dtype(2 * num_nodes).itemsize if mapped and not _in_one_tier(plan, num_nodes) else 0
    if map_bytes and map_tier in left and (map_tier == "host" or left["gpu"]):
        if left[map_tier] < map_bytes:
            found = left[map_tier]
            raise ValueError(
                f"{map_tier}: expected room for the map of {num_nodes} nodes, {map_bytes} bytes, found {found}"
            )
        left[map_tier] -= map_bytes
        plan = _cut(score, sizes, left, len(per_peer), disk, map_tier)
    if missing := (num_nodes - sum(tier.rows for tier in plan.tiers)) * plan.row_bytes:
        raise ValueError(
            f"budgets: expected room for {num_nodes} rows of {plan.row_bytes} bytes, found {missing} bytes too little; "
            f"raise host= or give disk="
        )
    return plan if _in_one_tier(plan, num_nodes) else replace(plan, map_bytes=map_bytes)


def _in_one_tier(plan: TierPlan, num_nodes: int) -> bool:
    return any(tier.rows == num_nodes for tier in plan.tiers)


def _cut(
    score: Tensor, sizes: Mapping[Any, int], budgets: Mapping[str, int], num_peers: int, disk: bool, map_tier: str
) -> TierPlan:
    """A plan without a map. A tier that ``budgets`` does not name holds all rows; the plan may have too few rows."""
    num_nodes, left = len(score), dict(budgets)
    whole: dict[Any, str] = {}
    widest = max(sizes.values(), default=0)
    for name in sorted(sizes, key=lambda name: sizes[name]):
        if 0 < sizes[name] * NARROW <= widest:
            amount = sizes[name] * num_nodes
            places = [tier for tier in ("gpu", "host") if left.get(tier) != 0 and left.get(tier, amount) >= amount]
            if places or disk:
                whole[name] = (*places, "disk")[0]
                if whole[name] in left:
                    left[whole[name]] -= amount
    row = sum(size for name, size in sizes.items() if name not in whole)
    total = float(score.sum())
    tiers: list[Tier] = []
    first = 0
    for name in TIERS if disk else TIERS[:-1]:
        room = num_nodes - first
        if name in left and row:
            room = min(room, _rows_that_fit(left[name], row, num_peers if name == "peers" else 1))
        if not row and name != "host":
            room = 0  # rows of 0 bytes lie in host memory
        if room > 0:
            hits = float(score[first : first + room].sum()) / total if total else room / num_nodes
            tiers.append(Tier(name, room, room * row, hits))
        first += room
    if num_nodes == 0:
        tiers.append(Tier("host", 0, 0, 1.0))
    return TierPlan(tuple(tiers), whole, row, 0, map_tier)


def _rows_that_fit(room: int, row: int, segments: int) -> int:
    """How many rows of ``row`` bytes fit into ``room`` bytes that are shared out equally over ``segments``."""
    return room // max(segments, 1) // row * segments
