"""Every operator under torch.library.opcheck, and the fakes of those that it cannot judge."""

import re
from pathlib import Path

import pytest
import torch
from helpers.graphs import random_graph, random_ids
from helpers.slow import NIGHTLY, SLOW
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map_only

from torch_gnnscale import ops
from torch_gnnscale.ops import graph_arguments as sampled

OPS = torch.ops.gnnscale
EVERY_CHECK = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
OF_VALUES = EVERY_CHECK[:2]  # what an operator returns that looks at values, no tracer can know
INDEX = [torch.int32, torch.int64]
BY_NIGHT = [NIGHTLY(torch.int32), torch.int64]


def check(op, *args, tests=EVERY_CHECK) -> None:
    assert set(torch.library.opcheck(op, args, test_utils=tests).values()) == {"SUCCESS"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BY_NIGHT)
@pytest.mark.parametrize("int32", [False, True])
def test_coo_to_csc(dtype, int32):
    src, dst = random_ids(20, 50, seed=1, dtype=dtype), random_ids(30, 50, seed=2, dtype=dtype)
    check(OPS.coo_to_csc.default, src, dst, 40, 30, int32, 0)
    check(OPS.coo_to_csc.default, src[:0], dst[:0], 40, 30, int32, 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INDEX)
def test_ids_and_pointers(dtype):
    ids = random_ids(20, 50, dtype=dtype)
    check(OPS.first_outside.default, ids, 19, 0, tests=OF_VALUES)
    check(OPS.colptr_of_sorted.default, ids.sort().values, 20, 0)
    check(OPS.first_malformed.default, ids.long().cumsum(0), 50, 0, tests=OF_VALUES)
    csc = torch.tensor([0, 1, 3, 3]), torch.tensor([1, 0, 1], dtype=dtype)
    for more in ((None, None), (torch.arange(3, dtype=dtype), torch.zeros(3, dtype=torch.int64))):
        check(OPS.reverse_edges.default, *(csc + more) * 2, 4, True, 0, tests=EVERY_CHECK[:3])
    check(OPS.huge_pages.default, ids, 0, tests=EVERY_CHECK[:3])
    check(OPS.release_pages.default, ids, tests=EVERY_CHECK[:3])
    board, numbers = torch.zeros(ops.board_size(1), dtype=torch.int64), torch.ones(1, 3, dtype=torch.int64)
    check(OPS.board_leave.default, board, numbers, 0, 0, tests=EVERY_CHECK[:3])
    ops.board_leave(board, numbers, 0, 0)
    check(OPS.board_take.default, board, numbers, 0, 0, 0, tests=EVERY_CHECK[:3])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BY_NIGHT)
def test_gather_rows(dtype, device):
    for shape in [(30,), (30, 7), (30, 2, 3), (30, 0)]:
        src = torch.randn(shape, device=device)
        check(OPS.gather_rows.default, src, random_ids(30, 12, dtype=dtype).to(device), 0)
        check(OPS.gather_rows.default, src.half(), random_ids(30, 0, dtype=dtype).to(device), 1)
        check(OPS.gather_rows.default, src.requires_grad_(), random_ids(30, 12, dtype=dtype).to(device), 0)
    if device == "cpu":
        check(
            OPS.gather_each.default, [torch.randn(30, 7), torch.arange(30)], [random_ids(30, 12, dtype=dtype)], [2], 0
        )
        offset = torch.tensor([0, 2, 2, 5, 9])
        check(OPS.gather_nested.default, torch.randn(9), offset, 2, torch.tensor([1, 0, 1]), tests=EVERY_CHECK[:3])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BY_NIGHT)
def test_gather_tiers(dtype, device):
    for stored, out in [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)]:
        parts = [torch.randn(rows, 7, device=device).to(stored) for rows in (20, 6, 5, 9)]
        place, index = (random_ids(40, count, dtype=dtype).to(device) for count in (30, 12))
        counts = torch.zeros(3, 2, dtype=torch.int64, device=device)
        check(OPS.gather_tiers.default, parts, [1, 2, 1], None, index, False, out, None, 0)
        check(OPS.gather_tiers.default, parts, [1, 2, 1], place, index % 30, device == "cpu", out, None, 1)
        check(OPS.gather_tiers.default, parts, [1, 2, 1], place, index % 30, False, out, counts, 0, tests=OF_VALUES)
        layout, tables = [1, 0, 0, 3, int(device == "cpu"), 4], [parts[0], *parts]
        indices, given = [index % 20, index % 30], (layout, [None, place])
        check(OPS.gather_tables.default, tables, [1, 1, 2, 1], *given, indices, [], 0, tests=EVERY_CHECK[:3])
        each = [torch.zeros(1, 2, dtype=torch.int64, device=device), counts]
        check(OPS.gather_tables.default, tables, [1, 1, 2, 1], *given, indices, each, 0, tests=OF_VALUES)


def sample_arguments(with_edge_id: bool, with_col: bool, layers: bool, subgraph: str = "directional") -> tuple:
    """Of two node types and two relations, with every optional argument or with none."""
    graph, back = random_graph(40, 4, seed=1), random_graph(30, 3, seed=2)
    none, disjoint = [None, None], layers
    rows = [graph.row % 30, back.row]
    edge_id = [torch.arange(len(graph.row)), None] if layers else none
    weight = [ops.weight_sums(graph.colptr, torch.ones(len(graph.row))), None] if layers else none
    time = [None, torch.zeros(len(back.row), dtype=torch.int64)] if layers else none
    exclude = [torch.tensor([[1, 2], [3, 3]]), None] if layers else none
    seeds = [random_ids(30, 5), random_ids(40, 6)]
    seed_time = [torch.arange(5), torch.arange(6)] if layers else none
    seed_start_time = [torch.arange(5) - 3, None] if layers else none
    relations = ([graph.colptr, back.colptr], rows, edge_id, weight, time, [0, 1], [1, 0], [1, 0], [30, 40])
    options = sampled.DISJOINT * disjoint | sampled.LAYERS * (layers and subgraph == "directional")
    options |= sampled.WITH_EDGE_ID * with_edge_id | sampled.WITH_COL * with_col | sampled.OF_SUBGRAPH[subgraph]
    limits = seed_time + seed_start_time + exclude
    return relations, (torch.tensor([[3, -1], [2, 2]]), seeds, limits, [5], options, 0)


@pytest.mark.parametrize(
    ("with_edge_id", "with_col", "layers"),  # each with each
    [SLOW(False, False, True), (True, False, True), SLOW(True, True, False), SLOW(False, True, True),
     SLOW(False, False, False)],
)  # fmt: skip
@pytest.mark.parametrize("subgraph", [name if name == "directional" else SLOW(name) for name in sampled.SUBGRAPHS])
def test_sample_neighbors(with_edge_id, with_col, layers, subgraph):
    relations, arguments = sample_arguments(with_edge_id, with_col, layers, subgraph)
    check(OPS.hold_relations.default, *relations, tests=EVERY_CHECK[:3])  # each call returns another number
    fanouts, *of_batch, keys, options, threads = arguments
    for times in (1, 2):  # batches
        check(OPS.sample_neighbors.default, OPS.hold_relations(*relations), fanouts,
              *(entries * times for entries in of_batch), keys * times, options, threads)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BY_NIGHT)
@pytest.mark.parametrize("full", [False, True])
def test_hops(dtype, full):
    graph, node = random_graph(40, 4, seed=1), random_ids(40, 9, seed=2)
    edges = len(graph.row)
    weight = ops.weight_sums(graph.colptr, torch.ones(edges))
    given = [torch.arange(edges, dtype=dtype), weight, torch.zeros(edges, dtype=torch.int64)] if full else [None] * 3
    tree, time = (torch.arange(9), torch.arange(9)) if full else (None, None)
    options = sampled.REPLACE | sampled.LAST | sampled.WITH_EDGE_ID if full else 0
    check(OPS.pick_neighbors.default, graph.colptr, graph.row.to(dtype), *given, 0, 40, node, [0, 4, 9], [1, 2], tree,
          time, time, 5, 1, 3, options, 0)  # fmt: skip
    check(OPS.relabel.default, node, node.flip(0), tree, time)


@pytest.mark.slow
def test_layers():
    graph, none = random_graph(40, 4, seed=1), [None]
    held = OPS.hold_relations([graph.colptr], [graph.row], none, none, none, [0], [0], [0], [40])
    seeds, score = random_ids(40, 6), ops.node_scores(graph.relations())
    for scores, choices, options in (
        (None, [0, 0, 0, 0, 0], sampled.INCLUDE_DST | sampled.KEEP_KNOWN),
        (score, [1, 1, 1, 1, 1], sampled.LAYERS),
        (None, [2, 4, 0, 2, 0], sampled.INCLUDE_DST | sampled.LAYER_DEPENDENCY),
    ):
        check(OPS.sample_layers.default, held, [seeds, seeds[:2]], scores, [3, 2], [5, 6], choices, options, 0)
    check(OPS.choose_nodes.default, random_ids(40, 6), torch.arange(1, 7), 3, 0, 5, 0)
    check(OPS.choose_edges.default, random_ids(40, 6), torch.tensor([4, 0, 2]), [0, 1, 3], [5, -6], 1, 2, 4)
    degree, row, correction = torch.tensor([2, 1]), torch.tensor([0, 0, 1]), torch.ones(3, dtype=torch.float64)
    check(OPS.weigh_edges.default, degree, row, correction, torch.tensor([1, 2, 3]), torch.tensor([1, 2, 3]), 2, 0)


@pytest.mark.parametrize("operator", ["sample_neighbors", "sample_bulk", "pick_neighbors"])
def test_options_that_an_operator_does_not_have(operator):
    graph, ids, none = random_graph(40, 4, seed=1), random_ids(40, 9, seed=2), [None]
    arguments = {
        "sample_neighbors": (OPS.hold_relations([graph.colptr], [graph.row], none, none, none, [0], [0], [0], [40]),
                             torch.tensor([[2]]), [ids], none * 3, [5]),
        "sample_bulk": ([graph.colptr], [graph.row], [], [], [], [1], [0, 0, 0, 0, 1, 1, 0, 0, 0], [40], ids, [0, 9],
                        None, None, None, [], [2], [5]),
        "pick_neighbors": (*graph[:2], *none * 3, 0, 40, ids, [0, 9], [5], None, None, None, 0, 0, 2),
    }[operator]  # fmt: skip
    unknown = {
        "sample_neighbors": 1 << 8,
        "sample_bulk": 1 << 8,
        "pick_neighbors": sampled.LAYERS,
    }[operator]
    tail = ([], 1) if operator == "sample_bulk" else (1,)
    getattr(OPS, operator)(*arguments, sampled.REPLACE | sampled.WITH_EDGE_ID, *tail)
    with pytest.raises(RuntimeError, match=f"{operator}: expected options among .*, found {unknown | 1}"):
        getattr(OPS, operator)(*arguments, unknown | 1, *tail)


@pytest.mark.parametrize("dtype", INDEX)
def test_sample_negatives(dtype):
    ends = ops.candidates(20, torch.rand(20), random_ids(9, 20))
    edges = ops.edge_set(random_ids(20, 50, 1, dtype), random_ids(20, 50, 2, dtype), 20, 20)
    src = (random_ids(20, 8), 0, None, None, None)
    drawn = (None, ends.size, ends.node, ends.weight, ends.time)
    for sources in (src, drawn):
        check(OPS.sample_negatives.default, 8, *sources, *ends[1:], torch.full((8,), 9), *edges, 5, 0, tests=OF_VALUES)
    check(OPS.sample_negatives.default, 8, *src, 20, None, None, None, None, None, None, None, 5, 1, tests=OF_VALUES)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BY_NIGHT)
def test_aggregation(dtype):
    graph = random_graph(20, 4, seed=1)
    ptr, node, edge = graph.colptr, graph.row.to(dtype), torch.arange(len(graph.row), dtype=dtype)
    x, weight = torch.randn(20, 6), torch.randn(len(node), 2)
    check(OPS.aggregate.default, ptr, node, None, len(node), x, None, None, "max", 0)
    check(OPS.aggregate.default, ptr, node, edge, 5, x[:7].double(), x[7:].double(), weight.double(), "sum", 1)
    check(OPS.edge_dot.default, ptr, node, edge, x, x, 2, 0)
    scores = torch.randn(20, 2), torch.randn(20, 2), torch.randn(len(node), 2)
    check(OPS.edge_attention.default, ptr, node, *scores, 0.2, 0)
    check(OPS.edge_attention_backward.default, ptr, node, *scores, 0.2, weight, weight, 0)
    check(OPS.share_of_extremes.default, ptr, node, x, x, x, 0)
    check(OPS.extreme_backward.default, ptr, node, edge, 5, x, x, x, 0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BY_NIGHT)
def test_scores_and_orders(dtype):
    graph = random_graph(20, 4, seed=1)
    row, nodes = graph.row.to(dtype), torch.arange(20)
    check(OPS.reverse_pagerank.default, graph.colptr, row, nodes, 2, 5, 1 << 31, 0)
    check(OPS.count_ids.default, row, 20, 0)
    check(OPS.renumber.default, graph.colptr, row, None, nodes.flip(0), nodes.flip(0), True, 0)
    check(OPS.renumber.default, graph.colptr, row, row, nodes.flip(0), nodes.flip(0), False, 1)


def test_operators_without_tensors():
    check(OPS.random_bits.default, 5, 1, 0, 0, tests=OF_VALUES)
    check(OPS.permutation.default, 5, 1, tests=OF_VALUES)
    check(OPS.rmat_edges.default, 0, 5, 9, [30_000, 40_000, 50_000], 1, 0, tests=OF_VALUES)
    with open(__file__, "rb") as file:
        check(OPS.map_file.default, file.fileno(), 3, 50, False, tests=OF_VALUES)


@pytest.mark.slow
def test_exchanged_rows():
    ids, at = torch.tensor([3, 0]), torch.tensor([5, 0, 40])
    for rows in (torch.randn(4, 2), torch.arange(4, dtype=torch.int16), torch.randn(4, 0)):
        check(OPS.pack_rows.default, [rows, rows], [ids, ids], [3, 30], torch.zeros(60, dtype=torch.uint8), 0)
        check(OPS.join_rows.default, rows, torch.zeros(60, dtype=torch.uint8), at, torch.tensor([-3, 2, -1]), 0)
    check(OPS.pack_rows.default, [], [], [], torch.zeros(5, dtype=torch.uint8), 1)


@pytest.mark.slow
def test_rows_of_splits(device):
    rows, ids = torch.randn(4, 3, device=device), torch.tensor([3, 0], device=device)
    check(OPS.shuffle_rows.default, None, [rows, rows[1:]], ids // 3, ids // 2, None, 0)
    check(OPS.shuffle_rows.default, rows[:1], [rows.half().float()], None, ids, torch.tensor([0, 2], device=device), 1)
    check(OPS.dropout_rows.default, rows[:2], ids, 5, 1 << 31, 2.0, 0)
    check(OPS.dropout_rows.default, rows[:2].clone().requires_grad_(), ids, 5, 1 << 31, 2.0, 0)


@pytest.mark.slow
def test_pool():
    limit = ops.pool_stats().limit_bytes
    check(OPS.pool_stats.default, tests=EVERY_CHECK[:3])  # a trace keeps the figures of its moment
    check(OPS.pool_limit.default, limit)
    check(OPS.empty_bytes.default, 5, tests=OF_VALUES)
    check(OPS.pool_trim.default)
    with FakeTensorMode():
        assert ops.pool_stats() == (0, 0, 0, 0, 0)
        ops.pool_limit(5)
    assert ops.pool_stats().limit_bytes == limit


@pytest.mark.parametrize("with_edge_id", [False, True])
def test_fake_sample(with_edge_id):
    relations, arguments = sample_arguments(with_edge_id, not with_edge_id, with_edge_id)
    arguments = (OPS.hold_relations(*relations), *arguments)
    real = OPS.sample_neighbors.default(*arguments)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fake = OPS.sample_neighbors.default(*tree_map_only(torch.Tensor, mode.from_tensor, arguments))
    for ours, theirs in zip(fake, real, strict=True):
        assert (ours.dtype, ours.dim()) == (theirs.dtype, theirs.dim())
        for symbol, size in zip(ours.shape, theirs.shape, strict=True):
            assert isinstance(symbol, torch.SymInt) or symbol == size


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BY_NIGHT)
def test_partitioning(dtype):
    graph, group, weight = random_graph(20, 4, seed=1), random_ids(5, 20), torch.ones(20, 2, dtype=torch.int64)
    row, nodes = graph.row.to(dtype), torch.arange(20)
    sides = ([graph.colptr, graph.colptr], [row, row], [0, 0, 20] * 2)
    check(OPS.transpose.default, graph.colptr, row, 20, 0)
    check(OPS.contract.default, *sides, None, 20, 1 << 40, 0)
    check(OPS.contract.default, *sides, group, 5, 0, 1)
    check(OPS.propagate_labels.default, *sides, 20, None, nodes, weight, [5, 5], [1, 0], 2, 4, 1, 7, 0)
    check(OPS.propagate_labels.default, *sides, 20, group, nodes[:5], weight[:5, :0], [], [], 2, 4, 1, 7, 1)


@pytest.mark.parametrize("dtype", INDEX)
def test_cut_batch(dtype):
    node, colptr, row = torch.tensor([4, 7, 9]), torch.tensor([0, 2]), torch.tensor([1, 2])
    owner = torch.tensor([0, 1, 0], dtype=dtype)
    check(OPS.cut_batch.default, node, [1, 2], colptr, row, owner, 2, 0, tests=OF_VALUES)


OF_BULK = sampled.REPLACE | sampled.LAYERS | sampled.WITH_EDGE_ID | sampled.WITH_COL


@pytest.mark.parametrize("options", [0, OF_BULK, sampled.BIDIRECTIONAL | sampled.WITH_EDGE_ID])
def test_sample_bulk(options, device):
    graph = random_graph(50, 4, seed=1)
    given = [graph.colptr, graph.row, torch.arange(len(graph.row)), random_ids(50, 6)]
    colptr, row, edge_id, seeds = (tensor.to(device) for tensor in given)
    layout = [0, 0, 0, 0, 1, 1, int(options > 0), 0, 0]
    given = [
        [colptr],
        [row],
        [edge_id] if options else [],
        [],
        [],
        [1],
        layout,
        [50],
        seeds,
        [0, 2, 6],
        None,
        None,
        None,
    ]
    for rooms in ([], [1, 1]):
        check(OPS.sample_bulk.default, *given, [], [2, 40], [1, 2], options, rooms, 1, tests=OF_VALUES)


def test_sample_bulk_of_relations_with_everything(device):
    graph = random_graph(50, 4, seed=1)
    edges = len(graph.row)
    weight, time = ops.weight_sums(graph.colptr, torch.rand(edges)), torch.zeros(edges, dtype=torch.int64)
    pairs = torch.tensor([[int(graph.row[0])], [int((graph.colptr > 0).nonzero()[0]) - 1]])
    given = [
        graph.colptr,
        graph.row,
        torch.arange(edges),
        weight,
        time,
        random_ids(50, 6),
        torch.arange(6),
        pairs.view(-1),
    ]
    colptr, row, edge_id, weight, time, seeds, times, exclude = (tensor.to(device) for tensor in given)
    layout = [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0]
    options = OF_BULK | sampled.DISJOINT | sampled.LAST
    check(OPS.sample_bulk.default, [colptr] * 2, [row] * 2, [edge_id], [weight], [time], [1, 1], layout, [50], seeds,
          [0, 2, 6], times, times, exclude, [0, 1, 1, 1, 1], [2, 40, 3, -1], [1, 2], options, [], 1,
          tests=OF_VALUES)  # fmt: skip


@pytest.mark.parametrize("method", [0, 1, 2])
def test_sample_layers_bulk(method, device):
    graph = random_graph(50, 4, seed=1)
    scores = ops.node_scores(graph.relations()).to(device) if method == 1 else None
    given = [graph.colptr, graph.row, torch.arange(len(graph.row)), random_ids(50, 6)]
    colptr, row, edge_id, seeds = (tensor.to(device) for tensor in given)
    choices, options = [method, 4 if method == 2 else 0, 0, 0, 0], sampled.INCLUDE_DST
    for ids in ([], [edge_id]):
        check(OPS.sample_layers_bulk.default, colptr, [row], ids, [1], seeds, scores, [0, 2, 6], [2, 40], [1, 2],
              choices, options, 1, tests=OF_VALUES)  # fmt: skip


def test_every_operator_is_checked_here():
    checked = set(re.findall(r"OPS\.(\w+)", Path(__file__).read_text()))
    names = torch._C._dispatch_get_all_op_names()
    assert {name.removeprefix("gnnscale::") for name in names if name.startswith("gnnscale::")} <= checked
