"""Split plans: their counts are those of the presampled batches, and they come back as they were saved."""

import os
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.data import make_data
from helpers.slow import SLOW
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import (
    CSC,
    FeatureStore,
    GraphStore,
    LayerSampler,
    NeighborLoader,
    NeighborSampler,
    TieredFeatureStore,
    partition,
    split,
)
from torch_gnnscale.datasets import planted
from torch_gnnscale.distributed import open_part
from torch_gnnscale.loader import accesses
from torch_gnnscale.split.cut_sampler import check_sampler
from torch_gnnscale.split.planning import FIRST_EPOCH, _compact, _draws_evenly, owners_by

pytest.importorskip("pymetis")

SEEDS = torch.arange(0, 200, 3)


def planned(data, parts=3, **options):
    given = {"batch_size": 16, "epochs": 2, "seed": 5, **options}
    return split.plan(data, given.pop("input_nodes", SEEDS), given.pop("num_neighbors", [3, 2]), parts, **given)


def counted(loader, owners, parts, load):
    """(cut, load of each part) of equation 1, batch by batch and edge by edge."""
    cut, loads = 0, [0] * parts
    for epoch in (FIRST_EPOCH, FIRST_EPOCH + 1):
        for out in loader.samples(epoch):
            hops, owner = len(out.num_sampled_edges), owners[out.node].tolist()
            group = [g for g, count in enumerate(out.num_sampled_nodes) for _ in range(count)]
            for i, part in enumerate(owner):
                loads[part] += hops - group[i] + (load == "layers")
            for src, dst in zip(out.row.tolist(), out.col.tolist(), strict=True):
                loads[owner[dst]] += (hops - group[dst]) * (load == "edges")
                cut += (hops - group[dst]) * (owner[src] != owner[dst])
    return cut, loads


@pytest.mark.parametrize("load", ["edges", "layers"])
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"num_neighbors": [-1, 2, 1]}, {"method": "labor"}])
def test_a_plans_cut_and_loads_are_those_of_the_batches(load, options):
    data = make_data()
    plan = planned(data, load=load, weights="random", **options)
    options = {"num_neighbors": [3, 2], **options}
    loader = NeighborLoader(data, input_nodes=SEEDS, batch_size=16, shuffle=True, seed=5, **options)
    assert (plan.cut, plan.loads) == counted(loader, plan.owners, 3, load)
    assert plan.cut > 0
    assert int(plan.rows.sum()) == sum(len(out.node) for e in (0, 1) for out in loader.samples(FIRST_EPOCH + e))
    assert plan.cut_share == plan.cut / int(plan.edge_load.sum())
    assert plan.imbalance == max(plan.loads) * 3 / sum(plan.loads)


@pytest.mark.slow
def test_ladies_and_repeated_seeds_are_counted_too():
    data, seeds = make_data(), torch.tensor([1, 1, 7, 7, 7, 30, 2])
    sampler = LayerSampler(data, [8, 8])
    plan = planned(data, input_nodes=seeds, neighbor_sampler=sampler, batch_size=4, weights="node", load="layers")
    loader = NeighborLoader(data, [8, 8], seeds, neighbor_sampler=sampler, batch_size=4, shuffle=True, seed=5)
    assert (plan.cut, plan.loads) == counted(loader, plan.owners, 3, "layers")


@pytest.mark.parametrize("weights", [SLOW("presampled"), SLOW("node"), SLOW("edge"), "random"])
def test_equal_arguments_give_equal_plans(weights):
    first, again, other = (planned(make_data(), weights=weights, seed=seed) for seed in (7, 7, 8))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.owners.dtype == torch.int32
    assert torch.equal(first.node_load, again.node_load)
    assert planned(make_data(), 1, weights=weights).owners.unique().tolist() == [0]


@pytest.mark.slow
def test_presampling_cuts_less_than_nodes_alone():
    data = planted(3000, num_classes=6, num_features=4, homophily=0.9)
    seeds = (data.y < 3).nonzero().view(-1)[:200]
    cuts = {}
    for weights in split.WEIGHTS:
        plan = planned(data, 2, input_nodes=seeds, weights=weights, batch_size=64, num_neighbors=[5, 3])
        cuts[weights] = plan.cut
        if weights == "presampled":
            assert plan.imbalance < 1.1
    assert cuts["presampled"] < 0.9 * min(cuts["node"], cuts["edge"]) < 0.45 * cuts["random"]


@pytest.mark.slow
@pytest.mark.parametrize("evenly", [True, False])
def test_edges_into_a_node_weigh_their_mean_where_they_are_drawn_equally_often(evenly):
    data = make_data()
    data.w = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(3)) + 0.5
    plan, csc = planned(data, **({} if evenly else {"weight_attr": "w"})), CSC.from_data(data)
    drawn = plan.edge_load.double() if csc.edge_id is None else plan.edge_load.double()[csc.edge_id]
    columns = drawn.split(csc.colptr.diff().tolist())
    mean = torch.cat([column.mean().expand(len(column)) for column in columns])
    given = {name: owners_by("presampled", csc, plan.node_load.long(), load, SEEDS, 3, 5) for name, load in (
        ("mean", mean), ("each", drawn),
    )}  # fmt: skip
    assert torch.equal(plan.owners, given["mean" if evenly else "each"])
    assert not torch.equal(given["mean"], given["each"])


def test_edges_are_drawn_equally_often_without_weights():
    data = make_data()
    data.w = torch.ones(data.num_edges)
    assert _draws_evenly(NeighborSampler(data, [2]))
    assert not _draws_evenly(NeighborSampler(data, [2], weight_attr="w"))
    assert not _draws_evenly(LayerSampler(data, [2]))


def test_epochs_of_training_are_not_presampled():
    data = make_data()
    plan = planned(data, weights="random", epochs=1)
    loader = NeighborLoader(data, [3, 2], SEEDS, batch_size=16, shuffle=True, seed=5)
    assert torch.equal(plan.rows.long(), accesses(loader, [FIRST_EPOCH]))
    assert not any(torch.equal(plan.rows.long(), accesses(loader, [epoch])) for epoch in range(3))


def test_counts_are_stored_in_32_bits_where_they_fit():
    for largest, dtype in ((2**31 - 1, torch.int32), (2**31, torch.int64)):
        count = torch.tensor([0, largest])
        assert _compact(count).tolist() == count.tolist()
        assert _compact(count).dtype == dtype


def test_anybodys_owners_are_by_the_users_ids():
    data = make_data()
    owners = torch.arange(200) % 3
    plan = planned(data, weights=owners.to(torch.uint8))
    assert torch.equal(plan.owners, owners.int())
    assert plan.about["weights"] == "given"


# Renumbered stores ###################################################################################################


@pytest.fixture(scope="module")
def renumbered():
    """(data, a pair of stores of it in another order of nodes)."""
    data, score = make_data(), torch.rand(200, generator=torch.Generator().manual_seed(1))
    with TieredFeatureStore.from_data(data, hotness=score, renumbered=True, names=["x"]) as store:
        yield data, (store, GraphStore.from_data(data, order=store.order))


def test_counts_of_renumbered_stores_are_by_the_users_ids(renumbered):
    """All edges are drawn, so that the numbering decides nothing."""
    data, stores = renumbered
    options = {"num_neighbors": [-1, -1], "weights": (torch.arange(200) % 3).tolist()}
    plan, stored = planned(data, **options), planned(stores, **options)
    for name in ("owners", "node_load", "edge_load", "rows"):
        assert torch.equal(getattr(stored, name), getattr(plan, name)), name
    assert (stored.cut, stored.loads, stored.fingerprint) == (plan.cut, plan.loads, plan.fingerprint)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["presampled", "node", "random"])
def test_a_plan_of_renumbered_stores_is_by_the_users_ids(renumbered, tmp_path, weights):
    """What is planned is what batches are cut by, and what parts are written by."""
    data, stores = renumbered
    plan = planned(stores, weights=weights)
    loader = NeighborLoader(stores, [3, 2], SEEDS, batch_size=16, shuffle=True, seed=5, shard=False)
    assert (plan.cut, plan.loads) == counted(loader, plan.owners[stores[0].order.old], 3, "edges")
    plan.save(tmp_path / "plan")
    partition.write(data, tmp_path / "parts", parts=3, owners=np.load(tmp_path / "plan" / "owners.npy"))
    with partition.open_parts(tmp_path / "parts") as parts:
        for number in range(3):
            assert parts.part(number).user_ids[None].tolist() == (plan.owners == number).nonzero().view(-1).tolist()


def test_batches_of_renumbered_stores_are_cut_by_the_users_ids(renumbered):
    data, stores = renumbered
    plan = planned(data, weights="random")
    options = {"batch_size": 18, "split": plan, "seed_order": "owned"}
    for batch in NeighborLoader(stores, [3, 2], torch.arange(180), **options):
        of_seeds = plan.owners[batch.n_id[: batch.batch_size]].tolist()
        assert of_seeds == sorted(of_seeds)
        assert set(of_seeds) == {0, 1, 2}
    samplers = [NeighborLoader(given, [3, 2], SEEDS, split=plan)._sampler for given in (data, stores)]
    assert torch.equal(samplers[1].owners[stores[0].order.new], samplers[0].owners)


def test_what_is_measured_over_renumbered_stores_is_by_the_users_ids(renumbered):
    data, stores = renumbered
    plan = planned(data, weights="random")
    found, expected = (
        split.measure(plan, NeighborLoader(given, [-1, -1], SEEDS, batch_size=16, seed=5), [0])
        for given in (stores, data)
    )
    assert torch.equal(found.edges, expected.edges)
    assert torch.equal(found.cross, expected.cross)
    assert torch.equal(found.rows, expected.rows)


def test_a_plan_of_fewer_nodes_than_renumbered_stores_is_refused(renumbered):
    plan = planned(make_data(100), weights="random", input_nodes=torch.arange(50))
    with pytest.raises(ValueError, match=r"^split: expected a plan of 200 nodes, found one of 100$"):
        NeighborLoader(renumbered[1], [3, 2], SEEDS, split=plan)


# Saved plans #########################################################################################################


@pytest.mark.parametrize("weights", [SLOW("presampled"), "random"])
def test_a_saved_plan_comes_back(tmp_path, weights):
    plan = planned(make_data(), weights=weights)
    plan.save(tmp_path / "plan")
    found = split.Plan.open(tmp_path / "plan")
    for name in ("owners", "node_load", "edge_load", "rows"):
        assert getattr(found, name).dtype == getattr(plan, name).dtype == torch.int32
        assert torch.equal(getattr(found, name), getattr(plan, name))
    assert (found.parts, found.cut, found.about) == (plan.parts, plan.cut, plan.about)
    assert found.fingerprint == plan.fingerprint
    assert (str(found), repr(found)) == (str(plan), repr(plan))
    assert np.load(tmp_path / "plan" / "owners.npy").tolist() == plan.owners.tolist()
    with pytest.raises(FileExistsError, match=r"expected a new or an empty directory, found edge_load.npy in it"):
        plan.save(tmp_path / "plan")
    replace(plan, parts=int(plan.owners.max())).save(tmp_path / "fewer")
    with pytest.raises(ValueError, match=r"owners.npy: expected parts in \[0, 2\), found 2$"):
        split.Plan.open(tmp_path / "fewer")
    with (tmp_path / "plan" / "owners.npy").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x07")
    with pytest.raises(ValueError, match=r"owners.npy: checksum of block 0 \(64 MiB each\) differs"):
        split.Plan.open(tmp_path / "plan")
    (tmp_path / "plan" / "rows.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"rows.npy: not found"):
        split.Plan.open(tmp_path / "plan", verify=False)
    GraphStore.from_data(make_data()).save(tmp_path / "graph")
    with pytest.raises(ValueError, match=r"expected a directory of kind 'split plan', found"):
        split.Plan.open(tmp_path / "graph")


def test_a_fingerprint_is_of_owners_and_parts():
    data = make_data(20, 50)
    plans = [
        planned(data, parts, input_nodes=torch.arange(20), weights=owners, epochs=0)
        for owners, parts in (([0] * 20, 1), ([0] * 20, 2), ([0] * 19 + [1], 2), ([1] + [0] * 19, 2), ([0] * 20, 2))
    ]
    prints = [plan.fingerprint for plan in plans]
    assert len(set(prints)) == 4
    assert prints[1] == prints[4]
    assert (plans[0].loads, plans[0].cut, plans[0].cut_share, plans[0].imbalance) == ([0], 0, 0.0, 1.0)


def test_the_table():
    data = make_data(6, 1)
    data.edge_index = torch.tensor([[1, 2, 3, 0, 5], [0, 1, 2, 4, 4]])
    plan = split.plan(data, torch.tensor([0, 4]), [1, 2], 2, weights=[0, 1, 0, 0, 1, 1], epochs=1)
    # Seed 0: edge 1 -> 0 in 2 layers, 2 -> 1 in 1. Seed 4: one of its two edges in 2 layers.
    assert plan.edge_load[:3].tolist() == [2, 1, 0]
    assert sorted(plan.edge_load[3:].tolist()) == [0, 2]
    assert plan.node_load.tolist()[:2] == [4, 2]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"parts": 0}, ValueError, "parts: expected 1 <= parts <= 2147483647, found 0"),
        ({"epochs": -1}, ValueError, "epochs: expected 0 <= epochs <= 4611686018427387904, found -1"),
        ({"epochs": 0}, ValueError, "epochs: expected at least 1 for weights='presampled', found 0"),
        ({"epochs": 0, "weights": "node"}, ValueError, "epochs: expected at least 1 for weights='node', found 0"),
        (
            {"weights": "metis"},
            ValueError,
            "weights: expected one of ('presampled', 'node', 'edge', 'random') or the part of each node, found 'metis'",
        ),
        ({"load": "paper"}, ValueError, "load: expected one of ('edges', 'layers'), found 'paper'"),
        ({"weights": [0, 1]}, ValueError, "owners: expected the parts of 200 nodes, found shape (2,)"),
        (
            {"weights": [0] * 199 + [3]},
            IndexError,
            "owners[199] = 3 is out of range: expected parts in [0, 3)",
        ),
        ({"layers": True}, NotImplementedError, "layers=True with split parallelism is not implemented"),
        ({"disjoint": True}, NotImplementedError, "disjoint=True with split parallelism is not implemented"),
        (
            {"subgraph_type": "induced"},
            NotImplementedError,
            "subgraph_type='induced' with split parallelism is not implemented",
        ),
        ({"time_attr": "t"}, NotImplementedError, "time_attr, input_time with split parallelism is not implemented"),
    ],
)
def test_refusals(change, error, message):
    data = make_data()
    data.t = torch.arange(200)
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        planned(data, **{"parts": 3, **change})


@pytest.mark.parametrize(
    ("weights", "fanouts"),
    [
        ("presampled", [3, 2]), SLOW("node", [3, 2]), SLOW("edge", [3, 2]),
        SLOW("presampled", []), SLOW("node", []), ("edge", []),
    ],
)  # fmt: skip
def test_a_graph_without_edges_is_planned_by_its_nodes(weights, fanouts):
    data = Data(x=torch.ones(40, 1), edge_index=torch.empty(2, 0, dtype=torch.int64))
    found = split.plan(data, torch.arange(40), fanouts, 2, batch_size=8, epochs=2, weights=weights)
    assert found.loads == [40 * len(fanouts)] * 2
    assert (found.cut, found.cut_share, len(found.edge_load)) == (0, 0.0, 0)


def test_graphs_with_types_are_refused():
    data = HeteroData()
    data["a"].x = torch.zeros(3, 1)
    data["a", "to", "a"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(NotImplementedError, match=r"^a split plan of a HeteroData is not implemented: use a Data$"):
        split.plan(data, "a", [2])
    stores = FeatureStore.from_data(data), GraphStore.from_data(data)
    with pytest.raises(NotImplementedError, match=r"^a split plan of a graph with types is not implemented"):
        split.plan(stores, "a", [2])
    sampler = NeighborSampler(data, [2])
    with pytest.raises(NotImplementedError, match=r"^HeteroData with split parallelism"):
        check_sampler(sampler)


def test_the_stores_of_a_part_are_refused(tmp_path):
    partition.write(make_data(), tmp_path / "parts", 1, method="ranges")
    text = "a split plan of the stores of a part is not implemented: make it of the whole graph, before it is in parts"
    with (
        open_part(tmp_path / "parts") as part,
        pytest.raises(NotImplementedError, match=f"^{text}$"),
    ):
        split.plan((part.features, part.graph), torch.arange(3), [2])
