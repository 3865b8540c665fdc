"""What all benchmarks share: graphs, interleaved timing, results as JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from torch_gnnscale import CSC, ops
from torch_gnnscale.bench import compare as compare
from torch_gnnscale.bench import machine
from torch_gnnscale.topology import rmat

RESULTS = Path(__file__).parent / "results"
MEASURED = ["1M-16M", "2.4M-124M"]
SMALL = ["200k-3M", "2708-10556"]
GRAPHS = {
    "1M-16M": (1_000_000, 16_000_000), "2.4M-124M": (2_400_000, 124_000_000), "200k-3M": (200_000, 3_000_000),
    "2708-10556": (2708, 10_556), "tiny": (40_000, 320_000),
}  # fmt: skip
"""R-MAT graphs: nodes and edges. 2708-10556 has the size of Cora; the last one is for trying a benchmark's code."""
BOUNDS = {"least": "at least", "most": "at most", "within": "within +-"}
"""How a figure is judged."""


def has(package: str) -> bool:
    """Whether a peer can be imported."""
    return importlib.util.find_spec(package) is not None


def parser(description: str, graphs: bool = True, rounds: bool = True) -> argparse.ArgumentParser:
    """The command line of every benchmark; with a choice of ``graphs`` and a number of ``rounds``, or without."""
    options = argparse.ArgumentParser(description=description)
    if graphs:
        options.add_argument("--graphs", nargs="+", choices=GRAPHS, default=MEASURED)
    if rounds:
        options.add_argument("--rounds", type=int, default=15, help="interleaved rounds of all candidates")
    options.add_argument("--no-save", action="store_true", help="do not write the JSON result")
    return options


def arguments(description: str, graphs: bool = True) -> argparse.Namespace:
    """The command line as given."""
    return parser(description, graphs).parse_args()


def on_threads(count: int) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{count} thread{'s' * (count > 1)}"


def graph(name: str) -> tuple[CSC, Tensor]:
    """An R-MAT graph as CSC and as COO."""
    num_nodes, num_edges = GRAPHS[name]
    edge_index = rmat(num_nodes, num_edges, seed=1)
    return CSC.from_edge_index(edge_index, num_nodes), edge_index


def web_graph() -> tuple[Tensor, int] | None:
    """(The edges of cnr-2000, its number of nodes); None if the file is not there."""
    folder = Path(os.environ.get("GNNSCALE_DATA", Path(__file__).parents[2] / "shared" / "data")) / "cnr2000"
    files = sorted(folder.glob("*.npz")) if folder.is_dir() else []
    if not files:
        return None
    with np.load(files[0]) as arrays:
        return torch.from_numpy(arrays["edge_index"]).long(), int(arrays["num_nodes"])


def as_csc(csc: CSC) -> CSC:
    """The same graph, given as CSC: an edge's id is its position; sources in huge pages, as samplers keep them."""
    given = CSC.from_csc(csc.colptr, csc.row.contiguous())
    ops.huge_pages(given.row)
    return given


def data_of(name: str, features: int, classes: int | None = None) -> Data:
    """An R-MAT graph as a Data with ``features`` random features per node, and with labels if classes are given."""
    num_nodes, num_edges = GRAPHS[name]
    data = Data(x=torch.randn(num_nodes, features), edge_index=rmat(num_nodes, num_edges, seed=1))
    if classes is not None:
        data.y = torch.randint(classes, (num_nodes,))
    return data


def report(title: str, results: dict[str, dict[str, float]], baseline: str | None) -> None:
    """Prints a table; ratios are to ``baseline`` within this run."""
    print(f"\n{title}")
    for name, entry in results.items():
        ratio = ""
        if baseline in results:
            entry["speedup"] = results[baseline]["median_ms"] / entry["median_ms"]
            ratio = f"  {entry['speedup']:6.2f} x {baseline}"
        extra = "".join(
            f"  {key} {value:.3g}" for key, value in entry.items() if not key.endswith("_ms") and key != "speedup"
        )
        print(
            f"  {name:40s} {entry['median_ms']:9.3g} ms  [{entry['low_ms']:.3g}, {entry['high_ms']:.3g}]{ratio}{extra}"
        )


def ratio(part: float, whole: float) -> float | None:
    """part / whole; None where whole is 0, so that there is nothing to compare with."""
    return part / whole if whole else None


def judged(
    found: float | None, *, least: float | None = None, most: float | None = None, within: float | None = None
) -> dict[str, Any]:
    """A figure, its one bound (at least, at most, or at most that far from 0), and ``met``: whether it keeps the bound.

    ``met`` is None if there is no figure.
    """
    ((kind, bound),) = ((k, v) for k, v in {"least": least, "most": most, "within": within}.items() if v is not None)
    met = None
    if found is not None:
        met = {"least": found >= bound, "most": found <= bound, "within": abs(found) <= bound}[kind]
    return {"found": found, kind: bound, "met": met}


def say_aims(aims: dict[str, dict[str, Any]]) -> None:
    """Prints aims by name, as :func:`judged` returned them."""
    for name, aim in aims.items():
        (bound,) = (f"{text} {aim[kind]:.4g}" for kind, text in BOUNDS.items() if kind in aim)
        if aim["met"] is None:
            print(f"  aim: {name}: {bound}: NOT JUDGED, there is nothing to compare")
        else:
            print(f"  aim: {name}: {aim['found']:.4g}, {bound}: {'met' if aim['met'] else 'MISSED'}")


def widths(count: int) -> list[float]:
    """Widths of lines in the order in which they are drawn: the last is the narrowest, so that all show where some
    coincide."""
    return [1.0 + place for place in reversed(range(count))]


def medians(results: Any) -> Any:
    """Results without the least and most of times, beside their medians."""
    if isinstance(results, dict):
        return {key: medians(value) for key, value in results.items() if not key.endswith(("low_ms", "high_ms"))}
    return [medians(value) for value in results] if isinstance(results, list) else results


def save(name: str, results: Any) -> None:
    """Writes ``benchmarks/results/NAME.json``; what holds no other objects is one line."""
    RESULTS.mkdir(exist_ok=True)
    written = RESULTS / f"{name}.json.part"
    text = json.dumps({"machine": machine(), "results": medians(results)}, indent=1)
    written.write_text(re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: " ".join(found[0].split()), text) + "\n")
    written.replace(RESULTS / f"{name}.json")  # in one step: a process that is killed leaves the former file whole
    print(f"\nwritten: {RESULTS / name}.json")
