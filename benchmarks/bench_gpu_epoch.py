"""An epoch of training on a GPU whose features lie in host memory: the bus's traffic, and what it costs.

    python benchmarks/bench_gpu_epoch.py

The graph is generated: 28 million nodes, 400 million edges, 14 GB of features. An epoch of 384 batches trains
GraphSAGE with features from tiers that have 5 % of the rows' bytes on the GPU (``--share``), from pinned host memory
alone (zero-copy), or from batches that are on the GPU beforehand, which is the limit; once for each width of the model
(``--hidden``), because the steps of a narrow model are bound by the host that launches them. At the end the last of
these models is trained through PyG's loader on all cores, where pyg-lib or torch-sparse can be imported. Every round
reads the same epoch, whose accesses are the scores of the tiers.

Aims: the traffic differs from the plan's by at most 2 %, and the epoch with tiers takes at most 5 % longer than the
limit. Traffic is counted in rows, by the gathers; and, if nvidia-ml-py and the driver allow it, in bytes that the GPU
received over PCIe with tiers, as a share of those without tiers, after those of an epoch of prepared batches are
subtracted from both. The batches must read more rows than the GPU's share holds, or nothing is left to read from the
slower tier: the aims of traffic are then not judged. How well the accesses of another epoch would have predicted the
traffic is counted, not measured. Without a GPU, memory over disk takes its place, which runs the same code and measures
nothing.
"""

from __future__ import annotations

import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from common import has, judged, parser, ratio, save, say_aims
from pcie import NotCounted, Received
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader, NeighborSampler, TieredFeatureStore
from torch_gnnscale.loader import accesses
from torch_gnnscale.nn import narrow
from torch_gnnscale.topology import rmat

FANOUTS, CLASSES = [15, 10, 5], 16
MEASURED, PRESAMPLED = 3, 1000  # epochs: the one that is read, and another
STEP = 4096
TIERS, ZERO_COPY, LIMIT, PYG = "tiers", "zero-copy", "prepared beforehand", "PyG"
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def say(what: str, since: float) -> None:
    print(f"{what}: {time.perf_counter() - since:.1f} s", flush=True)


def device_name() -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(DEVICE) if DEVICE.type == "cuda" else "cpu"


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def features_of(nodes: int, width: int) -> Tensor:
    """Rows that tell which node they are: its number's last digits to the base 4096 and the others, in turn."""
    x, ids = torch.empty(nodes, width // 2, 2), torch.arange(nodes)
    x[:, :, 0] = (ids % STEP).float()[:, None]
    x[:, :, 1] = (ids // STEP).float()[:, None]
    return x.view(nodes, width)


def check(name: str, batches: Iterable[Any], most: int = 4) -> None:
    """Raises RuntimeError unless the rows of the first batches are those of their nodes."""
    for _, batch in zip(range(most), batches, strict=False):
        pairs, ids = batch.x.view(len(batch.x), -1, 2).long(), batch.n_id.to(batch.x.device)
        if batch.x.device != DEVICE and name != PYG:
            raise RuntimeError(f"{name}: expected rows on {DEVICE}, found {batch.x.device}")
        if not torch.equal(pairs[:, :, 0] + STEP * pairs[:, :, 1], ids[:, None].expand(pairs.shape[:2])):
            raise RuntimeError(f"{name}: a batch has rows of other nodes")


class Problem:
    """A generated graph, its features, and loaders whose epoch :data:`MEASURED` all read the same."""

    def __init__(self, nodes: int, edges: int, width: int, batches: int, batch_size: int) -> None:
        begin = time.perf_counter()
        self.csc = CSC.from_edge_index(rmat(nodes, edges, seed=1), nodes)
        self.csc = CSC.from_csc(self.csc.colptr, self.csc.row.contiguous())  # an edge is its position
        self.graph = GraphStore.from_csc(self.csc)
        say(f"graph of {nodes:,} nodes and {edges:,} edges", begin)
        begin = time.perf_counter()
        self.data = Data(x=features_of(nodes, width), num_nodes=nodes)
        say(f"features of {self.data.x.nbytes / 2**30:.1f} GiB", begin)
        self.seeds = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))[: batches * batch_size]
        self.given = {"input_nodes": self.seeds, "batch_size": batch_size, "shuffle": True}
        self.sampler = NeighborSampler((FeatureStore(), self.graph), FANOUTS, device=DEVICE)

    def loader(self, store: FeatureStore, **options: Any) -> NeighborLoader:
        """A loader of this package over the graph and these rows; it may have options of its own."""
        stores = (store, self.graph)
        return NeighborLoader(stores, FANOUTS, neighbor_sampler=self.sampler, seed=1, **self.given, **options)

    def accesses(self, epoch: int) -> Tensor:
        """How often an epoch reads the row of each node."""
        begin = time.perf_counter()
        count = accesses(self.loader(FeatureStore()), [epoch])
        say(f"epoch {epoch} sampled", begin)
        return count


def add_sizes(options: ArgumentParser, nodes: int, edges: int, batches: int) -> None:
    """Arguments for the sizes of a :class:`Problem`, and their defaults."""
    options.add_argument("--nodes", type=int, default=nodes)
    options.add_argument("--edges", type=int, default=edges)
    options.add_argument("--width", type=int, default=128, help="features, float32; an even number")
    options.add_argument("--batches", type=int, default=batches, help="per epoch")
    options.add_argument("--batch-size", type=int, default=1024)


class Training:
    """A model and its steps; labels are functions of nodes' numbers."""

    def __init__(self, width: int, hidden: int) -> None:
        torch.manual_seed(0)
        self.model = pyg_nn.GraphSAGE(width, hidden, len(FANOUTS), CLASSES).to(DEVICE)
        self.narrowed = narrow(self.model, check=False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def epoch(self, batches: Iterable[Any]) -> float:
        """Seconds of an epoch, until the GPU has finished."""
        synchronize()
        begin = time.perf_counter()
        for given in batches:
            batch = given.to(DEVICE, non_blocking=True)
            self.optimizer.zero_grad()
            target = batch.n_id[: batch.batch_size] % CLASSES
            if "num_sampled_nodes" in batch:
                out = self.narrowed(batch)
            else:  # PyG's loader on torch-sparse knows no hops
                out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
            nn.functional.cross_entropy(out, target).backward()
            self.optimizer.step()
        synchronize()
        return time.perf_counter() - begin


class Traffic:
    """What a store reads from its slower tier, in epochs that all read the same.

    ``count``: how often an epoch reads each node's row.
    """

    def __init__(self, store: TieredFeatureStore, tier: str, count: Tensor) -> None:
        self.store, self.tier = store, tier
        self.everything = int(count.sum()) * store.plan.row_bytes
        self.expected = store.plan.bytes_per_read(tier) * float(count.sum())
        self.epochs = 0  # to be raised with each
        self._before = self._read()

    def _read(self) -> int:
        """Bytes that were read from the tier so far; 0 for a tier without rows."""
        return self.store.stats()[self.tier].num_bytes if self.store.plan.rows(self.tier) else 0

    def per_epoch(self) -> dict[str, float | None]:
        """What the plan expects and what was read since this was made, in bytes per epoch."""
        found = (self._read() - self._before) / self.epochs
        return {
            "predicted_bytes": self.expected,
            "found_bytes": found,
            "off": ratio(found - self.expected, self.expected),
            "without_tiers_bytes": self.everything,
            "share_of_hot_rows": ratio(self.everything - found, self.everything),
        }


def epochs_of_pyg(problem: Problem, training: Training, rounds: int) -> Iterator[float]:
    """Seconds of epochs through PyG's loader on all cores; ends, and the reason is printed, where it cannot run."""
    if not (has("pyg_lib") or has("torch_sparse")):
        print("PyG's NeighborLoader is left out: neither pyg-lib nor torch-sparse is installed")
        return
    try:
        stores = (FeatureStore.from_data(problem.data), problem.graph)
        workers = {"num_workers": torch.get_num_threads(), "pin_memory": DEVICE.type == "cuda"}
        loader = PyGNeighborLoader(stores, FANOUTS, **problem.given, **workers)
        check(PYG, loader)
        for _ in range(rounds):
            yield training.epoch(loader)
    except Exception as error:  # of any type: a peer that does not run must not stop the measurements
        print(f"PyG's NeighborLoader is left out: {type(error).__name__}: {error}")


def received(epochs: dict[str, Callable[[], float]]) -> dict[str, int] | None:
    """Bytes that the GPU receives over PCIe in each of these epochs; None, with the reason, if nobody counts them."""
    if DEVICE.type == "cpu":
        return None
    try:
        counter, totals = Received(DEVICE), []
        for run in epochs.values():
            with counter.counting(totals):
                run()
    except NotCounted as error:
        print(f"traffic over PCIe is left out: {error}")
        return None
    return dict(zip(epochs, totals, strict=True))


def aims_of(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The aims, as far as there are figures."""
    aims = {}
    if "traffic" in results:
        aims["traffic of the slow tier, off the plan's"] = judged(results["traffic"]["off"], within=0.02)
    if "pcie" in results:
        share, found = (results["pcie"][name] for name in ("predicted_share", "found_share"))
        off = None if share is None or found is None else ratio(found - share, share)
        aims["share of the traffic over PCIe, off the plan's"] = judged(off, within=0.02)
    for name, entry in results["epochs"].items():
        if TIERS in entry:
            aims[f"an epoch with tiers, over the limit, {name}"] = judged(entry[TIERS]["over_limit"], most=0.05)
    return aims


def summary(seconds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """The epochs of each candidate, in seconds, and the share by which its median is over the limit's."""
    limit = median(seconds[LIMIT]) if seconds.get(LIMIT) else 0.0
    return {
        name: {"seconds": median(values), "all": list(values), "over_limit": ratio(median(values) - limit, limit)}
        for name, values in seconds.items()
        if values
    }


def say_seconds(title: str, entries: dict[str, dict[str, Any]]) -> None:
    print(f"\n{title}")
    for name, entry in entries.items():
        spread = f"[{min(entry['all']):.3f}, {max(entry['all']):.3f}]"
        over = "" if entry["over_limit"] is None else f"{100 * entry['over_limit']:+7.1f} % over the limit"
        print(f"  {name:20s} {entry['seconds']:8.3f} s {spread:20s} {over}")


def main() -> None:
    options = parser((__doc__ or "").splitlines()[0], graphs=False)
    options.set_defaults(rounds=3)
    add_sizes(options, nodes=28_000_000, edges=400_000_000, batches=384)
    options.add_argument("--share", default="5%", help="of the rows' bytes that the tiers keep on the GPU")
    options.add_argument("--hidden", type=int, nargs="+", default=[256, 512], help="widths of the model, one run each")
    args = options.parse_args()
    slow = "host" if DEVICE.type == "cuda" else "disk"
    problem = Problem(args.nodes, args.edges, args.width, args.batches, args.batch_size)
    data = problem.data
    count, other = problem.accesses(MEASURED), problem.accesses(PRESAMPLED)
    results: dict[str, Any] = {
        "device": device_name(),
        "arguments": vars(args),
        "rows_per_batch": int(count.sum()) / args.batches,
        "epochs": {},
    }

    def saved() -> None:
        """What there is, for what comes next may run out of time."""
        results["aims"] = aims_of(results)
        if not args.no_save:
            save("gpu_epoch", results)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="."))
        # In bytes, for a machine may have more memory than it says is available.
        in_host: dict[str, Any] = {"host": data.x.nbytes} if DEVICE.type == "cuda" else {}
        budgets = {"gpu": args.share, **in_host} if in_host else {"host": args.share, "disk": folder}
        begin = time.perf_counter()
        tiers = stack.enter_context(TieredFeatureStore.from_data(data, hotness=count, device=DEVICE, **budgets))
        say("tiers filled", begin)
        print(tiers.plan)
        begin = time.perf_counter()
        whole = stack.enter_context(TieredFeatureStore.from_data(data, hotness=count, device=DEVICE, **in_host))
        say("zero-copy rows filled", begin)
        loaders = {TIERS: problem.loader(tiers), ZERO_COPY: problem.loader(whole)}
        for name, loader in loaders.items():
            check(name, loader)
        print("rows are those of their nodes", flush=True)

        measured = problem.loader(tiers)
        measured.set_epoch(MEASURED)
        prepared = list(measured)
        hot = other.argsort(descending=True)[: tiers.plan.rows("gpu" if slow == "host" else "host")]
        results["presampled"] = {
            "predicted_share_of_hot_rows": ratio(float(other[hot].sum()), float(other.sum())),
            "found_share_of_hot_rows": ratio(float(count[hot].sum()), float(count.sum())),
        }
        traffic = Traffic(tiers, slow, count)
        saved()
        try:
            for hidden in args.hidden:
                training = Training(args.width, hidden)

                def epoch(loader: NeighborLoader, training: Training = training) -> float:
                    loader.set_epoch(MEASURED)
                    traffic.epochs += loader is loaders[TIERS]
                    return training.epoch(loader)

                candidates: dict[str, Callable[[], float]] = {
                    name: lambda loader=loader, epoch=epoch: epoch(loader) for name, loader in loaders.items()
                }
                candidates[LIMIT] = lambda training=training: training.epoch(prepared)
                seconds: dict[str, list[float]] = {name: [] for name in candidates}
                for round_ in range(-1, args.rounds):
                    for name, run in candidates.items():
                        taken = run()
                        if round_ >= 0:
                            seconds[name].append(taken)
                    results["epochs"][f"hidden {hidden}"] = summary(seconds)
                    results["traffic"] = traffic.per_epoch()
                    results["stall_of_all_epochs"] = {
                        name: loader.seconds.get("stall") for name, loader in loaders.items()
                    }
                    saved()
                    if round_ < 0 and hidden == args.hidden[0]:  # after a round, for the first one loads kernels
                        over_bus = received({name: candidates[name] for name in (TIERS, ZERO_COPY, LIMIT)})
                        if over_bus is not None:
                            share = ratio(traffic.expected, traffic.everything)
                            of_host = over_bus[TIERS] - over_bus[LIMIT]
                            found_share = ratio(of_host, over_bus[ZERO_COPY] - over_bus[LIMIT])
                            results["pcie"] = {**over_bus, "predicted_share": share, "found_share": found_share}
                            saved()
            seconds[PYG] = []
            for taken in epochs_of_pyg(problem, training, args.rounds):
                seconds[PYG].append(taken)
                results["epochs"][f"hidden {hidden}"] = summary(seconds)
                saved()
        finally:  # also where the time is up
            for name, entries in results["epochs"].items():
                say_seconds(f"An epoch of {args.batches} batches of {args.batch_size} x {FANOUTS}, {name}", entries)
            for key in ("traffic", "presampled", "stall_of_all_epochs", "pcie"):
                if key in results:
                    print(f"{key}: {results[key]}")
            say_aims(aims_of(results))


if __name__ == "__main__":
    main()
