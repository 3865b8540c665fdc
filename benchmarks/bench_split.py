"""Split parallelism beside data parallelism: work, traffic, time and accuracy (GSplit, section 7).

    python benchmarks/bench_split.py

Both train the same model on batches of the same total size, on 1 to 4 ranks, every process on one core. Split: the
ranks compute every batch together. Data parallel: each rank makes a micro-batch of batch size / P seeds under DDP, and
all data lie on every rank. Models are narrowed in both. Epochs take turns.

- work (table 1): rows of features that are read and edges that are computed, summed over the ranks, and their ratio to
  those of split;
- a step (table 3): S, sampling; L, loading; FB, forward, backward and the optimizer, without overlap (``prefetch=0``);
  and the whole step with overlap, relative to data parallel's in the same round;
- traffic of split: rounds and bytes by layer and direction; and by rank the rows that it loads, the edges that it
  computes, and the rows, bytes, rounds and seconds of its exchanges;
- figure 6: the step over ranks, hidden sizes, batch sizes and numbers of layers;
- figure 7: accuracy on the validation nodes by epoch, the mean of several seeds.

Figure 5, imbalance and crossing edges, is in docs/notes/split.md.

Each run is saved when it is done, beside those of settings that are not measured.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from common import RESULTS, judged, parser, save, say_aims, widths
from matplotlib import colormaps
from matplotlib.figure import Figure
from ranks import graph_of, is_parent, race, start
from torch import distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import NeighborLoader, split
from torch_gnnscale.datasets import planted
from torch_gnnscale.nn import narrow

FEATURES, CLASSES, SEED = 100, 16, 1
USUAL = {"hidden": 256, "batch": 1024, "fanouts": [15, 10, 5]}
OTHERS: dict[str, list[Any]] = {"hidden": [64, 512], "batch": [256, 4096], "fanouts": [[15, 10], [10, 5, 5, 5]]}
"""The settings of figure 6, one at a time."""
FIGURE = Path(__file__).parents[1] / "docs" / "split.png"
WAYS = ("split", "data parallel")


class Way:
    """A loader and a model of its own, and what its epochs took."""

    def __init__(
        self, name: str, data: Data, setting: dict[str, Any], plan: split.Plan | None, prefetch: int | None,
        seed: int = SEED,
    ) -> None:  # fmt: skip
        rank, world = dist.get_rank(), dist.get_world_size()
        self.name, self.world = name, world
        given: dict[str, Any] = {"split": plan} if plan is not None else {"shard": (rank, world)}
        size = setting["batch"] if plan is not None else setting["batch"] // world
        self.loader = NeighborLoader(
            data, setting["fanouts"], input_nodes=data.train_mask, batch_size=size, shuffle=True, seed=seed,
            drop_last=True, prefetch=prefetch, **given,
        )  # fmt: skip
        torch.manual_seed(seed)
        inner = GraphSAGE(data.num_features, setting["hidden"], len(setting["fanouts"]), CLASSES)
        self.model: nn.Module = split.parallelize(inner) if plan is not None else narrow(inner)
        if plan is None and world > 1:
            self.model = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.003)
        self.computing = 0.0
        """Seconds of forward, backward and the optimizer in the last epoch."""

    def step(self, batch: Data) -> None:
        """Trains on a batch."""
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        total = cross_entropy(self.model(batch), batch.y[: batch.batch_size], reduction="sum")
        seeds = batch.global_batch_size if self.name == "split" else batch.batch_size
        (total / seeds).backward()
        self.optimizer.step()
        self.computing += time.perf_counter() - begin

    def train(self, epoch: int) -> None:
        """Trains an epoch."""
        self.loader.set_epoch(epoch)
        self.computing = 0.0
        for batch in self.loader:
            self.step(batch)

    def accuracy(self, loader: NeighborLoader, data: Data) -> float:
        """The accuracy on the nodes of a loader."""
        self.model.eval()
        right = torch.zeros(2)
        with torch.no_grad():
            for batch in loader:
                found = self.model(batch).argmax(1) == batch.y[: batch.batch_size]
                right += torch.tensor([float(found.sum()), float(len(found))])
        self.model.train()
        dist.all_reduce(right)
        return float(right[0] / right[1])


def work(batches: Iterator[Data]) -> list[int]:
    """Rows of features that the batches read, and edges that their layers compute: those into group g in L - g."""
    rows = edges = 0
    for batch in batches:
        rows += sum(batch.num_sampled_nodes)
        edges += sum(count * (len(batch.num_sampled_edges) - g) for g, count in enumerate(batch.num_sampled_edges))
    return [rows, edges]


def in_rank(folder: Path) -> dict[str, Any]:
    """What each rank does."""
    options = json.loads((folder / "options.json").read_text())
    data, setting = torch.load(folder / "data.pt", weights_only=False), options["setting"]
    plans = {"split": split.Plan.open(folder / "plan"), "data parallel": None}
    found: dict[str, Any] = {}
    ways = {name: Way(name, data, setting, plan, None) for name, plan in plans.items()}
    for name, way in ways.items():
        sums = torch.tensor(work(iter(way.loader)))
        dist.all_reduce(sums)
        found[name] = {"rows": int(sums[0]), "edges": int(sums[1]), "steps": len(way.loader)}
    times = race({name: way.train for name, way in ways.items()}, options["rounds"])
    model = ways["split"].model
    assert isinstance(model, split.Parallelized)
    before = counted(model)
    ways["split"].train(options["rounds"] + 1)
    found["counted"] = {name: count - before.get(name, 0) for name, count in counted(model).items()}
    for name in ways:
        found[name]["seconds"] = times[name]
    if options["breakdown"]:
        for name, plan in plans.items():
            way = Way(name, data, setting, plan, 0)
            for epoch in range(2):  # the first one warms up
                started = dict(way.loader.seconds)
                way.train(epoch)
            loaded = {key: way.loader.seconds[key] - started[key] for key in ("sample", "gather")}
            found[name] |= {"S": loaded["sample"], "L": loaded["gather"], "FB": way.computing}
    if options["epochs"]:
        found["accuracy"] = {
            name: [learned(name, data, setting, plan, options["epochs"], seed) for seed in range(options["seeds"])]
            for name, plan in plans.items()
        }
    dist.barrier()
    return found


def counted(model: split.Parallelized) -> dict[str, float]:
    """What a rank has done so far, by name; of an exchange, the name begins with its purpose and a colon."""
    work = model.work
    found: dict[str, float] = {"rows": work.rows, "rows of the halo": work.halo}
    found |= {f"edges of {layer}": count for layer, count in work.edges.items()}
    for purpose, rows in work.shuffled.items():
        found |= {f"{purpose}: rows sent": rows.sent, f"{purpose}: rows received": rows.received}
    for purpose, entry in model.traffic.items():
        found |= {
            f"{purpose}: {what.replace('_', ' ')}": getattr(entry, what)
            for what in ("rounds", "bytes_sent", "bytes_received", "seconds")
        }
    return found


def learned(
    name: str, data: Data, setting: dict[str, Any], plan: split.Plan | None, epochs: int, seed: int
) -> list[float]:
    """Accuracy on the validation nodes after each epoch of a run with this seed."""
    way = Way(name, data, setting, plan, None, seed)
    given: dict[str, Any] = {"shard": True} if plan is None else {"split": plan}
    loader = NeighborLoader(
        data, setting["fanouts"], input_nodes=data.val_mask, batch_size=4096, seed=SEED, uneven="serve", **given
    )
    found = []
    for epoch in range(epochs):
        way.train(epoch)
        loader.set_epoch(0)
        found.append(way.accuracy(loader, data))
    return found


def data_of(graph: str, seeds: int) -> Data:
    """``planted`` with its own features and labels; another graph with random ones."""
    if graph == "planted":
        return planted(num_features=FEATURES, num_classes=CLASSES)
    edge_index, num_nodes = graph_of(graph)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_nodes, FEATURES, generator=generator)
    y = torch.randint(CLASSES, (num_nodes,), generator=generator)
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.randperm(num_nodes, generator=generator)[:seeds]] = True
    return Data(x=x, y=y, edge_index=edge_index, train_mask=mask)


def summed_up(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """A run's figures per step."""
    first, steps = ranks[0], ranks[0]["split"]["steps"]
    result: dict[str, Any] = {"steps": steps}
    for name in WAYS:
        entry = first[name]
        result[name] = {"rows": entry["rows"] / steps, "edges": entry["edges"] / steps,
                        "step_ms": median(entry["seconds"]) / steps * 1e3}  # fmt: skip
        for part in ("S", "L", "FB"):
            if part in entry:
                result[name][f"{part}_ms"] = max(rank[name][part] for rank in ranks) / steps * 1e3
    pairs = zip(first["data parallel"]["seconds"], first["split"]["seconds"], strict=True)
    speedups = sorted(theirs / ours for theirs, ours in pairs)
    result["speedup"] = median(speedups)
    result["speedup low"], result["speedup high"] = speedups[len(speedups) // 4], speedups[len(speedups) * 3 // 4]
    for what in ("rows", "edges"):
        result[f"{what} over split's"] = result["data parallel"][what] / result["split"][what]
    result["traffic"] = {
        name: {"rounds": first["counted"][f"{name}: rounds"] / steps,
               "bytes": sum(rank["counted"][f"{name}: bytes received"] for rank in ranks) / steps}
        for name in (key.removesuffix(": rounds") for key in first["counted"] if key.endswith(": rounds"))
    }  # fmt: skip
    result["by rank"] = [{name: count / steps for name, count in rank["counted"].items()} for rank in ranks]
    if "accuracy" in first:
        result["accuracy"] = first["accuracy"]
    return result


def measure(graph: str, world: int, setting: dict[str, Any], args: Any, breakdown: bool, epochs: int) -> dict[str, Any]:
    """The figures of a graph on ``world`` ranks."""
    data = data_of(graph, args.steps * setting["batch"])
    if graph == "planted":
        data.train_mask = first_of(data.train_mask, args.steps * setting["batch"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.save(data, folder / "data.pt")
        made = split.plan(
            data, data.train_mask, setting["fanouts"], world, batch_size=setting["batch"], epochs=args.presampled,
            seed=SEED,
        )  # fmt: skip
        made.save(folder / "plan")
        options = {
            "setting": setting, "rounds": args.rounds, "breakdown": breakdown, "epochs": epochs, "seeds": args.seeds
        }  # fmt: skip
        (folder / "options.json").write_text(json.dumps(options))
        found = summed_up(start(__file__, folder, world, args.limit))
    found["cut"], found["imbalance"] = made.cut_share, made.imbalance
    print(f"{graph}, {world} ranks, {setting}: {found['steps']} steps")
    for key, value in found.items():
        print(f"  {key}: {value if not isinstance(value, float) else f'{value:.4g}'}", flush=True)
    return found


def first_of(mask: torch.Tensor, count: int) -> torch.Tensor:
    """A mask of the first ``count`` nodes of a mask."""
    kept = torch.zeros_like(mask)
    kept[mask.nonzero().view(-1)[:count]] = True
    return kept


def plot(results: dict[str, Any]) -> None:
    """On the left a chart for each graph: speed-ups over data parallelism by setting. On the right, where accuracy was
    measured: its means by epoch, and how far split's are from data parallelism's, with standard errors."""
    graphs = list(dict.fromkeys(key.split(",")[0] for key in results))
    figure = Figure(figsize=(11, 3.4 * max(2, len(graphs))), layout="constrained")
    left, right = figure.subfigures(1, 2)
    for row, graph in zip(left.subplots(len(graphs), 1, squeeze=False, sharex=True)[:, 0], graphs, strict=True):
        runs = {key: entry for key, entry in results.items() if key.startswith(f"{graph},")}
        names = [key.split(", ", 1)[1] for key in runs]
        middle = [entry["speedup"] for entry in runs.values()]
        low = [entry["speedup"] - entry["speedup low"] for entry in runs.values()]
        high = [entry["speedup high"] - entry["speedup"] for entry in runs.values()]
        row.barh(names, middle, xerr=[low, high], color="tab:blue", error_kw={"linewidth": 0.8})
        row.axvline(1.0, color="black", linewidth=0.8)
        row.invert_yaxis()
        row.tick_params(axis="y", labelsize=8)
        row.set(title=f"{graph}: steps of split parallelism", xlabel="times as fast as data parallelism")
    learned = {key: entry["accuracy"] for key, entry in results.items() if "accuracy" in entry}
    if learned:
        above, below = right.subplots(2, 1, sharex=True)
        of_way = {way: np.array([curves[way] for curves in learned.values()]) for way in WAYS}  # [runs, seeds, epochs]
        epochs = np.arange(1, of_way["split"].shape[2] + 1)
        width = iter(widths(2 * len(learned)))
        for way in ("data parallel", "split"):
            for place, (key, accuracy) in enumerate(zip(learned, of_way[way].mean(1), strict=True)):
                color = colormaps["tab20"](2 * place + (way == "data parallel"))  # a light and a dark one for each run
                above.plot(epochs, accuracy, color=color, linewidth=next(width), label=f"{key}, {way}")
        for place, apart in enumerate(100 * (of_way["split"] - of_way["data parallel"])):
            error = apart.std(0, ddof=1) / len(apart) ** 0.5 if len(apart) > 1 else None
            at = epochs + 0.1 * (place - (len(learned) - 1) / 2)
            below.errorbar(at, apart.mean(0), error, fmt="o", capsize=3, color=f"C{place}")
        below.axhline(0.0, color="black", linewidth=0.8)
        right.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
        above.set(title="accuracy on validation nodes, means of the seeds")
        below.set(title="accuracy of split minus data parallel, in points", xlabel="epoch")
    figure.savefig(FIGURE, dpi=110)
    print(f"written: {FIGURE}")


def aims_of(results: dict[str, Any]) -> dict[str, Any]:
    """The aims, each with the figure that the runs reached."""
    aims: dict[str, Any] = {}
    for graph, least in (("Oklahoma97", 1.15), ("planted", 0.95)):
        if (run := results.get(f"{graph}, 2 ranks")) is not None:
            aims[f"{graph}, 2 ranks: steps over data parallel's"] = judged(run["speedup"], least=least)
    for key, run in results.items():
        if "accuracy" in run:
            last = {way: mean(curve[-1] for curve in curves) for way, curves in run["accuracy"].items()}
            apart = last["split"] - last["data parallel"]
            aims[f"{key}: accuracy of the last epoch over data parallel's"] = judged(apart, least=-0.005)
    return aims


def main() -> None:
    if is_parent(in_rank):
        return
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.add_argument("--graphs", nargs="+", default=["Oklahoma97", "planted"])
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4])
    options.add_argument("--steps", type=int, default=8, help="of an epoch")
    options.add_argument("--presampled", type=int, default=10, help="epochs")
    options.add_argument("--epochs", type=int, default=6, help="of the curves of accuracy")
    options.add_argument("--seeds", type=int, default=5, help="of the curves of accuracy, which are means")
    options.add_argument("--limit", type=int, default=400, help="seconds after which ranks are ended")
    options.add_argument("--settings", choices=["all", "usual", "others"], default="all", help="those to measure")
    args = options.parse_args()
    saved = RESULTS / "split.json"
    results: dict[str, Any] = json.loads(saved.read_text())["results"] if saved.exists() else {}
    results.pop("aims", None)
    measured = {}
    for title, (graph, world, setting) in runs_of(args.graphs, args.ranks).items():
        usual = setting is USUAL
        if args.settings != "all" and usual != (args.settings == "usual"):
            continue
        epochs = args.epochs if graph == "planted" and world > 1 and usual else 0
        results[title] = measured[title] = measure(graph, world, setting, args, usual, epochs)
        if not args.no_save:
            save("split", {**in_order(results), "aims": aims_of(results)})
    say_aims(aims_of(measured))
    if not args.no_save:
        plot(in_order(results))


def in_order(results: dict[str, Any]) -> dict[str, Any]:
    """Graph by graph: the usual setting by number of ranks, then the others as they were measured."""
    graphs = list(dict.fromkeys(title.split(", ")[0] for title in results))

    def place(title: str) -> tuple[int, bool, str]:
        graph, ranks, *setting = title.split(", ")
        return graphs.index(graph), bool(setting), "" if setting else ranks

    return {title: results[title] for title in sorted(results, key=place)}


def runs_of(graphs: list[str], ranks: list[int]) -> dict[str, tuple[str, int, dict[str, Any]]]:
    """By title: graph, number of ranks and setting."""
    runs = {}
    for graph in graphs:
        for world in ranks:
            runs[f"{graph}, {world} rank{'s' if world > 1 else ''}"] = (graph, world, USUAL)
        for name, values in OTHERS.items():
            for value in values:
                runs[f"{graph}, 2 ranks, {name} {value}"] = (graph, 2, {**USUAL, name: value})
    return runs


if __name__ == "__main__":
    main()
