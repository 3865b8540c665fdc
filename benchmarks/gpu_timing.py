"""How candidates on a GPU are timed: by events on the stream, or until the host has their results."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import common
import torch

ASLEEP = 2_000_000
"""Clock cycles, 1 ms at 2 GHz, for which the stream waits while the host queues what is timed."""
SHORT, MANY = 2e-3, 101
"""Where no candidate takes as many seconds as SHORT, there are MANY rounds."""


def keep_busy(seconds: float = 0.3) -> None:
    """Gives the GPU so many seconds of untimed work: an idle GPU has a low clock, which takes a while to rise."""
    numbers, until = torch.zeros(1 << 24, device="cuda"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in range(16):
            numbers.add_(1)
        torch.cuda.synchronize()


def timed(run: Callable[[], Any]) -> float:
    """Milliseconds on the current stream, which is busy until the host has queued everything."""
    torch.cuda._sleep(ASLEEP)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def compare(candidates: dict[str, Callable[[], Any]], num_bytes: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Milliseconds by events, and GB/s, of candidates that are run in turn, after two rounds that do not count."""
    keep_busy()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds + 2):
        for name, run in candidates.items():
            times[name].append(timed(run))
    found = {name: sorted(values[2:]) for name, values in times.items()}
    return {
        name: {
            "median_ms": median(values),
            "low_ms": values[len(values) // 4],
            "high_ms": values[len(values) * 3 // 4],
            "gb_per_s": num_bytes / median(values) / 1e6,
        }
        for name, values in found.items()
    }


def compare_waits(
    candidates: dict[str, Callable[[int], Any]], rounds: int, batches: int = 1
) -> dict[str, dict[str, float]]:
    """:func:`common.compare` of candidates that return when the GPU has done their work; MANY rounds where all are
    shorter than SHORT."""
    keep_busy()
    slowest = 0.0
    for run in candidates.values():
        run(0)
        since = time.perf_counter()
        run(0)
        slowest = max(slowest, time.perf_counter() - since)
    return common.compare(candidates, max(rounds, MANY) if slowest < SHORT else rounds, batches=batches)
