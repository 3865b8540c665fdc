"""Plans: what lies where, before anything is allocated."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale.feature import plan_tiers
from torch_gnnscale.topology.reorder import by_score

SCORE = torch.tensor([1.0, 8.0, 4.0, 3.0])


def test_a_plan():
    plan = plan_tiers(SCORE, {"x": 100}, gpu=16 + 100, peers=[50, 50], host="220B", disk=True)
    # the map takes 4 bytes per node of the GPU's budget; a peer has no room for a row
    assert [(tier.name, tier.rows, tier.num_bytes, tier.hit_rate) for tier in plan.tiers] == [
        ("gpu", 1, 100, 0.5), ("host", 2, 200, 7 / 16), ("disk", 1, 100, 1 / 16),
    ]  # fmt: skip
    assert (plan.row_bytes, plan.map_bytes, plan.whole) == (100, 16, {})
    assert (plan.rows("host"), plan.rows("peers")) == (2, 0)
    assert plan.bytes_per_read("host") == 43.75
    assert str(plan).splitlines() == [
        "tier  rows  bytes  expected hit rate  expected bytes per row read",
        " gpu     1  100 B              0.500                         50.0",
        "host     2  200 B              0.438                         43.8",
        "disk     1  100 B              0.062                          6.2",
        "map of places: 16 B in gpu",
    ]


@pytest.mark.parametrize(
    ("budgets", "where", "rows"),
    [
        ({"host": 216}, "host", 2), ({"host": 216, "on_gpu": True}, "gpu", 2),
        ({"host": 216, "peers": [100, 100]}, "gpu", 2), ({"gpu": 116, "host": 100}, "gpu", 1),
    ],
)  # fmt: skip
def test_a_map_lies_where_rows_are_gathered(budgets, where, rows):
    plan = plan_tiers(SCORE, {"x": 100}, disk=True, **budgets)
    assert (plan.map_tier, plan.map_bytes, plan.rows("host")) == (where, 16, rows)
    assert str(plan).endswith(f"map of places: 16 B in {where}")


@pytest.mark.parametrize(
    ("budgets", "tier", "rows"),
    [
        ({"peers": [200, 200]}, "peers", 4), ({"peers": [199, 199]}, "peers", 2), ({"peers": [99] * 3}, "peers", 0),
        ({"peers": [100] * 3}, "peers", 3), ({"host": 16 + 300}, "host", 3), ({"host": 16 + 299}, "host", 2),
        ({"host": 400}, "host", 4), ({"gpu": 16 + 299, "host": 0}, "gpu", 2), ({"gpu": 16 + 300, "host": 0}, "gpu", 3),
    ],
)  # fmt: skip
def test_as_many_rows_as_a_budget_has_room_for(budgets, tier, rows):
    assert plan_tiers(SCORE, {"x": 100}, disk=True, **budgets).rows(tier) == rows


def test_narrow_attributes_are_kept_whole():
    sizes = {"x": 160, "y": 8, "z": 11}
    plan = plan_tiers(SCORE, sizes, host=32 + 16 + 2 * 171, disk=True)
    assert plan.whole == {"y": "host"}
    assert plan.row_bytes == 171
    assert [tier.rows for tier in plan.tiers] == [2, 2]
    assert plan_tiers(SCORE, {"x": 160, "y": 10, "z": 11}, disk=True).whole == {"y": "host"}  # a sixteenth is narrow
    assert plan_tiers(SCORE, sizes, host=16, disk=True).whole == {"y": "disk"}
    assert plan_tiers(SCORE, sizes, host=31, disk=True).whole == {"y": "disk"}
    assert plan_tiers(SCORE, sizes, host=32, disk=True).whole == {"y": "host"}
    assert plan_tiers(SCORE, sizes, gpu=200, host=400, disk=True).whole == {"y": "gpu"}


def test_one_tier_needs_no_map():
    assert plan_tiers(SCORE, {"x": 10}, host=16, disk=True).map_bytes == 0  # which would leave no room for a row
    for budgets in ({}, {"host": "100%"}, {"gpu": "100%"}, {"host": 1 << 40}):
        plan = plan_tiers(SCORE, {"x": 100}, **budgets)
        assert plan.map_bytes == 0
        assert [tier.rows for tier in plan.tiers] == [4]
    assert plan_tiers(SCORE, {"x": 100}, gpu=100, mapped=False).map_bytes == 0
    assert plan_tiers(SCORE, {"x": 100}, gpu=116).map_bytes == 16
    for name, budgets in (
        ("disk", {"host": 0}), ("disk", {"host": 110}), ("peers", {"peers": ["100%"]}),
        ("host", {"gpu": 110, "disk": False}),
    ):  # fmt: skip
        plan = plan_tiers(SCORE, {"x": 100}, **{"disk": True, **budgets})
        assert [tier.name for tier in plan.tiers] == [name]
        assert plan.map_bytes == 0


def test_rows_without_bytes_are_in_host_memory():
    for sizes in ({}, {"x": 0}):
        assert [tier.name for tier in plan_tiers(SCORE, sizes, gpu=5, host=0, disk=True).tiers] == ["host"]


@pytest.mark.slow
@given(
    nodes=st.integers(0, 60), row=st.integers(0, 300), gpu=st.integers(0, 9000), peer=st.integers(0, 5000),
    peers=st.integers(0, 4), host=st.one_of(st.none(), st.integers(0, 9000)), seed=st.integers(0, 1 << 30),
    mapped=st.booleans(), integers=st.booleans(),
)  # fmt: skip
def test_every_row_lies_somewhere_and_no_budget_is_exceeded(nodes, row, gpu, peer, peers, host, seed, mapped, integers):
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(9, (nodes,), generator=generator)
    score = score if integers else score.float() / 3
    try:
        plan = plan_tiers(score, {"x": row}, gpu=gpu, peers=[peer] * peers, host=host, disk=True, mapped=mapped)
    except ValueError as error:
        assert "expected room for the map" in str(error)  # noqa: PT017
        return
    assert sum(tier.rows for tier in plan.tiers) == nodes
    assert sum(tier.hit_rate for tier in plan.tiers) == pytest.approx(1.0)
    rest = {"gpu": gpu, "peers": peer * peers, "host": host}
    assert plan.map_tier == ("gpu" if gpu or peer * peers else "host")
    if rest[plan.map_tier]:  # a GPU without a budget has the map beside it
        rest[plan.map_tier] -= plan.map_bytes
    first, order = 0, by_score(score).old
    for tier in plan.tiers:
        assert tier.num_bytes == tier.rows * row
        if rest.get(tier.name) is not None:
            assert tier.num_bytes <= rest[tier.name]
        if score.sum():
            ours = score[order[first : first + tier.rows]].sum() / score.sum()
            assert tier.hit_rate == pytest.approx(float(ours), abs=1e-5)
        first += tier.rows
    if mapped and not plan.map_bytes:  # which one more row in memory would need, where rows are gathered
        rest[plan.map_tier] = (rest[plan.map_tier] or 0) - 4 * nodes
    last = plan.tiers[-1]
    if last.name == "disk" and last.rows:  # nothing faster has room for one more row
        assert rest["gpu"] - plan.rows("gpu") * row < row
        assert rest["host"] - plan.rows("host") * row < row


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "budgets: expected room for 4 rows of 100 bytes, found 200 bytes too little; raise host= or give "
         "disk=", lambda: plan_tiers(SCORE, {"x": 100}, host=216)),
        (ValueError, "host: expected room for the map of 4 nodes, 16 bytes, found 10",
         lambda: plan_tiers(SCORE, {"x": 4}, host=10, disk=True)),
        (ValueError, "score: expected numbers of at least 0, found -1.0",
         lambda: plan_tiers(-SCORE[:1], {"x": 100})),
        (ValueError, "score: expected finite numbers, found inf", lambda: plan_tiers(SCORE / 0, {"x": 100})),
        (ValueError, "peers: expected equal budgets, for rows are interleaved, found [1, 2]",
         lambda: plan_tiers(SCORE, {"x": 100}, peers=[1, 2])),
        (TypeError, "row_bytes['x']: expected an int, found float", lambda: plan_tiers(SCORE, {"x": 1.5})),
        (TypeError, "score: expected real numbers, found list", lambda: plan_tiers([1.0], {"x": 1})),
    ],
)  # fmt: skip
def test_bad_input(error, message, call):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


def test_narrow_attributes_lie_where_there_is_a_budget_the_narrowest_first():
    row_bytes = {"x": 256, "a": 16, "b": 4}
    plan = plan_tiers(torch.arange(10), row_bytes, host=170, disk=True)
    assert plan.whole == {"b": "host", "a": "disk"}
    assert plan_tiers(torch.zeros(0), row_bytes, host="1KiB").whole == {"a": "host", "b": "host"}


def test_rows_for_which_there_is_no_room_are_told_beside_the_map():
    text = r"^budgets: expected room for 4 rows of 100 bytes, found 300 bytes too little; raise host= or give disk=$"
    with pytest.raises(ValueError, match=text):
        plan_tiers(SCORE, {"x": 100}, host="210B")
