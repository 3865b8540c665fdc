"""What an epoch consists of over grids of p ranks with c copies of each part: sampling by its phases, rows, training.

    python benchmarks/bench_grid_epoch.py

Figures 4, 6 and 7 of matrix-based sampling: GraphSAGE and LADIES under DistributedDataParallel, rows in parts, edges on
every rank ("replicated") or in parts ("partitioned"), all batches of a rank sampled in one bulk. Nothing is prepared
ahead, so an epoch is the sum of its phases, as in the paper: P, SAMPLE and EXTRACT (where every rank has all edges, one
native call does all three, which is counted as SAMPLE), fetch and train. Epochs are timed by the clock on the wall and
by the CPU time of each rank in turn, epochs of both methods and topologies take turns, and so do the grids, whose ranks
are started anew in every round. Batches of both topologies are compared before anything is timed. The defaults, with
up to eight ranks, take less than 15 minutes on two cores.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

import torch
from common import parser, save
from matplotlib.figure import Figure
from ranks import data_of, is_parent, race, start
from torch import Tensor
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import NeighborLoader, partition
from torch_gnnscale.distributed import Grid, Part, open_part
from torch_gnnscale.distributed.neighbor_sampling import PHASES
from torch_gnnscale.laps import Laps
from torch_gnnscale.nn import narrow, weigh

FEATURES, CLASSES, HIDDEN, SEED = 100, 47, 64, 1
TOPOLOGIES = ("replicated", "partitioned")
METHODS: dict[str, dict[str, Any]] = {
    "GraphSAGE": {"num_neighbors": [10, 5], "batch_size": 256},
    "LADIES": {"num_neighbors": [512, 512], "batch_size": 512, "method": "ladies"},
}
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
PURPOSES = {"P": ("seeds", "requests", "edges", "scores"), "EXTRACT": ("picks", "drawn"), "fetch": ("ids", "rows")}
"""What is exchanged in each phase, by the names of ``part.stats()``."""
PARTS = (*PHASES, "fetch", "train")
FIGURE = Path(__file__).parents[1] / "docs" / "grid_epoch.png"
TITLES = {"replicated": "edges on every rank", "partitioned": "edges in parts"}
NAMED = {
    "P": "P: requests, edges, scores",
    "SAMPLE": "SAMPLE",
    "EXTRACT": "EXTRACT: drawn edges, numbers of nodes",
    "fetch": "rows of features",
    "train": "training",
}
"""Phases as the figure names them."""
EPOCHS = 2
"""How many epochs of each kind a round times, after one that does not count."""
LIMIT = 900
"""Seconds after which ranks are ended."""


class Run:
    """A loader and a model of its own, and what its epochs took.

    Args:
        part: of one topology.
        method: a name in METHODS.
    """

    def __init__(self, part: Part, method: str) -> None:
        options = METHODS[method]
        self.part = part
        self.loader = NeighborLoader(
            (part.features, part.graph), input_nodes=part.input_nodes("train", "all"), seed_order="global",
            bulk=1 << 20, shuffle=True, seed=SEED, prefetch=0, **options,
        )  # fmt: skip
        assert len(self.loader) > 1, "a single batch is no bulk"
        executor = self.loader.node_sampler.executor
        self.sampling = executor.laps if executor.collective else Laps(PHASES)
        if not executor.collective:
            executor.sample_many = self._timed(executor.sample_many)
        torch.manual_seed(0)
        model = GraphSAGE(FEATURES, HIDDEN, len(options["num_neighbors"]), CLASSES)
        self.model = DistributedDataParallel(narrow(weigh(model) if "method" in options else model))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.003)
        self.epochs: dict[str, list[dict[str, float]]] = {name: [] for name in CLOCKS}
        """The seconds of each epoch, by clock and by phase; "wall" also has "epoch"."""

    def _timed(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.sampling.skip()
            found = run(*args, **options)
            self.sampling.lap("SAMPLE")
            return found

        return call

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The nodes and edges of all batches of an epoch."""
        self.loader.set_epoch(0)
        return [(batch.n_id, batch.edge_index) for batch in self.loader]

    def train(self, clock: str) -> None:
        """Trains an epoch, and counts the seconds of its phases by a clock."""
        laps = Laps(["loader", "train"])
        laps.clock = self.sampling.clock = CLOCKS[clock]
        self.sampling.seconds = dict.fromkeys(PHASES, 0.0)
        self.loader.set_epoch(0)
        laps.skip()
        for batch in self.loader:
            laps.lap("loader")
            self.optimizer.zero_grad()
            cross_entropy(self.model(batch), batch.y[: batch.batch_size]).backward()
            self.optimizer.step()
            laps.lap("train")
        laps.lap("loader")
        sampling = dict(self.sampling.seconds)
        fetch = laps.seconds["loader"] - sum(sampling.values())
        self.epochs[clock].append({**sampling, "fetch": fetch, "train": laps.seconds["train"]})

    def traffic(self) -> dict[str, int]:
        """Bytes received so far from other ranks, by phase."""
        stats = self.part.stats()
        return {
            phase: sum(stats[purpose]["bytes_received"] for purpose in purposes if purpose in stats)
            for phase, purposes in PURPOSES.items()
        }


def in_rank(folder: Path) -> dict[str, Any]:
    """What a rank finds, by topology and method."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        parts = {name: stack.enter_context(open_part(folder / name)) for name in TOPOLOGIES}
        runs = {}
        for method in METHODS:
            of_method = {name: Run(part, method) for name, part in parts.items()}
            batches = {name: run.batches() for name, run in of_method.items()}
            for one, other in zip(*batches.values(), strict=True):
                assert all(map(torch.equal, one, other)), method
            runs |= {f"{method}, {name}": run for name, run in of_method.items()}
        for name, run in runs.items():
            before = run.traffic()
            run.train("wall")  # not counted
            run.epochs["wall"].clear()
            found[name] = {"bytes": {phase: value - before[phase] for phase, value in run.traffic().items()}}
            found[name]["steps"] = len(run.loader)
        race({f"{clock} {name}": lambda _, run=run, clock=clock: run.train(clock)
              for name, run in runs.items() for clock in CLOCKS}, EPOCHS)  # fmt: skip
        for name, run in runs.items():
            found[name] |= {clock: epochs[1:] for clock, epochs in run.epochs.items()}
        dist.barrier()
    return found


def measured(folder: Path, grids: list[Grid], rounds: int) -> dict[str, Any]:
    """found[method, topology]["p, c"]: medians over epochs and rounds of the seconds of a rank, by phase: means over
    the ranks. And bytes received by all ranks in an epoch."""
    runs: dict[tuple[Grid, str], list[list[dict[str, Any]]]] = {}
    for number in range(rounds):
        for grid in Random(number).sample(grids, len(grids)):
            of_ranks = start(__file__, folder / str(grid.parts), grid.ranks, None, LIMIT)
            for name in of_ranks[0]:
                runs.setdefault((grid, name), []).append([of_rank[name] for of_rank in of_ranks])
    found: dict[str, Any] = {}
    for grid, name in product(grids, dict.fromkeys(name for _, name in runs)):
        of_rounds = runs[grid, name]
        entry: dict[str, Any] = {"steps": of_rounds[0][0]["steps"]}
        for clock in CLOCKS:
            epochs = [epoch for ranks in of_rounds for epoch in zip(*(rank[clock] for rank in ranks), strict=True)]
            entry[clock] = {phase: median(mean(rank[phase] for rank in epoch) for epoch in epochs) for phase in PARTS}
            totals = sorted(mean(sum(rank.values()) for rank in epoch) for epoch in epochs)
            entry[f"{clock}, all"] = {
                "median": median(totals), "low": totals[len(totals) // 4], "high": totals[len(totals) * 3 // 4]
            }  # fmt: skip
        entry["bytes"] = {phase: sum(rank["bytes"][phase] for rank in of_rounds[0]) for phase in PURPOSES}
        found.setdefault(name, {})[f"{grid.ranks}, {grid.copies}"] = entry
        print(f"({grid.ranks}, {grid.copies}) {name}: {json.dumps(entry)}", flush=True)
    return found


def plot(results: dict[str, Any]) -> None:
    """A row of panels for each method: epochs with all edges on every rank and with edges in parts, by one scale, and
    bytes received with edges in parts."""
    figure = Figure(figsize=(11, 6.6), layout="constrained")
    rows = figure.subplots(len(METHODS), 3)
    for row, method in zip(rows, METHODS, strict=True):
        for axes, topology in zip(row, TOPOLOGIES, strict=False):
            _bars(axes, results[f"{method}, {topology}"], "cpu", PARTS, 1e-3)
            axes.set(title=f"{method}, {TITLES[topology]}", ylabel="CPU time of a rank, ms per epoch")
        row[1].sharey(row[0])
        row[0].autoscale()
        several = {name: entry for name, entry in results[f"{method}, partitioned"].items() if name != "1, 1"}
        _bars(row[2], several, "bytes", tuple(PURPOSES), 1e6)
        row[2].set(title=f"{method}, {TITLES['partitioned']}", ylabel="MB that all ranks receive per epoch")
    for axes in rows[-1]:
        axes.set_xlabel("(ranks p, copies of a part c)")
    figure.legend(*rows[0][1].get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS))
    figure.savefig(FIGURE, dpi=110)
    print(f"written: {FIGURE}")


def _bars(axes: Any, grids: dict[str, Any], key: str, phases: tuple[str, ...], unit: float) -> None:
    """A stacked bar for each grid."""
    bottom = [0.0] * len(grids)
    for phase in phases:
        heights = [entry[key][phase] / unit for entry in grids.values()]
        color = f"C{PARTS.index(phase)}"
        axes.bar(range(len(grids)), heights, 0.6, bottom=bottom, label=NAMED[phase], color=color)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(grids)), [f"({name})" for name in grids], fontsize="small")


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.set_defaults(rounds=3)
    options.add_argument("--graph", default="planted", help="planted, small or cnr2000")
    options.add_argument("--seeds", type=int, default=8192)
    options.add_argument("--grids", type=int, nargs="+", default=[11, 21, 41, 42, 81, 82], help="p and c in two digits")
    args = options.parse_args()
    grids = [Grid(grid // 10, grid // 10 // (grid % 10)) for grid in args.grids]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = data_of(args.graph, FEATURES, CLASSES, args.seeds)
        for count, topology in product({grid.parts for grid in grids}, TOPOLOGIES):
            out = folder / str(count) / topology
            out.parent.mkdir(exist_ok=True)
            partition.write(data, out, parts=count, method="random", topology=topology, seed=SEED)
        results = measured(folder, grids, args.rounds)
    if not args.no_save:
        save("grid_epoch", {"graph": args.graph, "seeds": args.seeds, "rounds": args.rounds, "runs": results})
        plot(results)


if __name__ == "__main__" and not is_parent(in_rank):
    main()
