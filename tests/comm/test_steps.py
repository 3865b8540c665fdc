"""The steps of ranks, without the ranks."""

import threading

import pytest
import torch
from torch import distributed as dist

from torch_gnnscale.comm.exchange import Exchange, OtherRankFailed
from torch_gnnscale.comm.mesh import Grid, Status
from torch_gnnscale.comm.rendezvous import Rendezvous
from torch_gnnscale.comm.steps import FAILED, Steps


def test_the_rank_of_a_column_that_failed_is_named():
    steps = Steps.__new__(Steps)
    steps._counting = exchange = Exchange(object(), 2, 1, Grid(4, 2).column(1))
    exchange.numbers = lambda counts, purpose: torch.tensor([[FAILED, FAILED], [0, 0]])
    exchange.reasons = lambda error: ["OSError: no", ""]
    with pytest.raises(OtherRankFailed, match=r"^sampling: .* found that rank 1 failed: OSError: no$"):
        steps.counted(torch.zeros(2, 2, dtype=torch.int64), what="sampling")


def connected(**methods):
    """Rank 0 of ranks of which no other one is there."""
    found = Rendezvous(0, 1, 1.0)
    vars(found).update(groups=lambda of_ranks: [object() for _ in of_ranks], board=lambda of_ranks: None, **methods)
    return found


@pytest.mark.parametrize(("ranks", "parts", "has_row"), [(2, 2, True), (4, 2, False)])
def test_ranks_of_a_row_meet_when_there_are_copies_and_they_are_asked(ranks, parts, has_row):
    steps = Steps(connected(), Grid(ranks, parts), {}, lambda _: None, transport="gloo")
    try:
        assert (steps.row is not None) == has_row
        steps.open_row()
        assert steps.row.exchange.size == ranks // parts
    finally:
        steps.thread.end(None)


@pytest.fixture
def alone():
    """The steps of a single rank, in an iteration of two."""
    steps = Steps(Rendezvous(0, 1, 1.0), Grid(1, 1), {}, lambda _: None)
    steps.thread.submit(steps.begin, 0, 0, 2, 0, {}).result()
    yield steps
    steps.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_is_under_way_until_it_ends(alone, fails):
    found = []

    def run(asked):
        found.append(alone.running)
        if fails:
            raise ValueError("of a test")

    future = alone.thread.submit(alone.step, 0, None, None, run)
    assert (future.exception() is not None) == fails
    assert (found, alone.running, alone.thread.submit(lambda: alone.running).result()) == ([True], False, False)


def test_each_sampling_ahead_is_agreed_on_by_itself(alone):
    """One that failed does not speak for the next one, nor for the step."""

    def run(asked):
        for error in (ValueError("of a test"), None, ValueError("of a test")):
            alone.sampled_ahead(error)
        alone.agree(None, "rows")

    alone.thread.submit(alone.step, 0, None, None, run).result()
    assert alone.rows.traffic["counts"].headers == 4


@pytest.mark.parametrize(
    ("taken", "fails", "expected"),
    [
        (0, True, [(Status.FAIL, 0), (Status.STOP, 0)]),
        (1, True, [(Status.FAIL, 2)]),
        (2, True, []),
        (1, False, [(Status.STOP, 0)]),
        (2, False, []),
    ],
)
def test_who_leaves_tells_first_of_a_batch_that_failed(taken, fails, expected):
    """In place of a step that the others expect, if there is one."""
    steps, told, said = Steps(connected(), Grid(2, 2), {}, lambda _: None, transport="gloo"), [], []

    def agree(status, number, counts=None):
        told.append((status, number))
        return [told[-1]] * 2, None

    steps._agree = agree
    steps._gathered = lambda text: said.append(text) or [text, ""]
    steps.begin(0, 0, 2, 0, {})
    steps._taken = taken
    if fails:
        steps.tell(0, OSError("no"))
    steps.leave(1)
    steps.thread.end(None)
    assert told == expected
    assert said == ["rank 0 failed to make batch 0: OSError: no"] * ((Status.FAIL, 2 * taken) in expected)


def test_steps_that_are_dropped_leave_first():
    calls = []
    steps = Steps(Rendezvous(0, 1, 1.0), Grid(1, 1), {}, calls.append)
    steps.leave = calls.append
    steps.drop()
    assert steps.thread.end(10.0)
    steps.drop()
    assert calls == [0, steps]


def test_the_end_of_steps_that_were_dropped_is_awaited():
    leaves, left = threading.Event(), []
    steps = Steps(Rendezvous(0, 1, 1.0), Grid(1, 1), {}, lambda _: left.append(leaves.is_set()))
    steps.leave = lambda delivered: leaves.wait(30)
    steps.drop()
    assert left == []
    threading.Timer(0.1, leaves.set).start()
    steps.close()
    assert left == [True]
    assert not steps.thread.thread.is_alive()


def test_both_threads_may_fail_at_once(monkeypatch):
    """The thread that iterates fails while that of the steps tells the others of its own failure."""
    telling, told, ended = threading.Event(), threading.Event(), []

    def fail(why, about):
        telling.set()
        assert told.wait(30)

    steps = Steps(connected(fail=fail), Grid(2, 2), {}, lambda _: None, transport="gloo")
    steps.rows_here = Exchange(object(), 2, 0)
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    monkeypatch.setattr("torch_gnnscale.comm.steps.end_groups", ended.append)
    first = steps.thread.submit(steps.lose, "of the steps")
    assert telling.wait(30)
    second = threading.Thread(target=steps.lose, args=["of the iteration"])
    second.start()
    second.join(0.1)
    told.set()
    first.result()
    second.join(30)
    steps.thread.end(None)
    assert [steps.rows_here] in ended
    with pytest.raises(RuntimeError, match=r"^rank 0: of the steps$"):
        steps.named(int)
