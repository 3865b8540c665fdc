"""Narrowed models on small batches, beside PyG's model on the whole batch: one thread, forward and backward.

The candidates take turns within a round, and their times are CPU times, so that other processes disturb all of them
alike. "always narrowed" never computes a batch whole: ``nn.saving`` is right if it changes from whole to narrowed where
that column crosses 1.

    python benchmarks/bench_narrow.py

The aim is the fixed cost: for one seed, of which nothing is saved, a narrowed model takes at most 0.1 ms longer than
the whole batch.
"""

import statistics
import time

import torch
import torch_geometric.nn as pyg_nn
from common import judged, parser, save, say_aims
from torch_geometric.data import Data

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import narrow, saving

NODES, EDGES, CLASSES = 2708, 10556, 7  # Cora's
MODELS = {kind.__name__: kind for kind in (pyg_nn.GraphSAGE, pyg_nn.GCN, pyg_nn.GAT)}
WIDTHS = ((16, 16), (64, 32), (64, 128), (1433, 64))
"""Features and hidden channels."""
BATCHES = ((1, [2, 2]), (32, [10, 5]), (128, [10, 5]), (512, [10, 5]))
"""Seeds and fanouts."""
MOST_US = 100.0


def measure(model, batch, rounds: int, steps: int) -> dict[str, float]:
    """Microseconds per step of each candidate, and the medians over the rounds of their ratios and differences."""
    narrowed, least = narrow(model), saving.LEAST_SAVED

    def whole():
        return model(batch.x, batch.edge_index)[: batch.batch_size]

    expected = whole().detach()
    torch.testing.assert_close(narrowed(batch), expected, rtol=1e-3, atol=1e-4)  # the first batch is always narrowed
    torch.testing.assert_close(narrowed(batch), expected, rtol=1e-3, atol=1e-4)

    def ours():
        return narrowed(batch)

    ways = [("whole", whole, least), ("narrowed", ours, least), ("always", ours, 0)]
    times: dict[str, list[float]] = {name: [] for name, *_ in ways}
    for turn in range(rounds):
        for name, way, saving.LEAST_SAVED in ways[turn % 3 :] + ways[: turn % 3]:
            start = time.process_time()
            for _ in range(steps):
                model.zero_grad()
                way().sum().backward()
            times[name].append((time.process_time() - start) / steps * 1e6)
    saving.LEAST_SAVED = least
    found = {f"{name}_us": statistics.median(values) for name, values in times.items()}
    for name in ("narrowed", "always"):
        pairs = list(zip(times[name], times["whole"], strict=True))
        found[f"{name}_ratio"] = statistics.median(ours / theirs for ours, theirs in pairs)
        found[f"{name}_more_us"] = statistics.median(ours - theirs for ours, theirs in pairs)
    return found


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.add_argument("--steps", type=int, default=5, help="of each candidate per round")
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--most-seeds", type=int, default=512, help="no batches of more seeds")
    args = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = []
    for model in args.models:
        for features, hidden in WIDTHS:
            data = Data(x=torch.randn(NODES, features), edge_index=torch.randint(NODES, (2, EDGES)))
            for seeds, fanouts in BATCHES:
                if seeds > args.most_seeds:
                    continue
                loader = NeighborLoader(data, fanouts, torch.arange(seeds), batch_size=seeds, seed=1)
                batch = next(iter(loader))
                found = measure(MODELS[model](features, hidden, 2, CLASSES), batch, args.rounds, args.steps)
                about = {"model": model, "features": features, "hidden": hidden, "seeds": seeds}
                cases.append({**about, "nodes": batch.num_nodes, **found})
                shown = "  ".join(f"{name} {value:.3g}" for name, value in found.items())
                print(f"{model:10s} {features:5d} {hidden:4d} {seeds:4d} seeds  {shown}", flush=True)
    most = max(case["narrowed_more_us"] for case in cases if case["seeds"] == 1)
    aims = {"one seed: more than the whole batch, us": judged(most, most=MOST_US)}
    say_aims(aims)
    if not args.no_save:
        save("narrow", {"cases": cases, "aims": aims})


if __name__ == "__main__":
    main()
