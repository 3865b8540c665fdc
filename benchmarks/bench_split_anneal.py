"""How many of the edges that cross between METIS's parts of planted a search by simulated annealing can save.

    python benchmarks/bench_split_anneal.py

The graph, the batches and the figures are those of bench_split_plan.py. Annealing starts from METIS's parts, takes the
mean load of each edge over ten times as many epochs as a plan presamples, and keeps each part's load and seeds within
the limits below. It may take long. That it finds no better parts does not prove that there are none.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from bench_split_plan import BATCH, FANOUTS, KINDS, PARTS, graph_of, measured
from common import judged, parser, save, say_aims
from torch import Tensor
from torch_geometric.data import Data
from tqdm import trange

from torch_gnnscale import CSC, NeighborLoader, split
from torch_gnnscale.split.planning import FIRST_EPOCH
from torch_gnnscale.split.presample import presample

EPOCHS = 100
MOST = {"load": 1.012, "seeds": 1.017}
"""What a part may have of the nodes' loads and of the seeds, over the mean."""
MOVING = 0.15
"""The share of the nodes that may move in a round: neighbors seldom move at once."""
WARMTH = 0.9
"""The noise of the first round, in units of a node's load. It falls to nothing in the first half of the rounds."""


def loads(data: Data, seeds: Tensor, epochs: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sources, destinations and mean loads of the edges, and the mean loads of the nodes, per epoch."""
    csc = CSC.from_data(data)
    loader = NeighborLoader(data, FANOUTS, seeds, batch_size=BATCH, shuffle=True, seed=7, shard=False)
    counts = presample(loader, range(FIRST_EPOCH, FIRST_EPOCH + epochs), progress=False)
    dst = torch.arange(csc.num_dst).repeat_interleave(csc.colptr.diff())
    edge_load = counts.expected(csc) / epochs
    drawn = edge_load > 0
    return csc.row[drawn].long(), dst[drawn], edge_load[drawn], counts.node_load(csc, "edges").double() / epochs


def anneal(
    edges: tuple[Tensor, Tensor, Tensor], amounts: list[tuple[Tensor, float]], owner: Tensor, rounds: int, seed: int
) -> Tensor:
    """Parts with a smaller sum of edge loads between them.

    Args:
        edges: sources, destinations and loads.
        amounts: pairs of an amount of each node and how much of it a part may have, over the mean. The first amount is
            the nodes' load, which scales the noise.
        owner: the part of each node at the start.
        rounds: how many there are; noise is added in the first half of them.
        seed: of the noise.
    """
    random, nodes = torch.Generator().manual_seed(seed), len(owner)
    src, dst, load = edges
    ends, others, both = torch.cat([dst, src]), torch.cat([src, dst]), torch.cat([load, load])
    owner = owner.clone()
    for r in trange(rounds, desc="annealing", leave=False):
        near = torch.zeros(nodes * PARTS, dtype=torch.float64)
        near = near.index_add_(0, ends * PARTS + owner[others], both).view(nodes, PARTS)
        own = near.gather(1, owner[:, None])
        near.scatter_(1, owner[:, None], -torch.inf)
        if (heat := WARMTH * (1 - 2 * r / rounds)) > 0:
            uniform = torch.rand(nodes, PARTS, dtype=torch.float64, generator=random)
            near -= heat * amounts[0][0].clamp(min=0.02)[:, None] * torch.log(-torch.log(uniform))
        gain, target = (near - own).max(1)
        moving = ((gain > 1e-9) & (torch.rand(nodes, generator=random) < MOVING)).nonzero().view(-1)
        moving = moving[gain[moving].argsort(descending=True)]
        for part in range(PARTS):
            into, away = moving[target[moving] == part], moving[owner[moving] == part]
            fits = torch.ones(len(into), dtype=torch.bool)
            for amount, most in amounts:
                free = most * amount.sum() / PARTS - amount[owner == part].sum()
                if heat > 0:
                    free += amount[away].sum() / 2  # a guess: half of what wants to leave finds room elsewhere
                fits &= amount[into].cumsum(0) <= free.clamp(min=0)
            owner[into[fits]] = part
    return owner


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.set_defaults(rounds=600)
    options.add_argument("--graph", choices=["planted", "small"], default="planted")
    options.add_argument("--seeds", type=int, default=5, help="of METIS, the draws and the noise")
    options.add_argument("--epochs", type=int, default=EPOCHS, help="over which annealing takes the mean loads")
    args = options.parse_args()
    data, seeds = graph_of(args.graph)
    *edges, load = loads(data, seeds, args.epochs)
    is_seed = torch.zeros(data.num_nodes, dtype=torch.float64).index_fill_(0, seeds, 1)
    amounts = [(load, MOST["load"]), (is_seed, MOST["seeds"])]
    found: dict[str, list[dict[str, float]]] = {"node": [], "presampled": [], "annealed": []}
    for seed in range(args.seeds):
        for kind in ("node", "presampled"):
            found[kind].append(measured(data, seeds, KINDS[kind], seed)[0])
        plan = split.plan(data, seeds, FANOUTS, PARTS, batch_size=BATCH, seed=seed, **KINDS["presampled"])
        owner = anneal(tuple(edges), amounts, plan.owners.long(), args.rounds, seed)
        found["annealed"].append(measured(data, seeds, {"weights": owner}, seed)[0])
    results: dict[str, Any] = {
        kind: {key: median(run[key] for run in runs) for key in ("cross", "imbalance")} for kind, runs in found.items()
    }
    for kind, entry in results.items():
        entry["cross over node's"] = median(
            run["cross"] / node["cross"] for run, node in zip(found[kind], found["node"], strict=True)
        )
        print(f"  {kind:12s}" + "".join(f"  {key} {value:.4g}" for key, value in entry.items()))
    aims = {"annealed: cross edges over those of node": judged(results["annealed"]["cross over node's"], most=0.7)}
    say_aims(aims)
    if not args.no_save:
        save("split_anneal", {args.graph: {"rows": results, "aims": aims}})


if __name__ == "__main__":
    main()
