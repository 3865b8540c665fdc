"""What a user can get wrong is told by a ValueError, IndexError or TypeError that names it."""

import pytest
import torch
from helpers.graphs import Graph, graph_of_degrees
from helpers.refused import refuses

from torch_gnnscale import ops
from torch_gnnscale.ops.arguments import _first_outside

LONG = torch.int64
ids = torch.tensor


BAD_IDS = [
    ([0], TypeError, "expected a tensor, found list"),
    (None, TypeError, "expected a tensor, found NoneType"),
    (ids([0.0]), TypeError, "expected int32 or int64 ids, found torch.float32"),
    (ids([True]), TypeError, "expected int32 or int64 ids, found torch.bool"),
    (ids([0], dtype=torch.int16), TypeError, "expected int32 or int64 ids, found torch.int16"),
    (ids(0), ValueError, "expected a vector, found shape ()"),
    (ids([[0]]), ValueError, "expected a vector, found shape (1, 1)"),
]


@pytest.mark.parametrize(("bad", "error", "message"), BAD_IDS)
def test_ids_of_the_wrong_kind(bad, error, message):
    good = ids([0])
    graph = graph_of_degrees([2, 2])
    with refuses(error, f"src: {message}"):
        ops.coo_to_csc(bad, good, 1, 1)
    with refuses(error, f"dst: {message}"):
        ops.coo_to_csc(good, bad, 1, 1)
    with refuses(error, f"dst: {message}"):
        ops.colptr_of_sorted(bad, 1)
    with refuses(error, f"seeds: {message}"):
        graph.sample(ops, bad, [1], 0)
    with refuses(error, f"row: {message}"):
        Graph(graph.colptr, bad).sample(ops, good, [1], 0)
    if bad is not None:
        with refuses(error, f"edge_id: {message}"):
            graph._replace(edge_id=bad).sample(ops, good, [1], 0)
    if isinstance(bad, torch.Tensor):
        with refuses(error, f"index: {message}"):
            ops.gather_rows(torch.ones(3, 2), bad)


@pytest.mark.parametrize("dtype", [torch.int32, LONG])
@pytest.mark.parametrize("value", [-1, 4, -(1 << 31), (1 << 31) - 1])
def test_ids_out_of_range(dtype, value):
    good, bad = ids([0, 1, 2], dtype=dtype), ids([0, 3, value], dtype=dtype)
    with refuses(IndexError, f"src[2] = {value} is out of range: expected ids in [0, 4)"):
        ops.coo_to_csc(bad, good, 4, 4)
    with refuses(IndexError, f"dst[2] = {value} is out of range: expected ids in [0, 4)"):
        ops.coo_to_csc(good, bad, 4, 4)
    with refuses(IndexError, f"seeds[2] = {value} is out of range: expected nodes in [0, 4)"):
        graph_of_degrees([2, 2, 2, 2]).sample(ops, bad, [1], 0)
    for rows in (torch.ones(4, 3), torch.ones(4), torch.ones(4, 0)):
        with refuses(IndexError, f"index[2] = {value} is out of range: expected rows in [0, 4)"):
            ops.gather_rows(rows, bad)


def test_nothing_is_in_an_empty_range():
    with refuses(IndexError, "index[0] = 0 is out of range: expected rows in [0, 0)"):
        ops.gather_rows(torch.ones(0, 3), ids([0]))
    with refuses(IndexError, "seeds[0] = 0 is out of range: expected nodes in [0, 0)"):
        graph_of_degrees([]).sample(ops, ids([0]), [1], 0)
    with refuses(IndexError, "dst[0] = 0 is out of range: expected ids in [0, 0)"):
        ops.coo_to_csc(ids([0]), ids([0]), 1, 0)


def test_coo_to_csc_of_unlike_vectors():
    message = "src and dst: expected one dtype and length, found torch.int64 [2] and torch.int64 [1]"
    with refuses(ValueError, message):
        ops.coo_to_csc(ids([0, 0]), ids([0]), 1, 1)
    message = "src and dst: expected one dtype and length, found torch.int64 [1] and torch.int32 [1]"
    with refuses(ValueError, message):
        ops.coo_to_csc(ids([0]), ids([0], dtype=torch.int32), 1, 1)


@pytest.mark.parametrize(
    ("colptr", "error", "message"),
    [
        ([0, 2], TypeError, "colptr: expected an int64 tensor, found list"),
        (ids([0, 2], dtype=torch.int32), TypeError, "colptr: expected an int64 tensor, found torch.int32"),
        (ids([0.0, 2.0]), TypeError, "colptr: expected an int64 tensor, found torch.float32"),
        (ids([[0, 2]]), ValueError, "colptr: expected a vector of at least one entry, found shape (1, 2)"),
        (ids([], dtype=LONG), ValueError, "colptr: expected a vector of at least one entry, found shape (0,)"),
        (ids([1, 2]), ValueError, "colptr[0]: expected 0, found 1"),
        (ids([-1, 2]), ValueError, "colptr[0]: expected 0, found -1"),
        (ids([0, 2, 1, 0, 2]), ValueError, "colptr[2] = 1 is less than colptr[1] = 2"),
        (ids([0, -1, 2]), ValueError, "colptr[1] = -1 is less than colptr[0] = 0"),
        (ids([0, 1, 1]), ValueError, "colptr[2] (the last): expected the number of edges 2, found 1"),
        (ids([0, 1, 3]), ValueError, "colptr[2] (the last): expected the number of edges 2, found 3"),
    ],
)
def test_check_colptr(colptr, error, message):
    with refuses(error, message):
        ops.check_colptr(colptr, 2)


def test_check_colptr_takes_what_is_right():
    for values, num_edges in (([0], 0), ([0, 0, 0], 0), ([0, 2, 2, 5], 5)):
        ops.check_colptr(ids(values), num_edges)


@pytest.mark.parametrize("fanout", [-2, ops.MAX_FANOUT + 1, 1 << 40, 1.5, True])
def test_fanouts(fanout):
    graph = graph_of_degrees([2, 2])
    with refuses(ValueError, f"fanouts[1]: expected -1 (all) or 0..131072, found {fanout}"):
        graph.sample(ops, ids([0]), [3, fanout], 0)
    with refuses(ValueError, "fanouts: expected at most 64 hops, found 65"):
        graph.sample(ops, ids([0]), [1] * 65, 0)


def test_graph_of_the_wrong_kind():
    graph = graph_of_degrees([2, 2])
    with refuses(TypeError, "colptr: expected an int64 vector, found torch.int32 (3,)"):
        graph._replace(colptr=graph.colptr.int()).sample(ops, ids([0]), [1], 0)
    with refuses(TypeError, "colptr: expected an int64 vector, found torch.int64 (1, 3)"):
        graph._replace(colptr=graph.colptr[None]).sample(ops, ids([0]), [1], 0)
    with refuses(TypeError, "colptr: expected an int64 vector, found torch.int64 (0,)"):
        graph._replace(colptr=graph.colptr[:0]).sample(ops, ids([0]), [1], 0)
    with refuses(ValueError, "edge_id: expected one for each of 4 edges, found 3"):
        graph._replace(edge_id=torch.arange(3)).sample(ops, ids([0]), [1], 0)


def test_gather_rows_of_the_wrong_kind():
    with refuses(ValueError, "src: expected at least one dimension, found a scalar"):
        ops.gather_rows(torch.tensor(1.0), ids([0]))
    rows = torch.ones(4, 3)
    with refuses(ValueError, "src: expected contiguous rows, found strides (1, 3) for shape (3, 4)"):
        ops.gather_rows(rows.T, ids([0]))
    with refuses(ValueError, "src: expected contiguous rows, found strides (3, 2) for shape (4, 2)"):
        ops.gather_rows(rows[:, ::2], ids([0]))
    with refuses(ValueError, "index: expected it on cpu like src, found meta"):
        ops.gather_rows(rows, ids([0]).to("meta"))


@pytest.mark.parametrize(
    "quadrants", [(0.001, 0.5, 0.4), (-0.1, 0.5, 0.5), (0.5, -0.1, 0.1), (0.5, 0.3, 0.3), (0.5, 0.2)]
)
def test_rmat_quadrants(quadrants):
    message = f"quadrants: expected a >= 0.01, b, c >= 0 with a sum of at most 1, found {quadrants}"
    with refuses(ValueError, message):
        ops.rmat_edges(4, 4, 0, quadrants)


def test_rmat_quadrants_that_are_no_numbers():
    with refuses(ValueError, "quadrants: expected a >= 0.01, b, c >= 0 with a sum of at most 1, found (nan, 0.1, 0.1)"):
        ops.rmat_edges(4, 4, 0, (float("nan"), 0.1, 0.1))


EDGES = (torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
QUADRANTS = (0.25, 0.25, 0.25)
NUMBERS = [
    ("num_nodes", 1, ops.MAX_COUNT, lambda n: ops.rmat_edges(n, 1, 0, QUADRANTS)),
    ("num_edges", 0, ops.MAX_COUNT, lambda n: ops.rmat_edges(4, n, 0, QUADRANTS)),
    ("first", 0, 1 << 62, lambda n: ops.rmat_edges(4, 1, 0, QUADRANTS, n)),
    ("count", 0, ops.MAX_COUNT, lambda n: ops.random_bits(n, 0)),
    ("offset", 0, 1 << 62, lambda n: ops.random_bits(1, 0, n)),
    ("count", 0, ops.MAX_COUNT, lambda n: ops.permutation(n, 0)),
    ("num_src", 0, 1 << 62, lambda n: ops.coo_to_csc(*EDGES, n, 1)),
    ("num_dst", 0, ops.MAX_COUNT, lambda n: ops.coo_to_csc(*EDGES, 1, n)),
    ("num_dst", 0, ops.MAX_COUNT, lambda n: ops.colptr_of_sorted(EDGES[1], n)),
    ("limit", 0, 1 << 62, lambda n: ops.first_outside(ids([0]), n)),
    ("num_edges", 0, 1 << 62, lambda n: ops.check_colptr(ids([0]), n)),
    ("num_bytes", 0, 1 << 62, ops.pool_limit),
    ("threads", 0, 1 << 62, ops.limit_threads),
    ("threads", 0, 1 << 62, lambda n: ops.random_bits(1, 0, threads=n)),
    ("key", -(1 << 63), (1 << 63) - 1, lambda n: ops.random_bits(1, n)),
    ("key", -(1 << 63), (1 << 63) - 1, lambda n: ops.permutation(1, n)),
    ("key", -(1 << 63), (1 << 63) - 1, lambda n: graph_of_degrees([2]).sample(ops, ids([0]), [1], n)),
]


@pytest.mark.parametrize(("name", "least", "most", "call"), NUMBERS)
def test_numbers_out_of_range(name, least, most, call):
    for value in (least - 1, most + 1):
        with refuses(ValueError, f"{name}: expected {least} <= {name} <= {most}, found {value}"):
            call(value)
    with refuses(TypeError, f"{name}: expected an int, found float"):
        call(0.5)
    with refuses(TypeError, f"{name}: expected an int, found bool"):
        call(True)


def test_more_memory_than_there_is_is_an_error():
    message = r"^expected 8796093022208 bytes of memory, found \d+ available beside \d+ in use by outputs$"
    with pytest.raises(MemoryError, match=message):
        ops.random_bits(1 << 40, 0)
    assert len(ops.random_bits(8, 0)) == 8


def test_more_memory_than_a_pointer_can_reach_is_an_error():
    table = torch.empty(1, 1 << 28, dtype=torch.uint8)  # never touched, so it takes no memory
    with pytest.raises(MemoryError, match=r"^expected 281475245146112 bytes of memory, found \d+ available beside "):
        ops.gather_rows(table, torch.zeros((1 << 20) + 1, dtype=torch.int64))


def test_more_edges_than_a_malformed_colptr_says():
    with refuses(ValueError, "colptr[0] (the last): expected the number of edges 3, found 0"):
        ops.check_colptr(ids([0]), 3)


def test_seed_times():
    graph = graph_of_degrees([2, 2])
    seeds, pairs = ids([0, 1]), torch.zeros(2, 1, dtype=torch.int64)
    relations = ops.relations([graph.colptr], [graph.row])
    prepared = ops.PreparedNeighbors(relations, [1])
    alone = ops.sample_neighbors(relations, [seeds], [1], 3, exclude=[pairs])
    timed = ops.sample_neighbors(relations, [seeds], [1], 3, exclude=[pairs], seed_time=[ids([5, 6])])
    assert torch.equal(alone.edge_index[0], timed.edge_index[0])  # no edge has a time
    for wrong, error, message in (
        ([ids([5])], ValueError, "seed_time[0]: expected shape (2,), found (1,)"),
        ([[5, 6]], TypeError, "seed_time[0]: expected an int64 vector, found list"),
        ([seeds, seeds], ValueError, "seed_time: expected one entry for each of 1 node types, found 2"),
    ):
        with refuses(error, message):
            ops.sample_neighbors(relations, [seeds], [1], 3, seed_time=wrong)
        with refuses(error, message):
            prepared.sample_many([[seeds]] * 2, [3, 4], seed_time=[None, wrong])
        with refuses(error, message.replace("seed_time", "seed_start_time")):
            prepared.sample_many([[seeds]] * 2, [3, 4], seed_start_time=[None, wrong])


def test_huge_pages_of_the_wrong_kind():
    with refuses(ValueError, "tensor: expected a contiguous CPU tensor, found cpu, strides (1, 3)"):
        ops.huge_pages(torch.ones(4, 3).T)
    with refuses(ValueError, "tensor: expected a contiguous CPU tensor, found meta, strides (1,)"):
        ops.huge_pages(torch.ones(4, device="meta"))
    with refuses(ValueError, "threads: expected 0 <= threads <= 4611686018427387904, found -1"):
        ops.huge_pages(torch.ones(4), -1)


def test_the_largest_number_of_a_dtype_is_outside_a_limit_of_it():
    """As for a GPU, where the ids are compared by torch."""

    class OnGPU(torch.Tensor):
        device = torch.device("cuda")

    most = torch.iinfo(torch.int32).max
    ids = torch.tensor([0, most - 1, most], dtype=torch.int32)
    for given in (ids, ids.as_subclass(OnGPU)):
        assert [_first_outside(given, limit, 1) for limit in (most - 1, most, most + 1)] == [1, 2, -1]
