"""What ends, or fails to connect, while ranks connect to each other."""

import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from helpers import forked
from helpers.cluster import Cluster
from helpers.data import wait_for
from torch import distributed as dist

from torch_gnnscale.comm import liveness as liveness
from torch_gnnscale.comm.liveness import Liveness


def has_ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def ends_while_connecting():
    def make():
        wait_for(lambda: has_ended(pids[1]))
        raise RuntimeError("Connection closed by peer")

    among = Liveness(dist.get_rank(), dist.get_world_size(), 60.0)
    pids = among.come(os.getpid())
    if dist.get_rank() == 1:
        os._exit(5)
    among.together(make)


@pytest.mark.slow
def test_a_rank_whose_end_makes_a_connection_fail_is_named():
    own = Cluster(2)
    first, second = own.results(ends_while_connecting)
    own.kill()
    assert first == (False, "RuntimeError: rank 1 is gone or does not answer: Connection closed by peer")
    assert second == (False, "ended with 5")


ENDS_WHILE_CONNECTING = """
import os, signal, sys, time
from datetime import timedelta
from pathlib import Path
from helpers.data import wait_for
from torch import distributed as dist
from torch_gnnscale.comm import liveness

class Late:
    def __del__(self):
        time.sleep(3)

def connect():
    os.kill(os.getpid(), signal.SIGINT)  # which interrupts the main thread
    store.wait(["never"], timedelta(seconds=60))

rank, port, ends = int(sys.argv[1]), Path(sys.argv[2], "port"), Path(sys.argv[2], "ends")
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    port.with_suffix(".partial").write_text(str(store.port))
    port.with_suffix(".partial").rename(port)
else:
    wait_for(port.exists, 60)
    store = dist.TCPStore("127.0.0.1", int(port.read_text()), 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
liveness.AT_EXIT = 60.0
among = liveness.Liveness(rank, 2, 60.0)
among.come(None)
if rank == 0:
    wait_for(ends.exists, 60)
else:
    late = Late()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        among.together(connect)
    except KeyboardInterrupt:
        print("ends")
        ends.touch()
"""


@pytest.mark.slow
def test_a_program_may_end_while_a_thread_connects(tmp_path):
    """A thread waits for the store, which ends in the 3 seconds that the end of the interpreter takes."""
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda rank: forked.run(ENDS_WHILE_CONNECTING, str(rank), str(tmp_path)), range(2)))
    assert [(process.returncode, process.stdout) for process in ended] == [(0, ""), (0, "ends\n")], ended


@pytest.mark.parametrize(("rank", "seconds"), [(0, 0.0), (1, liveness.AT_EXIT)])
def test_the_end_of_a_program_waits_for_threads_that_ask_except_on_rank_0(rank, seconds):
    thread = Liveness._thread_for(SimpleNamespace(rank=rank), "asks")
    assert liveness._asking[thread.thread] == seconds
    thread.end(None)


# Open files ###########################################################################################################
