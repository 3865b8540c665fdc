"""Bulks on a CPU: many small batches dealt to threads, beside one call per batch, and stacked sparse products.

    python benchmarks/bench_bulk.py

Neighbor sampling, LABOR and LADIES, in bulks of 64 batches of 64 and of 256 seeds, on R-MAT graphs and, where fb100 is
there, on its 24 largest schools: by two threads that take whole batches, and by a call per batch, which neighbor
sampling makes on two threads or on one. Complete batches of a loader with bulk=64 beside those of one without, by each
method. And the matrix form (docs/matrix.md) of several batches, stacked, beside one batch at a time. The results have
the time of a batch by the clock, and its CPU time over all threads, which other programs on the machine disturb less.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from bench_layerwise import LADIES, schools
from common import compare, graph, has, judged, parser, report, save, say_aims
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader, ops

SIZES, FANOUTS, FEATURES = [64, 256], [10, 10], 64
THREADS = 2
LABOR = ops.LayerDrawing("labor", "sequential")
NAMES = {"neighbor": "neighbor sampling", "labor": "LABOR", "ladies": "LADIES", "fastgcn": "FastGCN"}
SINGLE, ALONE, DEALT = "a call per batch", "a call per batch, 1 thread", "bulk, 2 threads"


def candidates(csc: CSC, method: str, seeds: list[Tensor]) -> dict[str, Callable[[int], list[ops.Sample]]]:
    """Three ways of making the samples of a bulk; their argument is the number of the round, which decides the keys."""
    relations, count = csc.relations(), len(seeds)
    if method == "neighbor sampling":
        neighbors = ops.PreparedNeighbors(relations, FANOUTS)
        return {
            name: lambda i, threads=threads: [
                neighbors.sample([ids], i * count + b, threads=threads) for b, ids in enumerate(seeds)
            ]
            for name, threads in ((SINGLE, THREADS), (ALONE, 1))
        } | {
            DEALT: lambda i: neighbors.sample_many(
                [[ids] for ids in seeds], range(i * count, (i + 1) * count), threads=THREADS
            )
        }
    if method == "LADIES":
        layers = ops.PreparedLayers(relations, [len(seeds[0])] * len(FANOUTS), LADIES)
    else:
        layers = ops.PreparedLayers(relations, FANOUTS, LABOR)
    return {  # LABOR and LADIES sample a batch on one thread
        SINGLE: lambda i: [layers.sample(ids, i * count + b) for b, ids in enumerate(seeds)],
        DEALT: lambda i: layers.sample_many(seeds, range(i * count, (i + 1) * count), threads=THREADS),
    }


def check(runs: dict[str, Callable[[int], list[ops.Sample]]]) -> None:
    """All ways give the same samples."""
    expected = runs[SINGLE](0)
    for run in runs.values():
        for found, sample in zip(run(0), expected, strict=True):
            assert (found.num_nodes, found.num_edges) == (sample.num_nodes, sample.num_edges)
            for ours, theirs in zip(found[:4], sample[:4], strict=True):
                assert all(map(torch.equal, ours, theirs))


def dealt(csc: CSC, bulk: int, rounds: int) -> dict[str, Any]:
    """Operators: a bulk beside one call per batch, and beside two threads that each sample as fast as one alone, which
    is about the most that dealing can reach."""
    found: dict[str, Any] = {}
    aims = {}
    for method in ("neighbor sampling", "LABOR", "LADIES"):
        for size in SIZES:
            seeds = [torch.randperm(csc.num_dst)[:size] for _ in range(bulk)]
            runs = candidates(csc, method, seeds)
            check(runs)
            title = f"{method}, bulk of {bulk} x {size}"
            found[title] = results = compare(runs, rounds, bulk, cpu=True)
            report(f"{title}, a batch", results, SINGLE)
            single, in_bulk = (results[name]["median_ms"] for name in (SINGLE, DEALT))
            aims[title] = judged(single / in_bulk, least=1.5)
            if ALONE in results:
                twice = results[ALONE]["median_ms"] / THREADS / in_bulk
                aims[f"{title}, of {THREADS} times the speed of one thread"] = judged(twice, least=0.95)
    say_aims(aims)
    return {"times": found, "aims": aims}


def loaders(csc: CSC, bulk: int, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Complete batches: a loader with bulks beside one without."""
    rows = FeatureStore.from_data(Data(x=torch.randn(csc.num_dst, FEATURES)))
    data = rows, GraphStore.from_csc(csc)
    found: dict[str, Any] = {}
    aims = {}
    for method, size in product(NAMES, SIZES):
        seeds = torch.randperm(csc.num_dst)[: 2 * bulk * size]
        numbers = FANOUTS if method in ("neighbor", "labor") else [size] * len(FANOUTS)
        options = {"input_nodes": seeds, "batch_size": size, "seed": 1, "method": method}
        made = {
            "loader, bulk=1": NeighborLoader(data, numbers, **options, bulk=1),
            f"loader, bulk={bulk}": NeighborLoader(data, numbers, **options, bulk=bulk),
        }
        for one, other in zip(*(loader.samples(0) for loader in made.values()), strict=True):
            assert torch.equal(one.node, other.node)
        runs = {way: lambda _, loader=loader: [None for _ in loader] for way, loader in made.items()}
        title = f"loader, {NAMES[method]}, {size} seeds"
        found[title] = results = compare(runs, rounds, 2 * bulk, cpu=True)
        report(f"{title}, a batch", results, "loader, bulk=1")
        first, second = (entry["median_ms"] for entry in results.values())
        aims[f"{title}, bulk={bulk} over bulk=1"] = judged(first / second, least=0.95)
    say_aims(aims)
    return found, aims


def stacked(csc: CSC, count: int, rounds: int) -> dict[str, Any]:
    """The matrix form: ``count`` batches stacked into one product, beside a product per batch."""
    from torch_gnnscale import matrix

    a = matrix.adjacency(csc.relations())
    steps = {
        "GraphSAGE": (matrix.graphsage(a), FANOUTS),
        "LADIES": (matrix.ladies(a), [64, 64]),
        "FastGCN": (matrix.fastgcn(a), [64, 64]),
    }
    found = {}
    for method, (step, numbers) in steps.items():
        seeds = [torch.randperm(csc.num_dst)[:64] for _ in range(count)]
        runs = {
            "one at a time": lambda i, step=step, numbers=numbers, seeds=seeds: [
                matrix.sample_batches(a, [ids], numbers, [i * count + b], step)[0] for b, ids in enumerate(seeds)
            ],
            "stacked": lambda i, step=step, numbers=numbers, seeds=seeds: matrix.sample_batches(
                a, seeds, numbers, range(i * count, (i + 1) * count), step
            ),
        }
        for one, other in zip(*(run(0) for run in runs.values()), strict=True):
            assert torch.equal(one.edge_id[0], other.edge_id[0])
        found[f"matrix form of {method}, {count} batches of 64"] = results = compare(runs, rounds, count, cpu=True)
        report(f"matrix form of {method}, {count} batches of 64, a batch", results, "one at a time")
    return found


def each_edge_once(csc: CSC) -> CSC:
    """The same graph without parallel edges, which products of matrices would add."""
    edges = torch.stack([csc.row.long(), torch.arange(csc.num_dst).repeat_interleave(csc.colptr.diff())])
    return CSC.from_edge_index(coalesce(edges, num_nodes=csc.num_dst), csc.num_dst)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--no-schools", action="store_true", help="leave out fb100")
    options.add_argument("--bulk", type=int, default=64, help="batches of a bulk")
    options.add_argument("--stacked", type=int, default=16, help="batches of a stacked product")
    args = options.parse_args()
    torch.set_num_threads(THREADS)
    results: dict[str, Any] = {}
    graphs = {} if args.no_schools else {"schools": schools}
    for name, make in (graphs | {name: lambda name=name: graph(name)[0] for name in args.graphs}).items():
        if (csc := make()) is None:
            continue
        print(f"\n{name}")
        results[name] = {"bulk": dealt(csc, args.bulk, args.rounds)}
        if has("scipy") and name != "2.4M-124M":
            once = csc if name == "schools" else each_edge_once(csc)
            results[name]["stacked"] = stacked(once, args.stacked, max(1, args.rounds * 3 // 5))
        results[name]["loader"], aims = loaders(csc, args.bulk, args.rounds)
        results[name]["bulk"]["aims"] |= aims
        ops.pool_trim()
    if not args.no_save:
        save("bulk", results)


if __name__ == "__main__":
    main()
