"""Features in tiers on a CPU: memory over disk.

    python benchmarks/bench_tiers.py --folder DIR

DIR holds the features, 1.2 GB for the largest graph, while this runs. The budget is a third of the
features, 1 % of the nodes are seeds, batches of 1024 x (15, 10, 5). Before every gather the file is taken out of the
page cache, which is checked; the plain memory map is read by gather_rows, once as it is and once after
madvise(MADV_RANDOM), which turns the kernel's readahead off. The limit reads as many bytes as the distinct pages of the
batch's rows have, in sequence.

The plain map is also read with a page cache as large as the tiers' budget: after each gather, pages are evicted until
no more are left, either those that were not read for the longest time or those that a presampled epoch reads least.
Within a gather the cache may grow, which is in the plain map's favour.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from common import GRAPHS, parser, save
from common import graph as make_graph
from torch import Tensor

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, TieredFeatureStore, files, ops
from torch_gnnscale.feature import hotness
from torch_gnnscale.feature.feature_store import KIND
from torch_gnnscale.loader import accesses

FEATURES, FANOUTS, BATCH, SHARE = 128, [15, 10, 5], 1024, 1 / 3
MEASURED, PRESAMPLED = 3, 1000  # numbers of epochs: of the one that is read, and of the one that is drawn beforehand
LIBC = ctypes.CDLL(None, use_errno=True)


def rows_of(ids: Tensor) -> Tensor:
    """Feature rows as a function of node ids."""
    return (ids[:, None] % 8191 + torch.arange(FEATURES)).to(torch.float32)


# Memory over disk ####################################################################################################


def write(folder: Path, nodes: int) -> Path:
    """The features as a saved FeatureStore; returns the array's file."""
    with files.creating(folder) as path:
        with files.ArrayWriter(path / "0.npy", torch.float32, (nodes, FEATURES)) as writer:
            for ids in torch.arange(nodes).split(1 << 18):
                writer.append(rows_of(ids))
        files.finish(path, KIND, {"0": writer.entry}, {"tensors": [{"group": None, "name": "x"}]})
    descriptor = os.open(folder / "0.npy", os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return folder / "0.npy"


def pages(mapped: Tensor) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    """The whole pages that hold a mapped tensor."""
    begin = mapped.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    return ctypes.c_void_p(begin), ctypes.c_size_t(mapped.data_ptr() + mapped.nbytes - begin)


def advise(mapped: Tensor, advice: int) -> None:
    if LIBC.madvise(*pages(mapped), advice) != 0:
        raise OSError(ctypes.get_errno(), "madvise")


def forget(file: Path, mapped: list[Tensor]) -> None:
    """Takes a file out of the page cache, and the tensors over it out of this process's page table."""
    for tensor in mapped:
        advise(tensor, mmap.MADV_DONTNEED)
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    cached = in_cache(mapped[0])
    assert cached.sum() < len(cached) // 100, f"{cached.sum()} of {len(cached)} pages are still in the page cache"


def in_cache(mapped: Tensor) -> np.ndarray:
    """Which pages of a mapped tensor are in the page cache: bool, shape [pages]."""
    begin, size = pages(mapped)
    found = np.zeros(-(-size.value // mmap.PAGESIZE), dtype=np.uint8)
    if LIBC.mincore(begin, size, found.ctypes.data_as(ctypes.c_void_p)) != 0:
        raise OSError(ctypes.get_errno(), "mincore")
    return (found & 1).astype(bool)


def pages_of(mapped: Tensor, ids: Tensor) -> np.ndarray:
    """The numbers of the pages that hold rows of a mapped tensor, each once."""
    row = mapped[0].nbytes
    first = ids.numpy() * row + mapped.data_ptr() % mmap.PAGESIZE
    return np.unique(np.concatenate([first, first + row - 1]) // mmap.PAGESIZE)


def evict(file: Path, mapped: Tensor, keep: np.ndarray) -> None:
    """Takes the pages out of the page cache that are not to be kept."""
    begin, _ = pages(mapped)
    descriptor = os.open(file, os.O_RDONLY)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], in_cache(mapped) & ~keep, [0]]).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        at, size = first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE
        LIBC.madvise(ctypes.c_void_p(begin.value + at), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
        os.posix_fadvise(descriptor, at, size, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def with_cache(
    file: Path, mapped: Tensor, before: list[Tensor], batches: list[Tensor], budget: int, reads: np.ndarray | None
) -> float:
    """Milliseconds per batch of gathers from a mapped tensor, with a page cache of ``budget`` bytes.

    Args:
        file: what is mapped; no other mapping of it is in this process's page table.
        mapped: the tensor.
        before: ids that are gathered first, which fill the cache.
        batches: ids that are gathered while it is measured.
        budget: bytes of the cache.
        reads: pages with larger values are kept, shape [pages]; None: those that were read, or read ahead, last.
    """
    taken, rank = [], np.zeros(len(in_cache(mapped)), dtype=np.int64) if reads is None else reads
    for number, ids in enumerate([*before, *batches], 1):
        cached = in_cache(mapped)
        start = time.perf_counter()
        found = ops.gather_rows(mapped, ids)
        taken.append((time.perf_counter() - start) * 1e3)
        assert torch.equal(found[::97], rows_of(ids[::97])), "wrong rows"
        del found
        if reads is None:
            rank[in_cache(mapped) & ~cached] = 2 * number  # read ahead, unless used
            rank[pages_of(mapped, ids)] = 2 * number + 1
        cached = in_cache(mapped)
        keep = np.zeros_like(cached)
        keep[np.argsort(np.where(cached, -rank, 1), kind="stable")[: budget // mmap.PAGESIZE]] = True
        evict(file, mapped, keep)
        left = int(in_cache(mapped).sum()) * mmap.PAGESIZE
        assert left <= budget * 1.01, f"{left} bytes are still in the page cache, of {budget}"
    return median(taken[len(before) :])


def readahead_kib(file: Path) -> int | None:
    """How far the kernel reads ahead on the file's disk, if it says so."""
    device = os.stat(file).st_dev
    setting = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/bdi/read_ahead_kb")
    return int(setting.read_text()) if setting.is_file() else None


def sequential(file: Path, num_bytes: int) -> None:
    """Reads so many bytes of a file from its front."""
    with file.open("rb", buffering=0) as stream:
        left, buffer = num_bytes, memoryview(bytearray(1 << 22))
        while left > 0 and (found := stream.readinto(buffer[: min(left, len(buffer))])):
            left -= found


def over_disk(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Every candidate on the batches of an epoch."""
    nodes = GRAPHS[name][0]
    csc, _ = make_graph(name)
    graph = GraphStore.from_csc(csc)
    file = write(folder, nodes)
    seeds = torch.randperm(nodes, generator=torch.Generator().manual_seed(1))[: nodes // 100]
    saved = FeatureStore.open(folder, verify=False)
    loader = NeighborLoader((saved, graph), FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=1)
    batches = [out.node for out in loader.samples(MEASURED)][:rounds]
    exact = accesses(loader, [MEASURED])
    scores = {
        "weighted reverse PageRank": hotness.reverse_pagerank(csc, seeds),
        "presampled epoch": accesses(loader, [PRESAMPLED]),
        "exact": exact,
    }
    stores = {
        f"tiers, {score}": TieredFeatureStore.open(folder, values, host=SHARE, verify=False)
        for score, values in scores.items()
    }
    plain, random = (FeatureStore.open(folder, verify=False)[None, "x", None] for _ in range(2))
    advise(random, mmap.MADV_RANDOM)
    mapped = [plain, random, *(store._tensors[None, "x"].segments[-1] for store in stores.values())]
    page = mmap.PAGESIZE // (4 * FEATURES)
    candidates: dict[str, Callable[[Tensor], Any]] = {
        "plain map": partial(ops.gather_rows, plain),
        "plain map, MADV_RANDOM": partial(ops.gather_rows, random),
        **{key: lambda ids, store=store: store[None, "x", ids] for key, store in stores.items()},
        "as many bytes, read in sequence": lambda ids: sequential(
            file, len(torch.div(ids, page, rounding_mode="floor").unique()) * mmap.PAGESIZE
        ),
    }
    times: dict[str, dict[str, list[float]]] = {key: {"cold_ms": [], "warm_ms": []} for key in candidates}
    for ids in batches:
        for key, run in candidates.items():
            forget(file, mapped)
            for state in ("cold_ms", "warm_ms"):
                start = time.perf_counter()
                found = run(ids)
                times[key][state].append((time.perf_counter() - start) * 1e3)
                assert found is None or torch.equal(found[::97], rows_of(ids[::97])), f"{key}: wrong rows"
            del found
    results: dict[str, Any] = {
        "features_mib": nodes * FEATURES * 4 / 2**20, "rows_per_batch": sum(map(len, batches)) / len(batches),
        "batches": len(batches), "readahead_kib": readahead_kib(file), "candidates": {},
    }  # fmt: skip
    base = median(times["plain map"]["cold_ms"])
    cache = {
        "recent_pages_ms": None,
        "hottest_pages_ms": np.zeros(len(in_cache(plain)), dtype=np.int64),
    }
    for out in loader.samples(PRESAMPLED):
        cache["hottest_pages_ms"][pages_of(plain, out.node)] += 1
    before = [out.node for out in islice(loader.samples(MEASURED - 1), 3)]
    for key, values in times.items():
        entry: dict[str, float] = {state: median(taken) for state, taken in values.items()}
        ordered = sorted(values["cold_ms"])
        entry["cold_low_ms"], entry["cold_high_ms"] = ordered[len(ordered) // 4], ordered[len(ordered) * 3 // 4]
        entry["speedup"] = base / entry["cold_ms"]
        if key.startswith("plain map"):
            budget = int(SHARE * nodes * FEATURES * 4)
            for name, reads in cache.items():
                forget(file, mapped)
                entry[name] = with_cache(file, candidates[key].args[0], before, batches, budget, reads)
        if key in stores:
            entry["expected_hit_rate"] = stores[key].plan.tiers[0].hit_rate
            # every batch was gathered twice, so the share is the same
            entry["found_hit_rate"] = stores[key].stats()["host"].hit_rate
        results["candidates"][key] = entry
        print(f"  {key:36s} " + "  ".join(f"{k} {v:.3g}" for k, v in entry.items()), flush=True)
    for store in stores.values():
        store.close()
    return results


def main() -> None:
    options: argparse.ArgumentParser = parser(__doc__.splitlines()[0])
    options.add_argument("--folder", help="on the disk that is to be measured; by default the working directory")
    args = options.parse_args()
    results: dict[str, Any] = {"over_disk": {}}
    for name in args.graphs:
        folder = Path(tempfile.mkdtemp(prefix="gnnscale-", dir=args.folder or os.getcwd()))
        print(f"\nR-MAT {name}, {GRAPHS[name][0] * FEATURES * 4 / 2**20:.0f} MiB of features, a third in memory")
        try:
            results["over_disk"][name] = over_disk(name, folder / "features", args.rounds)
        finally:
            shutil.rmtree(folder)
    if not args.no_save:
        save("tiers", results)


if __name__ == "__main__":
    main()
