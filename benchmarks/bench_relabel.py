"""Local ids through a map of 4 bytes per node of the graph, or through a table that is sized to the batch.

    python benchmarks/bench_relabel.py

A batch of 1024 seeds that have neighbors, fanouts (15, 10, 5), on R-MAT graphs of growing size. Map or table is decided
once per process, so each runs in a process of its own; both take turns in rounds of the same seeds.
"""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from functools import partial

import torch
from common import compare, on_threads, parser, report, save
from workers import itself, serve

from torch_gnnscale import CSC, ops
from torch_gnnscale.topology import rmat

GRAPHS = ((2_400_000, 124_000_000), (10_000_000, 200_000_000), (30_000_000, 200_000_000), (100_000_000, 200_000_000))
FANOUTS, BATCH, IN_A_ROW = [15, 10, 5], 1024, 8


def work(num_nodes: int, num_edges: int, rounds: int) -> None:
    """What such a process runs: it samples a round of batches when it is told to."""
    csc = CSC.from_edge_index(rmat(num_nodes, num_edges, seed=1), num_nodes)
    ops.pool_trim()
    connected = (csc.colptr.diff() > 0).nonzero().view(-1)
    generator = torch.Generator().manual_seed(1)
    seeds = [
        connected[torch.randint(len(connected), (BATCH,), generator=generator)].unique()
        for _ in range(rounds * IN_A_ROW)
    ]

    stored = csc.relations()

    def draw(batch: int, threads: int) -> ops.Sample:
        return ops.sample_neighbors(stored, [seeds[batch]], FANOUTS, batch, with_col=False, threads=threads)

    samples = [draw(batch, 1) for batch in range(IN_A_ROW)]
    digest = hashlib.sha256(b"".join(part[0].numpy().tobytes() for sample in samples for part in sample[:4]))
    edges = sum(len(sample.edge_id[0]) for sample in samples) // IN_A_ROW
    del samples

    def run(threads: int, round_: int) -> None:
        deque((draw(round_ * IN_A_ROW + i, threads) for i in range(IN_A_ROW)), maxlen=0)

    serve({"edges": edges, "digest": digest.hexdigest()}, run)


def measure(num_nodes: int, num_edges: int, rounds: int) -> dict:
    """Both ways on one graph."""
    ways = {way: itself(__file__, num_nodes, num_edges, rounds, GNNSCALE_RELABEL=way) for way in ("map", "table")}
    assert ways["map"].about == ways["table"].about, "both ways give the same batches"
    results: dict = {"nodes": num_nodes, "edges": num_edges, "edges_per_batch": ways["map"].about["edges"]}
    for threads in (1, 2):
        runs = {f"{name}, {on_threads(threads)}": partial(way.ask, threads) for name, way in ways.items()}
        times = compare(runs, rounds, IN_A_ROW)
        report(f"{num_nodes:,} nodes, {num_edges:,} edges", times, f"map, {on_threads(threads)}")
        results |= times
    for way in ways.values():
        way.close()
    return results


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        return work(*map(int, sys.argv[2:]))
    args = parser(__doc__.splitlines()[0], graphs=False).parse_args()
    results = [measure(nodes, edges, args.rounds) for nodes, edges in GRAPHS]
    if not args.no_save:
        save("relabel", results)


if __name__ == "__main__":
    main()
