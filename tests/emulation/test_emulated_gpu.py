"""The code of a GPU's operators, run by threads of the host (`make emulate`): see build.py beside this."""

import ctypes
import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from helpers.gpu_cases import (
    check_random_aggregation,
    check_random_bulk,
    check_random_choice,
    check_random_cut,
    check_random_gather,
    check_random_layers,
    check_random_sample,
    check_random_shuffle,
    check_random_tables,
)
from helpers.graphs import assert_same, graph_of_degrees
from helpers.sampling_cases import times_of

import torch_gnnscale
from torch_gnnscale import ops

LIBRARY = ctypes.CDLL(str(Path(torch_gnnscale.__file__).parent / "_C.so"))
pytestmark = pytest.mark.skipif(not hasattr(LIBRARY, "emulated_mark"), reason="not an emulated GPU: see make emulate")
MARKS = {"GPU": 0, "pinned": 1, "pageable": 2}


@pytest.fixture(autouse=True)
def ordinary_memory():
    yield
    LIBRARY.emulated_forget()
    limit_allocations(None)


def limit_allocations(most: int | None) -> None:
    """From now on no more bytes can be had at a time."""
    LIBRARY.emulated_limit(ctypes.c_int64(1 << 62 if most is None else most))


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


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_tables(first):
    for seed in range(first, first + 20):
        check_random_tables(seed, put, most=200)
        LIBRARY.emulated_forget()


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_samples(first):
    for seed in range(first, first + 50):
        check_random_sample(seed, put, most=150)
        LIBRARY.emulated_forget()


@pytest.mark.parametrize("first", range(0, 600, 50))
def test_random_bulks_of_every_mode(first):
    """Several relations, weights, times, windows, disjoint trees, exclusions."""
    for seed in range(first, first + 50):
        check_random_bulk(seed, put)
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


def test_memory_that_is_pinned_in_part():
    """Its first byte is, its last is not."""
    table, index = torch.arange(24.0).view(6, 4), torch.arange(4)
    for rows in (table.clone(), torch.empty(6, 8)[:, 2:6].copy_(table)):
        end = ctypes.c_int64(rows.data_ptr() + 4 * (5 * rows.stride(0) + 4) - 1)
        LIBRARY.emulated_mark(ctypes.c_void_p(rows.data_ptr()), ctypes.c_int64(end.value - rows.data_ptr()), 1)
        with pytest.raises(RuntimeError, match="host memory is not registered with CUDA to its end"):
            ops.gather_tiers([rows], index)
        LIBRARY.emulated_forget()


OUT_OF_RANGE = """
import torch
from torch_gnnscale import ops
x, index = torch.zeros(6, 4), torch.tensor([0, {index}])
print(ops.gather_rows(x, index, check=False))
"""


@pytest.mark.parametrize("index", [-1, 6])
def test_an_id_that_nobody_checked_ends_the_process(index):
    run = subprocess.run([sys.executable, "-c", OUT_OF_RANGE.format(index=index)], capture_output=True, text=True)
    assert run.returncode != 0
    assert "an id is out of range" in run.stderr


def test_memory_that_a_gpu_cannot_read():
    table, index = torch.arange(12.0).view(6, 2), torch.arange(4)
    with pytest.raises(RuntimeError, match="gather_tiers: a tensor in host memory is not registered with CUDA"):
        ops.gather_tiers([put(table, "pageable")], index)
    colptr, row = torch.arange(5), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="sample_bulk: a tensor in host memory is not registered with CUDA"):
        ops.sample_bulk(colptr, [row[:2], put(row[2:], "pageable")], index, [0, 4], [2], [1])
    with pytest.raises(RuntimeError, match="sample_layers_bulk: a tensor in host memory is not registered with CUDA"):
        ops.sample_layers_bulk(colptr, [put(row, "pageable")], index, [0, 4], [2], [1], ops.LayerDrawing())
    with pytest.raises(RuntimeError, match="aggregate: expected all tensors on the device of x"):
        ops.aggregate(colptr, put(row, "pinned"), table)
    with pytest.raises(RuntimeError, match="edge_dot: x is not on a GPU"):
        ops.edge_dot(colptr, row, put(table, "pageable"), table[:4])


# Memory that is not there ############################################################################################


def calls_that_allocate() -> dict[str, Callable[[], object]]:
    """A call of each operator of a GPU, by name."""
    ids, x, row = torch.arange(4), torch.ones(4, 4), torch.tensor([1, 2, 3, 0])
    ptr, score = torch.arange(5), torch.ones(4, 1)
    return {
        "gather_rows": lambda: ops.gather_rows(x, ids),
        "gather_tiers": lambda: ops.gather_tiers([x], ids),
        "gather_tables": lambda: ops.gather_tables([ops.TieredTable([x])], [ids]),
        "shuffle_rows": lambda: ops.shuffle_rows(None, [x], None, ids),
        "dropout_rows": lambda: ops.dropout_rows(x, ids, 1, 0.5),
        "aggregate": lambda: ops.aggregate(ptr, row, x),
        "edge_dot": lambda: ops.edge_dot(ptr, row, x, x),
        "share_of_extremes": lambda: ops.share_of_extremes(ptr, row, x, x, x),
        "extreme_backward": lambda: ops.extreme_backward(ptr, row, x, x, x),
        "edge_attention": lambda: ops.edge_attention(ptr, row, score),
        "edge_attention_backward": lambda: ops.edge_attention_backward(ptr, row, score, None, None, score, score),
        "sample_bulk": lambda: ops.sample_bulk(ptr, [row], ids, [0, 4], [2], [1]),
        "choose_nodes": lambda: ops.choose_nodes(ids, ids + 1, 2, "priority", 1, 0),
        "sample_layers_bulk": lambda: ops.sample_layers_bulk(ptr, [row], ids, [0, 4], [2], [1], ops.LayerDrawing()),
        "cut_batch": lambda: ops.cut_batch(ids, [2, 2], torch.tensor([0, 1, 2]), torch.tensor([2, 3]), ids % 2, 2, 0),
    }


def test_memory_that_runs_out_has_a_name_a_size_and_torchs_type():
    calls = calls_that_allocate()
    for name, call in calls.items():
        limit_allocations(None)
        call()
        limit_allocations(0)
        with pytest.raises(torch.OutOfMemoryError, match=rf"^{name}: CUDA out of memory: expected \d+ bytes, found 0 "):
            call()
    assert len(calls) == 15  # as many operators as the .cu files have


def test_a_bulk_gets_the_memory_that_there_is():
    """Room for the worst case takes 80 MB at once, what is needed less than one."""
    graph = graph_of_degrees([1] * 100000, seed=1)
    seeds = torch.arange(0, 4000, 70)
    limit_allocations(4 << 20)
    (sample,) = ops.sample_bulk(graph.colptr, [graph.row], seeds, [0, len(seeds)], [32, 32, 32], [1], with_edge_id=True)
    assert_same(sample, ops.sample_neighbors(graph.relations(), [seeds], [[32, 32, 32]], 1))


def test_a_bulk_whose_worst_case_no_call_can_draw():
    """By the mean degree, 2^14 trees of three hops of 41 may find more than 2^30 nodes, for which no memory is asked.
    Half of that is too much, too, and so on, until it fits: 14 times memory is asked for in vain."""
    graph = graph_of_degrees([1] * 68000 + [430] * 2000, seed=3)
    seeds = [torch.arange(0, 1 << 14, 2), torch.arange(1, 1 << 14, 2)]
    bulks = ops.PreparedBulks(
        [ops.StoredEdges(graph.colptr, [graph.row], None, None, None, [1])], [70000], [41, 41, 41],
        torch.device("cpu"), disjoint=True,
    )  # fmt: skip
    found = []
    limit_allocations(64 << 20)
    assert counts_of(lambda: found.extend(bulks.sample_many([[ids] for ids in seeds], [1, 2])))[1] == 14 + 8
    for sample, ids, key in zip(found, seeds, (1, 2), strict=True):
        assert_same(sample, ops.sample_neighbors(graph.relations(), [ids], [[41, 41, 41]], key, disjoint=True))


def test_bulks_are_halved():
    """Half of the batches fit, or, layer by layer, a quarter."""
    graph = graph_of_degrees([40] * 20000, seed=2)
    batches, keys = [torch.arange(first, first + 20) for first in range(0, 80, 20)], [3, 4, 5, 6]

    def draw(seeds: Sequence[torch.Tensor], keys: Sequence[int]) -> list[ops.Sample]:
        ends = [20 * b for b in range(len(keys) + 1)]
        return ops.sample_bulk(graph.colptr, [graph.row], torch.cat(list(seeds)), ends, [40, 40], keys)

    layers = ops.PreparedLayerBulks(graph.colptr, [graph.row], None, [1], [30, 30], ops.LayerDrawing(),
                                    torch.device("cpu"), score=None, layers=False, include_dst=True)  # fmt: skip
    for draw_halves, one, most in (
        (lambda: ops.in_halves(draw, batches, keys), lambda s, k: ops.sample_neighbors(
            graph.relations(), [s], [[40, 40]], k), 9 << 20),
        (lambda: layers.sample_many(batches, keys), lambda s, k: ops.sample_layers(
            graph.relations(), s, [30, 30], k, ops.LayerDrawing()), 150000),
    ):  # fmt: skip
        limit_allocations(most)
        with pytest.warns(UserWarning, match=r"^bulk: 4 batches are drawn as 2 and 2, for memory ran out: sample_"):
            found = draw_halves()
        for sample, seeds, key in zip(found, batches, keys, strict=True):
            assert_same(sample, one(seeds, key))
        limit_allocations(1000)
        with pytest.raises(torch.OutOfMemoryError), pytest.warns(UserWarning, match="2 batches are drawn as 1 and 1"):
            draw_halves()


# What a call asks for ################################################################################################


def counts_of(call: Callable[[], object]) -> tuple[int, int, int]:
    """Launches (kernels, as many of CUB's as CUB itself would make, and memsets), allocations and waits of a call."""
    before, after = (ctypes.c_int64 * 3)(), (ctypes.c_int64 * 3)()
    LIBRARY.emulated_counts(before)
    call()
    LIBRARY.emulated_counts(after)
    launches, allocations, waits = (b - a for a, b in zip(before, after, strict=True))
    return launches, allocations, waits


@pytest.mark.parametrize("tables", [1, 2, 5, 40])
def test_tables_are_gathered_by_one_kernel(tables):
    """One launch, and a copy of what it is given; an output for each, and memory for that copy."""
    given = [ops.TieredTable([torch.ones(50, 1 + k), torch.ones(10, 1 + k)]) for k in range(tables)]
    index = [torch.arange(3 + k) for k in range(tables)]
    assert counts_of(lambda: ops.gather_tables(given, index, check=False)) == (2, tables + 1, 0)


@pytest.mark.parametrize("with_edge_id", [False, True])
@pytest.mark.parametrize(
    ("fanouts", "launches"), [([], 4), ([15], 12), ([15, 10, 5], 30), ([15, 40, 5], 30), ([15, -1, 5, 5], 39)]
)
def test_launches_and_allocations_of_a_batch(fanouts, launches, with_edge_id):
    """Three launches, and nine of each hop; scratch memory, CUB's, and four outputs."""
    graph = graph_of_degrees([50] * 20000, seed=1)
    seeds, edge_id = torch.arange(30), [graph.row] if with_edge_id else None

    def draw(key: int) -> None:
        ops.sample_bulk(graph.colptr, [graph.row], seeds, [0, 30], fanouts, [key], edge_id=edge_id)

    draw(1)
    assert counts_of(lambda: draw(2)) == (launches, 7 if fanouts else 6, 1)


def bulk_of_mode(mode: str, subgraph: str, fanouts: list[int]) -> Callable[[], object]:
    """A bulk of two batches of three hops, in one mode and of one kind of subgraphs."""
    nodes, count = 2000, 6
    graph = graph_of_degrees([50] * nodes, seed=1)
    generator, seeds = torch.Generator().manual_seed(1), torch.arange(count)
    weight = ops.weight_sums(graph.colptr, torch.rand(len(graph.row), generator=generator))
    weighted, timed = mode.startswith("weights"), mode == "windows"
    given: dict = {}
    if mode == "exclusions":
        given["exclude"] = [[torch.stack([graph.row[seeds * 50], seeds])]] * 2
    if timed:
        given |= {"seed_time": [[seeds]] * 2, "seed_start_time": [[seeds - 5]] * 2}
    time = [times_of(graph.colptr, generator)] if timed else None
    relations = int(mode.split()[0]) if mode.endswith("relations") else 1
    edges = [
        ops.StoredEdges(graph.colptr, [graph.row], None, [weight] if weighted else None, time, [1], 0, 0, r)
        for r in range(relations)
    ]
    bulks = ops.PreparedBulks(
        edges, [nodes], fanouts, torch.device("cpu"), replace="replace" in mode, disjoint=timed or mode == "trees",
        last=timed, subgraph=subgraph,
    )  # fmt: skip
    return lambda: bulks.sample_many([[seeds], [seeds + 9]], [1, 2], **given)


KINDS = {"directional": (30, 7, 1), "induced": (39, 19, 3), "bidirectional": (40, 18, 2)}
DRAWS = itertools.product(KINDS, ("uniform", "weights", "weights, replace"), ([15, 10, 5], [40, 40, 5], [40, 40, 40]))
MODES = ("trees", "windows", "exclusions", "2 relations", "9 relations")


@pytest.mark.parametrize(("kind", "mode", "fanouts"), [*DRAWS, *(("directional", mode, [15, 10, 5]) for mode in MODES)])
def test_launches_of_a_bulk_in_every_mode(kind, mode, fanouts):
    """An induced subgraph has nine more than the hops, a bidirectional one ten, of which five sort by 24 bits; no mode,
    no number of relations, no draws by weight and no fanout adds any to the hops."""
    draw = bulk_of_mode(mode, kind, fanouts)
    draw()
    draw()
    assert counts_of(draw) == KINDS[kind]


def test_a_sort_of_candidates_reads_the_bits_that_they_have():
    """20,000 nodes have 15 bits, and two batches one more: two digits of eight."""
    graph = graph_of_degrees([50] * 20000, seed=1)

    def draw(scheme: str, batches: int) -> None:
        ends = [30 * b // batches for b in range(batches + 1)]
        ops.sample_layers_bulk(graph.colptr, [graph.row], torch.arange(30), ends, [20], list(range(batches)),
                               ops.LayerDrawing(scheme=scheme))  # fmt: skip

    assert [counts_of(lambda b=b: draw("replace", b))[0] for b in (1, 2, 3)] == [50, 50, 51]


def test_launches_and_allocations_of_layers():
    """Of LADIES by the scheme `priority`: 50 launches for each hop, and four."""
    graph = graph_of_degrees([50] * 20000, seed=1)

    def draw(hops: int) -> None:
        ops.sample_layers_bulk(
            graph.colptr, [graph.row], torch.arange(30), [0, 30], [20] * hops, [1], ops.LayerDrawing()
        )

    assert [counts_of(lambda hops=hops: draw(hops)) for hops in (1, 2)] == [(54, 54, 3), (104, 96, 5)]
