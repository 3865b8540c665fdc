"""Threads by which ranks answer each other, at the end of a program."""

import threading
from types import SimpleNamespace

from helpers.cluster import cluster
from helpers.forked import run_ranks
from torch import distributed as dist

from torch_gnnscale.comm import liveness as liveness
from torch_gnnscale.comm.rendezvous import Rendezvous


def answers_after_the_end():
    """Whether this rank's thread runs before the functions of the program's end, and after them."""
    rendezvous = Rendezvous(dist.get_rank(), 2, 60.0)
    thread = rendezvous._liveness._thread
    before = thread.is_alive()
    dist.barrier()  # both have met
    liveness._end_threads()
    found = before, thread.is_alive()
    rendezvous.close()
    return found


def test_no_thread_answers_when_the_interpreter_ends():
    """One that came back from a call of the store then would abort the process."""
    assert cluster(2).run(answers_after_the_end) == [(True, False)] * 2


LEAVES = """
import os, time
from torch import distributed as dist
dist.init_process_group("gloo")
from torch_gnnscale.comm.liveness import _Ended
if dist.get_rank() == 1:
    os._exit(0)
ended = _Ended(2, 30.0)
while not ended._work.is_completed():
    time.sleep(0.01)
print(ended.found(), flush=True)
os._exit(0)
"""


def test_a_rank_that_ends_before_it_is_announced_is_found():
    stays, _ = run_ranks(2, LEAVES)
    assert "Connection closed by peer" in stays.stdout or "Connection reset by peer" in stays.stdout, stays


def test_an_answer_to_the_question_before_is_none():
    store = SimpleNamespace(add=lambda *_: 2, check=lambda _: False, multi_get=lambda _: [b"2", b"1", b"3"])
    asking = SimpleNamespace(_store=store, _within=0.0, _every=0.0, _answers=[], _answer=SimpleNamespace(give=int))
    assert liveness.Liveness._ask(asking) == [1]
    assert liveness.Liveness._ask(asking, 1) == []
    assert liveness.Liveness._ask(asking, 3) == [0, 1]


def silent_by_another_rank():
    """The silent ranks that this rank finds before and after rank 0 has written that rank 1 is silent."""
    rendezvous = Rendezvous(dist.get_rank(), 2, 60.0)
    asking = rendezvous._liveness
    before = asking._ask()
    dist.barrier()
    if dist.get_rank() == 0:
        asking._store.set("silent", "[1]")
    dist.barrier()
    found = before, asking._ask()
    rendezvous.close()
    return found


def test_ranks_that_another_rank_found_silent_are_believed():
    """Although both ranks answer."""
    assert cluster(2).run(silent_by_another_rank) == [([], [1])] * 2


class Frozen:
    """A store whose process is stopped."""

    def __init__(self):
        self.calls, self.goes_on = 0, threading.Event()

    def __getattr__(self, name):
        def call(*_):
            self.calls += 1
            self.goes_on.wait()

        return call


def waiting(store):
    """A rank of three that waits for the others, who have 0.03 seconds to answer."""
    of = liveness.Liveness.__new__(liveness.Liveness)
    of.rank, of.world, of._timeout, of._within, of._every, of._store = 1, 3, 600.0, 0.03, 0.01, store
    of._answers, of._answer = ["answer/0", "answer/1", "answer/2"], SimpleNamespace(give=int)
    return of


def questions(asked, answers):
    """A store that counts the questions in ``asked``, with these answers."""

    def add(_, count):
        asked.extend([1] * count)
        return len(asked)

    return SimpleNamespace(add=add, check=lambda _: False, multi_get=lambda _: answers, set=print)


def test_the_ranks_are_asked_before_the_timeout():
    asked = []
    store = questions(asked, [b"2", b"2", b"0"])
    of = waiting(store)
    of.waiting(500.0)
    assert of._doubt is None
    of.waiting(599.9)
    of.waiting(600.0)
    assert of.gone() == "rank 2 is gone or does not answer"
    assert len(asked) == 2  # a rank that did not answer is asked twice
    of._doubt = of._doubt[0] - 100.0, of._doubt[1]  # in an earlier step
    store.multi_get = lambda _: [b"9"] * 3
    assert of.gone() == ""


def test_a_rank_that_answered_late_is_not_gone():
    """It was busy when the ranks were asked ahead; then another step fails."""
    asked = []
    store = questions(asked, [b"2", b"2", b"0"])
    of = waiting(store)
    of.waiting(600.0)
    assert of._doubted() == (0, [2])
    store.multi_get = lambda _: [b"3"] * 3
    assert of.gone() == ""


def test_a_store_that_did_not_answer_before_the_timeout_is_not_asked_again():
    of = waiting(Frozen())
    try:
        of.waiting(600.0)
        of._doubt = of._doubt[0] - 1.0, of._doubt[1]
        assert of.gone() == "rank 0, which keeps the store of the ranks, is gone or does not answer"
        of._ended, of._thread = threading.Event(), threading.Thread(target=of._store.goes_on.wait)
        of._thread.start()
        of.close()  # does not wait for it
        assert of._store.calls == 1
        assert of._thread.is_alive()
    finally:
        of._store.goes_on.set()


def test_a_store_that_does_not_answer_is_waited_for_once():
    of = liveness.Liveness.__new__(liveness.Liveness)
    of.rank, of.world, of._within, of._deaf, of._store = 1, 3, 0.01, False, Frozen()
    try:
        of.say("", 4)
        assert of.heard(4) == {}
        assert of.gone() == "rank 0, which keeps the store of the ranks, is gone or does not answer"
        assert of.concluded(4) == ""
        assert of._store.calls == 1
    finally:
        of._store.goes_on.set()
