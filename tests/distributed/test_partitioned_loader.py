"""Loaders over parts: every batch is the one that a single process makes of the same stored graph."""

import functools

import pytest
import torch
from helpers.boundary import boundary_graph, owners_of
from helpers.cluster import cluster
from helpers.data import loader_threads
from helpers.hetero import CITES, HELD, LIKES, PAPER, REV_WRITES, WRITES, make_hetero, with_times, with_weights
from helpers.parts import batches_of_rank, check_batches, expected_batches, homogeneous, loader_of_part
from helpers.slow import in_turns

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """parts(K): (data, directory of K parts), written once."""

    @functools.cache
    def of(count):
        data, path = boundary_graph(), tmp_path_factory.mktemp("parts") / "parts"
        links = {"train": data.edge_index[:, ::7]}
        partition.write(data, path, parts=count, owners=owners_of(count), links=links, graph_attrs=["time"])
        return data, str(path)

    return of


MODES = {
    "nodes": ("nodes", {}),
    "one hop": ("nodes", {"num_neighbors": [4]}),
    "four hops": ("nodes", {"num_neighbors": [2, 2, 2, 1]}),
    "all neighbors": ("nodes", {"num_neighbors": [-1, 2]}),
    "in input order": ("nodes", {"shuffle": False}),
    "replace": ("nodes", {"replace": True}),
    "disjoint": ("nodes", {"disjoint": True}),
    "layers": ("nodes", {"layers": True}),
    "induced": ("nodes", {"subgraph_type": "induced"}),
    "bidirectional": ("nodes", {"subgraph_type": "bidirectional"}),
    "times": ("nodes", {"time_attr": "time"}),
    "without threads": ("nodes", {"prefetch": 0}),
    "csr": ("nodes", {"edge_layout": "sparse_csr"}),
    "links": ("links", {}),
    "global": ("nodes", {"seed_order": "global"}),
    "global links": ("links", {"seed_order": "global"}),
    "drop": ("nodes", {"uneven": "drop"}),
    "serve": ("nodes", {"uneven": "serve"}),
    "serve global": ("nodes", {"uneven": "serve", "seed_order": "global", "batch_size": 7}),
}


@pytest.mark.parametrize(
    ("count", "world", "kind", "options"), in_turns([(2, 2), (3, 3), (2, 4)], MODES, "nodes", fast=1)
)
def test_batches_are_those_of_one_process(parts, kind, options, count, world):
    data, path = parts(count)
    expected = expected_batches(data, path, kind, 2, options, world)
    found = cluster(world).run(batches_of_rank, path, kind, 2, options)
    check_batches(found, expected)


def threads_of_an_epoch(path, prefetch):
    """How many threads prepare batches while a rank has the first one, besides those of other loaders, which may end
    late."""
    with open_part(path) as part:
        others = set(loader_threads())
        batches = iter(loader_of_part(part, prefetch=prefetch))
        next(batches)
        found = len(set(loader_threads()) - others)
        list(batches)
        return found


@pytest.mark.slow
def test_without_prefetch_no_thread_prepares_batches(parts):
    assert cluster(2).run(threads_of_an_epoch, parts(2)[1], 0) == [0, 0]
    assert min(cluster(2).run(threads_of_an_epoch, parts(2)[1], 2)) > 0


FANOUTS = {CITES: [3, 2], WRITES: [2, 2], REV_WRITES: [1, 1], HELD: [2, 1], LIKES: [1, 2]}
TYPED = {
    "nodes": ("nodes", {}),
    "fanouts by type": (
        "nodes",
        {"num_neighbors": FANOUTS},
    ),
    "times of nodes": ("nodes", {"time_attr": "time"}),
    "weights of edges": ("nodes", {"weight_attr": "weight"}),
    "layers": ("nodes", {"layers": True}),
    "bidirectional": ("nodes", {"subgraph_type": "bidirectional"}),
    "links": ("links", {}),
    "global": ("nodes", {"seed_order": "global", "uneven": "serve"}),
}


@pytest.fixture(scope="module")
def typed_parts(tmp_path_factory):
    """(data with types, directory of two parts)."""
    data, path = with_weights(with_times(make_hetero())), tmp_path_factory.mktemp("typed") / "parts"
    seeds, links = (PAPER, torch.arange(0, 40, 2)), (WRITES, data[WRITES].edge_index[:, ::5])
    partition.write(
        data, path, parts=2, method="random", splits={"train": seeds}, links={"train": links},
        graph_attrs=["time", "weight"],
    )  # fmt: skip
    return data, str(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:edge type")
@pytest.mark.parametrize(("kind", "options"), TYPED.values(), ids=TYPED)
@pytest.mark.parametrize("world", [2, 4])
def test_batches_of_a_typed_graph_are_those_of_one_process(typed_parts, kind, options, world):
    data, path = typed_parts
    options = {"batch_size": 4, **options}
    assert cluster(world).run(batches_of_rank, path, kind, 2, options) == expected_batches(
        data, path, kind, 2, options, world
    )


@pytest.mark.slow
def test_a_rank_without_seeds_serves_the_others(tmp_path):
    data = homogeneous()
    owners, path = torch.arange(200) % 2, tmp_path / "parts"
    seeds = torch.arange(0, 200, 4)  # all of part 0
    partition.write(data, path, parts=2, owners=owners, splits={"train": seeds})
    options = {"uneven": "serve"}
    found = cluster(2).run(batches_of_rank, str(path), "nodes", 2, options)
    assert [len(epoch) for epoch in found[0]] == [5, 5]
    assert found[1] == [[], []]
    assert found == expected_batches(data, str(path), "nodes", 2, options, 2)
    text = "ValueError: uneven='pad': expected part 1 to have at least one batch, found none; use 'serve' or "
    text += "seed_order='global'"
    assert cluster(2).results(batches_of_rank, str(path), "nodes", 2, {}) == [(False, text)] * 2


@pytest.mark.slow
def test_one_part_needs_no_process_group(parts):
    data, path = parts(1)
    assert not torch.distributed.is_initialized()
    expected = expected_batches(data, path, "nodes", 2, {}, 1)
    assert [batches_of_rank(path, "nodes", 2, {})] == expected
