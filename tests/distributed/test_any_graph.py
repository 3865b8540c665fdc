"""Ranks over parts of any graph: isolated nodes, loops, multi-edges, edges of weight 0, parts without nodes, seeds or
halo."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import edges_of
from helpers.parts import batches_of_rank, check_batches, expected_batches, traffic_of_an_epoch
from helpers.slow import examples
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from torch_gnnscale import partition

GRIDS = [(2, 2), (3, 3), (2, 4)]
"""Parts and ranks."""


@pytest.mark.slow
@examples(12)
@given(
    number=st.integers(0, 1 << 30), nodes=st.integers(1, 40), edges=st.integers(0, 160), grid=st.sampled_from(GRIDS),
    topology=st.sampled_from(["replicated", "partitioned"]), order=st.sampled_from(["owned", "global"]),
    fanouts=st.lists(st.integers(-1, 3), min_size=1, max_size=4), weighted=st.booleans(), layers=st.booleans(),
)  # fmt: skip
def test_batches_are_those_of_one_process_and_have_every_seed_once(
    tmp_path_factory, number, nodes, edges, grid, topology, order, fanouts, weighted, layers
):
    path, generator = str(tmp_path_factory.mktemp("any") / "parts"), torch.Generator().manual_seed(number)
    weight = torch.rand(edges, generator=generator) * (torch.rand(edges, generator=generator) < 0.6)
    seeds = (torch.rand(nodes, generator=generator) < 0.7).nonzero().view(-1)
    data = Data(edge_index=edges_of(nodes, edges, number), x=torch.arange(nodes), weight=weight)
    parts, world = grid
    owners = torch.randint(1 + number % parts, (nodes,), generator=generator)
    partition.write(
        data, path, parts=parts, owners=owners, topology=topology, splits={"train": seeds}, graph_attrs=["weight"]
    )
    options = {"uneven": "serve", "seed_order": order, "num_neighbors": fanouts, "layers": layers, "batch_size": 4}
    if weighted:
        options["weight_attr"] = "weight"
    found = cluster(world).run(batches_of_rank, path, "nodes", 2, options)
    check_batches(found, expected_batches(data, path, "nodes", 2, options, world))
    for epoch in range(2):
        batches = [dict(batch) for of_rank in found for batch in of_rank[epoch]]
        taken = [node for batch in batches for node in batch["n_id"][2][: batch["batch_size"]]]
        assert sorted(taken) == seeds.tolist()
        if weighted:
            assert all(weight[batch["e_id"][2]].gt(0).all() for batch in batches)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_parts_without_a_halo_take_the_same_rounds(tmp_path, topology):
    edges = edges_of(100, 500)
    data = Data(edge_index=torch.cat([edges, edges + 100], dim=1), x=torch.arange(200))
    owners = torch.arange(200) // 100
    partition.write(
        data, tmp_path / "parts", parts=2, owners=owners, topology=topology, splits={"train": torch.arange(200)}
    )
    for steps, stats in cluster(2).run(traffic_of_an_epoch, str(tmp_path / "parts"), {}):
        assert steps == 10
        assert stats["ids"]["rounds"] == stats["rows"]["rounds"] == steps
        assert stats["ids"]["bytes_sent"] == 0
        assert stats["rows"]["bytes_sent"] == 8 * steps  # the status of a reply
