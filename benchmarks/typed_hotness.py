"""Data Tiering's figures 7, 9 and 10 on a graph with types and hubs: python benchmarks/bench_hotness.py --typed.

Nodes of all types are put into one order by falling score. Figure 7: the share of an epoch's reads that the first of
them have. Figure 9: the same for deeper samples. Figure 10: what an epoch reads from the slow tier over the share of
all features that the fast one has, as tier plans expect it and as stores count it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from common import widths
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import HeteroData

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, TieredFeatureStore
from torch_gnnscale.feature import hotness
from torch_gnnscale.loader import accesses
from torch_gnnscale.topology.reorder import by_score

FIGURE = Path(__file__).parents[1] / "docs" / "typed_hotness.png"
FANOUTS, BATCH, PRESAMPLED_BATCHES = [10, 5], 64, 8
SIZES = {"paper": 700_000, "author": 500_000, "field": 20_000}
WIDTHS = {"paper": 128, "author": 32, "field": 16}
RELATIONS = [("author", "writes", "paper", 5_000_000), ("paper", "cites", "paper", 6_000_000),
             ("paper", "about", "field", 3_000_000)]  # fmt: skip
"""Each with its reverse."""
DEPTHS, FRACTIONS = (1, 2, 3, 4), (0.0, 0.05, 0.10, 0.15, 0.20, 0.25, 0.50)
SHARES, POINTS = (0.05, 0.10, 0.25), 101
MEASURED, PRESAMPLED = 3, 1000  # numbers of epochs
PAGERANK, CALIBRATED = "weighted reverse PageRank", "the same, calibrated"


def problem(parts: int) -> tuple[HeteroData, GraphStore, Tensor]:
    """Papers, authors and fields with rows, all numbers divided by ``parts``. Sources and destinations of edges are
    drawn by power laws: the largest x of all nodes of a type are expected to be the sources of x^(1/4) of a relation's
    edges, and the destinations of x^(1/2). A hundredth of the papers are seeds."""
    data, sizes = HeteroData(), {node_type: size // parts for node_type, size in SIZES.items()}
    generator = torch.Generator().manual_seed(1)
    for node_type, width in WIDTHS.items():
        data[node_type].x = torch.rand(sizes[node_type], width, generator=generator)
    ranked = {t: torch.randperm(size, generator=generator) for t, size in sizes.items()}
    for src, name, dst, edges in RELATIONS:
        row, col = torch.rand(2, edges // parts, dtype=torch.float64, generator=generator)
        edge_index = torch.stack([ranked[src][(sizes[src] * row**4).long()], ranked[dst][(sizes[dst] * col**2).long()]])
        data[src, name, dst].edge_index = edge_index
        data[dst, f"rev_{name}", src].edge_index = edge_index.flip(0)
    seeds = torch.randperm(sizes["paper"], generator=generator)[: sizes["paper"] // 100]
    return data, GraphStore.from_data(data), seeds


def loader_over(stores: Any, fanouts: list[int], seeds: Tensor) -> NeighborLoader:
    return NeighborLoader(stores, fanouts, ("paper", seeds), batch_size=BATCH, shuffle=True, seed=1)


def scores_of(graph: GraphStore, seeds: Tensor, loader: NeighborLoader) -> dict[str, dict[str, Tensor]]:
    """The scores that need no whole epoch, by node type."""
    pagerank = hotness.graph_scores(graph, labelled={"paper": seeds})
    return {
        "out-degree": hotness.graph_scores(graph, "out_degree"),
        PAGERANK: pagerank,
        CALIBRATED: hotness.calibrated(pagerank, accesses(loader, [PRESAMPLED], batches=PRESAMPLED_BATCHES)),
    }


def curve(reads: dict[str, Tensor], score: dict[str, Tensor]) -> list[float]:
    """The share of reads of the hottest 0, 1, .. 100 % of the nodes of all types."""
    of_all = torch.cat([reads[node_type].double() for node_type in reads])
    order = by_score(torch.cat([score[node_type].double() for node_type in reads])).old
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), of_all[order].cumsum(0)])
    return (sums[torch.linspace(0, len(of_all), POINTS).long()] / sums[-1]).tolist()


def traffic(data: HeteroData, seeds: Tensor, score: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """By share of the features in the fast tier: the share of reads that the plan expects there and that were found,
    and the share of bytes that was read from the slow tier."""
    found = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for fraction in FRACTIONS:
            given = {"host": fraction, "disk": folder, "hotness": score, "renumbered": True, "names": ["x"]}
            with TieredFeatureStore.from_data(data, **given) as store:
                loader = loader_over((store, GraphStore.from_data(data, order=store.order)), FANOUTS, seeds)
                loader.set_epoch(MEASURED)
                for _ in loader:
                    pass
                uses = store.stats()
                expected = {tier.name: tier.hit_rate for tier in store.plan.tiers}
                found[f"{fraction:.0%}"] = {
                    "expected": expected.get("host", 0.0),
                    "found": uses["host"].hit_rate if "host" in uses else 0.0,
                    "slow bytes": uses["disk"].num_bytes / sum(use.num_bytes for use in uses.values()),
                }
    return found


def run(parts: int) -> dict[str, Any]:
    """All results."""
    data, graph, seeds = problem(parts)
    rows = FeatureStore.from_data(data)
    loader = loader_over((rows, graph), FANOUTS, seeds)
    scores, measured = scores_of(graph, seeds, loader), accesses(loader, [MEASURED])
    others = {
        "reverse PageRank": hotness.graph_scores(graph, "reverse_pagerank"),
        "presampled epoch": accesses(loader, [PRESAMPLED]),
        "exact": measured,
    }
    curves = {name: curve(measured, score) for name, score in (scores | others).items()}
    depths: dict[str, dict[str, list[float]]] = {PAGERANK: {}, CALIBRATED: {}, "out-degree": {}}
    for hops in DEPTHS:
        deeper = loader_over((rows, graph), [5] * hops, seeds)
        reads, of_depth = accesses(deeper, [MEASURED]), scores_of(graph, seeds, deeper)
        for name in depths:
            depths[name][f"{hops} x 5"] = curve(reads, of_depth[name])
    sizes = {t: data[t].num_nodes for t in data.node_types}
    degrees = {t: scores["out-degree"][t].sort(descending=True).values.double() for t in sizes}
    top = {t: float(degrees[t][: n // 100].sum() / degrees[t].sum()) for t, n in sizes.items()}
    return {
        "nodes": sizes,
        "edges": {" ".join(t): data[t].num_edges for t in data.edge_types},
        "edges of the 1 % of largest out-degree": top,
        "nodes per batch": sum(float(reads.sum()) for reads in measured.values()) / len(loader),
        "curves": curves,
        "depths": depths,
        "traffic": {name: traffic(data, seeds, scores[name]) for name in (PAGERANK, CALIBRATED)},
    }


def say(results: dict[str, Any]) -> None:
    """Prints the results."""
    for key in ("nodes", "edges", "edges of the 1 % of largest out-degree", "nodes per batch"):
        print(f"{key}: {results[key]}")
    print(f"share of reads of the hottest {SHARES} of the nodes")
    for name, line in results["curves"].items():
        print(f"  {name:28s} " + "  ".join(f"{line[round(100 * share)]:.3f}" for share in SHARES))
    print("share of reads of the hottest 10 % by depth")
    for name, lines in results["depths"].items():
        print(f"  {name:28s} " + "  ".join(f"{depth}: {line[10]:.3f}" for depth, line in lines.items()))
    for name, by_share in results["traffic"].items():
        print(f"{name}: in the fast tier: hit rate expected, found; bytes read from the slow tier")
        for share, of_share in by_share.items():
            print(f"  {share:>4s}  " + "  ".join(f"{value:.3f}" for value in of_share.values()))


def plot(results: dict[str, Any]) -> None:
    """Four panels: the reads by score; by depth, of two scores; and the slow tier's bytes with hit rates."""
    figure = Figure(figsize=(17.6, 4.2), layout="constrained")
    panels = figure.subplots(1, 4)
    depths = {f"{name}, by hops x neighbors": results["depths"][name] for name in (PAGERANK, "out-degree")}
    groups = {"reads by score": results["curves"], **depths}
    for axes, (title, lines) in zip(panels, groups.items(), strict=False):
        for (name, line), width in zip(lines.items(), widths(len(lines)), strict=True):
            axes.plot(range(POINTS), [100 * value for value in line], label=name, linewidth=width)
        axes.set(title=title, xlabel="nodes of all types by falling score, %", ylabel="reads, %")
        axes.set(xlim=(0, 100), ylim=(0, 105))
    axes = panels[-1]
    shares = [float(share.rstrip("%")) for share in next(iter(results["traffic"].values()))]
    lines = {
        "bytes read from the slow tier": ("slow bytes", CALIBRATED, "ko-"),
        "hit rate found": ("found", CALIBRATED, "C0o-"),
        "hit rate expected, calibrated": ("expected", CALIBRATED, "C1x--"),
        "hit rate expected, PageRank": ("expected", PAGERANK, "C2s:"),
    }
    for (label, (key, name, style)), width in zip(lines.items(), widths(len(lines)), strict=True):
        values = [100 * of_share[key] for of_share in results["traffic"][name].values()]
        axes.plot(shares, values, style, label=label, linewidth=width)
    axes.set(title="a store's reads", xlabel="features in the fast tier, %", ylabel="%", ylim=(0, 105))
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(FIGURE, dpi=100)
