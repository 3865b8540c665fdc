"""Narrowed models on small batches, beside PyG's model on the whole batch: one thread, forward and backward.

The candidates take turns within a round, and their times are CPU times, so that other processes disturb all of them
alike. "always" never computes a batch whole: ``nn.saving`` is right if it narrows the batches whose "always_ratio" is
below 1, and no others.

    python benchmarks/bench_narrow.py

The aims: for one seed, of which nothing is saved, a narrowed model takes at most 0.1 ms longer than the whole batch;
and no batch takes more than 1.1 times what it takes in the other way, whole or narrowed.
"""

import statistics
import time
from itertools import product

import torch
import torch_geometric.nn as pyg_nn
from common import judged, parser, save, say_aims
from torch_geometric.data import Data
from tqdm import tqdm

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import narrow, saving

NODES, EDGES, CLASSES = 2708, 10556, 7  # Cora's
MODELS = {kind.__name__: kind for kind in (pyg_nn.GraphSAGE, pyg_nn.GIN, pyg_nn.GCN, pyg_nn.GAT)}
WIDTHS = ((16, 16), (64, 32), (64, 128), (256, 256), (1433, 64))
"""Features and hidden channels."""
BATCHES = ((1, [2, 2, 2]), *((seeds, [10, 5, 5]) for seeds in (32, 64, 128, 256, 512)))
"""Seeds, and fanouts of as many hops as the model has layers, at most three."""
MOST_US, MOST_RATIO = 100.0, 1.1


def chosen(narrowed, batch) -> str:
    """Which way a narrowed model takes with a batch: the first layer of the whole batch has all rows."""
    first = next(module for module in narrowed.modules() if isinstance(module, pyg_nn.MessagePassing))
    rows: list[int] = []
    hook = first.register_forward_hook(lambda layer, given, out: rows.append(len(out)))
    narrowed(batch)
    hook.remove()
    return "whole" if rows == [batch.num_nodes] else "narrowed"


def measure(model, batch, rounds: int, steps: int) -> dict:
    """The way that is chosen; microseconds per step of each candidate, and the medians over the rounds of their ratios
    and differences."""
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
    found: dict = {"chosen": chosen(narrowed, batch)}
    found |= {f"{name}_us": statistics.median(values) for name, values in times.items()}
    for name in ("narrowed", "always"):
        pairs = list(zip(times[name], times["whole"], strict=True))
        found[f"{name}_ratio"] = statistics.median(ours / theirs for ours, theirs in pairs)
        found[f"{name}_more_us"] = statistics.median(ours - theirs for ours, theirs in pairs)
    return found


def over_the_other(case: dict) -> float:
    """The time in the way that was chosen over the time in the other one."""
    return case["always_ratio"] if case["chosen"] == "narrowed" else 1 / case["always_ratio"]


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.add_argument("--steps", type=int, default=5, help="of each candidate per round")
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--layers", nargs="+", type=int, choices=(2, 3), default=[2, 3])
    options.add_argument("--most-seeds", type=int, default=512, help="no batches of more seeds")
    args = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cases = []
    batches = [(seeds, fanouts) for seeds, fanouts in BATCHES if seeds <= args.most_seeds]
    for name, (features, hidden), layers in tqdm(list(product(args.models, WIDTHS, args.layers)), "models"):
        data = Data(x=torch.randn(NODES, features), edge_index=torch.randint(NODES, (2, EDGES)))
        for seeds, fanouts in batches:
            loader = NeighborLoader(data, fanouts[:layers], torch.arange(seeds), batch_size=seeds, seed=1)
            batch = next(iter(loader))
            found = measure(MODELS[name](features, hidden, layers, CLASSES), batch, args.rounds, args.steps)
            about = {"model": name, "layers": layers, "features": features, "hidden": hidden, "seeds": seeds}
            cases.append({**about, "nodes": batch.num_nodes, **found})
            shown = "  ".join(f"{key} {value:.3g}" for key, value in found.items() if key != "chosen")
            title = f"{name:10s} {layers} layers {features:5d} {hidden:4d} {seeds:4d} seeds, {found['chosen']:8s}"
            tqdm.write(f"{title}  {shown}")
    aims = {
        "one seed: more than the whole batch, us": judged(
            max(case["narrowed_more_us"] for case in cases if case["seeds"] == 1), most=MOST_US
        ),
        "the slowest choice over the other way": judged(max(map(over_the_other, cases)), most=MOST_RATIO),
    }
    say_aims(aims)
    if not args.no_save:
        save("narrow", {"cases": cases, "aims": aims})


if __name__ == "__main__":
    main()
