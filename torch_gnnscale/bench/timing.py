"""Times of candidates, taken in turn, the machine that they are taken on, and a training step that is timed."""

from __future__ import annotations

import math
import os
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from ..version import __version__

LEAST_ROUNDS = 3
"""Rounds that are made however long they take."""


def compare(
    candidates: dict[str, Callable[[int], Any]],
    rounds: int,
    batches: int = 1,
    again: bool = False,
    clock: Callable[[], float] = time.perf_counter,
    cpu: bool = False,
    seconds: float = math.inf,
) -> dict[str, dict[str, float]]:
    """Times candidates in turn, after two warm-up calls of each.

    Each round has an order of its own, so that a candidate does not always run after the same other one.

    Args:
        candidates: functions by name. Each is called with the number of the round and does ``batches`` batches.
        rounds: how often each is timed at most.
        again: an untimed call precedes each timed one.
        clock: what is read, in seconds.
        cpu: also measure the CPU time of all threads.
        seconds: after which no round begins, once there are :data:`LEAST_ROUNDS`.

    Returns:
        For each candidate, milliseconds per batch: ``median_ms`` and the quartiles ``low_ms`` and ``high_ms`` of the
        rounds; with ``cpu`` also ``cpu``, the median of the CPU time.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    cpu_times: dict[str, list[float]] = {name: [] for name in candidates}
    begin = time.perf_counter()
    for round_ in range(-2, rounds):
        if round_ >= LEAST_ROUNDS and time.perf_counter() - begin > seconds:
            break
        for name, run in random.Random(round_).sample(list(candidates.items()), len(candidates)):
            if again:
                run(round_ % rounds)
            start, cpu_start = clock(), time.process_time()
            run(round_ % rounds)
            if round_ >= 0:
                times[name].append((clock() - start) * 1e3 / batches)
                cpu_times[name].append((time.process_time() - cpu_start) * 1e3 / batches)
    return {
        name: {
            "median_ms": median(values),
            "low_ms": sorted(values)[len(values) // 4],
            "high_ms": sorted(values)[len(values) * 3 // 4],
            **({"cpu": median(cpu_times[name])} if cpu else {}),
        }
        for name, values in times.items()
    }


def machine() -> dict[str, Any]:
    """The machine and the versions with which figures are measured, in plain values."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "torch": torch.__version__,
        "torch_gnnscale": __version__,
    }


def whole(model: nn.Module, batch: Data) -> Tensor:
    """The outputs of a PyG model on the whole batch, those of the seeds first: shape [nodes, classes]."""
    return model(batch.x, batch.edge_index)


def trimmed(model: nn.Module, batch: Data) -> Tensor:
    """The same with ``trim_to_layer``, PyG's own way of computing less; the last layers leave out nodes of far hops."""
    hops = {"num_sampled_nodes_per_hop": batch.num_sampled_nodes, "num_sampled_edges_per_hop": batch.num_sampled_edges}
    return model(batch.x, batch.edge_index, **hops)


def step(model: nn.Module, run: Callable[[Data], Tensor], batch: Data) -> None:
    """One step but the optimizer's: sets the gradients of ``model`` from the loss of the seeds, the first rows of
    ``run(batch)``."""
    model.zero_grad()
    seeds = slice(batch.batch_size)
    nn.functional.cross_entropy(run(batch)[seeds], batch.y[seeds]).backward()
