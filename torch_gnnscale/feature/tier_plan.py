"""Tier plans: which feature rows lie in which memory, by their scores (Data Tiering, sections 3.2 and 4)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._user import table
from ..memory import Budget, budget_bytes, format_bytes, peer_budgets
from ..ops import place_dtype
from ..ops.arguments import check_int
from ..topology.reorder import Order, by_score
from .feature_store import HOMOGENEOUS_EDGES

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
    """The number of nodes or edges whose rows lie there."""
    num_bytes: int
    """The bytes of these rows: over all GPUs together for ``peers``, on each GPU for ``gpu``."""
    hit_rate: float
    """The share of all reads that is expected there: the sum of the scores of these nodes or edges over that of all
    scores, of all types."""


@dataclass(frozen=True)
class TierPlan:
    """Which rows lie in which memory; ``str(plan)`` is a table. Made by :func:`plan_tiers`."""

    tiers: tuple[Tier, ...]
    """The tiers that have rows, the fastest first. Together they have the rows of all nodes, or of all edges."""
    whole: Mapping[Any, str]
    """The attributes that are not cut, and the tier that has all of their rows."""
    row_bytes: int
    """Stored bytes of a row of a node or edge, summed over the attributes that are cut."""
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


class TypedTierPlan(dict[Any, TierPlan]):
    """The tier plan of each type of nodes and of edges; ``str(plan)`` is a table of each. In a homogeneous graph, None
    is the type of the nodes, and (None, None) that of the edges."""

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers that have rows, the fastest first, with the rows of all types."""
        found = []
        for name in TIERS:
            of_types = [tier for plan in self.values() for tier in plan.tiers if tier.name == name]
            if of_types:
                rows, num_bytes = sum(tier.rows for tier in of_types), sum(tier.num_bytes for tier in of_types)
                found.append(Tier(name, rows, num_bytes, sum(tier.hit_rate for tier in of_types)))
        return tuple(found)

    @property
    def map_bytes(self) -> int:
        """Bytes of the maps from ids to places."""
        return sum(plan.map_bytes for plan in self.values())

    def __str__(self) -> str:
        names = {None: "nodes", HOMOGENEOUS_EDGES: "edges"}
        return "\n\n".join(f"{names.get(of, of)}:\n{plan}" for of, plan in self.items())


def of_types(plans: Mapping[Any, TierPlan]) -> TierPlan | TypedTierPlan:
    """The plan of a homogeneous graph's nodes, if there is no other; else the plans of all types."""
    return plans[None] if list(plans) == [None] else TypedTierPlan(plans)


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
    return plan_types(
        {None: score}, {None: row_bytes}, gpu=gpu, peers=peers, host=host, disk=disk,
        renumbered=() if mapped else (None,), on_gpu=on_gpu,
    )[None]  # fmt: skip


def plan_types(
    scores: Mapping[Any, Tensor], row_bytes: Mapping[Any, Mapping[Any, int]], *, gpu: Budget, peers: Sequence[Budget],
    host: Budget | None, disk: bool, renumbered: Collection[Any], on_gpu: bool,
) -> dict[Any, TierPlan]:  # fmt: skip
    """:func:`plan_ranked` of several types of nodes or edges, which share the budgets: the rows of all types go to the
    tiers by falling score per byte of the row. If a type's map takes more bytes than its rows in the tiers with
    budgets, as it may for narrow rows of many edges, all of them are put into the tier without a budget, without a map,
    if less is then read from that tier.

    Args:
        scores: of the nodes or edges of each type, sorted.
        row_bytes: of the attributes of each type, by their names.
        renumbered: the types whose ids are places, which need no map.
        gpu, peers, host, disk, on_gpu: as of :func:`plan_tiers`.

    Raises:
        TypeError, ValueError: as :func:`plan_tiers` for budgets.
    """
    sizes = {
        group: {name: check_int(f"row_bytes[{name!r}]", size) for name, size in of_type.items()}
        for group, of_type in row_bytes.items()
    }
    counts = {group: len(score) for group, score in scores.items()}
    whole_bytes = sum(sum(of_type.values()) * counts[group] for group, of_type in sizes.items())
    per_peer = peer_budgets("peers", peers, whole_bytes)
    budgets = {"gpu": budget_bytes("gpu", gpu, whole_bytes), "peers": sum(per_peer)}
    if host is not None:
        budgets["host"] = budget_bytes("host", host, whole_bytes)
    map_tier = "gpu" if on_gpu or budgets["gpu"] or budgets["peers"] else "host"
    counted = map_tier in budgets and (map_tier == "host" or budgets["gpu"] > 0)
    map_sizes = {
        group: count * place_dtype(2 * count).itemsize for group, count in counts.items() if group not in renumbered
    }

    def planned(apart: Collection[Any]) -> dict[Any, TierPlan]:
        """The plans with their maps."""
        maps: dict[Any, int] = {}
        while True:  # a map takes room, so that a type which had one tier may then need a map, too
            left = dict(budgets)
            if counted:
                left[map_tier] -= sum(maps.values())
            if counted and left[map_tier] < 0:
                mapped = sum(counts[group] for group in maps)
                kind = " and ".join(dict.fromkeys("edges" if isinstance(of, tuple) else "nodes" for of in maps))
                raise ValueError(
                    f"{map_tier}: expected room for the map of {mapped} {kind}, {sum(maps.values())} bytes, found "
                    f"{budgets[map_tier]}"
                )
            plans = _cut(scores, sizes, left, len(per_peer), disk, map_tier, apart)
            needed = {
                group: size
                for group, size in map_sizes.items()
                if group in maps or not _in_one_tier(plans[group], counts[group])
            }
            if needed == maps:
                break
            maps = needed
        return {
            group: plan if _in_one_tier(plan, counts[group]) else replace(plan, map_bytes=maps.get(group, 0))
            for group, plan in plans.items()
        }

    slow = None if not counted else "host" if "host" not in budgets else "disk" if disk else None
    plans: dict[Any, TierPlan] | None = None
    error: ValueError | None = None
    apart: list[Any] = []
    while True:  # a map may take more room than there is, or than the rows that it lets into memory
        try:
            others = planned(apart)
        except ValueError as found:
            error = error or found
            losses = {group: size for group, size in map_sizes.items() if group not in apart}
        else:
            if plans is not None and _bytes_per_read(others, slow) >= _bytes_per_read(plans, slow):
                break
            plans = others
            losses = {group: plan.map_bytes - _bytes_but(plan, slow) for group, plan in plans.items()}
            losses = {group: loss for group, loss in losses.items() if loss > 0}
        if slow is None or not losses or len(apart) + 1 == len(scores):
            break
        apart = [*apart, max(losses, key=lambda group: losses[group])]
    if plans is None:
        assert error is not None
        raise error
    missing = {
        group: (counts[group] - sum(tier.rows for tier in plan.tiers)) * plan.row_bytes for group, plan in plans.items()
    }
    if short := sum(missing.values()):
        rows = " and ".join(
            f"{counts[group]} rows of {plans[group].row_bytes} bytes" for group in plans if missing[group]
        )
        raise ValueError(
            f"budgets: expected room for {rows}, found {short} bytes too little; raise host= or give disk="
        )
    return plans


def _bytes_per_read(plans: Mapping[Any, TierPlan], name: str | None) -> float:
    """:meth:`TierPlan.bytes_per_read` of all types together."""
    return sum(plan.bytes_per_read(name) for plan in plans.values() if name is not None)


def _bytes_but(plan: TierPlan, name: str | None) -> int:
    """The bytes of the rows that are not in a tier."""
    return sum(tier.num_bytes for tier in plan.tiers if tier.name != name)


def _in_one_tier(plan: TierPlan, num_nodes: int) -> bool:
    return any(tier.rows == num_nodes for tier in plan.tiers)


def _cut(
    scores: Mapping[Any, Tensor], sizes: Mapping[Any, Mapping[Any, int]], budgets: Mapping[str, int], num_peers: int,
    disk: bool, map_tier: str, apart: Collection[Any],
) -> dict[Any, TierPlan]:  # fmt: skip
    """Plans without maps. A tier that ``budgets`` does not name holds all rows, and those of the types ``apart``; the
    plans may have too few rows."""
    left = dict(budgets)
    whole = {group: _whole(of_type, len(scores[group]), left, disk) for group, of_type in sizes.items()}
    row = {group: sum(of_type[n] for n in of_type if n not in whole[group]) for group, of_type in sizes.items()}
    total, nodes = sum(float(score.sum()) for score in scores.values()), sum(map(len, scores.values()))
    tiers: dict[Any, list[Tier]] = {group: [] for group in scores}
    first = dict.fromkeys(scores, 0)
    for name in TIERS if disk else TIERS[:-1]:
        rest = {group: len(score) - first[group] for group, score in scores.items()}
        room = {group: rest[group] if row[group] or name == "host" else 0 for group in rest}  # no bytes: host memory
        if name in left:
            limited = {group: scores[group][first[group] :] for group in rest if row[group] and group not in apart}
            room |= dict.fromkeys(apart, 0) | _hottest(limited, row, left[name], num_peers if name == "peers" else 1)
        for group, count in room.items():
            if count > 0:
                begin, score = first[group], scores[group]
                hits = float(score[begin : begin + count].sum()) / total if total else count / nodes
                tiers[group].append(Tier(name, count, count * row[group], hits))
            first[group] += count
    for group, score in scores.items():
        if len(score) == 0:
            tiers[group].append(Tier("host", 0, 0, float(nodes == 0 and group == next(iter(scores)))))
    return {group: TierPlan(tuple(tiers[group]), whole[group], row[group], 0, map_tier) for group in scores}


def _whole(sizes: Mapping[Any, int], num_nodes: int, left: dict[str, int], disk: bool) -> dict[Any, str]:
    """The tiers of the attributes that are not cut, whose bytes are taken from the budgets that are left."""
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
    return whole


def _hottest(scores: Mapping[Any, Tensor], row: Mapping[Any, int], room: int, segments: int) -> dict[Any, int]:
    """How many rows of each type fit into ``room`` bytes that are shared out equally over ``segments``: by falling
    score per byte. Scores are sorted, and of a type that has bytes."""
    segments = max(segments, 1)
    each = room // segments  # bytes of a segment
    if len(scores) == 1:
        ((group, score),) = scores.items()
        return {group: min(len(score), each // row[group] * segments)}
    groups = [group for group in scores if len(scores[group])]
    if not groups:
        return dict.fromkeys(scores, 0)
    density = torch.cat([scores[group] / row[group] for group in groups])
    of = torch.repeat_interleave(torch.tensor([len(scores[group]) for group in groups]))
    order = of[density.argsort(descending=True, stable=True)]
    fits = torch.tensor([row[group] for group in groups])[order].cumsum(0) <= each * segments
    chosen = torch.bincount(order[fits], minlength=len(groups)).tolist()
    found = dict.fromkeys(scores, 0)
    for group, count in zip(groups, chosen, strict=True):
        found[group] = count - count % segments
    # A type may end within a round over the segments, if the last round of each type has room.
    ended = {
        group: len(scores[group]) for group, count in zip(groups, chosen, strict=True) if count == len(scores[group])
    }
    if sum(-(-count // segments) * row[group] for group, count in (found | ended).items()) <= each:
        found |= ended
    return found
