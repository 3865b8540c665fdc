"""Graphs, seeds and options that bulks do not take."""

import re

import pytest
import torch
from helpers.graphs import random_graph

from torch_gnnscale import ops


def arguments_with(device, **changes):
    graph = random_graph(50, 4, seed=1)
    given = {"colptr": graph.colptr, "row": graph.row, "seeds": torch.arange(6), "seed_ptr": [0, 2, 6],
             "fanouts": [2, 2], "keys": [1, 2], **changes}  # fmt: skip
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in given.items()}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"colptr": torch.zeros(3)}, TypeError, "colptr: expected an int64 vector, found torch.float32"),
        ({"colptr": torch.zeros(0, dtype=torch.int64)}, TypeError, r"colptr: expected an int64 vector, found .*\(0,\)"),
        ({"colptr": None}, TypeError, "colptr: expected a tensor, found NoneType"),
        ({"row": torch.zeros(4)}, TypeError, "row: expected int32 or int64 ids, found torch.float32"),
        ({"row": []}, ValueError, "row: expected 1 to 4 parts, found 0"),
        ({"row": [torch.arange(4)] * 5}, ValueError, "row: expected 1 to 4 parts, found 5"),
        ({"row": [torch.arange(4), torch.arange(4).int()]}, TypeError,
         "row: expected parts of one dtype, found torch.int64 and torch.int32"),
        ({"row": [None]}, TypeError, "row: expected a tensor, found NoneType"),
        ({"row": torch.zeros(4, dtype=torch.int64), "edge_id": [torch.arange(3), torch.arange(1)]}, ValueError,
         "edge_id: expected 1 parts, as many as row has, found 2"),
        ({"spread": [2]}, ValueError, r"spread: expected 1 to 4 tiers of 1 row in all, found \[2\]"),
        ({"spread": [0, 1]}, ValueError, "spread: expected"),
        ({"spread": [1.0]}, TypeError, "spread: expected an int, found float"),
        ({"row": [torch.arange(4)] * 33, "spread": [33]}, ValueError, "row: expected 1 to 32, found 33"),
        ({"row": [torch.arange(3), torch.arange(4)], "spread": [2]}, ValueError,
         r"row: expected a tier of 7 rows interleaved as \[4, 3\], found \[3, 4\]"),
        ({"edge_id": torch.arange(3)}, ValueError, r"edge_id: expected one for each of \d+ edges, found 3"),
        ({"seeds": torch.zeros(6)}, TypeError, "seeds: expected int32 or int64 ids, found torch.float32"),
        ({"seeds": torch.tensor([0, 1, 2, 50, 4, 5])}, IndexError,
         r"seeds\[3\] = 50 is out of range: expected nodes in \[0, 50\)"),
        ({"seeds": torch.tensor([0, 1, -2, 50, 4, 5])}, IndexError, r"seeds\[2\] = -2 is out of range"),
        ({"seed_ptr": [0, 6]}, ValueError, "seed_ptr: expected 3 entries for 2 keys, found 2"),
        ({"seed_ptr": [0, 7, 6]}, ValueError, "seed_ptr: expected numbers that do not fall, from 0 to 6 seeds"),
        ({"seed_ptr": [1, 2, 6]}, ValueError, "seed_ptr: expected numbers that do not fall, from 0 to 6 seeds"),
        ({"seed_ptr": [0, 2, 5]}, ValueError, "seed_ptr: expected numbers that do not fall, from 0 to 6 seeds"),
        ({"seed_ptr": [0, 2.0, 6]}, TypeError, "seed_ptr: expected an int, found float"),
        ({"fanouts": [2, -2]}, ValueError, r"fanouts\[1\]: expected -1 \(all\) or 0..131072, found -2"),
        ({"fanouts": [1] * 65}, ValueError, "fanouts: expected at most 64 hops, found 65"),
        ({"keys": [1, 1 << 63]}, ValueError, "key: expected"),
        ({"threads": -1}, ValueError, "threads: expected"),
    ],
)  # fmt: skip
def test_bad_input(device, changes, error, message):
    with pytest.raises(error, match=message):
        ops.sample_bulk(**arguments_with(device, **changes))


@pytest.mark.parametrize("at", [0, 2, 8])
def test_seeds_of_several_batches_that_are_no_nodes_are_named(device, at):
    """The first and the last one of a bulk, too, of any type."""
    graph = random_graph(20, 3, seed=1)
    edges = ops.StoredEdges(graph.colptr.to(device), [graph.row.to(device)], None, None, None, [1], 0, 1)
    bulks = ops.PreparedBulks([edges], [20, 20], [2], torch.device(device))
    for node_type in range(2):
        given = [torch.arange(9), torch.arange(9)]
        given[node_type][at] = 20
        batches = [[ids.to(device) for ids in of_batch.split(3)] for of_batch in given]
        with pytest.raises(IndexError, match=rf"^seeds\[{at // 3}\]\[{node_type}\]\[{at % 3}\] = 20 is out of range"):
            bulks.sample_many(list(map(list, zip(*batches, strict=True))), [1, 2, 3])


def test_times_need_trees_and_have_one_entry_per_type(device):
    graph = random_graph(20, 3, seed=1)
    time = [torch.arange(len(graph.row), device=device)]
    edges = ops.StoredEdges(graph.colptr.to(device), [graph.row.to(device)], None, None, time, [1])
    with pytest.raises(ValueError, match=r"^time: expected disjoint=True, for each seed has a time of its own$"):
        ops.PreparedBulks([edges], [20], [2], torch.device(device))
    bulks, seeds = ops.PreparedBulks([edges], [20], [2], torch.device(device), disjoint=True), torch.arange(3)
    for name, given in (
        ("seed_time", {"seed_time": [[None] * 2]}),
        ("seed_start_time", {"seed_start_time": [[None] * 2]}),
    ):
        times = {"seed_time": [[seeds.to(device)]], **given}
        with pytest.raises(ValueError, match=f"^{name}: expected one entry for each of 1 node types, found 2$"):
            bulks.sample_many([[seeds.to(device)]], [1], **times)


def test_a_graph_that_lies_elsewhere():
    given = arguments_with("cpu")
    for name in ("colptr", "row"):
        with pytest.raises(ValueError, match=f"{name}: expected it on cpu, where the seeds are, found it on meta"):
            ops.sample_bulk(**{**given, name: given[name].to("meta")})


def test_a_malformed_graph(device):
    given = arguments_with(device, seeds=torch.arange(50), seed_ptr=[0, 20, 50])
    for entry in (-1, 10**9):
        row = given["row"].clone()
        row[:] = entry
        with pytest.raises(RuntimeError, match=rf"the graph is malformed: row\[\d+\] = {entry} in a graph of 50 nodes"):
            ops.sample_bulk(**{**given, "row": row})
    colptr = given["colptr"].clone()
    colptr[3] = 10**9
    found = f"colptr[2] = {int(colptr[2])}, colptr[3] = 1000000000 with {len(given['row'])} edges"
    with pytest.raises(RuntimeError, match=re.escape(f"the graph is malformed: {found}")):
        ops.sample_bulk(**{**given, "colptr": colptr})


@pytest.mark.parametrize("subgraph", ["directional", "induced"])
def test_a_malformed_relation(subgraph, device):
    """Relations are sorted by the type of their sources; the error has the user's number."""
    graph = random_graph(20, 3, seed=1)
    edges = [ops.StoredEdges(graph.colptr.to(device), [graph.row.to(device)], None, None, None, [1], s, 0)
             for s in (2, 1, 0)]  # fmt: skip
    row = edges[1].row[0].clone()
    row[:] = 77
    wrong = [edges[0], edges[1]._replace(row=[row]), edges[2]]
    bulks = ops.PreparedBulks(wrong, [20] * 3, [-1], torch.device(device), subgraph=subgraph)
    seeds = [torch.arange(20), torch.arange(0), torch.arange(0)]
    with pytest.raises(RuntimeError, match=r"malformed: row\[0\] = 77 in a graph of 20 nodes, of relation 1"):
        bulks.sample_many([seeds], [1])


def test_more_batches_than_a_call_can_draw_are_drawn_in_halves():
    def draw(seeds, keys):
        if len(keys) > 2:
            raise RuntimeError(f"too many at once: {len(keys)} batches")
        return [*seeds]

    message = r"^bulk: 3 batches are drawn as 1 and 2, for one call draws no more: too many at once: 3 batches$"
    with pytest.warns(UserWarning, match=message):
        assert ops.in_halves(draw, [4, 5, 6], [1, 2, 3]) == [4, 5, 6]
    with pytest.raises(RuntimeError, match=r"^other$"):
        ops.in_halves(lambda seeds, keys: (_ for _ in ()).throw(RuntimeError("other")), [4, 5], [1, 2])


def test_the_most_batches_of_a_bulk(monkeypatch):
    monkeypatch.setattr("torch_gnnscale.ops.bulk_input.MAX_BATCHES", 3)
    graph, seeds = random_graph(50, 4, seed=1), torch.arange(4)
    assert len(ops.sample_bulk(graph.colptr, graph.row, seeds[:3], range(4), [2], range(3))) == 3
    with pytest.raises(ValueError, match=r"^keys: expected at most 3 batches, found 4$"):
        ops.sample_bulk(graph.colptr, graph.row, seeds, range(5), [2], range(4))


def test_subgraphs_that_bulks_do_not_have():
    edges = [ops.StoredEdges(torch.tensor([0, 1]), [torch.tensor([0])], None, None, None, [1])]
    with pytest.raises(ValueError, match=r"^reverse\[0\]: expected a relation from type 1 to 0$"):
        ops.PreparedBulks([edges[0]._replace(dst_type=1, reverse=0)], [1, 1], [2], torch.device("cpu"))
    with pytest.raises(
        ValueError, match=r"^layers: expected subgraph='directional', whose hops have edges, found 'ind"
    ):
        ops.PreparedBulks(edges, [1], [2], torch.device("cpu"), layers=True, subgraph="induced")


SIX = torch.tensor([0, 1, 1, 2, 2, 0])
EDGES = ops.StoredEdges(torch.tensor([0, 2, 4, 6]), [SIX], None, None, None, [1])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"colptr": torch.zeros(4)}, TypeError, "colptr: expected an int64 vector, found torch.float32"),
        ({"colptr": torch.zeros(3, dtype=torch.int64)}, ValueError, r"colptr: expected shape \(4,\), found \(3,\)"),
        ({"colptr": torch.zeros(4, 2, dtype=torch.int64)[:, 0]}, ValueError, "colptr: expected a contiguous vector"),
        ({"src_type": 1}, ValueError, "src_type: expected 0 <= src_type <= 0, found 1"),
        ({"dst_type": -1}, ValueError, "dst_type: expected 0 <= dst_type <= 0, found -1"),
        ({"row": [SIX.float()]}, TypeError, "row: expected int32 or int64 ids, found torch.float32"),
        ({"row": [SIX.view(2, 3)]}, ValueError, r"row: expected a vector, found shape \(2, 3\)"),
        ({"spread": []}, ValueError, r"spread: expected 1 to 4 tiers of 1 row in all, found \[\]"),
        ({"edge_id": [SIX[:3]]}, ValueError, "edge_id: expected one for each of 6 edges, found 3"),
        ({"edge_id": [SIX[:3], SIX[3:]]}, ValueError, "edge_id: expected 1 parts, as many as row has, found 2"),
        ({"weight": [SIX[:3]]}, ValueError, "weight: expected one for each of 6 edges, found 3"),
        ({"weight": [SIX.int()]}, TypeError, "weight: expected an int64 vector, found torch.int32"),
        ({"time": [SIX.float()]}, TypeError, "time: expected an int64 vector, found torch.float32"),
        ({"time": [SIX, SIX[:0]]}, ValueError, "time: expected 1 parts, as many as row has, found 2"),
    ],
)
def test_edges_that_bulks_do_not_take(changes, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        ops.PreparedBulks([EDGES._replace(**changes)], [3], [2], torch.device("cpu"), disjoint=True)


def test_graphs_and_options_that_bulks_do_not_take():
    with pytest.raises(ValueError, match=r"^sizes: expected at least one node type, found none$"):
        ops.PreparedBulks([], [], [2], torch.device("cpu"))
    with pytest.raises(ValueError, match=r"^edges: expected at most 1024 relations, found 1025$"):
        ops.PreparedBulks([EDGES] * 1025, [3], [2], torch.device("cpu"))
    with pytest.raises(ValueError, match=r"^subgraph: expected one of \('directional', .*, found 'whole'$"):
        ops.PreparedBulks([EDGES], [3], [2], torch.device("cpu"), subgraph="whole")


def test_numbers_of_batches(monkeypatch):
    bulks = ops.PreparedBulks([EDGES], [3], [2], torch.device("cpu"), disjoint=True)
    assert bulks.sample_many([], []) == []
    seeds = [[torch.tensor([0, 1])]] * 2
    for changed in ({"keys": [1]}, {"keys": [1, 2, 3]}, {"keys": [1, 2], "exclude": [None]}):
        name, given = changed.popitem()
        message = f"^{name}: expected one entry for each of 2 batches, found {len(given)}$"
        with pytest.raises(ValueError, match=message):
            bulks.sample_many(seeds, **{"keys": [1, 2], **changed, name: given})
    monkeypatch.setattr("torch_gnnscale.ops.bulk.MAX_BATCHES", 3)
    with pytest.raises(ValueError, match=r"^seeds: expected at most 3 seeds of disjoint trees at once, found 4$"):
        bulks.sample_many(seeds, [1, 2])
    bulks = ops.PreparedBulks([EDGES], [3], [2], torch.device("cpu"))
    assert len(bulks.sample_many(seeds, [1, 2])) == 2
    with pytest.raises(ValueError, match=r"^seeds: expected at most 3 batches at once, found 4$"):
        bulks.sample_many(seeds * 2, [1, 2, 3, 4])


def test_no_layer_wise_batches():
    bulks = ops.PreparedLayerBulks(
        EDGES.colptr, EDGES.row, None, [1], [2], ops.LayerDrawing("ladies"), torch.device("cpu"),
        score=None, layers=False, include_dst=True,
    )  # fmt: skip
    assert bulks.sample_many([], []) == []
