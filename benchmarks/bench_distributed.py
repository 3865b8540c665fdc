"""What several processes exchange per batch, what the exchange takes, and what one part costs a single process.

    python benchmarks/bench_distributed.py

The planted graph and, where GNNSCALE_DATA (or ../shared/data) has it, the web crawl cnr-2000, with 100 random features
per node and a tenth of the nodes as seeds, in 2 and 4 parts: one process for each, over the loopback device. In each
run:

- correctness: the batches of rank r in global order are batches r, r + P, ... of one process, and have its rows;
- traffic of an epoch, as each rank counted it, against what ``loader.samples()`` predicts: it must agree to the byte;
- the time of a batch's rows over Gloo (requests, gather, replies), and of the two exchanges among these, against two
  bare all-to-alls of the same bytes, in turn, each as long as on its slowest rank;
- one part in one process, without a group, against the plain loader over a pair of stores, in memory and mapped, in
  turn, with batches of 500 and of 16 seeds.

Besides: exchanges of 1 to 64 MB per step. With ``--transports`` instead: the time of a batch's rows over Gloo and
through memory, in turn; rows and counts must be equal.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import compare, has, judged, parser, report, save, say_aims, web_graph
from ranks import is_parent, start
from row_transports import memory_over_gloo, rows_of, transports_of
from timing_of_ranks import in_turn, slowest_of
from torch import Tensor
from torch import distributed as dist
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, partition
from torch_gnnscale.comm.row_transport import RowTransport
from torch_gnnscale.datasets import planted
from torch_gnnscale.distributed import Exchange, Part, open_part
from torch_gnnscale.distributed.own_rows import MappedRows
from torch_gnnscale.distributed.row_exchange import PartTables, RowKind, Wanted
from torch_gnnscale.topology.reorder import Order

FANOUTS, BATCH, FEATURES, SEED = [10, 5], 500, 100, 1
ORDERS = ("owned", "global")
HEADER_BYTES, STATUS_BYTES = 64, 8
"""Bytes of a step's header to each other rank, without counts, and of the beginning of a reply."""
TINY, PLAIN_BATCHES = 16, 40
"""Where one part is compared with the plain loader: the seeds of a tiny batch, and the most batches per epoch."""
TABLE = 200_000
"""The number of rows of the tables that exchanges of given sizes read."""
LIMIT = 7200
"""Seconds after which ranks are ended."""


def graphs(small: bool) -> Iterator[tuple[str, Data]]:
    """The graphs by name, with features and a tenth of the nodes as ``train_mask``."""
    given = planted(num_nodes=10_000) if small else planted()
    found = [("planted", given.edge_index, given.num_nodes)]
    share = 2 if small else 10
    if not small and (web := web_graph()) is not None:
        found.append(("cnr2000", *web))
    for name, edge_index, num_nodes in found:
        generator = torch.Generator().manual_seed(SEED)
        x = torch.randn(num_nodes, FEATURES, generator=generator)
        mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[torch.randperm(num_nodes, generator=generator)[: num_nodes // share]] = True
        yield name, Data(x=x, y=torch.arange(num_nodes) % 7, edge_index=edge_index, train_mask=mask)


def loader_of(stores: Any, seeds: Tensor, batch_size: int = BATCH, **options: Any) -> NeighborLoader:
    """A shuffled loader."""
    return NeighborLoader(stores, FANOUTS, seeds, batch_size=batch_size, shuffle=True, seed=SEED, **options)


# A rank ###############################################################################################################


def in_rank(folder: Path) -> dict[str, Any]:
    """What each process runs: the function that ``given.json`` in the folder names."""
    given = json.loads((folder / "given.json").read_text())
    if given.pop("transports", False):
        return of_transports(folder, **given)
    return of_sizes(**given) if "megabytes" in given else of_batches(folder, **given)


def of_transports(folder: Path, rounds: int) -> dict[str, Any]:
    """A batch's rows by transport."""
    paths = {name: open_part(folder / "parts", transport=name) for name in ("gloo", "memory")}
    with paths["gloo"] as part, paths["memory"]:
        loader = loader_of((part.features, part.graph), part.input_nodes("train", "all"), seed_order="global")
        return {"transports": transports_of(paths, loader, rounds)}


def of_batches(folder: Path, rounds: int) -> dict[str, Any]:
    """Epochs in both orders, and the exchange of a batch. Leaves the batches in global order in ``rank-R.pt``."""
    found: dict[str, Any] = {}
    with open_part(folder / "parts", transport="gloo") as part:
        for order in ORDERS:
            seeds = part.input_nodes("train", "part" if order == "owned" else "all")
            before = sockets()
            loader = loader_of((part.features, part.graph), seeds, seed_order=order)
            found["sockets"] = sockets() - before
            expected, counted, n_id = epoch_of(part, loader)
            found[order] = {"expected": expected, "counted": counted, "steps": len(loader)}
            if order == "global":
                torch.save(n_id, folder / f"rank-{dist.get_rank()}.pt")
        found["exchange"] = exchange_of(part, loader, rounds)
    return found


def sockets() -> int:
    """How many sockets this process has open."""
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum(os.readlink(link).startswith("socket:") for link in links if os.path.islink(link))


def row_bytes(part: Part) -> int:
    """Bytes of all attributes of a node, including the user's id."""
    return sum(meta.row_bytes for meta in part.parts.attrs) + 8


def epoch_of(part: Part, loader: NeighborLoader) -> tuple[dict[str, int], dict[str, int], list[Tensor]]:
    """What an epoch should exchange by its samples, what it did exchange, and the ids of its batches."""
    own, steps = part.parts.book.nodes(part.ranks.part), len(loader)
    remote = 0
    for out in loader.samples(0):
        ids = out.node.unique()
        remote += int(((ids < own.start) | (ids >= own.stop)).sum())
    others, end = part.ranks.parts - 1, int(part.ranks.world > part.ranks.parts)
    expected = {
        "rounds": 2 * steps,
        "headers": (1 + end) * steps,
        "header bytes": steps * (HEADER_BYTES + 8 + 16 * end) * (part.ranks.world - 1),
        "ids sent": 8 * remote,
        "rows received": remote * row_bytes(part) + steps * STATUS_BYTES * others,
    }
    before, n_id = traffic(part), []
    for batch in loader:
        assert torch.equal(batch.y, batch.n_id % 7)
        n_id.append(batch.n_id)
    after = traffic(part)
    return expected, {name: after[name] - before[name] for name in expected}, n_id


def traffic(part: Part) -> dict[str, int]:
    """What this rank's loaders exchanged so far."""
    stats = part.stats()
    return {
        "rounds": sum(entry["rounds"] for entry in stats.values()),
        "headers": sum(entry["headers"] for entry in stats.values()),
        "header bytes": sum(entry["header_bytes"] for entry in stats.values()),
        "ids sent": stats["ids"]["bytes_sent"] if "ids" in stats else 0,
        "rows received": stats["rows"]["bytes_received"] if "rows" in stats else 0,
    }


def exchange_of(part: Part, loader: NeighborLoader, rounds: int) -> dict[str, Any]:
    """Milliseconds of each exchange of a batch's rows, and of bare all-to-alls of as many bytes."""
    source, needs, counts = rows_of(part, next(iter(loader.samples(0))).node)
    rows = source.steps.rows
    asked = rows.numbers(counts, "counts")
    return against_bare(rows, partial(source.read, needs, asked), counts.sum(1), asked.sum(1), row_bytes(part), rounds)


def of_sizes(rounds: int, megabytes: list[int]) -> dict[str, Any]:
    """An exchange of tables in memory for each number of megabytes."""
    rank, world = dist.get_rank(), dist.get_world_size()
    exchange, others = Exchange(dist.group.WORLD, world, rank), torch.arange(world) != rank
    tables = [torch.randn(TABLE, FEATURES), torch.arange(TABLE)]
    kinds = [RowKind(table.dtype, tuple(table.shape[1:])) for table in tables]
    size = sum(kind.num_bytes for kind in kinds)
    found = {}
    for number in megabytes:
        counts = others * (number * 1_000_000 // size // (world - 1))
        ids = torch.randint(TABLE, (int(counts.sum()),), generator=torch.Generator().manual_seed(rank))
        ids = torch.cat([entry.sort().values for entry in ids.split(counts.tolist())])
        table = counts[:, None]
        own = PartTables(rank, [torch.arange(world + 1) * TABLE], [kinds], [[MappedRows(entry) for entry in tables]])
        rows = partial(own.exchange, RowTransport(exchange), table, Wanted(table, [ids]))
        found[f"{number} MB"] = against_bare(exchange, rows, counts, counts, size, rounds)
    return found


def against_bare(
    exchange: Exchange, rows: Callable[[], Any], wanted: Tensor, given: Tensor, size: int, rounds: int
) -> dict[str, Any]:
    """Milliseconds of ``rows``, of the two exchanges of bytes in it, and of bare all-to-alls of as many, in turn.

    Args:
        exchange: over all ranks.
        rows: asks for rows and sends those that it is asked for.
        wanted, given: how many rows come from and go to each rank.
        size: bytes of a row.
        rounds: of each.
    """
    others = torch.arange(exchange.size) != exchange.rank
    sizes = [(8 * wanted, 8 * given), *[((n * size + STATUS_BYTES) * others for n in (given, wanted))]]
    buffers = [tuple((torch.zeros(int(n.sum()), dtype=torch.uint8), n.tolist()) for n in pair) for pair in sizes]

    def bare() -> None:
        for (sent, sent_sizes), (received, received_sizes) in buffers:
            dist.all_to_all_single(received, sent, received_sizes, sent_sizes)

    def exchanges() -> None:
        for (sent, sent_sizes), (_, received_sizes) in buffers:
            exchange.bytes(sent, sent_sizes, received_sizes, "tried")

    total = sum(len(received) for _, (received, _) in buffers)
    return {"bytes": total, **in_turn({"rows": rows, "exchanges": exchanges, "bare": bare}, rounds)}


# All ranks ############################################################################################################


def run_ranks(world: int, folder: Path, **given: Any) -> list[dict[str, Any]]:
    """Starts the processes; returns what each found."""
    (folder / "given.json").write_text(json.dumps(given))
    return start(__file__, folder, world, LIMIT)


def check_batches(data: Data, world: int, folder: Path) -> int:
    """Compares the batches of all ranks in global order with those of one process; returns their number."""
    with partition.open_parts(folder / "parts") as parts:
        stored, seeds = parts.stored_ids(), parts.input_nodes("train")
        order = Order.from_permutation(torch.argsort(stored), parts.book.num_nodes())
    stores = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
    of_ranks = [torch.load(folder / f"rank-{rank}.pt") for rank in range(world)]
    whole = [batch.n_id for batch in loader_of(stores, seeds)]
    for k, n_id in enumerate(whole):
        assert torch.equal(of_ranks[k % world][k // world], n_id), f"batch {k}"
    return len(whole)


def measure(data: Data, world: int, method: str, rounds: int) -> dict[str, Any]:
    """A graph in parts, one process for each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        partition.write(data, folder / "parts", parts=world, method=method)
        found = run_ranks(world, folder, rounds=rounds)
        checked = check_batches(data, world, folder)
        _, cut = partition.read_report(folder / "parts")
    entry: dict[str, Any] = {"batches checked": checked, "cut": cut.cut, "sockets of a loader": found[0]["sockets"]}
    for order in ORDERS:
        of_ranks = [rank[order] for rank in found]
        steps = of_ranks[0]["steps"]
        entry[order] = {
            "steps": steps,
            "as predicted": all(rank["expected"] == rank["counted"] for rank in of_ranks),
            "rounds per batch": of_ranks[0]["counted"]["rounds"] / steps,
            "bytes received per batch": sum(rank["counted"]["rows received"] for rank in of_ranks) / steps / world,
            "bytes of ids per batch": sum(rank["counted"]["ids sent"] for rank in of_ranks) / steps / world,
        }
    entry["exchange"] = of_slowest([rank["exchange"] for rank in found])
    print(f"  {world} parts, {method}: " + json.dumps(entry), flush=True)
    return entry


def by_transport(data: Data, world: int, method: str, rounds: int) -> dict[str, Any]:
    """A graph in parts, one process for each: a batch's rows by transport."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        partition.write(data, folder / "parts", parts=world, method=method)
        found = run_ranks(world, folder, rounds=rounds, transports=True)
    return memory_over_gloo([rank["transports"] for rank in found])


def of_slowest(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarizes what ``against_bare`` returned on each rank."""
    slowest, low, cpu = slowest_of(of_ranks)
    return {
        "bytes received": of_ranks[0]["bytes"],
        **{f"{kind}_ms": median(times) for kind, times in slowest.items()},
        "high over low quartile": {kind: times[len(times) * 3 // 4] / low[kind] for kind, times in slowest.items()},
        "throughput over bare": low["bare"] / low["exchanges"],
        "throughput over bare, with gather": low["bare"] / low["rows"],
        "CPU time of bare over ours": cpu["bare"] / cpu["exchanges"],
        "CPU time of bare over ours, with gather": cpu["bare"] / cpu["rows"],
    }


def by_size(megabytes: list[int], rounds: int) -> dict[str, Any]:
    """Exchanges of so many megabytes per step between two processes."""
    with tempfile.TemporaryDirectory() as folder:
        found = run_ranks(2, Path(folder), rounds=rounds, megabytes=megabytes)
    results = {name: of_slowest([rank[name] for rank in found]) for name in found[0]}
    for name, entry in results.items():
        print(f"  {name}: " + json.dumps(entry), flush=True)
    return results


def one_part(data: Data, rounds: int) -> dict[str, Any]:
    """One part in one process against the plain loader, with and without batches made ahead: ratios of wall time at the
    median, and of CPU time, which other processes disturb less, at the lower quartile."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        partition.write(data, f"{folder}/parts", parts=1, method="ranges")
        seeds = data.train_mask.nonzero().view(-1)
        stores = FeatureStore.from_data(data), GraphStore.from_data(data)
        for store, name in zip(stores, ("features", "graph"), strict=True):
            store.save(f"{folder}/{name}")
        mapped = FeatureStore.open(f"{folder}/features"), GraphStore.open(f"{folder}/graph")
        with open_part(f"{folder}/parts") as part:
            kinds = {"plain": stores, "plain, mapped": mapped, "one part": (part.features, part.graph)}
            for size, prefetch in itertools.product((BATCH, TINY), (0, 4)):
                options = {"prefetch": prefetch, "batch_size": size}
                some = seeds[: PLAIN_BATCHES * size]
                loaders = {name: loader_of(of, some, **options) for name, of in kinds.items()}
                cpu: dict[str, list[float]] = {name: [] for name in loaders}

                def epoch(name: str, number: int, loaders: Any = loaders, cpu: Any = cpu) -> None:
                    loaders[name].set_epoch(number + 2)
                    begin = time.process_time()
                    for _ in loaders[name]:
                        pass
                    cpu[name].append(time.process_time() - begin)

                candidates = {name: partial(epoch, name) for name in loaders}
                entry: dict[str, Any] = compare(candidates, 3 * rounds, len(loaders["plain"]))
                title = f"batches of {size}, prefetch={prefetch}"
                report(title, entry, "plain")
                ours, of = entry["one part"], {name: sorted(times[2:])[rounds * 3 // 4] for name, times in cpu.items()}
                results[title] = {
                    **entry,
                    "ratio": ours["median_ms"] / entry["plain"]["median_ms"],
                    "ratio to mapped": ours["median_ms"] / entry["plain, mapped"]["median_ms"],
                    "ratio of CPU time": of["one part"] / of["plain"],
                    "ratio of CPU time to mapped": of["one part"] / of["plain, mapped"],
                }
    return results


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.add_argument("--transports", action="store_true", help="rows by transport alone, saved as transports.json")
    options.add_argument("--small", action="store_true", help="a small graph, to try the code")
    options.add_argument("--parts", type=int, nargs="+", default=[2, 4], help="processes, and parts of the graph")
    args = options.parse_args()
    methods = ["random", "metis"] if has("pymetis") and not args.small else ["random"]
    results: dict[str, Any] = {}
    if args.transports:
        for name, data in graphs(args.small):
            for world, method in itertools.product(args.parts, methods):
                results[title := f"{name}, {world} parts, {method}"] = by_transport(data, world, method, args.rounds)
                print(f"{title}: " + json.dumps(results[title]), flush=True)
        pairs = [entry["throughput of memory over gloo"] for title, entry in results.items() if " 2 parts" in title]
        results["aims"] = {"rows between two ranks, memory's throughput over Gloo's": judged(min(pairs), least=1.3)}
        say_aims(results["aims"])
        if not args.no_save:
            save("transports", results)
        return
    for name, data in graphs(args.small):
        print(name, flush=True)
        parts = {
            f"{world} parts, {method}": measure(data, world, method, args.rounds)
            for world in args.parts
            for method in methods
        }
        results[name] = {"parts": parts, "one part": one_part(data, args.rounds)}
    every = [entry for found in results.values() for entry in found["parts"].values()]
    exact = all(entry[order]["as predicted"] for entry in every for order in ORDERS)
    assert exact, "expected the bytes and rounds that samples() predicts"
    alone = [entry for found in results.values() for entry in found["one part"].values()]
    print("exchanges by size", flush=True)
    results["by size"] = by_size([1] if args.small else [1, 4, 16, 64], args.rounds)
    exchanges = [entry["exchange"] for entry in every] + list(results["by size"].values())
    results["aims"] = {
        "throughput of the exchanges over bare all-to-alls'": judged(
            min(entry["throughput over bare"] for entry in exchanges), least=0.6
        ),
        "one part, CPU time of a batch over the plain loader's": judged(
            max(entry["ratio of CPU time"] for entry in alone), most=1.1
        ),
    }
    say_aims(results["aims"])
    if not args.no_save:
        save("distributed", results)


if __name__ == "__main__" and not is_parent(in_rank):
    main()
