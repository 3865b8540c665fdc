"""A training loop with the loader beside it: what it waits for its data, and how much slower its steps are.

    python benchmarks/bench_loop.py

Whole epochs of 40 batches of 1024 x (15, 10, 5) with 128 features, a narrowed GraphSAGE and Adam, against the same loop
over batches prepared beforehand. The wait for the first batch, when no step has run beside which it could have been
prepared, is a figure of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

import torch
from bench_train import BATCH, CLASSES, FANOUTS, FEATURES, HIDDEN, step
from common import arguments, data_of, save
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import NeighborLoader, ops
from torch_gnnscale.nn import narrow

BATCHES = 40


class Epoch(NamedTuple):
    """Seconds of one pass over the batches."""

    step: float
    """The median step."""
    first: float
    """The wait for the first batch."""
    waits: float
    """The waits for all others."""
    total: float
    """From the first batch to the last step."""


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Data]) -> Epoch:
    steps, waits = [], []
    mark = time.perf_counter()
    for batch in batches:
        now = time.perf_counter()
        waits.append(now - mark)
        step(model, model, batch)
        optimizer.step()
        mark = time.perf_counter()
        steps.append(mark - now)
    return Epoch(median(steps), waits[0], sum(waits[1:]), sum(steps) + sum(waits[1:]))


def measure(loader: NeighborLoader, rounds: int) -> dict[str, float]:
    """Both loops in turn, after one of each that is not counted."""
    model = narrow(GraphSAGE(FEATURES, HIDDEN, 3, CLASSES))
    optimizer = torch.optim.Adam(model.parameters())
    prepared = list(loader)
    for batch in prepared:
        assert torch.equal(batch.x, loader.data.x[batch.n_id])
    epochs = [(train(model, optimizer, prepared), train(model, optimizer, loader)) for _ in range(rounds + 1)][1:]
    alone, beside = median(epoch.step for epoch, _ in epochs), median(epoch.step for _, epoch in epochs)
    entry = {
        "step_alone_ms": alone * 1e3,
        "step_with_loader_ms": beside * 1e3,
        "slowdown": beside / alone,
        "first_wait_ms": median(epoch.first for _, epoch in epochs) * 1e3,
        "wait_percent": 100 * median(epoch.waits / epoch.total for _, epoch in epochs),
    }
    print("  " + "  ".join(f"{key} {value:.3g}" for key, value in entry.items()), flush=True)
    return entry


def main() -> None:
    args = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(2)
    results = {}
    for name in args.graphs:
        data = data_of(name, FEATURES, CLASSES)
        seeds = torch.randperm(data.num_nodes)[: BATCHES * BATCH]
        print(f"R-MAT {name}")
        results[name] = measure(
            NeighborLoader(data, FANOUTS, seeds, batch_size=BATCH, seed=0), max(3, args.rounds // 3)
        )
        del data
        ops.pool_trim()
    if not args.no_save:
        save("loop", results)


if __name__ == "__main__":
    main()
