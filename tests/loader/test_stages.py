"""Stages that run in parallel, or in order on one thread; batches in preparation as the first ones show."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import groupby
from types import SimpleNamespace

import pytest
import torch
from helpers.data import loader_of, make_data, no_loader_threads, plain, wait_for

from torch_gnnscale import NeighborLoader
from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.loader.epochs import Share
from torch_gnnscale.loader.execution import Execution
from torch_gnnscale.loader.pipeline import LEAST_SECONDS, TURNS, USUAL, WINDOW, Pipeline, PrefetchTrial, Stage
from torch_gnnscale.loader.row_source import CollectiveSource, StoreRows
from torch_gnnscale.loader.together import Served, Together, TogetherBatches
from torch_gnnscale.sampler.minibatch import MiniBatch


def same(value):
    return value


def noted(calls, name, wait=0.002):
    def run(item):
        time.sleep(wait * random.random())
        calls.append((name, item, threading.current_thread().name))
        return item

    return run


@pytest.mark.parametrize("prefetch", [0, 1, 3, 10])
@pytest.mark.parametrize("kinds", ["o", "po", "op", "popo", "oop"])
def test_stages_in_order(kinds, prefetch):
    kinds, calls = [kind == "o" for kind in kinds], []
    where = {False: "parallel", True: "in order"}
    stages = [Stage(noted(calls, number), where[in_order]) for number, in_order in enumerate(kinds)]
    assert list(Pipeline(iter(range(12)), stages, same, prefetch)) == list(range(12))
    assert no_loader_threads()
    ordered = [(item, name) for name, item, _ in calls if kinds[name]]
    assert ordered == [(item, number) for item in range(12) for number, kind in enumerate(kinds) if kind]
    threads = {thread for name, _, thread in calls if kinds[name]}
    assert len(threads) == 1
    for item in range(12):
        assert [name for name, other, _ in calls if other == item] == list(range(len(kinds)))


def test_the_thread_in_order_does_not_depend_on_who_waits():
    """Stage 1 of an item runs although nobody has asked for the item before."""
    calls = []
    pipeline = Pipeline(iter(range(5)), [Stage(same), Stage(noted(calls, 1), "in order")], same, 5)
    wait_for(lambda: len(calls) == 5)
    assert list(pipeline) == list(range(5))


@pytest.mark.parametrize("prefetch", [0, 4])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_errors_of_any_stage_come_in_their_place(prefetch, failing):
    def fail(item):
        if item == 2:
            raise ValueError(f"stage {failing}")
        return item

    where = ["parallel", "in order", "parallel"]
    stages = [Stage(fail if number == failing else same, where[number]) for number in range(3)]
    pipeline = Pipeline(iter(range(5)), stages, same, prefetch)
    assert [next(pipeline), next(pipeline)] == [0, 1]
    with pytest.raises(ValueError, match=f"^stage {failing}$"):
        next(pipeline)
    assert list(pipeline) == [3, 4]


def test_closing_while_the_ordered_thread_waits():
    released = threading.Event()
    stages = [Stage(lambda item: released.wait(20) and item), Stage(same, "in order"), Stage(same)]
    pipeline = Pipeline(iter(range(30)), stages, same, 8)
    threading.Timer(0.05, released.set).start()
    pipeline.close()
    assert no_loader_threads()
    assert list(pipeline) == []


def test_closing_between_two_stages_in_order():
    item_0, item_1 = threading.Event(), threading.Event()

    def first(item):
        return item == 0 or item_1.wait(20)

    stages = [Stage(first), Stage(lambda item: item_0.wait(20), "in order"), Stage(same), Stage(same, "in order")]
    pipeline = Pipeline(iter(range(2)), stages, same, 2)
    closing = threading.Thread(target=pipeline.close, daemon=True)
    closing.start()  # waits for item 1, and by then takes nothing new, such as the third stage of item 0
    wait_for(lambda: pipeline._threads._shutdown)
    item_0.set()
    time.sleep(0.1)
    item_1.set()
    closing.join(20)
    assert not closing.is_alive()
    assert no_loader_threads()


def test_the_number_in_preparation_can_change():
    started = []

    def items():
        for item in range(20):
            started.append(item)
            yield item

    pipeline = Pipeline(items(), [Stage(same)], same, 0)
    assert next(pipeline) == 0
    assert (len(started), no_loader_threads()) == (1, True)
    pipeline.set_prefetch(4)
    assert len(started) == 5
    assert [next(pipeline) for _ in range(3)] == [1, 2, 3]
    assert len(started) == 8
    pipeline.set_prefetch(0)
    assert [next(pipeline) for _ in range(4)] == [4, 5, 6, 7]
    assert len(started) == 8
    assert list(pipeline) == list(range(8, 20))


def run_trial(seconds, batches=1000):
    """The trial's choice and the prefetch of each step, where a step takes ``seconds[prefetch]``."""
    trial, used = PrefetchTrial(), []
    trial.begin()
    for _ in range(batches):
        used.append(trial.prefetch)
        trial.step(seconds[trial.prefetch])
    return trial.choice, used


def test_the_faster_way_is_kept():
    assert run_trial({0: 1.0, USUAL: 0.9})[0] == USUAL
    assert run_trial({0: 1.0, USUAL: 1.1})[0] == 0
    assert run_trial({0: 1.0, USUAL: 0.99})[0] == 0  # not worth the threads
    choice, used = run_trial({0: 1.0, USUAL: 0.5}, TURNS * WINDOW + 1)
    assert used[: TURNS * WINDOW] == ([0] * WINDOW + [USUAL] * WINDOW) * (TURNS // 2)
    assert (choice, used[-1]) == (USUAL, USUAL)


def test_the_first_steps_of_a_window_do_not_count():
    trial = PrefetchTrial()
    for turn in range(TURNS):
        for step in range(WINDOW):
            first = step <= USUAL
            trial.step((0.0 if turn % 2 else 100.0) if first else (2.0 if turn % 2 else 1.0))
    assert trial.choice == 0


@pytest.mark.parametrize(
    ("options", "tried"), [({}, True), ({"prefetch": 0}, False), ({"prefetch": 2}, False), ({"bulk": 2}, False)]
)
def test_loaders_that_make_single_batches_try_what_is_faster_unless_prefetch_is_given(options, tried, monkeypatch):
    followed, follow = [], PrefetchTrial.follow
    monkeypatch.setattr(PrefetchTrial, "follow", lambda self, made: followed.append(self) or follow(self, made))
    loader = loader_of(make_data(), input_nodes=torch.arange(6), batch_size=2, **options)
    for _ in range(2):
        assert len(list(loader)) == 3
    assert len(followed) == 2 * tried
    assert len(set(followed)) == tried  # one trial goes on in the next epoch


def trial_of(ahead):
    """The choice where a step without threads takes 1, and ``ahead(window, step)`` with them."""
    trial = PrefetchTrial()
    for turn in range(TURNS):
        for step in range(WINDOW):
            trial.step(ahead(turn // 2, step) if turn % 2 else 1.0)
    return trial.choice


def test_windows_of_tiny_batches_last_longer():
    """So that neither a pause of the system decides, nor the start of threads."""
    slow, quick = LEAST_SECONDS / 70, LEAST_SECONDS / 80
    choice, used = run_trial({0: quick, USUAL: slow})
    lengths = [len(list(steps)) for _, steps in groupby(used)]
    assert all(84 < length < 88 for length in lengths[:TURNS:2])  # the first five steps do not count
    assert all(74 < length < 78 for length in lengths[1 : TURNS - 1 : 2])
    assert choice == 0
    assert run_trial({0: slow, USUAL: quick})[0] == USUAL


def test_batches_that_come_in_bursts_count_by_their_mean():
    assert trial_of(lambda window, step: 8.0 if step % 4 == 0 else 0.1) == 0
    assert trial_of(lambda window, step: 2.0 if step % 4 == 0 else 0.1) == USUAL


def test_one_window_that_is_disturbed_decides_nothing_unless_it_is_much_slower():
    for first, choice in ((1.15, USUAL), (1.3, 0)):
        assert trial_of(lambda window, step, first=first: first if window == 0 else 0.8) == choice


def test_a_window_that_is_much_slower_with_threads_ends_the_trial():
    choice, used = run_trial({0: 1.0, USUAL: 1.25}, 3 * WINDOW)
    assert (choice, used) == (0, [0] * WINDOW + [USUAL] * WINDOW + [0] * WINDOW)
    trial = PrefetchTrial()
    for turn, seconds in enumerate([1.0, 0.8, 0.9, 1.2]):
        assert trial.choice is None, turn
        for _ in range(WINDOW):
            trial.step(seconds)
    assert trial.choice == 0


def test_other_work_during_most_windows_without_threads_is_not_a_gain_of_threads():
    trial = PrefetchTrial()
    for turn in range(TURNS):
        for _ in range(WINDOW):
            trial.step(1.2 if turn % 2 else (1.0 if turn == 2 else 2.0))
    assert trial.choice == 0


def test_a_window_that_an_epoch_cuts_off_is_repeated():
    trial = PrefetchTrial()
    for seconds in [1.0] * WINDOW + [100.0] * (WINDOW - 1):
        trial.step(seconds)
    assert trial.prefetch == USUAL
    trial.begin()
    for turn in range(1, TURNS):
        for _ in range(WINDOW):
            trial.step(0.8 if turn % 2 else 1.0)
    assert trial.choice == USUAL


def run_epochs(first, others, batches, epochs):
    """The trial's choice and the prefetch of each epoch: its first step takes ``first[prefetch]``, all others
    ``others[prefetch]``."""
    trial, used = PrefetchTrial(), []
    for _ in range(epochs):
        trial.begin()
        used.append(trial.prefetch)
        for step in range(batches):
            trial.step((others if step else first)[trial.prefetch])
        trial.end()
        trial.end()  # asked again after its end
    return trial.choice, used


def test_epochs_shorter_than_a_window_are_windows():
    for batches in (2, WINDOW - 1):
        faster, slower = {0: 1.0, USUAL: 1.0}, {0: 1.0, USUAL: 9.0}
        assert run_epochs(faster, {0: 1.0, USUAL: 0.5}, batches, 9) == (USUAL, [0, USUAL] * 3 + [USUAL] * 3)
        assert run_epochs(slower, {0: 1.0, USUAL: 0.9}, batches, 9) == (0, [0, USUAL] + [0] * 7)
    quick = LEAST_SECONDS / 40  # a window is ten epochs
    assert run_epochs(*[{0: quick, USUAL: quick / 2}] * 2, 4, 29) == (None, ([0] * 10 + [USUAL] * 20)[:29])
    assert run_epochs(*[{0: quick, USUAL: quick / 2}] * 2, 4, 200)[0] == USUAL


def test_epochs_of_one_batch_and_those_that_are_left_are_no_windows():
    assert run_epochs(*[{0: 1.0, USUAL: 0.5}] * 2, 1, 50) == (None, [0] * 50)
    trial = PrefetchTrial()
    for _ in range(50):
        trial.begin()
        for _ in range(3):
            trial.step(1.0)
    assert (trial.choice, trial.prefetch) == (None, 0)


@pytest.mark.slow
def test_epochs_of_one_batch_start_no_threads_and_batches_are_the_same(monkeypatch):
    monkeypatch.setattr("torch_gnnscale.loader.pipeline.LEAST_SECONDS", 0.0)
    data = make_data()
    short = NeighborLoader(data, [2], torch.arange(200), batch_size=200, seed=1)
    for _ in range(5):
        for _ in short:
            assert no_loader_threads()
    long, plainly = (NeighborLoader(data, [2], batch_size=2, seed=1, prefetch=given) for given in (None, 0))
    for _ in range(2):
        assert [plain(batch) for batch in long] == [plain(batch) for batch in plainly]
    assert long._execution.trial.choice in (0, USUAL)
    assert no_loader_threads()


def test_what_a_trial_chose_is_set_in_later_epochs():
    trial, pipeline = PrefetchTrial(), Pipeline(iter("abc"), [Stage(same)], same, 0)
    trial.choice = USUAL
    assert trial.follow(pipeline) is pipeline
    assert any(thread.name.startswith("gnnscale-loader") for thread in threading.enumerate())
    assert list(pipeline) == list("abc")


class Left:
    """Steps of ranks whose thread runs what it is given at once; keeps with how many batches they were left."""

    def __init__(self):
        self.thread, self.batches = SimpleNamespace(submit=lambda run, *given: run(*given)), []

    def leave(self, batches):
        self.batches.append(batches)


@pytest.mark.parametrize(("turns", "left"), [(5, 3), (4, None)])
def test_a_batch_that_failed_is_one_of_those_before_an_iteration_is_left(turns, left):
    def fails(item):
        if item == "b":
            raise ValueError(item)
        return Served() if item == "c" else item

    steps = Left()
    batches = TogetherBatches(Pipeline(iter("abcde"), [], fails, 0), same, steps, turns, nullcontext)
    assert next(batches) == "a"
    with pytest.raises(ValueError, match=r"^b$"):
        next(batches)
    assert next(batches) == "d"
    batches.close()
    batches.close()
    assert steps.batches == [left]


class AnnouncedTwoStepsBefore(StoreRows, CollectiveSource):
    """Wants to be told what the next two steps read; a sample is its own needs and rows."""

    threads, collective, window = False, True, 2

    def read(self, needs, asked):
        pass

    def needs(self, sampled, bounds, versions):
        return sampled


@pytest.mark.parametrize("prefetch", [0, 2])
def test_steps_that_were_announced_are_not_taken_after_the_epoch_was_left(prefetch):
    source = AnnouncedTwoStepsBefore(None, None)
    line = SimpleNamespace(
        collator=SimpleNamespace(source=source, needs=lambda batch, inputs: batch, collate=lambda batch: batch.of),
        sampler=SimpleNamespace(collective=False),
        sample=lambda batch: SimpleNamespace(of=(batch.epoch, batch.number)),
        deliver=lambda made, since: made, finish=same, seconds={"sample": 0.0, "gather": 0.0},
    )  # fmt: skip
    with ThreadPoolExecutor(1) as thread:
        steps = SimpleNamespace(
            thread=thread, begin=lambda *_: None, leave=lambda delivered: None,
            step=lambda number, error, counts, run: run(None),
        )  # fmt: skip
        share = Share(Ranks(0, 1), "global", "pad", (6,))
        together = Together(line, steps, share, Execution(1, None), lambda number: 1, dict)

        def batches(epoch):
            numbered = (MiniBatch(epoch, number, None) for number in range(6))
            return together.batches(numbered, epoch, 0, prefetch)

        left = batches(0)
        assert [next(left), next(left)] == [(0, 0), (0, 1)]
        left.close()
        assert list(batches(1)) == [(1, number) for number in range(6)]
