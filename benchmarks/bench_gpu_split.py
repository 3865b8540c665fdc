"""Cutting batches and shuffling their rows on a GPU, against drawing the batches there and against a copy.

    python benchmarks/bench_gpu_split.py

A batch is 1024 x (15, 10, 5), drawn on the GPU and cut over ranks by random owners, host waits included; aim: cutting
takes at most 3 times as long as drawing. Rows are shuffled by the operator alone: "packed" copies random rows of one
table, "added" adds a random row of two other tables to each row of a table. Its bytes read and written per second are
compared with those of a copy of rows; aim: 70 % for rows of 512 bytes. All results are compared with the CPU's before
they are timed.

Then two processes share the GPU. "read": one of them reads random rows that the other has written into memory which
both have open, while the other waits. Its bytes per second are compared with those of a copy within its own memory;
aim: 70 % for rows of 512 bytes. "pull": both send each other a quarter of their rows at the same time, by the memory of
peers and through pinned host memory, host waits included. If CUDA does not let processes share memory here, that is
said and saved, and the exit status is 1.
"""

from __future__ import annotations

import json
import os
import tempfile
from functools import partial
from pathlib import Path

import torch
from common import data_of, judged, parser, report, save, say_aims
from gpu_timing import compare as compare_on_stream
from gpu_timing import compare_waits, keep_busy
from ranks import race
from torch import Tensor, multiprocessing
from torch import distributed as dist

from torch_gnnscale import CSC, ops
from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.memory_transport import MemoryTransport
from torch_gnnscale.comm.peer_memory import GPUMemories
from torch_gnnscale.comm.row_transport import RowTransport
from torch_gnnscale.split.rank_rows import Moves, ShuffleIndex
from torch_gnnscale.topology.segmented import SegmentedCSC

BATCH, FANOUTS, PARTS = 1024, [15, 10, 5], (2, 4, 8)
WIDTHS = (128, 512, 2048)
DEVICE = "cuda:0"


def check(name: str, found: Tensor, expected: Tensor) -> None:
    """Raises RuntimeError unless the GPU's result is the CPU's."""
    if not torch.equal(found.cpu(), expected):
        raise RuntimeError(f"{name} differs from the CPU's")


def cuts(csc: CSC, rounds: int) -> tuple[dict, dict]:
    """Milliseconds of drawing a batch and of cutting it, and the aim."""
    graph = SegmentedCSC.on_gpu(csc, torch.device(DEVICE))
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randperm(csc.num_dst, generator=generator)[:BATCH].to(DEVICE)

    bulks = ops.PreparedBulks([graph.edges()], [csc.num_dst], FANOUTS, seeds.device)

    def draw(_: int) -> ops.Sample:
        (sample,) = bulks.sample_many([[seeds]], [0])
        torch.cuda.synchronize()
        return sample

    sample = draw(0)
    batch = sample.node[0], sample.num_nodes[0], sample.colptr[0], sample.edge_index[0][0]
    in_host = [entry.cpu() if isinstance(entry, Tensor) else entry for entry in batch]

    def cut(owner: Tensor, parts: int, round_: int) -> None:
        ops.cut_batch(*batch, owner, parts, round_ % parts)
        torch.cuda.synchronize()

    candidates = {"drawing": draw}
    for parts in PARTS:
        owner = torch.randint(parts, (len(batch[0]),), dtype=torch.int32, generator=generator)
        for part in range(parts):
            found = ops.cut_batch(*batch, owner.to(DEVICE), parts, part)
            expected = ops.cut_batch(*in_host, owner, parts, part)
            for name in ("local", "colptr", "row", "edge", "halo", "sent"):
                check(f"{name} of part {part} of {parts}", getattr(found, name), getattr(expected, name))
        candidates[f"cut over {parts}"] = partial(cut, owner.to(DEVICE), parts)
    times = compare_waits(candidates, rounds)
    worst = max(times[f"cut over {parts}"]["median_ms"] for parts in PARTS)
    return times, {"cut over drawing": judged(worst / times["drawing"]["median_ms"], most=3)}


def shuffles(rows: int, width: int, rounds: int) -> tuple[dict, dict]:
    """Milliseconds and GB/s of rows of so many bytes, read and written, and the aim."""
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(rows, width // 4, generator=generator) for _ in range(3)]
    row = torch.randint(rows, (rows,), generator=generator)
    part = torch.randint(2, (rows,), generator=generator)
    ptr = torch.arange(rows + 1)
    there, out = [table.to(DEVICE) for table in tables], torch.empty_like(tables[0], device=DEVICE)
    own_row, own_part, own_ptr = row.to(DEVICE), part.to(DEVICE), ptr.to(DEVICE)

    def packed() -> Tensor:
        return ops.shuffle_rows(None, there[:1], None, own_row, check=False)

    def added() -> Tensor:
        return ops.shuffle_rows(there[0], there[1:], own_part, own_row, own_ptr, check=False)

    check("packed rows", packed(), tables[0][row])
    check("added rows", added(), ops.shuffle_rows(tables[0], tables[1:], part, row, ptr))
    copied = 2 * rows * width
    times = compare_on_stream({"copy": lambda: out.copy_(there[0]), "packed": packed}, copied, rounds)
    times |= compare_on_stream({"added": added}, 3 * rows * width, rounds)
    aims = {}
    for name in ("packed", "added"):
        times[name]["of_copy"] = times[name]["gb_per_s"] / times["copy"]["gb_per_s"]
        if width == 512:
            aims[f"{name} rows of 512 bytes over a copy"] = judged(times[name]["of_copy"], least=0.7)
    return times, aims


def rank_main(rank: int, folder: str, rows: int, rounds: int) -> None:
    """One of two processes on the GPU: the first one writes the times of the widths so far to ``found.json``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    exchanges = [Exchange(dist.new_group(backend="gloo"), 2, rank) for _ in range(2)]
    peers = MemoryTransport.connect(exchanges[0], GPUMemories(torch.device(DEVICE)))
    if not isinstance(peers, MemoryTransport):
        raise RuntimeError(f"the processes cannot read each other's memory: {peers}")
    staged = RowTransport(exchanges[1])
    found = {}
    for width in WIDTHS:
        generators = [torch.Generator().manual_seed(10 + place) for place in range(2)]
        tables = [torch.randn(rows, width // 4, generator=generator) for generator in generators]
        sent = [torch.randperm(rows, generator=generator)[: rows // 4] for generator in generators]
        counts = [[len(sent[0]) * (place != rank)] for place in range(2)]
        moves = Moves(ShuffleIndex(2, rank, sent[rank].to(DEVICE), counts, counts), 1)
        own, expected = tables[rank].to(DEVICE), tables[1 - rank][sent[1 - rank]]
        ways = {"peers": peers, "pinned memory": staged}
        for name, transport in ways.items():
            check(f"rows by {name}", transport.pull(own, moves, name), expected)

        def pull(name: str, _: int, ways=ways, own=own, moves=moves) -> None:
            ways[name].pull(own, moves, name)
            torch.cuda.synchronize()

        keep_busy()
        took = race({name: partial(pull, name) for name in ways}, rounds)
        theirs, at = peers.rows(own, moves, "read"), torch.randperm(rows // 4, generator=generators[0])
        own_at, same, out = at.to(DEVICE), own[: rows // 4].contiguous(), torch.empty_like(theirs)

        def read(theirs=theirs, own_at=own_at) -> Tensor:
            return ops.shuffle_rows(None, [theirs], None, own_at, check=False)

        check("rows of the other process", read(), expected[at])
        torch.cuda.synchronize()
        dist.barrier()
        if rank == 0:
            candidates = {"copy": partial(out.copy_, same), "read": read}
            found[width] = {"alone": compare_on_stream(candidates, 2 * len(at) * width, rounds), "pull_s": took}
            Path(folder, "found.json").write_text(json.dumps(found))
        dist.barrier()
    peers.close()
    dist.barrier()
    dist.destroy_process_group()


def of_two_processes(rows: int, rounds: int) -> tuple[dict[str, dict], str | None]:
    """(By width, what one process on the GPU reads of another one's memory, in GB/s, what a pull takes, and the aim;
    why there are not all widths, None if there are)."""
    results: dict[str, dict] = {}
    failed = None
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        written = Path(folder, "found.json")
        written.write_text("{}")
        try:
            multiprocessing.start_processes(rank_main, (folder, rows, rounds), nprocs=2, start_method="spawn")
        except Exception as error:  # of a kind that only the driver knows
            failed = str(error).strip()
        found = json.loads(written.read_text())
    for width, entry in found.items():
        alone, pulls = entry["alone"], {name: sorted(times)[len(times) // 2] for name, times in entry["pull_s"].items()}
        share = alone["read"]["gb_per_s"] / alone["copy"]["gb_per_s"]
        aims = {"rows of 512 bytes of a peer over a copy": judged(share, least=0.7)} if width == "512" else {}
        line = ", ".join(f"{1e3 * seconds:.2f} ms by {name}" for name, seconds in pulls.items())
        print(f"{width} bytes, read: {alone['read']['gb_per_s']:.0f} GB/s, {share:.2f} of a copy; pull: {line}")
        say_aims(aims)
        results[f"{width} bytes, two processes"] = {**alone, "pull_ms": {n: 1e3 * s for n, s in pulls.items()},
                                                    "aims": aims}  # fmt: skip
    return results, failed


def main() -> None:
    """Prints and saves the results."""
    options = parser((__doc__ or "").splitlines()[0])
    options.set_defaults(graphs=["2.4M-124M"])
    options.add_argument("--rows", type=int, default=1 << 19, help="of each table")
    args = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_gpu_split: torch sees no CUDA device, so there is nothing to measure")
    results: dict = {"gpu": torch.cuda.get_device_name(0)}

    def saved(found: dict) -> None:
        """What there is with these, for what comes next may run out of time."""
        results.update(found)
        if not args.no_save:
            save("gpu_split", results)

    for width in WIDTHS:
        times, aims = shuffles(args.rows, width, args.rounds)
        for name, entry in times.items():
            print(f"{width} bytes, {name}: {entry['gb_per_s']:.0f} GB/s", flush=True)
        say_aims(aims)
        saved({f"{width} bytes": {**times, "aims": aims}})
    for name in args.graphs:
        times, aims = cuts(CSC.from_data(data_of(name, 1)), args.rounds)
        report(f"{name}: a batch of {BATCH} x {FANOUTS}", times, "drawing")
        say_aims(aims)
        saved({name: {**times, "aims": aims}})
    found, failed = of_two_processes(args.rows, args.rounds)
    saved({**found, **({} if failed is None else {"two processes": failed})})
    if failed is not None:
        raise SystemExit(f"bench_gpu_split: two processes on the GPU failed\n{failed}")


if __name__ == "__main__":
    main()
