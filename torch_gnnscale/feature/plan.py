"""What lies where: feature rows cut into tiers by their scores (Data Tiering, sections 3.2 and 4)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..ops import place_dtype
from ..ops.arguments import check_int
from ..topology.reorder import by_score

TIERS = ("gpu", "peers", "host", "disk")
"""The tiers, the fastest first: replicated on each GPU, interleaved over GPUs, host memory, files."""
NARROW = 16
"""An attribute whose rows are so many times narrower than the widest one's is kept whole."""
_UNITS = {f"{p}{s}": b**i for i, p in enumerate("KMGT", 1) for s, b in (("B", 1000), ("iB", 1024))} | {"B": 1}

Budget: TypeAlias = int | float | str
"""What may be taken: bytes as an int or a string such as "8GiB", or a share of the whole as a float or "25%"."""


def budget_bytes(name: str, budget: Budget, whole: int) -> int:
    """A budget in bytes, where all that there is has ``whole``.

    Raises:
        TypeError, ValueError: not a budget; names it.
    """
    if isinstance(budget, bool) or not isinstance(budget, (Integral, float, str)):
        raise TypeError(f"{name}: expected bytes, a share or a string such as '8GiB', found {type(budget).__name__}")
    if isinstance(budget, Integral):
        return check_int(name, budget)  # type: ignore[arg-type]
    if isinstance(budget, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B|%)", budget.strip())
        if match is None:
            raise ValueError(f"{name}: expected a number and a unit such as '8GiB', '500MB' or '25%', found {budget!r}")
        if match[2] != "%":
            return int(float(match[1]) * _UNITS[match[2]])
        share = float(match[1]) / 100
    else:
        share = budget
    if not 0 <= share <= 1:
        raise ValueError(f"{name}: expected a share of 0 to 1, found {budget!r}")
    return int(share * whole)


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


def format_bytes(count: int) -> str:
    """``512 B``, ``1.5 GiB``."""
    power = min(4, max(0, int(math.log2(count) // 10))) if count else 0
    return f"{count} B" if power == 0 else f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"


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
    memory. It counts against that budget; if a GPU gathers with ``gpu=0``, it counts against none. One tier needs none.

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
    ordered = score[by_score(score).old]
    return plan_ordered(ordered, row_bytes, gpu=gpu, peers=peers, host=host, disk=disk, mapped=mapped, on_gpu=on_gpu)


def plan_ordered(
    score: Tensor, row_bytes: Mapping[Any, int], *, gpu: Budget, peers: Sequence[Budget], host: Budget | None,
    disk: bool, mapped: bool, on_gpu: bool,
) -> TierPlan:  # fmt: skip
    """:func:`plan_tiers` of scores in falling order."""
    num_nodes = len(score)
    sizes = {name: check_int(f"row_bytes[{name!r}]", size) for name, size in row_bytes.items()}
    whole_bytes = sum(sizes.values()) * num_nodes
    score = score.to(torch.float64)
    if num_nodes and float(score[-1]) < 0:
        raise ValueError(f"score: expected numbers of at least 0, found {float(score[-1])}")
    if num_nodes and not math.isfinite(float(score[0])):
        raise ValueError(f"score: expected finite numbers, found {float(score[0])}")
    left = {"gpu": budget_bytes("gpu", gpu, whole_bytes)}
    per_peer = [budget_bytes(f"peers[{i}]", budget, whole_bytes) for i, budget in enumerate(peers)]
    if len(set(per_peer)) > 1:
        raise ValueError(f"peers: expected equal budgets, for rows are interleaved, found {list(peers)}")
    left["peers"] = sum(per_peer)
    if host is not None:
        left["host"] = budget_bytes("host", host, whole_bytes)

    def take(tier: str, amount: int) -> bool:
        if tier in left and left[tier] < amount:
            return False
        if tier in left:
            left[tier] -= amount
        return True

    fastest = "gpu" if left["gpu"] else "host"
    one_tier = left.get(fastest, whole_bytes) >= whole_bytes and (fastest == "gpu" or not left["peers"])
    map_bytes = 0 if one_tier or not mapped else num_nodes * place_dtype(2 * num_nodes).itemsize
    map_tier = "gpu" if on_gpu or left["gpu"] or left["peers"] else "host"
    if (map_tier == "host" or left["gpu"]) and not take(map_tier, map_bytes):
        raise ValueError(
            f"{map_tier}: expected room for the map of {num_nodes} nodes, {map_bytes} bytes, found {left[map_tier]}"
        )
    whole: dict[Any, str] = {}
    widest = max(sizes.values(), default=0)
    for name in sorted(sizes, key=lambda name: sizes[name]):
        if 0 < sizes[name] * NARROW <= widest:
            places = [tier for tier in ("gpu", "host") if left.get(tier) != 0]
            amount = sizes[name] * num_nodes
            found = next((tier for tier in places if take(tier, amount)), "disk" if disk else None)
            if found is not None:
                whole[name] = found
    row = sum(size for name, size in sizes.items() if name not in whole)
    total = float(score.sum())
    tiers: list[Tier] = []
    first = 0
    for name in TIERS:
        room = num_nodes - first
        if name in left:
            room = min(room, _rows_that_fit(left[name], row, len(per_peer) if name == "peers" else 1))
        if name == "disk" and not disk:
            break
        if room > 0:
            hits = float(score[first : first + room].sum()) / total if total else room / num_nodes
            tiers.append(Tier(name, room, room * row, hits))
        first += room
    if num_nodes == 0:
        tiers.append(Tier("host", 0, 0, 1.0))
    if first < num_nodes:
        missing = (num_nodes - first) * row
        raise ValueError(
            f"budgets: expected room for {num_nodes} rows of {row} bytes, found {missing} bytes too little; "
            f"raise host= or give disk="
        )
    return TierPlan(tuple(tiers), whole, row, map_bytes, map_tier)


def _rows_that_fit(room: int, row: int, parts: int) -> int:
    """How many rows fit, if each of ``parts`` parts has the same room."""
    if row == 0:
        return 1 << 62
    return room // max(parts, 1) // row * parts
