"""Host memory that processes share."""

import os
import pickle
import tempfile
import threading

import pytest
import torch
from helpers import forked
from helpers.data import status_of_fork, wait_for

from torch_gnnscale import memory
from torch_gnnscale.memory import HostLayout, HostMemory

# A process of its own: garbage of other tests that is collected meanwhile would give memory back to the pool.
SHORT_OF_MEMORY = """
import torch
from torch_gnnscale import memory, ops
from torch_gnnscale.memory import HostMemory

output = ops.gather_rows(torch.zeros(1, 1 << 20), torch.zeros(4, dtype=torch.int64))
del output
memory.available_memory = lambda: 0 if ops.pool_stats().idle_bytes else 4096
assert ops.pool_stats().idle_bytes == 16 << 20, ops.pool_stats()
HostMemory(4096).close()
assert ops.pool_stats().idle_bytes == 0, ops.pool_stats()
HostMemory(8192, "graph", "buy some")
"""


@pytest.mark.slow
def test_the_pools_idle_memory_is_freed_before_memory_is_missed():
    ended = forked.run(SHORT_OF_MEMORY)
    expected = "MemoryError: graph: expected 8192 bytes of memory, found 4096 available; buy some"
    assert ended.stderr.splitlines()[-1:] == [expected], ended.stderr


def test_without_memfds_the_memory_is_an_unnamed_file(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    memory, layout = HostMemory(4096), HostLayout()
    rows = memory.tensor(layout.add((8,), torch.int64))

    def write() -> None:
        rows.copy_(torch.arange(8))

    assert status_of_fork(write) == 0
    assert rows.tolist() == [*range(8)]
    assert list(tmp_path.iterdir()) == []
    memory.close()


def test_processes_that_share_memory_have_the_shares_of_all_of_them(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 3000)
    monkeypatch.setattr(memory, "local_world_size", lambda: 4)
    HostMemory(4096, sharers=2).close()
    text = r"^host: expected 6001 bytes of memory, found 6000 available to 2 of LOCAL_WORLD_SIZE=4 processes; less as"
    with pytest.raises(MemoryError, match=text):
        HostMemory(6001, sharers=2)
    text = r"^host: expected 4096 bytes of memory, found 3000 available to each of LOCAL_WORLD_SIZE=4 processes; less"
    with pytest.raises(MemoryError, match=text):
        HostMemory(4096)


def test_closing_waits_for_who_reads():
    memory, entered, leave = HostMemory(4096), threading.Event(), threading.Event()

    def read():
        with memory.reading():
            entered.set()
            leave.wait()

    reader, closer = (threading.Thread(target=run, daemon=True) for run in (read, memory.close))
    reader.start()
    entered.wait()
    assert not memory.closed
    closer.start()
    wait_for(lambda: memory.closed)  # before the call that reads has ended
    closer.join(0.05)
    assert closer.is_alive()
    leave.set()
    closer.join()
    reader.join()
    with pytest.raises(ValueError, match=r"^the store is closed$"), memory.reading():
        pass
    memory.close()


def test_a_forked_process_waits_for_no_reader():
    """The threads that read when the process was forked do not go on in it."""
    memory = HostMemory(4096)
    with memory.reading():
        assert status_of_fork(memory.close) == 0
    memory.close()


def test_another_file_in_the_place_of_host_memory_is_refused():
    memory, other = HostMemory(4096), HostMemory(4096)
    pickled = pickle.dumps(memory)
    assert pickle.loads(pickled).num_bytes == 4096
    os.dup2(other._descriptor, memory._descriptor)
    with pytest.raises(OSError, match=r"expected host memory that process \d+ has open, found that it closed it$"):
        pickle.loads(pickled)


def test_arrays_begin_with_pages():
    layout = HostLayout()
    arrays = [layout.add(shape, torch.int32) for shape in ((3,), (0, 5), (1024,), (1025,), ())]
    assert [array.offset for array in arrays] == [0, 4096, 4096, 8192, 16384]
    assert layout.num_bytes == 20480
