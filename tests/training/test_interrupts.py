"""Interrupts of a program that trains."""

import os
import signal
from contextlib import suppress

import pytest
from helpers import forked

from torch_gnnscale.training import Interrupts


def interrupt():
    signal.raise_signal(signal.SIGINT)


def ended(run):
    """What a run that gets the context's object comes to."""
    before = signal.getsignal(signal.SIGINT)
    try:
        with Interrupts() as interrupts:
            run(interrupts)
    except KeyboardInterrupt as error:
        return error
    finally:
        assert signal.getsignal(signal.SIGINT) is before
    return None


def test_the_first_raises_except_where_it_is_deferred():
    done = []

    def between_batches(interrupts):
        with interrupts.deferred():
            interrupts.check()
            interrupt()
            done.append("this batch")
            interrupts.check()
            done.append("the next batch")

    def at_the_end(interrupts):
        with interrupts.deferred():
            interrupt()
        done.append("what follows")

    def at_once(_):
        interrupt()
        done.append("anything")

    for run in (between_batches, at_the_end, at_once):
        assert isinstance(ended(run), KeyboardInterrupt)
    assert done == ["this batch"]
    assert ended(lambda interrupts: interrupts.check()) is None


def test_whatever_becomes_of_it_is_an_interrupt():
    """In a callback of a library, it may become another error, or none."""

    def an_error(_):
        try:
            interrupt()
        except KeyboardInterrupt:
            raise ValueError from None

    def none(_):
        with suppress(KeyboardInterrupt):
            interrupt()

    def of_a_worker(interrupts):
        with interrupts.deferred():
            interrupt()
            raise RuntimeError

    causes = [ended(run).__cause__ for run in (an_error, none, of_a_worker)]
    assert [type(cause) for cause in causes] == [ValueError, type(None), RuntimeError]


SECOND = """
import signal
from torch_gnnscale.training import Interrupts
with Interrupts() as interrupts, interrupts.deferred():
    print("begun")
    signal.raise_signal(signal.SIGINT)
    print("goes on")
    signal.raise_signal(signal.SIGINT)
    print("never")
"""


@pytest.mark.slow
def test_the_second_ends_the_process_at_once():
    done = forked.run(SECOND)
    assert (done.returncode, done.stdout) == (130, "begun\ngoes on\n")
    first = "gnnscale: ends after this batch (a second Ctrl-C: at once)"
    assert done.stderr == f"\n{first}\n\ngnnscale: interrupted\n"


def test_a_forked_process_notes_none():
    with Interrupts() as interrupts:
        if (child := os.fork()) == 0:
            interrupt()
            os._exit(int(interrupts.noted))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
