"""How memory is given to a process that takes more and more of it: a line of JSON for each step.

    python benchmarks/growth.py 48          # GiB, at most

A machine may have less memory at first than it grows to, and MemAvailable then says less than can be had. The memory is
touched by several threads, as stores fill theirs. It needs no torch, so that it begins at once, and is a program of its
own: the machine may end the process that asks for too much.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STEP = 2 << 30  # bytes
SECONDS = 15.0


def memory(root: Path = Path("/")) -> dict[str, float]:
    """GiB that the machine has, and says are available."""
    lines = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    return {f"{name}_gib": int(lines[name].split()[0]) / (1 << 20) for name in ("MemTotal", "MemAvailable")}


def touch(room: mmap.mmap, pool: ThreadPoolExecutor, threads: int) -> None:
    """Writes every byte."""
    address, part = ctypes.addressof(ctypes.c_char.from_buffer(room)), len(room) // threads
    list(pool.map(lambda number: ctypes.memset(address + number * part, 1, part), range(threads)))


def main() -> None:
    most, step = int(float(sys.argv[1]) * (1 << 30)), STEP
    threads, begin, kept = min(os.cpu_count() or 1, 16), time.perf_counter(), []
    print(json.dumps({"taken_gib": 0.0, "seconds": 0.0, **memory()}), flush=True)
    with ThreadPoolExecutor(threads) as pool:
        for taken in range(step, most + 1, step):
            since = time.perf_counter()
            kept.append(mmap.mmap(-1, step))
            touch(kept[-1], pool, threads)
            now = time.perf_counter()
            print(json.dumps({"taken_gib": taken / (1 << 30), "seconds": now - since, **memory()}), flush=True)
            if now - begin > SECONDS:
                break


if __name__ == "__main__":
    main()
