"""How well scores predict which features training reads, and what scoring and renumbering cost.

    python benchmarks/bench_hotness.py

Redraws Data Tiering's figure 7: the cumulative share of an epoch's accesses over the nodes by falling score, with 1 %
of the nodes as seeds, on the embedded graph and, where GNNSCALE_DATA (or ../shared/data) has it, on the web crawl
cnr-2000.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from common import GRAPHS, arguments, graph, save
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import CSC, NeighborLoader, ops
from torch_gnnscale.datasets import load
from torch_gnnscale.feature import hotness
from torch_gnnscale.topology.reorder import by_score, reorder_csc

FANOUTS, BATCH, SHARES = [15, 10, 5], 64, (0.05, 0.10, 0.25)
FIGURE = Path(__file__).parents[1] / "docs" / "hotness.png"
MEASURED, PRESAMPLED = 3, 1000  # epochs: the first of which accesses are measured, the one that is drawn beforehand


def web_graph() -> tuple[Tensor, int] | None:
    """The edges of cnr-2000 and how many nodes it has, if it is there."""
    folder = Path(os.environ.get("GNNSCALE_DATA", Path(__file__).parents[2] / "shared" / "data")) / "cnr2000"
    files = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if not files:
        return None
    with np.load(files[0]) as arrays:
        return torch.from_numpy(arrays["edge_index"]).long(), int(arrays["num_nodes"])


def cumulative(accesses: Tensor, score: Tensor) -> Tensor:
    """The share of accesses that the k hottest nodes have, for k = 0 .. n."""
    shares = accesses[by_score(score).old].double().cumsum(0) / accesses.sum()
    return torch.cat([torch.zeros(1, dtype=torch.float64), shares])


def predict(edge_index: Tensor, num_nodes: int) -> dict[str, Tensor]:
    """Each score's cumulative access frequency over an epoch."""
    seeds = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(1))[: num_nodes // 100]
    data = Data(edge_index=edge_index, num_nodes=num_nodes)
    csc = CSC.from_data(data)
    loader = NeighborLoader(data, FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=1)
    accesses = hotness.accesses(loader, [MEASURED])
    scores = {
        "out-degree": hotness.out_degree(csc),
        "reverse PageRank": hotness.reverse_pagerank(csc),
        "weighted reverse PageRank": hotness.reverse_pagerank(csc, seeds),
        "presampled epoch": hotness.accesses(loader, [PRESAMPLED]),
        "exact": accesses,
    }
    return {name: cumulative(accesses, score) for name, score in scores.items()}


def plot(curves: dict[str, dict[str, Tensor]], path: Path) -> None:
    """One panel a graph."""
    figure = Figure(figsize=(5 * len(curves), 3.6), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
        for name, line in lines.items():
            points = torch.linspace(0, len(line) - 1, 300).long()
            axes.plot(100 * points / (len(line) - 1), 100 * line[points], label=name)
        axes.set(title=title, xlabel="nodes by falling score, %", ylabel="accesses, %", xlim=(0, 100), ylim=(0, 100))
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)


def seconds(run: Callable[[], object], rounds: int) -> float:
    """The median over some rounds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times)


def cost(name: str, rounds: int) -> dict[str, float]:
    """Seconds to score and renumber an R-MAT graph, and what scipy takes to renumber it."""
    import scipy.sparse

    csc, _ = graph(name)
    order = by_score(hotness.reverse_pagerank(csc, torch.arange(10_000)))
    moved = reorder_csc(csc, order)
    ones = np.ones(csc.num_edges, dtype=np.int8)
    matrix = scipy.sparse.csr_matrix((ones, csc.row.numpy(), csc.colptr.numpy()), (csc.num_dst, csc.num_src))
    old, new = order.old.numpy(), order.new.numpy()

    def by_scipy() -> scipy.sparse.csr_matrix:
        rows = matrix[old]
        rows.indices = new[rows.indices]
        return rows

    theirs = by_scipy()
    assert np.array_equal(theirs.indptr, moved.colptr)
    assert np.array_equal(theirs.indices, moved.row)
    del theirs, moved
    return {
        "weighted reverse PageRank": seconds(lambda: hotness.reverse_pagerank(csc, torch.arange(10_000)), rounds),
        "order by score": seconds(lambda: by_score(order.new), rounds),
        "renumber": seconds(lambda: reorder_csc(csc, order), rounds),
        "renumber, scipy, without edge ids": seconds(by_scipy, rounds),
    }


def main() -> None:
    args = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(2)
    task = load("planted")
    inputs = {"embedded graph": (task.data.edge_index, task.num_nodes)}
    if (web := web_graph()) is not None:
        inputs["cnr-2000"] = web
    curves = {name: predict(*entry) for name, entry in inputs.items()}
    results: dict = {"hit_rates": {}, "seconds": {}}
    for name, lines in curves.items():
        rates = {
            score: {f"{share:.0%}": float(line[int(share * (len(line) - 1))]) for share in SHARES}
            for score, line in lines.items()
        }
        results["hit_rates"][name] = rates
        print(f"\n{name}, {inputs[name][1]:,} nodes: share of accesses at {SHARES}")
        for score, found in rates.items():
            print(f"  {score:28s} " + "  ".join(f"{rate:.3f}" for rate in found.values()))
    for name in args.graphs:
        results["seconds"][name] = cost(name, min(args.rounds, 5))
        ops.pool_trim()
        print(f"\nR-MAT {name} ({GRAPHS[name][1]:,} edges), seconds")
        for step, taken in results["seconds"][name].items():
            print(f"  {step:36s} {taken:.2f}")
    if not args.no_save:
        save("hotness", results)
        plot(curves, FIGURE)


if __name__ == "__main__":
    main()
