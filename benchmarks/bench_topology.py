"""Building a CSC from COO: time and memory beyond the input, against PyG's to_csc with pyg-lib, where installed.

    python benchmarks/bench_topology.py

Each candidate runs in a process of its own, which reports the growth of its peak resident memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
from common import GRAPHS, arguments, has, save
from torch_geometric.data import Data

from torch_gnnscale import CSC, ops
from torch_gnnscale.topology import rmat


def memory_gib(field: str) -> float:
    """A line of /proc/self/status: VmRSS is what is resident, VmHWM its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 2**20
    raise RuntimeError(f"no {field} in /proc/self/status")


def one(candidate: str, name: str) -> None:
    """Runs in the child: builds once and prints seconds and gibibytes."""
    torch.set_num_threads(2)
    num_nodes, num_edges = GRAPHS[name]
    edge_index = rmat(num_nodes, num_edges, seed=1)
    data = Data(edge_index=edge_index, num_nodes=num_nodes)
    warm = Data(edge_index=edge_index[:, :1000].clone(), num_nodes=num_nodes)
    if candidate == "gnnscale":
        build = CSC.from_data
    else:
        from torch_geometric.sampler.utils import to_csc as build
    build(warm)
    ops.pool_trim()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
    before = memory_gib("VmRSS")
    start = time.perf_counter()
    built = build(data)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "gib": memory_gib("VmHWM") - before}))
    if candidate == "gnnscale":  # the check, after the peak was read
        src = edge_index[0][built.edge_id.long()]
        assert torch.equal(src, built.row.long())
        assert torch.equal(edge_index[1][built.edge_id.long()], built.col())


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--one":
        one(sys.argv[2], sys.argv[3])
        return
    args = arguments(__doc__.splitlines()[0])
    results: dict = {}
    for name in args.graphs:
        print(f"\nR-MAT {name}")
        runs: dict[str, list[dict]] = {"gnnscale": []}
        if has("pyg_lib"):
            runs["PyG to_csc with pyg-lib"] = []
        for _ in range(max(3, args.rounds // 5)):
            for candidate, found in runs.items():
                command = [sys.executable, __file__, "--one", candidate.split()[0], name]
                found.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        results[name] = {
            candidate: {key: median(run[key] for run in found) for key in ("seconds", "gib")}
            for candidate, found in runs.items()
        }
        for candidate, entry in results[name].items():
            print(f"  {candidate:28s} {entry['seconds']:6.2f} s  {entry['gib']:5.2f} GiB beyond the input")
    if not args.no_save:
        save("topology", results)


if __name__ == "__main__":
    main()
