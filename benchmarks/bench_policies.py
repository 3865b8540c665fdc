"""MassiveGNN's figures in a simulation: what its parameters, the buffer's size and the policy do to the rows fetched.

    python benchmarks/bench_policies.py

As in bench_buffer.py, whose functions it calls: rank 0 of 4 random parts, a tenth of the nodes as seeds, owned batches
of 500 x (10, 25), about equally many steps on each graph. Graphs: planted and, where GNNSCALE_DATA (or ../shared/data)
has them, cnr-2000 and the school Oklahoma97 of Facebook100. Figures 12 and 13: gamma and delta; figure 10: the hit rate
by step; the policies over buffers of 5 to 50 % of the halo; figure 14: the memory of buffer and scoreboards.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_buffer import BATCH, DELTAS, GAMMAS, PARTS, POLICY, SHARE, SHARES, Part, parts_of, saved
from common import save, widths
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from ranks import DATA, graph_of

from torch_gnnscale.distributed.buffer import POLICIES, capacities

FEATURES = 100
SHOWN = ("static", "massivegnn 0.995, 16", "massivegnn 0.995, 64", "lookahead 16")
"""Policies whose hit rate is shown by step."""
EVERY = 8
"""Steps of which the figure shows the mean hit rate: that of one step varies from batch to batch of an epoch."""
NAMED = {
    "massivegnn 0.995, 16": "massivegnn, gamma 0.995, delta 16",
    "massivegnn 0.995, 64": "massivegnn, gamma 0.995, delta 64",
    "LRU": "least recently used (LRU)",
    "lookahead 16": "lookahead, 16 batches",
    "lookahead epoch": "lookahead, the epoch",
}
"""Policies as the figure names them, if not as the results do."""
FIGURE = Path(__file__).parents[1] / "docs" / "prefetch.png"


def memory(part: Part, row_bytes: int) -> dict[str, dict[str, float]]:
    """Bytes of the buffer's rows and of what each policy keeps beside them, after all steps, with ``SHARE``."""
    found = {}
    for title, (name, options) in POLICY.items():
        (capacity,) = capacities(SHARE, {None: len(part.halo)}, {}, {}).values()
        policy = POLICIES[name](capacity, part.halo, part.degree, **options)
        for epoch in part.batches:
            if policy.window == "epoch":
                for ids in epoch:
                    policy.announce(ids)
            for ids in epoch:
                policy.step(ids)
                policy.update()
        found[title] = {"rows": policy.capacity * row_bytes, "policy": sum(map(array_bytes, vars(policy).values()))}
    return found


def array_bytes(value: Any) -> int:
    """Bytes of the arrays that a policy's attribute holds."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (tuple, list)):
        return sum(map(array_bytes, value))
    return sum(map(array_bytes, vars(value).values())) if hasattr(value, "__dict__") else 0


def measure(graph: str, steps: int) -> dict[str, Any]:
    """All figures of a graph, over about ``steps`` steps."""
    edge_index, num_nodes = graph_of(graph)
    an_epoch = -(-(num_nodes // 10 // PARTS) // BATCH)
    (part,) = parts_of(edge_index, num_nodes, max(1, steps // an_epoch), [0])
    batches = [ids for epoch in part.batches for ids in epoch]
    result: dict[str, Any] = {
        "nodes": num_nodes,
        "halo": len(part.halo),
        "steps": len(batches),
        "rows of other parts a step": sum(map(len, batches)) / len(batches),
    }
    print(f"{graph}: {result}", flush=True)
    result["by_share"] = {
        f"{share:.0%}": {title: saved(part, share, *chosen).share for title, chosen in POLICY.items()}
        for share in SHARES
    }
    result["by_gamma_delta"] = {
        str(gamma): [saved(part, SHARE, "massivegnn", {"gamma": gamma, "delta": delta}).share for delta in DELTAS]
        for gamma in GAMMAS
    }
    result["hit_rate_by_step"] = {title: saved(part, SHARE, *POLICY[title]).by_step for title in SHOWN}
    result["bytes"] = memory(part, 4 * FEATURES + 8)
    for key in ("by_share", "by_gamma_delta", "bytes"):
        for name, values in result[key].items():
            print(f"  {key} {name}: {values}", flush=True)
    return result


def plot(results: dict[str, Any]) -> None:
    """A row of three panels for each graph: by size of the buffer, by gamma and delta, and by step. The panels of a
    column have one scale."""
    figure = Figure(figsize=(11, 2.8 * len(results) + 0.8), layout="constrained")
    rows = figure.subplots(len(results), 3, squeeze=False, sharex="col")
    colors = {title: f"C{number}" for number, title in enumerate(POLICY)}
    for (left, middle, right), (graph, found) in zip(rows, results.items(), strict=True):
        lines(left, {t: [e[t] for e in found["by_share"].values()] for t in POLICY}, [100 * s for s in SHARES], colors)
        left.set(ylabel=f"{graph}\nrows fetched / without a buffer", ylim=(0, 1.05))
        given = {f"gamma {gamma}": values for gamma, values in found["by_gamma_delta"].items()}
        lines(middle, given, list(DELTAS), {title: f"C{6 + number}" for number, title in enumerate(given)})
        middle.set(xscale="log", ylabel="rows fetched / without a buffer", ylim=(0, 1.55))
        middle.set_xticks(DELTAS, [str(delta) for delta in DELTAS])
        middle.minorticks_off()
        middle.axhline(1, color="gray", linestyle="--", linewidth=0.8)
        smooth = {
            t: np.convolve(line, np.full(EVERY, 1 / EVERY), "valid") for t, line in found["hit_rate_by_step"].items()
        }
        lines(right, smooth, None, colors)
        right.set(ylabel=f"hit rate, mean of {EVERY} steps", ylim=(0, 1))
    share = f"{100 * SHARE:g} % of the halo"
    for axes, title in zip(rows[0], ("by size", f"massivegnn, {share}", f"by step, {share}"), strict=True):
        axes.set_title(title)
    for axes, name in zip(rows[-1], ("size of the buffer, % of the halo", "delta", "step"), strict=True):
        axes.set_xlabel(name)
    handles, titles = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, [NAMED.get(title, title) for title in titles], loc="outside lower left", ncols=2)
    handles, titles = rows[0][1].get_legend_handles_labels()
    figure.legend(handles, titles, loc="outside lower right", ncols=2)
    figure.savefig(FIGURE, dpi=110)
    print(f"written: {FIGURE}")


def lines(axes: Axes, values: dict[str, Any], at: list[float] | None, colors: dict[str, str]) -> None:
    """A line for each entry; without ``at``, the last value of each is that of the last step."""
    for (title, line), width in zip(values.items(), widths(len(values)), strict=True):
        style = {"linewidth": width / 2} if at is None else {"linewidth": width, "marker": "o", "markersize": width + 3}
        x = range(EVERY, EVERY + len(line)) if at is None else at
        axes.plot(x, line, color=colors[title], label=title, **style)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = ["planted", *(["cnr2000", "Oklahoma97"] if DATA.is_dir() else [])]
    options.add_argument("--graphs", nargs="+", default=known)
    options.add_argument("--steps", type=int, default=136, help="about so many; whole epochs")
    options.add_argument("--no-save", action="store_true", help="do not write the JSON result and the plot")
    args = options.parse_args()
    torch.set_num_threads(2)
    results = {graph: measure(graph, args.steps) for graph in args.graphs}
    if not args.no_save:
        save("policies", results)
        plot(results)


if __name__ == "__main__":
    main()
