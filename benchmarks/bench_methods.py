"""Accuracy of models that are trained with each sampling method, at the same number of input nodes per batch.

    GNNSCALE_DATA=path/to/data python benchmarks/bench_methods.py

On each data set, a search finds the numbers of nodes (LABOR: of neighbors) per hop with which a method's batches have
as many nodes as those of neighbor sampling, within 5 %. Then a narrowed and weighed model is trained with five seeds.
Evaluation takes all neighbors. Each row is saved when it is done; ``--more`` keeps the rows that are saved already.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from common import PAPERS, RESULTS, layer_defaults, parser, save
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.sampler import NodeSamplerInput
from tqdm import tqdm

from torch_gnnscale import LayerSampler, NeighborLoader, NeighborSampler, datasets
from torch_gnnscale.datasets import NodeTask
from torch_gnnscale.ops.layer_drawing import SCHEMES_OF, SCORES, WEIGHTS
from torch_gnnscale.tasks import NodeConfig, NodeTrainer
from torch_gnnscale.tasks.metrics import METRICS

FIGURE = Path(__file__).parents[1] / "docs" / "methods.png"
SEEDS = range(5)
NEAR = 0.05
"""How far a row's nodes per batch may be from those of neighbor sampling."""
FANOUTS = [5, 5]
"""The fanouts of neighbor sampling."""
SCHOOLS = ["Caltech36", "Reed98", "Haverford76", "Simmons81", "USFCA72", "Bowdoin47"]
_FB = NodeConfig(residual=True, fanouts=FANOUTS, hidden=64, batch_size=64, lr=0.005, dropout=0.0)
TASKS = {
    "six schools": replace(_FB, epochs=4),
    "cora": replace(_FB, batch_size=70, epochs=20, lr=0.01, weight_decay=5e-4, dropout=0.5),
    "tolokers": replace(_FB, epochs=3, lr=0.003),
    "fb100/Oklahoma97": replace(_FB, epochs=2),
}
SMALL = {"planted": replace(_FB, epochs=1, hidden=8)}
"""A generated graph, for trying this file's code."""


@dataclass(frozen=True)
class Row:
    """A method and what differs from its defaults."""

    method: str = "neighbor"
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        said = [f"{name}={value}" if isinstance(value, bool) else value for name, value in self.options.items()]
        return ", ".join([self.method, *said])

    def sampler(self, data: Any, num_nodes: list[int]) -> NeighborSampler | LayerSampler:
        """The sampler of this row."""
        if self.method == "neighbor":
            return NeighborSampler(data, num_nodes)
        return LayerSampler(data, num_nodes, self.method, **self.options)


FIRST = [
    Row(),
    Row("labor"),
    Row("labor", {"scheme": "poisson"}),
    Row("ladies"),
    *(Row("ladies", o) for o in ({"scores": "counts"}, {"weights": "unbiased"}, {"keep_known": True})),
    Row("ladies", PAPERS["ladies"]),
    Row("fastgcn"),
    Row("fastgcn", PAPERS["fastgcn"]),
]
"""The defaults, what the papers draw, and single changes of LADIES: the rows that are measured first."""
FEW = [
    *FIRST,
    *(Row("labor", o) for o in ({"weights": "unbiased"}, {"layer_dependency": True})),
    *(Row("ladies", {"scheme": scheme}) for scheme in ("poisson", "replace", "successive")),
    *(Row("fastgcn", o) for o in ({"scores": "counts"}, {"weights": "unbiased"}, {"keep_known": True})),
    *(Row("fastgcn", {"scheme": scheme}) for scheme in ("poisson", "replace", "successive")),
]
"""These, and further single changes of the defaults: the rows that are plotted."""


def every_row(keep_known: bool) -> Iterator[Row]:
    """All combinations of scores, schemes and weights, with ``keep_known`` or (those of LABOR, too) without."""
    for method, scheme, scores, weights in product(("ladies", "fastgcn"), SCHEMES_OF["ladies"], SCORES, WEIGHTS):
        given = {"scheme": scheme, "scores": scores, "weights": weights, "keep_known": keep_known}
        usual = layer_defaults()
        yield Row(method, {name: value for name, value in given.items() if value != usual[name]})
    if not keep_known:
        yield Row("labor", {"scheme": "poisson", "weights": "unbiased"})
        yield Row("labor", {"scheme": "poisson", "layer_dependency": True})


def read(name: str, root: str) -> NodeTask:
    """A data set; ``six schools`` are one graph without edges between schools. The features of a school's nodes are the
    positions of the ones in a row of features, padded with the number of features."""
    if name == "planted":
        return NodeTask.from_data(name, datasets.planted(1000, split=(0.3, 0.2)))
    if name != "six schools" and not name.startswith("fb100"):
        return datasets.load(name, root)
    schools = [f"fb100/{school}" for school in SCHOOLS] if name == "six schools" else [name]
    joined = Batch.from_data_list([datasets.load(school, root).data for school in schools])
    names = ("edge_index", "y", "train_mask", "val_mask", "test_mask")
    row, place = joined.x.nonzero().t()
    ones = joined.x.sum(1)
    places = torch.full((len(ones), int(ones.max())), joined.num_features)
    places[row, torch.arange(len(row)) - (ones.cumsum(0) - ones)[row]] = place
    task = NodeTask.from_data(name, Data(x=places, **{name: joined[name] for name in names}))
    return replace(task, num_features=joined.num_features)


class EncodeCodes(nn.Module):
    """A linear map of rows that are one at some positions and zero elsewhere, given these positions."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(features + 1, hidden, mode="sum", padding_idx=features)
        bound = features**-0.5  # of nn.Linear
        nn.init.uniform_(self.bag.weight[:-1], -bound, bound)

    def forward(self, places: Tensor) -> Tensor:
        """[N, places] as float32: [N, hidden]."""
        return self.bag(places.long())


class MethodTrainer(NodeTrainer):
    """A trainer whose batches a given sampler makes; it evaluates by one pass over the whole graph."""

    def __init__(self, task: NodeTask, config: NodeConfig, sampler: NeighborSampler | LayerSampler, whole: Whole):
        self.sampler, self.whole = sampler, whole
        self.nodes = self.batches = self.edgeless = self.seen = 0
        super().__init__(task, config, quiet=True)

    def build_model(self) -> nn.Module:
        """The task's model; it encodes the places of ones."""
        model = super().build_model()
        if self.task.num_features != self.task.data.num_features:
            model.encode = EncodeCodes(self.task.num_features, self.config.hidden)
        return model

    def training_batches(self) -> NeighborLoader:
        """Batches of the sampler."""
        seeds, config = self.task.seeds("train"), self.config
        return NeighborLoader(
            self.data, config.fanouts, seeds, batch_size=config.batch_size, shuffle=True, seed=config.seed,
            neighbor_sampler=self.sampler,
        )  # fmt: skip

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        """The loss; counts nodes and seeds without edges."""
        first = batch.edge_index[1, : batch.num_sampled_edges[0]]
        edges = torch.bincount(first, minlength=batch.batch_size)[: batch.batch_size]
        could = self.whole.degree[batch.n_id[: batch.batch_size]] > 0
        self.edgeless += int((could & (edges == 0)).sum())
        self.seen += int(could.sum())
        self.nodes += batch.num_nodes
        self.batches += 1
        return super().loss(batch)

    def score(self, subset: str) -> float:
        """The metric on the nodes of a subset."""
        mask, metric = self.task.masks[subset], METRICS[self.metric]()
        metric.add(self.model(self.whole.x, self.whole.adj_t)[mask], self.task.y[mask])
        return metric.value(self.ranks)


class Whole:
    """A task's whole graph as evaluation takes it."""

    def __init__(self, task: NodeTask) -> None:
        src, dst = task.data.edge_index
        size = (task.num_nodes, task.num_nodes)
        ones = torch.ones(len(src))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.adj_t = torch.sparse_coo_tensor(torch.stack([dst, src]), ones, size).to_sparse_csr()
        self.x = task.data.x.float()
        self.degree = torch.bincount(dst, minlength=task.num_nodes)


def nodes_of(row: Row, task: NodeTask, batch_size: int, num_nodes: list[int], batches: int = 12) -> float:
    """The mean number of nodes of some batches."""
    sampler, generator = row.sampler(task.data, num_nodes), torch.Generator().manual_seed(0)
    found = 0
    for number in range(batches):
        seeds = task.seeds("train")
        seeds = seeds[torch.randperm(len(seeds), generator=generator)[:batch_size]]
        found += len(sampler.sample_from_nodes(NodeSamplerInput(None, seeds), number).node)
    return found / batches


def equal_sizes(row: Row, task: NodeTask, batch_size: int, wanted: float) -> list[int]:
    """The numbers per hop with which a row's batches have a number of nodes closest to ``wanted``. Numbers of neighbors
    differ by at most one between the hops; numbers of nodes are the same in both."""
    if row.method == "labor":
        tried: dict[tuple[int, int], float] = {}
        for first in range(1, 40):
            for second in (first - 1, first, first + 1):
                tried[first, second] = nodes_of(row, task, batch_size, [first, second])
            if tried[first, first - 1] > wanted:
                break
        return list(min(tried, key=lambda pair: abs(tried[pair] - wanted)))
    low, high = 1, 16 * task.num_nodes  # nodes are drawn more than once with replacement
    while low < high:
        middle = (low + high) // 2
        if nodes_of(row, task, batch_size, [middle, middle]) < wanted:
            low = middle + 1
        else:
            high = middle
    return [low, low]


def measure(
    row: Row, task: NodeTask, config: NodeConfig, whole: Whole, wanted: float | None, seeds: Sequence[int] = SEEDS
) -> dict[str, Any]:
    """The scores by seed, and what the batches had. ``wanted``: nodes per batch; None: as many as neighbor sampling
    finds."""
    num_nodes = FANOUTS if wanted is None else equal_sizes(row, task, config.batch_size, wanted)
    sampler = row.sampler(task.data, num_nodes)
    scores, counted = [], torch.zeros(4)
    for seed in seeds:
        trainer = MethodTrainer(task, replace(config, method=row.method, seed=seed), sampler, whole)
        scores.append(trainer.run(lambda _: None)["test"])
        counted += torch.tensor([trainer.nodes, trainer.batches, trainer.edgeless, trainer.seen])
    nodes = float(counted[0] / counted[1])
    return {
        "method": row.method,
        "options": row.options,
        "num_nodes": num_nodes,
        "nodes": nodes,
        "equal nodes": wanted is None or abs(nodes / wanted - 1) <= NEAR,
        "scores": scores,
        "mean": mean(scores),
        "deviation": stdev(scores),
        "seeds without edges": float(counted[2] / counted[3]),
    }


def plot(results: dict[str, Any]) -> None:
    """A panel for each data set: means and deviations of its rows; dotted: neighbor sampling."""
    names = [str(row) for row in FEW]
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axes, (name, found) in zip(panels, results.items(), strict=True):
        rows = [(place, found["rows"][title]) for place, title in enumerate(names) if title in found["rows"]]
        for method, color in zip(("neighbor", "labor", "ladies", "fastgcn"), ("k", "C0", "C1", "C2"), strict=True):
            some = [(place, row["mean"], row["deviation"]) for place, row in rows if row["method"] == method]
            place, means, deviations = zip(*some, strict=True) if some else ((), (), ())
            axes.errorbar(means, place, xerr=deviations, fmt="o", color=color, markersize=4)
        axes.axvline(rows[0][1]["mean"], color="gray", linestyle=":")
        axes.set(title=name, xlabel=found["metric"])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    figure.savefig(FIGURE, dpi=110)
    print(f"written: {FIGURE}")


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False, rounds=False)
    options.add_argument("--data", nargs="+", choices=TASKS, default=list(TASKS))
    options.add_argument("--small", action="store_true", help="a few rows of a generated graph; nothing is saved")
    options.add_argument("--more", action="store_true", help="keep the rows of benchmarks/results/methods.json")
    args = options.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    torch.set_num_threads(1)
    saved = RESULTS / "methods.json"
    results: dict[str, Any] = json.loads(saved.read_text())["results"] if args.more and saved.exists() else {}
    cells = [(name, row) for rows in (FIRST, FEW[len(FIRST) :]) for name in args.data for row in rows]
    cells += [(name, row) for name in args.data for row in every_row(keep_known=False) if row not in FEW]
    cells += [
        ("six schools", row) for row in every_row(keep_known=True) if row not in FEW and "six schools" in args.data
    ]
    tasks, seeds = TASKS, SEEDS
    if args.small:
        results, tasks, seeds, args.no_save = {}, SMALL, range(2), True
        cells = [(name, Row(method)) for name in SMALL for method in ("neighbor", "labor", "ladies", "fastgcn")]
    read_name, task, whole = None, None, None
    for name, row in (bar := tqdm(cells, unit="row")):
        config = tasks[name]
        entry = results.setdefault(name, {"rows": {}})
        if str(row) in entry["rows"]:
            continue
        if name != read_name:
            task, read_name = read(name, os.environ.get("GNNSCALE_DATA", "data")), name
            whole = Whole(task)
        assert task is not None
        assert whole is not None
        entry |= {"metric": task.metric, "batch_size": config.batch_size, "epochs": config.epochs}
        wanted = entry["rows"]["neighbor"]["nodes"] if row.method != "neighbor" else None
        found = entry["rows"][str(row)] = measure(row, task, config, whole, wanted, seeds)
        bar.write(
            f"{name:18s} {row!s:62s} {found['num_nodes']!s:12s} {found['nodes']:6.0f} nodes "
            f"{'' if found['equal nodes'] else 'NOT EQUAL '} {100 * found['mean']:.1f} ± {100 * found['deviation']:.1f}"
            f"  {100 * found['seeds without edges']:.1f} % of the seeds without edges"
        )
        if not args.no_save:
            save("methods", results)
    if not args.no_save:
        plot(results)


if __name__ == "__main__":
    main()
