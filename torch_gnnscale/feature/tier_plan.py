"""What lies where: feature rows cut into tiers by their scores (Data Tiering, sections 3.2 and 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..memory import Budget, budget_bytes, format_bytes
from ..ops import place_dtype
from ..ops.arguments import check_int
from ..ops.tiers import MAX_PARTS
from ..topology.reorder import Order, by_score

TIERS = ("gpu", "peers", "host", "disk")
"""The tiers, the fastest first: replicated on each GPU, interleaved over GPUs, host memory, files."""
NARROW = 16
"""An attribute whose rows are so many times narrower than the widest one's is kept whole."""
MAX_PEERS = MAX_PARTS - (len(TIERS) - 1)
"""GPUs over which rows may be interleaved: the other tiers are a part each."""


@dataclass(frozen=True)
class Tier:
    """The rows of one tier."""

    name: str
    """One of :data:`TIERS`."""
    rows: int
    """How many nodes' rows lie there."""
    num_bytes: int
    """What they take, over all GPUs for ``peers`` and on each GPU for ``gpu``."""
    hit_rate: float
    """The share of all reads that is expected there: that of the summed scores."""


@dataclass(frozen=True)
class TierPlan:
    """Which rows lie in which memory; ``str(plan)`` is a table. Made by :func:`plan_tiers`."""

    tiers: tuple[Tier, ...]
    """Those that have rows, the fastest first; all nodes' rows in all."""
    whole: Mapping[Any, str]
    """Attributes that are too narrow to be worth a cut, and the tier that has all of their rows."""
    row_bytes: int
    """Stored bytes of a node's row, over all attributes that are cut."""
    map_bytes: int
    """Bytes of the map from ids to places; 0 for renumbered rows, and for one tier."""
    map_tier: str
    """Where the map lies, which is where rows are gathered: ``gpu`` or ``host``."""

    def rows(self, name: str) -> int:
        """The rows of a tier, 0 if it is not used."""
        return sum(tier.rows for tier in self.tiers if tier.name == name)

    def bytes_per_read(self, name: str) -> float:
        """Bytes that are expected to be read from a tier for each row that is read."""
        return sum(tier.hit_rate for tier in self.tiers if tier.name == name) * self.row_bytes

    def __str__(self) -> str:
        head = ("tier", "rows", "bytes", "expected hit rate", "expected bytes a row read")
        lines = [head]
        for tier in self.tiers:
            share, read = f"{tier.hit_rate:.3f}", f"{self.bytes_per_read(tier.name):.1f}"
            lines.append((tier.name, f"{tier.rows:,}", format_bytes(tier.num_bytes), share, read))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        table += [f"{name}: whole in {tier}" for name, tier in self.whole.items()]
        return "\n".join([*table, f"map of places: {format_bytes(self.map_bytes)} in {self.map_tier}"])


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
    """Cuts rows into tiers by falling score: each has the hottest rows that its budget holds and no faster one has.

    An attribute whose rows have at most a sixteenth of the widest one's bytes, such as labels, is not cut: it lies
    whole in the first of ``gpu``, ``host`` and ``disk`` that has room for it beside the map. The map of places (4 bytes
    a node, 8 from 2^30 nodes on) lies where rows are gathered: on a GPU if one has a budget or ``on_gpu``, else in host
    memory. It counts against that budget; if a GPU gathers with ``gpu=0``, it counts against none. There is no map
    where one tier has all rows.

    Args:
        score: how often each node's row will be read, relative to others': at least 0, any real dtype, shape [N].
        row_bytes: stored bytes of a row of each attribute, by its name.
        gpu: the budget on each GPU for rows that all of them have.
        peers: a budget for each of the GPUs over which rows are interleaved; equal ones, for row r lies on GPU r mod P.
        host: the budget of host memory, by default enough for all rows that are left.
        disk: rows that fit nowhere else may lie in files.
        mapped: ids are not places; False for rows that are renumbered by score.
        on_gpu: a GPU gathers, whatever its budget.

    Raises:
        TypeError, ValueError: wrong scores or budgets, or budgets that do not hold all rows and no disk.
    """
    _, falling = ranked(score, "score")
    return plan_ranked(falling, row_bytes, gpu=gpu, peers=peers, host=host, disk=disk, mapped=mapped, on_gpu=on_gpu)


def ranked(score: Tensor, name: str) -> tuple[Order, Tensor]:
    """The order of falling scores, and the scores in it as float64; raises as :func:`plan_tiers`, calling them so."""
    order = by_score(score, name)
    falling = score[order.old].to(torch.float64)
    if len(score) and float(falling[-1]) < 0:
        raise ValueError(f"{name}: expected numbers of at least 0, found {float(falling[-1])}")
    if len(score) and not math.isfinite(float(falling[0])):
        raise ValueError(f"{name}: expected finite numbers, found {float(falling[0])}")
    return order, falling


def peer_budgets(peers: Sequence[Budget], whole: int) -> list[int]:
    """The bytes of each peer; raises TypeError or ValueError unless they are a few equal budgets."""
    if isinstance(peers, (str, Real)):
        raise TypeError(f"peers: expected a budget for each GPU, found {peers!r}")
    budgets = [budget_bytes(f"peers[{i}]", budget, whole) for i, budget in enumerate(peers)]
    if len(set(budgets)) > 1:
        raise ValueError(f"peers: expected equal budgets, for rows are interleaved, found {list(peers)}")
    if len(budgets) > MAX_PEERS:
        raise ValueError(f"peers: expected at most {MAX_PEERS} GPUs, found {len(budgets)}")
    return budgets


def plan_ranked(
    score: Tensor, row_bytes: Mapping[Any, int], *, gpu: Budget, peers: Sequence[Budget], host: Budget | None,
    disk: bool, mapped: bool, on_gpu: bool,
) -> TierPlan:  # fmt: skip
    """:func:`plan_tiers` of scores that fall."""
    num_nodes = len(score)
    sizes = {name: check_int(f"row_bytes[{name!r}]", size) for name, size in row_bytes.items()}
    whole_bytes = sum(sizes.values()) * num_nodes
    per_peer = peer_budgets(peers, whole_bytes)
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
    """The plan for the bytes that rows may take of each tier, those without a bound left out; it may lack rows."""
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
            room = 0  # rows without bytes are nowhere else
        if room > 0:
            hits = float(score[first : first + room].sum()) / total if total else room / num_nodes
            tiers.append(Tier(name, room, room * row, hits))
        first += room
    if num_nodes == 0:
        tiers.append(Tier("host", 0, 0, 1.0))
    return TierPlan(tuple(tiers), whole, row, 0, map_tier)


def _rows_that_fit(room: int, row: int, parts: int) -> int:
    """How many rows fit, if each of ``parts`` parts has the same room."""
    return room // max(parts, 1) // row * parts
