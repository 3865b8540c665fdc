"""METIS in its child process: what it returns, and what is raised where it does not."""

import os
import re
import sys

import numpy as np
import pytest
import torch
from helpers.data import make_data
from helpers.graphs import random_graph
from helpers.slow import SLOW

from torch_gnnscale import CSC
from torch_gnnscale.datasets import planted
from torch_gnnscale.partition import assignment, read_report, write
from torch_gnnscale.partition.assignment import assign, report
from torch_gnnscale.partition.metis_child import exported

pymetis = pytest.importorskip("pymetis")

RING = [(i, (i + 1) % 40) for i in range(40)]


def symmetric(num_nodes: int, pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ends = sorted({(a, b) for a, b in pairs} | {(b, a) for a, b in pairs})
    row = torch.tensor([b for _, b in ends], dtype=torch.int64)
    first = torch.tensor([a for a, _ in ends], dtype=torch.int64)
    return torch.searchsorted(first, torch.arange(num_nodes + 1)), row, torch.ones_like(row)


def part(
    num_nodes: int, pairs: list[tuple[int, int]], weight: torch.Tensor | None = None, parts: int = 2, seed: int = 1
):
    weight = torch.ones(num_nodes, 1, dtype=torch.int64) if weight is None else weight
    return assignment.part_graph(
        *symmetric(num_nodes, pairs), weight, [f"w{c}" for c in range(weight.size(1))], parts, seed
    )


def test_the_library_divides_a_small_graph_as_it_is_asked_to():
    assert exported(pymetis, np) is not None


@pytest.mark.slow
def test_a_ring_is_cut_twice():
    found = part(40, RING)
    assert (found.owner.dtype, sorted(found.owner.bincount().tolist())) == (torch.int64, [20, 20])
    assert (found.owner != found.owner.roll(1)).sum() == 2
    assert found.peak_bytes > 50 << 20
    assert torch.equal(part(40, RING).owner, found.owner)


@pytest.mark.slow
def test_three_constraints_are_balanced():
    generator = torch.Generator().manual_seed(1)
    weight = torch.stack([torch.ones(400), torch.arange(400) < 200, torch.arange(400) % 5], 1).long()
    pairs = [(i, (i + 1) % 400) for i in range(400)] + torch.randint(400, (400, 2), generator=generator).tolist()
    owner = part(400, [(a, b) for a, b in pairs if a != b], weight, parts=4).owner
    sums = torch.zeros(4, 3, dtype=torch.int64).index_add_(0, owner, weight)
    assert (sums.amax(0) / sums.double().mean(0)).max() < 1.06


@pytest.mark.slow
def test_no_edges_and_no_weights():
    assert part(100, [], parts=4).owner.bincount().tolist() == [25] * 4
    assert part(100, [], weight=torch.ones(100, 0, dtype=torch.int64), parts=4).owner.bincount().tolist() == [25] * 4


@pytest.mark.slow
def test_parts_without_nodes_are_told():
    with pytest.warns(UserWarning, match=r"^METIS left \d of 4 parts without nodes: expected fewer parts for 5 nodes$"):
        assert len(part(5, [(0, i) for i in range(1, 5)], 50 * torch.eye(5, 1).long() + 1, parts=4).owner.unique()) < 4


def test_a_tolerance_is_larger_only_where_it_must_be():
    weight = torch.stack(
        [torch.ones(100), torch.arange(100) == 7, torch.arange(100) < 9, 99 * (torch.arange(100) < 1) + 1], 1
    )
    assert assignment._tolerance(weight.long(), 4) == [1.05, 4.0, 3 / 2.25, pytest.approx(100 / 49.75)]


@pytest.mark.slow
def test_a_graph_with_communities():
    data = planted(2000)
    csc, train = CSC.from_data(data), {None: data.train_mask.nonzero().view(-1)}
    found = assign({None: csc}, {None: 2000}, 4, method="metis", train=train)
    counted = report({None: csc}, found.owner, 4, train)
    assert found.method == "metis"
    assert found.owner[None].dtype == torch.int32
    assert max(counted.balance().values()) <= 1.06
    assert counted.cut < 0.5
    again = assign({None: csc}, {None: 2000}, 4, method="metis", train=train)
    assert torch.equal(found.owner[None], again.owner[None])


@pytest.mark.slow
def test_loops_and_directions_do_not_matter():
    graph = random_graph(300, 6, seed=1)
    dst = torch.arange(300).repeat_interleave(graph.colptr.diff())
    loops = torch.arange(300).repeat(50)
    ends = torch.stack([graph.row, dst])
    flipped = [ends, torch.cat([ends.flip(0), torch.stack([loops, loops])], 1)]
    owners = [
        assign({None: CSC.from_edge_index(edges, 300)}, {None: 300}, 3, method="metis", balance=["nodes"]).owner[None]
        for edges in flipped
    ]
    assert torch.equal(*owners)


@pytest.mark.slow
def test_types_are_parted_together():
    generator = torch.Generator().manual_seed(1)
    half = torch.randint(2, (4000,), generator=generator)
    ends = torch.stack([torch.randint(count, (4000,), generator=generator) + half * count for count in (200, 50)])
    relations = {("user", "likes", "item"): CSC.from_edge_index(ends, (400, 100))}
    owner = assign(relations, {"user": 400, "item": 100}, 2, method="metis").owner
    counted = report(relations, owner, 2)
    assert counted.cut_edges == 0
    assert counted.nodes == {"nodes user": [200, 200], "nodes item": [50, 50]}


@pytest.mark.parametrize("method", ["metis", "coarse", "auto"])
def test_no_more_nodes_than_parts(method):
    chain = CSC.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 3)
    assert assign({None: chain}, {None: 3}, 5, method=method).owner[None].tolist() == [0, 1, 2]
    assert assign({None: chain}, {None: 3}, 1, method=method).owner[None].tolist() == [0, 0, 0]
    none = CSC.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 0)
    assert assign({None: none}, {None: 0}, 5, method=method).owner[None].tolist() == []


@pytest.mark.slow
def test_auto_takes_what_fits():
    csc = CSC.from_edge_index(torch.randint(100, (2, 500), generator=torch.Generator().manual_seed(1)), 100)
    bytes_ = 127 * 1000
    for memory, method in ((bytes_, "metis"), (bytes_ - 1, "coarse"), ("1GiB", "metis"), (None, "metis")):
        assert assign({None: csc}, {None: 100}, 2, memory=memory).method == method


@pytest.mark.parametrize(("memory", "method"), [SLOW(1 << 30, "metis"), (100_000, "coarse")])
def test_parts_are_written_within_the_memory_that_is_given(tmp_path, memory, method):
    write(make_data(), tmp_path / "parts", 2, memory=memory)
    assert read_report(tmp_path / "parts")[0]["method"] == method


CHILDREN = {
    "import os; os.kill(os.getpid(), 11)": "METIS crashed (SIGSEGV): ",
    "raise OSError('no such thing')": "METIS failed (OSError: no such thing): ",
    "pass": "METIS ended early: ",
    "tell('done', code=-2)": "METIS refused its input (code -2): ",
    "tell('done', code=-3)": "METIS ran out of memory (code -3): ",
    "tell('done', code=-4)": "METIS failed (code -4): ",
    "tell('done', code=1, count=39, all_weights=True, peak=1)": "METIS's answer is no partition",
    "owner[3] = 2; tell('done', code=1, count=40)": "METIS's answer is no partition of 40 nodes into 2 parts: ",
}


@pytest.mark.parametrize("body", CHILDREN)
def test_a_child_that_fails(monkeypatch, tmp_path, body):
    child = tmp_path / "child.py"
    child.write_text(
        "import json, mmap, os, sys\n"
        "request = json.loads(sys.argv[1])\n"
        "def tell(stage, **more): os.pwrite(request['status'], json.dumps({'stage': stage, **more}).encode(), 0)\n"
        "owner = memoryview(mmap.mmap(request['owner'][0], 320)).cast('q')\n"
        f"if not request['one_weight']: {body}\n"
    )
    monkeypatch.setattr(assignment, "_CHILD", child)
    message = CHILDREN[body]
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}.*try another seed, "):
        part(40, RING)


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_that_metis_leaves_empty_are_counted(monkeypatch, parts):
    status = {"stage": "done", "code": 1, "count": 40, "all_weights": True, "peak": 1}
    monkeypatch.setattr(assignment, "_run", lambda request, descriptors: (status, ""))  # the owner of all nodes is 0
    text = f"^METIS left {parts - 1} of {parts} parts without nodes: expected fewer parts for 40 nodes$"
    with pytest.warns(UserWarning, match=text):
        assert not part(40, RING, parts=parts).owner.any()


@pytest.mark.parametrize("spoilt", ["symbol", SLOW("width"), SLOW("crash")])
def test_without_the_symbol_one_weight_is_balanced(monkeypatch, tmp_path, spoilt):
    source = assignment._CHILD.read_text()
    changes = {
        "symbol": ("METIS_PartGraphKway\n", "METIS_Other\n"),
        "width": ("zero_copy_dtype() != np.int64", "zero_copy_dtype() != np.int32"),
        "crash": ("    function.restype = ctypes.c_int", "    os.kill(os.getpid(), 11)"),
    }
    assert source.count(changes[spoilt][0]) == 1
    child = tmp_path / "child.py"
    child.write_text(source.replace(*changes[spoilt]))
    monkeypatch.setattr(assignment, "_CHILD", child)
    weight = torch.stack([torch.ones(40), torch.arange(40)], 1).long()
    with pytest.warns(UserWarning, match=re.escape("this pymetis balances one weight only: 'w0', but not ['w1']")):
        owner = part(40, RING, weight).owner
    assert sorted(owner.bincount().tolist()) == [20, 20]


@pytest.mark.parametrize("method", ["metis", "coarse", "auto"])
def test_without_pymetis(monkeypatch, method):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    chain = CSC.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 3)
    with pytest.raises(ImportError, match=re.escape("pip install 'torch_gnnscale[partition]'")):
        assign({None: chain}, {None: 3}, 2, method=method)
    assert assign({None: chain}, {None: 3}, 2, method="ranges").owner[None].tolist() == [0, 1, 1]


@pytest.mark.slow
def test_no_descriptor_is_left_open():
    before = len(os.listdir("/proc/self/fd"))
    part(40, RING)
    assert len(os.listdir("/proc/self/fd")) == before
