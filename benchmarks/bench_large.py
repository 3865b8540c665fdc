"""A graph of more than 2^31 edges, from nothing to training, on disk and memory-mapped.

    python benchmarks/bench_large.py --folder DIR

DIR holds 28 GB while the graph is built and 10 GB afterwards; all of it is deleted in the end. Builds an R-MAT graph
with build_on_disk and features for it, each stage in a process of its own whose peak memory is reported; checks some
columns of the graph against the generator; then loads batches of 1024 x (15, 10, 5), with the files out of the page
cache at first and in it afterwards, and trains on them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from common import save
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
from tqdm import tqdm

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, files, ops
from torch_gnnscale.feature.feature_store import KIND
from torch_gnnscale.nn import narrow
from torch_gnnscale.topology import build_on_disk, rmat_chunks

FEATURES, CLASSES, BATCHES = 8, 16, 60


def rows_of(ids: torch.Tensor) -> torch.Tensor:
    """Feature rows as a function of node ids."""
    return (ids.unsqueeze(1) * torch.arange(1, FEATURES + 1) % 251).to(torch.float16) / 251


def build(folder: Path, nodes: int, edges: int) -> dict[str, float]:
    start = time.perf_counter()
    build_on_disk(folder / "graph", rmat_chunks(nodes, edges, seed=1), nodes, edge_ids=False, num_edges=edges,
                  progress=True)  # fmt: skip
    seconds = time.perf_counter() - start
    with files.creating(folder / "features") as features:
        with files.ArrayWriter(features / "0.npy", torch.float16, (nodes, FEATURES)) as writer:
            for ids in torch.arange(nodes).split(1 << 20):
                writer.append(rows_of(ids))
        files.finish(features, KIND, {"0": writer.entry}, {"tensors": [{"group": None, "name": "x"}]})
    return {"seconds": seconds, "edges_per_s": edges / seconds}


def check(folder: Path, nodes: int, edges: int) -> dict[str, float]:
    """Checks that the columns of some nodes hold the edges that the generator gives them, in its order."""
    csc = GraphStore.open(folder / "graph", verify=False).relation()
    ops.check_colptr(csc.colptr, edges)
    some = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))[:1000].sort().values
    wanted = torch.zeros(nodes, dtype=torch.bool)
    wanted[some] = True
    found = []
    for chunk in tqdm(rmat_chunks(nodes, edges, seed=1), "checked", edges >> 22):
        found.append(chunk[:, wanted[chunk[1]]])
    expected = torch.cat(found, 1)
    expected = expected[:, expected[1].argsort(stable=True)]
    stored = torch.cat([csc.row[csc.colptr[node] : csc.colptr[node + 1]] for node in some])
    assert torch.equal(stored.long(), expected[0]), "the graph on disk is not the generator's"
    return {"edges_compared": len(stored)}


def forget(folder: Path) -> None:
    """Takes the files out of the page cache."""
    for file in folder.rglob("*.npy"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def load(folder: Path, nodes: int, edges: int) -> dict[str, float]:
    forget(folder)
    stores = FeatureStore.open(folder / "features", verify=False), GraphStore.open(folder / "graph", verify=False)
    seeds = torch.randperm(nodes, generator=torch.Generator().manual_seed(1))[: 1024 * BATCHES]
    loader = NeighborLoader(stores, [15, 10, 5], seeds, batch_size=1024, seed=0)
    result: dict[str, float] = {}
    largest = 0
    for name in ("cold", "warm"):
        loader.set_epoch(0)
        start = time.perf_counter()
        for batch in tqdm(loader, name):
            assert torch.equal(batch.x, rows_of(batch.n_id))
            largest = max(largest, sum(v.nbytes for v in batch.to_dict().values() if isinstance(v, torch.Tensor)))
        result[f"{name}_ms_per_batch"] = (time.perf_counter() - start) / BATCHES * 1e3
    result["batch_mb"] = largest / 1e6
    return result


def train(folder: Path, nodes: int, edges: int) -> dict[str, float]:
    stores = FeatureStore.open(folder / "features", verify=False), GraphStore.open(folder / "graph", verify=False)
    seeds = torch.randperm(nodes, generator=torch.Generator().manual_seed(1))[: 1024 * BATCHES]
    loader = NeighborLoader(stores, [15, 10, 5], seeds, batch_size=1024, seed=0)

    def call(model: nn.Module, batch: Data) -> torch.Tensor:
        return model(batch.x.float(), batch.edge_index)

    model = narrow(GraphSAGE(FEATURES, 64, 3, CLASSES), call)
    optimizer = torch.optim.Adam(model.parameters())
    start, losses = time.perf_counter(), []
    for batch in tqdm(loader, "trained"):
        optimizer.zero_grad()
        target = batch.n_id[: batch.batch_size] * 7 % 251 % CLASSES  # something that features tell
        loss = nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0], "nothing was learned"
    return {"ms_per_step": (time.perf_counter() - start) / len(losses) * 1e3, "loss": losses[-1]}


STAGES = {"build": build, "check": check, "load": load, "train": train}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where; a temporary folder by default")
    parser.add_argument("--nodes", type=int, default=50_000_000)
    parser.add_argument("--edges", type=int, default=(1 << 31) + 50_000_000)
    parser.add_argument("--no-save", action="store_true")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        result = STAGES[args.stage](Path(args.folder), args.nodes, args.edges)
        result["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps(result))
        return
    folder = Path(tempfile.mkdtemp(prefix="gnnscale-", dir=args.folder))
    results: dict = {"nodes": args.nodes, "edges": args.edges}
    try:
        for stage in STAGES:
            command = [sys.executable, __file__, "--stage", stage, "--folder", str(folder)]
            command += ["--nodes", str(args.nodes), "--edges", str(args.edges)]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            results[stage] = json.loads(run.stdout.splitlines()[-1])
            print(stage, {key: round(value, 3) for key, value in results[stage].items()}, flush=True)
        results["files_gib"] = sum(file.stat().st_size for file in folder.rglob("*.npy")) / 2**30
        print("files", round(results["files_gib"], 2), "GiB")
    finally:
        shutil.rmtree(folder)
    if not args.no_save:
        save("large", results)


if __name__ == "__main__":
    main()
