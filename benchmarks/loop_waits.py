"""A training loop whose loader prepares batches meanwhile: how long it waits for them, and how much slower it is; a
part of bench_training.py.

Whole epochs of 40 batches of 1024 x (15, 10, 5), or of 64 on the graph of 2,708 nodes, with 128 features, a narrowed
GraphSAGE and Adam, against the same loop over batches prepared beforehand. A wait is the time in the iterator's
``next``. The wait for the first batch, before which no step has run, is a figure of its own. The ratio of the two loops
also contains whatever else the loader's threads take from the loop; the share of the cores that they take is a lower
bound of that.

The same loop is also timed at each setting of ``prefetch``, on one and on two threads of torch. The aim: the default,
which the first batches choose, reaches 0.97 of the best setting's speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from common import compare, data_of, judged, on_threads, report, say_aims
from model_steps import BATCH, CLASSES, FANOUTS, FEATURES, HIDDEN
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import NeighborLoader, ops
from torch_gnnscale.bench import step
from torch_gnnscale.nn import narrow

BATCHES = 40
BATCH_OF = {"2708-10556": 64}
"""The batch size where it is not BATCH."""


class Epoch(NamedTuple):
    """Seconds of one pass over the batches."""

    first: float
    """The wait for the first batch."""
    waits: float
    """The waits for all others."""
    total: float
    """From the first batch to the last step."""


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Data]) -> Epoch:
    iterator, waits = iter(batches), []
    mark = time.perf_counter()
    while (coming := next(iterator, None)) is not None:
        waits.append(time.perf_counter() - mark)
        if len(waits) == 1:
            begin = time.perf_counter()
        batch, coming = coming, None  # frees the batch before
        step(model, model, batch)
        optimizer.step()
        mark = time.perf_counter()
    return Epoch(waits[0], sum(waits[1:]), mark - begin)


def measure(loader: NeighborLoader, rounds: int) -> dict[str, float]:
    """Both loops in turn, after one of each that is not counted."""
    model = narrow(GraphSAGE(FEATURES, HIDDEN, 3, CLASSES))
    optimizer = torch.optim.Adam(model.parameters())
    prepared = list(loader)
    for batch in prepared:
        assert torch.equal(batch.x, loader.data.x[batch.n_id])
    epochs, shares = [], []
    for _ in range(rounds + 1):
        alone = train(model, optimizer, prepared)
        before = sum(loader.seconds.values())
        beside = train(model, optimizer, loader)
        epochs.append((alone, beside))
        shares.append((sum(loader.seconds.values()) - before) / (torch.get_num_threads() * alone.total))
    alone, beside = (median(pair[k].total for pair in epochs[1:]) / len(prepared) for k in range(2))
    entry = {
        "step_alone_ms": alone * 1e3,
        "step_with_loader_ms": beside * 1e3,
        "slowdown": median(beside.total / alone.total for alone, beside in epochs[1:]),
        "share_percent": 100 * median(shares[1:]),
        "first_wait_ms": median(beside.first for _, beside in epochs[1:]) * 1e3,
        "wait_percent": 100 * median(beside.waits / beside.total for _, beside in epochs[1:]),
    }
    print("  " + "  ".join(f"{key} {value:.3g}" for key, value in entry.items()), flush=True)
    return entry


SETTINGS: dict[str, dict] = {"default": {}, **{f"prefetch={p}": {"prefetch": p} for p in (0, 1, 2, 4)}}


def measure_settings(make: Callable[..., NeighborLoader], rounds: int) -> dict[str, dict]:
    """Milliseconds per step at each setting, and the aim of the default, by torch's threads."""
    results = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        model = narrow(GraphSAGE(FEATURES, HIDDEN, 3, CLASSES))
        optimizer = torch.optim.Adam(model.parameters())
        loaders = {name: make(**setting) for name, setting in SETTINGS.items()}
        default = loaders["default"]
        while default._execution.trial.choice is None:
            train(model, optimizer, default)

        def epoch(loader: NeighborLoader, model=model, optimizer=optimizer) -> Callable[[int], Epoch]:
            return lambda _: train(model, optimizer, loader)

        times = compare({name: epoch(loader) for name, loader in loaders.items()}, rounds, len(default))
        best = min(times, key=lambda name: times[name]["median_ms"])
        report(f"a training step, {on_threads(threads)} of torch", times, best)
        aim = judged(times[best]["median_ms"] / times["default"]["median_ms"], least=0.97)
        say_aims({"the default beside the best setting": aim})
        results[on_threads(threads)] = {"times": times, "best": best, "aim": aim}
    return results


def measure_loops(graphs: list[str], batches: int, rounds: int) -> tuple[dict, dict]:
    """(Both loops, the loop at each setting of ``prefetch``) on R-MAT graphs, with so many batches per epoch."""
    results, settings = {}, {}
    for name in graphs:
        data = data_of(name, FEATURES, CLASSES)
        batch_size, times = BATCH_OF.get(name, BATCH), max(1, rounds // 3)
        seeds = torch.randperm(data.num_nodes)[: batches * batch_size]
        make = partial(NeighborLoader, data, FANOUTS, seeds, batch_size=batch_size, seed=0)
        print(f"R-MAT {name}")
        torch.set_num_threads(2)
        results[name] = measure(make(), times)
        settings[name] = measure_settings(make, times)
        del data, make
        ops.pool_trim()
    return results, settings
