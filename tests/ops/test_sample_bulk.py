"""Batches that are sampled many at a time equal those that are sampled one by one, bit for bit: by the phases of a
GPU, on either device, and dealt to the threads of a CPU."""

from itertools import pairwise

import pytest
import reference
import torch
from helpers.gpu_cases import check_random_bulk
from helpers.graphs import (
    Graph,
    assert_same,
    graph_of_degrees,
    random_graph,
    random_ids,
    small_graphs,
    with_tensors,
)
from helpers.sampling_cases import random_case
from helpers.slow import SLOW
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_gnnscale import ops
from torch_gnnscale.ops.graph_arguments import LAYERS, REPLACE, WITH_COL, WITH_EDGE_ID

OPS = torch.ops.gnnscale
WHOLE = WITH_EDGE_ID | WITH_COL
INDEX = [torch.int32, torch.int64]
CPU, EMPTY = torch.device("cpu"), torch.empty(0, dtype=torch.int64)
FLAGS = ["replace", "layers", "with_edge_id", "with_col"]


def on(device: str, tensor: torch.Tensor | None) -> torch.Tensor | None:
    """A copy with the same strides."""
    if tensor is None:
        return None
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)


def in_parts(
    edges: torch.Tensor | None, cuts: list[int], spread: list[int] | None
) -> torch.Tensor | list[torch.Tensor] | None:
    """The edges, copied into tensors: what lies between each two of these places is interleaved over as many as
    ``spread`` says; as they are without places and spread."""
    if edges is None or not (cuts or spread):
        return edges
    ends = [0, *cuts, len(edges)]
    return [
        on(edges.device.type, edges[first:last][p::count])
        for (first, last), count in zip(pairwise(ends), spread or [1] * (len(ends) - 1), strict=True)
        for p in range(count)
    ]


def raw_graph(colptr: torch.Tensor, row: torch.Tensor) -> list:
    """The first arguments of the operator itself: a relation without a reverse, ids, weights or times."""
    return [[colptr], [row], [], [], [], [1], [0, 0, 0, -1, 1, 1, 0, 0, 0], [len(colptr) - 1]]


def bulk(
    graph: Graph, batches: list[torch.Tensor], fanouts, keys, device="cpu", cuts=(), spread=None, **options
) -> list[ops.Sample]:
    seeds = torch.cat(batches) if batches else torch.empty(0, dtype=torch.int64)
    ends = [0, *torch.tensor([len(batch) for batch in batches], dtype=torch.int64).cumsum(0).tolist()]
    colptr, row, edge_id = (on(device, tensor) for tensor in graph)
    row, edge_id = (in_parts(edges, list(cuts), spread) for edges in (row, edge_id))
    return ops.sample_bulk(
        colptr, row, seeds.to(device), ends, fanouts, keys, edge_id=edge_id, spread=spread, **options
    )


def check(
    graph: Graph,
    batches: list[torch.Tensor],
    fanouts,
    device="cpu",
    threads=3,
    twin=None,
    cuts=(),
    spread=None,
    **options,
) -> None:
    keys = [(-1) ** b * (b * 7919 + 11) for b in range(len(batches))]
    found = bulk(graph, batches, fanouts, keys, device, cuts, spread, threads=threads, **options)
    assert len(found) == len(batches)
    if device == "cpu" and not cuts and not spread:
        dealt = ops.PreparedNeighbors(graph.relations(), fanouts, **options)
        for one, other in zip(dealt.sample_many([[b] for b in batches], keys, threads=threads), found, strict=True):
            assert_same(one, other)
    for sample, seeds, key in zip(found, batches, keys, strict=True):
        assert sample.node[0].device.type == device
        assert_same(with_tensors(sample, torch.Tensor.cpu), graph.sample(twin or ops, seeds, fanouts, key, **options))


@pytest.mark.slow
@given(
    graph=small_graphs(),
    data=st.data(),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 2, 3, 5, 12]), max_size=4),
    flags=st.tuples(*[st.booleans()] * 4),
    threads=st.integers(1, 3),
)
def test_small_graphs(graph, data, fanouts, flags, threads):
    ids = st.lists(st.integers(0, graph.num_nodes - 1), max_size=8) if graph.num_nodes else st.just([])
    chosen = data.draw(st.lists(ids, max_size=5))
    dtype = data.draw(st.sampled_from(INDEX))
    batches = [torch.tensor(seeds, dtype=dtype) for seeds in chosen]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(graph.row)), max_size=3)))
    parts = st.lists(st.integers(1, 8), min_size=len(cuts) + 1, max_size=len(cuts) + 1)
    check(
        graph, batches, fanouts, threads=threads, twin=reference, cuts=cuts, spread=data.draw(st.none() | parts),
        **dict(zip(FLAGS, flags, strict=True)),
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"layers": True}, {"replace": True, "layers": True}])
@pytest.mark.parametrize("edge_id_dtype", [None, *INDEX])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", INDEX)
def test_random_graphs(device, dtype, edge_id_dtype, interleaved, options):
    graph = random_graph(300, 6, seed=5).stored(dtype, edge_id_dtype, interleaved)
    batches = [random_ids(300, count, seed=count, dtype=dtype) for count in (40, 0, 1, 90)]
    assert len(batches[3].unique()) < 90
    for fanouts in ([], [4], [3, -1], [5, 4, 2], [0, 2], [2, 2, 2, 2]):
        check(graph, batches, fanouts, device, **options)


@pytest.mark.parametrize("edge_id_dtype", [None, torch.int64])
@pytest.mark.parametrize("cuts", [[0], [700], [1390], [1391], [0, 900, 900], [100, 500, 1100]])
def test_edges_in_several_memories(device, cuts, edge_id_dtype):
    graph = random_graph(300, 6, seed=5).stored(torch.int32, edge_id_dtype, False)
    assert len(graph.row) == 1391
    check(graph, [random_ids(300, count, seed=count) for count in (40, 0, 90)], [5, -1], device, cuts=cuts)


@pytest.mark.parametrize("edge_id_dtype", [None, torch.int64])
@pytest.mark.parametrize(
    ("cuts", "spread"),
    [
        ([], [1]), ([], [2]), ([], [3]), ([], [4]), ([], [32]), ([400], [1, 4]), ([0], [3, 2]), ([1389], [2, 4]),
        ([400, 1000], [1, 4, 1]), ([5, 700, 700], [8, 8, 8, 8]),
    ],
)  # fmt: skip
def test_edges_interleaved_over_several_memories(device, cuts, spread, edge_id_dtype):
    """The same batches as of one memory, and of one hop of a list, whatever GPU has which edge."""
    graph = random_graph(300, 6, seed=5).stored(torch.int32, edge_id_dtype, False)
    batches = [random_ids(300, count, seed=count) for count in (40, 0, 90)]
    check(graph, batches, [5, -1], device, cuts=cuts, spread=spread)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 31, 32, 33])
@pytest.mark.parametrize("layers", [False, True])
def test_any_number_of_batches(device, count, layers):
    graph = random_graph(500, 5, seed=2)
    batches = [random_ids(500, 0 if b % 5 == 3 else 10 + b, seed=b) for b in range(count)]
    check(graph, batches, [5, 3, 2], device, layers=layers)
    check(graph, [batch[:0] for batch in batches], [5, 3], device, layers=layers)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 0, 1, 2, 5, 31, 32, 33, 34, 64, 65, 513, 1000, 1500, 4999])
def test_degrees_around_the_fanout(device, fanout, replace):
    degrees = [0, 1, 2, 5, 6, 31, 32, 33, 34, 35, 63, 64, 65, 66, 512, 513, 514, 1000, 1001, 1500, 1501, 5000, 20000]
    graph = graph_of_degrees(degrees, seed=3)
    check(graph, [torch.arange(len(degrees)), torch.tensor([22, 21, 22])], [fanout], device, replace=replace)


def test_largest_fanout(device):
    graph = graph_of_degrees([ops.MAX_FANOUT + 1, 3], seed=4, dtype=torch.int32)
    check(graph, [torch.tensor([0, 1])], [ops.MAX_FANOUT], device)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_that_find_the_same_nodes(threads):
    """Many edges to few nodes: the table's cells are contended for."""
    graph = graph_of_degrees([60] * 500 + [0] * 20, seed=8)
    graph = Graph(graph.colptr, graph.row % 20 + 500 - graph.row % 2 * 490)
    for seed in range(5):
        check(graph, [random_ids(500, 200, seed=seed + b) for b in range(4)], [50, 20], threads=threads)


def test_self_loops_multi_edges_and_repeated_seeds(device):
    row = torch.tensor([0, 0, 0, 1, 1, 0, 2, 2])
    graph = Graph(torch.tensor([0, 3, 6, 8, 8]), row)
    batches = [torch.tensor([0, 0, 3, 0]), torch.tensor([3, 3]), torch.tensor([2, 1, 2])]
    for fanouts in ([2, 2], [-1, -1, -1], [5, 1]):
        for layers in (False, True):
            check(graph, batches, fanouts, device, layers=layers)


def test_all_hops_that_a_counter_can_tell_apart(device):
    check(random_graph(100, 3, seed=1), [torch.tensor([1, 2]), torch.tensor([50])], [1] * ops.MAX_HOPS, device)


# Modes ###############################################################################################################


@pytest.mark.parametrize("block", [*range(4), *map(SLOW, range(4, 12))])
def test_random_bulks_of_every_mode(device, block):
    """Relations, weights, times, windows, disjoint trees, exclusions: as on the CPU, one by one."""
    for number in range(25 * block, 25 * block + 25):
        check_random_bulk(number, lambda tensor, place: on_place(device, tensor, place), threads=1 + number % 3)


def on_place(device: str, tensor: torch.Tensor, place: str) -> torch.Tensor:
    if device == "cpu":
        return tensor.clone()
    return tensor.to(device) if place == "GPU" else tensor.pin_memory()


# Room ################################################################################################################


@pytest.mark.parametrize("rooms", [[0, 0], [1, 1], [1, 10**5], [10**5, 1], [100, 50], [10**5, 10**5]])
@pytest.mark.parametrize("options", [{}, {"layers": True}, {"replace": True}])
def test_whatever_room_there_is_at_first(device, rooms, options):
    graph = random_graph(2000, 12, seed=7)
    batches = [random_ids(2000, 60, seed=b) for b in range(3)]
    arguments = [*raw_graph(on(device, graph.colptr), on(device, graph.row)), on(device, torch.cat(batches)),
                 [0, 60, 120, 180], None, None, None, [], [40, -1, 3], [5, 6, -7],
                 WHOLE | REPLACE * options.get("replace", False) | LAYERS * options.get("layers", False)]  # fmt: skip
    expected = OPS.sample_bulk(*arguments, [1 << 18, 1 << 18], 2)
    for found, other in zip(OPS.sample_bulk(*arguments, rooms, 2), expected, strict=True):
        assert torch.equal(found, other)
    sample = graph.sample(ops, batches[0], [40, -1, 3], 5, **options)
    assert torch.equal(expected[0][: len(sample.node[0])].cpu(), sample.node[0])


def test_more_nodes_than_the_table_has_slots(device):
    graph = graph_of_degrees([6000] + [0] * 8000, seed=9)
    colptr, row, seeds = (on(device, tensor) for tensor in (graph.colptr, graph.row, torch.tensor([0])))
    found = OPS.sample_bulk(
        *raw_graph(colptr, row), seeds, [0, 1], None, None, None, [], [-1], [4], WHOLE, [10**6, 1], 2
    )
    expected = graph.sample(ops, torch.tensor([0]), [-1], 4)
    assert torch.equal(found[0].cpu(), expected.node[0])
    assert torch.equal(found[2].cpu().view(2, -1), expected.edge_index[0])


def test_seeds_that_need_more_than_those_before(device):
    graph = graph_of_degrees([1] * 3000 + [2500] * 3, seed=6)
    for seeds in ([5, 6], [3000, 3001], [7], list(range(3003))):
        check(graph, [torch.tensor(seeds)], [-1, 2], device)


def test_hops_get_no_more_room_than_the_graph_has_nodes(device):
    """Room for each column's fanout would be room for 30^8 edges in the last hop, which no memory has."""
    check(random_graph(8, 40, seed=4), [torch.arange(3), torch.tensor([7])], [30] * 8, device, replace=True)


@pytest.mark.parametrize("subgraph", ["directional", "induced"])
def test_no_relations(subgraph):
    """Batches are their seeds."""
    seeds = [torch.tensor([1, 0, 1]), EMPTY, torch.tensor([4])]
    options = {"disjoint": True, "subgraph": subgraph}
    expected = ops.sample_neighbors(ops.relations([], [], sizes=[2, 0, 5]), seeds, [2, 2], 1, **options)
    assert [nodes.tolist() for nodes in expected.node] == [[1, 0, 1], [], [4]]
    bulks = ops.PreparedBulks([], [2, 0, 5], [2, 2], CPU, **options)
    for found in bulks.sample_many([seeds, seeds], [1, 2]):
        assert_same(found, expected)


@pytest.mark.parametrize("replace", [False, True])
def test_sums_of_weights_that_are_malformed(replace):
    """Each edge that is drawn is one of the column's, however the sums rise and fall."""
    least, most = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    sums = torch.tensor([1, 5, least, 3, most, -1, least, most, 0, 7, 2, most])
    colptr, row = torch.tensor([0, 5, 12]), torch.arange(12) % 2
    graph = ops.relations([colptr], [row], weight=[sums])
    edges = ops.StoredEdges(colptr, [row], None, [sums], None, [1])
    bulks = ops.PreparedBulks([edges], [2], [3], CPU, replace=replace)
    for key in range(20):
        for sample in (
            *bulks.sample_many([[torch.tensor([0, 1])]], [key]),
            ops.sample_neighbors(graph, [torch.tensor([0, 1])], [3], key, replace=replace),
        ):
            first, second = sample.edge_id[0].view(2, 3)
            assert set(first.tolist()) <= set(range(5))
            assert set(second.tolist()) <= set(range(5, 12))


@pytest.mark.slow
def test_many_relations_of_few_edges():
    """Hop 0 may find all nodes, which have more columns than 2^31 in all relations, but finds two."""
    nodes = (1 << 21) + 1
    empty = ops.StoredEdges(torch.zeros(nodes + 1, dtype=torch.int64), [EMPTY], None, None, None, [1])
    chain = empty.colptr.clone()
    chain[1:] = torch.arange(1, nodes + 1).clamp(max=5)  # node 0 -> 1, 2, 3, 4, 5
    edges = [empty] * 1023 + [empty._replace(colptr=chain, row=[torch.arange(1, 6)])]
    seeds = torch.zeros(1 << 11, dtype=torch.int64)
    (sample,) = ops.PreparedBulks(edges, [nodes], [1, 1], CPU).sample_many([[seeds]], [1])
    assert sample.node[0].tolist() == [*seeds.tolist(), 1, 2]
    assert sample.num_edges == [[0, 0]] * 1023 + [[len(seeds), 1]]


def test_more_kinds_than_are_remembered(device):
    graph = random_graph(50, 3, seed=3)
    for fanout in [*range(1, 40), 1, 2]:
        check(graph, [torch.arange(20)], [fanout], device)


# sample_neighbors on a GPU ###########################################################################################


@pytest.mark.cuda
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"layers": True}, {"with_col": False}])
@pytest.mark.parametrize("pinned", [False, True])
def test_one_batch_on_a_gpu(options, pinned):
    graph = random_graph(300, 6, seed=5).stored(torch.int32, torch.int32, True)
    seeds = random_ids(300, 40, seed=6)
    there = Graph(*(tensor.pin_memory() if pinned else on("cuda", tensor) for tensor in graph))
    for fanouts in ([], [4, -1], [[5, 4, 2]]):
        found = there.sample(ops, seeds.cuda(), fanouts, 3, **options)
        assert found.node[0].is_cuda
        assert_same(with_tensors(found, torch.Tensor.cpu), graph.sample(ops, seeds, fanouts, 3, **options))


@pytest.mark.cuda
@pytest.mark.parametrize("number", range(60))
def test_one_batch_of_every_mode_on_a_gpu(number):
    (graph, seeds, fanouts, key), options = random_case(number)
    there = ops.Relations(*(
        [None if of is None else of.cuda() for of in entries] if name in ("colptr", "row", "edge_id", "weight", "time")
        else entries for name, entries in graph._asdict().items()
    ))  # fmt: skip
    found = ops.sample_neighbors(there, [ids.cuda() for ids in seeds], fanouts, key, **options)
    assert_same(with_tensors(found, torch.Tensor.cpu), ops.sample_neighbors(graph, seeds, fanouts, key, **options))


def test_a_graph_in_ordinary_memory_is_not_read_by_a_gpu():
    with FakeTensorMode():
        colptr, row = (torch.zeros(n, dtype=torch.int64) for n in (4, 5))
        seeds = torch.zeros(2, dtype=torch.int64, device="cuda")
        message = "colptr: expected it on cuda:0, where the seeds are, or pinned, found it on cpu"
        with pytest.raises(ValueError, match=message):
            ops.sample_neighbors(ops.relations([colptr], [row]), [seeds], [2], 1)


def test_shapes_for_tracing():
    with FakeTensorMode(shape_env=ShapeEnv()):
        colptr, row, seeds = (torch.zeros(n, dtype=torch.int64, device="cuda") for n in (4, 5, 2))
        found = OPS.sample_bulk(*raw_graph(colptr, row), seeds, [0, 2], None, None, None, [], [2, 2], [1], WHOLE, [], 0)
        assert [value.device.type for value in found] == ["cuda"] * 5 + ["cpu"]
        assert found[5].shape == (1 * 5 + 1,)
        assert len(found[3].shape) == 1
