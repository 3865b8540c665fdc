"""Layer-wise sampling, one batch on one thread: LADIES 512 x 512 and LABOR 1024 x (10, 10).

    python benchmarks/bench_layerwise.py

Times are CPU times. LADIES is compared with what it cannot leave out (a loop that reads the lists of the same frontiers
and touches a cell per source, a loop that draws the high word of a number for each source, and a batch without seeds),
and with three ways to draw a layer with scipy: indexing rows and columns, products of sparse matrices (Tripathy et al.
2024, algorithm 1), and dense vectors over all nodes, as in the authors' code (Zou et al. 2019). LABOR is compared with
a loop that reads the lists and draws a number for each source, and with neighbor sampling, by time and by the number of
nodes found. If fb100 is there, all this is also done on its 24 largest schools. Last, the memory that a hop takes
besides its outputs.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import as_csc, compare, graph, has, judged, parser, report, save, say_aims
from limits import draw_high_words, draw_lists, touch_lists

from torch_gnnscale import CSC, ops
from torch_gnnscale.ops.layer_drawing import SCHEMES_OF

LAYERS, BATCH = [512, 512], 512
FANOUTS, SEEDS = [10, 10], 1024
LIMIT = "reading the lists, touching a cell per source"
DRAWING = "reading the lists, drawing for each source"
HIGH_WORDS = "reading the lists, drawing a high word for each source"
NO_SEEDS = "a batch without seeds"
PASSED = 0.01
"""The share of high words that are below the limit, in the loop that draws them."""
LADIES = ops.LayerDrawing()
LABOR = ops.LayerDrawing("labor", "sequential")
POISSON = ops.LayerDrawing("labor", "poisson")
PEERS = {"scipy, indexing": 8, "scipy, products": 20, "scipy, dense vectors": 80}
"""How many times as fast as each of these LADIES should be."""


def schools() -> CSC | None:
    """The 24 largest schools of fb100 as one graph, if they are there."""
    data = Path(os.environ.get("GNNSCALE_DATA", Path(__file__).parents[2] / "shared" / "data"), "fb100")
    files = sorted(data.glob("*.npz"), key=lambda path: path.stat().st_size)[-24:]
    edges, nodes = [], 0
    for path in sorted(files):
        with np.load(path) as arrays:
            edges.append(torch.from_numpy(arrays["edge_index"].astype(np.int64)) + nodes)
            nodes += int(arrays["num_nodes"])
    if not edges:
        return None
    once = torch.cat(edges, dim=1)
    return CSC.from_edge_index(torch.cat([once, once.flip(0)], dim=1), nodes)


def node_counts(csc: CSC, batches: int) -> dict[str, Any]:
    """The numbers of nodes that LABOR and neighbor sampling find, both with ``layers=True``."""
    relations, found = csc.relations(), {}
    for fanouts, drawing, most in (
        ([10, 10], LABOR, 0.65),
        ([10, 10], POISSON, 0.65),
        ([5, 5, 5], LABOR._replace(layer_dependency=True), 0.3),
        ([5, 5, 5], POISSON._replace(layer_dependency=True), 0.3),
    ):
        ours = ops.PreparedLayers(relations, fanouts, drawing, layers=True)
        theirs = ops.PreparedNeighbors(relations, fanouts, layers=True)
        nodes = [0, 0]
        for number in range(batches):
            seeds = torch.randperm(csc.num_dst)[:SEEDS]
            nodes[0] += len(ours.sample(seeds, number).node[0])
            nodes[1] += len(theirs.sample([seeds], number).node[0])
        name = f"LABOR {drawing.scheme}, {SEEDS} x {fanouts}: nodes, of neighbor sampling's"
        found[name] = judged(nodes[0] / nodes[1], most=most)
    say_aims(found)
    return found


def chosen(score: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Distinct positions: each is drawn in proportion to its score among those left."""
    return generator.choice(len(score), min(count, len(score)), replace=False, p=score / score.sum())


def by_indexing(matrix: Any, frontier: np.ndarray, count: int, generator: np.random.Generator) -> Any:
    """(drawn nodes, their edges into the frontier) by indexing of rows and columns."""
    rows = matrix[frontier]
    nodes, at = np.unique(rows.indices, return_inverse=True)
    drawn = nodes[chosen(np.bincount(at, rows.data**2), count, generator)]
    return drawn, rows[:, drawn]


def by_products(matrix: Any, frontier: np.ndarray, count: int, generator: np.random.Generator) -> Any:
    """The same by products with matrices that select rows and columns."""
    import scipy.sparse as sp

    size, ones = len(frontier), np.ones(max(len(frontier), count))
    select = sp.csr_matrix((ones[:size], frontier, np.arange(size + 1)), shape=(size, matrix.shape[0]))
    total = sp.csr_matrix(np.ones((1, size))) @ (select @ matrix).power(2)
    drawn = total.indices[chosen(total.data, count, generator)]
    columns = sp.csr_matrix((ones[: len(drawn)], (drawn, np.arange(len(drawn)))), shape=(matrix.shape[0], len(drawn)))
    return drawn, (select @ matrix) @ columns


def by_dense_vectors(matrix: Any, frontier: np.ndarray, count: int, generator: np.random.Generator) -> Any:
    """The same with a vector of probabilities of all nodes."""
    rows = matrix[frontier]
    score = np.asarray(rows.multiply(rows).sum(0))[0]
    drawn = chosen(score, min(count, int((score > 0).sum())), generator)
    return drawn, rows[:, drawn]


def all_layers(step: Any, matrix: Any, seeds: np.ndarray, number: int) -> list[Any]:
    """The layers of a batch, each frontier being what the last layer drew."""
    generator, frontier, found = np.random.default_rng(number), seeds, []
    for count in LAYERS:
        frontier, edges = step(matrix, frontier, count, generator)
        found.append((frontier, edges))
    return found


def check(sample: ops.Sample, layers: list[Any], matrix: Any) -> None:
    """Checks that both draw equally many nodes, and that their edges are the graph's."""
    counts = [len(drawn) for drawn, _ in layers]
    assert counts[0] == len(sample.edge_index[0][0][: sample.num_edges[0][0]].unique()) == LAYERS[0]
    for (_, edges), frontier in zip(layers, [None, layers[0][0]], strict=True):
        if frontier is not None:
            assert (edges != matrix[frontier][:, layers[1][0]]).nnz == 0


def ladies(csc: Any, rounds: int) -> dict[str, Any]:
    """LADIES beside its limit and scipy."""
    relations = csc.relations()
    prepared = ops.PreparedLayers(relations, LAYERS, LADIES)
    seeds = [torch.randperm(csc.num_dst)[:BATCH] for _ in range(rounds)]
    samples = [prepared.sample(part, number) for number, part in enumerate(seeds)]
    frontiers = [sample.node[0][: sum(sample.num_nodes[0][:-1])].contiguous() for sample in samples]
    cells = torch.zeros(csc.num_dst, dtype=torch.int64)
    ops.huge_pages(cells)
    candidates = {
        "gnnscale": lambda i: prepared.sample(seeds[i], i),
        LIMIT: lambda i: touch_lists(csc, frontiers[i], cells),
        HIGH_WORDS: lambda i: draw_high_words(csc, frontiers[i], i, PASSED),
        NO_SEEDS: lambda i: prepared.sample(seeds[i][:0], i),
    }
    edges = sum(touch_lists(csc, frontier, cells) for frontier in frontiers) // rounds
    if has("scipy"):
        import scipy.sparse as sp

        colptr, row = csc.colptr.numpy(), csc.row.contiguous().numpy()
        values = 1.0 / np.diff(colptr).clip(1)
        matrix = sp.csr_matrix((values.repeat(np.diff(colptr)), row, colptr), shape=(csc.num_dst, csc.num_dst))
        for name, step in zip(PEERS, (by_indexing, by_products, by_dense_vectors), strict=True):
            check(samples[0], all_layers(step, matrix, seeds[0].numpy(), 0), matrix)
            candidates[name] = lambda i, step=step: all_layers(step, matrix, seeds[i].numpy(), i)
    results = compare(candidates, rounds, again=True, clock=time.process_time)
    report(f"LADIES {BATCH} x {LAYERS}, {edges:,} edges read a batch", results, LIMIT)
    took = {name: entry["median_ms"] for name, entry in results.items()}
    needed = took[LIMIT] + took[HIGH_WORDS] + took[NO_SEEDS]
    print(f"  touching a cell and drawing a high word for each source, and an empty batch: {needed:.3g} ms")
    aims = {"LADIES, times the limit": judged(took["gnnscale"] / took[LIMIT], most=2.5)}
    for name, least in PEERS.items():
        if name in took:
            aims[f"LADIES, times as fast as {name}"] = judged(took[name] / took["gnnscale"], least=least)
            print(f"  these three alone: {took[name] / needed:.3g} times as fast as {name}")
    say_aims(aims)
    return {"edges_per_batch": edges, "times": results, "aims": aims}


def room_for_edges(csc: Any, frontiers: list[torch.Tensor]) -> torch.Tensor:
    """A buffer with room for the edges into any one of these frontiers, and one more."""
    degree = csc.colptr.diff()
    return torch.zeros(1 + max(int(degree[frontier].sum()) for frontier in frontiers), dtype=torch.int64)


def labor(csc: Any, rounds: int) -> dict[str, Any]:
    """LABOR beside neighbor sampling, and beside reading and drawing for each source of the same lists."""
    relations = csc.relations()
    seeds = [torch.randperm(csc.num_dst)[:SEEDS] for _ in range(rounds)]
    prepared = {
        name: ops.PreparedLayers(relations, FANOUTS, drawing)
        for name, drawing in (("LABOR, sequential", LABOR), ("LABOR, poisson", POISSON))
    }
    neighbors = ops.PreparedNeighbors(relations, FANOUTS)
    candidates = {
        name: lambda i, sampler=sampler: sampler.sample(seeds[i], i)  # type: ignore[misc]
        for name, sampler in prepared.items()
    }
    candidates["neighbor sampling, 1 thread"] = lambda i: neighbors.sample([seeds[i]], i, threads=1)
    samples = [prepared["LABOR, poisson"].sample(part, number) for number, part in enumerate(seeds)]
    frontiers = [sample.node[0][: sum(sample.num_nodes[0][:-1])].contiguous() for sample in samples]
    positions = room_for_edges(csc, frontiers)
    limit = {DRAWING: lambda i: draw_lists(csc, frontiers[i], i, FANOUTS[0], positions)}
    results = compare(candidates | limit, rounds, clock=time.process_time)
    for name, run in candidates.items():
        results[name]["nodes"] = sum(len(run(i).node[0]) for i in range(rounds)) / rounds
    report(f"LABOR {SEEDS} x {FANOUTS}", results, DRAWING)
    times = results["LABOR, poisson"]["median_ms"] / results[DRAWING]["median_ms"]
    aims = {"LABOR, poisson, times reading and drawing": judged(times, most=1.5)}
    say_aims(aims)
    return {"times": results, "aims": aims}


def status(field: str) -> int:
    """A count of kB in /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def scratch(lists: int, degree: int = 20) -> dict[str, Any]:
    """The most memory that a hop takes besides its outputs and the cells of the graph, in bytes per scanned edge: one
    hop from ``lists`` nodes, whose lists have no source in common, so that each edge has a candidate of its own.
    FastGCN's is in bytes per candidate: its candidates are the nodes of positive score, whatever edges are scanned,
    and here there are as many."""
    nodes, edges = 2 * lists * degree, lists * degree
    colptr = torch.cat([torch.arange(0, edges + 1, degree), torch.full((nodes - lists,), edges)])
    graph_, seeds = ops.relations([colptr], [torch.randperm(nodes)[:edges].int()]), torch.arange(lists)
    libc, kept = ctypes.CDLL(None), ops.pool_stats().limit_bytes
    aims: dict[str, Any] = {}
    of_nodes: dict[str, Any] = {}
    libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages that are touched, not those around them
    ops.pool_limit(0)  # no memory of earlier calls
    cases = {
        f"{method}, {scheme}": ops.LayerDrawing(method, scheme)
        for method in SCHEMES_OF
        for scheme in SCHEMES_OF[method]
    }
    cases |= {
        "ladies, counts": LADIES._replace(scores="counts"),
        "ladies, keep_known": LADIES._replace(keep_known=True),
    }
    for name, drawing in cases.items():
        score = ops.node_scores(graph_) if drawing.method == "fastgcn" else None
        layers = ops.PreparedLayers(graph_, [5 if drawing.method == "labor" else 512], drawing, score=score)
        layers.sample(seeds, 0)
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = status("VmRSS")
        sample = layers.sample(seeds, 1)
        peak = status("VmHWM") - before
        outputs = sum(x.nbytes for part in (*sample[:4], sample.edge_weight) for x in part)
        if score is None:
            aims[f"{name}: bytes of scratch memory per scanned edge"] = judged((peak - outputs) / edges, most=32)
        else:
            of_nodes[f"{name}: bytes of scratch memory per candidate"] = (peak - outputs) / edges
        del sample
    ops.pool_limit(kept)
    libc.prctl(41, 0, 0, 0, 0)
    say_aims(aims)
    for name, each in of_nodes.items():
        print(f"  {name}: {each:.3g}")
    return aims | of_nodes


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--no-schools", action="store_true", help="leave out fb100")
    options.add_argument("--lists", type=int, default=100_000, help="lists of the graph for scratch memory")
    args = options.parse_args()
    torch.set_num_threads(1)
    results = {}
    if not args.no_schools and (found := schools()) is not None:
        print("\n24 schools of fb100")
        found = as_csc(found)
        results["schools"] = {
            "ladies": ladies(found, args.rounds),
            "labor": labor(found, args.rounds),
            "node counts": node_counts(found, args.rounds),
        }
        if not args.no_save:
            save("layerwise", results)
    for name in args.graphs:
        csc = as_csc(graph(name)[0])
        print(f"\nR-MAT {name}")
        results[name] = {
            "ladies": ladies(csc, args.rounds),
            "labor": labor(csc, args.rounds),
        }
        del csc
        ops.pool_trim()
    results["scratch"] = scratch(args.lists)
    if not args.no_save:
        save("layerwise", results)


if __name__ == "__main__":
    main()
