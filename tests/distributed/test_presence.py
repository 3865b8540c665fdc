"""Threads by which ranks answer each other, at the end of a program."""

from helpers.cluster import cluster
from torch import distributed as dist

from torch_gnnscale.distributed import presence
from torch_gnnscale.distributed.meeting import Meeting


def answers_after_the_end():
    """Whether this rank's thread runs before the functions of the program's end, and after them."""
    meeting = Meeting(dist.get_rank(), 2, 60.0)
    thread = meeting._presence._thread
    before = thread.is_alive()
    dist.barrier()  # both have met
    presence._end_threads()
    found = before, thread.is_alive()
    meeting.close()
    return found


def test_no_thread_answers_when_the_interpreter_ends():
    """One that came back from a call of the store then would abort the process."""
    assert cluster(2).run(answers_after_the_end) == [(True, False)] * 2
