"""Writes the tables of measurements in README.md and docs/ from the JSON in benchmarks/results.

    python benchmarks/tables.py

A table stands between ``<!-- NAME -->`` and ``<!-- end -->``, where NAME is the name of a function in TABLES, with the
machine that it was taken on below. A table without its JSON is left as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import RESULTS
from markdown import by_graph, table, taken_on, title
from tables_of_numbers import numbers
from tables_of_ranks import split_steps

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sampling(results: Any) -> str:
    def make(entry: dict) -> str:
        head = [""]
        for given in entry:
            head += [f"{given}: ms per batch", "over pyg-lib", "times the limit"]
        keys = ["median_ms", "speedup", "times_limit"]
        return table(
            head,
            (
                [name, *(runs[name].get(key, "") for runs in entry.values() for key in keys)]
                for name, run in entry["as CSC"].items()
                if isinstance(run, dict)
            ),
        )

    return by_graph(results, make, lambda entry: f", {entry['as CSC']['edges_per_batch']:,} edges per batch")


def modes(results: Any) -> str:
    peer = "PyG with pyg-lib"
    rows = []
    for mode, entry in results.items():
        theirs, ours = entry[peer]["median_ms"], entry["gnnscale"]["median_ms"]
        shown = [value if value > 0.1 else f"{value:.4f}" for value in (ours, theirs)]
        rows.append([mode, entry["edges_per_batch"], *shown, entry["gnnscale"]["speedup"]])
        if least := entry.get("no neighbors"):
            rows.append([f"{mode}: its tensors, without edges", 0, least["median_ms"], theirs, least["speedup"]])
    return table(["mode", "edges per batch", "gnnscale, ms", "PyG with pyg-lib, ms", "speed-up"], rows)


def batches(results: Any) -> str:
    def make(entry: dict) -> str:
        runs = {key: value for key, value in entry.items() if isinstance(value, dict)}
        return table(
            ["", "ms per batch", "speed-up over PyG's best"],
            ([key, run["median_ms"], run["speedup"]] for key, run in runs.items()),
        )

    return by_graph(results, make)


def figure(results: Any) -> str:
    """The settings of FastSample's figure 5."""
    head = ["fanouts", "batch size", "batch, ms", "PyG, ms", "speed-up", "step, ms", "PyG, ms", "speed-up"]
    return table(
        head,
        (
            [
                tuple(e["fanouts"]), e["batch_size"], e["ours_batch_ms"], e["pyg_batch_ms"], e["speedup"],
                e["ours_step_ms"], e["pyg_step_ms"], e["step_speedup"],
            ]
            for e in results
        ),
    )  # fmt: skip


def corners(results: Any) -> str:
    """The other settings of the sweep."""
    return table(
        ["nodes", "edges", "bytes per row", "mode", "batch size", "fanouts", "batch, ms", "PyG, ms", "speed-up",
         "step, ms", "PyG, ms", "speed-up"],
        (
            [
                e["nodes"], e["edges"], e["row_bytes"], e["mode"], e["batch_size"], tuple(e["fanouts"]),
                e["ours_batch_ms"], e["pyg_batch_ms"], e["speedup"], e["ours_step_ms"], e["pyg_step_ms"],
                e["step_speedup"],
            ]
            for e in results
        ),
    )  # fmt: skip


def steps(results: Any) -> str:
    ways = ["PyG", "PyG, trim_to_layer", "narrowed"]

    def make(entry: dict) -> str:
        rows = []
        for model, runs in entry.items():
            times = [runs[way]["median_ms"] for way in ways]
            limits = [runs["narrowed"].get(limit, "") for limit in ("times_limit", "times_dense")]
            rows.append([model, *times, times[0] / times[2], times[1] / times[2], *limits])
        head = ["model", "PyG, ms", "trim_to_layer, ms", "narrowed, ms", "over PyG", "over trim_to_layer"]
        return table([*head, "times its dense products", "times these, biases and ReLU"], rows)

    return by_graph(results, make)


def loop(results: Any) -> str:
    keys = ("step_alone_ms", "step_with_loader_ms", "slowdown", "share_percent", "wait_percent", "first_wait_ms")
    return table(
        ["graph", "step alone, ms", "beside the loader, ms", "ratio", "the loader's share of the cores, %",
         "wait, % of the time", "first batch, ms"],
        ([title(graph).strip("*"), *(run[key] for key in keys)] for graph, run in results.items()),
    )  # fmt: skip


def ahead(results: Any) -> str:
    """A training loop at each setting of the loader's prefetch."""

    def make(entry: dict) -> str:
        settings = list(entry["1 thread"]["times"])
        rows = []
        for threads, runs in entry.items():
            times = [runs["times"][setting]["median_ms"] for setting in settings]
            rows.append([threads, *times, runs["aim"]["found"]])
        return table(["torch's threads", *(f"{name}, ms per step" for name in settings), "best / default"], rows)

    return by_graph(results, make)


def typed_steps(results: Any) -> str:
    """Steps of narrowed models of typed graphs, beside PyG's."""
    times, ratios = ("whole ms", "trim ms", "narrowed ms", "limit ms"), ("over trim", "over whole")
    rows = [
        [
            f"{case['model']}, {case['graph']}", f"{case['hidden']}", f"{case['seeds']}, {case['fanouts']}",
            *(case[key] for key in (*times, *ratios)),
        ]
        for case in results["cases"]
    ]  # fmt: skip
    head = ["model, graph", "hidden", "seeds, fanouts", "whole, ms", "trim_to_layer, ms", "narrowed, ms", "limit, ms"]
    return table([*head, "over trim_to_layer", "over the whole"], rows)


def inference(results: Any) -> str:
    """Inference on all nodes, by model."""
    rows = []
    for entry in results.values():
        for model, ways in ((name, ways) for name, ways in entry.items() if name not in ("aims", "limited")):
            rows += [[model, way, run["median_ms"] / 1e3, run["over_pyg"]] for way, run in ways.items()]
    return table(["model", "", "CPU time, s", "over PyG's"], rows)


def inference_limited(results: Any) -> str:
    """Inference with less memory than rows."""
    (entry,) = (entry["limited"] for entry in results.values())
    names = {
        "infer": "infer, limited",
        "pyg": "PyG's inference, not limited",
        "pyg limited": "PyG's inference, limited",
    }
    rows = [[name, entry[way]["cpu"] if entry[way]["enough"] else "too little memory"] for way, name in names.items()]
    return table(["", "CPU time, s"], rows)


def tiers(results: Any) -> str:
    """Memory over disk."""
    parts = []
    for graph, entry in results["over_disk"].items():
        rows = [
            [key, run["cold_ms"], run["speedup"], run["warm_ms"], run.get("recent_pages_ms", ""),
             run.get("hottest_pages_ms", ""), *(
                f"{run[rate]:.3f}" if rate in run else "" for rate in ("expected_hit_rate", "found_hit_rate"))]
            for key, run in entry["candidates"].items()
        ]  # fmt: skip
        head = ["", "cold, ms per batch", "over the plain map", "warm, ms", "a third cached: recent pages, ms",
                "hottest pages, ms", "expected hit rate", "found"]  # fmt: skip
        intro = f", {entry['features_mib']:.0f} MiB of features, {entry['rows_per_batch']:,.0f} rows per batch"
        ahead = f", the kernel reads {entry['readahead_kib']:,} KiB ahead" if entry["readahead_kib"] else ""
        parts.append(f"{title(graph)}{intro}{ahead}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def accuracy(results: Any) -> str:
    rows = []
    for task, entry in results.items():
        both = [
            f"{entry['mean'][loader]:.4f} ± {entry['standard_error'][loader]:.4f}" for loader in ("gnnscale", "pyg")
        ]
        errors = [f"{entry[name]:.4f}" for name in ("difference", "two_standard_errors")]
        rows.append([task, entry["metric"], *both, *errors, "equal" if entry["equal"] else "DIFFERENT"])
    return table(["task", "metric", "torch_gnnscale", "PyG", "difference", "two standard errors", ""], rows)


TABLES: dict[Callable[[Any], str], str] = {
    sampling: "sample", modes: "modes", batches: "loader",
    figure: "figure", corners: "corners", steps: "train", loop: "loop", ahead: "ahead",
    typed_steps: "narrow_typed", tiers: "tiers", accuracy: "accuracy",
    inference: "infer", inference_limited: "infer", split_steps: "split",
}  # fmt: skip
"""Each table and the JSON that it is made of."""


def main() -> None:
    made = {numbers.__name__: numbers()}
    for make, name in TABLES.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            print(f"{make.__name__}: left as it is, {path} is missing")
            continue
        found = json.loads(path.read_text())
        made[make.__name__] = f"{make(found['results'])}\n\n{taken_on(found['machine'])}"
    texts = {document: document.read_text() for document in DOCUMENTS}
    for name, lines in made.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        for document, text in texts.items():
            texts[document], count = re.subn(
                pattern, lambda m, lines=lines: f"{m[1]}\n{lines}\n\n{m[2]}", text, flags=re.DOTALL
            )
            if count:
                print(f"{name}: {count} written into {document.name}")
    for document, text in texts.items():
        document.write_text(text)


if __name__ == "__main__":
    main()
