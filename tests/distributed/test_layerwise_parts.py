"""Layer-wise samples over parts: every batch is the one that a single process makes."""

import pytest
from helpers.cluster import cluster
from helpers.parts import batches_of_rank, check_batches, expected_batches, traffic_of_an_epoch, with_links

METHODS = {
    "ladies": {"method": "ladies", "num_neighbors": [12, 9]},
    "fastgcn": {"method": "fastgcn", "num_neighbors": [40, 30], "seed_order": "global"},
    "labor": {"method": "labor"},
    "bulk": {"method": "ladies", "num_neighbors": [12, 9], "bulk": 3},
    "bulk of neighbors, serve": {"bulk": 2, "uneven": "serve", "seed_order": "global", "batch_size": 7},
}


@pytest.fixture(scope="module")
def replicated(tmp_path_factory):
    """(data, directory of two parts of rows; every rank has all edges)."""
    return with_links(tmp_path_factory, 2)


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
def test_where_every_rank_has_all_edges(replicated, options):
    data, path = replicated
    expected = expected_batches(data, path, "nodes", 1, options, 2)
    check_batches(cluster(2).run(batches_of_rank, path, "nodes", 1, options), expected)


def test_where_every_rank_has_all_edges_sampling_takes_no_round(replicated):
    for steps, traffic in cluster(2).run(traffic_of_an_epoch, replicated[1], METHODS["ladies"]):
        rounds = {purpose: entry["rounds"] for purpose, entry in traffic.items()}
        assert rounds == {"headers": 0, "counts": 0, "ids": steps, "rows": steps}


def test_links(replicated):
    data, path = replicated
    options = {"method": "labor", "seed_order": "global", "batch_size": 100}
    expected = expected_batches(data, path, "links", 1, options, 2)
    check_batches(cluster(2).run(batches_of_rank, path, "links", 1, options), expected)
