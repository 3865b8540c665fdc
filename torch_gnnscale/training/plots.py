"""The plot of a run."""

from __future__ import annotations

import os
from typing import Any


def plot_run(summary: dict[str, Any], file: str | os.PathLike) -> None:
    """Draws loss, validation score and where the time went, from what :meth:`Trainer.run` returns, into an image."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    epochs = [entry["epoch"] for entry in summary["history"]]
    left.plot(epochs, [entry["loss"] for entry in summary["history"]], marker="o")
    left.set(xlabel="epoch", ylabel="training loss")
    middle.plot(epochs, [entry["val"] for entry in summary["history"]], marker="o", label="validation")
    middle.axhline(summary["test"], linestyle="--", color="gray", label="test, best epoch")
    middle.set(xlabel="epoch", ylabel=summary["metric"])
    if "baseline" in summary:
        middle.axhline(summary["baseline"]["test"], linestyle=":", color="black", label=summary["baseline"]["name"])
    for axes in (left, middle):
        axes.set_xlim(epochs[0] - 0.5, epochs[-1] + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    low, high = middle.get_ylim()
    middle.set_ylim(max(low, 0), min(high, 1))  # every metric is a share
    figure.legend(*middle.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    right.barh(list(summary["seconds"]), list(summary["seconds"].values()))
    right.set(xlabel="seconds")
    figure.suptitle(f"{summary['model']} on {summary['task']}")
    figure.savefig(file, dpi=120)
