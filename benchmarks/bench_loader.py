"""Complete batches (Data objects, 128 floats a node) of 1024 x (15, 10, 5): this loader against PyG's with pyg-lib.

    python benchmarks/bench_loader.py

PyG's loader is measured at each of several settings; the best one counts. Nothing consumes the batches, so the figure
is the loader's throughput.
"""

from __future__ import annotations

import itertools
import warnings

import torch
import torch_geometric.loader
from common import arguments, compare, data_of, has, report, save

from torch_gnnscale import NeighborLoader, ops

FANOUTS = [15, 10, 5]
BATCH = 1024
FEATURES = 128
BATCHES = 12  # a round


def check(loader, data) -> None:
    """Rows are those of their nodes, and edges those of the graph."""
    batch = next(iter(loader))
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def drain(loader):
    return lambda _: sum(1 for _ in itertools.islice(loader, BATCHES))


def main() -> None:
    args = arguments(__doc__.splitlines()[0])
    torch.set_num_threads(2)
    results = {}
    for name in args.graphs:
        data = data_of(name, FEATURES)
        seeds = torch.randperm(data.num_nodes)[: BATCH * BATCHES]
        options = {"num_neighbors": FANOUTS, "input_nodes": seeds, "batch_size": BATCH, "shuffle": True}
        loaders = {f"gnnscale, prefetch={p}": NeighborLoader(data, seed=1, prefetch=p, **options) for p in (0, 2, 4)}
        for loader in loaders.values():
            check(loader, data)
        if has("pyg_lib"):
            settings = [{"num_workers": 0}]
            settings += [{"num_workers": n, "filter_per_worker": f} for n in (1, 2) for f in (False, True)]
            first = torch_geometric.loader.NeighborLoader(data, **options)
            check(first, data)
            for setting in settings:
                title = ", ".join(f"{key}={value}" for key, value in setting.items())
                loaders[f"PyG, {title}"] = torch_geometric.loader.NeighborLoader(
                    data, neighbor_sampler=first.node_sampler, persistent_workers=setting["num_workers"] > 0,
                    **setting, **options,
                )  # fmt: skip
        rounds = max(3, args.rounds // 3)
        times = compare({title: drain(loader) for title, loader in loaders.items()}, rounds, BATCHES)
        peers = [title for title in times if title.startswith("PyG")]
        best = min(peers, key=lambda title: times[title]["median_ms"]) if peers else None
        report(f"R-MAT {name}, time a batch", times, best)
        results[name] = {"peer": best, **times}
        del data, loaders
        ops.pool_trim()
    if not args.no_save:
        save("loader", results)


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    main()
