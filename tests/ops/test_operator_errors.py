"""Errors of operators beyond those of single arguments: the whole text, at the first value that is refused."""

import warnings

import numpy as np
import pytest
import torch
from helpers.graphs import graph_of_degrees
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_gnnscale import _library, ops
from torch_gnnscale.ops import random_draws, tiers
from torch_gnnscale.ops.arguments import as_tensor, check_same, checked_device
from torch_gnnscale.ops.rows import MAX_ROW_BYTES, check_row_bytes

GRAPH = graph_of_degrees([2, 1, 3])


def text_of(error: type[Exception], call) -> str:
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error
    return str(caught.value)


def many(count: int, dtype: torch.dtype = torch.int64, device: str = "cpu") -> Tensor:
    """Zeros that take no memory."""
    return torch.zeros(1, dtype=dtype, device=device).expand(count)


def cut(total: int) -> list[Tensor]:
    node, owner = many(total, device="meta"), many(total, torch.int32, "meta")
    return ops.cut_batch(node, [1, total - 1], many(2, device="meta"), many(0, device="meta"), owner, 2, 0)


def relabelled(known: int, ids: int):
    return ops.relabel(many(known), many(ids, torch.int32), known_tree=many(7), tree=many(ids))


def test_numbers_of_nodes_that_local_ids_do_not_have():
    most = (1 << 31) - 1
    assert text_of(ValueError, lambda: cut(most + 1)) == "node: expected less than 2^31, found 2147483648"
    assert text_of(NotImplementedError, lambda: cut(most)).startswith("node: expected a tensor in host memory or on a")
    expected = "known and ids: expected less than 2^31 together, found 2147483648"
    assert text_of(ValueError, lambda: relabelled(most - 4, 5)) == expected
    assert text_of(ValueError, lambda: relabelled(most - 5, 5)).startswith("known_tree: ")


def test_weights_that_their_integers_have_no_room_for(monkeypatch):
    monkeypatch.setattr(random_draws, "MAX_WEIGHTED", 3)
    expected = "weight: expected at most 3 numbers above 0, found 4"
    assert text_of(ValueError, lambda: ops.candidates(6, torch.tensor([1.0, 2, 0, 1, 0, 1]))) == expected
    assert ops.candidates(6, torch.tensor([1.0, 2, 0, 1, 0, 0])).size == 3


def test_rows_that_a_gpu_does_not_gather():
    def rows(num_bytes: int) -> Tensor:
        return torch.empty(2, num_bytes, dtype=torch.uint8, device="meta")

    gpu = torch.device("cuda")
    expected = f"x: expected rows of at most {MAX_ROW_BYTES} bytes on a GPU, found {MAX_ROW_BYTES + 1}"
    assert text_of(ValueError, lambda: check_row_bytes("x", rows(MAX_ROW_BYTES + 1), gpu)) == expected
    check_row_bytes("x", rows(MAX_ROW_BYTES), gpu)
    check_row_bytes("x", rows(MAX_ROW_BYTES + 1)[:0], gpu)
    check_row_bytes("x", rows(MAX_ROW_BYTES + 1), torch.device("cpu"))


def test_gpus_that_cannot_read_each_other(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *pair: asked.append(pair))
    one, other = torch.device("cuda", 41), torch.device("cuda", 42)
    expected = "index: expected it on a GPU that can read cuda:42, found cuda:41"
    assert text_of(ValueError, lambda: tiers.open_peer("index", one, other)) == expected
    assert asked == [(one, other)]
    tiers.open_peer("index", one, one)
    assert len(asked) == 1


def test_seeds_of_many_batches_are_in_host_memory():
    prepared = ops.PreparedNeighbors(GRAPH.relations(), [2])
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here, there = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64, device="cuda")
        found = text_of(ValueError, lambda: prepared.sample_many([[here], [there]], [1, 2]))
    assert found == "seeds: expected them in host memory, found some on cuda:0"


def test_what_all_must_be_on_one_device():
    here, there = torch.ones(1), torch.ones(1, device="meta")
    check_same({"a": here, "b": None}, here.device, "c is")
    expected = "b: expected it on cpu, where c is, found it on meta"
    assert text_of(ValueError, lambda: check_same({"a": here, "b": there}, here.device, "c is")) == expected


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.transpose(GRAPH.colptr, GRAPH.row, ops.MAX_COUNT),
        lambda: ops.count_ids(GRAPH.row, ops.MAX_COUNT),
        lambda: ops.coo_to_csc(GRAPH.row, GRAPH.row, 3, ops.MAX_COUNT),
    ],
)
def test_memory_that_is_not_there_is_no_matter_of_ids(call):
    """Operators fail for ids out of range, too, which are looked for then."""
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        call()
    assert "memory" in str(caught.value)


@pytest.mark.parametrize(
    ("device", "seen", "state", "expected"),
    [
        (None, 0, "not loaded: why", "cpu"),
        ("cpu", 0, "not loaded: why", "cpu"),
        (torch.device("cpu", 0), 0, "not loaded: why", "cpu"),
        ("cuda", 1, "loaded", "cuda:5"),
        ("cuda:0", 1, "loaded", "cuda:0"),
        (1, 2, "loaded", "cuda:1"),
        ("cuda", 0, "loaded", "device: expected one that torch sees (it sees 0 CUDA devices), found 'cuda'"),
        ("cuda:0", 0, "loaded", "device: expected one that torch sees (it sees 0 CUDA devices), found 'cuda:0'"),
        (2, 2, "loaded", "device: expected one that torch sees (it sees 2 CUDA devices), found '2'"),
        ("cuda:0", 1, "not loaded: why", "device: the library's CUDA part is not loaded: why: expected 'cpu', found "
         "'cuda:0'"),
        ("meta", 1, "loaded", "device: expected 'cpu' or 'cuda', found 'meta'"),
        ("gpu", 1, "loaded", "device: expected 'cpu' or 'cuda', found 'gpu'"),
    ],
)  # fmt: skip
def test_devices(device, seen, state, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    monkeypatch.setitem(_library.status, "_CUDA", state)
    if expected.startswith("device: "):
        assert text_of(ValueError, lambda: checked_device(device)) == expected
    else:
        assert str(checked_device(device)) == expected


def test_arrays_whose_rows_run_backwards():
    """Which torch refuses to share."""
    assert as_tensor("ids", np.arange(4)[::-1]).tolist() == [3, 2, 1, 0]
    assert as_tensor("ids", [np.arange(3)[::-1], np.arange(3)]).tolist() == [[2, 1, 0], [0, 1, 2]]
