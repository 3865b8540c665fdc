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

from common import PAPERS, RESULTS, layer_defaults, on_threads
from markdown import by_graph, table, taken_on, title
from tables_of_numbers import numbers
from tables_of_ranks import (
    breakdown,
    grid_epoch,
    overlap,
    overlap_model,
    placements,
    split_plans,
    split_steps,
    split_weights,
    split_work,
)

from torch_gnnscale.ops.layer_drawing import SCHEMES_OF

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


def gather(results: Any) -> str:
    candidates = ["gnnscale", "index_select", "index_select(out=)", "limit"]
    parts = []
    for threads in (1, 2):
        copy = results["copy"][f"copy, {on_threads(threads)}"]["gb_per_s"]
        rows = []
        for size, entry in results.items():
            if size.isdigit():
                runs = [entry[f"{name}, {on_threads(threads)}"] for name in candidates]
                rows.append([size, *(run["gb_per_s"] for run in runs), runs[0]["of_copy"]])
        head = ["bytes per row", "gnnscale", "index_select", "index_select(out=)", "rows only read", "gnnscale / copy"]
        parts.append(f"**{on_threads(threads)}**, copy {copy:.1f} GB/s\n\n{table(head, rows)}")
    return "\n\n".join(parts)


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


def narrowing(results: Any) -> str:
    """Narrowed steps over whole ones by the number of seeds, in parentheses where the batch is computed whole."""
    by_model: dict[tuple, dict[int, str]] = {}
    for case in results["cases"]:
        found = f"{case['always_ratio']:.2f}"
        model = by_model.setdefault((case["model"], case["layers"], f"{case['features']}, {case['hidden']}"), {})
        model[case["seeds"]] = found if case["chosen"] == "narrowed" else f"({found})"
    seeds = sorted({case["seeds"] for case in results["cases"]})
    head = ["model", "layers", "features, hidden", *(f"{count} seed{'s' * (count > 1)}" for count in seeds)]
    return table(head, ([*model, *map(found.get, seeds)] for model, found in by_model.items()))


def typed_sums(results: Any) -> str:
    """Steps of narrowed models of typed graphs, beside PyG's."""
    times, ratios = ("whole ms", "trim ms", "narrowed ms"), ("over trim", "over whole")
    rows = [
        [case["model"], f"{case['seeds']}, {case['fanouts']}", *(case[key] for key in (*times, *ratios))]
        for case in results["cases"]
    ]
    head = ["model", "seeds, fanouts", "whole, ms", "trim_to_layer, ms", "narrowed, ms"]
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


def large(results: Any) -> str:
    rows = [
        ["build", f"{results['build']['seconds']:.0f} s, {results['build']['edges_per_s'] / 1e6:.1f} million edges/s"],
        ["check", f"{results['check']['edges_compared']:,} edges compared with the generator's"],
        ["load, files out of the page cache", f"{results['load']['cold_ms_per_batch']:.0f} ms per batch"],
        ["load, files in the page cache", f"{results['load']['warm_ms_per_batch']:.1f} ms per batch"],
        ["train", f"{results['train']['ms_per_step']:.0f} ms per step"],
    ]
    peaks = [results[row[0].split(",")[0]]["peak_gib"] for row in rows]
    return table(["", "", "peak memory, GiB"], ([*row, peak] for row, peak in zip(rows, peaks, strict=True)))


def csc(results: Any) -> str:
    rows = [
        [title(graph).strip("*"), name, run["seconds"], run["gib"]]
        for graph, entry in results.items()
        for name, run in entry.items()
    ]
    return table(["graph", "", "seconds", "GiB beyond the input"], rows)


def dgl(results: Any) -> str:
    return per_edge(results, "DGL's fused")


def dgl_labor(results: Any) -> str:
    return per_edge(results, "DGL's LaborSampler")


def per_edge(results: Any, reference: str) -> str:
    """Samplers beside DGL's, by the time per edge."""

    def make(entry: dict) -> str:
        columns = ("edges_per_batch", "median_ms", "million_edges_per_s", "speedup")
        rows = [[name, *(run[column] for column in columns)] for name, run in entry.items() if name != "dgl"]
        return table(["", "edges per batch", "ms per batch", "million edges/s", f"per edge, over {reference}"], rows)

    return by_graph(results, make)


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


def _score(row: dict[str, Any]) -> str:
    """Mean and deviation in %, seeds without edges, * where the numbers of nodes differ."""
    without = f" ({100 * row['seeds without edges']:.1f})" if row["seeds without edges"] >= 0.0005 else ""
    return f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}{without}{'' if row['equal nodes'] else ' *'}"


def methods(results: Any) -> str:
    """Every row of LABOR; of LADIES and FastGCN the defaults, single changes of these, and what the papers draw."""
    first, *others = (entry["rows"] for entry in results.values())
    order = ("neighbor", "labor", "ladies", "fastgcn")
    names = [
        name
        for name, row in sorted(first.items(), key=lambda e: (order.index(e[1]["method"]), len(e[1]["options"])))
        if all(name in rows for rows in others)
        and (row["method"] == "labor" or len(row["options"]) < 2 or row["options"] == PAPERS[row["method"]])
    ]
    rows = ([name, *(_score(entry["rows"][name]) for entry in results.values())] for name in names)
    return table(["", *(f"{name}, {e['rows']['neighbor']['nodes']:.0f} nodes" for name, e in results.items())], rows)


def method_options(results: Any) -> str:
    """All combinations of the options of LADIES and FastGCN that were measured: a column for each scheme."""
    schemes, rows = sorted(SCHEMES_OF["ladies"]), []
    for data, entry in results.items():
        found: dict[tuple[str, ...], dict[str, str]] = {}
        for row in entry["rows"].values():
            given = layer_defaults() | row["options"]
            if row["method"] in ("ladies", "fastgcn"):
                of = (row["method"], given["scores"], given["weights"], str(given["keep_known"]))
                found.setdefault(of, {})[given["scheme"]] = _score(row)
        rows += [[data, *of, *(found[of].get(scheme, "") for scheme in schemes)] for of in sorted(found)[::-1]]
    return table(["", "method", "scores", "weights", "keep_known", *schemes], rows)


def hit_rates(results: Any) -> str:
    """The paper's figure 7."""
    return "\n\n".join(f"**{graph}**\n\n{_shares('score', scores)}" for graph, scores in results["hit_rates"].items())


def _shares(head: str, lines: dict[str, dict[str, float]]) -> str:
    columns = next(iter(lines.values()))
    return table(
        [head, *columns], ([name, *(f"{share:.3f}" for share in line.values())] for name, line in lines.items())
    )


def depths(results: Any) -> str:
    """The paper's figure 9."""
    return _shares("score, hops x neighbors", results["depths"])


def traffic(results: Any) -> str:
    """The paper's figure 10."""
    return _shares("in the fast tier", {"read from the slow one": results["traffic"]})


def typed_hit_rates(results: Any) -> str:
    """The paper's figure 7, of a graph with types."""
    lines = {name: {f"{share}%": line[share] for share in (5, 10, 25)} for name, line in results["curves"].items()}
    return _shares("score", lines)


def typed_depths(results: Any) -> str:
    """The paper's figure 9, of a graph with types."""
    lines = {name: {depth: line[10] for depth, line in lines.items()} for name, lines in results["depths"].items()}
    return _shares("score, hops x neighbors", lines)


def typed_traffic(results: Any) -> str:
    """The paper's figure 10, with the hit rates that plans expect."""
    lines = {
        f"{score}: {what}": {share: entry[key] for share, entry in by_share.items()}
        for score, by_share in results["traffic"].items()
        for key, what in {"expected": "hit rate expected", "found": "found", "slow bytes": "bytes read slowly"}.items()
    }
    return _shares("in the fast tier", lines)


def hotness_cost(results: Any) -> str:
    lines = results["seconds"]
    return table(
        ["graph, seconds", *next(iter(lines.values()))], ([graph, *line.values()] for graph, line in lines.items())
    )


def bulks(results: Any) -> str:
    """Batches in bulk: dealt to threads, made by a loader, stacked into products."""
    rows = []
    for graph, entry in results.items():
        for what, runs in (entry["bulk"]["times"] | entry.get("loader", {}) | entry.get("stacked", {})).items():
            one, *_, many = runs.values()
            rows.append([graph, what, one["median_ms"], many["median_ms"], one["median_ms"] / many["median_ms"],
                         one["cpu"], many["cpu"]])  # fmt: skip
    head = ["one at a time, ms per batch", "in bulk, ms", "speed-up", "CPU time, ms", "in bulk: CPU time, ms"]
    return table(["graph", "", *head], rows)


TABLES: dict[Callable[[Any], str], str] = {
    sampling: "sample", modes: "modes", batches: "loader",
    figure: "figure", corners: "corners", gather: "gather", steps: "train", loop: "loop", ahead: "ahead",
    narrowing: "narrow", typed_sums: "epyc/narrow_typed",
    large: "large", csc: "topology", dgl: "dgl", dgl_labor: "dgl_labor", tiers: "tiers",
    accuracy: "accuracy", hit_rates: "hotness", depths: "hotness", traffic: "hotness", hotness_cost: "hotness",
    typed_hit_rates: "typed_hotness", typed_depths: "typed_hotness", typed_traffic: "typed_hotness",
    placements: "network", overlap: "prefetch", breakdown: "prefetch", overlap_model: "prefetch",
    bulks: "bulk",
    inference: "infer", inference_limited: "infer",
    methods: "methods", method_options: "methods",
    grid_epoch: "grid_epoch",
    split_plans: "split_plan", split_weights: "split_plan", split_work: "split_plan", split_steps: "split",
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
