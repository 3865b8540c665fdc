"""How many rows of other parts a prefetch buffer saves, by its policy, and what the policies cost.

    python benchmarks/bench_buffer.py

A simulation without other processes: the web crawl cnr-2000 (in GNNSCALE_DATA, or ../shared/data) in 4 random parts, a
tenth of the nodes as seeds, and the batches that each part's rank draws in owned order: step s of rank r is batch
4 s + r of the epoch, from the part's own seeds. Rows are counted when they are fetched: misses, replacements, and the
fill before the first step. The buffer keeps the ids as its rows, so each hit is checked. LRU is the policy
``lookahead`` to which no batches are announced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from common import GRAPHS, graph, judged, parser, save, say_aims, web_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from torch_gnnscale import CSC, NeighborSampler, ops
from torch_gnnscale.distributed.buffer import POLICIES, PrefetchBuffer, capacities
from torch_gnnscale.distributed.policies import Policy
from torch_gnnscale.feature import hotness
from torch_gnnscale.random import Purpose, batch_key
from torch_gnnscale.topology.reorder import by_score

PARTS, SEED, FANOUTS, BATCH = 4, 1, [10, 25], 500
SHARE, SHARES = 0.25, (0.05, 0.10, 0.25, 0.50)
POLICY: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("static", {}),
    "massivegnn 0.995, 16": ("massivegnn", {"gamma": 0.995, "delta": 16}),
    "massivegnn 0.995, 64": ("massivegnn", {"gamma": 0.995, "delta": 64}),
    "LRU": ("lookahead", {"window": 0}),
    "lookahead 16": ("lookahead", {"window": 16}),
    "lookahead epoch": ("lookahead", {"window": "epoch"}),
}
GAMMAS, DELTAS = (0.9, 0.95, 0.995, 0.9995), (4, 8, 16, 32, 64, 128)
COST = {"halo": 400_000, "buffer": 100_000, "batch": 50_000}
"""The numbers of rows in the steps that are timed."""


class Part(NamedTuple):
    """What a rank's policy knows, and what its batches ask of other parts."""

    halo: Tensor
    """Sorted ids of the nodes of other parts from which edges lead into this one."""
    degree: Tensor
    """The out-degree of each of these nodes in the whole graph."""
    batches: list[list[Tensor]]
    """The sorted ids of other parts' rows of each batch, by epoch."""


class Traffic(NamedTuple):
    """What a run reads and fetches, in rows."""

    asked: int
    """Rows of other parts that the batches have."""
    fetched: int
    """Rows that other parts send."""
    start: int
    """The part of ``fetched`` that fills the buffer before the first step."""
    by_epoch: list[float]
    """The share of rows asked for that the buffer has, by epoch."""
    by_step: list[float]
    """The share of rows asked for that the buffer has, by step."""
    step_ms: float
    """Median time of the thread for a step's decisions."""

    @property
    def share(self) -> float:
        """Rows fetched, relative to a run without a buffer."""
        return self.fetched / self.asked


def parts_of(edge_index: Tensor, num_nodes: int, epochs: int, numbers: Sequence[int] = range(PARTS)) -> list[Part]:
    """The parts with the given numbers, of a graph in random parts of equal size that are stored one after another."""
    shuffled = ops.permutation(num_nodes, batch_key(SEED, purpose=Purpose.GENERATE))
    bounds = [num_nodes * part // PARTS for part in range(PARTS + 1)]
    owner = torch.empty(num_nodes, dtype=torch.int64)
    for part in range(PARTS):
        owner[shuffled[bounds[part] : bounds[part + 1]]] = part
    stored = by_score(-owner).new[edge_index]
    csc = CSC.from_edge_index(stored, num_nodes)
    seeds = torch.zeros(num_nodes, dtype=torch.bool)
    seeds[torch.randperm(num_nodes, generator=torch.Generator().manual_seed(SEED))[: num_nodes // 10]] = True
    sampler = NeighborSampler(Data(edge_index=stored, num_nodes=num_nodes), FANOUTS)
    degree = hotness.out_degree(csc)
    parts = []
    for part in numbers:
        own = range(bounds[part], bounds[part + 1])
        sources = csc.row[csc.colptr[own.start] : csc.colptr[own.stop]].to(torch.int64).unique()
        halo = sources[(sources < own.start) | (sources >= own.stop)]
        inputs = own.start + seeds[own.start : own.stop].nonzero().view(-1)
        batches = [list(remote_rows(sampler, inputs, part, own, epoch)) for epoch in range(epochs)]
        parts.append(Part(halo, degree[halo], batches))
    return parts


def remote_rows(sampler: NeighborSampler, inputs: Tensor, part: int, own: range, epoch: int) -> Iterator[Tensor]:
    """The rows of other parts that each batch of an epoch has, in owned order."""
    order = inputs[ops.permutation(len(inputs), batch_key(SEED, epoch, part, Purpose.SHUFFLE))]
    for step, seeds in enumerate(order.split(BATCH)):
        key = batch_key(SEED, epoch, step * PARTS + part)
        nodes = sampler.sample_from_nodes(NodeSamplerInput(None, seeds), key=key).node
        yield nodes[(nodes < own.start) | (nodes >= own.stop)].sort().values


def run(policy: Policy, epochs: list[list[Tensor]]) -> Traffic:
    """Counts what a buffer with this policy fetches, and checks what it has."""
    buffer = PrefetchBuffer(policy, {"id": (torch.int64, ())})
    start = policy.start()
    buffer.fill({"id": start})
    asked = fetched = ahead = 0
    by_epoch, by_step, times = [], [], []
    batches = [ids for epoch in epochs for ids in epoch]
    end = 0
    for epoch in epochs:
        hits, first, end = 0, end, end + len(epoch)
        for number, ids in enumerate(epoch, first):
            begun = time.thread_time()
            until = end if policy.window == "epoch" else min(number + 1 + policy.window, len(batches))
            for later in batches[ahead:until]:
                policy.announce(later)
            ahead = max(ahead, until)
            step = buffer.step(ids)
            policy.update()
            times.append((time.thread_time() - begun) * 1e3)
            assert torch.equal(buffer.take(step)["id"], ids[step.hit])
            assert torch.equal(step.fetch[step.missed], ids[~step.hit])
            buffer.enter(step, {"id": step.fetch})
            buffer.entered(step)
            fetched += len(step.fetch)
            hits += len(step.slot)
            by_step.append(len(step.slot) / max(1, len(ids)))
        asked += sum(map(len, epoch))
        by_epoch.append(hits / max(1, sum(map(len, epoch))))
    return Traffic(asked, fetched + len(start), len(start), by_epoch, by_step, median(times))


def saved(part: Part, share: float, name: str, options: dict[str, Any]) -> Traffic:
    """The traffic of a part with a buffer of a share of its halo."""
    (capacity,) = capacities(share, {None: len(part.halo)}, {}, {}).values()
    return run(POLICIES[name](capacity, part.halo, part.degree, **options), part.batches)


def compared(parts: list[Part]) -> dict[str, dict[str, Any]]:
    """Rows fetched, relative to runs without a buffer: by policy, over all parts and by part."""
    results = {}
    for title, (name, options) in POLICY.items():
        found = [saved(part, SHARE, name, options) for part in parts]
        asked = sum(entry.asked for entry in found)
        results[title] = {
            "fetched": sum(entry.fetched for entry in found) / asked,
            "by_part": [entry.share for entry in found],
            "start": sum(entry.start for entry in found) / asked,
            "hit_rate_by_epoch": found[0].by_epoch,
            "step_ms": median(entry.step_ms for entry in found),
        }
        print(
            f"  {title:24s} {results[title]['fetched']:.3f}   parts "
            + " ".join(f"{value:.3f}" for value in results[title]["by_part"])
            + f"   of it the start {results[title]['start']:.3f}   {results[title]['step_ms']:.2f} ms per step"
        )
    return results


def begun_again(parts: list[Part], found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """How many more rows a run fetches that is stopped after half of its epochs and goes on with a new buffer, as a
    multiple of the rows of an epoch without a buffer. ``found``: what :func:`compared` returned."""
    results = {}
    for title, (name, options) in POLICY.items():
        asked, fetched, epochs = 0, 0, len(parts[0].batches)
        for part in parts:
            for half in (part.batches[: epochs // 2], part.batches[epochs // 2 :]):
                traffic = saved(part._replace(batches=half), SHARE, name, options)
                asked, fetched = asked + traffic.asked, fetched + traffic.fetched
        results[title] = (fetched / asked - found[title]["fetched"]) * epochs
    print("  " + "  ".join(f"{title} {value:.3f}" for title, value in results.items()))
    return results


def cost(steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds that the thread takes for a step's decisions: medians over steps, of announcing, deciding and
    updating, and of all three together; and the mean of all three, which includes rounds of eviction."""
    generator = torch.Generator().manual_seed(SEED)
    halo = torch.randperm(20 * COST["halo"], generator=generator)[: COST["halo"]].sort().values
    weight = (torch.randperm(COST["halo"], generator=generator) + 10.0) ** -0.6
    batches = [
        halo[torch.multinomial(weight, COST["batch"], generator=generator).sort().values] for _ in range(steps + 17)
    ]
    results = {}
    for title, (name, options) in POLICY.items():
        policy = POLICIES[name](COST["buffer"], halo, (weight * 1e6).long(), **options)
        window = policy.window if isinstance(policy.window, int) else 0
        if policy.window == "epoch":
            continue  # as with a window
        for ids in batches[:window]:
            policy.announce(ids)
        times: dict[str, list[float]] = {"announce_ms": [], "step_ms": [], "update_ms": [], "all_ms": []}
        for number, ids in enumerate(batches[:steps]):
            marks = [time.thread_time()]
            if window:
                policy.announce(batches[number + window])
            marks.append(time.thread_time())
            policy.step(ids)
            marks.append(time.thread_time())
            policy.update()
            marks.append(time.thread_time())
            for kind, begun, ended in zip(times, marks, marks[1:], strict=False):
                times[kind].append((ended - begun) * 1e3)
            times["all_ms"].append((marks[-1] - marks[0]) * 1e3)
        results[title] = {kind: median(values) for kind, values in times.items()} | {
            "mean_ms": sum(times["all_ms"]) / steps
        }
        print(f"  {title:24s} " + "  ".join(f"{kind} {value:.2f}" for kind, value in results[title].items()))
    return results


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.add_argument("--graph", choices=["cnr2000", *GRAPHS], default="cnr2000")
    options.add_argument("--epochs", type=int, default=8)
    args = options.parse_args()
    torch.set_num_threads(2)
    if args.graph == "cnr2000":
        web = web_graph()
        if web is None:
            options.error("no cnr2000 in GNNSCALE_DATA or ../shared/data: give another --graph")
        edge_index, num_nodes = web
    else:
        edge_index, num_nodes = graph(args.graph)[1], GRAPHS[args.graph][0]
    parts = parts_of(edge_index, num_nodes, args.epochs)
    part = parts[0]
    results: dict[str, Any] = {
        "graph": args.graph,
        "halo": [len(entry.halo) for entry in parts],
        "steps_an_epoch": len(part.batches[0]),
        "rows_a_step": sum(map(len, part.batches[0])) / len(part.batches[0]),
    }
    print(f"{args.graph}, {PARTS} random parts, f = {SHARE}, {args.epochs} epochs: {results}")
    print("rows fetched against no buffer")
    results["fetched"] = found = compared(parts)
    print("rows fetched more by a run that is resumed once, of those of an epoch without a buffer")
    results["begun_again"] = begun_again(parts, found)
    print("by the share of the halo that the buffer has, part 0")
    results["by_share"] = {
        f"{share:.0%}": {title: saved(part, share, *chosen).share for title, chosen in POLICY.items()}
        for share in SHARES
    }
    for share, entries in results["by_share"].items():
        print(f"  {share:>4s}  " + "  ".join(f"{title} {value:.3f}" for title, value in entries.items()))
    print("massivegnn by gamma and delta, part 0")
    results["by_gamma_delta"] = {
        f"{gamma}, {delta}": saved(part, SHARE, "massivegnn", {"gamma": gamma, "delta": delta}).share
        for gamma in GAMMAS
        for delta in DELTAS
    }
    for gamma in GAMMAS:
        print(f"  {gamma:<7}" + "  ".join(f"{d}: {results['by_gamma_delta'][f'{gamma}, {d}']:.3f}" for d in DELTAS))
    print(f"a step of {COST['batch']:,} rows, {COST['buffer']:,} slots, a halo of {COST['halo']:,}")
    results["cost"] = cost(4 * args.rounds)
    best = found["massivegnn 0.995, 16"]["fetched"]
    results["aims"] = {
        "massivegnn 0.995, 16 against static": judged(best / found["static"]["fetched"], most=0.85),
        "lookahead 16 against massivegnn 0.995, 16": judged(found["lookahead 16"]["fetched"] / best, most=0.65),
    }
    say_aims(results["aims"])
    if not args.no_save:
        save("buffer", results)


if __name__ == "__main__":
    main()
