"""A buffer that looks ahead over parts of the edges: the ranks sample batches of later steps together."""

from itertools import product

import pytest
from helpers.cluster import cluster
from helpers.disturbed import disturbed, fails_between, unanswerable
from helpers.parts import batches_of_rank, check_batches, expected_batches, fetched, parts_of_edges
from helpers.slow import NIGHTLY, SLOW

from torch_gnnscale import partition


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return parts_of_edges(lambda: tmp_path_factory.mktemp("parts"))


def looks(window):
    return {"buffer": 0.3, "policy": "lookahead", "policy_options": {"window": window}}


SERVED = {"seed_order": "global", "uneven": "serve", "batch_size": 7}
BULKS = [{}, {"bulk": 4, **SERVED}, {"bulk": 2}, {"bulk": 100}, SERVED]
WINDOWS = [1, 3, "epoch", 0, 2, 16]


def grids_windows_and_bulks():
    """All windows with all bulks on two ranks, by day each window and each bulk; so, too, on the other grids. The fast
    ones: a few steps, whose bulks end elsewhere; more steps than there are."""
    for (i, window), (j, options) in product(enumerate(WINDOWS), enumerate(BULKS)):
        fast = (i, j) in ((1, 1), (2, 0))
        yield (pytest.param if fast else NIGHTLY if (i + j) % 5 else SLOW)(2, 2, window, options)
        if (i + j) % 5 < 2:
            yield SLOW(*[(3, 3), (2, 4)][(i + j) % 5], window, options)


@pytest.mark.parametrize(("count", "world", "window", "options"), list(grids_windows_and_bulks()))
def test_batches_are_those_of_one_process(parts, options, window, count, world):
    data, path = parts(count)
    expected = expected_batches(data, path, "nodes", 2, options, world)
    check_batches(cluster(world).run(batches_of_rank, path, "nodes", 2, options, looks(window)), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"method": "ladies", "num_neighbors": [12, 9], "bulk": 3}, {"method": "labor"},
        {"weight_attr": "weight", "prefetch": 0}, {"disjoint": True, "time_attr": "time"},
    ],
)  # fmt: skip
def test_whatever_is_sampled(parts, options):
    data, path = parts(2)
    expected = expected_batches(data, path, "nodes", 2, options, 2)
    check_batches(cluster(2).run(batches_of_rank, path, "nodes", 2, options, looks(2)), expected)


@pytest.mark.slow
def test_a_part_without_nodes_samples_ahead_as_the_others_do(parts):
    data, path = parts(0)
    options = {"uneven": "serve"}
    expected = expected_batches(data, path, "nodes", 2, options, 3)
    check_batches(cluster(3).run(batches_of_rank, path, "nodes", 2, options, looks(2)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("bulk", [1, 4])
@pytest.mark.parametrize("window", [1, 3, "epoch"])
def test_rows_are_missed_as_where_every_rank_samples_alone(parts, window, bulk, tmp_path_factory):
    data, path = parts(2)
    replicated = tmp_path_factory.mktemp("replicated") / "parts"
    partition.write(data, replicated, parts=2, method="random")
    options = {"num_neighbors": [9, 9], "bulk": bulk}
    found = cluster(2).run(fetched, path, looks(window), 3, options)
    assert found == cluster(2).run(fetched, str(replicated), looks(window), 3, options)
    without = cluster(2).run(fetched, path, {}, 3, options)
    assert all(few[0] < 0.9 * many[0] and few[1:] == many[1:] for few, many in zip(found, without, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("bulk", [1, 4])
@pytest.mark.parametrize("window", [1, 3, "epoch"])
@pytest.mark.parametrize("world", [2, 4])
def test_loops_that_are_left_and_batches_that_fail(parts, window, bulk, world):
    expected = cluster(world).run(disturbed, parts(2)[1], {}, {"bulk": bulk})
    assert any("failed" in batches for batches in expected[0])
    assert cluster(world).run(disturbed, parts(2)[1], looks(window), {"bulk": bulk}) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("window", "bulk"), [(2, 1), (1, 2), ("epoch", 1), (4, 2)])
@pytest.mark.parametrize("bad_rank", [0, 1])
def test_an_error_of_a_bulk_is_raised_in_the_steps_of_its_batches(parts, window, bulk, bad_rank):
    whole = cluster(2).run(unanswerable, parts(2)[1], -1, bulk)
    found = cluster(2).run(unanswerable, parts(2)[1], bad_rank, bulk, looks(window))
    text = "RuntimeError: drawing neighbors: expected it of all ranks, found that "
    text += f"rank {bad_rank} failed: KeyError: 'no luck'"
    bad = slice(2 * bulk, 3 * bulk)
    for rank, (ours, expected) in enumerate(zip(found, whole, strict=True)):
        assert ours[bad] == ["KeyError: 'no luck'" if rank == bad_rank else text] * len(expected[bad])
        assert ours[: bad.start] + ours[bad.stop :] == expected[: bad.start] + expected[bad.stop :]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["hops", "transform"])
def test_an_error_of_a_rank_by_itself_is_raised_on_all_and_the_next_batches_follow(parts, where):
    whole = cluster(2).run(fails_between, parts(2)[1], -1, where)
    first, second = cluster(2).run(fails_between, parts(2)[1], 1, where, looks(1))
    assert first[2].startswith("RuntimeError: ")
    assert "rank 1 failed" in first[2]
    assert first[2].endswith(": KeyError: 'no luck'")
    assert second[2] == "KeyError: 'no luck'"
    for found, expected in ((first, whole[0]), (second, whole[1])):
        assert found[:2] + found[3:] == expected[:2] + expected[3:]
