"""Graphs, seeds, edges and options that layer-wise sampling refuses."""

import re

import pytest
import torch
from helpers.graphs import Graph, graph_of_degrees
from helpers.layers import BATCH, FIGURE, both

from torch_gnnscale import ops
from torch_gnnscale.ops.graph_arguments import MAX_HOPS
from torch_gnnscale.ops.layer_drawing import MAX_DRAWN, METHODS, SCHEMES, SCHEMES_OF

INDEX = [torch.int32, torch.int64]
LADIES = ops.LayerDrawing()


def test_bad_input_of_chosen_edges():
    source, degree = torch.arange(6), torch.tensor([2, 0, 4])
    good = (source, degree, [0, 1, 3], [1, 2], 0, 2)
    assert ops.choose_edges(*good, "poisson")[0].dtype == torch.int64
    for at, wrong, text in (
        (1, degree[:2], "degree: expected a sum of 6, the number of sources, found 2"),
        (1, torch.tensor([3, -1, 4]), "degree: expected numbers of at least 0, found -1"),
        (2, [0, 1, 2], "column_ptr: expected 3 numbers that do not fall, from 0 to 3 destinations, found [0, 1, 2]"),
        (2, [0, 4, 3], "column_ptr: expected 3 numbers that do not fall, from 0 to 3 destinations, found [0, 4, 3]"),
        (2, [1, 1, 3], "column_ptr: expected 3 numbers that do not fall, from 0 to 3 destinations, found [1, 1, 3]"),
        (3, [1], "column_ptr: expected 2 numbers that do not fall, from 0 to 3 destinations, found [0, 1, 3]"),
        (4, MAX_HOPS, f"hop: expected 0 <= hop <= {MAX_HOPS - 1}, found {MAX_HOPS}"),
        (5, -2, f"fanout: expected -1 <= fanout <= {MAX_DRAWN - 1}, found -2"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            ops.choose_edges(*good[:at], wrong, *good[at + 1 :])
    with pytest.raises(ValueError, match=r"^scheme: expected one of \('sequential', 'poisson'\), found 'priority'$"):
        ops.choose_edges(*good, "priority")


@pytest.mark.parametrize(
    ("drawing", "options", "message"),
    [
        ({"method": "sage"}, {}, f"method: expected one of {METHODS}, found 'sage'"),
        ({"scheme": "sequential"}, {}, f"scheme: expected one of {SCHEMES[:4]} of method='ladies', found 'sequential'"),
        ({"scores": "cubes"}, {}, "scores: expected one of ('squares', 'counts'), found 'cubes'"),
        ({"aggregation": "max"}, {}, "aggregation: expected one of ('mean', 'sum', 'gcn'), found 'max'"),
        ({"weights": "none"}, {}, "weights: expected one of ('self_normalized', 'unbiased'), found 'none'"),
        ({"method": "labor", "scheme": "poisson", "keep_known": True}, {},
         "keep_known=True: expected method='ladies' or 'fastgcn', found 'labor'"),
        ({"layer_dependency": True}, {}, "layer_dependency=True: expected method='labor', found 'ladies'"),
        ({}, {"include_dst": False}, "include_dst=False: expected layers=True, found False"),
        ({"keep_known": True}, {"include_dst": False, "layers": True},
         "include_dst=False: expected keep_known=False, found True"),
        ({"method": "fastgcn"}, {}, "score: expected it only for method='fastgcn', found method='fastgcn'"),
        ({}, {"num_nodes": [1, -2]}, "num_nodes[1]: expected -1 <= num_nodes[1] <= 2147483647, found -2"),
        ({}, {"num_nodes": [MAX_DRAWN]}, "num_nodes[0]: expected -1 <= num_nodes[0] <= 2147483647, found 2147483648"),
        ({}, {"num_nodes": [1] * 65}, "num_nodes: expected at most 64 hops, found 65"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(drawing, options, message):
    num_nodes = options.pop("num_nodes", [2])
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ops.sample_layers(FIGURE.relations(), BATCH, num_nodes, 1, LADIES._replace(**drawing), **options)


def test_graphs_that_are_refused():
    graph = FIGURE.relations()
    text = r"^graph: expected edges without weights and times, found some$"
    for field in ("weight", "time"):
        with pytest.raises(ValueError, match=text):
            ops.sample_layers(graph._replace(**{field: [torch.arange(5)]}), BATCH, [2], 1, LADIES)
    text = r"^graph: expected one relation of one node type, found 1 relations of 2 node types$"
    with pytest.raises(ValueError, match=text):
        ops.sample_layers(graph._replace(sizes=[6, 6]), BATCH, [2], 1, LADIES)
    for wrong, error, message in (
        (torch.ones(5, dtype=torch.int64), ValueError, r"score: expected shape \(6,\), found \(5,\)"),
        (torch.ones(6), TypeError, "score: expected an int64 vector, found torch.float32"),
    ):
        with pytest.raises(error, match=f"^{message}$"):
            ops.sample_layers(graph, BATCH, [2], 1, ops.LayerDrawing("fastgcn"), score=wrong)


def test_seeds_and_graphs_that_are_malformed():
    with pytest.raises(IndexError, match=r"^seeds\[1\] = 6 is out of range: expected nodes in \[0, 6\)"):
        ops.sample_layers(FIGURE.relations(), torch.tensor([1, 6]), [2], 1, LADIES)
    with pytest.raises(TypeError, match=r"num_nodes: expected a list of ints, found dict"):
        ops.sample_layers(FIGURE.relations(), BATCH, {}, 1, LADIES)
    corrupt = Graph(FIGURE.colptr, FIGURE.row.clone())
    corrupt.row[1] = 6
    for method in METHODS:
        drawing = ops.LayerDrawing(method, SCHEMES_OF[method][0])
        score = torch.ones(6, dtype=torch.int64) if method == "fastgcn" else None
        with pytest.raises(RuntimeError, match=r"row\[1\] = 6 in a graph of 6 nodes"):
            ops.sample_layers(corrupt.relations(), BATCH, [2], 1, drawing, score=score)
        both(FIGURE, BATCH, [2, 2], 1, drawing)  # nothing is left behind
    for dtype in INDEX:
        sifted = graph_of_degrees([20, 20], dtype=dtype)
        for entry in (2, -1, 1 << 30, *((1 << 32,) if dtype == torch.int64 else ())):  # the low word of 2^32 is 0
            sifted.row[25] = entry
            with pytest.raises(RuntimeError, match=rf"row\[25\] = {entry} in a graph of 2 nodes"):
                ops.sample_layers(sifted.relations(), torch.arange(2), [1], 1, LADIES)
    pointers = Graph(torch.tensor([0, 0, 9, 3, 3, 3, 5]), FIGURE.row)
    with pytest.raises(RuntimeError, match=r"colptr\[1\] = 0, colptr\[2\] = 9 with 5 edges"):
        ops.sample_layers(pointers.relations(), BATCH, [2], 1, LADIES)
    with pytest.raises(ValueError, match=r"^score: expected positive numbers, found 0"):
        ops.choose_nodes(BATCH, torch.tensor([1, 0]), 1, "priority", 1, 0)
    with pytest.raises(ValueError, match=r"^scheme: expected one of .*, found 'sequential'"):
        ops.choose_nodes(BATCH, BATCH, 1, "sequential", 1, 0)
