"""Rows gathered by a GPU from its memory, from pinned host memory and from both, against copies and WholeGraph.

    python benchmarks/bench_gather_gpu.py

Every candidate gathers the same random rows of the same tables. All are checked first, and then timed by events on the
stream. The limits are copies of as many bytes, in turn with the gathers: within the GPU, which reads and writes each
byte as a gather does; and from host memory, the faster one of a copy from torch's pinned allocator and one from a
store's memory. Gathers read from a store's memory. "mapped" looks up where each row is and counts it, as a store that
is not renumbered does; it has no aim. Aims: 85 % of the copy within the GPU for rows of 512 bytes, 70 % for 128 bytes;
80 % of the copy from the host for rows of 512 bytes and more; with half of the rows in each memory, within 10 % of the
slower half alone. WholeGraph takes part if pylibwholegraph can be imported, and is to be slower at every size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from common import has, judged, parser, save
from gpu_timing import compare
from torch import Tensor

from torch_gnnscale import ops
from torch_gnnscale.memory import HostArray, HostMemory

SIZES = [64, 128, 256, 512, 1024, 2048, 4096]
AIMS = {("GPU", 128): 0.70, ("GPU", 512): 0.85, **{("pinned", size): 0.80 for size in SIZES if size >= 512}}
AIMS.update({("mixed", size): 1 / 1.10 for size in SIZES})
SHARES = ("of_copy", "of_its_pinned_half", "of_wholegraph")
Gathers = dict[str, Callable[[], Tensor]]


def gather(parts: list[Tensor], index: Tensor) -> Callable[[], Tensor]:
    """The operator alone: what the loader runs, whose ids are known to be in range."""
    arguments = ([1] * len(parts), None, index, False, parts[0].dtype, None, 0)
    return lambda: torch.ops.gnnscale.gather_tiers(parts, *arguments)


def mapped(parts: list[Tensor], index: Tensor) -> Callable[[], Tensor]:
    """The same rows, found by a map from ids to positions, which is a random permutation."""
    rows = sum(map(len, parts))
    place = torch.randperm(rows, dtype=torch.int32, device=index.device)
    ids = torch.empty_like(place).scatter_(0, place.long(), torch.arange(rows, dtype=torch.int32, device=index.device))
    counts = torch.zeros((len(parts), 2), dtype=torch.int64, device=index.device)
    arguments = ([1] * len(parts), place, ids[index].to(index.dtype), False, parts[0].dtype, counts, 0)
    return lambda: torch.ops.gnnscale.gather_tiers(parts, *arguments)


class WholeGraph:
    """The peer: a process of its own group, and tables in its own memory."""

    def __init__(self) -> None:
        import pylibwholegraph.torch as wholegraph

        threads = torch.get_num_threads()
        torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
        wholegraph.init(0, 1, 0, 1, wm_log_level="warn")
        torch.set_num_threads(threads)
        self.module, self.group = wholegraph, wholegraph.get_global_communicator()

    def table(self, rows: Tensor) -> Any:
        """A copy of rows where they are: in its memory on the GPU, or in its memory of the host."""
        place = "cuda" if rows.is_cuda else "cpu"
        table = self.module.create_wholememory_tensor(
            self.group, "continuous", place, list(rows.shape), rows.dtype, None
        )
        local, _ = table.get_local_tensor(host_view=not rows.is_cuda)
        local.copy_(rows)
        return table

    def free(self, table: Any) -> None:
        """Gives a table's memory back."""
        self.module.destroy_wholememory_tensor(table)


def peer() -> WholeGraph | None:
    """WholeGraph if it can be started here; otherwise None, and the reason is printed."""
    if not has("pylibwholegraph"):
        print("WholeGraph is left out: pylibwholegraph is not installed")
        return None
    try:
        return WholeGraph()
    except Exception as error:  # of any type: a peer that does not run must not stop the measurements
        print(f"WholeGraph is left out: {type(error).__name__}: {error}")
        return None


def check(what: str, found: Tensor, ids: Tensor) -> None:
    """Raises RuntimeError unless some of the rows are those that the table, which counts upwards, has at their ids."""
    some = torch.randperm(len(ids), device=ids.device)[: 1 << 16]
    width = found.size(1)
    expected = ids[some, None] * width + torch.arange(width, device=ids.device)
    if not torch.equal(found[some].long(), expected):
        raise RuntimeError(f"{what}: wrong rows")


def indices(places: dict[str, list[Tensor]], payload: dict[str, int], size: int) -> dict[str, Tensor]:
    """Random ids of the rows of each place."""
    return {
        place: torch.randint(sum(map(len, parts)), (payload[place] // size,), device="cuda")
        for place, parts in places.items()
    }


def measure(
    hot: Tensor, cold: Tensor, size: int, payload: dict[str, int], copies: dict[str, Gathers], rounds: int
) -> dict[str, Any]:
    """Rows of one size from each place, beside the copies from there."""
    hot, cold = hot.view(-1, size // 4), cold.view(-1, size // 4)
    places = {"GPU": [hot], "pinned": [cold], "mixed": [hot, cold]}
    entry: dict[str, Any] = {}
    for place, index in indices(places, payload, size).items():
        candidates: Gathers = {"gnnscale": gather(places[place], index), "mapped": mapped(places[place], index)}
        if place == "GPU":
            candidates["gather_rows"] = lambda index=index: ops.gather_rows(hot, index, check=False)
            candidates["index_select"] = lambda index=index: hot.index_select(0, index)
        for name, run in candidates.items():
            check(f"{name}, {place}, rows of {size} bytes", run(), index % len(hot))
        entry[place] = compare({**copies[place], **candidates}, len(index) * size, rounds)
        if copies[place]:
            limit = max(entry[place][name]["gb_per_s"] for name in copies[place])
            for name in candidates:
                entry[place][name]["of_copy"] = entry[place][name]["gb_per_s"] / limit
    alone = payload["mixed"] / 2 / payload["pinned"] * entry["pinned"]["gnnscale"]["median_ms"]
    entry["mixed"]["gnnscale"]["of_its_pinned_half"] = alone / entry["mixed"]["gnnscale"]["median_ms"]
    for place, results in entry.items():
        if (least := AIMS.get((place, size))) is not None:
            ours = results["gnnscale"]
            ours["aim"] = judged(next(ours[share] for share in SHARES if share in ours), least=least)
    return entry


def beside(rival: WholeGraph, hot: Tensor, cold: Tensor, size: int, payload: dict[str, int], rounds: int) -> dict:
    """Rows of one size from GPU memory and from host memory, in turn with WholeGraph's."""
    places = {"GPU": [hot.view(-1, size // 4)], "pinned": [cold.view(-1, size // 4)]}
    entry: dict[str, Any] = {}
    for place, index in indices(places, payload, size).items():
        (rows,) = places[place]
        table = rival.table(rows)
        candidates: Gathers = {"gnnscale": gather([rows], index), "WholeGraph": lambda: table.gather(index)}  # noqa: B023
        for name, run in candidates.items():
            check(f"{name}, {place}, rows of {size} bytes", run(), index)
        entry[place] = compare(candidates, len(index) * size, rounds)
        entry[place]["gnnscale"]["of_wholegraph"] = (
            entry[place]["gnnscale"]["gb_per_s"] / entry[place]["WholeGraph"]["gb_per_s"]
        )
        entry[place]["gnnscale"]["aim"] = judged(entry[place]["gnnscale"]["of_wholegraph"], least=1.0)
        rival.free(table)
    return entry


def show(title: str, entry: dict[str, Any]) -> None:
    print(f"\n{title}")
    for place, results in entry.items():
        for name, result in results.items():
            share = next((f"  {100 * result[k]:5.1f} % {k}" for k in SHARES if k in result), "")
            aim = result.get("aim")
            goal = "" if aim is None else f"  (aim {100 * aim['least']:.0f} %: {'met' if aim['met'] else 'MISSED'})"
            spread = f"[{result['low_ms']:.3f}, {result['high_ms']:.3f}]"
            print(
                f"  {place:7s} {name:13s} {result['median_ms']:9.3f} ms {spread:20s} "
                f"{result['gb_per_s']:8.1f} GB/s{share}{goal}"
            )


def main() -> None:
    options: argparse.ArgumentParser = parser((__doc__ or "").splitlines()[0], graphs=False)
    options.add_argument("--table", type=int, default=4096, help="MiB of each table")
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes of a row, multiples of 16")
    args = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_gather_gpu: torch sees no CUDA device, so there is nothing to measure")
    items = args.table << 18
    memory = HostMemory(items * 4, "the cold table", insist=True)
    cold = torch.arange(items, dtype=torch.int32, out=memory.tensor(HostArray(0, (items,), torch.int32)))
    memory.use_huge_pages()
    memory.pin(torch.device("cuda", 0))
    hot = cold.to("cuda")
    payload = {"GPU": hot.nbytes // 4, "pinned": hot.nbytes // 16, "mixed": hot.nbytes // 8}
    print(f"tables of {args.table} MiB; bytes gathered: {payload}")
    source, target = hot[: payload["GPU"] // 4], torch.empty_like(hot[: payload["GPU"] // 4])
    registered = cold[: payload["pinned"] // 4]
    from_host = {"copy, torch's": registered.pin_memory(), "copy, store's": registered}
    copies: dict[str, Gathers] = {
        "GPU": {"copy": lambda: target.copy_(source)},
        "pinned": {
            name: lambda rows=rows: target[: len(rows)].copy_(rows, non_blocking=True)
            for name, rows in from_host.items()
        },
        "mixed": {},
    }
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "rows": {}, "beside": {}}
    for size in args.sizes:
        results["rows"][str(size)] = entry = measure(hot, cold, size, payload, copies, args.rounds)
        show(f"Rows of {size} bytes", entry)
        if not args.no_save:
            save("gather_gpu", results)
    if (rival := peer()) is not None:  # after what is saved, for it may end the process
        for size in args.sizes:
            results["beside"][str(size)] = entry = beside(rival, hot, cold, size, payload, args.rounds)
            show(f"Rows of {size} bytes, in turn with WholeGraph", entry)
        if not args.no_save:
            save("gather_gpu", results)


if __name__ == "__main__":
    main()
