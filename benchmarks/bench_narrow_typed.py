"""Narrowed models of typed graphs, beside PyG's on the whole batch and with ``trim_to_layer``: one thread, forward and
backward.

The candidates take turns within a round, and their times are CPU times. Their outputs are compared first. The limit is
what the narrowed step computes by matrix products, aggregations, activations and sums over rows (gradients of biases):
these operators with their inputs, recorded once and run again by themselves, without what PyTorch and Python do between
them.

    python benchmarks/bench_narrow_typed.py

The aims: HeteroConv and to_hetero of SAGEConv at least 6 times as fast as trim_to_layer with two hops, 3.5 times with
three, and 10 times as fast as the whole batch; GATConv, HGTConv and HANConv at least 2 times as fast as trim_to_layer;
no batch of one seed slower than 1 / 0.95 of the whole batch. HANConv gets the first relation into each type alone: the
weights of several are means over all nodes of the type, which neither narrow nor trim_to_layer computes.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from common import judged, parser, save, say_aims
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import HeteroData
from torch_geometric.nn import to_hetero
from torch_geometric.utils import trim_to_layer
from tqdm import tqdm
from typed_graphs import knowledge_graph

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import narrow

RELATIONS = [("a", "r0", "b"), ("b", "r1", "a"), ("a", "r2", "a"), ("a", "r3", "c"), ("c", "r4", "a"), ("c", "r5", "b")]
MAG = {"paper": 1_000_000, "author": 1_540_000, "institution": 12_000, "field": 81_000}
"""The types of ogbn-mag, with its numbers of nodes, rounded up."""
MAG_RELATIONS = {
    ("paper", "cites", "paper"): 7_360_000, ("author", "writes", "paper"): 9_710_000,
    ("paper", "rev_writes", "author"): 9_710_000, ("author", "at", "institution"): 1_420_000,
    ("institution", "rev_at", "author"): 1_420_000, ("paper", "has", "field"): 10_190_000,
    ("field", "rev_has", "paper"): 10_190_000,
}  # fmt: skip
SEEDS, FEW = 1024, 64


def uniform(hidden: int) -> HeteroData:
    """Three types of 66,667 nodes and six relations of eight edges per node, drawn uniformly."""
    count = 66_667
    return _graph(dict.fromkeys("abc", count), {relation: 8 * count for relation in RELATIONS}, hidden)


def mag(hidden: int) -> HeteroData:
    """The types and relations of ogbn-mag and their numbers of edges, drawn uniformly."""
    return _graph(MAG, MAG_RELATIONS, hidden)


def many_relations(hidden: int) -> HeteroData:
    """237 relations between 14,541 nodes of one type, as many as FB15k-237 has."""
    data = knowledge_graph()
    data["entity"].x = torch.randn(data["entity"].num_nodes, hidden, generator=torch.Generator().manual_seed(0))
    return data


GRAPHS = {"uniform": uniform, "mag": mag, "237 relations": many_relations}


def _graph(nodes: dict[str, int], edges: dict[Any, int], features: int) -> HeteroData:
    generator, data = torch.Generator().manual_seed(0), HeteroData()
    for node_type, count in nodes.items():
        data[node_type].x = torch.randn(count, features, generator=generator)
    for relation, count in edges.items():
        ends = [torch.randint(nodes[relation[end]], (count,), generator=generator) for end in (0, -1)]
        data[relation].edge_index = torch.stack(ends)
    return data


class Trimmed(nn.Module):
    """Layers of dictionaries; with a batch, each is preceded by PyG's ``trim_to_layer``."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: dict, edges: dict, batch: Any = None) -> dict:
        """By type, rows of all nodes, or of the first ones."""
        for number, layer in enumerate(self.layers):
            if batch is not None:
                hops = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
                x, edges, _ = trim_to_layer(number, *hops, x, edges)
            x = {node_type: rows.relu() for node_type, rows in layer(x, edges).items()}
        return x


class OneLayer(nn.Module):
    """A layer for ``to_hetero``."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Rows of all nodes."""
        return self.conv(x, edge_index)


class FirstRelations(nn.Module):
    """A layer of dictionaries that is given the first relation into each type."""

    def __init__(self, conv: Callable[[tuple], nn.Module], data: HeteroData) -> None:
        super().__init__()
        self.relations = list({relation[-1]: relation for relation in reversed(data.edge_types)}.values())
        self.conv = conv((data.node_types, self.relations))

    def forward(self, x: dict, edges: dict) -> dict:
        """By type, rows of all nodes."""
        return self.conv(x, {relation: edges[relation] for relation in self.relations})


def by_relation(conv: Callable[[int], nn.Module]) -> Callable[[HeteroData, int, int], Trimmed]:
    """Makes layers of HeteroConv."""
    return lambda data, hidden, layers: Trimmed(
        [pyg_nn.HeteroConv({relation: conv(hidden) for relation in data.edge_types}) for _ in range(layers)]
    )


MODELS: dict[str, Callable[[HeteroData, int, int], Trimmed]] = {
    "HeteroConv SAGE": by_relation(lambda hidden: pyg_nn.SAGEConv((hidden, hidden), hidden)),
    "to_hetero SAGE": lambda data, hidden, layers: Trimmed(
        [to_hetero(OneLayer(pyg_nn.SAGEConv((hidden, hidden), hidden)), data.metadata()) for _ in range(layers)]
    ),
    "HeteroConv GAT": by_relation(lambda hidden: pyg_nn.GATConv((hidden, hidden), hidden, add_self_loops=False)),
    "HeteroConv GAT, 4 heads": by_relation(
        lambda hidden: pyg_nn.GATConv((hidden, hidden), hidden // 4, heads=4, add_self_loops=False)
    ),
    "HGT": lambda data, hidden, layers: Trimmed(
        [pyg_nn.HGTConv(hidden, hidden, data.metadata(), heads=2) for _ in range(layers)]
    ),
    "HAN": lambda data, hidden, layers: Trimmed(
        [FirstRelations(partial(pyg_nn.HANConv, hidden, hidden, heads=2), data) for _ in range(layers)]
    ),
}


ARITHMETIC = {"mm", "addmm", "addmm_", "relu", "threshold_backward", "sum"}
"""Operators of PyTorch that belong to the limit."""


class Recorded(TorchDispatchMode):
    """Notes the operators of the limit that run within it, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ARITHMETIC or func.namespace == "gnnscale":
            self.calls.append(partial(func, *args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))

    @torch.no_grad()
    def run(self) -> None:
        """Runs them again."""
        for call in self.calls:
            call()


def measure(model: Trimmed, batch: HeteroData, node_type: str, rounds: int) -> dict[str, float]:
    """Milliseconds per step of each candidate, and the medians over the rounds of their ratios."""
    seeds = batch[node_type].batch_size
    narrowed = narrow(model, lambda model, batch: model(batch.x_dict, batch.edge_index_dict)[node_type])
    ways = {
        "whole": lambda: model(batch.x_dict, batch.edge_index_dict)[node_type][:seeds],
        "trim": lambda: model(batch.x_dict, batch.edge_index_dict, batch)[node_type][:seeds],
        "narrowed": lambda: narrowed(batch),
    }
    expected = ways["whole"]().detach()
    for way in (*ways.values(), *ways.values()):  # twice: the first batch is compared with the whole by narrow, too
        torch.testing.assert_close(way(), expected, rtol=1e-3, atol=1e-3)
    with Recorded() as limit:
        ways["narrowed"]().square().mean().backward()
    steps = {name: lambda way=way: way().square().mean().backward() for name, way in ways.items()} | {
        "limit": limit.run
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        for name in [*steps][turn % 4 :] + [*steps][: turn % 4]:
            start = time.process_time()
            steps[name]()
            times[name].append(1e3 * (time.process_time() - start))
    ratios = {
        f"over {name}": statistics.median(a / b for a, b in zip(times[name], times["narrowed"], strict=True))
        for name in ("trim", "whole", "limit")
    }
    return {**{f"{name} ms": statistics.median(found) for name, found in times.items()}, **ratios}


def cases(graphs: list[str], models: list[str], hidden: list[int], most_seeds: int) -> Iterator[tuple[dict, Any]]:
    """What is measured: a description, and what :func:`measure` takes."""
    for name in graphs:
        for width in hidden[:1] if name == "237 relations" else hidden:
            data = GRAPHS[name](width)
            first = data.node_types[0]
            batches = [(1, [2, 2]), (FEW, [10, 5]), (SEEDS, [10, 5])]
            if name == "237 relations":  # more neighbors of a few seeds would be the whole graph
                batches = [(1, [2, 2]), (FEW, [1, 1])]
            elif name == "uniform" and width == min(hidden):
                batches += [(FEW, [10, 10, 5]), (SEEDS, [10, 10, 5])]
            for seeds, fanouts in [batch for batch in batches if batch[0] <= most_seeds]:
                loader = NeighborLoader(data, fanouts, (first, torch.arange(seeds)), batch_size=seeds, seed=1)
                batch = next(iter(loader))
                for model in models:
                    if name == "237 relations":
                        if "SAGE" not in model:
                            continue
                    elif seeds > 1 and (model == "HGT") == (seeds == SEEDS):
                        continue  # of many seeds, its step on the whole batch takes minutes without pyg-lib
                    torch.manual_seed(0)
                    about = {"graph": name, "model": model, "hidden": width, "seeds": seeds, "fanouts": fanouts}
                    yield about, (MODELS[model](data, width, len(fanouts)), batch, first)


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False, rounds=False)
    options.add_argument("--rounds", type=int, default=5, help="interleaved rounds of all candidates")
    options.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--hidden", nargs="+", type=int, default=[64, 256])
    options.add_argument("--most-seeds", type=int, default=SEEDS, help="no batches of more seeds")
    args = options.parse_args()
    torch.set_num_threads(1)
    found = []
    for about, given in tqdm(cases(args.graphs, args.models, args.hidden, args.most_seeds), "cases"):
        few = (30 if "relations" in about["graph"] else 200) if about["seeds"] == 1 else args.rounds
        figures = measure(*given, few)
        found.append({**about, **figures})
        title = f"{about['graph']:8s} {about['model']:24s} {about['hidden']:4d} {about['seeds']:5d} {about['fanouts']}"
        tqdm.write(f"{title}  " + "  ".join(f"{key} {value:.3g}" for key, value in figures.items()))

    def least(key: str, kind: str, hops: int, seeds: int = SEEDS) -> float | None:
        values = [
            case[key]
            for case in found
            if kind in case["model"] and len(case["fanouts"]) == hops and case["seeds"] == seeds
        ]
        return min(values, default=None)

    aims = {}
    for title, value, bound in (
        ("SAGE, two hops: over trim_to_layer", least("over trim", "SAGE", 2), 6.0),
        ("SAGE, three hops: over trim_to_layer", least("over trim", "SAGE", 3), 3.5),
        ("SAGE, two hops: over the whole batch", least("over whole", "SAGE", 2), 10.0),
        ("SAGE, three hops: over the whole batch", least("over whole", "SAGE", 3), 10.0),
        ("GAT, two hops: over trim_to_layer", least("over trim", "GAT", 2), 2.0),
        ("GAT, three hops: over trim_to_layer", least("over trim", "GAT", 3), 2.0),
        ("HAN, two hops: over trim_to_layer", least("over trim", "HAN", 2), 2.0),
        ("HAN, three hops: over trim_to_layer", least("over trim", "HAN", 3), 2.0),
        ("HGT, two hops, 64 seeds: over trim_to_layer", least("over trim", "HGT", 2, FEW), 2.0),
        ("HGT, three hops, 64 seeds: over trim_to_layer", least("over trim", "HGT", 3, FEW), 2.0),
        ("one seed: over the whole batch", least("over whole", "", 2, 1), 0.95),
    ):
        if value is not None:
            aims[title] = judged(value, least=bound)
    say_aims(aims)
    if not args.no_save:
        save("narrow_typed", {"cases": found, "aims": aims})


if __name__ == "__main__":
    main()
