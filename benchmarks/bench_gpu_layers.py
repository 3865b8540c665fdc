"""Layer-wise sampling on a GPU, one batch at a time and in bulk, against what any such sampler has to do.

    python benchmarks/bench_gpu_layers.py

A batch is 1024 seeds; LADIES draws 1024 nodes for each of two hops, LABOR (10, 10) neighbors. Batches are compared with
the CPU's before anything is timed. A bulk of 32 is to take a third of the time of 32 batches one by one. LADIES in bulk
is to take at most 3 times as long as a kernel that only reads the edges into the same frontiers, claims a cell of a
hash table for each source and adds to its score (limits.cu, which nvcc compiles here). Bulks are drawn from a graph on
the GPU and from one in pinned memory (figure 5 of matrix-based sampling; its UVA).
"""

from __future__ import annotations

from itertools import accumulate

import torch
from common import data_of, judged, parser, report, save, say_aims
from gpu_timing import compare_waits
from limits_gpu import ClaimsAndAdds
from torch import Tensor

from torch_gnnscale import CSC, ops
from torch_gnnscale.topology.segmented import SegmentedCSC

BATCH = 1024
DEVICE = "cuda:0"
METHODS = {
    "ladies": (ops.LayerDrawing("ladies"), [1024, 1024]),
    "fastgcn": (ops.LayerDrawing("fastgcn"), [1024, 1024]),
    "labor": (ops.LayerDrawing("labor", "sequential"), [10, 10]),
}


def draw(graph: ops.PreparedLayerBulks, seeds: list[Tensor], keys: list[int]) -> list[ops.Sample]:
    """A bulk's samples; returns when the GPU has made them."""
    samples = graph.sample_many(seeds, keys)
    torch.cuda.synchronize()
    return samples


def check(found: list[ops.Sample], here: ops.PreparedLayers, seeds: list[Tensor], keys: list[int]) -> None:
    """Raises RuntimeError unless samples equal the CPU's."""
    for sample, batch, key in zip(found, seeds, keys, strict=True):
        expected = here.sample(batch.cpu(), key)
        for name in ("node", "colptr", "edge_index", "edge_id", "edge_weight"):
            if not torch.equal(getattr(sample, name)[0].cpu(), getattr(expected, name)[0]):
                raise RuntimeError(f"{name} of the batch with key {key} differs from the CPU's")


def scanned_edges(csc: CSC, found: list[ops.Sample]) -> int:
    """The number of stored edges into all frontiers, repeats included. A hop expands the nodes that the hop before it
    found."""
    degree, total = csc.colptr.diff(), 0
    for sample in found:
        columns = len(sample.colptr[0]) - 1
        total += int(degree[sample.node[0][:columns].cpu()].sum())
    return total


def frontiers(found: list[ops.Sample]) -> list[list[Tensor]]:
    """For each hop, the distinct nodes that each batch expands."""
    ends = [[0, *accumulate(sample.num_nodes[0])] for sample in found]
    return [
        [sample.node[0][end[hop] : end[hop + 1]].unique() for sample, end in zip(found, ends, strict=True)]
        for hop in range(len(ends[0]) - 2)
    ]


def sampling(csc: CSC, method: str, rounds: int, bulk: int) -> tuple[dict, dict]:
    """Milliseconds per batch, one by one and in a bulk of ``bulk`` batches, and the aims."""
    drawing, num_nodes = METHODS[method]
    device, stored = torch.device(DEVICE), csc.relations()
    score = ops.node_scores(stored, drawing.scores) if method == "fastgcn" else None
    there, in_host = SegmentedCSC.on_gpu(csc, device), SegmentedCSC.on_gpu(csc, device, 0)

    own = None if score is None else score.to(device)
    graph, pinned = (
        ops.PreparedLayerBulks(
            of.colptr,
            of.row,
            of.edge_id,
            of.spread,
            num_nodes,
            drawing,
            device,
            score=own,
            layers=False,
            include_dst=True,
        )
        for of in (there, in_host)
    )
    here = ops.PreparedLayers(stored, num_nodes, drawing, score=score)
    batches = torch.randperm(csc.num_dst, generator=torch.Generator().manual_seed(0))[: BATCH * bulk].split(BATCH)
    seeds, keys = [batch.to(device) for batch in batches], list(range(len(batches)))
    bulk = len(batches)
    found = draw(graph, seeds, keys)
    check(found, here, seeds, keys)
    check(draw(pinned, seeds, keys), here, seeds, keys)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    draw(graph, seeds, keys)
    scanned = scanned_edges(csc, found)
    scratch = (torch.cuda.max_memory_allocated() - before) / max(scanned, 1)
    candidates = {
        "1 at a time": lambda _: [draw(graph, [batch], [key]) for batch, key in zip(seeds, keys, strict=True)],
        f"{bulk} at a time": lambda _: draw(graph, seeds, keys),
        f"{bulk} at a time, graph in pinned memory": lambda _: draw(pinned, seeds, keys),
    }
    if method == "ladies":
        bare = [ClaimsAndAdds(csc, nodes, device) for nodes in frontiers(found)]
        for hop in bare:
            hop.check()

        def claim(_: int) -> None:
            for hop in bare:
                hop.run()
            torch.cuda.synchronize()

        candidates["only claims and adds"] = claim
    results: dict = {
        name: next(iter(compare_waits({name: candidate}, rounds, batches=bulk).values()))
        for name, candidate in candidates.items()
    }
    results |= {"scanned_edges": scanned / bulk, "bytes_per_scanned_edge": scratch}
    first, second = (results[name]["median_ms"] for name in ("1 at a time", f"{bulk} at a time"))
    aims = {f"one by one / {bulk} at a time": judged(first / second, least=3)}
    if method != "fastgcn":  # whose candidates are nodes, not sources of edges
        aims["bytes of GPU memory per scanned edge"] = judged(scratch, most=96)
    if method == "ladies":
        aims["bulk / claims and adds"] = judged(second / results["only claims and adds"]["median_ms"], most=3)
    return results, aims


def main() -> None:
    """Prints and saves the results."""
    options = parser((__doc__ or "").splitlines()[0])
    options.set_defaults(graphs=["2.4M-124M"])
    options.add_argument("--batches", type=int, default=32, help="of a bulk; default: %(default)s")
    args = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_gpu_layers: torch sees no CUDA device, so there is nothing to measure")
    results: dict = {"gpu": torch.cuda.get_device_name(0)}
    for name in args.graphs:
        csc = CSC.from_data(data_of(name, 1))
        results[name] = {}
        for method in METHODS:
            drawn, aims = sampling(csc, method, args.rounds, args.batches)
            timed = {key: entry for key, entry in drawn.items() if isinstance(entry, dict)}
            report(f"{name}: {method}, {BATCH} x {METHODS[method][1]}, a batch", timed, None)
            say_aims(aims)
            results[name][method] = {**drawn, "aims": aims}
            if not args.no_save:
                save("gpu_layers", results)  # what comes next may run out of time


if __name__ == "__main__":
    main()
