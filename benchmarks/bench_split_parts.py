"""Split batches of a graph in parts: drawn by all ranks together, beside drawn whole on each rank and cut.

    python benchmarks/bench_split_parts.py

Both loaders read equal parts, but in those of one, edges are in parts, and in those of the other, each rank maps all
edges. Parts are written by a presampled plan and by random owners. 1024 seeds, fanouts (15, 10, 5), without overlap
(``prefetch=0``), no model. Every process has one thread; epochs take turns. Per batch and rank:

- CPU time of all threads, and its ratio to that of drawing and cutting whole batches; with more ranks than cores, it
  is disturbed less than time by the clock;
- seconds of sampling by the clock, waiting for other ranks included, and of the whole step;
- rounds, bytes of ids that ranks send one another, and the edges that a rank keeps.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

from common import parser, save
from ranks import data_of, is_parent, race, start

from torch_gnnscale import NeighborLoader, partition, split
from torch_gnnscale.distributed import open_part

FANOUTS, BATCH, SEED = [15, 10, 5], 1024, 1
WAYS = {"together": "partitioned", "whole": "replicated"}
"""By how batches are drawn: the topology of the parts."""
OWNERS = ("presampled", "random")


def in_rank(folder: Path) -> dict[str, Any]:
    """What each rank does."""
    options = json.loads((folder / "options.json").read_text())
    plan, found = split.Plan.open(folder / "plan"), {}
    with open_part(folder / "together") as together, open_part(folder / "whole") as whole:
        parts, loaders, runs = {"together": together, "whole": whole}, {}, {}
        cpu: dict[str, list[float]] = {name: [] for name in WAYS}
        sampling: dict[str, list[float]] = {name: [] for name in WAYS}
        for name, part in parts.items():
            seeds = part.input_nodes("train", of="all")
            loaders[name] = NeighborLoader(
                (part.features, part.graph), FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=SEED, prefetch=0,
                drop_last=True, split=plan,
            )  # fmt: skip

            def run(epoch: int, name: str = name) -> None:
                loader = loaders[name]
                loader.set_epoch(epoch)
                begin, sampled = time.process_time(), loader.seconds["sample"]
                for _ in loader:
                    pass
                cpu[name].append(time.process_time() - begin)
                sampling[name].append(loader.seconds["sample"] - sampled)

            runs[name] = run
        seconds = race(runs, options["rounds"])
        steps = len(loaders["whole"])
        for name, part in parts.items():
            sent = part.stats().get("frontiers", {"rounds": 0, "bytes_sent": 0})
            taken = steps * len(cpu[name])
            relation = part.stored.relations[None] if name == "together" else part.graph.relation(None)
            edges = (relation.colptr, relation.row, relation.edge_id)
            found[name] = {
                "step_ms": median(seconds[name]) / steps * 1e3,
                "cpu_ms": median(cpu[name][1:]) / steps * 1e3,
                "sample_ms": median(sampling[name][1:]) / steps * 1e3,
                "rounds": sent["rounds"] / taken,
                "bytes": sent["bytes_sent"] / taken,
                "edges_mb": sum(entry.nbytes for entry in edges if entry is not None) / 1e6,
            }
    return found


def measure(graph: str, owners: str, world: int, args: Any) -> dict[str, Any]:
    """The figures of a graph on ``world`` ranks."""
    data = data_of(graph, 16, 8, args.steps * BATCH)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        epochs = args.presampled if owners == "presampled" else 0
        plan = split.plan(
            data, data.train_mask, FANOUTS, world, batch_size=BATCH, epochs=epochs, weights=owners, seed=SEED
        )
        plan.save(folder / "plan")
        for way, topology in WAYS.items():
            partition.write(data, folder / way, parts=world, owners=plan.owners, topology=topology)
        (folder / "options.json").write_text(json.dumps({"rounds": args.rounds}))
        ranks = start(__file__, folder, world, None, 3600)
    result: dict[str, Any] = {"graph": graph, "owners": owners, "ranks": world}
    for way in WAYS:
        result[way] = {what: mean(rank[way][what] for rank in ranks) for what in ranks[0][way]}
    ratio = result["CPU time over whole's"] = result["together"]["cpu_ms"] / result["whole"]["cpu_ms"]
    print(f"\n{graph}, {owners} owners, {world} ranks: CPU time {ratio:.2f} of that of whole batches")
    for way in WAYS:
        print(f"  {way:10s}" + "".join(f"  {what} {value:10.2f}" for what, value in result[way].items()))
    return result


def main() -> None:
    if is_parent(in_rank):
        return
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.set_defaults(rounds=7)
    options.add_argument("--graphs", nargs="+", default=["planted", "cnr2000"])
    options.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    options.add_argument("--steps", type=int, default=10, help="batches of an epoch")
    options.add_argument("--presampled", type=int, default=5, help="epochs")
    args = options.parse_args()
    results = [
        measure(graph, owners, world, args) for graph in args.graphs for owners in OWNERS for world in args.ranks
    ]
    if not args.no_save:
        save("split_parts", results)


if __name__ == "__main__":
    main()
