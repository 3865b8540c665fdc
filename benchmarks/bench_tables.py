"""A graph of tables, and beside it DuckDB's own joins and sorts of the same files.

    python benchmarks/bench_tables.py --edges 5000000 --rounds 2

Tables of one type of nodes (an id, a number) and one of edges (two ids, a time), with integer and with string ids.
DuckDB numbers the nodes by sorted ids, joins, sorts edges by (destination, time, source) and writes parquet. Each run
is a process of its own, in turns; its seconds, on the clock and of CPU time, are those of the call alone, its memory
that of the whole process, before the call and at most: VmHWM of /proc, which begins anew with a program, where
ru_maxrss begins at its parent's. Disk: what its files take, at most and at the end, looked at five times a second.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from common import judged, parser, save, say_aims
from pyarrow import parquet

from torch_gnnscale import tables

PIECE = 1 << 22
"""Edges that are made and written at a time."""
IDS = ["integer", "string"]
SCHEMA = {
    "nodes": {"n": {"files": "nodes.parquet", "key": "id", "columns": {"v": "number"}}},
    "edges": {
        "n.e.n": {"files": "edges*.parquet", "source": "s", "destination": "d", "time": {"column": "t", "unit": "s"}}
    },
}


def write(folder: Path, edges: int, strings: bool) -> None:
    """The tables of a graph with ten edges per node; sources are skewed."""
    random, nodes = np.random.default_rng(3), max(edges // 10, 1)
    ids = pa.array(random.permutation(nodes * 8)[:nodes])
    if strings:
        ids = pa.array(f"user-{value:x}" for value in ids.to_numpy())
    parquet.write_table(pa.table({"id": ids, "v": random.random(nodes)}), folder / "nodes.parquet")
    schema = pa.schema({"s": ids.type, "d": ids.type, "t": pa.int64()})
    for part in range(4):
        with parquet.ParquetWriter(folder / f"edges-{part}.parquet", schema) as file:
            for count in np.diff([*range(0, edges // 4, PIECE), edges // 4]):
                ends = (nodes * random.random(count) ** 2).astype(np.int64), random.integers(0, nodes, count)
                times = random.integers(0, 10**9, count)
                file.write_table(
                    pa.table({"s": ids.take(pa.array(ends[0])), "d": ids.take(pa.array(ends[1])), "t": times})
                )


def ours(folder: Path, out: Path, memory: str) -> None:
    """``gnnscale tables``."""
    tables.build(tables.Schema.parse(SCHEMA, folder), out, memory=memory, threads=2)


def theirs(folder: Path, out: Path, memory: str) -> None:
    """The same joins and sorts, without checks."""
    out.mkdir()
    with duckdb.connect(str(out / "work.duckdb")) as database:
        for sql in (
            f"SET memory_limit = '{memory}'", "SET threads = 2", "SET preserve_insertion_order = false",
            f"CREATE TABLE n AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS i, v FROM '{folder}/nodes.parquet'",
            f"CREATE TABLE e AS SELECT a.i AS src, b.i AS dst, t FROM '{folder}/edges*.parquet' AS e "
            f"LEFT JOIN n AS a ON e.s = a.id LEFT JOIN n AS b ON e.d = b.id",
            f"COPY (SELECT v FROM n ORDER BY i) TO '{out}/n.parquet'",
            f"COPY (SELECT dst, src, t FROM e ORDER BY dst, t, src) TO '{out}/e.parquet'",
        ):  # fmt: skip
            database.execute(sql)


WAYS: dict[str, Callable[[Path, Path, str], None]] = {"DuckDB": theirs, "gnnscale": ours}


def measured(call: Callable[[], object]) -> tuple[object, float, float, float, float]:
    """What a call returns, its seconds on the clock and of CPU time, and the memory of this process in MB, before and
    at most."""
    before, begun, start = resource.getrusage(resource.RUSAGE_SELF), peak(), time.perf_counter()
    found = call()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return found, seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, begun, peak()


def peak() -> float:
    """The most memory that this process has had since its program began, in MB."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


def disk(folder: Path) -> float:
    """What the files of a folder take on the disk, in MB."""
    taken = 0
    for there, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                taken += os.stat(Path(there) / file).st_blocks * 512
    return taken / 1e6


def run(command: list[str], folder: Path) -> dict[str, float]:
    """The figures of a program that prints them, and of the disk on which it writes into a folder."""
    most = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            most = max(most, disk(folder))
            time.sleep(0.2)
        assert process.stdout is not None
        figures = process.stdout.read().split()[-4:]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    found = dict(zip(("s", "cpu_s", "begun_mb", "peak_mb"), map(float, figures), strict=True))
    return found | {"disk_mb": max(most, disk(folder)), "written_mb": disk(folder)}


def main() -> None:
    """Compares, and prints ratios."""
    options = parser(__doc__, graphs=False)
    options.add_argument("--edges", type=int, default=5_000_000)
    options.add_argument("--memory", default="2GiB")
    options.add_argument("--ids", nargs="+", choices=IDS, default=IDS)
    options.add_argument("--run", nargs=3, metavar=("WAY", "FOLDER", "OUT"), help="one run, as this program starts it")
    args = options.parse_args()
    if args.run:
        way, folder, out = args.run[0], *map(Path, args.run[1:])
        print(*measured(lambda: WAYS[way](folder, out, args.memory))[1:])
        return
    for ids in args.ids:
        with tempfile.TemporaryDirectory() as there:
            write(folder := Path(there), args.edges, ids == "string")
            (made := folder / "made").mkdir()
            command = [sys.executable, __file__, "--memory", args.memory, "--run"]
            found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(args.rounds):
                for way in WAYS:
                    found[way].append(run([*command, way, str(folder), str(made / "out")], made))
                    shutil.rmtree(made / "out")
        results: dict[str, Any] = {"edges": args.edges, "memory": args.memory, "rounds": args.rounds}
        for way, runs in found.items():
            of = {
                name: (statistics.median if name in ("s", "cpu_s") else max)(one[name] for one in runs)
                for name in runs[0]
            }
            of |= {f"{name}_ratio": of[name] / results.get("DuckDB", of)[name] for name in ("s", "cpu_s")}
            print(
                f"{ids} ids, {way}: {of['s']:.2f} s ({of['s_ratio']:.2f}), {of['cpu_s']:.2f} s of CPU "
                f"({of['cpu_s_ratio']:.2f}); memory {of['peak_mb']:.0f} MB, of them {of['begun_mb']:.0f} before it "
                f"began; disk {of['disk_mb']:.0f} MB, at the end {of['written_mb']:.0f}",
                flush=True,
            )
            results[way] = of
        ours = results["gnnscale"]
        results["aims"] = {
            "CPU time beside DuckDB's": judged(ours["cpu_s_ratio"], most=1.5),
            "memory in MB": judged(ours["peak_mb"], most=4 * 1024**3 / 1e6),
        }
        say_aims(results["aims"])
        if not args.no_save:
            save(f"tables_{ids}", results)


if __name__ == "__main__":
    main()
