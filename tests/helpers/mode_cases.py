"""Loaders of random modes over graphs with and without types, whose batches are the same wherever they are drawn."""

from __future__ import annotations

from typing import Any

import torch
from helpers.gpu_cases import choice, number
from helpers.loader_cases import draw_by_phases, same_bits
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import LinkNeighborLoader, NeighborLoader

ENDS = [("a", "b"), ("b", "a"), ("a", "a"), ("c", "a"), ("b", "c"), ("a", "b")]


def random_graph_of_types(generator: torch.Generator) -> HeteroData:
    """Three types of nodes and one to six relations, with features, times and weights of edges."""
    data = HeteroData()
    for of in "abc":
        nodes = number(generator, 5, 80)
        data[of].x = torch.arange(nodes, dtype=torch.float32).view(-1, 1)
    for r, (src, dst) in enumerate(ENDS[: number(generator, 1, len(ENDS))]):
        name = "rev_to0" if r == 1 else f"to{r}"
        _add_edges(data[src, name, dst], data[src].num_nodes, data[dst].num_nodes, generator)
    return data


def random_graph_without_types(generator: torch.Generator) -> Data:
    """The same with one type and one relation."""
    nodes = number(generator, 5, 200)
    data = Data(x=torch.arange(nodes, dtype=torch.float32).view(-1, 1))
    _add_edges(data, nodes, nodes, generator)
    return data


def _add_edges(store: Any, num_src: int, num_dst: int, generator: torch.Generator) -> None:
    edges = number(generator, 1, 6 * num_dst)
    ends = [(torch.rand(edges, generator=generator) ** 2 * size).long() for size in (num_src, num_dst)]
    store.edge_index = torch.stack(ends)
    store.moment = torch.randint(20, (edges,), generator=generator)
    store.amount = torch.rand(edges, generator=generator) * (torch.rand(edges, generator=generator) > 0.1) + 1e-9


def tensors_of(batch: Data | HeteroData) -> dict[tuple, Any]:
    """All values of a batch, by store and name."""
    stores = batch.node_stores + batch.edge_stores if isinstance(batch, HeteroData) else [batch]
    stores = [batch._global_store, *stores] if isinstance(batch, HeteroData) else stores
    return {(str(getattr(of, "_key", None)), name): value for of in stores for name, value in of.items()}


def check_random_modes(seed: int, way: str) -> None:
    """Batches of an epoch equal those of a loader that draws on the CPU, one by one.

    By chance: types or none; seeds or links, with negatives and exclusions; weights; times with windows, uniform or the
    last ones; disjoint trees; draws with replacement; every node expanded once or in each hop; induced subgraphs.

    Args:
        seed: of the configuration.
        way: "dealt" to threads of the CPU; by the "phases" of a GPU on the CPU; on "cuda".
    """
    generator = torch.Generator().manual_seed(seed)
    some = lambda share=0.4: bool(torch.rand((), generator=generator) < share)  # noqa: E731
    typed, links = some(0.5), some(0.4)
    data = random_graph_of_types(generator) if typed else random_graph_without_types(generator)
    fanouts = [choice(generator, [-1, 1, 2, 5, 12, 40]) for _ in range(number(generator, 1, 3))]
    options: dict[str, Any] = {
        "replace": some() and set(fanouts) != {-1},
        "disjoint": some(),
        "batch_size": number(generator, 1, 30),
        "shuffle": some(),
        "seed": seed,
    }
    edge_type = choice(generator, data.edge_types) if typed else None
    edge_index = data[edge_type].edge_index if typed else data.edge_index
    timed = some()
    if timed:
        options["time_attr"] = "moment"
        options["temporal_strategy"] = "last" if some() and set(fanouts) != {-1} else "uniform"
    if some() and set(fanouts) != {-1} and (options.get("temporal_strategy") != "last" or options["replace"]):
        options["weight_attr"] = "amount"
    if some(0.25):
        options["subgraph_type"] = "induced"
    if links:
        pairs = edge_index[:, torch.randperm(edge_index.size(1), generator=generator)[:60]]
        given: dict[str, Any] = {"edge_label_index": (edge_type, pairs) if typed else pairs}
        count, prefix = pairs.size(1), "edge_label"
        given["exclude_seed_edges"] = some(0.6)
        given["neg_sampling"] = choice(generator, [None, "binary", {"mode": "triplet", "amount": 2}])
    else:
        of = choice(generator, data.node_types) if typed else None
        nodes = data[of].num_nodes if typed else data.num_nodes
        seeds = torch.randint(nodes, (number(generator, 1, 60),), generator=generator)
        given = {
            "input_nodes": (of, seeds) if typed else seeds,
            "layers": not typed and "subgraph_type" not in options and some(0.3),
        }
        count, prefix = len(seeds), "input"
    if timed:
        given[f"{prefix}_time"] = torch.randint(22, (count,), generator=generator)
        if some():
            given[f"{prefix}_start_time"] = given[f"{prefix}_time"] - torch.randint(12, (count,), generator=generator)
    kind: Any = LinkNeighborLoader if links else NeighborLoader
    made: dict[str, Any] = {"bulk": choice(generator, [1, 2, 4]), "prefetch": choice(generator, [0, 3])}
    if way == "cuda":
        made["device"] = "cuda"
    expected = kind(data, fanouts, **options, **given)
    found = kind(data.clone().to("cuda") if way == "cuda" else data, fanouts, **options, **given, **made)
    if way == "phases":
        draw_by_phases(found.link_sampler if links else found.node_sampler)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        values, others = tensors_of(ours), tensors_of(theirs)
        assert list(values) == list(others)
        for name, value in others.items():
            if isinstance(value, Tensor):
                assert values[name].device.type == ("cuda" if way == "cuda" else "cpu"), name
                assert same_bits(values[name], value), name
            elif name[1] != "layers":
                assert values[name] == value, name
