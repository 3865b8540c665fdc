"""Loaders over parts whose edges are partitioned too: every batch is the one that a single process makes."""

import re

import pytest
import torch
from helpers.cluster import cluster
from helpers.disturbed import fails_between, unanswerable
from helpers.parts import (
    as_plain,
    batches_of_rank,
    check_batches,
    expected_batches,
    homogeneous,
    loader_of_part,
    loader_over,
    parts_of_edges,
    stores_of,
    traffic_of_an_epoch,
)
from helpers.slow import SLOW, in_turns, quick
from torch import distributed as dist
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from torch_gnnscale import NeighborLoader, partition
from torch_gnnscale.comm.steps import Steps
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.owners import Owners
from torch_gnnscale.distributed.partitioned_graph import PartitionedGraphStore

MODES = {
    "nodes": {},
    "one hop": {"num_neighbors": [4]},
    "two more hops": {"num_neighbors": [2, 2, 2, 1]},
    "all neighbors": {"num_neighbors": [-1, 2]},
    "nothing in one hop": {"num_neighbors": [2, 0, 2]},
    "no hop": {"num_neighbors": []},
    "in input order": {"shuffle": False},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "layers": {"layers": True},
    "layers of trees": {"layers": True, "disjoint": True},
    "weights": {"weight_attr": "weight"},
    "weights, all, replace": {"weight_attr": "weight", "replace": True, "num_neighbors": [-1, 3]},
    "times of nodes": {"time_attr": "time"},
    "last": {"time_attr": "time", "temporal_strategy": "last"},
    "times and weights": {"time_attr": "time", "weight_attr": "weight"},
    "without threads": {"prefetch": 0},
    "csr": {"edge_layout": "sparse_csr"},
    "global": {"seed_order": "global"},
    "global disjoint": {"seed_order": "global", "disjoint": True},
    "global times": {"seed_order": "global", "time_attr": "time"},
    "drop": {"uneven": "drop"},
    "serve": {"uneven": "serve"},
    "serve global": {"uneven": "serve", "seed_order": "global", "batch_size": 7},
    "bulk": {"bulk": 3},
    "bulk of an epoch": {"bulk": 100, "seed_order": "global", "prefetch": 0},
    "bulk of weights, serve": {"bulk": 2, "weight_attr": "weight", "uneven": "serve", "batch_size": 7, "layers": True},
    "bulk, replace": {"bulk": 4, "replace": True, "seed_order": "global", "num_neighbors": [2, 2, 2]},
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return parts_of_edges(lambda: tmp_path_factory.mktemp("parts"))


QUICK = quick(MODES, "nodes")


@pytest.mark.parametrize(("count", "world", "options"), in_turns([(2, 2), (3, 3), (2, 4)], MODES, "nodes"))
def test_batches_are_those_of_one_process(parts, options, count, world):
    data, path = parts(count)
    expected = expected_batches(data, path, "nodes", 2, options, world)
    found = cluster(world).run(batches_of_rank, path, "nodes", 2, options)
    check_batches(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"uneven": "serve", "shuffle": False}, {"seed_order": "global"}])
def test_a_part_without_nodes(parts, options):
    data, path = parts(0)
    assert cluster(3).run(batches_of_rank, path, "nodes", 1, options) == expected_batches(
        data, path, "nodes", 1, options, 3
    )


@pytest.mark.slow
def test_one_part_needs_no_process_group(parts):
    data, path = parts(1)
    assert not dist.is_initialized()
    assert [batches_of_rank(path, "nodes", 2, {})] == expected_batches(data, path, "nodes", 2, {}, 1)


@pytest.mark.slow
def test_times_that_need_64_bits(tmp_path):
    data, path = homogeneous(), str(tmp_path / "parts")
    data.time = data.time + (1 << 40) * (data.time % 2)
    partition.write(data, path, parts=1, method="random", topology="partitioned", graph_attrs=["time"])
    options = {"time_attr": "time", "temporal_strategy": "last"}
    assert [batches_of_rank(path, "nodes", 1, options)] == expected_batches(data, path, "nodes", 1, options, 1)


def test_edges_as_pyg_lists_them(tmp_path):
    path = tmp_path / "parts"
    partition.write(homogeneous(), path, parts=2, method="random", topology="partitioned")
    with partition.open_parts(path) as opened:
        graph = PartitionedGraphStore(opened, opened.part(1))
    assert graph.get_all_edge_attrs() == [EdgeAttr(None, EdgeLayout.CSC, is_sorted=True, size=(200, 200))]


def times_of_edges(path):
    """Batches by the times of edges, each seed with a time of its own."""
    with open_part(path) as part:
        loader = loader_with_times((part.features, part.graph), part.input_nodes("train", "all"))
        return [as_plain(batch) for batch in loader]


def loader_with_times(stores, seeds, **options):
    options |= {"seed_order": "global"} if "shard" not in options else {}
    return NeighborLoader(
        stores, [3, 2], seeds, input_time=torch.arange(len(seeds)) % 50, time_attr="since", batch_size=10, shuffle=True,
        seed=3, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_times_of_edges(parts):
    data, path = parts(2)
    with partition.open_parts(path) as opened:
        seeds = opened.input_nodes("train")
    expected = [as_plain(batch) for batch in loader_with_times(stores_of(data, path), seeds, shard=False)]
    found = cluster(2).run(times_of_edges, path)
    assert [found[number % 2][number // 2] for number in range(len(expected))] == expected


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["massivegnn", "static"])
def test_a_prefetch_buffer_changes_no_batch(parts, policy):
    data, path = parts(2)
    expected = expected_batches(data, path, "nodes", 2, {}, 2)
    assert cluster(2).run(batches_of_rank, path, "nodes", 2, {}, {"buffer": 0.5, "policy": policy}) == expected


# Rounds ###############################################################################################################


@pytest.mark.parametrize("hops", [SLOW(1), 2, SLOW(3), SLOW(4)])
@pytest.mark.parametrize("order", ["owned", "global"])
def test_rounds(parts, hops, order):
    """2L rounds per batch if the seeds are the rank's own, else 2L + 2."""
    options = {"num_neighbors": [2] * hops, "seed_order": order}
    found = cluster(3).run(traffic_of_an_epoch, parts(3)[1], options)
    steps = found[0][0]
    of_hops = 2 * hops - (2 if order == "owned" else 0)
    for taken, traffic in found:
        assert taken == steps
        rounds = {purpose: entry["rounds"] for purpose, entry in traffic.items()}
        assert rounds.pop("headers", 0) == rounds.pop("counts", 0) == 0
        expected = {"ids": steps, "rows": steps, "requests": of_hops // 2 * steps, "picks": of_hops // 2 * steps}
        assert rounds == {purpose: count for purpose, count in expected.items() if count}
        assert sum(rounds.values()) == (of_hops + 2) * steps


@pytest.mark.slow
def test_a_bulk_takes_the_rounds_of_one_batch(parts):
    """2L + 2 rounds per batch become 2 of rows, and 2L for ``bulk`` batches together."""
    for bulk in (1, 3):
        options = {"num_neighbors": [2, 2], "seed_order": "global", "bulk": bulk}
        for steps, traffic in cluster(2).run(traffic_of_an_epoch, parts(2)[1], options):
            assert steps == 5
            assert {purpose: traffic[purpose]["rounds"] for purpose in ("ids", "rows", "requests", "picks")} == {
                "ids": steps, "rows": steps, "requests": 2 * -(-steps // bulk), "picks": 2 * -(-steps // bulk)
            }  # fmt: skip


@pytest.mark.slow
def test_bytes_are_those_of_the_requests(parts):
    """A request is a node, a drawn edge its source and id; nothing of the rank's own travels."""
    data, path = parts(2)
    options = {"num_neighbors": [-1], "seed_order": "global", "shuffle": False, "uneven": "serve"}
    found = cluster(2).run(traffic_of_an_epoch, path, options)
    with partition.open_parts(path) as opened:
        seeds, bounds = opened.stored_ids()[opened.input_nodes("train")], opened.book.bounds[None]
        degree = torch.zeros(data.num_nodes, dtype=torch.int64)
        degree.scatter_add_(0, opened.stored_ids()[data.edge_index[1]], torch.ones(data.num_edges, dtype=torch.int64))
    batches = seeds.split(10)
    for rank, (_, traffic) in enumerate(found):
        mine = torch.cat(batches[rank::2])
        remote = mine[(mine >= bounds[1]) != bool(rank)]
        assert traffic["requests"]["bytes_sent"] == 4 * len(remote)
        assert traffic["picks"]["bytes_received"] == 4 * (len(remote) + 2 * int(degree[remote].sum()))


# Errors ###############################################################################################################


def malformed_columns(path, bad_rank):
    """The first column with edges of one rank leads nowhere; every rank tells what its loop came to."""
    with open_part(path) as part:
        loader = loader_over(
            (part.features, part.graph), part.input_nodes("train"), "nodes", {"num_neighbors": [-1, -1]}
        )
        if dist.get_rank() == bad_rank:
            row = loader._sampler.graph.stored.row[0]
            loader._sampler.graph.stored.row[0] = torch.full_like(row, 1 << 20)
        try:
            list(loader)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.slow
def test_an_error_at_an_owner_is_raised_on_all(parts):
    found = cluster(3).run(malformed_columns, parts(3)[1], 1)
    assert "the graph is malformed: row[" in found[1]
    for text in found[::2]:
        assert text.endswith(f": expected it of all ranks, found that rank 1 failed: {found[1]}")


@pytest.mark.slow
def test_the_next_batches_follow_an_error_at_an_owner(parts):
    whole = cluster(2).run(unanswerable, parts(2)[1], -1)
    first, second = cluster(2).run(unanswerable, parts(2)[1], 1)
    text = "RuntimeError: drawing neighbors: expected it of all ranks, found that rank 1 failed: KeyError: 'no luck'"
    assert first[2] == text
    assert second[2] == "KeyError: 'no luck'"
    for found, expected in ((first, whole[0]), (second, whole[1])):
        assert found[:2] + found[3:] == expected[:2] + expected[3:]


def other_bulks(path):
    with open_part(path) as part:
        loader_of_part(part, bulk=2 + dist.get_rank())


@pytest.mark.slow
def test_bulks_of_other_sizes_are_refused(parts):
    text = "ValueError: bulk: expected the same on all ranks, found [2, 3]"
    assert cluster(2).results(other_bulks, parts(2)[1]) == [(False, text)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("bad_rank", [0, 1])
def test_all_batches_of_a_bulk_fail_with_it_and_the_next_follow(parts, bad_rank):
    whole = cluster(2).run(unanswerable, parts(2)[1], -1, 2)
    found = cluster(2).run(unanswerable, parts(2)[1], bad_rank, 2)
    texts = [
        "RuntimeError: drawing neighbors: expected it of all ranks, found that rank {} failed: KeyError: 'no luck'",
        "KeyError: 'no luck'",
    ]
    for rank, (ours, expected) in enumerate(zip(found, whole, strict=True)):
        assert ours[4:6] == [texts[rank == bad_rank].format(bad_rank)] * len(expected[4:6])
        assert ours[:4] + ours[6:] == expected[:4] + expected[6:]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["transform", "hops"])
def test_an_error_of_a_rank_by_itself_is_raised_on_all_and_the_next_batches_follow(parts, where):
    whole = cluster(2).run(fails_between, parts(2)[1], -1, where)
    first, second = cluster(2).run(fails_between, parts(2)[1], 1, where)
    assert first[2] == "RuntimeError: sampling: expected it of all ranks, found that rank 1 failed: KeyError: 'no luck'"
    assert second[2] == "KeyError: 'no luck'"
    for found, expected in ((first, whole[0]), (second, whole[1])):
        assert found[:2] + found[3:] == expected[:2] + expected[3:]


def bad_weights(path):
    with open_part(path) as part:
        if dist.get_rank() == 1:
            part.stored.rows[(None, None), "weight"] = part.stored.rows[(None, None), "weight"] - 1
        loader_of_part(part, weight_attr="weight")


@pytest.mark.slow
def test_weights_that_are_malformed_in_one_part(parts):
    first, second = cluster(2).results(bad_weights, parts(2)[1])
    assert first == second
    message = (
        r"ValueError: rank 1: ValueError: .*/part-00001/rows_\d+\.npy: weight_attr='weight': expected finite numbers"
    )
    assert re.match(message, first[1])


def test_ids_of_more_edges_than_32_bits_count_travel_in_64():
    book = partition.PartitionBook({None: torch.tensor([0, 5, 10])}, {None: torch.tensor([0, 1, 1 << 32])})
    steps = Steps.__new__(Steps)
    steps.gather = lambda value: [value]
    owners = Owners(book, 0, [None], False, None, steps)
    assert (owners._requests, owners._picks) == (torch.int32, torch.int64)
