"""A rank that torchrun starts: trains on split batches, its rows in memory that the ranks share.

    torchrun ... tests/helpers/torchrun_rank.py PLAN DEVICE OUT

PLAN as of :func:`helpers.split_training.saved_plan`. On a GPU, that of the rank has its own hottest rows and a part of
the graph; it reads the other rows and edges in pinned host memory, and the rows of the other ranks in their memory.
OUT/RANK.pt gets the weights at first and after each epoch, the rows read from each tier, and the parts of the graph.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from helpers.split_training import graph, loader_over, trained_by
from torch import distributed as dist

from torch_gnnscale import FeatureStore, GraphStore, split

EPOCHS = 2


def main(plan: str, device: str, out: str) -> None:
    """See the module."""
    folder, opened, on_gpu = Path(plan).parent, split.Plan.open(plan), device != "cpu"
    options: dict[str, Any] = {"graph_on_gpu": "40%", "graph_on_peers": ["20%"]} if on_gpu else {}
    features = FeatureStore.open(folder / "features")
    with opened.store(features, names=["x", "y"], device=device, **({"gpu": "30%"} if on_gpu else {})) as store:
        loader = loader_over(
            (store, GraphStore.open(folder / "graph")), graph().train_mask, opened, {**options, "device": device}
        )
        weights = trained_by(loader, EPOCHS, 1, "batch_norm", "auto")
        read = {name: use.rows for name, use in store.stats().items()}
        sampler: Any = loader._sharing.sampler.sampler  # type: ignore[union-attr]
        edges = sampler.executor.cscs[0].tiers if on_gpu else {}
        torch.save((weights, read, edges), Path(out) / f"{os.environ['RANK']}.pt")
        dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    main(*sys.argv[1:])
    dist.barrier()
    dist.destroy_process_group()
