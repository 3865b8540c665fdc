"""What was read from each tier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .tier_plan import TierPlan
from .tiered_rows import TieredRows


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
