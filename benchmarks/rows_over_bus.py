"""How fast a gather reads rows over the bus, from each kind of host memory, and what bounds it; run by probe_gpu.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from bench_gather_gpu import check, gather
from gpu_timing import compare
from torch import Tensor

from torch_gnnscale.memory import HostArray, HostMemory

SIZES = [128, 512, 2048]
NEAR = 256 << 20  # bytes
AIM = 0.8
"""The share of the copy's throughput that a gather of random rows is to reach."""
MATTERS = 1.1
"""If another gather is at least this many times as fast, it shows what holds up the gather of random rows."""


def huge_bytes(smaps: str, address: int) -> int:
    """Bytes in huge pages of the mapping that has an address, from the text of /proc/PID/smaps."""
    total, inside = 0, False
    for line in smaps.splitlines():
        head, _, rest = line.partition(" ")
        if "-" in head and not head.endswith(":"):
            first, last = (int(number, 16) for number in head.split("-"))
            inside = first <= address < last
        elif inside and head in ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"):
            total += int(rest.split()[0]) << 10
    return total


@contextmanager
def registered(items: int, huge: bool) -> Iterator[Tensor]:
    """The numbers 0, 1, ... in a store's memory, registered with CUDA."""
    shared = HostMemory(items * 4, "the table", insist=True)
    try:
        table = torch.arange(items, dtype=torch.int32, out=shared.tensor(HostArray(0, (items,), torch.int32)))
        if huge:
            shared.use_huge_pages()
        shared.pin(torch.device("cuda", 0))
        yield table
    finally:
        shared.close()


@contextmanager
def allocated(items: int) -> Iterator[Tensor]:
    """The numbers 0, 1, ... in memory that CUDA allocated."""
    yield torch.arange(items, dtype=torch.int32, out=torch.empty(items, dtype=torch.int32, pin_memory=True))


def indices(rows: int, count: int, near: int, device: torch.device) -> dict[str, Tensor]:
    """The ids that are gathered of a table of ``rows`` rows, the first ``near`` of which lie within 256 MiB."""
    random = torch.randint(rows, (count,), device=device)
    return {
        "random": random,
        "sorted": random.sort()[0],
        "sequential": torch.arange(count, device=device) % rows,
        "within 256 MiB": torch.randint(min(near, rows), (count,), device=device),
    }


def at_once(rows: Tensor, index: Tensor) -> Callable[[], list[Tensor]]:
    """The two halves of a gather, each on a stream of its own; the current stream waits for both."""
    runs = [gather([rows], half) for half in index.chunk(2)]
    streams = [torch.cuda.Stream() for _ in runs]

    def run() -> list[Tensor]:
        current, found = torch.cuda.current_stream(), []
        for stream, half in zip(streams, runs, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                found.append(half())
            found[-1].record_stream(current)
        for stream in streams:
            current.wait_stream(stream)
        return found

    return run


def sorted_for_the_gather(rows: Tensor, index: Tensor) -> Callable[[], Tensor]:
    """The rows of ``index`` in its order, read in the order of their ids: sort, gather, and copy within the GPU."""
    out = torch.empty((len(index), rows.size(1)), dtype=rows.dtype, device=index.device)

    def run() -> Tensor:
        ids, at = index.sort()
        return out.index_copy_(0, at, gather([rows], ids)())

    return run


def sorting(gb_per_s: Mapping[str, float]) -> str:
    """Whether sorting ids makes a gather faster, by what gathers of the same rows read.

    The copy within the GPU could be spared by a kernel that writes each row to its place; the sort could not.
    """
    whole, alone = (gb_per_s[name] / gb_per_s["random"] for name in ("sorted for the gather", "sorted"))
    told = "pays" if whole >= MATTERS else "does not pay" if alone < MATTERS else "may pay without the copy"
    return f"sorting ids {told}: {whole:.2f} x as fast with the sort and a copy, {alone:.2f} x with ids that are sorted"


def reason(gb_per_s: Mapping[str, float], copy: float) -> str:
    """Why a gather of random rows reads less than 80 % of what a copy does, by what other gathers of such rows read."""
    random = gb_per_s["random"]
    share = f"{100 * random / copy:.0f} % of the copy"
    if random >= AIM * copy:
        return f"met: {share}"
    gains = {
        "page tables": ("rows within 256 MiB", gb_per_s["within 256 MiB"] / random),
        "kernel": ("two gathers at once", gb_per_s["two at once"] / random),
    }
    name, (what, gain) = max(gains.items(), key=lambda item: item[1][1])
    sequential = gb_per_s["sequential"] / random
    if gain < MATTERS:
        return (
            f"bus: {share}; neither near rows nor a second gather help; rows in sequence are {sequential:.2f} x as fast"
        )
    rest = f"; sorted ids are {gb_per_s['sorted'] / random:.2f} x as fast"
    return f"{name}: {share}; {what} are {gain:.2f} x as fast{rest}"


def over_the_bus(table: Tensor, payload: int, rounds: int) -> dict[str, Any]:
    """GB/s of gathers from host memory, beside a copy of as many bytes, and what they tell."""
    target = torch.empty(payload // 4, dtype=torch.int32, device="cuda")
    copies = compare({"copy": lambda: target.copy_(table[: len(target)], non_blocking=True)}, payload, rounds)
    copy = copies["copy"]["gb_per_s"]
    entry: dict[str, Any] = {"copy": copies["copy"], "rows": {}}
    for size in SIZES:
        rows = table.view(-1, size // 4)
        ids = indices(len(rows), payload // size, NEAR // size, target.device)
        candidates = {name: gather([rows], index) for name, index in ids.items()}
        candidates["sorted for the gather"] = sorted_for_the_gather(rows, ids["random"])
        for name, run in candidates.items():
            check(f"{name}, rows of {size} bytes", run(), ids.get(name, ids["random"]))
        found = compare({**candidates, "two at once": at_once(rows, ids["random"])}, payload, rounds)
        speeds = {name: result["gb_per_s"] for name, result in found.items()}
        entry["rows"][str(size)] = {"gathers": found, "reason": reason(speeds, copy), "sorting": sorting(speeds)}
    return entry


KINDS: dict[str, Callable[[int], Any]] = {
    "registered, huge pages": lambda items: registered(items, huge=True),
    "registered, small pages": lambda items: registered(items, huge=False),
    "cudaHostAlloc": allocated,
}
"""Kinds of host memory, that of stores first: each makes a table of so many numbers."""


def zero_copy(kind: str, megabytes: int, rounds: int) -> dict[str, Any]:
    """Rows from host memory of a kind."""
    since = time.perf_counter()
    with KINDS[kind](megabytes << 18) as table:
        seconds = time.perf_counter() - since
        huge = huge_bytes(Path("/proc/self/smaps").read_text(), table.data_ptr())
        found = over_the_bus(table, min(256, megabytes) << 20, rounds)
    return {"megabytes": megabytes, "seconds_to_make": seconds, "huge_bytes": huge, **found}


def say_zero_copy(entry: Mapping[str, Any]) -> None:
    print(
        f"{entry['megabytes']} MiB made in {entry['seconds_to_make']:.1f} s, {entry['huge_bytes'] >> 20} MiB of it in "
        f"huge pages; copy {entry['copy']['gb_per_s']:.1f} GB/s"
    )
    for size, rows in entry["rows"].items():
        figures = ", ".join(f"{name} {result['gb_per_s']:.1f}" for name, result in rows["gathers"].items())
        print(f"  rows of {size} bytes, GB/s: {figures}\n    {rows['reason']}\n    {rows['sorting']}")
