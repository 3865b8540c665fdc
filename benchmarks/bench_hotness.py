"""How well scores predict which features training reads, and what scoring and renumbering cost.

    python benchmarks/bench_hotness.py
    python benchmarks/bench_hotness.py --typed      # typed_hotness.py: these figures of a graph with types

Redraws Data Tiering's figure 7: the cumulative share of an epoch's accesses over the nodes by falling score, with 1 %
of the nodes as seeds, on the embedded graph and, where GNNSCALE_DATA (or ../shared/data) has it, on the web crawl
cnr-2000. There also its figure 9, the same for deeper samples, and the traffic of figure 10: what an epoch reads from
the slow tier, over the share of the features that the fast one has.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
import typed_hotness
from common import GRAPHS, graph, parser, save, web_graph, widths
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import CSC, GraphStore, NeighborLoader, TieredFeatureStore, ops
from torch_gnnscale.datasets import load
from torch_gnnscale.feature import hotness
from torch_gnnscale.loader import accesses
from torch_gnnscale.topology.reorder import by_score, reorder_csc

FANOUTS, BATCH, SHARES = [15, 10, 5], 64, (0.05, 0.10, 0.25)
DEPTHS, FRACTIONS = (2, 3, 4, 5), (0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.50)
DOCS = Path(__file__).parents[1] / "docs"
MEASURED, PRESAMPLED = 3, 1000  # numbers of epochs: of the first measured one, and of the one that is drawn beforehand


def cumulative(accesses: Tensor, score: Tensor) -> Tensor:
    """The share of accesses that the k hottest nodes have, for k = 0 .. n."""
    shares = accesses[by_score(score).old].double().cumsum(0) / accesses.sum()
    return torch.cat([torch.zeros(1, dtype=torch.float64), shares])


def seeds_of(num_nodes: int) -> Tensor:
    """A hundredth of the nodes."""
    return torch.randperm(num_nodes, generator=torch.Generator().manual_seed(1))[: num_nodes // 100]


def predict(edge_index: Tensor, num_nodes: int) -> dict[str, Tensor]:
    """Each score's cumulative access frequency over an epoch."""
    seeds = seeds_of(num_nodes)
    data = Data(edge_index=edge_index, num_nodes=num_nodes)
    csc = CSC.from_data(data)
    loader = NeighborLoader(data, FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=1)
    measured = accesses(loader, [MEASURED])
    scores = {
        "out-degree": hotness.out_degree(csc),
        "reverse PageRank": hotness.reverse_pagerank(csc),
        "weighted reverse PageRank": hotness.reverse_pagerank(csc, seeds),
        "presampled epoch": accesses(loader, [PRESAMPLED]),
        "exact": measured,
    }
    return {name: cumulative(measured, score) for name, score in scores.items()}


def deeper(edge_index: Tensor, num_nodes: int) -> dict[str, dict[str, Tensor]]:
    """The cumulative access frequency by two scores over an epoch of samples of 2 to 5 hops of 10 neighbors each."""
    seeds, data = seeds_of(num_nodes), Data(edge_index=edge_index, num_nodes=num_nodes)
    csc = CSC.from_data(data)
    scores = {
        "weighted reverse PageRank": hotness.reverse_pagerank(csc, seeds),
        "out-degree": hotness.out_degree(csc),
    }
    curves: dict[str, dict[str, Tensor]] = {name: {} for name in scores}
    for hops in DEPTHS:
        loader = NeighborLoader(data, [10] * hops, seeds, batch_size=BATCH, shuffle=True, seed=1)
        measured = accesses(loader, [MEASURED])
        for name, score in scores.items():
            curves[name][f"{hops} x 10"] = cumulative(measured, score)
    return curves


def traffic(edge_index: Tensor, num_nodes: int, width: int = 128) -> dict[str, float]:
    """The share of an epoch's reads that are from the slow tier, counted by stores, by the share of the features that
    is in the fast tier; rows are in the order of weighted reverse PageRank."""
    seeds = seeds_of(num_nodes)
    data = Data(x=torch.rand(num_nodes, width), edge_index=edge_index)
    score = hotness.reverse_pagerank(CSC.from_data(data), seeds)
    found = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for fraction in FRACTIONS:
            # Renumbered, so that no memory of the fast tier goes to a map of positions.
            given = {"host": fraction, "disk": folder, "hotness": score, "renumbered": True}
            with TieredFeatureStore.from_data(data, **given) as store:
                ordered = GraphStore.from_data(data, order=store.order)
                loader = NeighborLoader((store, ordered), FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=1)
                loader.set_epoch(MEASURED)
                for _ in loader:
                    pass
                read = {tier: use.num_bytes for tier, use in store.stats().items()}
                found[f"{fraction:.0%}"] = read["disk"] / sum(read.values())
    return found


def plot(curves: dict[str, dict[str, Tensor]], path: Path, slow: dict[str, float] | None = None) -> None:
    """A panel for each entry, and one for the traffic of the slow tier."""
    count = len(curves) + (slow is not None)
    figure = Figure(figsize=(5 * count if slow is None else 4.4 * count, 3.6), layout="constrained")
    panels = figure.subplots(1, count, squeeze=False)[0]
    for axes, (title, lines) in zip(panels, curves.items(), strict=False):
        for (name, line), width in zip(lines.items(), widths(len(lines)), strict=True):
            points = torch.linspace(0, len(line) - 1, 300).long()
            axes.plot(100 * points / (len(line) - 1), 100 * line[points], label=name, linewidth=width)
        axes.set(title=title, xlabel="nodes by falling score, %", ylabel="accesses, %", xlim=(0, 100), ylim=(0, 105))
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    if slow is not None:
        axes = panels[-1]
        axes.plot([float(share.rstrip("%")) for share in slow], [100 * value for value in slow.values()], "ko-")
        axes.set(title="reads from the slow tier", xlabel="features in the fast tier, %", ylabel="of all bytes read, %")
        axes.set(ylim=(0, 105))
        axes.grid(alpha=0.3)
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
        "out-degree": seconds(lambda: hotness.out_degree(csc), rounds),
        "weighted reverse PageRank": seconds(lambda: hotness.reverse_pagerank(csc, torch.arange(10_000)), rounds),
        "order by score": seconds(lambda: by_score(order.new), rounds),
        "renumber": seconds(lambda: reorder_csc(csc, order), rounds),
        "renumber, scipy, without edge ids": seconds(by_scipy, rounds),
    }


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--typed", action="store_true", help="the figures of a graph with types alone")
    options.add_argument("--parts", type=int, default=20, help="with --typed: what the graph's numbers are divided by")
    args = options.parse_args()
    torch.set_num_threads(2)
    if args.typed:
        results = typed_hotness.run(args.parts)
        typed_hotness.say(results)
        if not args.no_save:
            save("typed_hotness", results)
            typed_hotness.plot(results)
        return
    task = load("planted")
    inputs = {"embedded graph": (task.data.edge_index, task.num_nodes)}
    if (web := web_graph()) is not None:
        inputs["cnr-2000"] = web
    curves = {name: predict(*entry) for name, entry in inputs.items()}
    results = {"hit_rates": {}, "seconds": {}}
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
    if web is not None:
        depths, slow = deeper(*web), traffic(*web)
        results["depths"] = {
            score: {depth: float(line[int(0.10 * (len(line) - 1))]) for depth, line in lines.items()}
            for score, lines in depths.items()
        }
        results["traffic"] = slow
        print("\ncnr-2000: share of accesses of the hottest 10 % by depth")
        for score, by_depth in results["depths"].items():
            print(f"  {score:28s} " + "  ".join(f"{depth}: {rate:.3f}" for depth, rate in by_depth.items()))
        print("  read from the slow tier: " + "  ".join(f"{share}: {value:.3f}" for share, value in slow.items()))
    if not args.no_save:
        save("hotness", results)
        plot(curves, DOCS / "hotness.png")
        if web is not None:
            plot(depths, DOCS / "tiering.png", slow)


if __name__ == "__main__":
    main()
