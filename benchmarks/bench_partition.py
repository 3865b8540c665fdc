"""Partitions of graphs into 8 parts: cut, balances, seconds; and the memory that coarse partitioning takes.

    python benchmarks/bench_partition.py
    python benchmarks/bench_partition.py --only-memory    # the other figures in results/partition.json stay

METIS, METIS over clusters, and random parts of the planted graph and, where GNNSCALE_DATA (or ../shared/data) has them,
of cnr-2000, musae_facebook and the school Oklahoma97 of Facebook100, whose ids are shuffled before. Memory: a mapped
R-MAT graph in a process of its own, the growth of its peak (with METIS's process) relative to the bytes of the graph's
files; and the same for its memory without pages of files, which is read 50 times per second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import numpy as np
import torch
from common import RESULTS, graph, judged, parser, save, say_aims
from torch import Tensor

from torch_gnnscale import CSC, GraphStore, machine, ops
from torch_gnnscale.datasets import load
from torch_gnnscale.partition.methods import assign, report
from torch_gnnscale.topology.graph_store import open_relation

PARTS, METHODS = 8, ("metis", "coarse", "random")
BALANCES = {"all three": ("nodes", "edges", "train"), "without in-edges": ("nodes", "train")}
DATA = Path(os.environ.get("GNNSCALE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def graphs() -> Iterator[tuple[str, CSC, Tensor]]:
    """Name, edges and training nodes of each graph, with shuffled ids."""
    names = {"planted": "planted"}
    if DATA.is_dir():
        names |= {"musae_facebook": "musae_facebook", "Oklahoma97": "fb100/Oklahoma97"}
    for name, path in names.items():
        data = load(path, DATA).data
        yield name, *shuffled(data.edge_index, data.num_nodes, data.train_mask.nonzero().view(-1))
    for file in sorted((DATA / "cnr2000").glob("*.npz")):
        with np.load(file) as arrays:
            edge_index, num_nodes = torch.from_numpy(arrays["edge_index"]).long(), int(arrays["num_nodes"])
        train = ops.permutation(num_nodes, 1)[: num_nodes // 10]
        yield "cnr2000", *shuffled(edge_index, num_nodes, train)


def shuffled(edge_index: Tensor, num_nodes: int, train: Tensor) -> tuple[CSC, Tensor]:
    """Edges and training nodes under new ids, drawn at random."""
    new = ops.permutation(num_nodes, 2)
    return CSC.from_edge_index(new[edge_index.long()], num_nodes), new[train]


def measured(csc: CSC, train: Tensor, method: str, balance: tuple[str, ...], seeds: int) -> dict[str, float]:
    """Medians over seeds: the cut, the largest max / mean of each thing balanced, the halo over the nodes, seconds."""
    runs = []
    for seed in range(seeds):
        given = {"method": method, "train": {None: train}, "balance": balance, "seed": seed}
        found = assign({None: csc}, {None: csc.num_src}, PARTS, **given)
        counted = report({None: csc}, found.owner, PARTS, {None: train})
        values = counted.balance()
        halo = sum(counted.halo) / csc.num_src
        runs.append({"cut": counted.cut, **values, "halo per node": halo, "seconds": found.seconds})
    medians = {key: median(run[key] for run in runs) for key in runs[0]}
    return {**medians, "largest balance": max(run[name] for run in runs for name in balance)}


def not_of_files() -> int:
    """Bytes of resident memory of this process and its children, without pages of files. Shared memory counts once for
    each process that uses it."""
    own, total = os.getpid(), 0
    children = Path(f"/proc/{own}/task").glob("*/children")
    for process in [own, *(int(child) for file in children for child in file.read_text().split())]:
        with suppress(OSError, KeyError):  # it has ended
            lines = dict(line.split(":") for line in Path(f"/proc/{process}/status").read_text().splitlines())
            total += sum(int(lines[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))
    return total


def one(path: str) -> None:
    """Runs in a child: partitions a mapped graph and prints its memory, cut and seconds."""
    csc = open_relation(path, None)
    before, ended = machine.resident_memory(), threading.Event()
    most = not_of_files_before = not_of_files()

    def look() -> None:
        nonlocal most
        while not ended.wait(0.02):
            most = max(most, not_of_files())

    looks = threading.Thread(target=look)
    looks.start()
    found = assign({None: csc}, {None: csc.num_src}, PARTS, method="coarse", balance=("nodes", "edges"))
    ended.set()
    looks.join()
    growth = {"bytes": found.peak_bytes - before, "bytes of no file": most - not_of_files_before}
    counted = report({None: csc}, found.owner, PARTS)
    print(json.dumps({**growth, "cut": counted.cut, **counted.balance(), "seconds": found.seconds}))


def memory(name: str) -> dict[str, float]:
    """What coarse partitioning of a mapped R-MAT graph takes."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        path = Path(folder, "graph")
        GraphStore.from_csc(graph(name)[0]).save(path)
        files = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        command = [sys.executable, __file__, "--one", str(path)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    each = {f"{kind} per byte of files": found[kind] / files for kind in ("bytes", "bytes of no file")}
    return {**found, "files": files, **each}


def qualities(rounds: int) -> tuple[dict, dict]:
    """What :func:`measured` gives, by graph, balance and method; and the aims."""
    quality: dict = {}
    aims: dict = {}
    for name, csc, train in graphs():
        quality[name] = {}
        for title, balance in BALANCES.items():
            print(f"\n{name}, {PARTS} parts, balanced: {', '.join(balance)}")
            rows = {m: measured(csc, train, m, balance, max(1, rounds // 5)) for m in METHODS}
            quality[name][title] = rows
            for method, row in rows.items():
                print(f"  {method:8s}" + "".join(f"  {key} {value:.4g}" for key, value in row.items()))
            if title == "all three":
                ratio = rows["coarse"]["cut"] / rows["metis"]["cut"]
                aims[f"{name}: coarse's cut over METIS's"] = judged(ratio, most=1.5)
        if name == "cnr2000":
            best = quality[name]["all three"]["metis"]
            aims["cnr2000: METIS's cut"] = judged(best["cut"], most=0.12)
            aims["cnr2000: METIS's largest max / mean"] = judged(best["largest balance"], most=1.06)
    return quality, aims


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
        return
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only-memory", action="store_true", help="the results keep their other figures")
    args = options.parse_args()
    if args.only_memory:
        results = json.loads((RESULTS / "partition.json").read_text())["results"]
    else:
        quality, of_quality = qualities(args.rounds)
        results = {"quality": quality, "memory": {}, "aims": of_quality}
    aims: dict = {}
    for name in args.graphs:
        found = results["memory"][name] = memory(name)
        print(f"\ncoarse, R-MAT {name}" + "".join(f"  {key} {value:.4g}" for key, value in found.items()))
        if name == "2.4M-124M":  # in smaller graphs the clusters' graph and METIS itself weigh more
            aims[f"{name}: peak over files"] = judged(found["bytes per byte of files"], most=2.0)
    results["aims"] |= aims
    print()
    say_aims(aims if args.only_memory else results["aims"])
    if not args.no_save:
        save("partition", results)


if __name__ == "__main__":
    main()
