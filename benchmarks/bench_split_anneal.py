"""How many of the edges that cross between METIS's parts of planted other parts can save: a search, and a bound.

    python benchmarks/bench_split_anneal.py

The graph, the batches and the figures are those of bench_split_plan.py. Annealing starts from METIS's parts, takes the
mean load of each edge over ten times as many epochs as a plan presamples, and keeps each part's load and seeds within
the limits below. It may take long. That it finds no better parts does not prove that there are none; the bound proves
it for all parts within the same limit of loads of which each has the seeds of one of the four classes.
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


def share(edges: tuple[Tensor, Tensor, Tensor], owner: Tensor) -> float:
    """The share of the edges' loads that is between parts."""
    src, dst, load = edges
    return float(load[owner[src] != owner[dst]].sum() / load.sum())


def bound(edges: tuple[Tensor, Tensor, Tensor], load: Tensor, part: Tensor, rounds: int) -> float:
    """No parts whose loads are within ``MOST`` cut a smaller share of the edges' loads, if they have the given nodes.

    The linear relaxation of the cut (Calinescu, Karloff and Rabani, J. Comput. Syst. Sci. 2000), in which a node v may
    be shared out over parts, x[v] >= 0 with sum 1: the minimum of sum of w[e] / 2 * |x[src[e]] - x[dst[e]]|_1. It is
    solved by primal-dual steps (Pock and Chambolle, ICCV 2011); the result is the value of a feasible point of the dual
    problem, and so a bound after any number of rounds.

    Args:
        edges: sources, destinations and loads.
        load: of the nodes.
        part: the part that a node must have, or -1.
        rounds: how many steps there are. The best value of them counts.
    """
    src, dst, weight = edges
    half, load, nodes = (weight / weight.sum() / 2)[:, None], (load * PARTS / load.sum())[:, None], len(load)
    given = (part >= 0)[:, None]
    fixed = torch.nn.functional.one_hot(part.clamp(min=0), PARTS).double()
    around = torch.zeros(nodes, 1, dtype=torch.float64).index_add_(0, src, half).index_add_(0, dst, half)
    x = torch.where(given, fixed, 1 / PARTS)
    flow, price, ahead, best = torch.zeros(len(src), PARTS, dtype=torch.float64), torch.zeros(PARTS), x, 0.0
    for _ in trange(rounds, desc="bound", leave=False):
        flow = (flow + (ahead[src] - ahead[dst]) / 2).clamp(-1, 1)
        price = (price + 0.02 * ((ahead * load).sum(0) - MOST["load"])).clamp(min=0)
        cost = price * load
        cost = cost.index_add(0, src, half * flow).index_add_(0, dst, half * flow, alpha=-1)
        least = torch.where(given[:, 0], (cost * fixed).sum(1), cost.amin(1)).sum()
        best = max(best, float(least - MOST["load"] * price.sum()))
        moved = torch.where(given, fixed, on_simplex(x - cost / around.clamp(min=1e-12)))
        ahead, x = 2 * moved - x, moved
    return best


def on_simplex(x: Tensor) -> Tensor:
    """The nearest rows that are not negative and have sum 1."""
    excess = x.sort(1, descending=True).values.cumsum(1) - 1
    excess /= torch.arange(1, x.size(1) + 1)
    return (x - excess.amax(1, keepdim=True)).clamp(min=0)


def main() -> None:
    options = parser(__doc__.splitlines()[0], graphs=False)
    options.set_defaults(rounds=600)
    options.add_argument("--graph", choices=["planted", "small"], default="planted")
    options.add_argument("--seeds", type=int, default=5, help="of METIS, the draws and the noise")
    options.add_argument("--epochs", type=int, default=EPOCHS, help="over which annealing takes the mean loads")
    args = options.parse_args()
    data, seeds = graph_of(args.graph)
    src, dst, edge_load, load = loads(data, seeds, args.epochs)
    edges = src, dst, edge_load
    is_seed = torch.zeros(data.num_nodes, dtype=torch.float64).index_fill_(0, seeds, 1)
    amounts = [(load, MOST["load"]), (is_seed, MOST["seeds"])]
    found: dict[str, list[dict[str, float]]] = {"node": [], "presampled": [], "annealed": []}
    for seed in range(args.seeds):
        owners = {
            kind: split.plan(data, seeds, FANOUTS, PARTS, batch_size=BATCH, seed=seed, **KINDS[kind]).owners.long()
            for kind in ("node", "presampled")
        }
        owners["annealed"] = anneal(edges, amounts, owners["presampled"], args.rounds, seed)
        for kind, owner in owners.items():
            figures = measured(data, seeds, {"weights": owner}, seed)[0]
            found[kind].append(figures | {"share of mean loads": share(edges, owner)})
    keys = ("cross", "imbalance", "share of mean loads")
    results: dict[str, Any] = {
        kind: {key: median(run[key] for run in runs) for key in keys} for kind, runs in found.items()
    }
    for kind, entry in results.items():
        entry["cross over node's"] = entry["cross"] / results["node"]["cross"]
        print(f"  {kind:12s}" + "".join(f"  {key} {value:.4g}" for key, value in entry.items()))
    of_class = torch.full((data.num_nodes,), -1).index_put_((seeds,), data.y[seeds])
    least = bound(edges, load, of_class, args.rounds)
    over = least / results["node"]["share of mean loads"]
    results["bound"] = {"share of mean loads": least, "share over node's": over}
    print(f"  no parts that each have the seeds of one class cut less than {least:.4g}, {over:.4g} of node's")
    aims = {"annealed: cross edges over those of node": judged(results["annealed"]["cross over node's"], most=0.7)}
    say_aims(aims)
    if not args.no_save:
        save("split_anneal", {args.graph: {"rows": results, "aims": aims}})


if __name__ == "__main__":
    main()
