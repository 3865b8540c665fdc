"""Split plans (GSplit, section 6.3 and figure 5): how equal the parts' shares of batches are, and how many edges cross.

    python benchmarks/bench_split_plan.py
    python benchmarks/bench_split_plan.py --graphs planted    # keeps the figures of other graphs in the results

4 parts by each kind of weights, measured on the batches of the first two epochs of training; medians over METIS's
seeds. planted:
planted(100_000, 20, 64, 8, homophily=0.8), the first 4,096 nodes of classes 0 to 3, (10, 5), batches of 512. cnr2000
(in GNNSCALE_DATA, or ../shared/data): shuffled ids, 1 % of the nodes as seeds, (10, 5), batches of 512. Imbalance: the
mean over batches of max / mean of a layer's edges over the parts, in the layer where that is largest.

Besides, for each graph: parts by other weights of edges and nodes than those of "presampled"; and the work of data
parallelism on 4 ranks, each of which draws a batch of its own from a quarter of the seeds, over that of split batches.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench_split import work
from common import RESULTS, judged, parser, save, say_aims, web_graph, widths
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import CSC, NeighborLoader, ops, split
from torch_gnnscale.datasets import planted
from torch_gnnscale.loader import accesses_by_hop
from torch_gnnscale.partition.methods import assign, by_metis
from torch_gnnscale.partition.whole import Whole
from torch_gnnscale.split.planning import FIRST_EPOCH, Presampled, weights_of

PARTS, FANOUTS, BATCH = 4, [10, 5], 512
FIGURE = Path(__file__).parents[1] / "docs" / "split_plan.png"
KINDS: dict[str, dict[str, Any]] = {
    "random": {"weights": "random"},
    "edge": {"weights": "edge"},
    "edge, seeds not balanced": {},
    "node": {"weights": "node"},
    "presampled": {"weights": "presampled"},
    "presampled, load='layers'": {"weights": "presampled", "load": "layers"},
    "presampled, 30 epochs": {"weights": "presampled", "epochs": 30},
    "presampled, owned seeds": {"weights": "presampled", "seed_order": "owned"},
}
"""The rows of the table, and the arguments of :func:`split.plan` for each. If there is a ``seed_order``, the measured
batches have it, and an epoch ends as soon as one part has no more seeds."""

DRAWN = ("random", "edge", "node", "presampled")
"""The rows that the figure shows."""


FACTORS = [(10, 1), (100, 1), (10, 10), (100, 10), (1000, 10), (100, 100), (1000, 100)]
"""Pairs a, b of what METIS is tried with: edges of weight 1 + a N_e and nodes of weight 1 + b N_v."""
EPOCHS, TOLERANCE = 10, 1.01
"""Of presampling, and of METIS's parts, as :func:`split.plan` has them."""


def graph_of(name: str) -> tuple[Data, Tensor] | None:
    """A graph without features, planted ones with their classes, and its seeds; None where it is not there."""
    if name == "cnr2000":
        if (web := web_graph()) is None:
            return None
        edge_index, num_nodes = web
        shuffled = ops.permutation(num_nodes, 2)[edge_index]
        return Data(edge_index=shuffled, num_nodes=num_nodes), ops.permutation(num_nodes, 1)[: num_nodes // 100]
    nodes, seeds = (100_000, 4096) if name == "planted" else (4000, 512)
    data = planted(nodes, 20, 64, 8, homophily=0.8)
    chosen = (data.y < 4).nonzero().view(-1)[:seeds]
    return Data(edge_index=data.edge_index, y=data.y, num_nodes=nodes), chosen


def measured(data: Data, seeds: Tensor, options: dict[str, Any], seed: int) -> tuple[dict[str, float], Any]:
    """The figures of one plan, and what was measured of each batch."""
    if not options:
        csc = CSC.from_data(data)
        found = assign({None: csc}, {None: csc.num_src}, PARTS, method="metis", balance=["edges"], seed=seed)
        options = {"weights": found.owner[None]}
    given = dict(options)
    order = given.pop("seed_order", None)
    plan = split.plan(data, seeds, FANOUTS, PARTS, batch_size=BATCH, seed=seed, **given)
    ordered = {} if order is None else {"split": plan, "seed_order": order, "uneven": "drop"}
    loader = NeighborLoader(data, FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=seed, **ordered)
    batches = split.measure(plan, loader, [0, 1])
    rows = batches.rows.to(torch.float64)
    by_layer = batches.imbalance.mean(0).tolist()
    figures = {
        **{f"imbalance of layer {layer}": value for layer, value in enumerate(by_layer)},
        "imbalance": max(by_layer),
        "cross": float(batches.cross_share.mean()),
        "imbalance of rows": float((rows.amax(1) / rows.mean(1)).mean()),
        "presampled imbalance": plan.imbalance,
        "presampled cross": plan.cut_share,
    }
    return figures, batches


def quality(name: str, data: Data, seeds: Tensor, runs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Medians by kind of weights; and, for the first plan of each kind in the figure, the points of its batches."""
    print(f"\n{name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges, {len(seeds):,} seeds")
    rows, batches = {}, {}
    for kind, options in KINDS.items():
        found = [measured(data, seeds, options, seed) for seed in range(runs)]
        rows[kind] = {key: median(figures[key] for figures, _ in found) for key in found[0][0]}
        if kind in DRAWN:
            first = found[0][1]
            imbalance = [round(value, 3) for value in first.imbalance[:, 0].tolist()]
            cross = [round(100 * share, 2) for share in first.cross_share.tolist()]
            batches[kind] = {"cross, %": cross, "imbalance of layer 0": imbalance}
        print(f"  {kind:26s}" + "".join(f"  {key} {value:.4g}" for key, value in rows[kind].items()), flush=True)
    return rows, batches


def weighed(data: Data, seeds: Tensor, runs: int) -> dict[str, dict[str, float]]:
    """Medians by the weights that METIS gets. E_l are the edges into a node that layer l computes, each l a constraint
    of its own."""
    csc, found = CSC.from_data(data), {}
    whole, none = Whole.of({None: csc}, {None: csc.num_src}, {}, ["nodes"]), torch.zeros(csc.num_dst, dtype=torch.int64)
    for seed in range(runs):
        loader = NeighborLoader(data, FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=seed, shard=False)
        nodes, edges = accesses_by_hop(loader, range(FIRST_EPOCH, FIRST_EPOCH + EPOCHS))
        counts = Presampled(nodes.sum(0), 2 * nodes[0] + nodes[1], 2 * edges[0] + edges[1])
        edge_load, load = counts.expected(csc), counts.node_load(csc, "edges")
        first, second = (Presampled(none, none, some).node_load(csc, "edges") for some in (edges.sum(0), edges[0]))
        tried = {f"1 + {a} N_e, 1 + {b} N_v": (a, [weights_of(load, b)]) for a, b in FACTORS}
        tried["1 + 100 N_e, 1 + 10 E_0 and 10 E_1"] = (100, [weights_of(first, 10), 10 * second])
        for name, (factor, columns) in tried.items():
            given = replace(
                whole,
                weight=torch.stack(columns, 1),
                names=[f"constraint {column}" for column in range(len(columns))],
                edge_weight=[weights_of(edge_load, factor)],
            )
            owner = by_metis(given, PARTS, seed, TOLERANCE).owner
            found.setdefault(name, []).append(measured(data, seeds, {"weights": owner}, seed)[0])
    rows = {name: {key: median(run[key] for run in of_name) for key in of_name[0]} for name, of_name in found.items()}
    for name, row in rows.items():
        print(f"  {name:36s}" + "".join(f"  {key} {value:.4g}" for key, value in row.items()), flush=True)
    return rows


def of_data_parallel(data: Data, seeds: Tensor, runs: int) -> dict[str, float]:
    """Medians of the rows that data-parallel ranks load, and the edges that they compute, over those of split batches
    of the same seeds."""
    size = min(BATCH, len(seeds) // PARTS * PARTS)
    ratios: dict[str, list[float]] = {"rows": [], "edges": []}
    for seed in range(runs):
        given: dict[str, Any] = {"shuffle": True, "seed": seed, "drop_last": True}
        ours = work(iter(NeighborLoader(data, FANOUTS, seeds, batch_size=size, shard=False, **given)))
        ranks = [
            work(iter(NeighborLoader(data, FANOUTS, seeds, batch_size=size // PARTS, shard=(rank, PARTS), **given)))
            for rank in range(PARTS)
        ]
        for key, one, theirs in zip(ratios, ours, zip(*ranks, strict=True), strict=True):
            ratios[key].append(sum(theirs) / one)
    found = {key: median(values) for key, values in ratios.items()}
    print(f"  data parallel over split: rows {found['rows']:.4g}, edges {found['edges']:.4g}", flush=True)
    return found


def aims_of(name: str, rows: dict[str, dict[str, float]]) -> dict[str, Any]:
    best, longer = rows["presampled"], rows["presampled, 30 epochs"]
    aims = {
        "10 epochs of presampling over 30, imbalance": judged(best["imbalance"] / longer["imbalance"] - 1, within=0.02),
        "10 epochs of presampling over 30, cross edges": judged(best["cross"] / longer["cross"] - 1, most=0.07),
    }
    if name == "cnr2000":
        aims |= {"imbalance": judged(best["imbalance"], most=1.15), "cross edges": judged(best["cross"], most=0.002)}
    else:
        aims["imbalance"] = judged(best["imbalance"], most=1.1)
        aims["imbalance of edge"] = judged(rows["edge"]["imbalance"], least=1.4)
        aims["imbalance of edge, seeds not balanced"] = judged(rows["edge, seeds not balanced"]["imbalance"], least=1.4)
        for other in ("edge", "node"):
            aims[f"cross edges over those of {other}"] = judged(best["cross"] / rows[other]["cross"], most=0.7)
    return {f"{name}: {title}": aim for title, aim in aims.items()}


def plot(results: dict[str, Any]) -> None:
    """The paper's figure 5: a point for each batch."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False, sharey=True)[0]
    for axes, (name, entry) in zip(panels, results.items(), strict=True):
        batches = entry["batches"]
        for (kind, points), width in zip(batches.items(), widths(len(batches)), strict=True):
            axes.scatter(points["cross, %"], points["imbalance of layer 0"], s=(2 + width) ** 2, label=kind)
        axes.set(title=name, xlabel="edges between parts, % of a batch's", xlim=(-2, 82))
    panels[0].set(ylabel="edges of layer 0, busiest part / mean")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", title="weights=")
    figure.savefig(FIGURE, dpi=110)


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False, rounds=False)
    options.add_argument("--graphs", nargs="+", choices=["planted", "cnr2000", "small"], default=["planted", "cnr2000"])
    options.add_argument("--seeds", type=int, default=5, help="of METIS and of the draws")
    args = options.parse_args()
    torch.set_num_threads(2)
    results: dict[str, Any] = {}
    for name in args.graphs:
        if (found := graph_of(name)) is None:
            print(f"{name}: not there, left out")
            continue
        rows, batches = quality(name, *found, args.seeds)
        weights = weighed(*found, args.seeds)
        ratios = of_data_parallel(*found, args.seeds)
        aims = aims_of(name, rows)
        say_aims(aims)
        results[name] = {
            "rows": rows, "aims": aims, "batches": batches, "weights": weights, "data parallel over split": ratios
        }  # fmt: skip
    if not args.no_save:
        if (RESULTS / "split_plan.json").exists():
            results = json.loads((RESULTS / "split_plan.json").read_text())["results"] | results
        save("split_plan", results)
        plot(results)


if __name__ == "__main__":
    main()
