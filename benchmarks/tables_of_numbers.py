"""The table of README.md and of the documentation's first page: four numbers, each beside what it is compared with."""

from __future__ import annotations

import json
from typing import Any

from common import RESULTS
from markdown import table

GRAPH = "2.4M-124M"
SAMPLING = ("gnnscale, 1 thread", "the same, destinations too")
TIERS = "tiers, weighted reverse PageRank"


def _results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


def _between(values: list[float], digits: int) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def _sampling() -> list[Any]:
    runs = [_results(name) for name in ("sample", "xeon/sample")]
    here, peer = (runs[0][GRAPH]["as COO"][name] for name in (SAMPLING[1], "pyg-lib"))
    found = [
        entry[given][name]["speedup"] for run in runs for entry in run.values() for given in entry for name in SAMPLING
    ]
    title = "**batch**: 1024 seeds, fanouts (15, 10, 5), one thread against one"
    ours, theirs = f"{here['median_ms']:.2f} ms", f"pyg-lib: {peer['median_ms']:.1f} ms"
    return [title, f"{here['speedup']:.1f}", _between(found, 0), ours, theirs]


def _steps() -> list[Any]:
    pairs = [
        [entry[name]["median_ms"] for name in ("narrowed", "PyG, trim_to_layer")]
        for run in ("train", "xeon/train")
        for graph in _results(run).values()
        for entry in graph.values()
    ]
    shown = _results("train")[GRAPH]["GraphSAGE"]
    here, peer = (shown[name]["median_ms"] for name in ("narrowed", "PyG, trim_to_layer"))
    title = "**step**: GraphSAGE, three layers of 256, trained on such a batch"
    between = _between([theirs / ours for ours, theirs in pairs], 1)
    return [title, f"{peer / here:.1f}", between, f"{here:.1f} ms", f"PyG, `trim_to_layer`: {peer:.0f} ms"]


def _tiers() -> list[Any]:
    runs = [_results(name)["over_disk"] for name in ("tiers", "xeon/tiers")]
    here, peer = (runs[0][GRAPH]["candidates"][name] for name in (TIERS, "plain map"))
    title = "**tiers**: such a batch's features, a third of all in memory, the rest on disk"
    between = _between([entry["candidates"][TIERS]["speedup"] for run in runs for entry in run.values()], 0)
    ours, theirs = f"{here['cold_ms']:.1f} ms", f"memory-mapped file: {peer['cold_ms']:.0f} ms"
    return [title, f"{here['speedup']:.1f}", between, ours, theirs]


def _ranks() -> list[Any]:
    runs = {name: run for name, run in _results("split").items() if "speedup" in run and "1 rank" not in name}
    here = runs["Oklahoma97, 2 ranks"]
    title = "**ranks**: a step of two processes that compute each batch together"
    between = _between([run["speedup"] for run in runs.values()], 2)
    ours, theirs = f"{here['split']['step_ms']:.0f} ms", f"DDP: {here['data parallel']['step_ms']:.0f} ms"
    return [title, f"{here['speedup']:.2f}", between, ours, theirs]


def numbers() -> str:
    """A row for each of sampling, training, tiers and ranks."""
    head = ["", "times as fast", "range", "torch_gnnscale", "beside it"]
    return table(head, [_sampling(), _steps(), _tiers(), _ranks()])
