"""Narrowed steps on trees in time, which repeat nodes: with linear encoders of all rows, and of the rows of distinct
nodes where that takes less time (torch_gnnscale/nn/distinct.py), or always. Links of the dataset wikipedia_temporal,
strategy "last", one thread, in CPU time.

The ways take turns within a round; their outputs are compared. The fetch of a type's rows is measured, too: of all
rows, and of distinct ones, which are then gathered.

    GNNSCALE_DATA=../shared/data python benchmarks/bench_trees.py
"""

import itertools
import math
import os
import statistics
import time
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from common import parser, save
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from tqdm import tqdm

from torch_gnnscale import LinkNeighborLoader
from torch_gnnscale.datasets import load_events
from torch_gnnscale.nn import distinct, narrow

SHAPES = ((64, 64, [10]), (256, 64, [10, 10]), (768, 64, [20, 10]), (256, 256, [10, 10]))
"""(features, hidden, fanouts)."""
WAYS = {"all": math.inf, "chosen": distinct.OF_NUMBER, "distinct": 0}
"""The constant by which distinct rows are chosen."""


class Model(nn.Module):
    """A linear encoder for each type, and layers of SAGEConv by relation."""

    def __init__(self, data: HeteroData, features: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.encode = nn.ModuleDict({t: nn.Linear(features, hidden) for t in data.node_types})
        self.convs = nn.ModuleList(
            pyg_nn.HeteroConv({e: pyg_nn.SAGEConv((hidden, hidden), hidden) for e in data.edge_types})
            for _ in range(layers)
        )

    def forward(self, batch: HeteroData) -> dict[str, Tensor]:
        """By type, rows of the nodes that are left."""
        x = {t: encode(batch[t].x) for t, encode in self.encode.items()}
        for conv in self.convs:
            x = {t: rows.relu() for t, rows in conv(x, batch.edge_index_dict).items()}
        return x


def batches(
    name: str, features: int, fanouts: list[int], shuffle: bool, seeds: int, count: int
) -> tuple[HeteroData, list[HeteroData]]:
    """The graph, with random features, and batches of its later training events."""
    task = load_events(name, os.environ.get("GNNSCALE_DATA", "../shared/data"))
    data = task.data.clone()
    events = task.events["train"]
    events = events[torch.randperm(len(events)) if shuffle else slice(-seeds * count, None)][: seeds * count]
    for node_type in data.node_types:
        data[node_type].x = torch.randn(data[node_type].num_nodes, features)
    store = data[task.edge_type]
    loader = LinkNeighborLoader(
        data, fanouts, edge_label_index=(task.edge_type, store.edge_index[:, events]),
        edge_label_time=store.time[events] - 1, time_attr="time", temporal_strategy="last",
        neg_sampling="triplet", batch_size=seeds, seed=0,
    )  # fmt: skip
    return data, list(loader)


def measure(name: str, shape: tuple[int, int, list[int]], shuffle: bool, seeds: int, rounds: int) -> dict[str, Any]:
    """Milliseconds per step and per fetch of the rows of a type, and nodes over distinct nodes."""
    features, hidden, fanouts = shape
    torch.manual_seed(0)
    data, found = batches(name, features, fanouts, shuffle, seeds, 5)
    model = Model(data, features, hidden, len(fanouts))
    narrowed = narrow(model, lambda model, batch: model(batch), check=False)
    times: dict[str, list[float]] = {way: [] for way in (*WAYS, "fetch of all", "fetch of distinct")}
    expected = [narrowed(batch) for batch in found]
    table = data["user"].x
    for turn in range(rounds):
        for batch, outputs in zip(found, expected, strict=True):
            for way in [*WAYS][turn % 3 :] + [*WAYS][: turn % 3]:
                distinct.OF_NUMBER = WAYS[way]
                start = time.process_time()
                out = narrowed(batch)
                torch.stack([rows.square().mean() for rows in out.values()]).sum().backward()
                times[way].append(1e3 * (time.process_time() - start))
                for node_type, rows in outputs.items():
                    torch.testing.assert_close(out[node_type], rows, rtol=1e-4, atol=1e-5)
            ids, place = torch.unique(batch["user"].n_id, return_inverse=True)
            start = time.process_time()
            table.index_select(0, batch["user"].n_id)
            times["fetch of all"].append(1e3 * (time.process_time() - start))
            start = time.process_time()
            table.index_select(0, ids).index_select(0, place)
            times["fetch of distinct"].append(1e3 * (time.process_time() - start))
    nodes = sum(batch.num_nodes for batch in found)
    repeated = nodes / sum(len(batch[t].n_id.unique()) for batch in found for t in batch.node_types)
    medians = {f"{way} ms": statistics.median(values) for way, values in times.items()}
    return {
        "features": features, "hidden": hidden, "fanouts": fanouts, "nodes": nodes // len(found),
        "order": "shuffled" if shuffle else "by time", "nodes over distinct": repeated, **medians,
        "all over chosen": medians["all ms"] / medians["chosen ms"],
        "all over distinct": medians["all ms"] / medians["distinct ms"],
    }  # fmt: skip


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False, rounds=False)
    options.add_argument("--rounds", type=int, default=9, help="interleaved rounds of all ways")
    options.add_argument("--graph", choices=("wikipedia_temporal", "planted"), default="wikipedia_temporal")
    options.add_argument("--seeds", type=int, default=200, help="links per batch")
    args = options.parse_args()
    torch.set_num_threads(1)
    found = []
    for shape, shuffle in tqdm([*itertools.product(SHAPES, (True, False))], "shapes"):
        found.append(measure(args.graph, shape, shuffle, args.seeds, args.rounds))
        tqdm.write("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in found[-1].items()))
    if not args.no_save:
        save("trees", {"cases": found})


if __name__ == "__main__":
    main()
