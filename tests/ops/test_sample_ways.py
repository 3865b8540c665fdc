"""Samples are the same with any number of threads, in any process, and by every way of drawing and relabelling."""

import hashlib

import pytest
import reference
import torch
from helpers import forked
from helpers.graphs import Graph, assert_same, graph_of_degrees, random_graph, random_ids
from helpers.slow import NIGHTLY, SLOW

from torch_gnnscale import ops

BIG_SEEDS, BIG_FANOUTS = 700, [12, 8, 6]


def big_graph() -> Graph:
    return random_graph(30_000, 12, seed=8, dtype=torch.int32).stored(torch.int32, torch.int32, True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"layers": True}])
def test_parallel_path_equals_reference(options):
    graph, seeds = big_graph(), random_ids(30_000, BIG_SEEDS, seed=9)
    found = graph.sample(ops, seeds, BIG_FANOUTS[:2], 1, threads=2, **options)
    assert_same(found, graph.sample(reference, seeds, BIG_FANOUTS[:2], 1, **options))
    assert found.num_edges[0][1] > 2 * 2048


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("fanouts", [BIG_FANOUTS, [-1, -1], [40, 600]])
def test_threads_do_not_matter(fanouts, layers):
    graph = big_graph()
    for key in range(12):
        seeds = random_ids(30_000, BIG_SEEDS, seed=key)
        expected = graph.sample(ops, seeds, fanouts, key, threads=1, layers=layers)
        assert max(expected.num_edges[0]) > 2 * 2048
        for threads in (2, 0, 5):
            assert_same(graph.sample(ops, seeds, fanouts, key, threads=threads, layers=layers), expected)


def digest(sample: ops.Sample) -> str:
    counts = torch.tensor(sample.num_nodes), torch.tensor(sample.num_edges)
    parts = [*sample.node, *sample.colptr, *sample.edge_index, *sample.edge_id, *counts]
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"GNNSCALE_RELABEL": "table"}], ids=["as it chooses", "table"])
def test_another_process_draws_the_same(variables):
    """Also by a table that grows several times, and that would be full if it did not count what it holds."""
    graph, seeds = big_graph(), random_ids(30_000, BIG_SEEDS, seed=1)
    code = (
        "import torch; from test_sample_ways import *; torch.set_num_threads(1);"
        "print(digest(big_graph().sample(ops, random_ids(30_000, BIG_SEEDS, seed=1), BIG_FANOUTS, 77)))"
    )
    done = forked.run(code, **variables)
    found = graph.sample(ops, seeds, BIG_FANOUTS, 77, threads=2)
    assert len(found.node[0]) > 1 << 13
    assert done.stdout.strip() == digest(found), done.stderr


NAMES = "degrees_around or random_graphs or largest_fanout or small_graphs or random_cases"


@pytest.mark.parametrize(
    ("names", "environment"),
    [
        pytest.param(
            "degrees_around or random_graphs or random_cases", {"GNNSCALE_SIMD": "0", "GNNSCALE_TAGS": "500"},
            marks=[pytest.mark.slow, pytest.mark.sanitized],
        ),
        NIGHTLY(NAMES, {"GNNSCALE_SIMD": "0"}),
        SLOW(NAMES, {"GNNSCALE_SIMD": "avx2"}),
        NIGHTLY(NAMES, {"GNNSCALE_RELABEL": "table"}),
    ],
    ids=["scalar, few tags", "scalar", "avx2", "table"],
)  # fmt: skip
def test_every_way_of_drawing_and_relabelling_gives_the_same(names, environment):
    files = [__file__.replace("ways", name) for name in ("neighbors", "modes")]
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = forked.run(code, "-q", "-p", "no:cacheprovider", *files, "-k", names, **environment)
    assert done.returncode == 0, done.stdout


FAR = 1 << 32, [9, 40, 41, 33, 3, 64, 100, 50] * 3
"""The first node of the graph beyond 2^32 that has neighbors, and the degrees of it and of those after it."""


def pointers(path: str) -> torch.Tensor:
    """A colptr in a file, nearly all of which are zeros that take no space."""
    first, degrees = FAR
    return torch.from_file(path, shared=True, size=first + len(degrees) + 1, dtype=torch.int64)


def check_high_words(path: str) -> None:
    """Samples of a graph whose ids differ from those of a small one in the high word alone.

    In disjoint trees: else local ids would come from a map of all nodes, 16 GiB.
    """
    (first, degrees), colptr = FAR, pointers(path)
    near = graph_of_degrees(degrees, seed=2)
    colptr[first:] = near.colptr
    far = Graph(colptr, near.row + first)
    seeds = random_ids(len(degrees), 40, seed=3)
    for fanouts in ([5, 4], [32, 3], [60]):
        for replace in (False, True):
            options = {"replace": replace, "disjoint": True}
            found = far.sample(ops, seeds + first, fanouts, 11, **options)
            assert_same(found, far.sample(reference, seeds + first, fanouts, 11, **options))
            assert not torch.equal(found.edge_id[0], near.sample(ops, seeds, fanouts, 11, **options).edge_id[0])


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize("simd", ["", "avx2", "0"])
def test_nodes_beyond_2_to_32_in_each_instruction_set(simd, tmp_path):
    try:
        pointers(str(tmp_path / "colptr"))
    except RuntimeError as error:
        pytest.skip(f"no file of 32 GiB can be mapped: {error}")
    code = "import sys; from test_sample_ways import *; check_high_words(sys.argv[1])"
    done = forked.run(code, str(tmp_path / "colptr"), GNNSCALE_SIMD=simd)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_unknown_way_of_relabelling_is_refused():
    code = "from test_sample_ways import *; big_graph().sample(ops, torch.arange(9), [2], 7)"
    done = forked.run(code, GNNSCALE_RELABEL="Map")
    assert "GNNSCALE_RELABEL: expected map or table, found Map" in done.stderr
