"""The most memory that a rank takes to sample a bulk of k batches where edges are in parts, against a formula.

    python benchmarks/bench_grid_memory.py

The planted graph in p / c random parts, LADIES and GraphSAGE, one bulk on each rank: how much the peak of the rank's
memory exceeds what is resident before the bulk. An equal bulk is sampled first, so that the pages of the part's files
are resident already. The formula is :meth:`Needs.bytes`, given what :func:`expected` computes from the graph's degrees.

It is the memory of tensors that live at once. glibc's malloc keeps freed memory besides, and uses it again, so what a
rank takes then depends on what it did before. A rank is therefore measured with mallopt(M_MMAP_THRESHOLD, 65536), by
which larger tensors are given back as soon as they are freed; a second group of ranks has glibc's defaults.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import judged, parser, save, say_aims
from ranks import data_of, is_parent, start
from torch import Tensor
from torch import distributed as dist

from torch_gnnscale import NeighborLoader, machine, ops, partition
from torch_gnnscale.distributed import Grid, open_part

SEED, LIMIT = 1, 600
METHODS: dict[str, dict[str, Any]] = {
    "LADIES": {"num_neighbors": [512, 512], "batch_size": 512, "method": "ladies"},
    "GraphSAGE": {"num_neighbors": [10, 5], "batch_size": 256},
}
OF_HOP, OF_FETCHED, OF_DRAWN = 70, 11, 104
"""Bytes per edge into a frontier (LADIES), per edge that came from its owner, and per drawn edge (GraphSAGE)."""
OF_KEPT, OF_CANDIDATE, OF_SUMMED = 32, 16, 64
"""While a row of the grid adds up scores: bytes per edge, per candidate, and per candidate of each of the c ranks."""
M_MMAP_THRESHOLD, THRESHOLD = -3, 1 << 16
"""mallopt's number of the option, and the bytes from which it maps memory, and unmaps it when it is freed."""


class Needs(NamedTuple):
    """What a rank's bulk consists of."""

    hop: float = 0
    """Edges into the frontiers of the hop that has most of them."""
    fetched: float = 0
    """Edges into the distinct nodes of all frontiers."""
    candidates: float = 0
    """Distinct sources of the edges that the rank has for the batches of its row, in the hop with most edges."""
    drawn: float = 0
    """Edges drawn in the hop that draws most."""

    def bytes(self, method: str, copies: int) -> float:
        """The memory of a bulk, without its batches' rows, in bytes."""
        if method == "GraphSAGE":
            return OF_DRAWN * self.drawn
        adding = OF_KEPT * self.hop + (OF_CANDIDATE + OF_SUMMED * copies) * self.candidates if copies > 1 else 0
        return OF_FETCHED * self.fetched + max(OF_HOP * self.hop, adding)


def expected(method: str, indegree: Tensor, outdegree: Tensor, batches: int, copies: int) -> Needs:
    """What is expected for a graph, if seeds are random nodes, other nodes are the sources of random edges, and no node
    is in two batches; for GraphSAGE, an upper bound.

    Args:
        method: in METHODS.
        indegree, outdegree: the degrees of each node: int64, shape [n].
        batches: k, the number of batches.
        copies: c, the number of ranks that hold each part.
    """
    options, e = METHODS[method], float(indegree.sum())
    seeds, numbers = options["batch_size"], options["num_neighbors"]
    if method == "GraphSAGE":
        return Needs(drawn=batches * seeds * math.prod(numbers))
    of_source = float((indegree * outdegree).sum()) / e  # D
    of_hops = [seeds * e / len(indegree), *(number * of_source for number in numbers[:-1])]
    hop = max(of_hops)
    candidates = float((1 - (-hop / copies * outdegree / e).exp()).sum())
    return Needs(batches * hop, min(batches * sum(of_hops), e / copies), copies * batches * candidates)


def in_rank(folder: Path) -> dict[str, Any]:
    """The peak of a rank, and the most edges that a hop of its batches drew."""
    libc = ctypes.CDLL(None)
    libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages that are touched, not those around them
    ops.pool_limit(0)  # no memory of earlier calls
    asked = json.loads((folder / "asked.json").read_text())
    if asked["unmaps"]:
        assert libc.mallopt(M_MMAP_THRESHOLD, THRESHOLD)
    options, batches = METHODS[asked["method"]], asked["batches"]
    with open_part(folder / "parts") as part:
        seeds = part.input_nodes("train", "all")[: batches * options["batch_size"] * dist.get_world_size()]
        loader = NeighborLoader(
            (part.features, part.graph), input_nodes=seeds, seed_order="global", bulk=batches, seed=SEED,
            prefetch=0, **options,
        )  # fmt: skip
        assert len(loader) == batches, "the graph has too few nodes"
        for _ in loader:
            pass
        gc.collect()
        libc.malloc_trim(0)
        dist.barrier()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, iterator = machine.resident_memory(), iter(loader)
        first = next(iterator)
        peak = machine.resident_memory(peak=True) - before
        drawn = torch.tensor([batch.num_sampled_edges for batch in [first, *iterator]]).sum(0)
        dist.barrier()
    return {"peak": peak, "drawn": int(drawn.max())}


def measure(graph: str, grid: Grid, batches: int) -> list[dict[str, Any]]:
    """A row for each method: the largest peak of a rank, that with glibc's defaults, the expected one and, for
    GraphSAGE, what the formula gives for the edges that were drawn."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = data_of(graph, 2, 2, 1 << 30)
        partition.write(data, folder / "parts", parts=grid.parts, method="random", topology="partitioned", seed=SEED)
        outdegree, indegree = (torch.bincount(ids, minlength=data.num_nodes) for ids in data.edge_index)
        for method in METHODS:
            worst = {}
            for unmaps in (True, False):
                asked = {"method": method, "batches": batches, "unmaps": unmaps}
                (folder / "asked.json").write_text(json.dumps(asked))
                ranks = start(__file__, folder, grid.ranks, None, LIMIT)
                worst[unmaps] = max(ranks, key=lambda rank: rank["peak"])
            needs = expected(method, indegree, outdegree, batches, grid.copies)
            row = {"method": method, "p": grid.ranks, "c": grid.copies, "k": batches, "peak": worst[True]["peak"]}
            row |= {"by glibc's defaults": worst[False]["peak"]}
            row |= {"needs": needs._asdict(), "expected": needs.bytes(method, grid.copies)}
            if method == "GraphSAGE":
                row["by drawn edges"] = needs._replace(drawn=worst[True]["drawn"]).bytes(method, grid.copies)
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False, rounds=False)
    options.add_argument("--graph", default="planted", help="planted or small")
    options.add_argument("--batches", type=int, nargs="+", default=[8, 24], help="k, of a bulk")
    options.add_argument("--grids", type=int, nargs="+", default=[21, 41, 42], help="p and c in two digits")
    args = options.parse_args()
    rows = [
        row
        for grid in args.grids
        for batches in args.batches
        for row in measure(args.graph, Grid(grid // 10, grid // 10 // (grid % 10)), batches)
    ]
    aims = {}
    for row in rows:
        name = f"{row['method']}, p = {row['p']}, c = {row['c']}, k = {row['k']}: peak over"
        if row["method"] == "GraphSAGE":
            aims[f"{name} the bound"] = judged(row["peak"] / row["expected"], most=1)
        by = row.get("by drawn edges", row["expected"])
        aims[f"{name} the formula, - 1"] = judged(row["peak"] / by - 1, within=0.25)
    say_aims(aims)
    if not args.no_save:
        save("grid_memory", {"graph": args.graph, "runs": rows, "aims": aims})


if __name__ == "__main__" and not is_parent(in_rank):
    main()
