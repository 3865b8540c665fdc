"""What LADIES exchanges in its first hop where edges are in parts, over grids of p ranks with c copies of each part.

    python benchmarks/bench_grid.py

The planted graph in p / c random parts, p processes, all batches in one bulk (matrix-based sampling, section 5.2). Each
rank counts the stored edges (nonzeros of A) that it receives from other ranks, and the scores of the all-reduce. Beside
these stand kbd, the sum of the degrees of all seeds, and what the sparsity-oblivious algorithm would broadcast. The
number of edges that travel must be exactly the one that follows from the seeds' degrees.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import judged, parser, save, say_aims
from ranks import data_of, is_parent, start

from torch_gnnscale import LayerSampler, NeighborLoader, partition
from torch_gnnscale.distributed import Grid, open_part

BATCH, DRAWN, SEED = 128, 256, 1


def rank_main(folder: Path) -> Any:
    """Samples one bulk, and returns what this rank exchanged."""
    with open_part(folder / "parts") as part:
        stores = part.features, part.graph
        loader = NeighborLoader(
            stores, [DRAWN], part.input_nodes("train", "all"), batch_size=BATCH, seed_order="global", bulk=1 << 20,
            neighbor_sampler=LayerSampler(stores, [DRAWN], "ladies"), seed=SEED, prefetch=0,
        )  # fmt: skip
        next(iter(loader))
        return part.stats()


def measure(graph: str, seeds: int, ranks: int, copies: int) -> dict[str, Any]:
    """The counts of one grid."""
    grid = Grid(ranks, ranks // copies)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = data_of(graph, 1, 2, seeds)
        partition.write(data, folder / "parts", parts=grid.parts, method="random", topology="partitioned", seed=SEED)
        counted = start(__file__, folder, ranks, None, 600)
        with partition.open_parts(folder / "parts") as parts:
            bounds = parts.book.bounds[None]
            of_all = parts.stored_ids()
            node = of_all[parts.input_nodes("train")]
        degree = torch.bincount(of_all[data.edge_index[1]], minlength=len(of_all))
    rank_of = torch.arange(len(node)) // BATCH % ranks
    row, owner = rank_of // copies, torch.searchsorted(bounds, node, right=True) - 1
    kbd, blocks = int(degree[node].sum()), grid.parts // copies
    asked, own, broadcast = [], [], []
    for rank, stats in enumerate(counted):
        part, copy = grid.part(rank), grid.copy(rank)
        mine = (row == part) & (owner // blocks == copy)
        asked.append(int(degree[node[mine]].sum()))
        own.append(int(degree[node[mine & (owner == part)]].sum()))
        came = (stats["edges"]["bytes_received"] // 4 - stats["requests"]["bytes_sent"] // 4) // 2
        assert came == asked[-1] - own[-1], f"rank {rank}: {came} edges came, expected {asked[-1] - own[-1]}"
        served = [k for k in range(copy * blocks, (copy + 1) * blocks) if k != part]
        broadcast.append(sum(int(degree[bounds[k] : bounds[k + 1]].sum()) for k in served))
    columns = [sum(asked[rank] for rank in grid.column(copy)) for copy in range(copies)]
    summed = max(stats.get("scores", {"bytes_received": 0})["bytes_received"] // 16 for stats in counted)
    return {
        "p": ranks, "c": copies, "kbd": kbd, "asked over kbd": sum(asked) / kbd,
        "column over kbd / c": [min(columns) * copies / kbd, max(columns) * copies / kbd],
        "rank over kbd / p": [min(asked) * ranks / kbd, max(asked) * ranks / kbd],
        "own over asked": sum(own) / sum(asked), "c / p": copies / ranks,
        "scores of a rank over c kbd / p": (summed + max(asked)) * ranks / (copies * kbd) if copies > 1 else 0.0,
        "edges that came": sum(asked) - sum(own), "of a broadcast": sum(broadcast),
    }  # fmt: skip


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False, rounds=False)
    options.add_argument("--graph", default="planted", help="planted or small")
    options.add_argument("--seeds", type=int, default=16384)
    options.add_argument("--grids", type=int, nargs="+", default=[21, 41, 42, 81, 82], help="p and c in two digits")
    args = options.parse_args()
    results = [measure(args.graph, args.seeds, *divmod(grid, 10)) for grid in args.grids]
    print(json.dumps(results, indent=1))
    off = {
        name: max(abs(value - 1) for entry in results for value in entry[name])
        for name in ("column over kbd / c", "rank over kbd / p")
    }
    aims = {name: judged(value, within=0.1) for name, value in off.items()}
    aims["own edges, off c / p of all"] = judged(
        max(abs(entry["own over asked"] / entry["c / p"] - 1) for entry in results), within=0.1
    )
    aims["scores of a rank over c kbd / p"] = judged(
        max(entry["scores of a rank over c kbd / p"] for entry in results), most=1
    )
    say_aims(aims)
    if not args.no_save:
        save("grid", {"grids": results, "aims": aims})


if __name__ == "__main__" and not is_parent(rank_main):
    main()
