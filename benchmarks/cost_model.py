"""What training in parts costs, by formula: memory, rounds, bytes, sockets and seconds for any number of ranks.

    python benchmarks/cost_model.py

Prints and saves the tables of docs/notes/scaling.md: 8 to 512 ranks, rows that owners push, and topology against
features of published graphs (FastSample's figure 4). What the formulas need is measured first: the nodes of a batch,
drawn from an R-MAT graph, and what a message costs, over the loopback device. Most of the time is spent on making the
graph; ``--saved`` computes the tables of what was measured before. ``check`` compares the formulas with the runs of
bench_network.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from common import GRAPHS as R_MAT
from common import RESULTS, graph, save
from ranks import is_parent, start
from torch import distributed as dist
from torch_geometric.sampler import NodeSamplerInput
from tqdm import tqdm

from torch_gnnscale import FeatureStore, GraphStore, NeighborSampler
from torch_gnnscale.distributed import Exchange

FANOUTS, BATCH = [15, 10, 5], 1024
RANKS = (8, 16, 32, 64, 128, 256, 512)
PUSHED = (32, 128, BATCH)
"""Seeds of a batch in the table of pushed rows."""
BLOCKS, CALLS = 20, 30
BITS = {"10gbit": 10e9, "100gbit": 100e9}
ID, HEADER, COUNT, STATUS = 8, 64, 8, 8
"""Bytes of an id, a header without counts, a count and the beginning of a reply."""


class Training(NamedTuple):
    """A graph and what a rank does in a step."""

    nodes: int
    edges: int
    row_bytes: int
    """Bytes of a node's row: of all attributes and its id."""
    seeds: int
    batch: int
    hops: int
    batch_nodes: float
    """Distinct nodes of a batch."""
    frontier: float
    """The number of these nodes whose neighbors are drawn, without the seeds."""
    drawn: float
    """Edges drawn for the frontier."""
    load_s: float
    """Seconds in which a rank makes a batch from what it holds itself."""
    draw_s: float
    """Seconds in which a rank draws a batch, without rows."""
    train_s: float
    """Seconds in which the model trains on a batch."""
    model_bytes: int


class Network(NamedTuple):
    """The network between the ranks."""

    bytes_per_s: float
    """The bandwidth of a rank in each direction, in bytes per second."""
    message_s: float
    """Seconds that a rank takes for each message to another one."""


class Cost(NamedTuple):
    """The cost of one rank. ``memory`` is that of a machine if it runs one rank."""

    rounds: int
    messages: int
    """Messages in a step."""
    received: float
    """Bytes in a step."""
    sockets: int
    memory: float
    """Bytes of topology, tables and rows."""
    exchange_s: float
    made_s: float
    """Seconds in which a rank makes a batch, with the exchange."""
    step_s: float
    steps: int
    """Steps in an epoch."""


def topology_bytes(nodes: int, edges: int) -> float:
    """Bytes of a CSC with edge ids: 8 (n + 1) + 8 E if edge ids fit in 31 bits, else 8 (n + 1) + 12 E."""
    return 8 * (nodes + 1) + (8 if edges < 2**31 else 12) * edges


def cost(
    run: Training, network: Network, ranks: int, parts: int, *, partitioned: bool = False, hits: float = 0.0,
    remote: float | None = None, pushed: bool = False,
) -> Cost:  # fmt: skip
    """The cost of P ranks that hold K parts, owned order.

    Args:
        run: the graph and what a rank does in a step.
        network: between the ranks.
        ranks, parts: P and K.
        partitioned: whether the topology lies in parts, too.
        hits: the share of remote rows that the prefetch buffer has, less what it fetches to replace rows.
        remote: the share of a batch's nodes that lies in other parts; 1 - 1 / K in random parts.
        pushed: whether owners draw the other ranks' batches themselves and push their rows, without counts and ids.
    """
    others = parts - 1
    away = (1 - 1 / parts) if remote is None else remote
    fetched = run.batch_nodes * away * (1 - hits)
    rounds, messages = 2, ranks - 1 + 2 * others
    received = (HEADER + COUNT) * (ranks - 1) + STATUS * others + (ID + run.row_bytes) * fetched
    memory = run.row_bytes * run.nodes / parts + 16 * run.nodes  # rows; seeds' stored ids and degrees
    memory += topology_bytes(run.nodes, run.edges) / (parts if partitioned else 1)
    if partitioned:
        later = run.hops - 1
        id_bytes = 4 if run.edges < 2**31 else 8
        rounds = 2 * run.hops
        messages = ranks - 1 + 4 * run.hops * others
        received += (32 * later + COUNT) * others
        received += away * (4 * run.frontier + id_bytes * (run.frontier + 2 * run.drawn))
    if parts < ranks:  # the columns tell each other whether they failed
        messages, received = messages + ranks - 1, received + 16 * (ranks - 1)
    load = run.load_s
    if pushed:
        rounds, messages = 1, ranks - 1 + others
        received = HEADER * (ranks - 1) + run.row_bytes * fetched
        load += (ranks - 1) * run.draw_s
    exchange = received / network.bytes_per_s + messages * network.message_s
    reduce = 2 * (ranks - 1) / ranks * run.model_bytes / network.bytes_per_s
    step = max(run.train_s + reduce, load + exchange)  # MassiveGNN, equation 5
    steps = -(-run.seeds // (run.batch * ranks))
    sockets = ranks + (0 if ranks == parts else parts)
    return Cost(rounds, messages, received, sockets, memory, exchange, load + exchange, step, steps)


PAPERS = Training(
    nodes=111_059_956, edges=1_615_685_872, row_bytes=4 * 128 + 8 + 8, seeds=1_207_179, batch=BATCH, hops=3,
    batch_nodes=0, frontier=0, drawn=0, load_s=0.00465, draw_s=0.0008, train_s=0.0995,
    model_bytes=4 * 256 * 2 * (128 + 256 + 172),
)  # fmt: skip
"""ogbn-papers100M with GraphSAGE of three layers of 256. The seconds are those of bench_loader.py,
bench_sample.py and bench_train.py on the R-MAT graph of 2.4 M nodes, on two cores."""
GRAPHS = {
    "ogbn-products": (2_449_029, 123_718_280, 4 * 100),
    "ogbn-papers100M": (111_059_956, 1_615_685_872, 4 * 128),
    "MAG240M, papers": (121_751_666, 1_297_748_926, 2 * 768),
    "IGB-HET, full": (547_306_935, 5_812_005_639, 4 * 1024),
}
"""Published sizes: nodes, edges, bytes of a node's features."""


# What is measured #####################################################################################################


def message_times(_: Path) -> dict[str, float]:
    """Run by each rank: microseconds per other rank of an all-to-all of headers, by the clock and by CPU time; the
    least of ``BLOCKS`` blocks of calls, which other work on the machine disturbs least."""
    world = dist.get_world_size()
    exchange = Exchange(dist.new_group(list(range(world)), backend="gloo"), world, dist.get_rank())
    numbers = torch.zeros(world, HEADER // 8, dtype=torch.int64)
    each = 1e6 / CALLS / (world - 1)
    wall, cpu = [], []
    for _ in range(BLOCKS):
        dist.barrier()
        begin, used = time.perf_counter(), time.process_time()
        for _ in range(CALLS):
            exchange.numbers(numbers, "tried")
        wall.append((time.perf_counter() - begin) * each)
        cpu.append((time.process_time() - used) * each)
    return {"wall_us": min(wall), "cpu_us": min(cpu)}


def messages(world: int, limit: int) -> dict[str, float]:
    """What a message costs among ``world`` ranks: medians over the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        of_ranks = start(__file__, Path(folder), world, None, limit)
    return {key: median(rank[key] for rank in of_ranks) for key in of_ranks[0]}


def batch_sizes(name: str, batches: int = 10) -> dict[str, float]:
    """Mean sizes of a batch of ``BATCH`` x ``FANOUTS`` of an R-MAT graph."""
    csc = graph(name)[0]
    sampler = NeighborSampler((FeatureStore(), GraphStore.from_csc(csc)), FANOUTS)
    found = []
    for number in range(batches):
        seeds = torch.randperm(csc.num_src, generator=torch.Generator().manual_seed(number))[:BATCH]
        out = sampler.sample_from_nodes(NodeSamplerInput(None, seeds), key=number)
        nodes, edges = out.num_sampled_nodes, out.num_sampled_edges
        found.append([sum(nodes), sum(nodes[1:-1]), sum(edges[1:])])
    means = torch.tensor(found, dtype=torch.float64).mean(0).tolist()
    return dict(zip(("batch_nodes", "frontier", "drawn"), means, strict=True))


def check(results: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """What bench_network.py measured over the formulas: bytes received in a step, and milliseconds of a training step.

    A rank's seconds to make a batch and to train on it are those of the same run over the unshaped device: ``load`` of
    the placement, and ``train`` of "whole". The gradients add the difference between "whole" at the rate and "whole"
    over the unshaped device. The ranks share the device: each has the rate divided by their number.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for title, rates in results.items():
        world, plain = int(title.split(", ")[1].split()[0]), rates["as it is"]
        for rate, run in rates.items():
            bits = 1e15 if rate == "as it is" else float(rate[:-4]) * {"gbit": 1e9, "mbit": 1e6}[rate[-4:]]
            found[f"{title}, {rate}"] = {}
            for placement in ("partitioned", "hop by hop", "fused"):
                given = PAPERS._replace(
                    edges=0, row_bytes=run["row bytes"], batch_nodes=run["nodes per batch"], frontier=run["frontier"],
                    drawn=run["drawn"], load_s=plain[placement]["load_ms"] / 1e3,
                    train_s=run["whole"]["train_ms"] / 1e3, model_bytes=0,
                )  # fmt: skip
                network = Network(bits / 8 / world, 0.0)
                formula = cost(given, network, world, world, partitioned=placement == "partitioned")
                payload = formula.received - (HEADER + COUNT) * (world - 1)
                found[f"{title}, {rate}"][placement] = {
                    "bytes": run[placement]["bytes received per batch"] / payload,
                    "step": run[placement]["train_ms"] / 1e3 / formula.step_s,
                }
    return found


def table(run: Training, message_s: float) -> list[dict[str, Any]]:
    """A row for each number of ranks: K = P, and K = 8 with c = P / 8 copies."""
    rows = []
    for ranks in RANKS:
        for parts in dict.fromkeys((ranks, 8)):
            row: dict[str, Any] = {"ranks": ranks, "parts": parts}
            for title, bits in BITS.items():
                network = Network(bits / 8, message_s)
                row[title] = cost(run, network, ranks, parts)._asdict()
                row[f"{title}, partitioned"] = cost(run, network, ranks, parts, partitioned=True)._asdict()
                row[f"{title}, buffer"] = cost(run, network, ranks, parts, hits=0.42)._asdict()
            rows.append(row)
    return rows


def push_table(run: Training, message_s: float) -> list[dict[str, Any]]:
    """How many times faster pushed rows are than requested ones, K = P: making batches alone, training, and training
    that takes a tenth of the time. The sizes and seconds of smaller batches are in proportion, which favors pushing."""
    rows = []
    for seeds in PUSHED:
        share = seeds / run.batch
        small = run._replace(
            batch_nodes=run.batch_nodes * share, load_s=run.load_s * share, draw_s=run.draw_s * share,
            train_s=run.train_s * share,
        )  # fmt: skip
        fast = small._replace(train_s=small.train_s / 10)
        for ranks in (2, *RANKS[::3]):
            row: dict[str, Any] = {"seeds": seeds, "ranks": ranks}
            for title, bits in BITS.items():
                network = Network(bits / 8, message_s)
                asked, pushed = cost(small, network, ranks, ranks), cost(small, network, ranks, ranks, pushed=True)
                row[title] = {"batches": asked.made_s / pushed.made_s, "training": asked.step_s / pushed.step_s}
                asked, pushed = cost(fast, network, ranks, ranks), cost(fast, network, ranks, ranks, pushed=True)
                row[title]["fast training"] = asked.step_s / pushed.step_s
            rows.append(row)
    return rows


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """What the formulas need: ``message``, by number of ranks, and ``batch``."""
    if args.saved:
        saved = json.loads((RESULTS / "cost_model.json").read_text())["results"]
        return {key: saved[key] for key in ("message", "batch")}
    found: dict[str, Any] = {"message": {}}
    with tqdm(total=len(args.ranks) + 1, unit="measurement", leave=False) as bar:
        for world in args.ranks:
            bar.set_description(f"messages of {world} ranks")
            found["message"][str(world)] = messages(world, args.limit)
            bar.update()
        bar.set_description(f"graph {args.graph} and its batches")
        found["batch"] = batch_sizes(args.graph)
        bar.update()
    return found


def main() -> None:
    if is_parent(message_times):
        return
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--graph", choices=R_MAT, default="2.4M-124M", help="whose batches are drawn")
    options.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="time messages; tables use the last")
    options.add_argument("--limit", type=int, default=120, help="seconds after which ranks are ended")
    options.add_argument("--saved", action="store_true", help="measure nothing: take what the saved result has")
    options.add_argument("--no-save", action="store_true", help="do not write the JSON result")
    args = options.parse_args()
    found = measured(args)
    run = PAPERS._replace(**found["batch"])
    message_s = found["message"][str(args.ranks[-1])]["cpu_us"] / 1e6
    found["table"], found["pushed"] = table(run, message_s), push_table(run, message_s)
    found["graphs"] = {
        name: {"topology": topology_bytes(nodes, edges), "features": nodes * features}
        for name, (nodes, edges, features) in GRAPHS.items()
    }
    if (RESULTS / "network.json").exists():
        found["check"] = check(json.loads((RESULTS / "network.json").read_text())["results"])
    for key, value in found.items():
        print(key, json.dumps(value, indent=1))
    if not args.no_save:
        save("cost_model", found)


if __name__ == "__main__":
    main()
