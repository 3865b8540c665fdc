"""Data Tiering's figures 10 and 8 on one GPU: traffic and time by the share of the rows on it, against other ways.

    python benchmarks/bench_gpu_tiers.py

The graph is generated: 6 million nodes, 86 million edges, 3 GB of features. An epoch is 64 batches of 1024 x
(15, 10, 5), whose seeds are about 1 % of the nodes; GraphSAGE with 256 hidden features trains on it. Every epoch reads
the same, and the scores of the tiers are its accesses. Times are those of training, and of loading alone.

Figure 10: 0 to 25 % of the rows' bytes on the GPU, beside the map to them. The bytes that an epoch reads over the bus
are predicted for all shares by plans alone, then measured with a store for each share; aim: within 2 % of the plan's.
What an order by weighted reverse PageRank would read, the paper's score, is counted, not measured.

Figure 8: rows gathered by the CPU, in pageable memory, and copied; read by the GPU from host memory (zero-copy); and
with 10 % on the GPU. All are drawn by the GPU.

Then the same tiers with 0 to 16 batches made ahead, one by one, and with the loader's defaults.

Figure 9, deeper samples, is in docs/hotness.md. Figure 11 needs several. Without a GPU, memory over
disk takes its place, which runs the same code and measures nothing. ``--plot`` draws what a run has saved.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench_gpu_epoch import (
    DEVICE,
    LIMIT,
    MEASURED,
    TIERS,
    ZERO_COPY,
    Problem,
    Traffic,
    Training,
    add_sizes,
    check,
    device_name,
    received,
    say_seconds,
    summary,
)
from bench_gpu_papers import loading
from common import RESULTS, judged, parser, ratio, save, say_aims
from torch import Tensor

from torch_gnnscale import FeatureStore, NeighborLoader, TieredFeatureStore
from torch_gnnscale.feature import hotness
from torch_gnnscale.feature.tier_plan import plan_ranked, ranked
from torch_gnnscale.topology.reorder import by_score

PERCENT, HOT = (0, 1, 2.5, 5, 10, 15, 20, 25), 10  # figure 8 has 10 % of ogbn-papers100M on the GPU
AHEAD = (0, 1, 2, 4, 8, 16)
GATHERED = "gathered by the CPU"
COUNTED, PAGERANK = "counted accesses", "weighted reverse PageRank"
FAST, SLOW = ("gpu", "host") if DEVICE.type == "cuda" else ("host", "disk")
PLOT = Path(__file__).parents[1] / "docs" / "gpu_tiers.png"


def fast_bytes(percent: float, x: Tensor) -> int:
    """The fast tier's budget for a share of the rows: their bytes, and 4 for each node's place in the map."""
    return round(percent / 100 * x.nbytes) + 4 * len(x) if percent else 0


def store_of(problem: Problem, count: Tensor, percent: float, folder: str) -> TieredFeatureStore:
    """Tiers with this share of the rows in the fast one."""
    x = problem.data.x
    slow: dict[str, Any] = {"host": x.nbytes} if SLOW == "host" else {"disk": folder}
    budgets = {FAST: fast_bytes(percent, x), **slow}
    return TieredFeatureStore.from_data(problem.data, hotness=count, device=DEVICE, **budgets)


def predictions(problem: Problem, count: Tensor) -> dict[str, dict[str, float]]:
    """The share of an epoch's bytes that is read from the slow tier, by two scores, for each share of the rows."""
    x = problem.data.x
    _, by_count = ranked(count, "count")
    by_pagerank = count[by_score(hotness.reverse_pagerank(problem.csc, problem.seeds)).old].double()
    found: dict[str, dict[str, float]] = {COUNTED: {}, PAGERANK: {}}
    for percent in PERCENT:
        fast, on_gpu = fast_bytes(percent, x), SLOW == "host"
        gpu, host = (fast, x.nbytes) if on_gpu else (0, fast)
        plan = plan_ranked(
            by_count, {"x": x[0].nbytes}, gpu=gpu, peers=(), host=host, disk=not on_gpu, mapped=True, on_gpu=on_gpu
        )
        found[COUNTED][f"{percent:g} %"] = plan.bytes_per_read(SLOW) / plan.row_bytes
        found[PAGERANK][f"{percent:g} %"] = float(by_pagerank[plan.rows(FAST) :].sum() / by_pagerank.sum())
    return found


def measured(
    ways: dict[str, NeighborLoader | list[Any]], training: Training, rounds: int
) -> Iterator[dict[str, dict[str, dict[str, Any]]]]:
    """Seconds of epochs of training and, by loaders, of loading alone, in turn, after a round that does not count.

    Yields those of all rounds so far after each round.
    """
    loaders = [name for name, way in ways.items() if isinstance(way, NeighborLoader)]
    seconds: dict[str, dict[str, list[float]]] = {
        "training": {name: [] for name in ways}, "loading": {name: [] for name in loaders},
    }  # fmt: skip
    for round_ in range(-1, rounds):
        for name, way in ways.items():
            for what, run in {"training": training.epoch, "loading": loading}.items():
                if name not in seconds[what]:
                    continue
                if isinstance(way, NeighborLoader):
                    way.set_epoch(MEASURED)
                taken = run(way)
                if round_ >= 0:
                    seconds[what][name].append(taken)
        if round_ >= 0:
            yield {what: summary(found) for what, found in seconds.items()}


def say_measured(title: str, found: dict[str, dict[str, dict[str, Any]]]) -> None:
    for what, entries in found.items():
        say_seconds(f"{title}, {what}", entries)


def of_share(store: TieredFeatureStore, problem: Problem, count: Tensor, training: Training,
             rounds: int, name: str, idle_bytes: int | None) -> dict[str, Any]:  # fmt: skip
    """Figure 10 for one share: seconds and traffic; over PCIe, too, without the bytes of an epoch that loads nothing,
    if these are given."""
    loader = problem.loader(store)
    check(name, loader)
    loading(loader)  # so that nothing of what was checked is still read
    traffic = Traffic(store, SLOW, count)
    *_, found = measured({name: loader}, training, rounds)
    traffic.epochs = 2 * (rounds + 1)
    found["traffic"] = traffic.per_epoch()
    if idle_bytes is not None:
        loader.set_epoch(MEASURED)
        over_bus = received({name: lambda: training.epoch(loader)})
        found["pcie_bytes"] = None if over_bus is None else over_bus[name] - idle_bytes
    return found


def aims_of(by_share: dict[str, Any]) -> dict[str, Any]:
    """The aim of figure 10, over the shares so far that leave something to read from the slow tier."""
    off = [entry["traffic"]["off"] for entry in by_share.values() if entry["traffic"]["off"] is not None]
    return {
        "traffic of the slow tier, off the plan's, worst share": judged(max(off, key=abs, default=None), within=0.02)
    }


def plot(results: dict[str, Any], path: Path) -> None:
    """Traffic and time over the share of the rows on the GPU."""
    from matplotlib.figure import Figure  # needed here alone

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    traffic, time = figure.subplots(1, 2)
    for (score, shares), width in zip(results["predicted"].items(), (3.0, 1.5), strict=True):
        percent = [float(name[:-2]) for name in shares]
        traffic.plot(percent, [100 * share for share in shares.values()], linewidth=width, label=f"by {score}")
    entries = {float(name[:-2]): entry for name, entry in results["figure 10"].items()}
    found = [100 * e["traffic"]["found_bytes"] / e["traffic"]["without_tiers_bytes"] for e in entries.values()]
    traffic.plot(list(entries), found, "ko", label=f"by {COUNTED}, measured")
    traffic.set(xlabel="rows on the GPU, %", ylabel="read over the bus, % of all bytes", ylim=(0, 105))
    for what, width in (("training", 3.0), ("loading", 1.5)):
        seconds = [e[what][name]["seconds"] for name, e in results["figure 10"].items()]
        time.plot(list(entries), seconds, "o-", linewidth=width, markersize=3 * width, label=what)
    time.set(xlabel="rows on the GPU, %", ylabel="seconds per epoch", ylim=(0, None))
    for axes in (traffic, time):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)


def main() -> None:
    options = parser((__doc__ or "").splitlines()[0], graphs=False)
    options.set_defaults(rounds=2)
    add_sizes(options, nodes=6_000_000, edges=86_000_000, batches=64)
    options.add_argument("--hidden", type=int, default=256)
    options.add_argument("--plot", action="store_true", help="only draw docs/gpu_tiers.png from the saved results")
    args = options.parse_args()
    if args.plot:
        plot(json.loads((RESULTS / "gpu_tiers.json").read_text())["results"], PLOT)
        return
    problem = Problem(args.nodes, args.edges, args.width, args.batches, args.batch_size)
    count = problem.accesses(MEASURED)
    results: dict[str, Any] = {
        "device": device_name(),
        "arguments": vars(args),
        "rows_per_batch": int(count.sum()) / args.batches,
        "predicted": predictions(problem, count),
        "figure 10": {},
    }

    def saved() -> None:
        """What there is, for what comes next may run out of time."""
        results["aims"] = aims_of(results["figure 10"])
        if not args.no_save:
            save("gpu_tiers", results)

    for score, shares in results["predicted"].items():
        line = ", ".join(f"{name}: {share:.3f}" for name, share in shares.items())
        print(f"predicted share of all bytes that is read from {SLOW}, by {score}: {line}")
    saved()
    by_cpu = problem.loader(FeatureStore.from_data(problem.data))
    check(GATHERED, by_cpu)
    by_cpu.set_epoch(MEASURED)
    prepared, training = list(by_cpu), Training(args.width, args.hidden)
    training.epoch(prepared)
    idle = received({LIMIT: lambda: training.epoch(prepared)})
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="."))
        for percent in PERCENT:
            name = f"{percent:g} %"
            with store_of(problem, count, percent, folder) as store:
                found = of_share(store, problem, count, training, args.rounds, name, idle and idle[LIMIT])
            results["figure 10"][name] = found
            say_measured(f"{name} of the rows in {FAST}", {what: found[what] for what in ("training", "loading")})
            for key in ("traffic", "pcie_bytes"):
                if key in found:
                    print(f"{key}: {found[key]}")
            saved()
        say_aims(results["aims"])

        zero, tiers = (stack.enter_context(store_of(problem, count, percent, folder)) for percent in (0, HOT))
        ways = {GATHERED: by_cpu, ZERO_COPY: problem.loader(zero), TIERS: problem.loader(tiers), LIMIT: prepared}
        for results["figure 8"] in measured(ways, training, args.rounds):
            saved()
        found = results["figure 8"]
        say_measured("Figure 8", found)
        for what, entries in found.items():
            for slower, faster in ((GATHERED, ZERO_COPY), (ZERO_COPY, TIERS)):
                gain = ratio(entries[slower]["seconds"], entries[faster]["seconds"])
                results["figure 8"][what][faster][f"{slower}, over it"] = gain
                print(f"  {what}, {slower} over {faster}: {gain:.2f}")
        saved()

        ahead: dict[str, Any] = {f"{most} ahead": problem.loader(tiers, prefetch=most, bulk=1) for most in AHEAD}
        ahead |= {"defaults": problem.loader(tiers), LIMIT: prepared}
        for results["ahead"] in measured(ahead, training, args.rounds):
            saved()
        say_measured(f"Batches made ahead, {HOT} % of the rows in {FAST}", results["ahead"])


if __name__ == "__main__":
    main()
