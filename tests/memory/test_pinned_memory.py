"""Host memory that GPUs read: registered once, and given back when they have read."""

import gc
import os

import pytest
import torch

from torch_gnnscale import ops
from torch_gnnscale.memory import MAX_PEERS, HostMemory, free_on_gpu, peer_budgets, unreadable_peer

GPUS = [torch.device("cuda", number) for number in range(2)]


def test_memory_is_registered_once(recorded_cuda):
    memory = HostMemory(4096, "graph")
    for gpu in (GPUS[0], GPUS[0], GPUS[1]):
        memory.pin(gpu)
    assert recorded_cuda.taken() == ["registers 4096 bytes, flags 3"]
    memory.close()
    assert sorted(recorded_cuda.taken()) == ["host waits for cuda:0", "host waits for cuda:1", "unregisters"]
    memory.close()
    assert recorded_cuda.taken() == []


def test_closing_waits_for_gpus_that_read_other_memory(recorded_cuda):
    memory = HostMemory(4096)
    memory.close_after(GPUS[1])
    assert recorded_cuda.taken() == []
    memory.close()
    assert recorded_cuda.taken() == ["host waits for cuda:1"]


def test_memory_that_cannot_be_registered(recorded_cuda, monkeypatch):
    memory = HostMemory(8192, "graph")
    monkeypatch.setattr(torch, "zeros", lambda *_, device: recorded_cuda.log.append(f"clears the error of {device}"))
    recorded_cuda.refusal = 2
    with pytest.raises(OSError, match=r"^graph: expected memory that can be pinned, found 8192 bytes: error 2$"):
        memory.pin(GPUS[1])
    assert recorded_cuda.taken() == ["registers 8192 bytes, flags 3", "clears the error of cuda:1"]
    memory.close()
    assert recorded_cuda.taken() == []
    with pytest.raises(ValueError, match=r"^the store is closed$"):
        memory.pin(GPUS[0])


def test_memory_that_is_not_mapped_leaves_no_file(monkeypatch):
    def refuse(descriptor, num_bytes):
        raise RuntimeError("no addresses left")

    files = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(ops, "map_shared", refuse)
    with pytest.raises(RuntimeError, match=r"^no addresses left$"):
        HostMemory(4096)
    assert len(os.listdir("/proc/self/fd")) == files


def test_free_memory_is_also_what_torch_keeps(monkeypatch):
    for name, value in (("mem_get_info", (7, 100)), ("memory_reserved", 50), ("memory_allocated", 20)):
        monkeypatch.setattr(torch.cuda, name, lambda gpu, value=value: value)
    assert free_on_gpu(GPUS[0], 0) == 7 + 50 - 20


@pytest.mark.slow
def test_garbage_is_collected_before_memory_of_a_gpu_is_missed(monkeypatch):
    free = {"bytes": 100}

    class Loader:
        def __init__(self) -> None:
            self.refers_to_itself = self

        def __del__(self) -> None:
            free["bytes"] = 150

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (free["bytes"], 200))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda gpu: 0)
    gc.disable()
    try:
        Loader()
        assert free_on_gpu(GPUS[0], 100) == 100
        assert free_on_gpu(GPUS[0], 101) == 150
    finally:
        gc.enable()


def test_the_first_gpu_that_another_cannot_read(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: other != 2)
    one = torch.device("cuda", 1)
    assert [unreadable_peer(one, count) for count in range(5)] == [None, None, None, 2, 2]
    assert [unreadable_peer(torch.device("cuda", 2), count) for count in (4, 5, 6)] == [None, 4, 4]
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: other != 0)
    assert [unreadable_peer(one, count) for count in range(3)] == [None, 0, 0]


def test_as_many_peers_as_there_are_segments_for():
    assert MAX_PEERS == 29
    assert peer_budgets("peers", [5] * MAX_PEERS, 100) == [5] * MAX_PEERS
    assert peer_budgets("peers", ["25%", 0.25], 100) == [25, 25]
    assert peer_budgets("peers", [], 100) == []
    with pytest.raises(ValueError, match=r"^peers: expected at most 29 GPUs, found 30$"):
        peer_budgets("peers", [5] * (MAX_PEERS + 1), 100)
