"""What gnnscale bench measures: batches, training steps, whole loops and gathered rows, ours beside PyG's, in turn."""

from __future__ import annotations

import math
import os
import platform
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
import torch_geometric.loader
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from . import ops
from ._library import __version__
from ._user import table
from .loader import NeighborLoader
from .nn import narrow
from .nn.layered import default_call
from .topology import rmat

__all__ = [
    "FIGURES", "Case", "compare", "generated_cases", "machine", "measure", "step", "table_of", "trimmed",
]  # fmt: skip

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


def trimmed(model: nn.Module, batch: Data) -> Tensor:
    """The outputs of a PyG model on a batch with ``trim_to_layer``, PyG's own way of computing less: the last layers
    leave out nodes of far hops. Shape [nodes, classes], the seeds first."""
    hops = {"num_sampled_nodes_per_hop": batch.num_sampled_nodes, "num_sampled_edges_per_hop": batch.num_sampled_edges}
    return model(batch.x, batch.edge_index, **hops)


def step(model: nn.Module, run: Callable[[Data], Tensor], batch: Data) -> None:
    """One step but the optimizer's: sets the gradients of ``model`` from the loss of the seeds, the first rows of
    ``run(batch)``."""
    model.zero_grad()
    seeds = slice(batch.batch_size)
    nn.functional.cross_entropy(run(batch)[seeds], batch.y[seeds]).backward()


ROUNDS = 25
"""The most rounds of a figure."""
HIDDEN, CLASSES = 256, 47
LEAST_BATCHES = 4
"""Batches of an epoch of the figures of loaders, where there are as many seeds."""
OURS = "ours"
PYG = "PyG"
FIGURES = ("a batch", "a training step", "loading and training", "gathering the batches' rows")
Times: TypeAlias = dict[str, dict[str, float]]
"""What :func:`compare` returns."""


@dataclass(frozen=True)
class Case:
    """A graph with features ``x`` and classes ``y``, and how batches are drawn from it."""

    name: str
    make: Callable[[], Data]
    seeds: Callable[[Data], Tensor]
    """The seeds of an epoch."""
    batch_size: int
    fanouts: tuple[int, ...]

    def title(self, data: Data) -> str:
        """The graph's size and the batches' in words."""
        sizes = f"{data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_features} features"
        return f"{self.name}: {sizes}; batches of {self.batch_size} x {self.fanouts}"


def _rmat(num_nodes: int, num_edges: int, features: int) -> Data:
    ids = torch.arange(num_nodes)
    x = (ids.unsqueeze(1) % torch.arange(3, 3 + features)).float()
    return Data(x=x, y=ids % CLASSES, edge_index=rmat(num_nodes, num_edges, seed=1))


def _some(count: int) -> Callable[[Data], Tensor]:
    return lambda data: torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(2))[:count]


def generated_cases() -> list[Case]:
    """R-MAT graphs of the size of Cora, of 3 and of 16 million edges."""
    sizes = [("tiny", 2708, 10_556, 1433, 64, (10, 5)), ("medium", 200_000, 3_000_000, 128, 1024, (15, 10, 5)),
             ("large", 1_000_000, 16_000_000, 128, 1024, (15, 10, 5))]  # fmt: skip
    return [
        Case(name, partial(_rmat, nodes, edges, features), _some(LEAST_BATCHES * batch_size), batch_size, fanouts)
        for name, nodes, edges, features, batch_size, fanouts in sizes
    ]


def _check(batch: Data, data: Data, fanouts: Sequence[int]) -> None:
    """Fails unless rows are their nodes', edges are the graph's, and no node has more of them than asked for."""
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert int(torch.bincount(batch.edge_index[1], minlength=1).max()) <= max(fanouts)


def _loaders(case: Case, data: Data) -> dict[str, Any]:
    """Both loaders of the same seeds; ours alone where PyG's cannot run."""
    options: dict[str, Any] = {"input_nodes": case.seeds(data), "batch_size": case.batch_size, "shuffle": True}
    loaders: dict[str, Any] = {OURS: NeighborLoader(data, list(case.fanouts), seed=1, **options)}
    if WITH_PYG_LIB or WITH_TORCH_SPARSE:
        loaders[PYG] = torch_geometric.loader.NeighborLoader(data, list(case.fanouts), **options)
    for loader in loaders.values():
        _check(next(iter(loader)), data, case.fanouts)
    return loaders


def _drained(loader: Any) -> Callable[[int], Any]:
    return lambda _: deque(loader, maxlen=0)


def _steps(model: nn.Module, batches: list[Data], timed: Callable[..., Times]) -> Times:
    """Steps of a model on batches that are there: narrowed, by ``trim_to_layer`` and on the whole batch."""
    narrowed = narrow(model)
    ways = {f"{PYG}, trim_to_layer": partial(trimmed, model), f"{PYG}, whole batch": partial(default_call, model)}
    expected = narrowed(batches[0])
    for way in ways.values():
        torch.testing.assert_close(way(batches[0])[: len(expected)], expected, rtol=1e-3, atol=1e-3)

    def on_batch(way: Callable[[Data], Tensor]) -> Callable[[int], None]:
        return lambda number: step(model, way, batches[number % len(batches)])

    return timed({OURS: on_batch(narrowed), **{name: on_batch(way) for name, way in ways.items()}}, again=True)


def _loops(model: nn.Module, loaders: dict[str, Any], timed: Callable[..., Times]) -> Times:
    """Epochs with Adam: ours narrowed, PyG's with ``trim_to_layer``, or on whole batches where PyG samples by
    torch-sparse, which does not say the sizes of hops."""
    optimizer = torch.optim.Adam(model.parameters())

    def epoch(loader: Any, way: Callable[[Data], Tensor]) -> Callable[[int], None]:
        def run(_: int) -> None:
            for batch in loader:
                step(model, way, batch)
                optimizer.step()

        return run

    loops = {OURS: epoch(loaders[OURS], narrow(model))}
    if PYG in loaders and "num_sampled_nodes" in next(iter(loaders[PYG])):
        loops[f"{PYG}, trim_to_layer"] = epoch(loaders[PYG], partial(trimmed, model))
    elif PYG in loaders:
        loops[f"{PYG}, whole batch"] = epoch(loaders[PYG], partial(default_call, model))
    return timed(loops, batches=len(loaders[OURS]))


def _gathers(x: Tensor, rows: Tensor, timed: Callable[..., Times]) -> Times:
    """Gathering rows; ``gigabytes_per_second`` counts what is read once."""
    assert torch.equal(ops.gather_rows(x, rows), x.index_select(0, rows))
    times = timed({OURS: lambda _: ops.gather_rows(x, rows), "torch.index_select": lambda _: x.index_select(0, rows)})
    moved = rows.numel() * x[0].numel() * x.element_size()
    return {name: {**entry, "gigabytes_per_second": moved / entry["median_ms"] / 1e6} for name, entry in times.items()}


def measure(case: Case, data: Data, seconds: float) -> Iterator[tuple[str, Times]]:
    """The figures of a graph, each as soon as it is there.

    Args:
        case: the graph and its batches.
        data: what ``case.make()`` returned.
        seconds: for each figure, besides what it takes to prepare it and three rounds.

    Yields:
        (The figure, times of its candidates by :func:`compare`), ours first.

    Raises:
        AssertionError: wrong rows, edges or outputs, which are checked before they are timed.
    """
    timed = partial(compare, rounds=ROUNDS, seconds=seconds)
    loaders = _loaders(case, data)
    yield FIGURES[0], timed({name: _drained(loader) for name, loader in loaders.items()}, batches=len(loaders[OURS]))
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, HIDDEN, len(case.fanouts), max(CLASSES, int(data.y.max()) + 1))
    batches = list(loaders[OURS])
    rows = torch.cat([batch.n_id for batch in batches])
    yield FIGURES[1], _steps(model, batches, timed)
    del batches
    yield FIGURES[2], _loops(model, loaders, timed)
    yield FIGURES[3], _gathers(data.x, rows, timed)


def table_of(figures: dict[str, Times]) -> list[str]:
    """The lines of a table: the candidates of each figure, their milliseconds with quartiles, and the ratio to ours."""
    lines = [["", "", "ms", "quartiles", "ours is"]]
    for figure, times in figures.items():
        ours = times[OURS]["median_ms"]
        for name, entry in times.items():
            ratio = "" if name == OURS else f"{entry['median_ms'] / ours:.2f} x as fast"
            spread = f"{entry['low_ms']:.3g} to {entry['high_ms']:.3g}"
            lines.append([figure if name == OURS else "", name, f"{entry['median_ms']:.3g}", spread, ratio])
    return table(lines)
