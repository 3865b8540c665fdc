"""The sampler on random heterogeneous graphs with any options, against the twin on columns made edge by edge."""

import warnings

import pytest
import torch
from helpers.data import our_stores
from helpers.hetero import assert_output, foreign_stores, sample_by_definition
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from torch_gnnscale import NeighborSampler
from torch_gnnscale.sampler.graph import reverse_relations

TYPES = ["a", "b", "c"]
NAMES = ["to", "rev_to", "of"]


@st.composite
def graphs(draw):
    """Up to three types and five relations, some without nodes or edges; times of nodes or edges, weights, or none."""
    data = HeteroData()
    for node_type in TYPES[: draw(st.integers(1, 3))]:
        data[node_type].num_nodes = draw(st.integers(0, 9))
    pairs = st.tuples(*(st.sampled_from(choice) for choice in (data.node_types, NAMES, data.node_types)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    timed, weighted = draw(st.sampled_from([None, "nodes", "edges"])), draw(st.booleans())
    for edge_type in draw(st.lists(pairs, unique=True, max_size=5)):
        sizes = [data[end].num_nodes for end in edge_type[::2]]
        count = draw(st.integers(0, 30)) if all(sizes) else 0
        ends = [torch.randint(max(size, 1), (count,), generator=generator) for size in sizes]
        data[edge_type].edge_index = torch.stack(ends)
        if weighted:
            data[edge_type].weight = torch.randint(0, 5, (count,), generator=generator) / 4
        if timed == "edges" and draw(st.booleans()):
            data[edge_type].time = torch.randint(-3, 4, (count,), generator=generator)
    for store in data.node_stores:
        if timed == "nodes" and draw(st.booleans()):
            store.time = torch.randint(-3, 4, (store.num_nodes,), generator=generator)
    has_time = any("time" in store for store in [*data.node_stores, *data.edge_stores])
    return data, timed if has_time else None, weighted and bool(data.edge_types)


@pytest.mark.slow
@given(graphs(), st.data())
def test_any_graph_and_options(graph, draws):
    data, timed, weighted = graph
    draw = draws.draw
    hops = draw(st.integers(0, 3))
    fanouts = [draw(st.lists(st.integers(-1, 4), min_size=hops, max_size=hops)) for _ in data.edge_types]
    subgraph = draw(st.sampled_from(["directional", "bidirectional", "induced"]))
    backward = draw(st.booleans()) and timed is None
    disjoint, replace, last = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    layers = subgraph == "directional" and not backward and draw(st.booleans())
    key = draw(st.integers(-(1 << 63), (1 << 63) - 1))
    seeds, seed_time = {}, {}
    for node_type in draw(st.lists(st.sampled_from(data.node_types), unique=True)):
        most = data[node_type].num_nodes - 1
        ids = draw(st.lists(st.integers(0, most), max_size=4)) if most >= 0 else []
        seeds[node_type] = torch.tensor(ids, dtype=torch.int64)
        times = draw(st.lists(st.integers(-4, 4), min_size=len(ids), max_size=len(ids)))
        seed_time[node_type] = torch.tensor(times, dtype=torch.int64)
    seeds = {t: seeds[t] for t in data.node_types if t in seeds}
    starts = {t: seed_time[t] - draw(st.sampled_from([0, 1, 2.5, 9])) for t in seeds if draw(st.booleans())}
    starts = starts if timed and draw(st.booleans()) else None
    source = draw(st.sampled_from([lambda data: data, our_stores, foreign_stores]))(data)
    if not isinstance(source, HeteroData) and set(data.node_types) != {end for t in data.edge_types for end in t[::2]}:
        source = data  # stores know a type by its edges or features
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = NeighborSampler(
            source, dict(zip(data.edge_types, fanouts, strict=True)) if fanouts else [1] * hops, subgraph, replace,
            disjoint, "last" if last else "uniform", "time" if timed else None, "weight" if weighted else None,
            sample_direction="backward" if backward else "forward", layers=layers,
        )  # fmt: skip
    if sampler.node_types != data.node_types:
        return  # stores name types in the order of their edges, and a tree's number by that of its type
    out = sampler.sample(seeds, seed_time if timed else None, key, seed_start_time=starts)
    expected = sample_by_definition(
        data, seeds, fanouts, key, seed_time=seed_time if timed else None, seed_start_time=starts, time=timed,
        weight=weighted,
        backward=backward, disjoint=disjoint or bool(timed), replace=replace, last=last, layers=layers,
        subgraph=subgraph, reverse=reverse_relations(data.edge_types),
    )  # fmt: skip
    assert_output(out, expected, data, backward=backward)
