"""Mapped stores are written in parts in bounded memory."""

import pytest
import torch
from helpers import forked
from helpers.slow import NIGHTLY

from torch_gnnscale import FeatureStore
from torch_gnnscale.partition import open_parts
from torch_gnnscale.topology import build_on_disk, rmat_chunks

NODES, EDGES, MEMORY = 1 << 18, 2_000_000, 16 << 20
CODE = """
import sys, threading, time
import torch
from torch_gnnscale import FeatureStore, GraphStore
from torch_gnnscale.partition import part_writer, write

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.001)

def step(function):
    def run(*arguments):
        global peak
        peak = anonymous()
        function(*arguments)
        print(peak - before)
    return run

folder, memory = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
stores = FeatureStore.open(folder + "/features"), GraphStore.open(folder + "/graph")
owners = (torch.arange(stores[1].relation().num_dst) % 3).to(torch.int32)
for name in ("begin", "part"):
    setattr(part_writer.PartWriter, name, step(getattr(part_writer.PartWriter, name)))
torch.rand(1 << 20).sort()  # what torch takes once
before = peak = anonymous()
threading.Thread(target=watch, daemon=True).start()
write(stores, folder + "/parts", 3, owners=owners, memory=memory, topology=sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize("topology", [NIGHTLY("replicated"), "partitioned"])
def test_memory_is_bounded(tmp_path, topology):
    """memory= and 16 bytes per node, and 4 for the owners; 32 MB that the allocator may keep. All data take 150 MB."""
    build_on_disk(tmp_path / "graph", rmat_chunks(NODES, EDGES), NODES)
    features = FeatureStore()
    features.put_tensor(torch.rand(NODES, 96), group_name=None, attr_name="x", index=None)
    features.put_tensor(torch.rand(EDGES, 4), group_name=(None, None), attr_name="edge_attr", index=None)
    features.save(tmp_path / "features")
    done = forked.run(CODE, str(tmp_path), str(MEMORY), topology)
    assert done.returncode == 0, done.stderr
    peaks = [int(line) for line in done.stdout.split()]
    assert len(peaks) == 4
    assert max(peaks) < MEMORY + 20 * NODES + (32 << 20), peaks
    parts = open_parts(tmp_path / "parts")
    whole = features.get_tensor(group_name=None, attr_name="x", index=None)
    assert all(torch.equal(parts.part(i).rows[None, "x"], whole[i::3]) for i in range(3))
