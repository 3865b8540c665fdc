"""Complete batches (Data objects, 128 floats per node) of 1024 x (15, 10, 5): this loader against PyG's with pyg-lib; a
part of bench_training.py.

Both loaders are measured at several settings; of PyG's the best one counts. Without ``prefetch`` the first epochs
choose it, before times are taken; ``num_workers`` means threads here, and processes in PyG. Nothing consumes the
batches, so the figure is the loader's throughput. The aim: ``num_workers=2``, which users of PyG's loader pass along,
has 0.9 of the default's speed or more.
"""

from __future__ import annotations

import warnings
from collections import deque

import torch
import torch_geometric.loader
from common import compare, data_of, has, judged, report, say_aims

from torch_gnnscale import NeighborLoader, ops

FANOUTS = [15, 10, 5]
BATCH = 1024
FEATURES = 128
BATCHES = 12  # per round


def check(loader, data) -> None:
    """Checks that rows are those of their nodes, and edges those of the graph."""
    batch = next(iter(loader))
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def title(library: str, setting: dict) -> str:
    return ", ".join([library, *(f"{name}={value}" for name, value in setting.items())])


def drain(loader):
    return lambda _: deque(loader, maxlen=0)


def measure_batches(graphs: list[str], rounds: int) -> dict:
    """Both loaders at several settings, on R-MAT graphs."""
    warnings.simplefilter("ignore", UserWarning)
    torch.set_num_threads(2)
    results = {}
    for of in graphs:
        data = data_of(of, FEATURES)
        seeds = torch.randperm(data.num_nodes)[: BATCH * BATCHES]
        options = {"num_neighbors": FANOUTS, "input_nodes": seeds, "batch_size": BATCH, "shuffle": True}
        settings = [{}, {"num_workers": 2}, *({"prefetch": p} for p in (0, 2, 4))]
        loaders = {
            title("gnnscale", setting): NeighborLoader(data, seed=1, **setting, **options) for setting in settings
        }
        for loader in loaders.values():
            check(loader, data)
            while loader.prefetch is None and loader._execution.trial.choice is None:
                drain(loader)(None)
        if has("pyg_lib"):
            settings = [{"num_workers": 0}]
            settings += [{"num_workers": n, "filter_per_worker": f} for n in (1, 2) for f in (False, True)]
            first = torch_geometric.loader.NeighborLoader(data, **options)
            check(first, data)
            for setting in settings:
                loaders[title("PyG", setting)] = torch_geometric.loader.NeighborLoader(
                    data, neighbor_sampler=first.node_sampler, persistent_workers=setting["num_workers"] > 0,
                    **setting, **options,
                )  # fmt: skip
        times = compare({name: drain(loader) for name, loader in loaders.items()}, max(3, rounds // 3), BATCHES)
        peers = [name for name in times if name.startswith("PyG")]
        best = min(peers, key=lambda name: times[name]["median_ms"]) if peers else None
        report(f"R-MAT {of}, time per batch", times, best)
        kept = times["gnnscale"]["median_ms"] / times["gnnscale, num_workers=2"]["median_ms"]
        say_aims({"num_workers=2, of the default's speed": judged(kept, least=0.9)})
        results[of] = {"peer": best, "workers_of_default": kept, **times}
        del data, loaders
        ops.pool_trim()
    return results
