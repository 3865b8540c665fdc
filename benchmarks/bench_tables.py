"""A graph of tables, and beside it DuckDB's own joins and sorts of the same files.

    python benchmarks/bench_tables.py --edges 5000000 --rounds 2

Tables of one type of nodes (an id, a number) and one of edges (two ids, a time), with integer and with string ids.
DuckDB numbers the nodes by sorted ids, joins, sorts edges by (destination, time, source) and writes parquet. Each run
is a process of its own, in turns; its CPU time is that of the call alone, its memory that of the whole process, before
the call and at most: VmHWM of /proc, which begins anew with a program, where ru_maxrss begins at its parent's.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from common import parser, save
from pyarrow import parquet

from torch_gnnscale import tables

SCHEMA = {
    "nodes": {"n": {"files": "nodes.parquet", "key": "id", "columns": {"v": "number"}}},
    "edges": {
        "n.e.n": {"files": "edges*.parquet", "source": "s", "destination": "d", "time": {"column": "t", "unit": "s"}}
    },
}


def write(folder: Path, edges: int, strings: bool) -> None:
    """The tables of a graph with ten edges per node; sources are skewed."""
    random, nodes = np.random.default_rng(3), max(edges // 10, 1)
    ids = random.permutation(nodes * 8)[:nodes]

    def named(values: np.ndarray) -> pa.Array:
        return pa.array([f"user-{value:x}" for value in values.tolist()] if strings else values)

    parquet.write_table(pa.table({"id": named(ids), "v": random.random(nodes)}), folder / "nodes.parquet")
    for part in range(4):
        count = edges // 4
        ends = ids[(nodes * random.random(count) ** 2).astype(np.int64)], ids[random.integers(0, nodes, count)]
        table = pa.table({"s": named(ends[0]), "d": named(ends[1]), "t": random.integers(0, 10**9, count)})
        parquet.write_table(table, folder / f"edges-{part}.parquet")


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


def measured(call: Callable[[], object]) -> tuple[object, float, float, float]:
    """What a call returns, its CPU seconds, and the memory of this process in MB, before and at most."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF), peak()
    found = call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return found, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, begun, peak()


def peak() -> float:
    """The most memory that this process has had since its program began, in MB."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


def main() -> None:
    """Compares, and prints ratios."""
    options = parser(__doc__, graphs=False)
    options.add_argument("--edges", type=int, default=5_000_000)
    options.add_argument("--memory", default="2GiB")
    options.add_argument("--run", nargs=3, metavar=("WAY", "FOLDER", "OUT"), help="one run, as this program starts it")
    args = options.parse_args()
    if args.run:
        way, folder, out = args.run[0], *map(Path, args.run[1:])
        print(*measured(lambda: WAYS[way](folder, out, args.memory))[1:])
        return
    results = {}
    for ids in ("integer", "string"):
        with tempfile.TemporaryDirectory() as there:
            folder, out = Path(there), Path(there) / "out"
            write(folder, args.edges, ids == "string")
            found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
            for _ in range(args.rounds):
                for way in WAYS:
                    command = [sys.executable, __file__, "--memory", args.memory, "--run", way, str(folder), str(out)]
                    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                    found[way].append(tuple(map(float, said.split()[-3:])))  # type: ignore[arg-type]
                    shutil.rmtree(out)
        for way, runs in found.items():
            seconds, begun, most = zip(*runs, strict=True)
            ratio = statistics.median(seconds) / statistics.median(cpu for cpu, *_ in found["DuckDB"])
            print(
                f"{ids} ids, {way}: {statistics.median(seconds):.2f} s of CPU ({ratio:.2f}), {max(most):.0f} MB, "
                f"of them {max(begun):.0f} before it began"
            )
            results[f"{ids} ids, {way}"] = {
                "cpu_s": seconds, "peak_mb": max(most), "begun_mb": max(begun), "ratio": ratio,
            }  # fmt: skip
    if not args.no_save:
        save("tables", {"edges": args.edges, "memory": args.memory, **results})


if __name__ == "__main__":
    main()
