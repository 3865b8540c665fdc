"""Random arguments of samples of neighbors, in every mode."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from torch_gnnscale import ops

INDEX = (torch.int32, torch.int64)


def times_of(colptr: torch.Tensor, generator: torch.Generator, limit: int = 20) -> torch.Tensor:
    """Random times, ascending in each column."""
    column = torch.arange(len(colptr) - 1).repeat_interleave(colptr.diff())
    drawn = torch.randint(limit, (len(column),), generator=generator)
    return drawn[torch.argsort(column * limit + drawn)]


def starts_of(count: int, generator: torch.Generator) -> torch.Tensor:
    """Random starts of windows, the least time and times after the end among them."""
    starts = torch.randint(-2, 22, (count,), generator=generator)
    return torch.where(starts < 0, torch.iinfo(torch.int64).min, starts)


def pairs_of(count: int, num_src: int, num_dst: int, generator: torch.Generator) -> torch.Tensor:
    """Random pairs, sorted by destination, then source."""
    pairs = torch.stack([torch.randint(size, (count,), generator=generator) for size in (num_src, num_dst)])
    return pairs[:, torch.argsort(pairs[1] * num_src + pairs[0])]


def random_case(number: int, counts: Sequence[int] = (1, 1, 2, 4, 5)) -> tuple[tuple, dict]:
    """Arguments of every kind, with types without seeds or edges, hubs, repeats and empty hops among them.

    ``counts``: how many relations there may be.
    """
    rng, generator = random.Random(number), torch.Generator().manual_seed(number)
    types, relations = rng.choice([1, 1, 2, 3]), rng.choice(counts)
    sizes = [rng.randint(1, 25) for _ in range(types)]
    src_type = [rng.randrange(types) for _ in range(relations)]
    dst_type = [rng.randrange(types) for _ in range(relations)]
    timed = rng.random() < 0.4
    options: dict = {name: [] for name in ("edge_id", "weight", "time", "exclude")}
    colptrs, rows = [], []
    for src, dst in zip(src_type, dst_type, strict=True):
        degree = torch.randint(rng.choice([1, 3, 8, 40]), (sizes[dst],), generator=generator)
        colptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
        edges = int(colptr[-1])
        colptrs.append(colptr)
        rows.append(torch.randint(sizes[src], (edges,), generator=generator, dtype=rng.choice(INDEX)))
        edge_id = torch.randperm(edges, generator=generator).to(rng.choice(INDEX)) if rng.random() < 0.7 else None
        weight = torch.rand(edges, generator=generator) ** 4 + 1e-6
        options["edge_id"].append(edge_id)
        options["weight"].append(ops.weight_sums(colptr, weight) if rng.random() < 0.4 else None)
        options["time"].append(times_of(colptr, generator) if timed and rng.random() < 0.8 else None)
        options["exclude"].append(pairs_of(6, sizes[src], sizes[dst], generator) if rng.random() < 0.4 else None)
    seeds = [
        torch.randint(size, (rng.choice([0, 1, 5, 9]),), generator=generator, dtype=rng.choice(INDEX)) for size in sizes
    ]
    hops = rng.randint(0, 3)
    fanouts = [[rng.choice([-1, 0, 1, 2, 3, 5, 20]) for _ in range(hops)] for _ in range(relations)]
    subgraph = rng.choice(["directional", "directional", "bidirectional", "induced"])
    ends = list(zip(src_type, dst_type, strict=True))
    if rng.random() < 0.5:
        options["reverse"] = [
            rng.choice([-1] + [r for r, pair in enumerate(ends) if pair == (dst, src)]) for src, dst in ends
        ]
    options |= {
        "seed_time": [torch.randint(22, (len(s),), generator=generator) for s in seeds] if timed else None,
        "seed_start_time": None,
        "src_type": src_type,
        "dst_type": dst_type,
        "sizes": sizes,
        "subgraph": subgraph,
        "disjoint": timed or rng.random() < 0.3,
        "layers": subgraph == "directional" and rng.random() < 0.3,
    }
    options |= {name: rng.random() < 0.5 for name in ("replace", "last", "with_edge_id", "with_col")}
    if timed and rng.random() < 0.5:
        options["seed_start_time"] = [None if rng.random() < 0.2 else starts_of(len(s), generator) for s in seeds]
    of_graph = ("edge_id", "weight", "time", "src_type", "dst_type", "sizes", "reverse")
    graph = ops.relations(colptrs, rows, **{name: options.pop(name) for name in of_graph if name in options})
    return (graph, seeds, fanouts, rng.getrandbits(62)), options


def turned(values):
    """The entries of a batch in another order."""
    return None if values is None else [None if entry is None else entry.flip(-1) for entry in values]
