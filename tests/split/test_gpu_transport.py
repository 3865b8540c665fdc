"""When rows go from GPU to GPU over NCCL."""

from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist
from torch_geometric.nn import SAGEConv

from torch_gnnscale.comm.memory_transport import MemoryTransport
from torch_gnnscale.comm.peer_memory import GPUMemories, HostMemories, memories_on
from torch_gnnscale.split import parallel
from torch_gnnscale.split.connection import nccl_exchange

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
OTHER = True, True, ("this machine", "gpu 1")


@pytest.mark.parametrize(
    ("backends", "device", "gpu", "wanted", "other", "found"),
    [
        ("cpu:gloo,cuda:nccl", CUDA, "gpu 0", True, OTHER, "nccl"),
        ("cuda:nccl", CUDA, "gpu 0", False, OTHER, "nccl"),  # the ranks of another column cannot read their peers
        ("cuda:nccl", CUDA, "gpu 0", False, (False, *OTHER[1:]), None),
        ("cuda:nccl", CUDA, "gpu 1", True, OTHER, None),
        ("cuda:nccl", CUDA, "gpu 1", True, (True, True, ("that machine", "gpu 1")), "nccl"),
        ("cuda:nccl", CPU, "gpu 0", True, OTHER, None),
        ("cuda:nccl", CUDA, "gpu 0", True, (True, False, ("this machine", "")), None),
        ("cpu:gloo,cuda:gloo", CUDA, "gpu 0", True, OTHER, None),
    ],
)
def test_all_ranks_need_a_gpu_of_their_own(backends, device, gpu, wanted, other, found, monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda: backends)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda of: SimpleNamespace(uuid=gpu))
    monkeypatch.setattr("torch_gnnscale.machine.identity", lambda: "this machine")
    connection = SimpleNamespace(
        all=SimpleNamespace(objects=lambda own: [own, other]), exchange=lambda columns, backend: backend
    )
    assert nccl_exchange(connection, [[0, 1]], device, wanted) == found


@pytest.mark.parametrize("reads_peers", [True, False])
@pytest.mark.parametrize("has_nccl", [True, False])
def test_nccl_is_asked_for_by_who_cannot_read_its_peers(reads_peers, has_nccl, monkeypatch):
    asked, rows = [], object() if has_nccl else None
    made = parallel.parallelize(SAGEConv(1, 1))
    peers = MemoryTransport.__new__(MemoryTransport)
    monkeypatch.setattr(MemoryTransport, "connect", lambda exchange, memories: peers if reads_peers else "two machines")
    monkeypatch.setattr(parallel, "nccl_exchange", lambda *given: asked.append(given) or rows)
    monkeypatch.setattr(parallel, "NcclTransport", lambda *given: ("nccl", *given))
    monkeypatch.setattr(parallel, "RowTransport", lambda *given: ("gloo", *given))
    exchange, columns = SimpleNamespace(size=2), [[0, 1]]
    found = made._connected(exchange, columns, (0, 1))
    assert asked == [(made._connection, columns, torch.device("cuda", 0), not reads_peers)]
    assert found == (peers if reads_peers else ("nccl", exchange, rows) if has_nccl else ("gloo", exchange))
    made._connected(exchange, columns, (-1, -1))
    assert len(asked) == 1  # nobody has rows on a GPU
    made.close()


def test_memory_is_shared_where_rows_are():
    assert type(memories_on(torch.device("cpu"))) is HostMemories
    there = memories_on(torch.device("cuda", 1))
    assert (type(there), there.device) == (GPUMemories, torch.device("cuda", 1))
