"""Gathering rows of 64 to 4096 bytes: this package and torch.index_select, beside the machine's copy bandwidth.

    python benchmarks/bench_gather.py

Every candidate gathers the same random rows, 48 MiB of payload, from one table of 1 GiB in huge pages, which is larger
than any cache. The bandwidth is that of a copy on as many threads, which counts what it reads and what it writes. A
gather's share is (payload per second) / bandwidth, so a gather at the speed of a copy would have 0.5. The limit reads
the lines of the same rows, prefetched, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from common import compare, on_threads, parser, report, save
from limits import row_reader
from torch import Tensor

from torch_gnnscale import ops

PAYLOAD = 48 / 1024
"""The payload, as a share of the table."""
SIZES = [64, 128, 256, 512, 1024, 2048, 4096]
THREADS = [1, 2]


def on(threads: int, run: Callable[[], object]) -> None:
    """Runs with this number of torch's threads."""
    torch.set_num_threads(threads)
    run()


def measure_copy(table: Tensor, rounds: int) -> dict[str, dict[str, float]]:
    """The machine's bandwidth, a plain copy of a quarter of the table."""
    source = table[: len(table) // 4]
    target = torch.empty_like(source)
    candidates = {
        f"copy, {on_threads(threads)}": lambda _, threads=threads: on(threads, lambda: target.copy_(source))
        for threads in THREADS
    }
    results = compare(candidates, rounds)
    for entry in results.values():
        entry["gb_per_s"] = 2 * source.nbytes / entry["median_ms"] / 1e6
    report("Copy", results, None)
    return results


def measure(table: Tensor, size: int, bandwidth: dict[str, float], rounds: int) -> dict[str, dict[str, float]]:
    """All candidates on rows of one size."""
    rows = table.view(-1, size // table.element_size())
    index = [torch.randint(len(rows), (int(PAYLOAD * len(rows)),)) for _ in range(rounds)]
    assert torch.equal(ops.gather_rows(rows, index[0]), rows[index[0]])
    out = torch.empty(len(index[0]), rows.shape[1])
    read = row_reader(rows)
    pool = ThreadPoolExecutor(max(THREADS))
    candidates: dict[str, Callable[[int], object]] = {}
    for threads in THREADS:
        for name, run in {
            "gnnscale": lambda i, threads=threads: ops.gather_rows(rows, index[i], threads),
            "index_select": lambda i: torch.index_select(rows, 0, index[i]),
            "index_select(out=)": lambda i: torch.index_select(rows, 0, index[i], out=out),
            "limit": lambda i, threads=threads: list(pool.map(read, index[i].chunk(threads))),
        }.items():
            candidates[f"{name}, {on_threads(threads)}"] = lambda i, threads=threads, run=run: on(
                threads, partial(run, i)
            )
    results = compare(candidates, rounds)
    for name, entry in results.items():
        threads = name.split(", ")[-1]
        entry["gb_per_s"] = len(index[0]) * size / entry["median_ms"] / 1e6
        entry["of_copy"] = entry["gb_per_s"] / bandwidth[threads]
        entry["speedup"] = results[f"index_select, {threads}"]["median_ms"] / entry["median_ms"]
    report(f"Rows of {size} bytes, {len(index[0]):,} of them", results, None)
    pool.shutdown()
    return results


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.add_argument("--table", type=int, default=1024, help="MiB that rows are gathered from")
    args = options.parse_args()
    table = torch.arange(args.table << 18, dtype=torch.float32)
    ops.huge_pages(table)
    copies = measure_copy(table, args.rounds)
    bandwidth = {name.split(", ")[-1]: entry["gb_per_s"] for name, entry in copies.items()}
    results: dict = {"payload_bytes": int(PAYLOAD * table.nbytes), "copy": copies}
    for size in SIZES:
        results[str(size)] = measure(table, size, bandwidth, args.rounds)
    if not args.no_save:
        save("gather", results)


if __name__ == "__main__":
    main()
