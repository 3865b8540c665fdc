"""Policies keep what their twins keep, step by step."""

from fractions import Fraction

import pytest
import torch
from helpers.policies import LookaheadTwin, MassiveGNNTwin, StaticTwin, fewest_misses, ids_of, played
from helpers.slow import SLOW
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale.distributed import lookahead
from torch_gnnscale.distributed.lookahead import Lookahead
from torch_gnnscale.distributed.policies import MassiveGNN, Static

NODES = st.integers(0, 30)
BATCHES = st.lists(st.sets(NODES, max_size=8), max_size=40)


@st.composite
def halos(draw):
    """A halo, its out-degrees, of which many are equal, and a number of slots."""
    halo = sorted(draw(st.sets(st.integers(0, 20), max_size=16)))
    degree = draw(st.lists(st.integers(1, 4), min_size=len(halo), max_size=len(halo)))
    return draw(st.integers(0, len(halo) + 2)), halo, degree


def tensors(capacity, halo, degree):
    return capacity, torch.tensor(halo, dtype=torch.int64), torch.tensor(degree, dtype=torch.int64)


def assert_plays_like(policy, twin, batches, lazily=False):
    steps = played(policy, batches, lazily)
    for number, (batch, (fetched, held)) in enumerate(zip(batches, steps, strict=True), 1):
        assert fetched == twin.step(batch), f"step {number}"
        assert held == twin.kept, f"step {number}"


@pytest.mark.slow
@given(halos(), BATCHES)
def test_static_equals_the_twin(halo, batches):
    policy = Static(*tensors(*halo))
    assert set(policy.start().tolist()) == StaticTwin(*halo).kept
    assert_plays_like(policy, StaticTwin(*halo), batches)


@pytest.mark.slow
@given(halos(), BATCHES, st.sampled_from([0.5, 0.75, 0.9, 0.995, 0.9999]), st.integers(1, 7), st.booleans())
def test_massivegnn_equals_the_decay_of_real_numbers(halo, batches, gamma, delta, lazily):
    policy = MassiveGNN(*tensors(*halo), gamma=gamma, delta=delta)
    twin = MassiveGNNTwin(*halo, Fraction(gamma), delta)
    assert set(policy.start().tolist()) == twin.kept
    assert_plays_like(policy, twin, batches, lazily)


def test_massivegnn_by_hand():
    policy = MassiveGNN(2, torch.tensor([3, 5, 7, 9]), torch.tensor([4, 4, 1, 2]), gamma=0.5, delta=2)
    found = list(played(policy, [{7, 8}, {7, 9}, {7, 9}, {5}, {7}, {3}]))
    # 3 and 5 begin, the largest degrees. Step 2: both were unused twice and leave with S_A = 1/4, for 7 (S_A = 2), due
    # after 2 + 1 unused steps, and 9 (S_A = 1), due after 2. Step 4: none is due. Step 6: 9 is, 7 is not; 3 and 5 have
    # S_A = 1/4 + 1 and equal degrees, so the smaller one enters.
    assert [held for _, held in found] == [{3, 5}, {7, 9}, {7, 9}, {7, 9}, {7, 9}, {3, 7}]
    assert [fetched for fetched, _ in found] == [{7, 8}, {7, 9}, set(), {5}, set(), {3}]


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.995, 0.9999, 1 - 1e-6])
@pytest.mark.parametrize("delta", [1, 2, 3, 16, 17, 64, SLOW(1000)])
def test_a_due_of_exactly_0_leaves_at_the_next_round(gamma, delta):
    policy = MassiveGNN(1, torch.tensor([0, 1]), torch.tensor([2, 1]), gamma=gamma, delta=delta)
    # 0 leaves with gamma^delta for 1, which is never used and leaves for 0: s = gamma^delta, and rounding does not make
    # its due 1. So it leaves although it was used in every step.
    *_, (_, held) = played(policy, [{7}] * (delta - 1) + [{1}] + [{7}] * delta + [{0}] * (delta - 1))
    assert held == {0} or delta == 1
    assert policy.step(torch.tensor([0])).enter.tolist() == [1]


@pytest.mark.slow
@given(st.integers(0, 12), BATCHES, st.sampled_from([0, 1, 2, 3, 16, "epoch"]))
def test_lookahead_equals_the_twin(capacity, batches, window):
    twin = LookaheadTwin(capacity, batches, len(batches) if window == "epoch" else window)
    assert_plays_like(Lookahead(capacity, window=window), twin, batches)


@pytest.mark.slow
@given(st.integers(0, 12), BATCHES, st.sampled_from([0, 3, "epoch"]))
def test_lookahead_forgets_ids(capacity, batches, window):
    twin = LookaheadTwin(capacity, batches, len(batches) if window == "epoch" else window)
    least, lookahead.LEAST_COUNT = lookahead.LEAST_COUNT, 2
    try:
        policy = Lookahead(capacity, window=window)
        assert_plays_like(policy, twin, batches)
    finally:
        lookahead.LEAST_COUNT = least


@pytest.mark.parametrize("window", [2, "epoch"])
def test_lookahead_knows_any_number_of_uses(window):
    batches = [set(range(first, first + 500)) for first in (0, 250, 0, 900, 300, 0)]
    twin = LookaheadTwin(600, batches, len(batches) if window == "epoch" else window)
    assert_plays_like(Lookahead(600, window=window), twin, batches)


def test_lookahead_forgets_what_it_neither_has_nor_knows(monkeypatch):
    monkeypatch.setattr(lookahead, "LEAST_COUNT", 2)
    batches = [{number, number + 7, 3} for number in range(40)]
    twin, policy = LookaheadTwin(4, batches, 3), Lookahead(4, window=3)
    assert_plays_like(policy, twin, batches)
    assert policy._numbers.count < 40


@pytest.mark.slow
@given(st.integers(0, 12), BATCHES, BATCHES, st.integers(0, 20), st.sampled_from([0, 3, "epoch"]))
def test_lookahead_goes_on_elsewhere(capacity, batches, others, stop, window):
    policy, run = Lookahead(capacity, window=window), batches[:stop] + others
    reach = len(batches + others) if window == "epoch" else window
    twin = LookaheadTwin(capacity, batches, reach)
    for batch, (_, held) in zip(batches[:stop], played(policy, batches), strict=False):
        twin.step(batch)
        assert held == twin.kept
    policy.withdraw()
    twin.batches = run
    told = twin.steps
    for number, batch in enumerate(run[told:], told):
        for later in run[told : number + 1 + reach]:
            policy.announce(ids_of(later))
        told = max(told, number + 1 + reach)
        ids = ids_of(batch)
        assert set(ids[~policy.step(ids).hit].tolist()) == twin.step(batch)


def test_uses_that_were_withdrawn_keep_no_row():
    policy = Lookahead(1, window=2)
    for ids in ({1}, {2}, {1}):
        policy.announce(ids_of(ids))
    assert policy.step(ids_of({1})).enter.tolist() == [1]
    policy.withdraw()
    assert policy.step(ids_of({5})).enter.tolist() == [5]


@pytest.mark.slow
@given(st.integers(0, 3), st.lists(st.sets(st.integers(0, 5), max_size=4), max_size=7))
def test_knowing_the_epoch_is_optimal(capacity, batches):
    found = sum(len(fetched) for fetched, _ in played(Lookahead(capacity, window="epoch"), batches))
    assert found == fewest_misses(batches, capacity)


def test_of_equal_scores_the_smallest_out_degree_leaves():
    policy = MassiveGNN(2, torch.tensor([10, 20, 30]), torch.tensor([3, 5, 1]), gamma=0.5, delta=1)
    assert policy.start().tolist() == [10, 20]
    step = policy.step(torch.tensor([30]))
    assert (step.enter.tolist(), step.at.tolist()) == ([30], [0])
