"""Sampling against pyg-lib, where that is installed: the fused operator, and the sampler in every mode.

    python benchmarks/bench_sample.py
    python benchmarks/bench_sample.py --parts modes --modes "temporal, last"    # only this mode; not saved
    python benchmarks/bench_sample.py --parts modes --cpu-time                  # where other work runs; not saved

The modes are those of sampler_modes.py, on one thread unless another number is named.

The operator samples batches of 1024 x (15, 10, 5). It and pyg-lib return local sources, node ids and edge ids. The
fused operator also writes the column pointer; pyg-lib writes the destinations, and so does one more candidate of ours.
The graph is given as CSC, where an edge's id is its position; and as COO, where edges have the user's ids: the operator
writes these itself, and pyg-lib's positions are looked up in the permutation, as PyG's loader does. This package keeps
graphs in huge pages; one more candidate is pyg-lib with its graph in huge pages. The limit is a loop that only makes
the operator's memory accesses, in the same order and prefetched.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch
from common import as_csc, compare, graph, has, parser, report, save
from limits import SamplerAccesses
from sampler_modes import measure_modes

from torch_gnnscale import ops

FANOUTS = [15, 10, 5]
BATCH = 1024
LIMIT = "its memory accesses alone, 1 thread"
PARTS = ("operator", "modes")
IN_A_ROW = 8  # batches of one candidate in a round, as a loader draws them; each is dropped at once


def check(csc, edge_index, seeds) -> None:
    """Checks a sample: its edges are the graph's, degrees are as asked for, and the number of threads does not
    matter."""
    graph = csc.relations()
    sample = ops.sample_neighbors(graph, [seeds], FANOUTS, 7)
    node, (row, col), edge = sample.node[0], sample.edge_index[0], sample.edge_id[0]
    assert torch.equal(torch.stack([node[row], node[col]]), edge_index[:, edge])
    degree = csc.colptr.diff()
    expanded = node[: sum(sample.num_nodes[0][:-1])]
    fanout = torch.repeat_interleave(torch.tensor(FANOUTS), torch.tensor(sample.num_nodes[0][:-1]))
    assert torch.equal(sample.colptr[0].diff(), torch.minimum(degree[expanded], fanout))
    one, two = (prepared(graph).sample([seeds], 7, threads=threads) for threads in (1, 2))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(one[:4], two[:4], strict=True))
    assert torch.equal(one.edge_id[0], edge)


def check_peer(csc, theirs, edge_index, seeds) -> None:
    """Checks that the peer's edges are the graph's, and as many as were asked for."""
    row, col, node, edge, num_nodes = theirs(seeds)
    assert torch.equal(torch.stack([node[row], node[col]]), edge_index[:, edge])
    expanded = node[: sum(num_nodes[:-1])]
    fanout = torch.repeat_interleave(torch.tensor(FANOUTS), torch.tensor(num_nodes[:-1]))
    assert torch.equal(torch.bincount(col, minlength=len(expanded)), torch.minimum(csc.colptr.diff()[expanded], fanout))


def prepared(graph, with_col=False):
    """The operator as samplers call it: the graph is handed over once."""
    return ops.PreparedNeighbors(graph, FANOUTS, with_col=with_col)


def in_a_row(run, pool=None, threads=2):
    """A round of ``run``: one batch after another on ``threads`` of torch's threads, or several at once in a pool."""

    def all_batches(number):
        torch.set_num_threads(threads)
        batches = range(number * IN_A_ROW, (number + 1) * IN_A_ROW)
        deque((map if pool is None else pool.map)(run, batches), maxlen=0)

    return all_batches


def pyg_lib_draw(csc, huge_pages=False):
    """The same draw by pyg-lib: local sources and destinations, nodes, edge ids and how many nodes each hop found."""
    import pyg_lib  # noqa: F401

    colptr, row = csc.colptr.clone(), csc.row.to(torch.int64)
    permutation = None if csc.edge_id is None else csc.edge_id.to(torch.int64)
    if huge_pages:
        for tensor in (colptr, row) if permutation is None else (colptr, row, permutation):
            ops.huge_pages(tensor)
    options = (None, None, None, None, True, False, True, False, "uniform", True)  # CSC, with edge ids

    def theirs(seeds):
        out = torch.ops.pyg.neighbor_sample(colptr, row, seeds, FANOUTS, *options)
        edge = out[3] if permutation is None else permutation[out[3]]
        return *out[:3], edge, out[4]

    return theirs


def measure(csc, edge_index, seeds, rounds: int) -> dict:
    """All candidates on one graph, whose edges are those of a COO."""
    check(csc, edge_index, seeds[0])
    relabel_map = torch.zeros(csc.num_dst, dtype=torch.int32)
    ops.huge_pages(relabel_map)
    outputs = torch.zeros(4, BATCH * 15 * (1 + 10 * (1 + 5)), dtype=torch.int64)
    accesses = [SamplerAccesses(csc, relabel_map, outputs, part, FANOUTS, key) for key, part in enumerate(seeds)]
    accesses[0].check()
    edges = sum(len(batch.positions) for batch in accesses) // len(accesses)

    stored = csc.relations()

    def ours(threads, with_col=False):
        neighbors = prepared(stored, with_col)
        return lambda i: neighbors.sample([seeds[i]], i, threads=threads)

    pool = ThreadPoolExecutor(2)
    single = {
        "gnnscale, 1 thread": in_a_row(ours(1), threads=1),
        "the same, destinations too": in_a_row(ours(1, with_col=True), threads=1),
        "gnnscale, 2 threads within a batch": in_a_row(ours(2)),
        LIMIT: in_a_row(lambda i: accesses[i].run()),
    }
    double = {"gnnscale, 2 batches in flight": in_a_row(ours(1), pool, 1)}
    if has("pyg_lib"):
        theirs, moved = pyg_lib_draw(csc), pyg_lib_draw(csc, huge_pages=True)
        check_peer(csc, theirs, edge_index, seeds[0])
        single["pyg-lib"] = in_a_row(lambda i: theirs(seeds[i]), threads=1)
        single["pyg-lib, graph in huge pages"] = in_a_row(lambda i: moved(seeds[i]), threads=1)
        double["pyg-lib, 2 Python threads"] = in_a_row(lambda i: theirs(seeds[i]), pool, 1)
    single_times = compare(single, rounds, IN_A_ROW)
    alone = single_times["gnnscale, 1 thread"]
    alone["times_limit"] = alone["median_ms"] / single_times[LIMIT]["median_ms"]
    report(f"{edges:,} edges per batch, one batch at a time", single_times, "pyg-lib")
    double_times = compare(double, rounds, IN_A_ROW)
    report("two batches in flight, time a batch", double_times, "pyg-lib, 2 Python threads")
    pool.shutdown()
    return {"edges_per_batch": edges, **single_times, **double_times}


def measure_operator(graphs: list[str], rounds: int) -> dict:
    """The operator on R-MAT graphs, given as COO and as CSC."""
    results = {}
    for name in graphs:
        csc, edge_index = graph(name)
        seeds = [torch.randperm(csc.num_dst)[:BATCH] for _ in range(rounds * IN_A_ROW)]
        print(f"\nR-MAT {name}, given as COO")
        as_coo = measure(csc, edge_index, seeds, rounds)
        csc = as_csc(csc)
        edge_index = torch.stack([csc.row.to(torch.int64), csc.col()])
        ops.pool_trim()
        print(f"\nR-MAT {name}, given as CSC")
        results[name] = {"as CSC": measure(csc, edge_index, seeds, rounds), "as COO": as_coo}
        del csc, edge_index
        ops.pool_trim()
    return results


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options.add_argument("--modes", nargs="+", help="these modes alone; nothing is saved")
    options.add_argument("--cpu-time", action="store_true", help="modes by the time of the process; nothing is saved")
    args = options.parse_args()
    if "operator" in args.parts:
        results = measure_operator(args.graphs, args.rounds)
        if not args.no_save:
            save("sample", results)
    if "modes" in args.parts:
        warnings.simplefilter("ignore")
        clock = time.process_time if args.cpu_time else time.perf_counter
        results = measure_modes(args.rounds, args.modes, clock)
        if not (args.no_save or args.modes or args.cpu_time):
            save("modes", results)


if __name__ == "__main__":
    main()
