"""The rows of a part's own nodes in tiers, a quarter of them in memory, against all of them mapped from files.

    python benchmarks/bench_own_tiers.py --folder DIR

An R-MAT graph with 128 floats per node in 2 random parts, one process for each; both read DIR. A hundredth of the nodes
are seeds, batches of 1024 x (15, 10, 5). The rows of a batch are partly those of the rank's own part, partly those that
the other rank reads and sends. Cold: before each batch the files of the rows are taken out of the page cache, which is
checked. Warm: all that is read is in the page cache. It is checked that the batches are equal.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench_tiers import BATCH, FANOUTS, FEATURES, forget, rows_of
from common import GRAPHS, parser, save
from ranks import is_parent, start
from torch import distributed as dist
from torch_geometric.data import Data

from torch_gnnscale import NeighborLoader, partition
from torch_gnnscale.distributed import Part, open_part
from torch_gnnscale.topology import rmat

WORLD, SHARE, SEED = 2, 0.25, 1
TIERS = {"mapped": None, "tiers": {"host": SHARE}}


class Candidate:
    """A part that was opened with tiers or without, and a loader that makes one batch after another."""

    def __init__(self, part: Part) -> None:
        self.part = part
        seeds, stores = part.input_nodes("train"), (part.features, part.graph)
        self.loader = NeighborLoader(stores, FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=SEED, prefetch=0)
        folder, _, array = part.stored.origins[None, "x"]
        self.file, self.mapped = Path(folder, f"{array}.npy"), [part.stored.rows[None, "x"]]
        if part.features.tiers is not None:
            self.mapped.append(part.features.tiers._tensors[None, "x"].segments[-1])


def timed(candidates: dict[str, Candidate], cold: bool) -> dict[str, list[float]]:
    """Milliseconds of each batch of an epoch on the slowest rank; the candidates take turns."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for candidate in candidates.values():
        candidate.loader.set_epoch(0)
    batches = {name: iter(candidate.loader) for name, candidate in candidates.items()}
    for number in range(len(next(iter(candidates.values())).loader)):
        made = {}
        for name in random.Random(number).sample(list(candidates), len(candidates)):
            if cold:
                candidate = candidates[name]
                forget(candidate.file, [tensor for other in candidates.values() for tensor in other.mapped])
            dist.barrier()
            begin = time.perf_counter()
            made[name] = next(batches[name])
            took = torch.tensor(time.perf_counter() - begin)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            times[name].append(float(took) * 1e3)
        for batch in made.values():
            assert torch.equal(batch.n_id, made["mapped"].n_id)
            assert torch.equal(batch.x[::97], rows_of(batch.n_id[::97])), "wrong rows"
    return times


def in_rank(folder: Path) -> dict[str, Any]:
    """What each rank does."""
    with ExitStack() as stack:
        opened = {
            name: stack.enter_context(open_part(folder / "parts", tiers=tiers, verify=False))
            for name, tiers in TIERS.items()
        }
        candidates = {name: Candidate(part) for name, part in opened.items()}
        found: dict[str, Any] = {"cold": timed(candidates, cold=True)}
        timed(candidates, cold=False)
        found["warm"] = timed(candidates, cold=False)
        found["hit rate"] = opened["tiers"].features.tiers.stats()["host"].hit_rate
        found["rows"] = next(candidates["mapped"].loader.samples(0)).node.numel()
        dist.barrier()
    return found


def measure(name: str, folder: Path, limit: int) -> dict[str, Any]:
    """A graph in parts, one process for each."""
    nodes, edges = GRAPHS[name]
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[torch.randperm(nodes, generator=torch.Generator().manual_seed(SEED))[: nodes // 100]] = True
    data = Data(x=rows_of(torch.arange(nodes)), edge_index=rmat(nodes, edges, seed=1), train_mask=mask)
    partition.write(data, folder / "parts", parts=WORLD, method="random")
    del data
    os.sync()
    ranks = start(__file__, folder, WORLD, None, limit)
    result: dict[str, Any] = {
        "rows of a part, MiB": nodes * FEATURES * 4 / WORLD / 2**20, "rows per batch": ranks[0]["rows"],
        "share from memory": sum(rank["hit rate"] for rank in ranks) / WORLD,
    }  # fmt: skip
    for state in ("cold", "warm"):
        times = ranks[0][state]
        ratios = sorted(a / b for a, b in zip(times["mapped"], times["tiers"], strict=True))
        result[state] = {
            **{f"{candidate}_ms": median(values) for candidate, values in times.items()},
            "speedup": median(ratios), "low": ratios[len(ratios) // 4], "high": ratios[len(ratios) * 3 // 4],
        }  # fmt: skip
    print(f"R-MAT {name}: {json.dumps(result)}", flush=True)
    return result


def main() -> None:
    if is_parent(in_rank):
        return
    options = parser(__doc__.splitlines()[0], rounds=False)
    options.add_argument("--folder", help="on the disk that is to be measured; by default the working directory")
    options.add_argument("--limit", type=int, default=400, help="seconds after which ranks are ended")
    options.set_defaults(graphs=["1M-16M"])
    args = options.parse_args()
    results = {}
    for name in args.graphs:
        with tempfile.TemporaryDirectory(prefix="gnnscale-", dir=args.folder or os.getcwd()) as folder:
            results[name] = measure(name, Path(folder), args.limit)
    if not args.no_save:
        save("own_tiers", results)


if __name__ == "__main__":
    main()
