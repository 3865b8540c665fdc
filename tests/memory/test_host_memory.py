"""Host memory that processes share."""

import pytest
import torch

from torch_gnnscale import ops
from torch_gnnscale.memory import HostMemory, host


def test_the_pools_idle_memory_is_freed_before_memory_is_missed(monkeypatch):
    output = ops.gather_rows(torch.zeros(1, 1 << 20), torch.zeros(4, dtype=torch.int64))
    del output
    monkeypatch.setattr(host, "available_memory", lambda: 0 if ops.pool_stats().idle_bytes else 4096)
    assert ops.pool_stats().idle_bytes > 0
    HostMemory(4096).close()
    assert ops.pool_stats().idle_bytes == 0
    with pytest.raises(MemoryError, match=r"^graph: expected 8192 bytes of memory, found 4096 available; buy some$"):
        HostMemory(8192, "graph", "buy some")
