"""Inference on all nodes: `infer` beside PyG's BasicGNN.inference, and beside a loop over batches of all neighbors.

    python benchmarks/bench_infer.py

GraphSAGE and GAT of three layers on an R-MAT graph, one thread, CPU times of interleaved rounds; the outputs are
compared first. PyG's method reads this package's loader with [-1], and, where torch-sparse or pyg-lib is installed,
PyG's own. Of the loop over batches of [-1, -1, -1], a few batches are timed, as plain models and as narrowed ones, and
multiplied by their number.

Then a process whose own memory is limited (RLIMIT_DATA, above what its imports and the opened stores take) computes
rows of more than four times that limit into a folder; PyG's method runs in a process without a limit, for its time, and
in one with it.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch_geometric.loader
import torch_geometric.nn as pyg_nn
from common import compare, data_of, judged, parser, report, save, say_aims
from torch import nn
from torch_geometric.data import Data
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale.infer import infer
from torch_gnnscale.nn import narrow

MODELS = {"GraphSAGE": pyg_nn.GraphSAGE, "GAT": partial(pyg_nn.GAT, heads=4)}
LAYERS, CLASSES = 3, 16
INFER, FOLDER, PYG = "infer", "infer, into a folder", "PyG's inference, our loader"
OWN, LOOP, NARROWED = "PyG's inference, PyG's loader", "loop of [-1]-batches", "loop of [-1]-batches, narrowed"
LIMITED = ("infer", "pyg", "pyg limited")


def model_of(name: str, width: int) -> nn.Module:
    """The model, in evaluation mode."""
    torch.manual_seed(0)
    return MODELS[name](width, width, LAYERS, CLASSES).eval()


@torch.no_grad()
def loop(model: Callable[[Any], torch.Tensor], loader: NeighborLoader, batches: int) -> torch.Tensor:
    """The rows of the first batches' seeds."""
    rows = []
    for number, batch in enumerate(loader):
        rows.append(model(batch)[: batch.batch_size])
        if number + 1 == batches:
            break
    return torch.cat(rows)


def measure(name: str, data: Data, size: int, rounds: int, looped: int, folder: Path) -> dict[str, Any]:
    """CPU times of all ways for one model."""
    model = model_of(name, data.num_features)
    ours = NeighborLoader(data, [-1], batch_size=size)
    deep = NeighborLoader(data, [-1] * LAYERS, batch_size=size, prefetch=0)
    narrowed, inference = narrow(model, check=False), torch.no_grad()(model.inference)

    def to_folder(_: int) -> torch.Tensor:
        shutil.rmtree(folder / "rows", ignore_errors=True)
        return infer(model, data, out=folder / "rows", batch_size=size)

    ways = {INFER: lambda _: infer(model, data, batch_size=size), FOLDER: to_folder, PYG: lambda _: inference(ours)}
    if WITH_PYG_LIB or WITH_TORCH_SPARSE:
        theirs = torch_geometric.loader.NeighborLoader(data, [-1], batch_size=size)
        ways[OWN] = lambda _: inference(theirs)
    whole = model(data.x, data.edge_index).detach()
    for way, run in ways.items():
        torch.testing.assert_close(run(0), whole, rtol=1e-3, atol=1e-4, msg=lambda text, way=way: f"{way}: {text}")
    found = compare(ways, rounds, cpu=True, clock=time.process_time)
    first = min(looped * size, data.num_nodes)
    loops = {
        LOOP: lambda _: loop(lambda batch: model(batch.x, batch.edge_index), deep, looped),
        NARROWED: lambda _: loop(narrowed, deep, looped),
    }
    for way, run in loops.items():
        begin = time.process_time()
        torch.testing.assert_close(run(0), whole[:first], rtol=1e-3, atol=1e-4)
        ms = (time.process_time() - begin) * 1e3 * data.num_nodes / first
        found[way] = {"median_ms": ms, "low_ms": ms, "high_ms": ms, "batches": looped}
    report(f"{name}, {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_features} wide", found, PYG)
    for entry in found.values():
        entry["over_pyg"] = entry["median_ms"] / found[PYG]["median_ms"]
    return found


def is_of_memory(error: Exception) -> bool:
    """Whether an error says that there is too little memory: for data, or for the stack of a thread, of which Python
    and the system say only that the thread does not start."""
    text = str(error).lower()
    of_threads = "can't start new thread", "resource temporarily unavailable", "thread creation failed"
    return isinstance(error, MemoryError) or any(part in text for part in ("memory", *of_threads))


def limited(way: str, folder: Path, limit: int, size: int) -> dict[str, Any]:
    """In a process of its own: seconds of CPU time, and whether there was enough memory."""
    features, graph = FeatureStore.open(folder / "features", verify=False), GraphStore.open(folder / "graph", False)
    width = features.get_tensor_size(group_name=None, attr_name="x")[1]
    model = model_of("GraphSAGE", width)
    data = None
    if way != "infer":  # PyG's method wants a Data
        data = Data(x=features.get_tensor(group_name=None, attr_name="x", index=None))
        data.edge_index = torch.stack(graph.get_edge_index(edge_type=None, layout="coo"))
    infer(model, (features, graph), nodes=[0])  # what is loaded on first use
    if way != "pyg":
        status = Path("/proc/self/status").read_text()
        now = int(status.split("VmData:")[1].split()[0]) * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (now + limit, now + limit))
    begin, ok = time.process_time(), True
    try:
        if way == "infer":
            memory = limit // 8
            infer(model, (features, graph), out=folder / "rows", batch_size=size, memory=memory)
        else:
            with torch.no_grad():
                model.inference(NeighborLoader(data, [-1], batch_size=size))
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error):
            raise
        ok = False
    return {"cpu": time.process_time() - begin, "enough": ok}


def measure_limited(data: Data, limit: int, size: int, folder: Path) -> dict[str, Any]:
    """Rows of more than four times a process's memory."""
    FeatureStore.from_data(data).save(folder / "features")
    GraphStore.from_data(data).save(folder / "graph")
    found: dict[str, Any] = {}
    for way in LIMITED:
        command = [sys.executable, __file__, "--limited", way, str(folder), str(limit), str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[way] = json.loads(done.stdout.splitlines()[-1])
    rows = data.num_nodes * data.num_features * 4
    between = (LAYERS - 1) * rows  # of the two files, both are there in the second stage
    return {**found, "limit_mib": limit >> 20, "rows_mib": between >> 20, "over": between / limit}


def main() -> None:
    """Measures and saves."""
    if "--limited" in sys.argv:
        way, folder, limit, size = sys.argv[2:]
        torch.set_num_threads(1)
        print(json.dumps(limited(way, Path(folder), int(limit), int(size))))
        return
    options = parser(__doc__ or "")
    options.set_defaults(graphs=["200k-3M"], rounds=3)
    options.add_argument("--width", type=int, default=64, help="of features and layers")
    options.add_argument("--batch-size", type=int, default=4096)
    options.add_argument("--looped", type=int, default=1, help="batches of the loop that are timed")
    options.add_argument("--limit", type=int, default=96, help="MiB of the limited process; 0: leave it out")
    options.add_argument("--limited-width", type=int, default=256)
    args = options.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name in args.graphs:
        data, entry = data_of(name, args.width), {}
        with tempfile.TemporaryDirectory() as folder:
            for model in MODELS:
                entry[model] = measure(model, data, args.batch_size, args.rounds, args.looped, Path(folder))
        if args.limit:
            with tempfile.TemporaryDirectory() as folder:
                wide = data_of(name, args.limited_width)
                entry["limited"] = measure_limited(wide, args.limit << 20, args.batch_size, Path(folder))
                print(entry["limited"])
        aims = {
            f"{name}, {model}, {way} over PyG's": judged(entry[model][way]["over_pyg"], most=1.1)
            for model in MODELS
            for way in (INFER, FOLDER)
        }
        if args.limit:
            found = entry["limited"]
            over = found["infer"]["cpu"] / found["pyg"]["cpu"]
            aims[f"{name}, with limited memory over PyG's without a limit"] = judged(over, most=1.1)
        say_aims(aims)
        results[name] = {**entry, "aims": aims}
    if not args.no_save:
        save("infer", results)


if __name__ == "__main__":
    main()
