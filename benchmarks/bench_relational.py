"""A task of a generated relational database: opened, its rows gathered, its batches made.

    python benchmarks/bench_relational.py

Three comparisons, each in one run, in turns. Opening: from parquet, and from what ``cache=`` keeps. Rows: the
TensorFrames of the nodes of sampled batches, by our gathers and by torch_frame's own indexing. Batches: our
NeighborLoader and, where pyg-lib is installed, PyG's; without it PyG's loader cannot sample by time.
"""

from __future__ import annotations

import tempfile
from itertools import cycle
from pathlib import Path

import torch
import torch_geometric.loader
from common import compare, has, parser, report, save

from torch_gnnscale import relational
from torch_gnnscale.datasets import planted_shop
from torch_gnnscale.loader.data_rows import Ids, rows_at

TASK, BATCH = "customer-orders", 512


def measure_rows(graph: relational.TaskGraph, fanouts: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """The rows of the nodes of eight batches, one after the other."""
    data = graph.data
    batches = list(zip(graph.loaders(fanouts, batch_size=BATCH, seed=0)["train"], range(8), strict=False))
    nodes = [[(of, batch[of].n_id) for of in data.node_types] for batch, _ in batches]
    for of, ids in nodes[0]:
        assert rows_at(data[of].tf, Ids(ids), 0, len(data[of].tf)) == data[of].tf[ids]

    def ours(_: int) -> None:
        for entry in nodes:
            for of, ids in entry:
                rows_at(data[of].tf, Ids(ids), 0, len(data[of].tf))

    def theirs(_: int) -> None:
        for entry in nodes:
            for of, ids in entry:
                data[of].tf[ids]

    results = compare({"ours": ours, "torch_frame": theirs}, rounds, batches=len(nodes), cpu=True)
    report("Rows of a batch", results, "torch_frame")
    return results


def measure_batches(graph: relational.TaskGraph, fanouts: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """One batch of the training split."""
    loader = graph.loaders(fanouts, batch_size=BATCH, seed=0)["train"]
    ours = cycle_of(loader)
    candidates = {"ours": lambda _: next(ours)}
    if has("pyg_lib"):
        seeds = loader.input_data
        pygs = torch_geometric.loader.NeighborLoader(
            graph.data, fanouts, (graph.task.entity_table, seeds.node), input_time=seeds.time, time_attr="time",
            batch_size=BATCH, shuffle=True,
        )  # fmt: skip
        theirs = cycle_of(pygs)
        candidates["PyG with pyg-lib"] = lambda _: next(theirs)
    results = compare(candidates, rounds, cpu=True)
    report(f"A batch of {BATCH} seeds", results, "PyG with pyg-lib" if len(candidates) > 1 else None)
    return results


def cycle_of(loader: object) -> object:
    """Batches without end, epoch after epoch."""
    return (batch for _ in cycle([0]) for batch in loader)  # type: ignore[attr-defined]


def main() -> None:
    options = parser(__doc__, graphs=False)
    options.add_argument("--customers", type=int, default=10_000)
    options.add_argument("--fanouts", type=int, nargs="+", default=[16, 8, 8])
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shop, cache = planted_shop(Path(folder) / "shop", args.customers), Path(folder) / "cache"
        graph = relational.open_task(shop, TASK, cache=cache)
        print(
            f"{sum(store.num_nodes for store in graph.data.node_stores)} rows; torch's threads:",
            torch.get_num_threads(),
        )
        opening = compare(
            {
                "from parquet": lambda _: relational.open_task(shop, TASK),
                "kept": lambda _: relational.open_task(shop, TASK, cache=cache),
            },
            max(1, args.rounds // 5),
            cpu=True,
        )
        report("Opening a task", opening, "from parquet")
        results = {
            "opening": opening,
            "rows": measure_rows(graph, args.fanouts, args.rounds),
            "batches": measure_batches(graph, args.fanouts, args.rounds),
        }
    if not args.no_save:
        save("relational", {"customers": args.customers, "fanouts": args.fanouts, **results})


if __name__ == "__main__":
    main()
