"""Threads by which ranks answer each other, at the end of a program."""

import threading
from types import SimpleNamespace

from helpers.cluster import cluster
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


def test_an_answer_to_the_question_before_is_none():
    store = SimpleNamespace(add=lambda *_: 2, check=lambda _: False, multi_get=lambda _: [b"2", b"1", b"3"])
    asking = SimpleNamespace(_store=store, _within=0.0, _every=0.0, _answers=[], _answer=SimpleNamespace(give=int))
    assert liveness.Liveness._ask(asking) == [1]


class Frozen:
    """A store whose process is stopped."""

    def __init__(self):
        self.calls, self.goes_on = 0, threading.Event()

    def __getattr__(self, name):
        def call(*_):
            self.calls += 1
            self.goes_on.wait()

        return call


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
