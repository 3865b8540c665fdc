"""Cutting batches and shuffling their rows on a GPU, against drawing the batches there and against a copy.

    python benchmarks/bench_gpu_split.py

A batch is 1024 x (15, 10, 5), drawn on the GPU and cut over ranks by random owners, host waits included; aim: cutting
takes at most 3 times as long as drawing. Rows are shuffled by the operator alone: "packed" copies random rows of one
table, "added" adds a random row of two other tables to each row of a table. Its bytes read and written per second are
compared with those of a copy of rows; aim: 70 % for rows of 512 bytes. All results are compared with the CPU's before
they are timed. No benchmark reads another rank's GPU yet.
"""

from __future__ import annotations

from functools import partial

import torch
from bench_gather_gpu import compare as compare_on_stream
from common import compare, data_of, judged, parser, report, save, say_aims
from torch import Tensor

from torch_gnnscale import CSC, ops
from torch_gnnscale.topology.segmented import SegmentedCSC

BATCH, FANOUTS, PARTS = 1024, [15, 10, 5], (2, 4, 8)
ROWS, WIDTHS = 1 << 19, (128, 512, 2048)
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

    def draw(_: int) -> ops.Sample:
        sample = graph.sample([seeds], FANOUTS, [0], replace=False, layers=False)[0]
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
    times = compare(candidates, rounds)
    worst = max(times[f"cut over {parts}"]["median_ms"] for parts in PARTS)
    return times, {"cut over drawing": judged(worst / times["drawing"]["median_ms"], most=3)}


def shuffles(width: int, rounds: int) -> tuple[dict, dict]:
    """Milliseconds and GB/s of rows of so many bytes, read and written, and the aim."""
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(ROWS, width // 4, generator=generator) for _ in range(3)]
    row = torch.randint(ROWS, (ROWS,), generator=generator)
    part = torch.randint(2, (ROWS,), generator=generator)
    ptr = torch.arange(ROWS + 1)
    there, out = [table.to(DEVICE) for table in tables], torch.empty_like(tables[0], device=DEVICE)
    own_row, own_part, own_ptr = row.to(DEVICE), part.to(DEVICE), ptr.to(DEVICE)

    def packed() -> Tensor:
        return ops.shuffle_rows(None, there[:1], None, own_row, check=False)

    def added() -> Tensor:
        return ops.shuffle_rows(there[0], there[1:], own_part, own_row, own_ptr, check=False)

    check("packed rows", packed(), tables[0][row])
    check("added rows", added(), ops.shuffle_rows(tables[0], tables[1:], part, row, ptr))
    copied = 2 * ROWS * width
    times = compare_on_stream({"copy": lambda: out.copy_(there[0]), "packed": packed}, copied, rounds)
    times |= compare_on_stream({"added": added}, 3 * ROWS * width, rounds)
    aims = {}
    for name in ("packed", "added"):
        times[name]["of_copy"] = times[name]["gb_per_s"] / times["copy"]["gb_per_s"]
        if width == 512:
            aims[f"{name} rows of 512 bytes over a copy"] = judged(times[name]["of_copy"], least=0.7)
    return times, aims


def main() -> None:
    """Prints and saves the results."""
    options = parser((__doc__ or "").splitlines()[0])
    options.set_defaults(graphs=["2.4M-124M"])
    args = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_gpu_split: torch sees no CUDA device, so there is nothing to measure")
    results: dict = {"gpu": torch.cuda.get_device_name(0)}
    for width in WIDTHS:
        times, aims = shuffles(width, args.rounds)
        for name, entry in times.items():
            print(f"{width} bytes, {name}: {entry['gb_per_s']:.0f} GB/s", flush=True)
        say_aims(aims)
        results[f"{width} bytes"] = {**times, "aims": aims}
    for name in args.graphs:
        times, aims = cuts(CSC.from_data(data_of(name, 1)), args.rounds)
        report(f"{name}: a batch of {BATCH} x {FANOUTS}", times, "drawing")
        say_aims(aims)
        results[name] = {**times, "aims": aims}
    if not args.no_save:
        save("gpu_split", results)


if __name__ == "__main__":
    main()
