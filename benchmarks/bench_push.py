"""Rows that their owners push, beside rows that ranks ask for.

    python benchmarks/bench_push.py

Each batch is a function of its number, so the rank that owns rows can sample the other ranks' batches itself and send
their rows unasked: one round per step instead of two, and no ids. In turn, over the loopback device as it is and held
to two rates: batches alone, and training of GraphSAGE under DDP with up to ``AHEAD`` batches prepared ahead by a
thread. The planted graph with 2 and 4 ranks and, where GNNSCALE_DATA (or ../shared/data) has it, cnr-2000 with 2; nodes
are renumbered at random, and rank r of P owns the r-th range of them. 100 floats per node, which are a function of its
id: before anything is timed, both ways must bring them.
"""

from __future__ import annotations

import json
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import judged, parser, save, say_aims
from ranks import can_shape, graph_of, is_parent, race, start
from torch import Tensor
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NodeSamplerInput

from torch_gnnscale import NeighborSampler
from torch_gnnscale.distributed import Exchange
from torch_gnnscale.distributed.own_rows import MappedRows
from torch_gnnscale.distributed.row_exchange import (
    Located,
    RowKind,
    Travelled,
    counts_by_part,
    exchange_known_rows,
    exchange_rows,
    locate,
)

FANOUTS, FEATURES, HIDDEN, CLASSES, AHEAD = [10, 5], 100, 128, 47, 4
HEADER = 8
"""Numbers in the header of a step, without counts."""
RUNS = {"planted": [2, 4], "cnr2000": [2], "small": [2]}
"""The numbers of ranks, by graph."""
RATES = ["200mbit", "1gbit"]
WAYS = ("asked", "pushed")


def rows_of(ids: Tensor) -> Tensor:
    """The features of nodes."""
    return ((ids[:, None] * 97 + torch.arange(FEATURES)) % 1009).float() / 1009


class Batches:
    """This rank's batches of an epoch, whose rows it asks for or gets unasked."""

    def __init__(self, folder: Path, seeds: int) -> None:
        data: Data = torch.load(folder / "graph.pt", weights_only=False)
        assert data.num_nodes is not None
        self.rank, self.world, self.seeds = dist.get_rank(), dist.get_world_size(), seeds
        self.exchange = Exchange(dist.new_group(), self.world, self.rank)
        self.sampler = NeighborSampler(data, FANOUTS)
        self.order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
        self.bounds = torch.arange(self.world + 1) * data.num_nodes // self.world
        self.low, self.high = self.bounds[self.rank : self.rank + 2].tolist()
        self.own, self.kind = MappedRows(rows_of(torch.arange(self.low, self.high))), RowKind(torch.float, (FEATURES,))

    def sample(self, step: int, rank: int) -> Any:
        """The sample of a rank in a step."""
        number = step * self.world + rank
        ids = self.order[number * self.seeds : (number + 1) * self.seeds]
        return self.sampler.sample_from_nodes(NodeSamplerInput(None, ids), key=number)

    def asked(self, step: int) -> tuple[Any, Tensor]:
        """(sample, rows of its nodes), by two rounds: ids, rows."""
        out = self.sample(step, self.rank)
        found, counts = self.located(out)
        asked = self.header(counts)
        wanted = [found.remote - self.bounds[:-1].repeat_interleave(counts)]
        ((came,),) = exchange_rows(self.exchange, asked, wanted, counts[:, None], [[self.kind]], [[self.own]])
        return out, self.joined(found, came)

    def pushed(self, step: int) -> tuple[Any, Tensor]:
        """The same by one round, after all ranks' batches were sampled."""
        outs = [self.sample(step, rank) for rank in range(self.world)]
        sent = [
            torch.empty(0, dtype=torch.int64)
            if rank == self.rank
            else out.node[(out.node >= self.low) & (out.node < self.high)].sort()[0] - self.low
            for rank, out in enumerate(outs)
        ]
        found, counts = self.located(outs[self.rank])
        self.header(None)
        came = exchange_known_rows(self.exchange, self.own, self.kind, sent, counts.tolist())
        return outs[self.rank], self.joined(found, came)

    def located(self, out: Any) -> tuple[Located, Tensor]:
        """Where the rows of a sample's nodes lie, and how many in each other part."""
        found = locate(out.node, self.bounds, self.rank)
        return found, counts_by_part(found.remote, self.bounds)

    def header(self, counts: Tensor | None) -> Tensor:
        """Exchanges the header of a step, with counts or without; returns those of the other ranks."""
        sent = torch.zeros(self.world, HEADER + (counts is not None), dtype=torch.int64)
        if counts is not None:
            sent[:, -1] = counts
        return self.exchange.numbers(sent, "headers")[:, -1:]

    def joined(self, found: Located, came: Travelled) -> Tensor:
        """The rows of a batch."""
        return self.own.join(found.place, *came)


def ahead(make: Callable[[int], Any], steps: int) -> Iterator[Any]:
    """``make(0)``, ``make(1)``, ..., by a thread."""
    made: queue.Queue[Any] = queue.Queue(AHEAD)
    thread = threading.Thread(target=lambda: [made.put(make(step)) for step in range(steps)], daemon=True)
    thread.start()
    for _ in range(steps):
        yield made.get()
    thread.join()


def in_rank(folder: Path) -> dict[str, list[float]]:
    """What each rank does: seconds of an epoch by round, of each way, alone and in training."""
    options = json.loads((folder / "options.json").read_text())
    steps = options["steps"]
    batches = Batches(folder, options["seeds"])
    makers = {way: getattr(batches, way) for way in WAYS}
    for step in range(2):
        (one, rows), (other, others) = (make(step) for make in makers.values())
        assert torch.equal(one.node, other.node)
        assert torch.equal(rows, rows_of(one.node))
        assert torch.equal(others, rows)
    torch.manual_seed(0)
    model = DistributedDataParallel(GraphSAGE(FEATURES, HIDDEN, len(FANOUTS), CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def alone(_: int, make: Callable[[int], Any]) -> None:
        for step in range(steps):
            make(step)

    def train(_: int, make: Callable[[int], Any]) -> None:
        for out, rows in ahead(make, steps):
            optimizer.zero_grad()
            hops = {
                "num_sampled_nodes_per_hop": out.num_sampled_nodes,
                "num_sampled_edges_per_hop": out.num_sampled_edges,
            }
            found = model(rows, torch.stack([out.row, out.col]), **hops)[: options["seeds"]]
            cross_entropy(found, out.node[: options["seeds"]] % CLASSES).backward()
            optimizer.step()

    runs = {f"{way}, {what}": partial(run, make=make) for way, make in makers.items()
            for what, run in (("batches", alone), ("training", train))}  # fmt: skip
    return race(runs, options["rounds"])


def measure(folder: Path, world: int, rate: str | None, options: dict[str, int], limit: int) -> dict[str, Any]:
    """Milliseconds of a step, and how many times as fast pushing is: median of the rounds' ratios, and quartiles."""
    (folder / "options.json").write_text(json.dumps(options))
    times, found = start(__file__, folder, world, rate, limit)[0], {}
    for what in ("batches", "training"):
        each = [times[f"{way}, {what}"] for way in WAYS]
        ratios = sorted(asked / pushed for asked, pushed in zip(*each, strict=True))
        found[what] = {
            **{f"{way}_ms": median(of_way) / options["steps"] * 1e3 for way, of_way in zip(WAYS, each, strict=True)},
            "speedup": median(ratios),
            "low": ratios[len(ratios) // 4],
            "high": ratios[len(ratios) * 3 // 4],
        }
    return found


def main() -> None:
    if is_parent(in_rank):
        return
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.add_argument("--graphs", nargs="+", choices=RUNS, default=["planted", "cnr2000"])
    options.add_argument("--seeds", nargs="+", type=int, default=[32, 128, 500], help="of a batch")
    options.add_argument("--steps", type=int, default=8, help="of an epoch")
    options.add_argument("--rates", nargs="*", default=RATES, help="of the device, as tc writes them")
    options.add_argument("--limit", type=int, default=900, help="seconds after which ranks are ended")
    args = options.parse_args()
    networks = [rate for rate in args.rates if can_shape(rate)]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for graph in args.graphs:
            edge_index, num_nodes = graph_of(graph)
            renumbered = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))[edge_index]
            torch.save(Data(edge_index=renumbered, num_nodes=num_nodes), Path(name, "graph.pt"))
            for world in RUNS[graph]:
                for seeds in args.seeds:
                    title = f"{graph}, {world} ranks, {seeds} seeds"
                    given = {"seeds": seeds, "steps": args.steps, "rounds": args.rounds}
                    results[title] = {}
                    for rate in [*networks, None]:
                        found = measure(Path(name), world, rate, given, args.limit)
                        results[title][rate or "as it is"] = found
                        print(f"{title}, {rate}: {json.dumps(found)}", flush=True)
    training = [of[rate]["training"]["speedup"] for of in results.values() for rate in networks]
    aims = {
        "pushing, the best of all epochs of training over a shaped device": judged(
            max(training, default=None), least=1.15
        )
    }
    say_aims(aims)
    if not args.no_save:
        save("push", {"runs": results, "aims": aims})


if __name__ == "__main__":
    main()
