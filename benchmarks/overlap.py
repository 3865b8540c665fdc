"""Whether training hides the exchange of rows: two ranks over a network that is slow enough to be waited for.

``measured`` writes a graph in two random parts and starts this file in a network namespace of its own, whose loopback
device ``tc`` limits to a rate. Each rank there times

- steps of a loader without training: the exchange alone, X seconds per step;
- a step of training: forward, backward and optimizer of a network of three layers, repeated for T = 2 X seconds;
- both: a step takes T plus the wait for its batch. Other work of the machine does not change T.
"""

from __future__ import annotations

import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from ranks import can_shape, is_parent, start
from torch import distributed as dist
from torch import nn
from torch_geometric.data import Data

from torch_gnnscale import NeighborLoader, partition
from torch_gnnscale.distributed import Part, open_part

FANOUTS, BATCH, SEED, WORLD = [10, 5], 500, 1, 2
STEPS, FILLING = 16, 6
"""Steps of a round that are timed, and steps before these, in which the first batches come."""
LIMIT = 600
"""Seconds after which the ranks are ended."""


def measured(data: Data, rate: str, rounds: int) -> dict[str, Any] | None:
    """Steps of training at a rate such as "400mbit"; None where there is no network namespace or no ``tc``."""
    if not can_shape(rate):
        return None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        partition.write(data, folder / "parts", parts=WORLD, method="random")
        (folder / "rounds").write_text(str(rounds))
        found = start(__file__, folder, WORLD, rate, LIMIT)
    slowest = max(found, key=lambda rank: rank["wait_ms"])
    step = slowest["training_ms"] + slowest["wait_ms"]
    return {"rate": rate, **slowest, "wait over step": slowest["wait_ms"] / step}


def in_rank(folder: Path) -> dict[str, float]:
    """What a rank finds."""
    with open_part(folder / "parts", verify=False) as part:
        return of_rank(part, int((folder / "rounds").read_text()))


def of_rank(part: Part, rounds: int) -> dict[str, float]:
    """Milliseconds per step: of the exchange alone, of training, and of waiting."""
    size = min(BATCH, part.parts.book.num_nodes() // (WORLD * (FILLING + STEPS)))  # an epoch has enough batches
    loader = NeighborLoader(
        (part.features, part.graph), FANOUTS, part.stored.user_ids[None], batch_size=size, shuffle=True, seed=SEED
    )
    exchange, work = agreed(min([exchange_of(part, loader) for _ in range(3)])), Work()
    length, waits = 2 * exchange, []
    for _ in range(rounds):
        dist.barrier()
        iterator, wait = iter(loader), 0.0
        for number in range(FILLING + STEPS):
            asked = time.perf_counter()
            next(iterator)
            wait += (time.perf_counter() - asked) * (number >= FILLING)
            work.train(length)
        waits.append(wait / STEPS)
        iterator.close()
    return {"exchange_ms": exchange * 1e3, "training_ms": length * 1e3, "wait_ms": median(waits) * 1e3}


def exchange_of(part: Part, loader: NeighborLoader) -> float:
    """Seconds per step in which this rank's exchanges are under way, without training."""
    before = traffic(part)
    for _ in islice(loader, STEPS):
        pass
    seconds, rounds = (after - first for after, first in zip(traffic(part), before, strict=True))
    return seconds / rounds


def traffic(part: Part) -> tuple[float, int]:
    """(seconds in exchanges, rounds of rows) so far."""
    stats = part.stats()
    return sum(entry["seconds"] for entry in stats.values()), stats["rows"]["rounds"] if stats else 0


def agreed(seconds: float) -> float:
    """The mean of all ranks."""
    mean = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(mean)
    return float(mean) / WORLD


class Work:
    """Steps of training, each of a few milliseconds."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(100, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 16))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x, self.y = torch.randn(512, 100), torch.arange(512) % 16

    def train(self, seconds: float) -> None:
        """Trains for this many seconds."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()


if __name__ == "__main__":
    is_parent(in_rank)
