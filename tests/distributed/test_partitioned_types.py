"""Typed graphs whose edges are in parts: every batch is the one that ranks make where each maps the whole graph."""

import re

import pytest
import torch
from helpers.cluster import cluster
from helpers.hetero import (
    AUTHOR,
    CITES,
    HELD,
    LIKES,
    PAPER,
    REV_WRITES,
    VENUE,
    WRITES,
    make_hetero,
    with_times,
    with_weights,
)
from helpers.parts import check_topologies, of_both_topologies
from helpers.slow import in_turns

from torch_gnnscale import LayerSampler, NeighborLoader
from torch_gnnscale.distributed import open_part

FANOUTS = {CITES: [3, 2], WRITES: [2, 0], REV_WRITES: [0, 1], HELD: [2, 1], LIKES: [-1, 2]}
ONE, TWO = (PAPER,), (PAPER, AUTHOR)
MODES = {
    "nodes": (ONE, {}),
    "a type of few seeds": ((VENUE,), {"num_neighbors": [4, 3, 2]}),
    "two types": (TWO, {}),
    "two types, global": (TWO, {"seed_order": "global", "batch_size": {PAPER: 4, AUTHOR: 3}}),
    "two types, trees": (TWO, {"disjoint": True, "layers": True}),
    "two types, times": (TWO, {"time_attr": "time"}),
    "fanouts by type": (ONE, {"num_neighbors": FANOUTS}),
    "three hops": (ONE, {"num_neighbors": [2, 2, 2]}),
    "all neighbors": (ONE, {"num_neighbors": [-1, 2]}),
    "nothing in one hop": (ONE, {"num_neighbors": [2, 0, 2]}),
    "no hop": (ONE, {"num_neighbors": []}),
    "replace": (ONE, {"replace": True}),
    "disjoint": (ONE, {"disjoint": True}),
    "layers": (ONE, {"layers": True}),
    "weights": (ONE, {"weight_attr": "weight"}),
    "weights, replace": (ONE, {"weight_attr": "weight", "replace": True, "num_neighbors": [-1, 3]}),
    "times of nodes": (ONE, {"time_attr": "time"}),
    "last": (ONE, {"time_attr": "time", "temporal_strategy": "last"}),
    "times and weights": (ONE, {"time_attr": "time", "weight_attr": "weight"}),
    "times of edges": (ONE, {"time_attr": "since", "input_time": 3}),
    "windows": (TWO, {"time_attr": "time", "input_time": 9, "input_start_time": -6}),
    "bulk": (TWO, {"bulk": 3}),
    "bulk of trees": (ONE, {"bulk": 2, "disjoint": True}),
    "bulk of times": (TWO, {"bulk": 2, "time_attr": "time", "seed_order": "global"}),
    "bulk of weights": (ONE, {"bulk": 4, "weight_attr": "weight", "num_neighbors": FANOUTS}),
    "without threads": (ONE, {"prefetch": 0, "seed_order": "global"}),
    "csr": (ONE, {"edge_layout": "sparse_csr"}),
}


def graph():
    data, generator = with_weights(with_times(make_hetero())), torch.Generator().manual_seed(6)
    for edge_type in (CITES, WRITES, HELD):
        data[edge_type].since = torch.randint(-8, 8, (data[edge_type].num_edges,), generator=generator)
    return data


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """directories(K): the data of K parts; of three, the last has no author and the first two share the venues."""
    made = {}

    def of(count):
        if count not in made:
            owners = {PAPER: torch.arange(40) * 7 % count, AUTHOR: torch.arange(25) % 2, VENUE: torch.arange(5) // 3}
            folder = tmp_path_factory.mktemp("parts")
            made[count] = of_both_topologies(graph(), folder, count, owners, ["time"], ["weight", "since"])
        return made[count]

    return of


def loader_of(part, of, options):
    seeds = {node_type: part.input_nodes(None, of, node_type)[1] for node_type in options.pop("types")}
    for name in ("input_time", "input_start_time"):
        if name in options:
            options[name] = {of: torch.full_like(ids, options[name]) for of, ids in seeds.items()}
    options = {"num_neighbors": [3, 2], "batch_size": 8, "shuffle": True, "seed": 3, "uneven": "serve", **options}
    return NeighborLoader((part.features, part.graph), input_nodes=seeds, **options)


@pytest.mark.parametrize(("count", "world", "types", "options"), in_turns([(2, 2), (3, 3), (2, 4)], MODES, "two types"))
def test_batches_are_those_of_a_replicated_graph(directories, count, world, types, options):
    check_topologies(directories(count), world, loader_of, {"types": types, **options})


def rounds_of(path, options):
    with open_part(path) as part:
        steps = sum(1 for _ in loader_of(part, "all", {"types": ONE, "seed_order": "global", **options}))
        return steps, {name: entry["rounds"] for name, entry in part.stats().items()}


@pytest.mark.slow
@pytest.mark.parametrize(("fanouts", "hops"), [([2, 2], 2), ({CITES: [2, 0]}, 1), ([2, 0, 2], 2)])
def test_all_relations_travel_in_the_two_rounds_of_a_hop(directories, fanouts, hops):
    if isinstance(fanouts, dict):
        fanouts = {WRITES: [0, 0], REV_WRITES: [0, 0], HELD: [0, 0], LIKES: [0, 0], **fanouts}
    found = cluster(2).run(rounds_of, directories(2)[1], {"num_neighbors": fanouts})
    steps = max(count for count, _ in found)
    for _, rounds in found:
        assert rounds["requests"] == rounds["picks"] == hops * steps


def bad_rows(path, edge_type, name):
    with open_part(path) as part:
        if torch.distributed.get_rank() == 1:
            rows = part.stored.rows[edge_type, name].double()
            rows[2] = float("nan")
            part.stored.rows[edge_type, name] = rows
        given = {"weight_attr": name} if name == "weight" else {"time_attr": name, "input_time": 3}
        loader_of(part, "part", {"types": ONE, **given})


@pytest.mark.slow
@pytest.mark.parametrize(("edge_type", "name"), [(WRITES, "weight"), (HELD, "since")])
def test_malformed_values_of_one_part_are_refused_by_all_ranks_by_name(directories, edge_type, name):
    first, second = cluster(2).results(bad_rows, directories(2)[1], edge_type, name)
    assert first == second
    attr = "weight_attr" if name == "weight" else "time_attr"
    text = rf"ValueError: rank 1: ValueError: .*/part-00001/rows_\d+\.npy: {attr}='{name}' of "
    assert re.match(text + re.escape(repr(edge_type)), first[1])


def layer_wise(path):
    with open_part(path) as part:
        LayerSampler((part.features, part.graph), [4])


def test_layer_wise_samplers_say_that_they_have_no_types(directories):
    text = "NotImplementedError: method='ladies' with edge types is not implemented; use method='neighbor'"
    assert cluster(2).results(layer_wise, directories(2)[1]) == [(False, text)] * 2
