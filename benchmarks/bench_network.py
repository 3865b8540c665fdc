"""Where the topology lies: an epoch of each placement, over the loopback device as it is, and shaped by tc.

    python benchmarks/bench_network.py

FastSample's figure 6 with its model (GraphSAGE of three layers, (15, 10, 5)), in random parts, one process for each.
"hop by hop" and "fused" are one placement, drawn in two ways:

- partitioned: topology and features in parts, drawn hop by hop; FastSample's "vanilla";
- hop by hop: the topology whole on every rank, features in parts, and the samples nevertheless drawn hop by hop;
- fused: as "hop by hop", but all hops are drawn in one native call, as the loaders do;
- whole: every rank has the graph and all features, ``shard=True``: only gradients are exchanged.

The batches of the first three are equal, which is checked. All train under DDP, so their gradients travel, too; and all
make their batches without a model. Epochs of the placements take turns. In a network namespace of the ranks
(``unshare -Urn``) a token bucket limits what all of them send together over the loopback device to a rate. Results are
saved after each rate; with the default sizes this took four minutes on two cores that had other work, too.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import parser, save
from matplotlib.figure import Figure
from ranks import data_of, is_parent, race, start
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from tqdm import tqdm

from torch_gnnscale import NeighborLoader, NeighborSampler, ops, partition
from torch_gnnscale.distributed import Part, open_part
from torch_gnnscale.nn import narrow
from torch_gnnscale.sampler.executor import Drawing
from torch_gnnscale.sampler.hop_by_hop import Frontier, sample_by_hops
from torch_gnnscale.sampler.neighbor import HostExecutor
from torch_gnnscale.sampler.seeds import PreparedSeeds

FANOUTS, BATCH, FEATURES, HIDDEN, CLASSES, SEED = [15, 10, 5], 500, 100, 128, 47, 1
PLACEMENTS = ("partitioned", "hop by hop", "fused", "whole")
NAMED = {
    "partitioned": "partitioned: topology and rows in parts",
    "hop by hop": "hop by hop: rows in parts, drawn hop by hop",
    "fused": "fused: rows in parts, all hops by one call",
    "whole": "whole: every rank holds everything",
}
"""Placements as the figure names them."""
RATE_NAMES = {"as it is": "as it is", "1gbit": "held to 1 Gbit/s", "200mbit": "held to 200 Mbit/s"}
SIZES = ("nodes per batch", "frontier", "drawn")
RATES: tuple[str | None, ...] = (None, "1gbit", "200mbit")
FIGURE = Path(__file__).parents[1] / "docs" / "placements.png"


class HopByHop(HostExecutor):
    """Draws from a whole graph one hop at a time, as is done if edges are in parts."""

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: Drawing) -> list[ops.Sample]:
        """As :meth:`Executor.draw`; one batch, uniform, and without times."""

        def pick(frontier: Frontier) -> ops.Picks:
            ends = [0, len(frontier.node)]
            return ops.pick_neighbors(self.graph.stored, frontier.node, ends, keys, frontier.hop, frontier.fanout)

        return [sample_by_hops(pick, seeds[0].nodes, options.fanouts)]


class Placement:
    """A loader and a model of its own under DDP, and what its epochs took."""

    def __init__(self, loader: NeighborLoader, part: Part | None) -> None:
        self.loader, self.part = loader, part
        torch.manual_seed(0)
        self.model = DistributedDataParallel(narrow(GraphSAGE(FEATURES, HIDDEN, len(FANOUTS), CLASSES)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.003)
        self.waits: list[float] = []
        """By epoch: seconds in which the model had no batch."""

    def load(self, epoch: int) -> None:
        """Makes an epoch's batches."""
        self.loader.set_epoch(epoch)
        for _ in self.loader:
            pass

    def train(self, epoch: int) -> None:
        """Trains an epoch."""
        self.loader.set_epoch(epoch)
        waited, begin = 0.0, time.perf_counter()
        for batch in self.loader:
            waited += time.perf_counter() - begin
            self.optimizer.zero_grad()
            cross_entropy(self.model(batch), batch.y[: batch.batch_size]).backward()
            self.optimizer.step()
            begin = time.perf_counter()
        self.waits.append(waited)

    def traffic(self) -> dict[str, int]:
        """Rounds and bytes so far, of this rank."""
        stats = {} if self.part is None else self.part.stats()
        received = sum(entry["bytes_received"] for entry in stats.values())
        return {"rounds": sum(entry["rounds"] for entry in stats.values()), "bytes": received}


def sizes(batch: Data) -> tuple[int, int, int]:
    """(Nodes of a batch, those of them whose neighbors were drawn, without the seeds, and the edges drawn for
    these)."""
    nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
    return sum(nodes), sum(nodes[1:-1]), sum(edges[1:])


def placement_of(name: str, folder: Path, stack: ExitStack) -> Placement:
    """A placement of this rank, by name."""
    options = {"num_neighbors": FANOUTS, "batch_size": BATCH, "shuffle": True, "seed": SEED}
    if name == "whole":
        data = torch.load(folder / "data.pt", weights_only=False)
        return Placement(NeighborLoader(data, input_nodes=data.train_mask, shard=True, **options), None)
    topology = "partitioned" if name == "partitioned" else "replicated"
    part = stack.enter_context(open_part(folder / topology))
    stores = part.features, part.graph
    if name == "hop by hop":
        sampler = NeighborSampler(stores, FANOUTS)
        sampler.executor = HopByHop(sampler.graph)
        options["neighbor_sampler"] = sampler
    return Placement(NeighborLoader(stores, input_nodes=part.input_nodes("train"), **options), part)


def in_rank(folder: Path) -> dict[str, Any]:
    """What each rank does."""
    options = json.loads((folder / "options.json").read_text())
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        placements = {name: placement_of(name, folder, stack) for name in PLACEMENTS}
        firsts = {}
        for name, placement in placements.items():
            before = placement.traffic()
            firsts[name] = [(batch.n_id, batch.e_id, sizes(batch)) for batch in placement.loader]
            traffic = {key: value - before[key] for key, value in placement.traffic().items()}
            found[name] = {key: value / len(placement.loader) for key, value in traffic.items()}
        for one, other in pairwise(PLACEMENTS[:3]):
            for (a_nodes, a_edges, _), (b_nodes, b_edges, _) in zip(firsts[one], firsts[other], strict=True):
                assert torch.equal(a_nodes, b_nodes), (one, other)
                assert torch.equal(a_edges, b_edges), (one, other)
        attrs = placements["fused"].part.parts.attrs
        found["row bytes"] = sum(meta.row_bytes for meta in attrs) + 8
        found["steps"] = len(placements["fused"].loader)
        found["sizes"] = torch.tensor([entry for _, _, entry in firsts["fused"]]).double().mean(0).tolist()
        del firsts
        runs = {
            f"{kind} {name}": getattr(placement, kind)
            for name, placement in placements.items()
            for kind in ("train", "load")
        }
        times = race(runs, options["rounds"])
        for name, placement in placements.items():
            found[name] |= {kind: times[f"{kind} {name}"] for kind in ("train", "load")}
            found[name]["waits"] = placement.waits[1:]
        dist.barrier()
    return found


def summed_up(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """A run's figures: milliseconds per step, and ratios to ``fused`` within each round."""
    first, steps = ranks[0], ranks[0]["steps"]
    means = torch.tensor([rank["sizes"] for rank in ranks]).mean(0).tolist()
    result: dict[str, Any] = {"steps": steps, "row bytes": first["row bytes"], **dict(zip(SIZES, means, strict=True))}
    for name in PLACEMENTS:
        entry: dict[str, float] = {}
        for kind in ("train", "load"):
            ratios = sorted(a / b for a, b in zip(first[name][kind], first["fused"][kind], strict=True))
            entry[f"{kind}_ms"] = median(first[name][kind]) / steps * 1e3
            entry[f"{kind} over fused"] = median(ratios)
            entry[f"{kind} low"], entry[f"{kind} high"] = ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]
        waits = [w / t for rank in ranks for w, t in zip(rank[name]["waits"], first[name]["train"], strict=True)]
        entry["share of waiting"] = median(waits)
        entry["rounds per batch"] = first[name]["rounds"]
        entry["bytes received per batch"] = sum(rank[name]["bytes"] for rank in ranks) / len(ranks)
        result[name] = entry
    return result


def measure(
    graph: str, world: int, rates: Sequence[str | None], steps: int, rounds: int, limit: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A graph in random parts, one process for each: (name, figures) of each rate."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = data_of(graph, FEATURES, CLASSES, steps * BATCH * world)
        for topology in ("replicated", "partitioned"):
            partition.write(data, folder / topology, parts=world, method="random", topology=topology)
        torch.save(data, folder / "data.pt")
        (folder / "options.json").write_text(json.dumps({"rounds": rounds}))
        for rate in rates:
            title = rate or "as it is"
            found = summed_up(start(__file__, folder, world, rate, limit))
            lines = [
                f"{graph}, {world} ranks, lo {title}: {found['steps']} steps of {found['nodes per batch']:.0f} nodes"
            ]
            for placement in PLACEMENTS:
                lines.append(
                    f"  {placement:12s}" + "".join(f"  {key} {value:.3g}" for key, value in found[placement].items())
                )
            tqdm.write("\n".join(lines))
            yield title, found


def plot(results: dict[str, Any]) -> None:
    """A row of panels for each graph and number of ranks: the time of a step over that of "fused", of training and of
    making batches alone."""
    figure = Figure(figsize=(10, 3.6 * len(results) + 0.6), layout="constrained")
    rows = figure.subplots(len(results), 2, squeeze=False, sharey=True)
    for row, (title, rates) in zip(rows, results.items(), strict=True):
        for axes, kind, name in zip(row, ("train", "load"), ("training", "batches alone"), strict=True):
            for number, placement in enumerate(PLACEMENTS):
                at = [group + 0.22 * (number - 1.5) for group in range(len(rates))]
                runs = [found[placement] for found in rates.values()]
                middle = [run[f"{kind} over fused"] for run in runs]
                low = [m - run[f"{kind} low"] for m, run in zip(middle, runs, strict=True)]
                high = [run[f"{kind} high"] - m for m, run in zip(middle, runs, strict=True)]
                axes.bar(at, middle, 0.2, yerr=[low, high], error_kw={"linewidth": 0.8}, label=NAMED[placement])
                for x, value, error in zip(at, middle, high, strict=True):
                    axes.annotate(f"{value:.2f}", (x, value + error), (0, 2), textcoords="offset points",
                                  ha="center", fontsize="x-small")  # fmt: skip
            axes.axhline(1, color="gray", linestyle="--", linewidth=0.8)
            axes.set_xticks(range(len(rates)), [RATE_NAMES.get(rate, rate) for rate in rates])
            axes.set(title=f"{title}: {name}", xlabel="loopback device")
        row[0].set(ylabel="time of a step / that of fused")
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(FIGURE, dpi=110)
    print(f"written: {FIGURE}")


def main() -> None:
    if is_parent(in_rank):
        return
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.set_defaults(rounds=5)
    options.add_argument("--graphs", nargs="+", default=["planted"], help="also cnr2000")
    options.add_argument("--ranks", type=int, nargs="+", default=[2], help="processes, and parts")
    options.add_argument(
        "--rates", nargs="+", help="of lo, as tc writes them; by default " + ", ".join(map(str, RATES))
    )
    options.add_argument("--steps", type=int, default=3, help="of an epoch, about")
    options.add_argument("--limit", type=int, default=400, help="seconds after which ranks are ended")
    args = options.parse_args()
    rates = RATES if args.rates is None else [None if rate == "none" else rate for rate in args.rates]
    results: dict[str, dict[str, Any]] = {}
    with tqdm(total=len(args.graphs) * len(args.ranks) * len(rates), unit="setting") as bar:
        for graph, world in product(args.graphs, args.ranks):
            for rate, found in measure(graph, world, rates, args.steps, args.rounds, args.limit):
                results.setdefault(f"{graph}, {world} ranks", {})[rate] = found
                bar.update()
                if not args.no_save:
                    save("network", results)
    if not args.no_save:
        plot(results)


if __name__ == "__main__":
    main()
