"""Sampling by each instruction set: the widest that the processor has, AVX2, and none.

    python benchmarks/bench_simd.py

Batches of 1024 seeds that have neighbors, fanouts (15, 10, 5), on the R-MAT graphs of the other benchmarks: uniform
without and with replacement, and by weight. The instruction set is chosen once per process (GNNSCALE_SIMD), so each has
a process of its own; all take turns in rounds of the same seeds. Their samples are equal.
"""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from functools import partial

import torch
from common import compare, graph, on_threads, parser, report, save
from workers import itself, serve

from torch_gnnscale import ops

FANOUTS, BATCH, IN_A_ROW = [15, 10, 5], 1024, 8
SETS = {"widest": "", "AVX2": "avx2", "none": "0"}
"""The instruction sets, and what GNNSCALE_SIMD is for each."""
MODES = ("uniform", "uniform, with replacement", "weighted")


def work(name: str, rounds: int) -> None:
    """What a process runs: batches of a mode when it is told to."""
    csc, _ = graph(name)
    generator = torch.Generator().manual_seed(1)
    weight = ops.weight_sums(csc.colptr, torch.rand(csc.num_edges, generator=generator) + 0.01)
    connected = (csc.colptr.diff() > 0).nonzero().view(-1)
    seeds = [
        connected[torch.randint(len(connected), (BATCH,), generator=generator)].unique()
        for _ in range(rounds * IN_A_ROW)
    ]
    uniform, weighted = (
        ops.relations([csc.colptr], [csc.row], edge_id=[csc.edge_id], weight=given) for given in (None, [weight])
    )

    def draw(mode: int, batch: int, threads: int) -> ops.Sample:
        stored = weighted if MODES[mode] == "weighted" else uniform
        replace = MODES[mode].endswith("replacement")
        return ops.sample_neighbors(
            stored, [seeds[batch]], FANOUTS, batch, replace=replace, with_col=False, threads=threads
        )

    edges, digest = [], hashlib.sha256()
    for mode in range(len(MODES)):
        sample = draw(mode, 0, 1)
        edges.append(len(sample.edge_id[0]))
        digest.update(b"".join(part[0].numpy().tobytes() for part in (sample.node, sample.colptr, sample.edge_id)))

    def run(mode: int, threads: int, round_: int) -> None:
        deque((draw(mode, round_ * IN_A_ROW + i, threads) for i in range(IN_A_ROW)), maxlen=0)

    serve({"edges": edges, "digest": digest.hexdigest()}, run)


def measure(name: str, rounds: int) -> dict:
    """All instruction sets on one graph: each mode's times."""
    workers = {title: itself(__file__, name, rounds, GNNSCALE_SIMD=given) for title, given in SETS.items()}
    about = workers["widest"].about
    assert all(worker.about == about for worker in workers.values()), "all instruction sets give the same batches"
    results: dict = {}
    for mode, mode_name in enumerate(MODES):
        results[mode_name] = {"edges_per_batch": about["edges"][mode]}
        for threads in (1, 2):
            runs = {
                f"{title}, {on_threads(threads)}": partial(worker.ask, mode, threads)
                for title, worker in workers.items()
            }
            times = compare(runs, rounds, IN_A_ROW)
            report(f"R-MAT {name}, {mode_name}", times, f"none, {on_threads(threads)}")
            results[mode_name] |= times
    for worker in workers.values():
        worker.close()
    return results


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        return work(sys.argv[2], int(sys.argv[3]))
    args = parser(__doc__.splitlines()[0]).parse_args()
    results = {name: measure(name, args.rounds) for name in args.graphs}
    if not args.no_save:
        save("simd", results)


if __name__ == "__main__":
    main()
