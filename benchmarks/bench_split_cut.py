"""Cutting a batch over ranks beside drawing it, in CPU time of one thread. Aim: at most 3 times the sampling's.

    python benchmarks/bench_split_cut.py

A batch of 1024 seeds, fanouts (15, 10, 5), of a graph with planted communities and of R-MAT graphs. Owners are random,
so that most edges cross. The time of cutting is that of everything that SplitSampler does after the whole batch is
drawn.
"""

from __future__ import annotations

import time

import torch
from common import compare, data_of, judged, parser, report, save, say_aims
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from torch_gnnscale import NeighborSampler, ops
from torch_gnnscale.datasets import planted
from torch_gnnscale.split.split_sampler import SplitSampler

FANOUTS, BATCH, PARTS, AIM = [15, 10, 5], 1024, (2, 4, 8), 3.0


def measure(name: str, data: Data, rounds: int) -> dict:
    """Sampling and cuts over some numbers of ranks on one graph."""
    num_nodes = data.num_nodes
    generator = torch.Generator().manual_seed(1)
    connected = data.edge_index[1].unique()
    seeds = [connected[torch.randperm(len(connected), generator=generator)[:BATCH]] for _ in range(rounds + 2)]
    sampler = NeighborSampler(data, FANOUTS)

    def draw(round_: int):
        return sampler.sample_from_nodes(NodeSamplerInput(None, seeds[round_]), round_)

    whole = [draw(round_) for round_ in range(-2, rounds)]  # whole[-2:], by negative numbers, are the warm-up's
    whole = whole[2:] + whole[:2]
    runs = {"sampling": draw}
    for parts in PARTS:
        owners = torch.randint(parts, (num_nodes,), generator=generator, dtype=torch.int32)
        cutters = [SplitSampler(sampler, owners, parts, part) for part in range(parts)]
        of_parts = [cutter._cut(whole[0], 0) for cutter in cutters]
        assert sum(len(of.node) for of in of_parts) == len(whole[0].node), "each node is on one rank"
        assert sum(len(of.row) for of in of_parts) == len(whole[0].row), "each edge is on one rank"
        runs[f"cut over {parts}"] = lambda round_, cutters=cutters: cutters[round_ % len(cutters)]._cut(
            whole[round_], round_
        )
    times = compare(runs, rounds, again=True, clock=time.process_time)
    report(f"{name}: {len(whole[0].node):,} nodes, {len(whole[0].row):,} edges per batch", times, "sampling")
    worst = max(times[f"cut over {parts}"]["median_ms"] for parts in PARTS) / times["sampling"]["median_ms"]
    aims = {"cut over sampling": judged(worst, most=AIM)}
    say_aims(aims)
    return {"graph": name, "nodes": len(whole[0].node), "edges": len(whole[0].row), "aims": aims, **times}


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    ops.limit_threads(1)
    results = [measure("planted 100,000 x 20", planted(100_000, 20, 16, 8), args.rounds)]
    results += [measure(name, data_of(name, 1), args.rounds) for name in args.graphs if name != "2.4M-124M"]
    if not args.no_save:
        save("split_cut", results)


if __name__ == "__main__":
    main()
