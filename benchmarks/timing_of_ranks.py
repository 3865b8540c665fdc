"""What calls that ranks make together take: timed in turn on each rank, then on the slowest one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from torch import distributed as dist


def in_turn(candidates: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of wall and of CPU time of each call on this rank, in turn; all ranks begin together."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    cpu: dict[str, list[float]] = {name: [] for name in candidates}
    for round_ in range(-3, rounds):
        for name, run in random.Random(round_).sample(list(candidates.items()), len(candidates)):
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            run()
            if round_ >= 0:
                times[name].append((time.perf_counter() - begin) * 1e3)
                cpu[name].append((time.process_time() - used) * 1e3)
    return {"wall": times, "cpu": cpu}


def slowest_of(of_ranks: list[dict[str, Any]]) -> tuple[dict[str, list[float]], dict[str, float], dict[str, float]]:
    """What ``in_turn`` returned on each rank: by candidate, its rising times on the slowest rank, their lower quartile,
    where other processes disturb least, and the CPU time of all ranks."""
    slowest = {
        kind: sorted(max(times) for times in zip(*(rank["wall"][kind] for rank in of_ranks), strict=True))
        for kind in of_ranks[0]["wall"]
    }
    low = {kind: times[len(times) // 4] for kind, times in slowest.items()}
    return slowest, low, {kind: sum(median(rank["cpu"][kind]) for rank in of_ranks) for kind in slowest}
