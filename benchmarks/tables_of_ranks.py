"""The tables of runs of several processes, each a function of a JSON's results."""

from __future__ import annotations

from typing import Any

from markdown import table


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
