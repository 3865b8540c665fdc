"""Where the time of training goes, and the plot of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from ..loader.keyed_loader import KeyedLoader


class Clock:
    """Sums the loop's seconds by what they were spent on. A call costs a tenth of a microsecond.

    ``seconds`` has ``train`` (forward, backward, step) and ``wait`` (the loop waits for a batch). With ``loader`` it
    also has what that loader counts: ``sample`` and ``gather``, which its threads do while the loop trains. If a GPU
    makes the batches, the host's waits say nothing: ``wait`` is then the time for which the GPU was idle because no
    batch was ready (the loader's ``stall``), and ``train`` is the rest of the loop's time.

    Args:
        loader: a loader of this package that works in this process; None for any other.
    """

    def __init__(self, loader: KeyedLoader | None) -> None:
        self._loader = loader
        self._collected: dict[str, float] = {}
        """The part of the loader's seconds that ``seconds`` has already."""
        counted = [] if loader is None else [name for name in loader.seconds if name != "stall"]
        self.clock: Callable[[], float] = time.perf_counter
        """What is read, in seconds; ``time.process_time`` in its place counts the CPU time of the process."""
        self.seconds = dict.fromkeys([*counted, "train", "wait"], 0.0)
        """The sum so far, by name."""
        self._mark = self.clock()

    def skip(self) -> None:
        """The time since the last call counts for nothing."""
        self._mark = self.clock()

    @property
    def knows_stall(self) -> bool:
        """Whether the loader counts for how long a GPU was idle."""
        return self._loader is not None and "stall" in self._loader.seconds

    def waited(self) -> float:
        """Counts the seconds since the last call as spent on waiting for a batch; returns them."""
        return self._lap("train" if self.knows_stall else "wait")

    def trained(self) -> float:
        """Counts the seconds since the last call as spent on training; returns them."""
        return self._lap("train")

    def _lap(self, name: str) -> float:
        before, self._mark = self._mark, self.clock()
        self.seconds[name] += self._mark - before
        return self._mark - before

    def collect(self) -> None:
        """Adds what the loader counted since the last call."""
        if self._loader is None:
            return
        now = dict(self._loader.seconds)
        spent = {name: value - self._collected.get(name, 0.0) for name, value in now.items()}
        self._collected = now
        stall = spent.pop("stall", 0.0)
        for name, value in {**spent, "wait": stall, "train": -stall}.items():
            self.seconds[name] += value

    def report(self) -> list[str]:
        """Lines for the user: the seconds, and how to read them."""
        lines = ["where the time of training went: " + ", ".join(f"{k} {v:.2f} s" for k, v in self.seconds.items())]
        if self._loader is None:
            return lines
        if self.knows_stall:
            lines.append("(sample and gather are the host's share of the work; wait: the GPU had no batch to work on)")
        else:
            lines.append("(sample and gather run in threads while train goes on, or in the loop, as a part of wait)")
        return lines


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
