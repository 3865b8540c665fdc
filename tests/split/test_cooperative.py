"""Split batches over the stores of a part, drawn by all ranks together or whole on each: the twin's cuts of the batches
that one process makes of the same stored graph."""

import re
import signal
import time

import pytest
import torch
from helpers import split_training
from helpers.boundary import owners_of
from helpers.cluster import answers_without_one, cluster
from helpers.data import make_data
from helpers.parts import REPLICATED, check_batches, stores_of
from helpers.slow import NIGHTLY, SLOW, in_turns, quick
from helpers.split import GivenPlan, comparable, outcomes_of, random_owners
from helpers.split_parts import batches_over_part, expected_over_parts, parts_of_owners, split_loader, whole_loader
from torch import distributed as dist

from torch_gnnscale import NeighborSampler, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.partition import PartitionBook
from torch_gnnscale.sampler.base import KeyedSampler
from torch_gnnscale.split.cut_sampler import CooperativeSampler

TOPOLOGIES = ["partitioned", "replicated"]
MODES = {
    "shuffled": {},
    "in input order": {"shuffle": False},
    "one hop": {"num_neighbors": [4]},
    "three hops": {"num_neighbors": [3, 2, 2]},
    "nothing in one hop": {"num_neighbors": [2, 0, 2]},
    "all neighbors": {"num_neighbors": [-1, 2]},
    "replace": {"replace": True, "num_neighbors": [4, 4]},
    "weights": {"weight_attr": "edge_chance"},
    "weights, all, replace": {"weight_attr": "edge_chance", "replace": True, "num_neighbors": [-1, 3]},
    "without threads": {"prefetch": 0},
    "drop": {"batch_size": 9, "uneven": "drop"},
    "serve": {"batch_size": 9, "uneven": "serve"},
    "owned": {"seed_order": "owned", "batch_size": 12},
    "owned, serve": {"seed_order": "owned", "batch_size": 12, "uneven": "serve"},
    "repeated seeds": {"seeds": [7, 3, 7, 7, 150, 3, 9, 3, 0, 199, 0], "batch_size": 6},
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return parts_of_owners(lambda: tmp_path_factory.mktemp("parts"))


def check(parts, owners, count, world, topology, options, epochs=2, consecutive="copies"):
    path, kept = parts(tuple(owners.tolist()), count, topology), {"consecutive": consecutive}
    found = cluster(world).run(batches_over_part, path, GivenPlan(owners, count), epochs, options, kept)
    check_batches(found, expected_over_parts(path, owners, count, epochs, world, options, consecutive))


@pytest.mark.parametrize("topology", quick(TOPOLOGIES, "replicated"))
@pytest.mark.parametrize(
    ("count", "world", "options"), in_turns([(2, 2), (3, 3), (4, 4), (2, 4)], MODES, "shuffled", fast=1)
)
def test_batches_are_cuts_of_one_process_s(parts, topology, count, world, options):
    check(parts, owners_of(count), count, world, topology, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {"bulk": 3}, {"method": "ladies", "num_neighbors": [30, 20]}, {"method": "fastgcn", "num_neighbors": [30, 20]},
    {"method": "labor"},
], ids=str)  # fmt: skip
def test_modes_of_whole_batches(parts, options):
    check(parts, random_owners(200, 2), 2, 2, "replicated", options)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["shuffled", "serve", "owned"])
@pytest.mark.parametrize("topology", ["partitioned", "replicated"])
def test_groups_of_consecutive_ranks(parts, topology, mode):
    check(parts, random_owners(200, 2), 2, 4, topology, MODES[mode], 1, "parts")


NODES = torch.arange(200)
OWNERS = {
    "50 to 1": (NODES % 50 == 0).long(),
    "without seeds": (NODES % 3 == 1).long(),
    "a single node": (NODES == 100).long(),
    "a single seed": (NODES == 99).long(),
    "no nodes": torch.ones(200, dtype=torch.int64),
}


@pytest.mark.parametrize("owners", quick(OWNERS, "no nodes"))
@pytest.mark.parametrize("topology", ["partitioned", SLOW("replicated")])
def test_parts_of_unequal_sizes(parts, topology, owners):
    check(parts, owners, 2, 2, topology, {"num_neighbors": [4, 3]}, epochs=1)


@pytest.mark.slow
def test_own_rows_in_tiers(parts):
    owners = random_owners(200, 2)
    path, options = parts(tuple(owners.tolist()), 2, "partitioned"), {"shuffle": False}
    found = cluster(2).run(batches_over_part, path, GivenPlan(owners, 2), 1, options, {"tiers": {"host": "50%"}})
    check_batches(found, expected_over_parts(path, owners, 2, 1, 2, options))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_part_needs_no_process_group(parts, topology):
    owners = torch.zeros(200, dtype=torch.int64)
    path = parts(tuple(owners.tolist()), 1, topology)
    assert not dist.is_initialized()
    found = [batches_over_part(path, GivenPlan(owners, 1), 2, {})]
    check_batches(found, expected_over_parts(path, owners, 1, 2, 1, {}))


def test_a_timeout_of_the_loader_has_no_effect(parts):
    owners = torch.zeros(200, dtype=torch.int64)
    path = parts(tuple(owners.tolist()), 1, "replicated")
    text = r"^timeout=5 has no effect with the stores of a part: open_part\(timeout=\) decides$"
    with open_part(path) as part, pytest.warns(UserWarning, match=text):
        split_loader(part, GivenPlan(owners, 1), {"timeout": 5, "num_workers": 0})


# Rounds and bytes ####################################################################################################


def traffic(path, plan, options):
    """(this rank's batches of an epoch, what it exchanged, by purpose)."""
    with open_part(path) as part:
        loader = split_loader(part, plan, options)
        batches = [batch.shuffle_index for batch in loader]
        return batches, part.stats()


@pytest.mark.parametrize("hops", [SLOW(1), 3])
@pytest.mark.parametrize(
    "owners", quick({"unequal": OWNERS["50 to 1"], "nothing is missing": OWNERS["no nodes"]}, "unequal")
)
def test_a_batch_takes_a_round_for_each_hop_and_one_for_the_halo(parts, hops, owners):
    path, options = parts(tuple(owners.tolist()), 2, "partitioned"), {"num_neighbors": [3] * hops}
    for batches, stats in cluster(2).run(traffic, path, GivenPlan(owners, 2), options):
        rounds = {purpose: entry["rounds"] for purpose, entry in stats.items() if entry["rounds"]}
        assert rounds == {"frontiers": hops * len(batches), "rows": len(batches)}
        came = sum(sum(map(sum, index.num_received)) for index in batches)
        asked = sum(sum(map(sum, index.num_sent)) for index in batches)
        assert (stats["frontiers"]["bytes_sent"], stats["frontiers"]["bytes_received"]) == (4 * came, 4 * asked)
        assert stats["rows"]["bytes_received"] == 3 * 8 * came  # x has 3 columns of float64


@pytest.mark.slow
def test_whole_batches_exchange_rows_of_the_halo_alone(parts):
    owners = random_owners(200, 2)
    path = parts(tuple(owners.tolist()), 2, "replicated")
    for batches, stats in cluster(2).run(traffic, path, GivenPlan(owners, 2), {}):
        assert {purpose: entry["rounds"] for purpose, entry in stats.items() if entry["rounds"]} == {
            "rows": len(batches)
        }


# Positions and states ################################################################################################


def first_batches(path, plan, count):
    """The first ``count`` batches of the second epoch, and the state that follows them."""
    with open_part(path) as part:
        loader = split_loader(part, plan, {})
        for _ in loader:
            pass
        iterator = iter(loader)
        found = [comparable(next(iterator)) for _ in range(count)]
        iterator.close()
        return found, loader.state_dict()


def rest_of(path, plan, state):
    """What follows a state in its epoch."""
    with open_part(path) as part:
        loader = split_loader(part, plan, {})
        loader.load_state_dict(state)
        return [comparable(batch) for batch in loader]


@pytest.mark.slow
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_state_goes_on_and_in_one_process_too(parts, topology):
    owners = random_owners(200, 2)
    path, plan = parts(tuple(owners.tolist()), 2, topology), GivenPlan(owners, 2)
    found = cluster(2).run(first_batches, path, plan, 3)
    state = found[0][1]
    assert (state, state["epoch"], state["batch"]) == (found[1][1], 1, 3)
    expected = [of_rank[1] for of_rank in expected_over_parts(path, owners, 2, 2, 2, {})]
    assert [batches for batches, _ in found] == [batches[:3] for batches in expected]
    assert cluster(2).run(rest_of, path, plan, state) == [batches[3:] for batches in expected]
    whole = whole_loader(path, {})
    whole.load_state_dict(state)
    keys = [(batch.batch_size, sorted(batch.n_id.tolist())) for batch in whole]
    assert keys == [
        (first["global_batch_size"], sorted(first["n_id"][1] + second["n_id"][1]))
        for first, second in zip(*(batches[3:] for batches in expected), strict=True)
    ]


# Training ############################################################################################################


def trained_over_part(path, plan, norm, consecutive):
    with open_part(path, consecutive=consecutive) as part:
        stores, seeds = (part.features, part.graph), part.input_nodes("train", of="all")
        return split_training.trained_by(split_training.loader_over(stores, seeds, plan, {}), 2, 1, norm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "count", "world", "consecutive"),
    [
        ("partitioned", 2, 2, "copies"),
        NIGHTLY("partitioned", 3, 3, "copies"),
        ("replicated", 2, 2, "copies"),
        NIGHTLY("partitioned", 2, 4, "copies"),
        ("partitioned", 2, 4, "parts"),
    ],
)
def test_weights_are_those_of_one_process(tmp_path, topology, count, world, consecutive):
    data = split_training.graph()
    owners, groups = random_owners(data.num_nodes, count), world // count
    path = str(tmp_path / "parts")
    partition.write(data, path, parts=count, owners=owners, topology=topology)
    norm = "batch_norm" if groups == 1 else None
    loader = split_training.loader_over(stores_of(data, path), data.train_mask, GivenPlan(owners, count), {})
    expected = split_training.trained_by(loader, 2, groups, norm)
    found = cluster(world).run(trained_over_part, path, GivenPlan(owners, count), norm, consecutive)
    split_training.check_weights(found, expected)


# Errors ##############################################################################################################


def outcomes(path, plan, where):
    """What each batch of this rank came to; rank 1 fails at its third."""

    def fails(*args, hop=1):
        if dist.get_rank() == 1 and hop == 1 and next(calls) == 2:
            raise KeyError("no luck")

    def transform(out):
        if where == "transform":
            fails()
        return out

    with open_part(path) as part:
        calls = iter(range(1000))
        loader = split_loader(part, plan, {"prefetch": 1, "transform_sampler_output": transform})
        if where == "hop":
            executor = loader._sampler._executor
            pick = executor.pick_own

            def picks(node, key, hop, drawing):
                fails(hop=hop)
                return pick(node, key, hop, drawing)

            executor.pick_own = picks
        return outcomes_of(loader)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["hop", "transform"])
@pytest.mark.parametrize("world", [2, 4])
def test_an_error_of_one_rank_is_raised_on_all_and_the_next_batches_follow(parts, where, world):
    owners = random_owners(200, 2)
    path, plan = parts(tuple(owners.tolist()), 2, "partitioned"), GivenPlan(owners, 2)
    whole = cluster(world).run(outcomes, path, plan, None)
    found = cluster(world).run(outcomes, path, plan, where)
    assert found[1][2] == "KeyError: 'no luck'"
    text = (
        "sampling: expected it of all ranks, found that rank 1 failed: KeyError: 'no luck'" if world == 2
        else "rank 1 failed to make batch 5: KeyError: 'no luck'"
    )  # fmt: skip
    assert {entry[2] for rank, entry in enumerate(found) if rank != 1} == {f"RuntimeError: {text}"}
    for ours, expected in zip(found, whole, strict=True):
        assert ours[:2] + ours[3:] == expected[:2] + expected[3:]


def goes_on(path, plan, timeout):
    """(error, seconds since the last batch) of a rank that iterates until another one fails."""
    with open_part(path, timeout=timeout) as part:
        loader = split_loader(part, plan, {})
        begin = time.monotonic()
        try:
            while True:
                for _ in loader:
                    begin = time.monotonic()
        except RuntimeError as error:
            return str(error), time.monotonic() - begin


@pytest.mark.slow
@pytest.mark.parametrize("number", [NIGHTLY(signal.SIGKILL), signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stopped_ends_the_others(parts, number):
    owners = random_owners(200, 3)
    given = parts(tuple(owners.tolist()), 3, "partitioned"), GivenPlan(owners, 3)
    for returned, (text, seconds) in answers_without_one(3, number, (traffic, *given, {}), (goes_on, *given, 5.0), 2):
        assert returned
        assert text.startswith("rank 1 is gone or does not answer: ")
        assert seconds < 60


def outside_of_iterations(path, plan):
    with open_part(path) as part:
        loader = split_loader(part, plan, {})
        found = []
        for call in (lambda: next(loader.samples(0)), lambda: loader(torch.arange(3))):
            try:
                call()
            except RuntimeError as error:
                found.append(str(error))
        return found


@pytest.mark.slow
def test_samples_outside_of_iterations(parts):
    owners = random_owners(200, 2)
    path = parts(tuple(owners.tolist()), 2, "partitioned")
    text = (
        "sample: expected an iteration of a torch_gnnscale.NeighborLoader over the stores of a part, in whose steps "
        "all ranks sample together, found a call outside of one"
    )
    assert cluster(2).run(outside_of_iterations, path, GivenPlan(owners, 2)) == [[text] * 2] * 2


# Refused #############################################################################################################


class Foreign(KeyedSampler):
    def sample_from_nodes(self, inputs, key=None): ...


@pytest.mark.parametrize("sampler", [Foreign(), NeighborSampler(make_data(), [2])])
def test_other_samplers_are_refused_by_name(sampler):
    book = PartitionBook({None: torch.tensor([0, 100, 200])}, {None: torch.tensor([0, 700, 1500])})
    text = f"split= of a {type(sampler).__name__}{REPLICATED}"
    with pytest.raises(NotImplementedError, match=f"^{re.escape(text)}$"):
        CooperativeSampler(sampler, book, 0)
