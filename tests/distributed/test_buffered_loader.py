"""A prefetch buffer changes no batch, and less is fetched."""

import re

import pytest
from helpers.cluster import cluster
from helpers.parts import as_plain, batches_of_rank, expected_batches, homogeneous, loader_over, with_links
from helpers.slow import SLOW, quick
from torch import distributed as dist

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """(data, a directory of two parts)."""
    return with_links(tmp_path_factory, 2)


POLICIES = {
    "massivegnn": {"buffer": 0.5, "policy_options": {"gamma": 0.9, "delta": 2}},
    "static": {"buffer": 0.25, "policy": "static"},
    "a small one in bytes": {"buffer": "2KiB", "policy_options": {"delta": 3}},
    "lookahead": {"buffer": 0.3, "policy": "lookahead", "policy_options": {"window": 3}},
    "a whole epoch": {"buffer": 0.3, "policy": "lookahead", "policy_options": {"window": "epoch"}},
    "nothing": {"buffer": 0.0},
    "everything": {"buffer": 1.0, "policy": "lookahead"},
}


@pytest.mark.parametrize("kept", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nodes", {}), SLOW("nodes", {"prefetch": 0, "disjoint": True}),
        SLOW("nodes", {"uneven": "serve", "batch_size": 7}), SLOW("links", {"seed_order": "global"}),
    ],
    ids=["nodes", "disjoint", "serve", "links"],
)  # fmt: skip
def test_batches_are_those_of_one_process(parts, kept, kind, options):
    data, path = parts
    expected = expected_batches(data, path, kind, 3, options, 2)
    assert cluster(2).run(batches_of_rank, path, kind, 3, options, kept) == expected


def fetched(path, kept, epochs):
    """Bytes of rows that this rank got, and rounds."""
    with open_part(path, **kept) as part:
        loader = loader_over((part.features, part.graph), part.input_nodes("train"), "nodes", {"num_neighbors": [9, 9]})
        steps = sum(1 for _ in range(epochs) for _ in loader)
        stats = part.stats()
        return stats["rows"]["bytes_received"], stats["rows"]["rounds"] + stats["ids"]["rounds"], steps


@pytest.mark.slow
def test_less_is_fetched_in_the_same_rounds(parts):
    none = cluster(2).run(fetched, parts[1], {}, 4)
    for kept in (POLICIES["massivegnn"], POLICIES["static"], POLICIES["lookahead"], POLICIES["everything"]):
        for with_buffer, without in zip(cluster(2).run(fetched, parts[1], kept, 4), none, strict=True):
            assert with_buffer[0] < 0.9 * without[0]
            assert with_buffer[1:] == without[1:]
            assert without[1] == 2 * without[2]


def disturbed(path, kept):
    """Leaves loops early, and lets batches fail on one rank."""

    def transform(out):
        if fails and dist.get_rank() == 1 and int(out.metadata[0].sum()) % 3 == 0:
            raise KeyError("no luck")
        return out

    with open_part(path, **kept) as part:
        loader = loader_over(
            (part.features, part.graph), part.input_nodes("train"), "nodes", {"transform_sampler_output": transform}
        )
        found = []
        for steps in (2, 0, 3):
            fails = False
            iterator = iter(loader)
            found.append([as_plain(next(iterator)) for _ in range(steps)])
            iterator.close()
        fails = True
        for _ in range(2):
            iterator, batches = iter(loader), []
            for _ in range(len(loader)):
                try:
                    batches.append(as_plain(next(iterator)))
                except (KeyError, RuntimeError):
                    batches.append("failed")
            assert next(iterator, None) is None
            found.append(batches)
    return found


@pytest.mark.parametrize("kept", quick(POLICIES, "massivegnn", "lookahead"))
def test_loops_that_are_left_and_batches_that_fail(parts, kept):
    expected = cluster(2).run(disturbed, parts[1], {})
    assert any("failed" in batches for batches in expected[0])
    assert cluster(2).run(disturbed, parts[1], kept) == expected


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
        loader_over((part.features, part.graph), part.input_nodes("train"), "nodes", {})
