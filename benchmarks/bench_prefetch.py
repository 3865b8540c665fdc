"""What a prefetch buffer does to the time of training, and MassiveGNN's model of it against what was measured.

    python benchmarks/bench_prefetch.py

cnr-2000 (in GNNSCALE_DATA, or ../shared/data) in 2 random parts, one process for each, batches of 500 x (10, 25), a
buffer of a quarter of the halo; GraphSAGE and GAT of two layers, GAT with two heads (MassiveGNN, sections 6 and 6.1.4).
Epochs of the candidates take turns: without a buffer, with each policy, and two without overlap (``prefetch=0``), whose
parts are timed (figure 9). From these the model's equations 2 to 6 predict what the others take.

Each runs over the loopback device as it is, and over one that is limited to two rates: those at which the rows of a
step without a buffer take half of the time of its training, and twice that time.
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from common import judged, parser, save, say_aims
from matplotlib.figure import Figure
from ranks import data_of, is_parent, race, start
from torch import Tensor
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GAT, GraphSAGE

from torch_gnnscale import NeighborLoader, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.buffer import POLICIES
from torch_gnnscale.distributed.policies import BufferStep, MassiveGNN
from torch_gnnscale.machine import allowed_cores
from torch_gnnscale.nn import narrow

FANOUTS, BATCH, FEATURES, HIDDEN, CLASSES, SEED, SHARE = [10, 25], 500, 100, 128, 47, 1, 0.25
MODELS = {
    "GraphSAGE": partial(GraphSAGE, FEATURES, HIDDEN, len(FANOUTS), CLASSES),
    "GAT": partial(GAT, FEATURES, HIDDEN, len(FANOUTS), CLASSES, heads=2),
}
NETWORKS = {"as it is": None, "half": 0.5, "twice": 2.0}
"""By name: the time of a step's rows without a buffer, relative to that of its training; None: the device as it is."""
FIGURE = Path(__file__).parents[1] / "docs" / "overlap.png"


class Setting(NamedTuple):
    """How a candidate reads rows: the policy of its buffer, and how many batches are in preparation."""

    policy: str | None
    options: dict[str, Any]
    prefetch: int


SCORES = {"gamma": 0.995, "delta": 16}
SETTINGS = {
    "no buffer, no overlap": Setting(None, {}, 0),
    "massivegnn, no overlap": Setting("timed", SCORES, 0),
    "no buffer": Setting(None, {}, 4),
    "static": Setting("static", {}, 4),
    "massivegnn": Setting("massivegnn", SCORES, 4),
    "lookahead": Setting("lookahead", {}, 4),
}
NAMED = {
    "no buffer, no overlap": "no buffer, nothing ahead of training",
    "massivegnn, no overlap": "massivegnn, nothing ahead of training",
}
"""Settings as the figure names them, if not as the results do."""
NETWORK_NAMES = {
    "as it is": "as long as the\ndevice takes",
    "half": "half the time\nof training",
    "twice": "twice the time\nof training",
}


class Timed(MassiveGNN):
    """The policy, which times itself; ``latest`` is the object that was made last."""

    latest: Timed

    def __init__(self, capacity: int, halo: Tensor, degree: Tensor, **options: Any) -> None:
        super().__init__(capacity, halo, degree, **options)
        self.lookup = self.scoring = 0.0
        Timed.latest = self

    def step(self, ids: Tensor) -> BufferStep:
        """See :meth:`Policy.step`."""
        begin, scoring = time.perf_counter(), self.scoring
        step = super().step(ids)
        self.lookup += time.perf_counter() - begin - (self.scoring - scoring)
        return step

    def update(self) -> None:
        """See :meth:`Policy.update`."""
        begin = time.perf_counter()
        super().update()
        self.scoring += time.perf_counter() - begin


class Candidate:
    """A loader with its buffer, and a model under DDP."""

    def __init__(self, folder: Path, setting: Setting, model: str, stack: ExitStack) -> None:
        begin = time.perf_counter()
        kept = {} if setting.policy is None else {"buffer": SHARE, "policy": setting.policy}
        options = {} if setting.policy is None else {"policy_options": setting.options}
        self.part = stack.enter_context(open_part(folder / "parts", **kept, **options))
        self.loader = NeighborLoader(
            (self.part.features, self.part.graph), FANOUTS, self.part.input_nodes("train"), batch_size=BATCH,
            shuffle=True, seed=SEED, prefetch=setting.prefetch,
        )  # fmt: skip
        self.start = {"made": time.perf_counter() - begin}
        self.policy = Timed.latest if setting.policy == "timed" else None
        torch.manual_seed(0)
        self.model = DistributedDataParallel(narrow(MODELS[model]()))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.003)
        self.epochs: list[dict[str, float]] = []
        """By epoch: seconds of its parts, the CPU time of all threads, and the bytes received."""

    def train(self, epoch: int) -> None:
        """Trains an epoch."""
        self.loader.set_epoch(epoch)
        before, waits, trained = self.so_far(), [], []
        begin, cpu = time.perf_counter(), time.process_time()
        for batch in self.loader:
            came = time.perf_counter()
            waits.append(came - begin)
            self.optimizer.zero_grad()
            cross_entropy(self.model(batch), batch.y[: batch.batch_size]).backward()
            self.optimizer.step()
            begin = time.perf_counter()
            trained.append(begin - came)
        taken = {key: value - before[key] for key, value in self.so_far().items()}
        later = sum(waits[1:]) / (sum(waits[1:]) + sum(trained[1:]))  # nothing hides the wait for the first batch
        self.epochs.append({
            **taken, "wait": sum(waits), "ddp": sum(trained), "first": waits[0], "later": later,
            "cpu": time.process_time() - cpu,
        })  # fmt: skip

    def so_far(self) -> dict[str, float]:
        """Seconds of this rank's parts of a step, and bytes, since the start."""
        stats, seconds = self.part.stats(), self.loader.seconds
        exchanges = sum(entry["seconds"] for entry in stats.values())
        found = {"sampling": seconds["sample"], "rpc": exchanges, "copy": seconds["gather"] - exchanges}
        found["bytes"] = sum(entry["bytes_received"] for entry in stats.values())
        if self.policy is not None:
            found |= {"lookup": self.policy.lookup, "scoring": self.policy.scoring}
            found["copy"] -= self.policy.lookup
        return found


def in_rank(folder: Path) -> dict[str, Any]:
    """What each rank does."""
    POLICIES["timed"] = Timed
    options = json.loads((folder / "options.json").read_text())
    with ExitStack() as stack:
        found = {n: Candidate(folder, setting, options["model"], stack) for n, setting in SETTINGS.items()}
        times = race({name: candidate.train for name, candidate in found.items()}, options["rounds"])
        steps = len(found["no buffer"].loader)
        dist.barrier()
    return {
        "steps": steps,
        **{
            name: {"seconds": times[name], "epochs": candidate.epochs, "start": candidate.start["made"]}
            for name, candidate in found.items()
        },
    }


def summed_up(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds per step, measured and predicted, and the ratio to no buffer within each round."""
    steps, cores, result = ranks[0]["steps"], allowed_cores(), {}
    for name in SETTINGS:
        of_ranks = [rank[name] for rank in ranks]
        ratios = sorted(a / b for a, b in zip(of_ranks[0]["seconds"], ranks[0]["no buffer"]["seconds"], strict=True))
        rest = [epoch for entry in of_ranks for epoch in entry["epochs"][1:]]
        used = zip(*([epoch["cpu"] for epoch in entry["epochs"][1:]] for entry in of_ranks), strict=True)
        busy = [sum(cpu) / cores / epoch for cpu, epoch in zip(used, of_ranks[0]["seconds"], strict=True)]
        result[name] = {
            "step_ms": median(of_ranks[0]["seconds"]) / steps * 1e3,
            "over no buffer": median(ratios),
            "low": ratios[len(ratios) // 4],
            "high": ratios[len(ratios) * 3 // 4],
            "bytes": median(epoch["bytes"] for epoch in rest) / steps,
            "share of waiting": median(epoch["wait"] / (epoch["wait"] + epoch["ddp"]) for epoch in rest),
            "share of waiting, later steps": median(epoch["later"] for epoch in rest),
            "first wait_ms": median(epoch["first"] for epoch in rest) * 1e3,
            "cores busy": median(busy),
            "first batch_ms": max(entry["epochs"][0]["first"] for entry in of_ranks) * 1e3,
            "made_ms": max(entry["start"] for entry in of_ranks) * 1e3,
            "breakdown_ms": {
                key: median(epoch[key] for epoch in rest) / steps * 1e3
                for key in ("sampling", "lookup", "scoring", "rpc", "copy", "ddp", "wait")
                if key in rest[0]
            },
        }
    result["model"] = predicted(result)
    return {"steps": steps, **result}


def predicted(found: dict[str, Any]) -> dict[str, float]:
    """The model's equations, given the parts of a step that were timed without overlap: milliseconds, and their ratio
    to the measured ones."""
    plain, kept = found["no buffer, no overlap"]["breakdown_ms"], found["massivegnn, no overlap"]["breakdown_ms"]
    fetch = max(plain["rpc"], plain["copy"])
    baseline = plain["sampling"] + fetch + plain["ddp"]  # equation 2
    prepare = kept["sampling"] + kept["lookup"] + max(kept["scoring"], kept["rpc"], kept["copy"])  # 3
    first, rest = prepare + max(prepare, kept["ddp"]), max(prepare, kept["ddp"])  # 4, 5
    measured = {key: found[key]["step_ms"] for key in ("no buffer, no overlap", "massivegnn")}
    return {
        "baseline_ms": baseline,
        "measured over equation 2": measured["no buffer, no overlap"] / baseline,
        "its parts in turn_ms": plain["sampling"] + plain["rpc"] + plain["copy"] + plain["ddp"],
        "prepare_ms": prepare,
        "first_ms": first,
        "rest_ms": rest,
        "measured over equation 5": measured["massivegnn"] / rest,
        "equation 6": (plain["sampling"] + fetch) / plain["ddp"] + 1,
        "measured speed-up": measured["no buffer, no overlap"] / measured["massivegnn"],
    }


def measure(model: str, networks: list[str], rounds: int, limit: int, folder: Path) -> dict[str, Any]:
    """A model at each rate, the first of which is that of the device as it is."""
    results: dict[str, Any] = {}
    (folder / "options.json").write_text(json.dumps({"model": model, "rounds": rounds}))
    rates: dict[str, str | None] = {"as it is": None}  # the others follow from the first run
    for title in networks:
        found = results[title] = summed_up(start(__file__, folder, 2, rates[title], limit))
        if title == "as it is":
            plain = found["no buffer, no overlap"]
            bits, seconds = 2 * 8 * plain["bytes"], plain["breakdown_ms"]["ddp"] / 1e3
            rates |= {t: f"{round(bits / share / seconds / 1000)}kbit" for t, share in NETWORKS.items() if share}
        found["rate"] = rates[title]
        print(f"{model}, lo {title} ({rates[title]}), {found['steps']} steps per epoch")
        for name in SETTINGS:
            print(f"  {name:24s} {json.dumps(found[name])}")
        print(f"  model {json.dumps(found['model'])}", flush=True)
    return results


def plot(results: dict[str, Any]) -> None:
    """A panel for each model: the time of a step over that of one without a buffer, by network, with quartiles."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, len(results), squeeze=False, sharey=True)[0]
    for axes, (model, networks) in zip(panels, results.items(), strict=True):
        for place, name in enumerate(SETTINGS):
            at = [group + 0.14 * (place - 2.5) for group in range(len(networks))]
            runs = [found[name] for found in networks.values()]
            middle = [run["over no buffer"] for run in runs]
            low = [m - run["low"] for m, run in zip(middle, runs, strict=True)]
            high = [run["high"] - m for m, run in zip(middle, runs, strict=True)]
            axes.bar(at, middle, 0.13, yerr=[low, high], error_kw={"linewidth": 0.8}, label=NAMED.get(name, name))
        axes.axhline(1, color="gray", linestyle="--", linewidth=0.8)
        axes.set_xticks(range(len(networks)), [NETWORK_NAMES[name] for name in networks])
        axes.set(title=model, xlabel="loopback device: without a buffer, the rows of a step take")
    panels[0].set(ylabel="time of a step / without a buffer")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(FIGURE, dpi=110)
    print(f"written: {FIGURE}")


def main() -> None:
    if is_parent(in_rank):
        return
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.add_argument("--graph", default="cnr2000")
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--alone", action="store_true", help="over the device as it is only")
    options.add_argument("--steps", type=int, default=16, help="of an epoch")
    options.add_argument("--limit", type=int, default=400, help="seconds after which ranks are ended")
    args = options.parse_args()
    networks = list(NETWORKS)[: 1 if args.alone else None]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        partition.write(
            data_of(args.graph, FEATURES, CLASSES, 2 * args.steps * BATCH), folder / "parts", parts=2, method="random"
        )
        for model in args.models:
            results[model] = measure(model, networks, args.rounds, args.limit, folder)
    shares = {"share of waiting": "of all steps", "share of waiting, later steps": "of all but an epoch's first"}
    aims = {
        f"{model}: waiting, where rows take half of a step, {of}": judged(found["half"]["no buffer"][share], most=0.1)
        for model, found in results.items()
        if "half" in found
        for share, of in shares.items()
    }
    say_aims(aims)
    if not args.no_save:
        save("prefetch", {**results, "aims": aims})
        plot(results)


if __name__ == "__main__":
    main()
