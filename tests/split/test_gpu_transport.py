"""When rows go from GPU to GPU over NCCL."""

from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist

from torch_gnnscale.split.gpu_transport import nccl_exchange

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
