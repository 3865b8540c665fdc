"""The code of a GPU's operators, run by threads of the host (`make emulate`): see build.py beside this."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.gpu_cases import (
    check_random_aggregation,
    check_random_choice,
    check_random_cut,
    check_random_gather,
    check_random_hop,
    check_random_layers,
    check_random_relabelling,
    check_random_sample,
    check_random_shuffle,
)
from helpers.graphs import graph_of_degrees

import torch_gnnscale
from torch_gnnscale import ops

LIBRARY = ctypes.CDLL(str(Path(torch_gnnscale.__file__).parent / "_C.so"))
pytestmark = pytest.mark.skipif(not hasattr(LIBRARY, "emulated_mark"), reason="not an emulated GPU: see make emulate")
MARKS = {"GPU": 0, "pinned": 1, "pageable": 2}


@pytest.fixture(autouse=True)
def ordinary_memory():
    yield
    LIBRARY.emulated_forget()


def put(tensor: torch.Tensor, place: str) -> torch.Tensor:
    """A copy that the emulation takes for memory of this place; pinned memory it reads at another address."""
    there = tensor.clone()
    if MARKS[place] and there.nbytes:
        LIBRARY.emulated_mark(ctypes.c_void_p(there.data_ptr()), ctypes.c_int64(there.nbytes), MARKS[place])
    return there


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_gathers(first):
    for seed in range(first, first + 50):
        check_random_gather(seed, put, most=400)
        LIBRARY.emulated_forget()


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_samples(first):
    for seed in range(first, first + 50):
        check_random_sample(seed, put, most=150)
        LIBRARY.emulated_forget()


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_shuffles(first):
    for seed in range(first, first + 50):
        check_random_shuffle(seed, put, most=100)
        LIBRARY.emulated_forget()


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_random_aggregations(first):
    for seed in range(first, first + 50):
        check_random_aggregation(seed, put)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_hops(first):
    for seed in range(first, first + 50):
        check_random_hop(seed, put)
        check_random_relabelling(seed, put)
        LIBRARY.emulated_forget()


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_cuts(first):
    for seed in range(first, first + 50):
        check_random_cut(seed, put, most=60)
        LIBRARY.emulated_forget()


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_layers(first):
    for seed in range(first, first + 50):
        check_random_layers(seed, put, most=300)
        check_random_choice(seed, put)
        LIBRARY.emulated_forget()


def test_memory_that_a_gpu_cannot_read():
    table, index = torch.arange(12.0).view(6, 2), torch.arange(4)
    with pytest.raises(RuntimeError, match="gather_tiers: a tensor in host memory is not registered with CUDA"):
        ops.gather_tiers([put(table, "pageable")], index)
    colptr, row = torch.arange(5), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="sample_bulk: a tensor in host memory is not registered with CUDA"):
        ops.sample_bulk(colptr, [row[:2], put(row[2:], "pageable")], index, [0, 4], [2], [1])
    with pytest.raises(RuntimeError, match="sample_layers_bulk: a tensor in host memory is not registered with CUDA"):
        ops.sample_layers_bulk(colptr, [put(row, "pageable")], index, [0, 4], [2], [1], ops.LayerDrawing())
    with pytest.raises(RuntimeError, match="pick_neighbors: a tensor in host memory is not registered with CUDA"):
        ops.pick_neighbors(ops.relations([colptr], [put(row, "pageable")]), index, [0, 4], [1], 0, 2)
    with pytest.raises(RuntimeError, match="aggregate: expected all tensors on the device of x"):
        ops.aggregate(colptr, put(row, "pinned"), table)
    with pytest.raises(RuntimeError, match="edge_dot: x is not on a GPU"):
        ops.edge_dot(colptr, row, put(table, "pageable"), table[:4])
    with pytest.raises(RuntimeError, match="relabel: expected all tensors on the device of ids"):
        ops.relabel(put(index, "pinned"), index)


# What a call asks for ################################################################################################


def counts_of(call: Callable[[], object]) -> tuple[int, int, int]:
    """Launches (kernels, as many of CUB's as CUB itself would make, and memsets), allocations and waits of a call."""
    before, after = (ctypes.c_int64 * 3)(), (ctypes.c_int64 * 3)()
    LIBRARY.emulated_counts(before)
    call()
    LIBRARY.emulated_counts(after)
    launches, allocations, waits = (b - a for a, b in zip(before, after, strict=True))
    return launches, allocations, waits


@pytest.mark.parametrize("with_edge_id", [False, True])
@pytest.mark.parametrize(
    ("fanouts", "launches"), [([], 5), ([15], 15), ([15, 10, 5], 33), ([15, 40, 5], 35), ([15, -1, 5, 5], 42)]
)
def test_launches_and_allocations_of_a_batch(fanouts, launches, with_edge_id):
    """Six launches, nine of each hop and two more above a fanout of 32; scratch memory, CUB's, and four outputs."""
    graph = graph_of_degrees([50] * 20000, seed=1)
    seeds, edge_id = torch.arange(30), [graph.row] if with_edge_id else None

    def draw(key: int) -> None:
        ops.sample_bulk(graph.colptr, [graph.row], seeds, [0, 30], fanouts, [key], edge_id=edge_id)

    draw(1)
    assert counts_of(lambda: draw(2)) == (launches, 6 if fanouts else 5, 1)


def test_launches_and_allocations_of_layers():
    """Of LADIES by the scheme `priority`: 49 launches for each hop."""
    graph = graph_of_degrees([50] * 20000, seed=1)

    def draw(hops: int) -> None:
        ops.sample_layers_bulk(
            graph.colptr, [graph.row], torch.arange(30), [0, 30], [20] * hops, [1], ops.LayerDrawing()
        )

    assert [counts_of(lambda hops=hops: draw(hops)) for hops in (1, 2)] == [(55, 53, 3), (104, 94, 5)]
