"""What ranks do when one of them ends, or cannot go on, before their first step: all of them raise, and name it."""

import gc
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import forked
from helpers.cluster import Cluster, cluster
from helpers.data import environment, wait_for
from helpers.parts import homogeneous, loader_of_part
from helpers.slow import NIGHTLY
from torch import distributed as dist

from torch_gnnscale import partition
from torch_gnnscale.comm import liveness as liveness
from torch_gnnscale.comm import rendezvous
from torch_gnnscale.comm.liveness import Liveness
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed import part as opening

PAGE = Path(__file__).parents[2] / "docs" / "scaling_starting.md"
WITHIN = 30.0
"""Seconds within which the others name a rank that was killed."""


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A directory of three parts."""
    path = tmp_path_factory.mktemp("parts") / "parts"
    partition.write(homogeneous(), path, parts=3, method="random")
    return str(path)


# A rank that is killed ################################################################################################


def stays():
    """Does not go on."""
    threading.Event().wait()


def waits(told):
    """Tells that this rank is there, and does not go on."""
    (Path(told) / "there").touch()
    stays()


def waits_at(path, where, rank, told):
    """One rank does not go on: while it opens its part, before or while it connects, or before it makes its loader."""
    if dist.get_rank() == rank and where == "files":
        opening.open_parts = lambda *_: waits(told)
    if dist.get_rank() == rank and where == "group":
        rendezvous._group = lambda *_: waits(told)
    with open_part(path) as part:
        if dist.get_rank() == rank and where == "loader":
            waits(told)
        if dist.get_rank() == rank and where == "group of a loader":
            rendezvous._group = lambda *_: waits(told)
        loader_of_part(part)


def kill_when_there(own, rank, told):
    """Kills the rank that says that it is there. By then all have been announced, for it has met them."""
    wait_for((told / "there").exists, 60)
    own.send_signal(rank, signal.SIGKILL)


def error_of(own, rank):
    """What the call of a rank raises."""
    returned, text = own.answer(rank, time.monotonic() + WITHIN)
    assert not returned
    return text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "killed"),
    [("files", 1), NIGHTLY("files", 0), ("group", 2), ("loader", 1), NIGHTLY("group of a loader", 1)],
)
def test_a_rank_that_is_killed_before_the_first_step_is_named_by_the_others(three, tmp_path, where, killed):
    own = Cluster(3)
    for rank in range(3):
        own.tell(rank, waits_at, three, where, killed, str(tmp_path))
    kill_when_there(own, killed, tmp_path)
    texts = [error_of(own, rank) for rank in range(3) if rank != killed]
    own.kill()
    for text in texts:
        assert text.startswith("RuntimeError: rank 0, which keeps the store of the ranks, is gone" if killed == 0 else
                               f"RuntimeError: rank {killed} is gone or does not answer")  # fmt: skip


def busy(path, told):
    """Rank 0 computes until rank 2 has raised, rank 1 does not go on, rank 2 makes its loader."""
    with open_part(path) as part:
        if dist.get_rank() == 0:
            wait_for((Path(told) / "raised").exists, 60)
        if dist.get_rank() == 1:
            waits(told)
        loader_of_part(part)


@pytest.mark.slow
def test_a_rank_that_is_busy_is_not_taken_for_one_that_is_gone(three, tmp_path):
    own = Cluster(3)
    for rank in range(3):
        own.tell(rank, busy, three, str(tmp_path))
    kill_when_there(own, 1, tmp_path)
    later = error_of(own, 2)
    (tmp_path / "raised").touch()
    for text in (later, error_of(own, 0)):
        assert text.startswith("RuntimeError: rank 1 is gone or does not answer")
    own.kill()


def opens(path):
    with open_part(path, timeout=1.0):
        pass


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named_at_the_timeout(parts):
    own = Cluster(2)
    own.tell(0, opens, parts)  # rank 1 waits for a call
    assert error_of(own, 0) == "RuntimeError: rank 1: expected it to come within 1 seconds, found that it is missing"
    own.kill()


def ends_before(path, ranks):
    """Some ranks do not open their parts: the first one ends, the others wait."""
    if dist.get_rank() == ranks[0]:
        os._exit(5)
    if dist.get_rank() in ranks:
        stays()
    with open_part(path):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "they"), [([1], "it"), ([2, 1], "one of them")])
def test_a_rank_that_ends_before_it_opens_its_part_is_named(three, ranks, they):
    own = Cluster(3)
    for rank in range(3):
        own.tell(rank, ends_before, three, ranks)
    until = time.monotonic() + WITHIN
    results = [own.answer(rank, until) for rank in range(3) if rank not in ranks]
    own.kill()
    told = f"RuntimeError: rank {', '.join(map(str, sorted(ranks)))}: expected it to open its part, found that {they} "
    for returned, text in results:
        assert not returned
        assert text.startswith(f"{told}has ended: ")


MISSING = """
import sys, time
from datetime import timedelta
from pathlib import Path
from helpers.data import wait_for
from torch import distributed as dist
from torch_gnnscale.distributed import open_part
rank = int(sys.argv[3])
dist.init_process_group("gloo", f"file://{sys.argv[1]}/ranks", world_size=2, rank=rank)
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))
if rank == 1:
    comes = time.monotonic() + float(sys.argv[5])
    wait_for(lambda: time.monotonic() > comes or Path(sys.argv[1], "ended").exists(), 120)
    if time.monotonic() <= comes:
        sys.exit()
    Path(sys.argv[1], "came").touch()
try:
    with open_part(sys.argv[2], timeout=float(sys.argv[4])):
        dist.barrier()
    print("opened")
except RuntimeError as error:
    print(error)
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("timeout", "late", "said"),
    [(2, 60, "rank 1: expected it to come within 2 seconds, found that it is missing"), (60, 6, "opened")],
)
def test_ranks_may_come_later_than_the_default_group_would_wait_and_no_end_waits_for_them(
    parts, tmp_path, timeout, late, said
):
    """The default group would wait 3 seconds."""
    with ThreadPoolExecutor(2) as pool:
        given = [(str(tmp_path), parts, str(rank), str(timeout), str(late)) for rank in range(2)]
        first, second = (pool.submit(forked.run, MISSING, *arguments, timeout=120.0) for arguments in given)
        ended = first.result()
        assert (ended.returncode, ended.stdout) == (0, f"{said}\n"), ended
        assert (tmp_path / "came").exists() == (said == "opened")
        (tmp_path / "ended").touch()
        second.result()


def timed_out():
    def make():
        raise TimeoutError("found no time")

    among = Liveness(dist.get_rank(), dist.get_world_size(), 60.0)
    among.come(None)
    try:
        among.together(make)
    finally:
        among.close()


def test_what_ranks_make_together_may_time_out():
    assert cluster(2).results(timed_out, timeout=20.0) == [(False, "TimeoutError: found no time")] * 2


def with_few_files(path, rank, more, loader):
    """One rank may open but ``more`` files, when it opens its part or when it makes a loader."""
    gc.collect()  # the sockets of earlier calls
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit():
        if dist.get_rank() == rank:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1 + more, hard))

    try:
        if not loader:
            limit()
        with open_part(path) as part:
            if loader:
                limit()
                loader_of_part(part)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("loader", [False, True])
def test_too_few_open_files(parts, loader):
    first, second = cluster(2).results(with_few_files, parts, 1, 10, loader)
    assert first == second
    found = re.fullmatch(
        r"ValueError: rank 1: (?:OSError: )?open files: expected a limit of at least (\d+), for \d more, found "
        r"(\d+); ulimit -n (\d+) sets it", first[1],
    )  # fmt: skip
    assert found, first[1]
    assert found[1] == found[3]
    cluster(2).run(with_few_files, parts, 1, 10 + int(found[1]) - int(found[2]), loader)


# Launchers ############################################################################################################

TRAIN = """
import os, sys
from torch import distributed as dist
from helpers.parts import loader_of_part
from torch_gnnscale.distributed import open_part
from torch_gnnscale.training.rank_group import launched
if "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in os.environ:
    dist.init_process_group("gloo")
with launched(), open_part(os.environ["PARTS"]) as part:
    loader = loader_of_part(part)
    next(iter(loader))
    if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and dist.get_rank() == 1:
        os._exit(3)
    count = len(list(loader))
    line = f"rank {dist.get_rank()} {os.environ.get('LOCAL_RANK')} {count}\\n"
    print(line, end="", flush=True)  # at once, where two processes write into one pipe
"""


def launched(command, tmp_path, parts, **variables):
    """What a launcher of two ranks of ``TRAIN`` prints."""
    (tmp_path / "train.py").write_text(TRAIN)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    of_all = {**environment(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PARTS": parts, "PATH": path}
    return subprocess.Popen(
        command, env={**of_all, **variables}, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.nightly
@pytest.mark.parametrize("variables", [{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, {}], ids=["a new store", "its own"])
def test_an_elastic_restart_does_not_meet_the_keys_of_the_run_before(parts, tmp_path, variables):
    """Where torchrun gives the ranks its own store, Gloo groups of torch itself would meet them."""
    where = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=one"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1",
               "--monitor-interval=0.2", *where, "train.py"]  # fmt: skip
    process = launched(command, tmp_path, parts, **variables)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert sorted(line.split()[:3] for line in out.splitlines()) == [["rank", "0", "0"], ["rank", "1", "1"]]


@pytest.mark.slow
def test_the_line_for_slurm(parts, tmp_path):
    (command,) = re.findall(r"^ +srun .*? bash -c '(.*?)'$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert "MASTER_PORT=29500" in command
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # in place of rank 0's
    command = command.replace("MASTER_PORT=29500", f"MASTER_PORT={store.port}")
    names = tmp_path / "scontrol"
    names.write_text('#!/bin/sh\n[ "$*" = "show hostnames hosts" ] && echo localhost && echo other\n')
    names.chmod(0o755)
    started = [
        launched(["bash", "-c", command], tmp_path, parts, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank),
                 SLURM_NTASKS="2", SLURM_JOB_NODELIST="hosts", TORCHELASTIC_USE_AGENT_STORE="True")
        for rank in range(2)
    ]  # fmt: skip
    for rank, process in enumerate(started):
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert out.split()[:3] == ["rank", str(rank), str(rank)]
