"""Sampling a batch of 1024 x (15, 10, 5): the fused operator against DGL's samplers, by time an edge.

    python benchmarks/bench_dgl.py --dgl-python PATH/TO/python

DGL 2.1 needs torch 2.2 and this package torch 2.11, so DGL's samplers run in processes of their own, one for each
number of threads, by the Python given; all take turns in rounds of the same seeds on the same graph. DGL expands every
node of a batch in every hop (the papers' rule), this package only new ones by default (PyG's rule): both rules are
measured, and the figure that counts is the time an edge. Both graphs are given as CSC, where an edge's id is its
position.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from common import as_csc, graph, on_threads, parser, save

from torch_gnnscale import CSC, ops

FANOUTS, BATCH, IN_A_ROW, THREADS = [15, 10, 5], 1024, 32, (1, 2)
Timed = Callable[[int], tuple[float, int]]


class Peer:
    """A process that samples with DGL."""

    def __init__(self, python: str, folder: str, threads: int) -> None:
        command = [python, str(Path(__file__).with_name("dgl_sampler.py")), folder, str(threads), json.dumps(FANOUTS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self.answer()
        assert self.about["threads"] == threads, self.about

    def answer(self) -> dict:
        """The next line of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"DGL's process ended with {self.process.wait()}")
        return json.loads(line)

    def run(self, candidate: str, round_: int) -> tuple[float, int]:
        """Seconds and edges of a round."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{candidate} {round_}\n")
        self.process.stdin.flush()
        answer = self.answer()
        return answer["seconds"], answer["edges"]

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def ours(csc: CSC, seeds: torch.Tensor, threads: int, layers: bool) -> Timed:
    stored = csc.relations()

    def run(round_: int) -> tuple[float, int]:
        edges = 0
        start = time.perf_counter()
        for key, batch in enumerate(seeds[round_]):
            number = key + IN_A_ROW * round_
            sample = ops.sample_neighbors(
                stored, [batch], FANOUTS, number, with_col=False, layers=layers, threads=threads
            )
            edges += len(sample.edge_id[0])
        return time.perf_counter() - start, edges

    return run


def measure(name: str, python: str, rounds: int) -> dict:
    csc, edge_index = graph(name)
    del edge_index
    csc = as_csc(csc)
    ops.pool_trim()
    seeds = torch.stack([torch.randperm(csc.num_dst)[:BATCH] for _ in range(rounds * IN_A_ROW)])
    seeds = seeds.view(rounds, IN_A_ROW, BATCH)
    with tempfile.TemporaryDirectory() as folder:
        for key, value in {"colptr": csc.colptr, "row": csc.row.long(), "seeds": seeds}.items():
            np.save(Path(folder, f"{key}.npy"), value.numpy())
        peers = {threads: Peer(python, folder, threads) for threads in THREADS}
    runs: dict[str, Timed] = {}
    for threads, peer in peers.items():
        runs[f"gnnscale, {on_threads(threads)}"] = ours(csc, seeds, threads, layers=False)
        runs[f"gnnscale, every node in every hop, {on_threads(threads)}"] = ours(csc, seeds, threads, layers=True)
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
            "edges_per_batch": sum(edges for _, edges in answers) // (IN_A_ROW * rounds),
            "median_ms": median(seconds for seconds, _ in answers) / IN_A_ROW * 1e3,
        }  # fmt: skip
    print(f"\nR-MAT {name}")
    for title in runs:
        entry = results[title]
        fused = results[f"DGL, fused, {title.split(', ')[-1]}"]
        entry["speedup"] = fused["median_ns_per_edge"] / entry["median_ns_per_edge"]
        print(
            f"  {title:46s} {entry['median_ms']:8.2f} ms per batch of {entry['edges_per_batch']:,} edges, "
            f"{entry['million_edges_per_s']:6.1f} million edges/s, {entry['speedup']:5.2f} x DGL's fused"
        )
    return results


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--dgl-python", required=True, help="a Python that imports dgl 2.1")
    args = options.parse_args()
    results = {}
    for name in args.graphs:
        results[name] = measure(name, args.dgl_python, args.rounds)
        ops.pool_trim()
    if not args.no_save:
        save("dgl", results)


if __name__ == "__main__":
    main()
