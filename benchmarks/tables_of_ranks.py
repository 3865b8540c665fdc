"""The tables of runs of several processes, each a function of a JSON's results."""

from __future__ import annotations

from typing import Any

from markdown import table


def placements(results: Any) -> str:
    """FastSample's figure 6."""
    names = [
        name for name, entry in next(iter(next(iter(results.values())).values())).items() if isinstance(entry, dict)
    ]
    rows = []
    for title, rates in results.items():
        for rate, run in rates.items():
            cells = [f"{run[n]['train over fused']:.2f} / {run[n]['load over fused']:.2f}" for n in names]
            rows.append(
                [title, f"lo {rate}", f"{run['fused']['train_ms']:.0f} / {run['fused']['load_ms']:.0f}", *cells]
            )
    return table(["training / batches alone", "", "fused, ms per step", *(f"{n}, over fused" for n in names)], rows)


def overlap(results: Any) -> str:
    """MassiveGNN's figures 6 and 7: milliseconds per step without a buffer, and the others over it."""
    models = {model: networks for model, networks in results.items() if model != "aims"}
    first = next(iter(next(iter(models.values())).values()))
    names = [name for name, entry in first.items() if isinstance(entry, dict) and "step_ms" in entry]
    shares = ["share of waiting", "share of waiting, later steps"]
    rows = [
        [model, rate, run["no buffer"]["step_ms"], *(f"{run[name]['over no buffer']:.2f}" for name in names),
         *(run["no buffer"][share] for share in shares)]
        for model, networks in models.items()
        for rate, run in networks.items()
    ]  # fmt: skip
    return table(["", "rows take", "no buffer, ms", *names, *(f"{share}, no buffer" for share in shares)], rows)


def breakdown(results: Any) -> str:
    """MassiveGNN's figure 9: the parts of a step that does not overlap."""
    keys = ["sampling", "lookup", "scoring", "rpc", "copy", "ddp"]
    rows = []
    for model, networks in results.items():
        for rate, run in networks.items():
            for name in ("no buffer, no overlap", "massivegnn, no overlap") if model != "aims" else ():
                parts = run[name]["breakdown_ms"]
                rows.append([model, rate, name, *(parts.get(key, "") for key in keys), run[name]["step_ms"]])
    return table(["ms per step", "rows take", "", *keys, "all"], rows)


def overlap_model(results: Any) -> str:
    """MassiveGNN's equations against what was measured."""
    keys = ["measured over equation 2", "measured over equation 5", "equation 6", "measured speed-up"]
    rows = [
        [model, rate, *(run["model"][key] for key in keys)]
        for model, networks in results.items()
        for rate, run in networks.items()
        if model != "aims"
    ]
    return table(["", "rows take", *keys], rows)


def split_steps(results: Any) -> str:
    """GSplit's tables 1 and 3, and its figure 6: split parallelism beside data parallelism."""
    rows = []
    for name, run in results.items():
        if name == "aims":
            continue
        ours, theirs = (
            " ".join(f"{run[way][f'{part}_ms']:.0f}" for part in ("S", "L", "FB")) if "S_ms" in run[way] else ""
            for way in ("split", "data parallel")
        )
        travelled = sum(entry["bytes"] for entry in run["traffic"].values()) / 1e6
        times = f"{run['speedup']:.2f} ({run['speedup low']:.2f} to {run['speedup high']:.2f})"
        work = [f"{run[key]:.2f}" for key in ("rows over split's", "edges over split's")]
        step = f"{run['split']['step_ms']:.0f}"
        rows.append([name, *work, ours, theirs, f"{travelled:.1f}", step, times])
    head = ["setting", "rows, data parallel / split", "edges", "S L FB of split, ms", "of data parallel", "MB per step",
            "step of split, ms", "times as fast (quartiles)"]  # fmt: skip
    return table(head, rows)
