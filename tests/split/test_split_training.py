"""A model that ranks train together on split batches gets the weights that one process gives it."""

import functools

import pytest
import torch
from helpers.cluster import cluster
from helpers.split_training import check_weights, saved_plan, trained

OPTIONS = {
    "as usual": {},
    "bulk": {"bulk": 2},
    "drop": {"drop_last": True},
    "ladies": {"method": "ladies"},
    "fastgcn": {"method": "fastgcn", "num_neighbors": [60, 40]},
    "weights": {"weight_attr": "chance"},
    "without threads": {"prefetch": 0},
    "renumbered": {"where": "renumbered"},
    "rows and edges in files": {"where": "files"},
    "rows in tiers of the plan": {"where": "tiers"},
}


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """plans(parts): a saved plan, made once."""
    return functools.cache(lambda parts: saved_plan(tmp_path_factory.mktemp("plans"), parts))


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_weights_are_those_of_one_process(plans, world, options):
    plan = plans(world)
    where = "renumbered" if options.get("where") == "renumbered" else "memory"
    expected = trained(plan, 2, options={**options, "where": where})
    check_weights(cluster(world).run(trained, plan, 2, 1, options), expected)
    first, *_, last = expected
    assert not any(torch.equal(last[name], first[name]) for name in last if "weight" in name)


@pytest.mark.slow
def test_two_groups_of_two_ranks(plans):
    plan = plans(2)
    expected = trained(plan, 2, groups=2, norm=None)
    check_weights(cluster(4).run(trained, plan, 2, 1, {}, None), expected)


@pytest.mark.slow
def test_groups_of_ranks_keep_one_set_of_statistics(plans):
    plan = plans(2)
    found = cluster(4).run(trained, plan, 2)
    for first, *others in zip(*found, strict=True):
        assert any("running_var" in name for name in first)
        for of_rank in others:
            assert all(torch.equal(of_rank[name], first[name]) for name in first)
