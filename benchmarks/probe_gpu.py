"""What a machine with a GPU gives: what launches and waits cost, and what bounds the reading of rows over the bus.

    python benchmarks/probe_gpu.py

It tells what the machine is; how its memory grows; what a launch, an allocation, an event and a synchronization cost;
what torch's profiler sees in one batch of 1024 x (15, 10, 5) and in a bulk of 32; and how fast the package's gather
reads rows of 128, 512 and 2048 bytes from host memory: registered with and without huge pages, and of cudaHostAlloc.

Each gather reads as many bytes: rows at random, the same rows in order of their ids, rows one after another, random
rows within 256 MiB, and the random ones by two gathers at once. The limit is a copy from the same memory. If a gather
misses its aim, 80 % of the copy, one of three reasons is given (:func:`rows_over_bus.reason`). If rows that are near
each other are faster, it is the translation of addresses: *page tables*. If two gathers at once are faster than one, it
is the *kernel*, which asks for too little at once. Otherwise it is the *bus*, and how it carries requests of that size.

Whether ids should be sorted before rows are read over the bus is a question of its own
(:func:`rows_over_bus.sorting`): "sorted for the gather" sorts the random ids, gathers, and puts the rows into the order
in which they were asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bench_gather_gpu import gather
from bench_gpu import BULK, draw, prepared
from common import GRAPHS, judged, parser, save, say_aims
from growth import memory
from rows_over_bus import KINDS, say_zero_copy, zero_copy
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from torch_gnnscale import CSC
from torch_gnnscale.topology import rmat
from torch_gnnscale.topology.segmented import SegmentedCSC

BATCH = 1024
MOST = {"launches": 35, "allocations": 8}
"""Of one batch of three hops. An operator's counts in host memory and a tensor of Python's are allocations, too."""
COMMANDS = """
nvidia-smi
nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current --format=csv
lscpu | head -20
free -g
ulimit -l
nvcc --version
grep . /sys/kernel/mm/transparent_hugepage/*enabled /sys/kernel/mm/transparent_hugepage/defrag
ls /sys/class/iommu
"""


# Costs ###############################################################################################################


def microseconds(run: Callable[[], Any], count: int, synchronize: Callable[[], None]) -> float:
    """The median time of one of ``count`` calls until it returns, over seven series that begin with an idle device."""
    series = []
    for _ in range(7):
        synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            run()
        series.append((time.perf_counter() - begin) / count * 1e6)
    synchronize()
    return median(series)


def costs() -> dict[str, float]:
    """Microseconds that the host takes for each call, and the GPU from one short kernel to the next."""
    one, pinned = torch.zeros(1, device="cuda"), torch.zeros(256).pin_memory()
    there, event, stream = torch.zeros(256, device="cuda"), torch.cuda.Event(), torch.cuda.Stream()
    row = gather([torch.zeros(64, 32, device="cuda")], torch.zeros(1, dtype=torch.int64, device="cuda"))

    def and_wait(run: Callable[[], Any]) -> Callable[[], None]:
        def both() -> None:
            run()
            torch.cuda.synchronize()

        return both

    def on_another_stream() -> None:
        with torch.cuda.stream(stream):
            pass

    calls: dict[str, Callable[[], Any]] = {
        "launch of a torch operator": lambda: one.add_(1),
        "launch of a gather of one row": row,
        "allocation from torch's cache": lambda: torch.empty(256, device="cuda"),
        "event recorded": event.record,
        "change of the stream and back": on_another_stream,
        "synchronization of an idle GPU": torch.cuda.synchronize,
        "launch and synchronization": and_wait(lambda: one.add_(1)),
        "number brought to the host": one.item,
        "1 KiB to the GPU and synchronization": and_wait(lambda: there.copy_(pinned, non_blocking=True)),
    }
    found = {name: microseconds(run, 200, torch.cuda.synchronize) for name, run in calls.items()}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(20_000_000)  # the GPU is busy until all are queued
    begin.record()
    for _ in range(500):
        one.add_(1)
    end.record()
    end.synchronize()
    found["GPU, from one short kernel to the next"] = begin.elapsed_time(end) / 500 * 1e3
    for name, run in {
        "1 GiB from the driver": lambda: torch.empty(1 << 30, dtype=torch.uint8, device="cuda"),
        "1 GiB by cudaHostAlloc": lambda: torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True),
    }.items():
        torch.cuda.empty_cache()
        since = time.perf_counter()
        run()
        found[name] = (time.perf_counter() - since) * 1e6
    return found


# Profile #############################################################################################################


def profiled(run: Callable[[], Any], device: torch.device, rounds: int) -> dict[str, Any]:
    """What torch's profiler sees in a call that ends when the device has done its work, and how long it takes without.

    ``device_us`` is what kernels and copies take, ``calls`` how often each function of the CUDA runtime is called,
    ``launches`` those of kernels and memsets, ``allocations`` how many tensors are made, on the host, too.
    """
    walls = []
    for _ in range(rounds + 2):
        since = time.perf_counter()
        run()
        walls.append((time.perf_counter() - since) * 1e6)
    gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    with profile(activities=[ProfilerActivity.CPU, *gpu]) as seen:
        run()
    entries = [
        {
            "name": e.key,
            "count": e.count,
            # What an operator of the host has launched is an entry of its own.
            "device_us": e.self_device_time_total if e.device_type == DeviceType.CUDA else 0.0,
            "host_us": e.self_cpu_time_total,
        }
        for e in seen.key_averages()
        if not e.is_user_annotation
    ]
    busy = sum(entry["device_us"] for entry in entries)
    calls = {entry["name"]: entry["count"] for entry in entries if entry["name"].startswith(("cuda", "cu"))}
    return {
        "wall_us": median(walls[2:]),
        "device_us": busy,
        "launches": sum(count for name, count in calls.items() if "LaunchKernel" in name or "Memset" in name),
        "allocations": sum(entry["count"] for entry in entries if entry["name"].startswith("aten::empty")),
        "calls": calls,
        "entries": sorted(entries, key=lambda entry: (-entry["device_us"], -entry["host_us"])),
    }


def sampled(graph: SegmentedCSC, num_nodes: int, batches: int) -> Callable[[], Any]:
    """A function that draws a bulk of ``batches`` batches."""
    seeds = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))[: BATCH * batches].to(graph.device)
    bulks = prepared(graph, seeds.device)
    return lambda: draw(bulks, list(seeds.split(BATCH)), list(range(batches)))


def say_profile(name: str, found: Mapping[str, Any], most: int = 14) -> None:
    print(
        f"{name}: {found['wall_us']:.0f} us, of which the GPU works {found['device_us']:.0f} us; "
        f"{found['launches']} launches, {found['allocations']} allocations"
    )
    for entry in found["entries"][:most]:
        print(
            f"  {entry['device_us']:9.1f} us, {entry['host_us']:9.1f} us of the host, {entry['count']:4d} x "
            f"{entry['name'][:70]}"
        )


# Memory ##############################################################################################################


def growth(gigabytes: float) -> dict[str, Any]:
    """What growth.py found, its exit status, and the memory that there is when it has ended."""
    program = [sys.executable, str(Path(__file__).parent / "growth.py"), str(gigabytes)]
    done = subprocess.run(program, capture_output=True, text=True)
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    return {"exit_status": done.returncode, "steps": steps, "after": memory()}


def say_growth(found: Mapping[str, Any]) -> None:
    first, last = found["steps"][0], found["steps"][-1]
    seconds = sum(step["seconds"] for step in found["steps"])
    print(
        f"memory: {first['MemTotal_gib']:.1f} GiB at first, of which {first['MemAvailable_gib']:.1f} available; "
        f"{last['MemTotal_gib']:.1f} and {last['MemAvailable_gib']:.1f} with {last['taken_gib']:.0f} GiB taken in "
        f"{seconds:.1f} s; {found['after']['MemAvailable_gib']:.1f} available after that; "
        f"exit status {found['exit_status']}"
    )


def main() -> int:
    """The exit status: 1 if a part failed."""
    options = parser((__doc__ or "").splitlines()[0], graphs=False)
    options.set_defaults(rounds=5)
    options.add_argument("--graph", choices=GRAPHS, default="2.4M-124M")
    options.add_argument("--table", type=int, default=4096, help="MiB of the table that is read over the bus")
    options.add_argument("--grow", type=float, default=48, help="GiB of memory that are taken, at most")
    args = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("probe_gpu: torch sees no CUDA device, so there is nothing to probe")
    device = torch.device("cuda", 0)
    subprocess.run(["sh", "-c", COMMANDS], stderr=subprocess.STDOUT)
    subprocess.run([sys.executable, "-m", "torch_gnnscale", "info"], stderr=subprocess.STDOUT)
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "arguments": vars(args)}

    def bulks() -> dict[str, Any]:
        num_nodes, num_edges = GRAPHS[args.graph]
        graph = SegmentedCSC.on_gpu(CSC.from_edge_index(rmat(num_nodes, num_edges, seed=1), num_nodes), device)
        runs = {count: sampled(graph, num_nodes, count) for count in (1, BULK)}
        found = {f"{count} at a time": profiled(run, device, args.rounds) for count, run in runs.items()}
        one = found["1 at a time"]
        one["aims"] = {name: judged(one[name], most=most) for name, most in MOST.items()}
        return found

    def say_bulks(found: Mapping[str, Any]) -> None:
        for name, entry in found.items():
            say_profile(f"sampling {name}", entry)
            say_aims(entry.get("aims", {}))

    def say_costs(found: Mapping[str, float]) -> None:
        for name, cost in found.items():
            print(f"  {cost:12.1f} us  {name}")

    parts: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
        "growth": (lambda: growth(args.grow), say_growth),  # first: the other parts find the memory that it has brought
        "costs": (costs, say_costs),
        "profile": (bulks, say_bulks),
        **{f"zero-copy, {kind}": (partial(zero_copy, kind, args.table, args.rounds), say_zero_copy) for kind in KINDS},
    }
    failed = False
    for name, (run, say) in parts.items():
        since = time.perf_counter()
        try:
            results[name] = run()
            print(f"\n== {name}, {time.perf_counter() - since:.1f} s", flush=True)
            say(results[name])
        except Exception:  # of any type: the other parts still tell about the machine
            failed = True
            results[name] = {"failed": traceback.format_exc()}
            print(f"\n== {name} failed\n{results[name]['failed']}", flush=True)
        if not args.no_save:
            save("gpu_probe", results)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
