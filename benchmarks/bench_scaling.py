"""How sampling, loading, building and training scale over 1, 2, 4, ... cores of a machine, and how its memory does.

    python benchmarks/bench_scaling.py

For each number of cores, a process that may run only on these cores uses as many threads. It measures: COO to CSC;
batches of 1024 x (15, 10, 5), sampled one after another by all threads, and as many at a time as there are threads, by
one thread each; the loader with 128 features per node; epochs of ``gnnscale train``; and the limits: a copy, and rows
of 64 and of 512 bytes gathered at random, which are the memory accesses of sampling and loading. What grows less than
its limit is held up by something other than memory. All processes must draw the same samples.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import GRAPHS, on_threads, parser, save
from torch_geometric.data import Data

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader, ops
from torch_gnnscale.topology import rmat

BATCH, FANOUTS, FEATURES = 1024, [15, 10, 5], 128
LIMITS = {"copy": "GB/s", "random rows of 64 bytes": "GB/s", "random rows of 512 bytes": "GB/s"}
WORK = {
    "COO to CSC": "edges/s",
    "sampling, all threads in a batch": "batches/s",
    "sampling, a batch for each thread": "batches/s",
    "loader": "batches/s",
    "gnnscale train": "epochs/s",
}


def rate(run: Callable[[], Any], amount: float, rounds: int) -> float:
    """How much is done per second: the median of the rounds after one that does not count."""
    seconds = []
    for _ in range(rounds + 1):
        since = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - since)
    return amount / median(seconds[1:])


def trained(epochs: int) -> float:
    """Epochs per second of ``gnnscale train``, on the cores of this process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch_gnnscale", "train", "--epochs", str(epochs), "--out", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"gnnscale train: exit status {done.returncode}: {done.stderr[-1000:]}")
        history = json.loads(Path(folder, "summary.json").read_text())["history"]
    return 1 / median(entry["seconds"] for entry in history)


def bandwidths(megabytes: int, rounds: int) -> dict[str, float]:
    """The memory bandwidths that the threads of this process reach."""
    table = torch.ones(megabytes << 18)
    target, found = torch.empty_like(table), {}
    found["copy"] = rate(lambda: target.copy_(table), 2 * table.nbytes / 1e9, rounds)
    for size in (64, 512):
        rows = table.view(-1, size // 4)
        index = torch.randint(len(rows), (len(rows) // 4,))
        found[f"random rows of {size} bytes"] = rate(
            lambda rows=rows, index=index: ops.gather_rows(rows, index), len(index) * size / 1e9, rounds
        )
    return found


def built(edges: Path, num_nodes: int, rounds: int) -> tuple[CSC, float]:
    """(The graph, how many of its edges were built per second)."""
    edge_index = torch.from_numpy(np.load(edges))
    speed = rate(lambda: CSC.from_edge_index(edge_index, num_nodes), edge_index.size(1), rounds)
    return CSC.from_edge_index(edge_index, num_nodes), speed


def measure(edges: Path, num_nodes: int, megabytes: int, epochs: int, rounds: int) -> dict[str, Any]:
    """Rates on the threads of this process, and a checksum of all its samples."""
    threads, found = torch.get_num_threads(), bandwidths(megabytes, rounds)
    csc, found["COO to CSC"] = built(edges, num_nodes, min(rounds, 2))
    graph, count = csc.relations(), 8 * threads
    seeds = list(torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))[: BATCH * count].split(BATCH))

    def draw(number: int, each: int) -> ops.Sample:
        return ops.sample_neighbors(graph, [seeds[number % len(seeds)]], FANOUTS, number, threads=each)

    found["sampling, all threads in a batch"] = rate(
        lambda: deque((draw(number, threads) for number in range(count)), maxlen=0), count, rounds
    )
    with ThreadPoolExecutor(threads) as pool:
        found["sampling, a batch for each thread"] = rate(
            lambda: deque(pool.map(lambda number: draw(number, 1), range(count)), maxlen=0), count, rounds
        )
    store = FeatureStore.from_data(Data(x=torch.ones(num_nodes, FEATURES), num_nodes=num_nodes))
    loader = NeighborLoader(
        (store, GraphStore.from_csc(csc)), FANOUTS, torch.cat(seeds), batch_size=BATCH, shuffle=True, seed=1
    )
    found["loader"] = rate(lambda: deque(loader, maxlen=0), len(loader), rounds)
    if epochs:
        found["gnnscale train"] = trained(epochs)
    first = [draw(number, threads) for number in range(4)]
    return {"rates": found, "samples": sum(int(part[0].sum()) for s in first for part in (s.node, s.edge_id))}


def on_cores(cores: list[int], arguments: list[str]) -> dict[str, Any]:
    """What :func:`measure` finds in a process that may run only on these cores."""
    own = os.sched_getaffinity(0)
    environment = {**os.environ, "OMP_NUM_THREADS": str(len(cores)), "MKL_NUM_THREADS": str(len(cores))}
    os.sched_setaffinity(0, cores)  # the process inherits it
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", *arguments], stdout=subprocess.PIPE, text=True, env=environment
        )
    finally:
        os.sched_setaffinity(0, own)
    if done.returncode != 0:
        raise RuntimeError(f"on {len(cores)} cores: exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def say(name: str, unit: str, rates: dict[int, float]) -> None:
    if not rates:
        return
    growth = "".join(f"  {count}: {rate:,.4g} ({rate / rates[1]:.2f} x)" for count, rate in rates.items())
    print(f"  {name:34s} {unit:9s}{growth}")


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        edges, *numbers = sys.argv[2:]
        print(json.dumps(measure(Path(edges), *map(int, numbers))))
        return
    options = parser((__doc__ or "").splitlines()[0], graphs=False)
    options.set_defaults(rounds=3)
    options.add_argument("--graph", choices=GRAPHS, default="2.4M-124M")
    options.add_argument("--table", type=int, default=2048, help="MiB that are copied, and gathered from")
    options.add_argument("--epochs", type=int, default=2, help="of gnnscale train; 0 leaves it out")
    options.add_argument("--folder", default=".", help="where the edges are written for a while")
    args = options.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    counts = [1 << power for power in range(len(cores).bit_length())]
    num_nodes, num_edges = GRAPHS[args.graph]
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    results: dict[str, Any] = {"gpu": gpu, "arguments": vars(args), "rates": {}}
    samples: set[int] = set()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        edges = Path(folder, "edges.npy")
        np.save(edges, rmat(num_nodes, num_edges, seed=1).numpy())
        for count in counts:
            since = time.perf_counter()
            numbers = map(str, (num_nodes, args.table, args.epochs, args.rounds))
            found = on_cores(cores[:count], [str(edges), *numbers])
            samples.add(found["samples"])
            if len(samples) > 1:
                raise RuntimeError(f"on {count} cores: the samples differ from those on fewer")
            results["rates"][count] = found["rates"]
            print(f"{on_threads(count)}: {time.perf_counter() - since:.1f} s", flush=True)
            if not args.no_save:
                save("scaling", results)
    for title, names in (("Limits", LIMITS), ("Work", WORK)):
        print(f"\n{title}, by cores, and how many times that on one")
        for name, unit in names.items():
            say(name, unit, {count: rates[name] for count, rates in results["rates"].items() if name in rates})


if __name__ == "__main__":
    main()
