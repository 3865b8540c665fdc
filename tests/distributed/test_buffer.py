"""The prefetch buffer has the rows of the ids that its policy keeps."""

import numpy as np
import pytest
import torch
from helpers.data import DTYPES, node_rows
from helpers.policies import ids_of
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale.distributed.buffer import POLICIES, Kept, LoaderBuffers, PrefetchBuffer, _merged, capacities
from torch_gnnscale.distributed.lookahead import Lookahead
from torch_gnnscale.distributed.policies import MassiveGNN, Static, buffer_step
from torch_gnnscale.distributed.row_exchange import Travelled

HALO = torch.arange(1, 40, 2)
CASES = [
    ("static", {}), ("massivegnn", {"gamma": 0.5, "delta": 2}), ("massivegnn", {"gamma": 0.9, "delta": 1}),
    ("lookahead", {"window": 0}), ("lookahead", {"window": 2}), ("lookahead", {"window": "epoch"}),
]  # fmt: skip


def rows_of(ids):
    """Rows of three attributes that are functions of the id; the last one has no columns."""
    return {"x": node_rows(ids), "y": (ids * 7 % 5).to(torch.int16), "none": torch.empty(len(ids), 0)}


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.sets(st.integers(0, 41), max_size=12), st.sampled_from([False, False, True])), max_size=20),
    st.integers(0, 15),
    st.sampled_from(CASES),
)
def test_a_batch_has_the_rows_of_its_ids(batches, capacity, case):
    """Also after steps that fail before their rows come."""
    name, options = case
    policy = POLICIES[name](capacity, HALO, HALO % 5, **options)
    attrs = {key: (rows.dtype, tuple(rows.shape[1:])) for key, rows in rows_of(HALO).items()}
    buffer = PrefetchBuffer(policy, attrs)
    assert buffer.num_bytes == policy.capacity * (3 * 8 + 2)
    buffer.fill(rows_of(policy.start()))
    given_ids = [ids_of(batch) for batch, _ in batches]
    if policy.window == "epoch":
        for ids in given_ids:
            policy.announce(ids)
    for number, (ids, (_, fails)) in enumerate(zip(given_ids, batches, strict=True)):
        if policy.window == 2:
            for later in given_ids[number + 2 :][:1] if number else given_ids[:3]:
                policy.announce(later)
        step = buffer.step(ids)
        for key, expected in rows_of(ids[step.hit]).items():
            assert torch.equal(buffer.take(step)[key], expected)
        assert torch.equal(step.fetch[step.missed], ids[~step.hit])
        if not fails:
            buffer.enter(step, rows_of(step.fetch))
            buffer.entered(step)


@pytest.mark.parametrize("fails", [False, True])
def test_only_rows_that_did_not_come_are_fetched_again(fails):
    buffer = PrefetchBuffer(POLICIES["lookahead"](2, HALO, HALO, window=0), {"x": (torch.float64, (3,))})
    ids = torch.tensor([4, 6])
    step = buffer.step(ids)
    if not fails:
        buffer.enter(step, {"x": node_rows(step.fetch)})
        buffer.entered(step)
    for expected in [[4, 6], []] if fails else [[], []]:
        step = buffer.step(ids)
        assert step.fetch.tolist() == step.enter.tolist() == expected
        buffer.enter(step, {"x": node_rows(step.fetch)})
        buffer.entered(step)


def test_rows_that_enter_say_nothing_of_those_of_a_step_that_failed():
    buffer = PrefetchBuffer(POLICIES["lookahead"](2, HALO, HALO, window=0), {"x": (torch.float64, (3,))})
    buffer.step(torch.tensor([4]))  # its rows do not come
    step = buffer.step(torch.tensor([6]))
    buffer.enter(step, {"x": node_rows(step.fetch)})
    buffer.entered(step)
    step = buffer.step(torch.tensor([4, 6]))
    assert step.fetch.tolist() == [4]
    assert torch.equal(buffer.take(step)["x"], node_rows(torch.tensor([6])))


def test_a_row_that_did_not_come_makes_room_for_another():
    policy = POLICIES["lookahead"](1, HALO, HALO, window=2)
    buffer = PrefetchBuffer(policy, {"x": (torch.float64, (3,))})
    batches = [torch.tensor(ids) for ids in ([4], [4, 6], [6])]
    for ids in batches:
        policy.announce(ids)
    buffer.step(batches[0])
    step = buffer.step(batches[1])
    assert (step.fetch.tolist(), step.enter.tolist(), step.at.tolist()) == ([4, 6], [6], [0])


@pytest.mark.parametrize("slots", [[-1, -1], [-1, 5], [5, -1], [5, 6]])
@pytest.mark.parametrize("enter", [[], [4], [2], [1, 9]])
def test_rows_of_a_batch_are_told_from_others_that_enter(slots, enter):
    ids = torch.tensor([2, 6])
    step = buffer_step(ids.numpy(), np.array(slots), np.array(enter, dtype=np.int64), np.arange(len(enter)))
    assert torch.equal(_merged(step, node_rows(ids[step.hit]), node_rows(step.fetch)), node_rows(ids))


def test_rows_taken_stay_when_others_enter():
    buffer = PrefetchBuffer(POLICIES["lookahead"](1, HALO, HALO, window=0), {"x": (torch.float64, (3,))})
    taken = []
    for number in (4, 4, 6):
        step = buffer.step(torch.tensor([number]))
        taken.append(buffer.take(step)["x"])
        buffer.enter(step, {"x": node_rows(step.fetch)})
        buffer.entered(step)
    assert torch.equal(buffer.rows["x"], node_rows(torch.tensor([6])))
    assert torch.equal(taken[1], node_rows(torch.tensor([4])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_dtype(dtype):
    buffer = PrefetchBuffer(POLICIES["lookahead"](3, HALO, HALO, window=0), {"x": (dtype, (2,)), "y": (dtype, ())})
    ids = torch.tensor([1, 3, 9])
    rows = {"x": torch.stack([ids, ids + 1], 1).to(dtype), "y": ids.to(dtype)}
    buffer.enter(step := buffer.step(ids), rows)
    buffer.entered(step)
    found = buffer.take(buffer.step(ids))
    assert all(torch.equal(found[name].to(torch.complex128), rows[name].to(torch.complex128)) for name in rows)
    assert found["x"].dtype == dtype


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (0.25, {"a": 25, "b": 2, "c": 0}),
        ("25%", {"a": 25, "b": 2, "c": 0}),
        (1.0, {"a": 101, "b": 10, "c": 0}),
        (0, {"a": 0, "b": 0, "c": 0}),
        (1110, {"a": 55, "b": 5, "c": 0}),  # the rows of both halos have 1010 bytes
        ("10KB", {"a": 300, "b": 15, "c": 0}),
    ],
)
def test_capacities(budget, expected):
    halo, remote, row_bytes = {"a": 101, "b": 10, "c": 0}, {"a": 300, "b": 15, "c": 7}, {"a": 10, "b": 101, "c": 4}
    assert capacities(budget, halo, remote, row_bytes) == expected


def test_bytes_of_one_type_give_as_many_rows_as_fit():
    for bytes_ in (0, 11, 12, 13, 1199):
        assert capacities(bytes_, {None: 90}, {None: 99}, {None: 12}) == {None: bytes_ // 12}
    assert capacities("2GiB", {None: 90}, {None: 99}, {None: 12}) == {None: 99}
    assert capacities("2GiB", {None: 90}, {None: 99}, {None: 0}) == {None: 0}


@pytest.mark.parametrize(
    ("kept", "kind", "found"),
    [
        (Kept(0.5), MassiveGNN, {"gamma": 0.995, "delta": 64}),
        (Kept(0.5, None, {"delta": 3}), MassiveGNN, {"gamma": 0.995, "delta": 3}),
        (Kept(0.5, "massivegnn", {"gamma": 0.5}), MassiveGNN, {"gamma": 0.5, "delta": 64}),
        (Kept(0.5, "static"), Static, {"window": 0}),
        (Kept(0.5, "lookahead", {"window": "epoch"}), Lookahead, {"window": "epoch"}),
        (Kept(0.5, "lookahead"), Lookahead, {"window": 16}),
    ],
    ids=str,
)
def test_a_policy_is_made_as_the_user_says(kept, kind, found):
    policy = kept.make(7, HALO, HALO % 5)
    assert (type(policy), policy.capacity) == (kind, 7)
    assert {name: getattr(policy, name) for name in found} == found


def test_each_buffer_of_a_loader_is_told():
    """And those of types whose rows are not kept are not."""
    policies = [Lookahead(3, window=2), Lookahead(3, window=5)]
    buffers = LoaderBuffers([None, *(PrefetchBuffer(policy, {0: (torch.float64, (3,))}) for policy in policies)])
    assert (buffers.window, LoaderBuffers([None]).window) == (5, 0)
    ids = [torch.tensor([first, first + 2]) for first in (1, 5, 9)]
    buffers.announce(ids)
    assert [[batch.ids.tolist() for batch in policy._queue] for policy in policies] == [[[5, 7]], [[9, 11]]]
    buffers.withdraw()
    assert [len(policy._queue) for policy in policies] == [0, 0]
    asked = buffers.ask(ids)
    assert [entry.tolist() for entry in asked.ids] == [[1, 3], [5, 7], [9, 11]]
    assert [step is None for step in asked.steps] == [True, False, False]
    rows = [Travelled.of(node_rows(entry)) for entry in asked.ids]
    found = buffers.take(asked, [[entry] for entry in rows])
    assert found[0] == [rows[0]]
    assert torch.equal(found[2][0].rows(node_rows(ids[2])), node_rows(ids[2]))
    buffers.entered(asked)
    assert [len(entry) for entry in buffers.ask(ids).ids] == [2, 0, 0]


def test_buffers_are_filled_once_by_the_first_step_whose_rows_come():
    policies = [MassiveGNN(2, HALO, HALO, gamma=0.5, delta=1), Static(2, HALO, HALO)]
    buffers = LoaderBuffers([*(PrefetchBuffer(policy, {0: (torch.float64, (3,))}) for policy in policies), None])

    def taken(ids, asked):
        found = buffers.ask([ids] * 3)
        assert [entry.tolist() for entry in found.ids] == asked
        rows = buffers.take(found, [[Travelled.of(node_rows(entry))] for entry in found.ids])
        for (entry,) in rows:
            assert torch.equal(entry.rows(node_rows(ids)), node_rows(ids))
        return found

    ids = torch.tensor([3, 37])
    assert [len(entry) for entry in buffers.ask([ids] * 3).ids] == [3, 3, 2]  # no rows come: the start is asked again
    buffers.entered(taken(ids, [[3, 37, 39], [3, 37, 39], [3, 37]]))
    for _ in range(2):  # the first policy has taken 3 in place of 39
        buffers.entered(taken(ids, [[], [3], [3, 37]]))
