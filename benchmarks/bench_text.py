"""Edges in text: how they are read, and sorted into a graph, beside DuckDB's own reader and sort.

    python benchmarks/bench_text.py --edges 10000000 --rounds 5

One file of two columns of integer ids, with a header and commas, or with spaces and without. ``read``: all ids, in
chunks, whose sum is compared. ``sort``: what ``gnnscale convert`` writes, without ids of edges, and DuckDB's parquet
sorted by (destination, line). Each run is a process of its own, in turns; CPU time is that of the call, memory that of
the process: VmHWM.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import torch
from bench_tables import measured
from common import parser, save
from pyarrow import csv

from torch_gnnscale.topology import EdgeFiles, build_on_disk

FORMATS = {"commas, header": (",", True, ".csv"), "spaces": (" ", False, ".txt")}
COLUMNS = "columns = {'src': 'BIGINT', 'dst': 'BIGINT'}, auto_detect = false"


def write(file: Path, edges: int, delimiter: str, header: bool) -> None:
    """The edges of a graph with ten edges per node."""
    random = np.random.default_rng(3)
    ends = {name: random.integers(0, max(edges // 10, 1), edges) for name in ("src", "dst")}
    csv.write_csv(pa.table(ends), file, csv.WriteOptions(include_header=header, delimiter=delimiter))


def reader(file: Path, order: bool) -> str:
    """DuckDB's query of a file's edges; ``order``: with numbers of lines."""
    text = next((delimiter, header) for delimiter, header, suffix in FORMATS.values() if suffix == file.suffix)
    how = f"read_csv('{file}', {COLUMNS}, delim = '{text[0]}', header = {str(text[1]).lower()})"
    return f"SELECT {'row_number() OVER () AS line, ' if order else ''}src, dst FROM {how}"


def connected() -> duckdb.DuckDBPyConnection:
    """DuckDB with two threads."""
    database = duckdb.connect()
    database.execute("SET threads = 2")
    database.execute("SET memory_limit = '2GiB'")
    return database


def read_ours(file: Path, out: Path) -> int:
    """The sum of all ids."""
    return sum(int(chunk.sum()) for chunk in EdgeFiles([file]).chunks())


def read_theirs(file: Path, out: Path) -> int:
    """The sum of all ids, which come as int64 arrays."""
    batches = connected().sql(reader(file, False)).to_arrow_reader(1 << 22)
    return sum(int(torch.from_numpy(column.to_numpy()).sum()) for batch in batches for column in batch.columns)


def sort_ours(file: Path, out: Path) -> int:
    """What ``gnnscale convert`` does."""
    edges = EdgeFiles([file])
    nodes = edges.num_nodes()
    build_on_disk(out, edges.chunks(), nodes, edge_ids=False, memory=2 << 30)
    return nodes


def sort_theirs(file: Path, out: Path) -> int:
    """A table of parquet."""
    out.mkdir()
    database = connected()
    database.execute(f"SET temp_directory = '{out}'")
    database.execute(f"COPY (SELECT dst, src FROM ({reader(file, True)}) ORDER BY dst, line) TO '{out}/e.parquet'")
    ((most,),) = database.sql(f"SELECT max(greatest(src, dst)) FROM '{out}/e.parquet'").fetchall()
    return most + 1


WAYS: dict[str, dict[str, Callable[[Path, Path], int]]] = {
    "read": {"DuckDB": read_theirs, "gnnscale": read_ours}, "sort": {"DuckDB": sort_theirs, "gnnscale": sort_ours},
}  # fmt: skip


def main() -> None:
    """Compares, and prints ratios."""
    options = parser(__doc__, graphs=False)
    options.add_argument("--edges", type=int, default=10_000_000)
    options.add_argument("--run", nargs=4, metavar=("STEP", "WAY", "FILE", "OUT"), help="one run, as this program does")
    args = options.parse_args()
    if args.run:
        step, way, file, out = args.run
        found, *figures = measured(lambda: WAYS[step][way](Path(file), Path(out)))
        print(found, *figures)
        return
    results = {}
    for text, (delimiter, header, suffix) in FORMATS.items():
        with tempfile.TemporaryDirectory() as there:
            file = Path(there) / f"edges{suffix}"
            write(file, args.edges, delimiter, header)
            for step, ways in WAYS.items():
                runs: dict[str, list[list[float]]] = {way: [] for way in ways}
                for _ in range(args.rounds):
                    for way in ways:
                        with tempfile.TemporaryDirectory() as out:
                            command = [sys.executable, __file__, "--run", step, way, str(file), f"{out}/out"]
                            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                        runs[way].append([float(figure) for figure in said.split()[-5:]])
                assert len({sums for of in runs.values() for sums, *_ in of}) == 1, runs
                for way, of in runs.items():
                    _, _, seconds, begun, most = zip(*of, strict=True)
                    ratio = statistics.median(seconds) / statistics.median(run[2] for run in runs["DuckDB"])
                    print(
                        f"{text}, {step}, {way}: {statistics.median(seconds):.2f} s of CPU ({ratio:.2f}), "
                        f"{max(most):.0f} MB, of them {max(begun):.0f} before it began",
                        flush=True,
                    )
                    results[f"{text}, {step}, {way}"] = {"cpu_s": seconds, "peak_mb": max(most), "ratio": ratio}
    if not args.no_save:
        save("text", {"edges": args.edges, **results})


if __name__ == "__main__":
    main()
