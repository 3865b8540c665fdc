"""A prefetch buffer changes no batch, and less is fetched."""

import functools
import re

import pytest
from helpers.boundary import boundary_graph, owners_of
from helpers.cluster import cluster
from helpers.disturbed import disturbed
from helpers.parts import batches_of_rank, check_batches, expected_batches, fetched, homogeneous, loader_of_part
from helpers.slow import SLOW, quick

from torch_gnnscale import partition
from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.buffer import Kept
from torch_gnnscale.distributed.partitioned_features import PartitionedFeatureStore


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """parts(K): (data, directory of K parts), written once."""

    @functools.cache
    def of(count):
        data, path = boundary_graph(), tmp_path_factory.mktemp("parts") / "parts"
        partition.write(data, path, parts=count, owners=owners_of(count), links={"train": data.edge_index[:, ::7]})
        return data, str(path)

    return of


POLICIES = {
    "massivegnn": {"buffer": 0.5, "policy_options": {"gamma": 0.9, "delta": 2}},
    "static": {"buffer": 0.25, "policy": "static"},
    "a small one in bytes": {"buffer": "2KiB", "policy_options": {"delta": 3}},
    "lookahead": {"buffer": 0.3, "policy": "lookahead", "policy_options": {"window": 3}},
    "a whole epoch": {"buffer": 0.3, "policy": "lookahead", "policy_options": {"window": "epoch"}},
    "nothing": {"buffer": 0.0},
    "everything": {"buffer": 1.0, "policy": "lookahead"},
}


@pytest.mark.parametrize("kept", quick(POLICIES, "lookahead"))
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nodes", {}), SLOW("nodes", {"prefetch": 0, "disjoint": True}),
        SLOW("nodes", {"uneven": "serve", "batch_size": 7}), SLOW("links", {"seed_order": "global"}),
    ],
    ids=["nodes", "disjoint", "serve", "links"],
)  # fmt: skip
def test_batches_are_those_of_one_process(parts, kept, kind, options):
    data, path = parts(3)
    expected = expected_batches(data, path, kind, 3, options, 3)
    check_batches(cluster(3).run(batches_of_rank, path, kind, 3, options, kept), expected)


@pytest.mark.slow
def test_less_is_fetched_in_the_same_rounds(parts):
    nine = {"num_neighbors": [9, 9]}
    path = parts(2)[1]
    none = cluster(2).run(fetched, path, {}, 4, nine)
    for kept in (POLICIES["massivegnn"], POLICIES["static"], POLICIES["lookahead"], POLICIES["everything"]):
        for with_buffer, without in zip(cluster(2).run(fetched, path, kept, 4, nine), none, strict=True):
            assert with_buffer[0] < 0.9 * without[0]
            assert with_buffer[1:] == without[1:]
            assert without[1] == 2 * without[2]


@pytest.mark.slow
@pytest.mark.parametrize("kept", POLICIES.values(), ids=POLICIES)
def test_loops_that_are_left_and_batches_that_fail(parts, kept):
    path = parts(2)[1]
    expected = cluster(2).run(disturbed, path, {}, {})
    assert any("failed" in batches for batches in expected[0])
    assert cluster(2).run(disturbed, path, kept, {}) == expected


@pytest.mark.slow
def test_bytes_hold_at_most_what_other_parts_have(parts):
    with partition.open_parts(parts(2)[1]) as opened:
        kept = Kept("1GiB", "lookahead", {"window": 2})
        store = PartitionedFeatureStore(opened, opened.part(0), Ranks(0, 2, 0, 2), None, print, object, kept, None)
        made = [buffer for buffer in store.new_buffers() if buffer is not None]
        assert [buffer.policy.capacity for buffer in made] == [len(opened.book.nodes(1))]


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"policy": "static"}, "policy, policy_options: expected none without a buffer"),
        ({"buffer": 0.5, "policy": "lru"},
         "policy: expected one of ['massivegnn', 'static', 'lookahead'], found 'lru'"),
        ({"buffer": 1.5}, "buffer: expected a share of 0 to 1, found 1.5"),
    ],
)  # fmt: skip
def test_bad_input(tmp_path, kept, message):
    partition.write(homogeneous(), tmp_path / "parts", parts=1, method="random")
    expected = pytest.raises(ValueError, match=rf"^{re.escape(message)}$")
    with expected, open_part(tmp_path / "parts", **kept) as part:
        loader_of_part(part)
