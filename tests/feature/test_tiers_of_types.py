"""Tiers of a graph with types: one budget, which goes to the rows that are read most per byte."""

import pickle

import pytest
import torch
from helpers.data import plain
from helpers.hetero import AUTHOR, PAPER, VENUE, make_hetero
from helpers.slow import SLOW
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale.feature import hotness
from torch_gnnscale.feature.tier_plan import TypedTierPlan, plan_ranked, plan_types
from torch_gnnscale.loader import accesses
from torch_gnnscale.topology.reorder import TypedOrder, by_score

PLACES = ["a", "b", 0, 1, 2, 3]
"""Types whose ids are places."""
ALONE = {"gpu": 0, "peers": (), "disk": True, "renumbered": PLACES, "on_gpu": False}


def hetero():
    """Rows of 16, 200 and 8 bytes."""
    data = make_hetero()
    data[AUTHOR].x = torch.arange(25)[:, None] + torch.arange(50) / 64
    data[VENUE].x = torch.arange(5)[:, None] + torch.arange(2) / 64
    data[PAPER].train_mask = torch.arange(40) % 3 == 0
    for store in data.edge_stores:
        store.pop("edge_attr", None)
    return data


@pytest.mark.parametrize("kwargs", [{}, SLOW({"num_workers": 2})], ids=str)
@pytest.mark.parametrize("budgets", [{}, {"host": "40%"}, {"host": "40%", "renumbered": True}], ids=str)
def test_batches_are_those_of_the_untiered_loader(budgets, kwargs, tmp_path):
    data = hetero()
    options = {"num_neighbors": [4, 3], "batch_size": 8, "shuffle": True, "seed": 5}
    seeds = (PAPER, torch.arange(30))
    with Tiered.from_data(data, disk=tmp_path if "host" in budgets else None, **budgets) as store:
        graph = GraphStore.from_data(data, order=store.order)
        ours = list(NeighborLoader((store, graph), input_nodes=seeds, **options, **kwargs))
        rows = FeatureStore.from_data(data, order=store.order)
        expected = NeighborLoader((rows, graph), input_nodes=seeds, **options)
        assert [plain(batch) for batch in ours] == [plain(batch) for batch in expected]
        for batch in ours:
            for node_type in data.node_types:
                assert torch.equal(batch[node_type].x, data[node_type].x[batch[node_type].n_id])
        assert isinstance(store.plan, TypedTierPlan)
        assert isinstance(store.order, TypedOrder if "renumbered" in budgets else type(None))


def test_opened_rows_are_those_that_were_saved(tmp_path):
    data = hetero()
    FeatureStore.from_data(data).save(tmp_path / "saved")
    scores = {node_type: torch.arange(data[node_type].num_nodes) for node_type in data.node_types}
    with Tiered.open(tmp_path / "saved", scores, host="50%", names=["x"]) as store:
        for node_type in data.node_types:
            assert torch.equal(store[node_type, "x", None], data[node_type].x)
        again = pickle.loads(pickle.dumps(store))
        assert torch.equal(again[AUTHOR, "x", None], data[AUTHOR].x)
        assert str(again.plan) == str(store.plan)


def test_renumbered_rows_are_opened_in_their_order(tmp_path):
    data = hetero()
    scores = {node_type: torch.rand(data[node_type].num_nodes) for node_type in data.node_types}
    order = TypedOrder({node_type: by_score(score) for node_type, score in scores.items()})
    FeatureStore.from_data(data, order=order).save(tmp_path / "saved")
    with Tiered.open(tmp_path / "saved", scores, host="50%", renumbered=True, names=["x"]) as store:
        assert store.order.equals(order)
        for node_type in data.node_types:
            assert torch.equal(store[node_type, "x", order[node_type].new], data[node_type].x)


def test_expected_and_found_hit_rates_agree_if_scores_are_accesses(tmp_path):
    data = hetero()
    graph = GraphStore.from_data(data)
    options = {"num_neighbors": [4, 3], "input_nodes": (PAPER, torch.arange(30)), "batch_size": 8, "seed": 1}
    exact = accesses(NeighborLoader((FeatureStore.from_data(data), graph), **options), [0])
    nodes = [batch for batch in NeighborLoader((FeatureStore.from_data(data), graph), **options)]
    for node_type, count in exact.items():
        ids = torch.cat([batch[node_type].n_id for batch in nodes])
        assert torch.equal(count, torch.bincount(ids, minlength=data[node_type].num_nodes))
    with Tiered.from_data(data, hotness=exact, host="50%", disk=tmp_path, names=["x"]) as store:
        for _ in NeighborLoader((store, graph), **options):
            pass
        found = {name: use.hit_rate for name, use in store.stats().items()}
        assert found == pytest.approx({tier.name: tier.hit_rate for tier in store.plan.tiers})
        assert 0 < found["host"] < 1
        assert f"{AUTHOR}:\ntier" in str(store.plan)


@pytest.mark.slow
@given(st.data())
def test_the_budget_has_the_rows_that_are_read_most_per_byte(data):
    counts = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=4))
    sizes = [data.draw(st.integers(1, 40)) for _ in counts]
    draw = st.integers(0, 1000)
    scores = {g: torch.tensor(sorted((data.draw(draw) for _ in range(n)), reverse=True), dtype=torch.float64)
              for g, n in enumerate(counts)}  # fmt: skip
    room = data.draw(st.integers(0, sum(n * size for n, size in zip(counts, sizes, strict=True))))
    plans = plan_types(scores, {g: {"x": size} for g, size in enumerate(sizes)}, host=room, **ALONE)
    assert sum(plan.rows("host") * sizes[g] for g, plan in plans.items()) <= room
    assert all(sum(tier.rows for tier in plan.tiers) == counts[g] for g, plan in plans.items())
    kept = [float(scores[g][plan.rows("host") - 1]) / sizes[g] for g, plan in plans.items() if plan.rows("host")]
    left = [float(scores[g][plan.rows("host")]) / sizes[g] for g, plan in plans.items() if plan.rows("disk")]
    assert not kept or not left or min(kept) >= max(left)
    if sum(counts) and sum(float(score.sum()) for score in scores.values()):
        assert sum(tier.hit_rate for plan in plans.values() for tier in plan.tiers) == pytest.approx(1)
    alone = plan_ranked(scores[0], {"x": sizes[0]}, gpu=0, peers=(), host=room, disk=True, mapped=False, on_gpu=False)
    assert alone == plan_types({0: scores[0]}, {0: {"x": sizes[0]}}, host=room, **ALONE)[0]


@pytest.mark.parametrize("per_gpu", [1000, 1016, 3000])
def test_rows_over_peers_are_multiples_of_their_number(per_gpu):
    scores = {"a": torch.arange(100.0).flip(0), "b": torch.arange(50.0).flip(0) * 3}
    options = {"gpu": 0, "host": None, "disk": False, "renumbered": PLACES, "on_gpu": True}
    plans = plan_types(scores, {"a": {"x": 16}, "b": {"x": 48}}, peers=[per_gpu, per_gpu], **options)
    rows = {group: plan.rows("peers") for group, plan in plans.items()}
    assert all(count % 2 == 0 for count in rows.values())
    assert rows["a"] // 2 * 16 + rows["b"] // 2 * 48 <= per_gpu
    assert all(plan.rows("peers") + plan.rows("host") == len(scores[group]) for group, plan in plans.items())


@pytest.mark.parametrize(("per_gpu", "rows"), [(31, 2), (32, 3)])
def test_a_type_may_end_within_a_round_that_fits_exactly(per_gpu, rows):
    scores = {"a": torch.tensor([9.0, 8.0, 7.0]), "b": torch.tensor([0.1])}
    options = {"gpu": 0, "host": None, "disk": False, "renumbered": PLACES, "on_gpu": True}
    plans = plan_types(scores, {"a": {"x": 16}, "b": {"x": 48}}, peers=[per_gpu, per_gpu], **options)
    assert [plans[group].rows("peers") for group in "ab"] == [rows, 0]


def test_labelled_nodes_of_a_type_that_repeat_count_once():
    csc = CSC.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 5)
    repeated, once = (
        hotness.typed_reverse_pagerank({("a", "to", "a"): csc}, {"a": 5}, {"a": torch.tensor(ids)}, iterations=1)["a"]
        for ids in ([2, 0, 2], [0, 2])
    )
    assert torch.equal(repeated, once)


def test_out_degrees_count_the_edges_of_all_relations_from_a_type():
    data = hetero()
    expected = {node_type: torch.zeros(data[node_type].num_nodes, dtype=torch.int64) for node_type in data.node_types}
    for (src, _, _), store in data.edge_items():
        expected[src] += torch.bincount(store.edge_index[0], minlength=len(expected[src]))
    assert len({src for src, _, _ in data.edge_types}) < len(data.edge_types)
    found = hotness.scores_of(data, "out_degree")
    assert all(torch.equal(found[node_type], count) for node_type, count in expected.items())


def test_maps_of_places_are_part_of_the_budget():
    scores = {"a": torch.arange(100.0).flip(0), "b": torch.arange(50.0).flip(0)}
    given = scores, {"a": {"x": 16}, "b": {"x": 48}}
    options = ALONE | {"renumbered": ()}
    plans = plan_types(*given, host=2000, **options)
    assert TypedTierPlan(plans).map_bytes == 600
    assert sum(plan.rows("host") * plan.row_bytes for plan in plans.values()) <= 1400
    assert TypedTierPlan(plan_types(*given, host=5000, **options)).map_bytes == 0
    with pytest.raises(ValueError, match=r"^host: expected room for the map of 100 nodes, 400 bytes, found 100$"):
        plan_types(*given, host=100, **options)
    with pytest.raises(ValueError, match=r"^budgets: expected room for 100 rows of 16 bytes and 50 rows of 48 bytes, "):
        plan_types(*given, host=2000, **options | {"disk": False})


@pytest.mark.parametrize(
    "labelled", [None, {PAPER: torch.arange(7)}, {PAPER: torch.arange(40) < 7, AUTHOR: torch.tensor([3])}]
)
def test_reverse_pagerank_of_types(labelled):
    data = hetero()
    graph = GraphStore.from_data(data)
    relations = {attr.edge_type: graph.relation(attr.edge_type) for attr in graph.get_all_edge_attrs()}
    num_nodes = {node_type: data[node_type].num_nodes for node_type in data.node_types}
    found = hotness.typed_reverse_pagerank(relations, num_nodes, labelled, iterations=3, damping=0.8)
    score = {node_type: [1.0] * count for node_type, count in num_nodes.items()}
    starts = {t: ids.nonzero()[:, 0] if ids.dtype == torch.bool else ids for t, ids in (labelled or {}).items()}
    for node_type, ids in starts.items():
        for node in ids.tolist():
            score[node_type][node] = sum(num_nodes.values()) / sum(map(len, starts.values()))
    for _ in range(3):
        new = {node_type: [0.2] * count for node_type, count in num_nodes.items()}
        for (src, _, dst), ends in data.edge_index_dict.items():
            degree = torch.bincount(ends[1], minlength=num_nodes[dst]).tolist()
            for v, w in ends.t().tolist():
                new[src][v] += 0.8 * score[dst][w] / degree[w]
        score = new
    for node_type, expected in score.items():
        torch.testing.assert_close(found[node_type], torch.tensor(expected, dtype=torch.float64))


def test_one_relation_has_the_scores_of_a_homogeneous_graph():
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(50, (2, 300), generator=generator)
    csc = GraphStore.from_edge_index(index, 50).relation()
    labelled = torch.arange(9)
    expected = hotness.reverse_pagerank(csc, labelled).double()
    found = hotness.typed_reverse_pagerank({("a", "to", "a"): csc}, {"a": 50}, {"a": labelled})["a"]
    torch.testing.assert_close(found / found.sum(), expected / expected.sum(), rtol=1e-4, atol=1e-9)


def test_bad_relations():
    csc = GraphStore.from_edge_index(torch.tensor([[0], [1]]), 2).relation()
    with pytest.raises(ValueError, match=r"^damping: expected 0 <= damping <= 1, found 5$"):
        hotness.typed_reverse_pagerank({("a", "to", "a"): csc}, {"a": 2}, damping=5)
    text = r"^relations\[\('a', 'to', 'b'\)\]: expected \(2, None\) sources and destinations, found CSC"
    with pytest.raises(ValueError, match=text):
        hotness.typed_reverse_pagerank({("a", "to", "b"): csc}, {"a": 2})


def test_rows_of_all_types_fit_into_peers_of_all_bytes():
    scores = {"a": torch.arange(101.0).flip(0), "b": torch.arange(51.0).flip(0)}
    options = {"gpu": 0, "host": 0, "disk": False, "renumbered": PLACES, "on_gpu": True}
    plans = plan_types(scores, {"a": {"x": 16}, "b": {"x": 16}}, peers=["100%", "100%"], **options)
    assert {group: plan.rows("peers") for group, plan in plans.items()} == {"a": 101, "b": 51}


def test_types_without_nodes_are_read_once():
    nothing = {"a": torch.empty(0), "b": torch.empty(0)}
    plans = plan_types(nothing, {"a": {"x": 16}, "b": {"x": 16}}, host=None, **ALONE)
    assert sum(tier.hit_rate for plan in plans.values() for tier in plan.tiers) == 1
