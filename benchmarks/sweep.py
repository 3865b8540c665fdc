"""Batches and training steps against PyG with pyg-lib, over batch sizes, fanouts, rows and
graphs; a part of bench_training.py.

Redraws FastSample's figure 5 (speed-up of sampling and of whole training steps over batch sizes and fanouts) against
PyG's loader, and looks for a setting in which this package would be the slower one: in the corners, on graphs from
Cora's size on, also with disjoint trees, times, links, weights, and types of nodes and edges. Both loaders work in this
process (num_workers=0), this package's with its threads, but for a corner with num_workers=2, which means threads here
and processes in PyG: there this package's default is measured, too, of whose speed it keeps 0.9 or more. Each figure is
of whole epochs of a few to 64 batches, features included, so that the first batch of an epoch, before which nothing can
be prepared, counts as well. The epochs of the first half second do not count, in which this package's loader tries
whether threads help.
"""

from __future__ import annotations

import gc
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch_geometric.loader
from common import RESULTS, judged, say_aims, widths
from matplotlib.figure import Figure
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE, HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer
from tqdm import tqdm
from typed_graphs import academic, knowledge_graph

from torch_gnnscale import LinkNeighborLoader, NeighborLoader, ops
from torch_gnnscale.bench import trimmed
from torch_gnnscale.nn import narrow
from torch_gnnscale.topology import rmat

Loader = torch_geometric.loader.NodeLoader | torch_geometric.loader.LinkLoader
FIGURE_FANOUTS = [[5, 5], [10, 25], [15, 10, 5], [20, 15, 10]]
FIGURE_BATCHES = [1024, 2048, 4096, 10240]
HIDDEN, CLASSES = 64, 16
SETTLE_SECONDS = 0.5
"""The least time for which each loader works before its figures count: a trial of tiny batches takes some 0.2 s."""
FIGURE = Path(__file__).parents[1] / "docs" / "sweep.png"
OTHER = RESULTS / "epyc" / "figure.json"


class Graph(NamedTuple):
    """A graph of the sweep: its nodes and edges, of all types, and bytes of features per node."""

    nodes: int
    edges: int
    row_bytes: int


class Case(NamedTuple):
    """A setting of the sweep."""

    graph: Graph
    batch_size: int
    fanouts: list[int]
    mode: str = "nodes"


MODES: dict[str, dict] = {
    "nodes": {},
    "disjoint": {"disjoint": True},
    "temporal": {"time_attr": "time"},
    "links": {"neg_sampling": "binary"},
    "weighted, replace": {"weight_attr": "weight", "replace": True},
}
"""Further arguments of the loaders."""
TYPED: dict[str, Callable[[], HeteroData]] = {
    "3 types of nodes": partial(academic, 100),
    "237 types of edges": knowledge_graph,
}
"""Modes that are graphs with types; seeds are of the first type of nodes."""
WORKERS = "num_workers=2"
MAIN = Graph(1_000_000, 16_000_000, 512)
TINY = Graph(2708, 10_556, 5732)  # Cora's
CORNERS = [
    Case(*case) for case in (
    *[(TINY, size, [10, 5], mode) for size in (1, 32) for mode in MODES],
    *[(Graph(12_200, 280_000, 512), size, [10, 5], "3 types of nodes") for size in (32, 128)],
    (Graph(14_541, 282_695, 64), 8, [5, 2], "237 types of edges"),
    *[(Graph(200_000, 3_000_000, 512), 1024, [15, 10, 5], mode) for mode in ("nodes", WORKERS)],
    (MAIN, 1024, [15, 10, 5], "weighted, replace"),
    *[(MAIN, size, fanouts) for size in (64, 256) for fanouts in FIGURE_FANOUTS],
    *[(MAIN._replace(row_bytes=size), 1024, [15, 10, 5]) for size in (16, 64, 4096)],
    (MAIN, 64, [-1]), (MAIN, 64, [-1, 5]),
    *[(Graph(1000, 10_000, 512), size, fanouts) for size in (64, 1000) for fanouts in ([5, 5], [15, 10, 5], [-1, -1])],
    *[(Graph(20_000, 10_000_000, 512), size, fanouts) for size in (64, 1024) for fanouts in ([15, 10, 5], [-1])],
    *[(Graph(3_000_000, 3_000_000, 64), size, fanouts) for size in (64, 4096) for fanouts in ([15, 10, 5], [-1, -1])],
    *[(Graph(100_000_000, 100_000_000, 16), size, [15, 10, 5]) for size in (64, 1024, 10240)],
    )
]  # fmt: skip


def data_of(graph: Graph, mode: str) -> Data | HeteroData:
    """An R-MAT graph, or one with types, with features and labels."""
    if mode in TYPED:
        data = TYPED[mode]()
    else:
        data = Data(edge_index=rmat(graph.nodes, graph.edges, seed=1), num_nodes=graph.nodes)
    assert (data.num_nodes, data.num_edges) == (graph.nodes, graph.edges)
    for store in data.node_stores:
        ids = torch.arange(store.num_nodes)
        store.x = (ids.unsqueeze(1) % torch.arange(3, 3 + graph.row_bytes // 4)).float()
        store.y = ids % CLASSES
        del store.num_nodes  # x says it
    return data


def loader_makers(data: Data | HeteroData, case: Case, batches: int) -> dict[str, Callable[[], Loader]]:
    """Both loaders of so many batches, over the same seeds or links; with workers, ours also at its default."""
    options = {"batch_size": case.batch_size, "shuffle": True, **MODES.get(case.mode, {})}
    count = case.batch_size * batches
    if case.mode == "links":
        links = data.edge_index[:, torch.randperm(data.num_edges)[:count]]
        kinds = {"ours": LinkNeighborLoader, "pyg": torch_geometric.loader.LinkNeighborLoader}
        return {name: partial(kind, data, case.fanouts, links, **options) for name, kind in kinds.items()}
    if case.mode == "temporal":
        data = data.clone().update({"time": torch.arange(data.num_nodes) % 1000})
    if case.mode == "weighted, replace":
        data = data.clone().update({"weight": torch.arange(data.num_edges) % 100 + 1.0})
    first = data.node_stores[0]
    seeds = torch.randperm(first.num_nodes)[:count]
    if case.mode in TYPED:
        seeds = (first._key, seeds)
    kinds = {"ours": NeighborLoader, "pyg": torch_geometric.loader.NeighborLoader}
    makers = {name: partial(kind, data, case.fanouts, seeds, **options) for name, kind in kinds.items()}
    if case.mode != WORKERS:
        return makers
    return {name: partial(make, num_workers=2) for name, make in makers.items()} | {"default": makers["ours"]}


class TypedSAGE(nn.Module):
    """GraphSAGE with convolutions for each type of edges, trimmed as PyG does it, since batches with types cannot be
    narrowed."""

    def __init__(self, data: HeteroData, layers: int) -> None:
        super().__init__()
        self.seeds, first = data.node_types[0], data.node_stores[0]
        sizes = [first.num_features, *[HIDDEN] * (layers - 1), CLASSES]
        self.convs = nn.ModuleList(
            HeteroConv({edge_type: SAGEConv((given, given), made) for edge_type in data.edge_types})
            for given, made in pairwise(sizes)
        )

    def forward(self, batch: HeteroData) -> torch.Tensor:
        """The outputs of the seeds."""
        x, edges = batch.x_dict, batch.edge_index_dict
        hops = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        for layer, conv in enumerate(self.convs):
            if layer:
                x = {node_type: rows.relu() for node_type, rows in x.items()}
            x, edges, _ = trim_to_layer(layer, *hops, x, edges)
            x = conv(x, edges)
        return x[self.seeds][: batch[self.seeds].batch_size]


def trainers(case: Case, data: Data | HeteroData) -> dict[str, Callable[[Data | HeteroData], None]]:
    """A training step of the same model on a batch of each loader."""
    if case.mode in TYPED:
        model = TypedSAGE(data, len(case.fanouts))
    else:
        model = GraphSAGE(data.num_features, HIDDEN, len(case.fanouts), CLASSES)
    narrowed = model if case.mode in TYPED else narrow(model)

    def train(forward: Callable[[Data | HeteroData], torch.Tensor], batch: Data | HeteroData) -> None:
        model.zero_grad()
        out = forward(batch)
        if case.mode == "links":
            src, dst = batch.edge_label_index
            loss = nn.functional.binary_cross_entropy_with_logits((out[src] * out[dst]).sum(-1), batch.edge_label)
        else:
            first = batch.node_stores[0]
            loss = nn.functional.cross_entropy(out[: first.batch_size], first.y[: first.batch_size])
        loss.backward()

    ours, theirs = partial(train, narrowed), model if case.mode in TYPED else partial(trimmed, model)
    return {"ours": ours, "default": ours, "pyg": partial(train, theirs)}


def epochs(loader: Loader, count: int) -> Iterator[Data]:
    """At least ``count`` batches, in whole epochs: none is prepared before, and none is left in preparation."""
    for _ in range(-(-count // len(loader))):
        yield from loader


def interleaved(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, round by round, after those of :data:`SETTLE_SECONDS` that are not counted."""
    for run in runs.values():
        start = time.perf_counter()
        run()
        while time.perf_counter() - start < SETTLE_SECONDS:
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def ratios(times: dict[str, list[float]], peer: str = "pyg") -> list[float]:
    """A peer's time over ours, sorted, one for each round: the two times of a round are taken close together."""
    return sorted(theirs / ours for ours, theirs in zip(times["ours"], times[peer], strict=True))


def speedups(name: str, times: dict[str, list[float]]) -> dict[str, float]:
    """The median over the rounds, and the quartiles."""
    found = ratios(times)
    return {name: median(found), f"{name}_low": found[len(found) // 4], f"{name}_high": found[len(found) * 3 // 4]}


def measure(data: Data | HeteroData, case: Case, rounds: int) -> dict[str, float]:
    """Milliseconds per batch, and per training step on it, by each loader."""
    gc.collect()  # loaders refer to themselves: those of the setting before, and their graphs, are still there
    ops.pool_trim()
    count = max(4, min(64, 40_000 // case.batch_size))
    loading = {name: make() for name, make in loader_makers(data, case, count).items()}
    if -1 not in case.fanouts:
        for name, loader in loading.items():  # correctness first: rows are their nodes', no more edges than asked for
            batch = next(iter(loader))
            for found, given in zip(batch.node_stores, data.node_stores, strict=True):
                assert torch.equal(found.x, given.x[found.n_id]), name
            for found in batch.edge_stores:
                assert int(torch.bincount(found.edge_index[1], minlength=1).max()) <= max(case.fanouts), name

    def load(loader: Loader) -> Callable[[], object]:
        return lambda: deque(epochs(loader, count), maxlen=0)

    done = -(-count // len(loading["ours"])) * len(loading["ours"])
    times = interleaved({name: load(loader) for name, loader in loading.items()}, rounds)
    result = {f"{name}_batch_ms": median(values) / done * 1e3 for name, values in times.items()}
    result |= speedups("speedup", times)
    if "default" in times:
        result["of_default"] = median(ratios(times, "default"))
    steps = max(3, min(64, 12_000 // (case.batch_size * len(data.edge_stores))))  # a type of edges is a convolution
    training = {name: make() for name, make in loader_makers(data, case, steps).items()}
    steps = len(training["ours"])
    train = trainers(case, data)

    def epoch(name: str) -> Callable[[], None]:
        def run() -> None:
            for batch in training[name]:
                train[name](batch)

        return run

    times = interleaved({name: epoch(name) for name in training}, rounds)
    result |= {f"{name}_step_ms": median(values) / steps * 1e3 for name, values in times.items()}
    result |= speedups("step_speedup", times)
    if "default" in times:
        result["step_of_default"] = median(ratios(times, "default"))
        aims = {name: judged(result[name], least=0.9) for name in ("of_default", "step_of_default")}
        say_aims({f"{WORKERS}: {name}": aim for name, aim in aims.items()})
    return result


def spread(run: dict, key: str, other: dict) -> tuple[float, float]:
    """From where to where a bar of the figure leads: the quartiles of a run's rounds; where none were saved, the values
    of the run and of another one on another machine."""
    ends = sorted((run[key], other[key]))
    return run.get(f"{key}_low", ends[0]), run.get(f"{key}_high", ends[1])


def plot(results: list[dict]) -> None:
    """The figure: speed-ups over batch sizes, a line for each list of fanouts, with bars of :func:`spread`."""
    others = {(str(run["fanouts"]), run["batch_size"]): run for run in json.loads(OTHER.read_text())["results"]}
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, key, title in zip(panels, ("speedup", "step_speedup"), ("batches", "training steps"), strict=True):
        for number, (fanouts, width) in enumerate(zip(FIGURE_FANOUTS, widths(len(FIGURE_FANOUTS)), strict=True)):
            runs = [entry for entry in results if entry["fanouts"] == fanouts]
            sizes, values = [run["batch_size"] for run in runs], [run[key] for run in runs]
            style = {"marker": "o", "linewidth": width, "markersize": width + 3}
            beside = [size * 1.04 ** (number - 1.5) for size in sizes]  # so that no bar covers another
            (line,) = axes.plot(beside, values, label=str(tuple(fanouts)), **style)
            ends = [spread(run, key, others[str(fanouts), run["batch_size"]]) for run in runs]
            bars = [[abs(end - value) for end, value in zip(of, values, strict=True)] for of in zip(*ends, strict=True)]
            axes.errorbar(beside, values, bars, linestyle="none", capsize=3, color=line.get_color())
        axes.set(title=title, xlabel="seeds per batch", xscale="log", ylim=(0, None))
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.axhline(1, color="gray", linestyle="--")
    panels[0].set(ylabel="times as fast as PyG")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", title="fanouts")
    figure.savefig(FIGURE, dpi=110)
    print(f"written: {FIGURE}")


def sweep(cases: list[Case], rounds: int) -> list[dict]:
    """A result for each setting."""
    results: list[dict] = []
    current, data = None, None
    for case in tqdm(cases, "settings"):
        if case.graph != current:
            data = None
            gc.collect()
            current, data = case.graph, data_of(case.graph, case.mode)
        entry = measure(data, case, rounds)
        found = {**case.graph._asdict(), "batch_size": case.batch_size, "fanouts": case.fanouts, "mode": case.mode}
        results.append({**found, **entry})
        name = f"{tuple(case.graph)!s:34} {case.batch_size:6d} {case.fanouts!s:13} {case.mode:18} "
        tqdm.write(name + "  ".join(f"{k} {v:.3g}" for k, v in entry.items()))
    for key in ("speedup", "step_speedup"):
        print(f"the least {key}:", min(results, key=lambda entry, key=key: entry[key]))
    return results


def measure_figure(rounds: int) -> list[dict]:
    """The settings of FastSample's figure 5."""
    cases = [Case(MAIN, size, fanouts) for fanouts in FIGURE_FANOUTS for size in FIGURE_BATCHES]
    return sweep(cases, max(3, rounds // 2))


def measure_corners(rounds: int) -> list[dict]:
    """The other settings."""
    return sweep(CORNERS, rounds)
