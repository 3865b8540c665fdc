"""Large tensors are moved into huge pages in the background, and nobody can tell."""

import re
import threading
from pathlib import Path

import pytest
import torch
from helpers import forked
from helpers.data import wait_for
from torch_geometric.data import Data

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader, NeighborSampler, memory, ops
from torch_gnnscale.memory import move_to_huge_pages


def in_huge_pages(tensor) -> int:
    """Bytes in huge pages of the mappings that the tensor lies in."""
    first, end, found, inside = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) < end and int(match[2], 16) > first
        elif inside and line.startswith("AnonHugePages:"):
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.slow
def test_a_samplers_graph_and_large_features_move_to_huge_pages():
    probe = torch.zeros(20 << 20, dtype=torch.uint8)
    ops.huge_pages(probe)
    if not Path("/proc/self/smaps").exists() or in_huge_pages(probe) == 0:
        pytest.skip("this system moves no memory into huge pages")
    del probe
    num_nodes, degree = 10_000, 600
    row = torch.arange(num_nodes * degree, dtype=torch.int32) % num_nodes
    store = GraphStore.from_csc(CSC.from_csc(torch.arange(0, num_nodes * degree + 1, degree), row))
    data = Data(x=torch.ones(num_nodes, 600), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    NeighborSampler((FeatureStore.from_data(data), store), [5])
    NeighborLoader(data, [5])
    tensors = store.relation().row, data.x
    wait_for(lambda: all(in_huge_pages(tensor) >= tensor.nbytes // 2 for tensor in tensors), 30)
    assert torch.equal(store.relation().row, torch.arange(num_nodes * degree, dtype=torch.int32) % num_nodes)
    assert bool((data.x == 1).all())


def test_only_large_tensors_of_ones_own_are_moved(monkeypatch):
    moved = []
    monkeypatch.setattr(memory, "_SMALLEST", 4096)
    monkeypatch.setattr(memory, "_Move", lambda tensors: threading.Thread(target=moved.extend, args=(tensors,)))
    large = torch.zeros(4096, dtype=torch.uint8)
    others = [large[1:], torch.zeros(2, 4096, dtype=torch.uint8).T, torch.zeros(4096).share_memory_(),
              torch.zeros(4096, device="meta"), torch.zeros(3, 64, 64).to_sparse()]  # fmt: skip
    move_to_huge_pages([*others, large])
    for thread in list(memory._moves):
        thread.join()
    assert [id(tensor) for tensor in moved] == [id(large)]


def test_pieces_have_the_page_across_their_border(monkeypatch):
    moved, tensor = [], torch.arange(70)
    monkeypatch.setattr(memory.ops, "huge_pages", lambda piece, threads: moved.append((int(piece[0]), len(piece))))
    monkeypatch.setattr(memory, "_PIECE", 32 * 8)
    monkeypatch.setattr(memory, "_HUGE_PAGE", 4 * 8)
    memory._Move([tensor]).run()
    assert moved == [(0, 36), (32, 36), (64, 6)]


def test_a_move_that_is_stopped_leaves_the_rest(monkeypatch):
    moved, move = [], memory._Move([torch.arange(70), torch.arange(70)])

    def stopped_at_the_second(piece, threads):
        moved.append(len(piece))
        if len(moved) == 2:
            move._stopped.set()

    monkeypatch.setattr(memory.ops, "huge_pages", stopped_at_the_second)
    monkeypatch.setattr(memory, "_PIECE", 32 * 8)
    monkeypatch.setattr(memory, "_HUGE_PAGE", 4 * 8)
    move.run()
    assert moved == [36, 36]


MOVES = """
import os, threading, time, torch
from torch_gnnscale.memory import MOVING, move_to_huge_pages
tensor = torch.ones(256 << 20, dtype=torch.uint8)
moving = lambda: sum(thread.name == MOVING for thread in threading.enumerate())
"""


def test_what_is_moved_are_tensors():
    with pytest.raises(TypeError, match=r"^tensors: expected a tensor, found list$"):
        move_to_huge_pages([[1, 2]])


@pytest.mark.slow
def test_moves_end_with_the_program_and_before_a_fork():
    for _ in range(3):
        ended = forked.run(MOVES + "move_to_huge_pages([tensor])")
        assert ended.returncode == 0, ended.stderr
    at_fork = """
move_to_huge_pages([tensor])
child = os.fork()
if child == 0:
    os._exit(moving())
assert moving() == 0 and os.waitpid(child, 0)[1] == 0
assert bool((tensor == 1).all())
move_to_huge_pages([tensor])
while moving():
    time.sleep(0.01)
"""
    ended = forked.run(MOVES + at_fork)
    assert ended.returncode == 0, ended.stderr
