"""The owned order of split batches: chunk t of each part's own seeds in batch t, whatever the number of ranks."""

import re

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import make_data
from helpers.slow import SLOW, quick
from helpers.split import (
    GivenPlan,
    batches_of_rank,
    expected_batches,
    first_batches,
    loader_of,
    owned_positions,
    random_owners,
    rest_of,
)
from helpers.split_training import check_weights, saved_plan, trained
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import NeighborLoader
from torch_gnnscale.loader.epochs import Epochs
from torch_gnnscale.loader.order import ChunksOfParts, KeyedShuffle

OWNED = {"seed_order": "owned"}
EVEN = GivenPlan(random_owners(200, 2), 2)  # of the 67 seeds, 34 and 33
UNEVEN = GivenPlan((torch.arange(200) % 5 == 0).long(), 2)  # 53 and 14 seeds
SHORT_FIRST = GivenPlan(1 - UNEVEN.owners, 2)
EMPTY = GivenPlan(torch.arange(200) % 3, 3)  # all seeds are of part 0
MODES = {
    "shuffled": (EVEN, {}),
    "in input order": (EVEN, {"shuffle": False}),
    "pad": (UNEVEN, {}),
    "drop": (UNEVEN, {"uneven": "drop"}),
    "serve": (SHORT_FIRST, {"uneven": "serve"}),
    "drop last": (UNEVEN, {"drop_last": True, "batch_size": 12}),
    "serve, drop last, in input order": (
        UNEVEN, {"uneven": "serve", "drop_last": True, "batch_size": 12, "shuffle": False}
    ),
    "a part without seeds": (EMPTY, {"uneven": "serve", "batch_size": 12}),
    "repeated seeds": (EVEN, {"seeds": [7, 3, 7, 7, 150, 3, 9, 3, 4, 12], "batch_size": 4}),
    "stores": (UNEVEN, {"stores": True}),
    "bulk": (UNEVEN, {"bulk": 3}),
    "without threads": (EVEN, {"prefetch": 0}),
    "labor": (EVEN, {"method": "labor"}),
}  # fmt: skip


def seeds_of(batch):
    return batch.input_id.tolist()


# Numbers #############################################################################################################


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 2), max_size=40), st.integers(1, 4), st.booleans(), st.booleans(),
    st.sampled_from(["pad", "drop", "serve"]), st.integers(1, 3), st.integers(0, 3),
)  # fmt: skip
def test_chunks_of_parts_are_the_twin_s(owners, size, shuffle, drop_last, uneven, groups, epoch):
    owner, options = torch.tensor(owners, dtype=torch.int64), {"drop_last": drop_last, "uneven": uneven}
    sampler = KeyedShuffle(range(len(owner)), Epochs(7)) if shuffle else None
    chunks = ChunksOfParts(owner, 3, 3 * size, drop_last, sampler, uneven != "serve")
    if uneven != "serve" and 0 in chunks.counts:
        return  # which a loader refuses
    expected = owned_positions(
        owner, 3, epoch, {"batch_size": 3 * size, "seed": 7, "shuffle": shuffle, **options}, groups
    )
    of_number = chunks.of_epoch(epoch)
    assert [of_number(number).tolist() for number in range(len(expected))] == [batch.tolist() for batch in expected]
    assert [chunks.size_of(number) for number in range(len(expected))] == [len(batch) for batch in expected]
    if uneven == "serve":
        taken = torch.cat([*expected, torch.empty(0, dtype=torch.int64)]).tolist()
        assert len(taken) == len(set(taken))  # each at most once, and all unless a chunk was dropped
        dropped = sum(count % size for count in torch.bincount(owner, minlength=3).tolist()) if drop_last else 0
        assert len(taken) == len(owners) - dropped


def test_a_part_s_chunk_is_had_without_the_others():
    owner = torch.arange(20) % 2
    chunks = ChunksOfParts(owner, 2, 6, False, KeyedShuffle(range(20), Epochs(7)), repeats=True)
    of_batch, own = chunks.of_epoch(4), chunks.each[1].of_epoch(4)
    assert [own(number).tolist() for number in range(6)] == [
        [position for position in of_batch(number).tolist() if owner[position] == 1] for number in range(6)
    ]


# One process #########################################################################################################


@pytest.mark.parametrize(
    ("plan", "options"), quick(MODES, "serve, drop last, in input order", "a part without seeds", "bulk")
)
def test_batches_have_chunk_t_of_each_part(plan, options):
    options = {**OWNED, **options}
    found = batches_of_rank(plan, 2, options)
    assert [found] == expected_batches(plan, 2, 1, options)
    assert [len(epoch) for epoch in found] == [len(loader_of(plan, options))] * 2


def test_pad_takes_seeds_again_with_other_draws():
    batches = list(loader_of(UNEVEN, OWNED))
    first, fourth = batches[0], batches[3]  # part 1 has 3 chunks of 5, the last of 4
    assert seeds_of(first)[5:] == seeds_of(fourth)[5:]
    assert seeds_of(first)[:5] != seeds_of(fourth)[:5]
    trees = [
        {(source, seed) for source, seed in batch.n_id[batch.edge_index].t().tolist() if seed in of_part}
        for batch in (first, fourth)
        for of_part in [set(batch.n_id[5:10].tolist())]
    ]
    assert trees[0] != trees[1]
    assert [batch.global_batch_size for batch in batches] == [10, 10, 9] * 3 + [10, 8]


def test_serve_takes_each_seed_once():
    batches = list(loader_of(UNEVEN, {**OWNED, "uneven": "serve"}))
    taken = [position for batch in batches for position in seeds_of(batch)]
    assert sorted(taken) == list(range(67))
    assert taken != sorted(taken)


def test_samples_are_those_of_the_batches():
    loader = loader_of(UNEVEN, OWNED)
    expected = [batch.n_id.tolist() for batch in loader]
    assert [out.node.tolist() for out in loader.samples(0)] == expected
    assert [out.node.tolist() for out in loader.samples(1)] != expected


def test_a_batch_of_positions_is_that_of_any_order():
    position = torch.tensor([5, 1, 60])
    found, expected = (loader_of(EVEN, options)(position) for options in (OWNED, {}))
    assert found.n_id.tolist() == expected.n_id.tolist()
    assert seeds_of(found) == [5, 1, 60]
    assert torch.equal(found.edge_index, expected.edge_index)


# Ranks ###############################################################################################################


@pytest.mark.parametrize(("plan", "options"), quick(MODES, "pad"))
@pytest.mark.parametrize("world", [2, SLOW(4)])
def test_ranks_have_the_parts_of_one_process_s_batches(world, plan, options):
    if plan.parts == 3:
        plan = GivenPlan(plan.owners % 2 * (world - 1), world)  # parts between have no nodes at all
    elif world == 4:
        plan = GivenPlan(plan.owners + 2 * (torch.arange(200) % 2), 4)
        options = {**options, "batch_size": 12 if options.get("batch_size", 10) > 4 else 4}
    options = {**OWNED, **options}
    assert cluster(world).run(batches_of_rank, plan, 2, options) == expected_batches(plan, 2, world, options)


@pytest.mark.slow
@pytest.mark.parametrize("uneven", ["pad", "drop", "serve"], ids=["pad", "drop", "serve"])
def test_groups_of_ranks_take_batches_in_turn(uneven):
    options = {**OWNED, "uneven": uneven, "batch_size": 10}  # 11 and 3 chunks
    found = cluster(4).run(batches_of_rank, UNEVEN, 2, options)
    assert found == expected_batches(UNEVEN, 2, 4, options)
    assert [len(rank[0]) for rank in found] == {"pad": [6] * 4, "drop": [1] * 4, "serve": [6, 6, 5, 5]}[uneven]


# Training ############################################################################################################


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"uneven": "drop", "drop_last": True}], ids=["as usual", "drop"])
@pytest.mark.parametrize("world", [2, 4])
def test_weights_are_those_of_one_process(tmp_path, world, options):
    plan, options = saved_plan(tmp_path, world), {**OWNED, **options}
    expected = trained(plan, 2, options=options)
    check_weights(cluster(world).run(trained, plan, 2, 1, options), expected)
    of_global = trained(plan, 2)[-1]
    assert not any(torch.equal(expected[-1][name], of_global[name]) for name in of_global if "weight" in name)


@pytest.mark.slow
def test_two_groups_of_two_ranks(tmp_path):
    plan, options = saved_plan(tmp_path, 2), {**OWNED, "batch_size": 60}  # 6 and 5 chunks
    expected = trained(plan, 2, groups=2, norm=None, options=options)
    check_weights(cluster(4).run(trained, plan, 2, 1, options, None), expected)


# States ##############################################################################################################


@pytest.mark.slow
@pytest.mark.parametrize("plan", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_a_state_goes_on_with_other_ranks(plan):
    left = cluster(2).run(first_batches, plan, 3, OWNED)
    state = left[0][1]
    assert left[1][1] == state
    whole = expected_batches(plan, 1, 1, OWNED)[0][0]
    assert rest_of(plan, state, {**OWNED, "seed": 99}) == whole[3:]  # the state's seed counts
    _, state = first_batches(plan, 4, OWNED)
    found = cluster(2).run(rest_of, plan, state, OWNED)
    assert found == [epochs[0][4:] for epochs in expected_batches(plan, 1, 2, OWNED)]


@pytest.mark.slow
def test_a_state_of_one_process_goes_on_with_groups():
    options = {**OWNED, "uneven": "drop", "batch_size": 4}
    _, state = first_batches(UNEVEN, 4, options)
    found = cluster(4).run(rest_of, UNEVEN, state, options)
    assert found == [epochs[0][2:] for epochs in expected_batches(UNEVEN, 1, 4, options)]


def state_of(plan, options):
    return loader_of(plan, options).state_dict()


def test_states_of_other_orders_are_refused():
    state = state_of(EVEN, OWNED)
    keys = [state_of(plan, OWNED)["key_of_owners"] for plan in (EVEN, UNEVEN)]
    assert keys[0] != keys[1]
    three = GivenPlan(random_owners(200, 3), 3)
    for plan, options, text in (
        (EVEN, {}, "seed_order='owned', found seed_order='global'"),
        (three, {**OWNED, "batch_size": 12}, "parts=2, found parts=3"),
        (UNEVEN, OWNED, f"key_of_owners={keys[0]}, found key_of_owners={keys[1]}"),
        (EVEN, {**OWNED, "uneven": "drop"}, "uneven='pad', found uneven='drop'"),
        (EVEN, {**OWNED, "uneven": "serve"}, "uneven='pad', found uneven='serve'"),
    ):
        with pytest.raises(ValueError, match=f"^state: expected a loader with {re.escape(text)}$"):
            loader_of(plan, options).load_state_dict(state)
    with pytest.raises(ValueError, match=r"^state: expected a loader with seed_order='global', found seed_order='ow"):
        loader_of(EVEN, OWNED).load_state_dict(state_of(EVEN, {}))
    loader_of(GivenPlan(EVEN.owners, 2, "another"), OWNED).load_state_dict(state)  # the same owners


# Refused #############################################################################################################


@pytest.mark.parametrize(
    ("plan", "options", "text"),
    [
        (EMPTY, {"batch_size": 12},
         "uneven='pad': expected part 1 to have at least one batch, found none; use 'serve' or seed_order='global'"),
        (EMPTY, {"batch_size": 12, "uneven": "drop"},
         "uneven='drop': expected part 1 to have at least one batch, found none; use 'serve' or seed_order='global'"),
        (UNEVEN, {"batch_size": 40, "drop_last": True},
         "uneven='pad': expected part 1 to have at least one batch, found none; use 'serve' or seed_order='global'"),
        (EVEN, {"batch_size": 11}, "batch_size: expected a multiple of 2 parts with seed_order='owned', found 11"),
        (None, {}, "seed_order, uneven: expected none with shard=None, which makes all batches"),
    ],
)  # fmt: skip
def test_refused(plan, options, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        loader_of(plan, {**OWNED, **options})


def test_seeds_out_of_range():
    with pytest.raises(IndexError, match=r"^input_nodes\[1\] = 200 is out of range: expected nodes in \[0, 200\)$"):
        NeighborLoader(make_data(), [3], torch.tensor([1, 200]), batch_size=2, split=EVEN, seed_order="owned")


def refusal(plan, options):
    try:
        loader_of(plan, {**OWNED, **options})
    except ValueError as error:
        return str(error)
    return None


def test_all_ranks_refuse():
    text = "uneven='pad': expected part 1 to have at least one batch, found none; use 'serve' or seed_order='global'"
    assert cluster(2).run(refusal, GivenPlan(torch.zeros(200, dtype=torch.int64), 2), {}) == [text] * 2


@pytest.mark.slow
def test_groups_without_a_step_refuse():
    text = "uneven='drop': expected a batch for each of 2 ranks, found [2, 1] in all"
    assert cluster(4).run(refusal, UNEVEN, {"uneven": "drop", "batch_size": 60}) == [text] * 4
