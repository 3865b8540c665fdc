"""A task of a generated relational database: opened, its rows gathered, its batches made.

    python benchmarks/bench_relational.py

Comparisons, each in one run, in turns, on one thread. Opening: from parquet, and from what ``cache=`` keeps. Rows: the
TensorFrames of the nodes of sampled batches, by our gathers and by torch_frame's own indexing. Batches of an entity
task: our NeighborLoader and PyG's. Batches of a recommendation: our AnchorLoader and RelBench's LinkNeighborLoader.
Theirs sample by pyg-lib, without which they cannot sample by time. ``written again``: what no loader can do without:
the objects of a batch that is there already are made once more, and its numbers copied to memory that the process
already has. Steps: where the CPU time of our batch goes. Limits: what memory alone takes of each: each line of memory
that holds an entry or a row of the batch is read once, all prefetched, each number of the batch is written once, and
its objects are made.

With ``--scores SEEDS``: RelBench's model, trained with our loaders and with theirs, by seed (relational_scores.json).
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch_geometric.loader
from common import compare, has, judged, parser, report, save, say_aims
from limits import lines_of, read_lines
from torch_geometric.data import HeteroData
from torch_geometric.typing import TensorFrame

from torch_gnnscale import relational
from torch_gnnscale.datasets import planted_shop
from torch_gnnscale.feature.composite import plain_tensors
from torch_gnnscale.loader.data_rows import rows_at
from torch_gnnscale.loader.row_source import Ids
from torch_gnnscale.sampler.minibatch import MiniBatch
from torch_gnnscale.tasks import RelationalConfig, RelationalTrainer

TASK, RECOMMENDATION, BATCH = "customer-orders", "customer-products", 512
AIMS = {TASK: 8.0, RECOMMENDATION: 5.0}
"""How many batches of ours are made in the CPU time of one of theirs."""


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


def pygs(graph: relational.TaskGraph, ours: Any, fanouts: list[int], **options: Any) -> Any:
    """PyG's loader of the seeds of one of ours, at their times."""
    given = ours.input_data
    return torch_geometric.loader.NeighborLoader(
        graph.data, fanouts, (given.input_type, given.node), input_time=given.time, time_attr="time",
        transform=ours.transform, **options,
    )  # fmt: skip


def relbenchs(graph: relational.TaskGraph, fanouts: list[int], **options: Any) -> Any:
    """RelBench's loader of the rows of the split ``train``, with times in seconds, which its own function misreads."""
    from relbench.modeling.graph import get_link_train_table_input
    from relbench.modeling.loader import LinkNeighborLoader

    from torch_gnnscale.relational.database_graph import seconds

    task = graph.task
    table = task.get_table("train")
    given = get_link_train_table_input(table, task, graph.data[task.dst_entity_table].num_nodes)
    return LinkNeighborLoader(
        data=graph.data, num_neighbors=fanouts, time_attr="time", src_nodes=given.src_nodes, dst_nodes=given.dst_nodes,
        num_dst_nodes=given.num_dst_nodes, src_time=seconds(table.df[table.time_col], "date", "down"), shuffle=True,
        **options,
    )  # fmt: skip


def measure_batches(graph: relational.TaskGraph, fanouts: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """One batch of the split ``train``."""
    loader = graph.loaders(fanouts, splits=["train"], batch_size=BATCH, seed=0, prefetch=0)["train"]
    ours, candidates, name = cycle_of(loader), {}, graph.task.name
    candidates["ours"] = lambda _: next(ours)
    candidates["written again"] = written_again(next(ours))
    if has("pyg_lib"):
        other = relbenchs(graph, fanouts, batch_size=BATCH) if name == RECOMMENDATION else None
        theirs = cycle_of(pygs(graph, loader, fanouts, batch_size=BATCH, shuffle=True) if other is None else other)
        candidates["theirs"] = lambda _: next(theirs)
    results = compare(candidates, rounds, cpu=True)
    report(f"{name}: a batch of {BATCH} seeds", results, "theirs" if "theirs" in candidates else None)
    return results


def written_again(batch: HeteroData) -> Callable[[int], HeteroData]:
    """A function that makes the HeteroData and the TensorFrames of a batch again, and copies each number once."""

    def numbers(value: Any) -> list[torch.Tensor]:
        if isinstance(value, torch.Tensor):
            return [value]
        if isinstance(value, TensorFrame):
            return [tensor for of in value.feat_dict.values() for tensor in numbers(of)]
        return [*numbers(value.values), *numbers(value.offset)] if hasattr(value, "offset") else []

    tensors = [tensor for store in batch.stores for value in store.values() for tensor in numbers(value)]
    copies, objects = [tensor.clone() for tensor in tensors], objects_again(batch)

    def again(number: int) -> HeteroData:
        for tensor, to in zip(tensors, copies, strict=True):
            to.copy_(tensor)
        return objects(number)

    return again


def objects_again(batch: HeteroData) -> Callable[[int], HeteroData]:
    """A function that makes the HeteroData and the TensorFrames of a batch again, of the same numbers."""

    def again(_: int) -> HeteroData:
        made = copy.copy(batch)
        for store in made.node_stores:
            if "tf" in store:
                store.tf = copy.copy(store.tf)
        return made

    return again


def measure_steps(graph: relational.TaskGraph, fanouts: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """CPU milliseconds of a batch by step: drawing neighbors, gathering rows and making the HeteroData; the latter two
    together for PyG's loader, of an entity task, on the same seeds."""
    loader = graph.loaders(fanouts, splits=["train"], batch_size=BATCH, seed=0, prefetch=0)["train"]
    line, seeds = loader._line, loader.input_data
    positions = torch.randperm(len(seeds.node), generator=torch.Generator().manual_seed(0))[: 4 * BATCH].split(BATCH)
    indices = [MiniBatch(0, number, some) for number, some in enumerate(positions)]
    ours = {
        "sample": lambda index, _: line.sample(index),
        "rows": lambda _, out: line.fetch(out),
        "collate": lambda _, batch: line.deliver(line.collate(batch)),
    }
    sums = {"ours": _by_step(ours, indices, rounds)}
    if has("pyg_lib") and graph.task.name == TASK:
        other = pygs(graph, loader, fanouts, batch_size=BATCH)
        theirs = {
            "sample": lambda index, _: other.node_sampler.sample_from_nodes(seeds[index.positions]),
            "rows and collate": lambda _, out: other.filter_fn(out),
        }
        sums["theirs"] = _by_step(theirs, indices, rounds)
    for name, steps in sums.items():
        print(f"{graph.task.name}, {name}: CPU ms: " + ", ".join(f"{step} {of:.2f}" for step, of in steps.items()))
    return sums


def measure_limits(graph: relational.TaskGraph, fanouts: list[int], rounds: int) -> dict[str, Any]:
    """What memory alone takes of each step of one batch, in CPU milliseconds, with lines that are read and bytes that
    are written. Columns of times, nested values and tables of known nodes, which a loader reads, too, are left out."""
    loader = graph.loaders(fanouts, splits=["train"], batch_size=BATCH, seed=0, prefetch=0)["train"]
    batch, data, stored = next(iter(loader)), graph.data, loader.node_sampler.graph.stored
    lines: dict[str, list[np.ndarray]] = {"sample": [], "rows": []}
    written: dict[str, list[torch.Tensor]] = {"sample": [], "rows": []}
    for number, edge_type in enumerate(loader.node_sampler.graph.edge_types):
        edges, into = batch[edge_type], batch[edge_type[2]]
        expanded = into.n_id[: sum(into.num_sampled_nodes[:-1])]
        lines["sample"].append(lines_of(stored.colptr[number], expanded))
        places, ids = edges.e_id, stored.edge_id[number]
        if ids is not None:
            at = torch.empty(ids.numel(), dtype=torch.int64)
            at[ids.long()] = torch.arange(ids.numel())
            places = at[places]
        lines["sample"].append(lines_of(stored.row[number], places))
        written["sample"] += [edges.edge_index, edges.e_id]
    for of in data.node_types:
        written["sample"] += [batch[of].n_id, batch[of].batch]
        for tensor in (*plain_tensors(data[of].tf), *([data[of].time] if "time" in data[of] else [])):
            lines["rows"].append(lines_of(tensor, batch[of].n_id))
            written["rows"].append(tensor[batch[of].n_id])

    def memory(step: str) -> Callable[[int], None]:
        addresses, tensors = np.concatenate(lines[step]), [tensor.clone() for tensor in written[step]]

        def run(number: int) -> None:
            read_lines(addresses)
            for tensor in tensors:
                tensor.fill_(number)

        return run

    found = compare({**{step: memory(step) for step in lines}, "objects": objects_again(batch)}, rounds, cpu=True)
    for step in lines:
        found[step]["lines"] = sum(map(len, lines[step]))
        found[step]["MB written"] = sum(tensor.nbytes for tensor in written[step]) / 1e6
    report(f"{graph.task.name}: limits of memory", found, None)
    return found


def _by_step(steps: dict[str, Any], indices: list[MiniBatch], rounds: int) -> dict[str, float]:
    """CPU milliseconds of each step, called with the batch's number and what the step before it returned."""
    sums = dict.fromkeys(steps, 0.0)
    for round_ in range(-1, rounds):
        for index in indices:
            made = None
            for name, step in steps.items():
                begin = time.process_time()
                made = step(index, made)
                sums[name] += (time.process_time() - begin) * 1e3 / (rounds * len(indices)) * (round_ >= 0)
    return sums


def cycle_of(loader: Any) -> Any:
    """Batches without end, epoch after epoch."""
    return (batch for _ in cycle([0]) for batch in loader)


class Theirs(RelationalTrainer):
    """The same model, training and evaluation with PyG's loader, and RelBench's for recommendations."""

    def training_batches(self) -> Any:
        """See :class:`RelationalTrainer`."""
        if not self.recommends:
            return super().training_batches()
        loader = relbenchs(self.task, self.config.fanouts, batch_size=self.config.batch_size)
        return _Tuples(loader)

    def _loaders_of(self, split: str) -> dict[str, Any]:
        ours = super()._loaders_of(split)
        size = self.config.batch_size if split == "train" else 4 * self.config.batch_size
        options = {"batch_size": size, "shuffle": split == "train"}
        return {name: pygs(self.task, loader, self.config.fanouts, **options) for name, loader in ours.items()}

    def loss(self, batch: Any) -> tuple[torch.Tensor, int]:
        """See :class:`RelationalTrainer`."""
        if not self.recommends:
            return super().loss(batch)
        of = self.task.task
        tables = of.src_entity_table, of.dst_entity_table, of.dst_entity_table
        source, positive, negative = (
            self.model(part)[table][: part[table].batch_size]
            for part, table in zip(batch.parts, tables, strict=True)
        )  # fmt: skip
        score = (source * (positive - negative)).sum(1)
        return -torch.nn.functional.logsigmoid(score).mean(), len(score)


class _Tuples:
    """RelBench's triples of batches, counted as one."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        for parts in self.loader:
            yield SimpleNamespace(
                parts=parts,
                num_edges=sum(part.num_edges for part in parts),
                num_nodes=sum(part.num_nodes for part in parts),
            )


def measure_scores(shop: Path, cache: Path, tasks: list[str], seeds: int, epochs: int) -> dict[str, Any]:
    """Test scores by seed, and whether their means differ by less than their standard error."""
    found: dict[str, Any] = {}
    for task in tasks:
        graph, scores = relational.open_task(shop, task, cache=cache), {"ours": list[float](), "theirs": list[float]()}
        for seed in range(seeds):
            config = RelationalConfig(
                hidden=32, fanouts=[8, 8], batch_size=256, epochs=epochs, blocks=1, seed=seed, lr=0.01
            )
            for name, kind in (("ours", RelationalTrainer), ("theirs", Theirs)):
                summary = kind(graph, config, quiet=True).run(report=lambda _: None)
                scores[name].append(summary["test"])
        of, ours, theirs = summary["metric"], scores["ours"], scores["theirs"]
        error = (stdev(ours) ** 2 / seeds + stdev(theirs) ** 2 / seeds) ** 0.5
        difference = mean(ours) - mean(theirs)
        aim = judged(difference, within=error)
        print(f"\n{task}: {of}: ours {mean(ours):.4f}, theirs {mean(theirs):.4f}, standard error {error:.4f}")
        say_aims({"difference of means": aim})
        found[task] = {"metric": of, **scores, "baseline": summary.get("baseline"), "difference": aim}
    return found


def main() -> None:
    options = parser(__doc__, graphs=False)
    options.add_argument("--customers", type=int, default=10_000)
    options.add_argument("--fanouts", type=int, nargs="+", default=[16, 8, 8])
    options.add_argument("--scores", type=int, default=0, metavar="SEEDS", help="train with so many seeds, no timing")
    options.add_argument("--epochs", type=int, default=2, help="of --scores")
    options.add_argument("--tasks", nargs="+", default=[TASK, "customer-spending", RECOMMENDATION], help="of --scores")
    args = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shop, cache = planted_shop(Path(folder) / "shop", args.customers), Path(folder) / "cache"
        if args.scores:
            scores = measure_scores(shop, cache, args.tasks, args.scores, args.epochs)
            if not args.no_save:
                save("relational_scores", {"customers": args.customers, "epochs": args.epochs, **scores})
            return
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
        results: dict[str, Any] = {"opening": opening, "rows": measure_rows(graph, args.fanouts, args.rounds)}
        aims = {}
        for task in (TASK, RECOMMENDATION):
            graph = relational.open_task(shop, task, cache=cache)
            batches = measure_batches(graph, args.fanouts, args.rounds)
            ratio = batches["theirs"]["cpu"] / batches["ours"]["cpu"] if "theirs" in batches else None
            aims[task] = judged(ratio, least=AIMS[task])
            limits = measure_limits(graph, args.fanouts, args.rounds)
            results[task] = {
                "batches": batches, "steps": measure_steps(graph, args.fanouts, args.rounds), "limits": limits
            }  # fmt: skip
            if ratio is not None:
                at_limits = batches["theirs"]["cpu"] / sum(of["cpu"] for of in limits.values())
                print(f"{task}: {ratio:.2f}; at the limits of memory it would be {at_limits:.1f}")
                results[task]["ratio_at_limits"] = at_limits
        say_aims(aims)
    if not args.no_save:
        save("relational", {"customers": args.customers, "fanouts": args.fanouts, **results, "aims": aims})


if __name__ == "__main__":
    main()
