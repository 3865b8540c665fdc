"""Sampling a batch of 1024 x (15, 10, 5), and LABOR's of 1024 x (10, 10): ours against DGL's, by time per edge.

    python benchmarks/bench_dgl.py --dgl-python PATH/TO/python
    python benchmarks/bench_dgl.py --dgl-python PATH/TO/python --method labor

DGL 2.1 needs torch 2.2 and this package torch 2.11, so DGL's samplers run in processes of their own, one for each
number of threads, run by the given Python. All take turns in rounds of the same seeds on the same graph. DGL expands
every node of a batch in every hop (the papers' rule), this package only new ones by default (PyG's rule): both rules
are measured for neighbors, DGL's for LABOR, and the figure that counts is the time per edge. LABOR reads all edges of
its frontiers, in this package on one thread per batch. The graphs are R-MAT's and, for LABOR, the 24 largest schools of
fb100, if they are there. All are given as CSC, where an edge's id is its position.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from bench_layerwise import schools
from common import as_csc, graph, on_threads, parser, save
from markdown import SCHOOLS
from workers import Worker

from torch_gnnscale import CSC, ops

BATCH, THREADS = 1024, (1, 2)
FANOUTS = {"neighbor": [15, 10, 5], "labor": [10, 10]}
IN_A_ROW = {"neighbor": 32, "labor": 8}
REFERENCE = {"neighbor": "DGL, fused", "labor": "DGL, LaborSampler"}
Timed = Callable[[int], tuple[float, int]]
Sampling = Callable[[torch.Tensor, int, int], ops.Sample]
"""A sample of (seeds, key, threads)."""


class Peer(Worker):
    """A process that samples with DGL."""

    def __init__(self, python: str, folder: str, threads: int, method: str) -> None:
        script, fanouts = str(Path(__file__).with_name("dgl_sampler.py")), json.dumps(FANOUTS[method])
        super().__init__([python, script, folder, str(threads), fanouts, method])
        assert self.about["threads"] == threads, self.about

    def run(self, candidate: str, round_: int) -> tuple[float, int]:
        """Seconds and edges of a round."""
        answer = self.ask(candidate, round_)
        return answer["seconds"], answer["edges"]


def ours(csc: CSC, method: str) -> dict[str, tuple[Sampling, tuple[int, ...]]]:
    """Samplers of this package by name, and the numbers of threads that they are measured with."""
    stored, fanouts = csc.relations(), FANOUTS[method]
    if method == "labor":

        def labor(scheme: str) -> Sampling:
            prepared = ops.PreparedLayers(stored, fanouts, ops.LayerDrawing("labor", scheme), layers=True)
            return lambda seeds, key, threads: prepared.sample(seeds, key)

        return {f"gnnscale, LABOR, {scheme}": (labor(scheme), (1,)) for scheme in ("poisson", "sequential")}

    def neighbors(seeds: torch.Tensor, key: int, threads: int, layers: bool) -> ops.Sample:
        return ops.sample_neighbors(stored, [seeds], fanouts, key, with_col=False, layers=layers, threads=threads)

    return {
        "gnnscale": (partial(neighbors, layers=False), THREADS),
        "gnnscale, every node in every hop": (partial(neighbors, layers=True), THREADS),
    }


def timed(sample: Sampling, seeds: torch.Tensor, threads: int) -> Timed:
    """Seconds and edges of the batches of a round; seeds are by round and batch."""

    def run(round_: int) -> tuple[float, int]:
        edges, batches = 0, seeds[round_]
        start = time.perf_counter()
        for number, batch in enumerate(batches):
            edges += len(sample(batch, number + len(batches) * round_, threads).edge_id[0])
        return time.perf_counter() - start, edges

    return run


def measure(name: str, csc: CSC, python: str, rounds: int, method: str) -> dict:
    csc = as_csc(csc)
    ops.pool_trim()
    in_a_row = IN_A_ROW[method]
    seeds = torch.stack([torch.randperm(csc.num_dst)[:BATCH] for _ in range(rounds * in_a_row)])
    seeds = seeds.view(rounds, in_a_row, BATCH)
    with tempfile.TemporaryDirectory() as folder:
        for key, value in {"colptr": csc.colptr, "row": csc.row.long(), "seeds": seeds}.items():
            np.save(Path(folder, f"{key}.npy"), value.numpy())
        peers = {threads: Peer(python, folder, threads, method) for threads in THREADS}
    runs: dict[str, Timed] = {}
    candidates = ours(csc, method)
    for threads, peer in peers.items():
        for title, (sample, measured) in candidates.items():
            if threads in measured:
                runs[f"{title}, {on_threads(threads)}"] = timed(sample, seeds, threads)
        for candidate in peer.about["candidates"]:
            runs[f"DGL, {candidate}, {on_threads(threads)}"] = lambda round_, peer=peer, candidate=candidate: peer.run(
                candidate, round_
            )
    found: dict[str, list[tuple[float, int]]] = {title: [] for title in runs}
    for round_ in range(-2, rounds):
        for title, run in runs.items():
            time.sleep(0.02)  # idle threads of the process before have stopped spinning
            answer = run(round_ % rounds)
            if round_ >= 0:
                found[title].append(answer)
    results: dict = {"dgl": {key: peers[THREADS[0]].about[key] for key in ("dgl", "torch")}}
    for peer in peers.values():
        peer.close()
    for title, answers in found.items():
        each = sorted(seconds / edges * 1e9 for seconds, edges in answers)
        results[title] = {
            "median_ns_per_edge": median(each), "low": each[len(each) // 4], "high": each[len(each) * 3 // 4],
            "million_edges_per_s": 1e3 / median(each),
            "edges_per_batch": sum(edges for _, edges in answers) // (in_a_row * rounds),
            "median_ms": median(seconds for seconds, _ in answers) / in_a_row * 1e3,
        }  # fmt: skip
    print(f"\n{name}")
    for title in runs:
        entry = results[title]
        of_dgl = results[f"{REFERENCE[method]}, {title.split(', ')[-1]}"]
        entry["speedup"] = of_dgl["median_ns_per_edge"] / entry["median_ns_per_edge"]
        print(
            f"  {title:46s} {entry['median_ms']:8.2f} ms per batch of {entry['edges_per_batch']:,} edges, "
            f"{entry['million_edges_per_s']:6.1f} million edges/s, {entry['speedup']:5.2f} x {REFERENCE[method]}"
        )
    return results


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--dgl-python", required=True, help="a Python that imports dgl 2.1")
    options.add_argument("--method", choices=FANOUTS, default="neighbor")
    args = options.parse_args()
    results = {}
    if args.method == "labor" and (found := schools()) is not None:
        results[SCHOOLS] = measure("24 schools of fb100", found, args.dgl_python, args.rounds, args.method)
    for name in args.graphs:
        results[name] = measure(f"R-MAT {name}", graph(name)[0], args.dgl_python, args.rounds, args.method)
        ops.pool_trim()
    if not args.no_save:
        save("dgl" if args.method == "neighbor" else "dgl_labor", results)


if __name__ == "__main__":
    main()
