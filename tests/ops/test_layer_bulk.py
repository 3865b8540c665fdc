"""Layer-wise batches that are sampled many at a time equal those that are sampled one by one, bit for bit."""

import re
from itertools import accumulate

import pytest
import reference
import torch
from helpers.gpu_cases import check_random_choice, check_random_layers
from helpers.graphs import Graph, assert_same, graph_of_degrees, random_graph, random_ids, with_tensors
from helpers.slow import SLOW
from torch import Tensor

from torch_gnnscale import ops
from torch_gnnscale.ops.layer_drawing import METHODS, SCHEMES_OF, SCORES

LADIES = ops.LayerDrawing()


def bulk(graph: Graph, batches: list[Tensor], num_nodes, drawing=LADIES, device="cpu", **options) -> list[ops.Sample]:
    """Batches with the keys 5, 6, ..., in host memory."""
    ends = [0, *torch.tensor([len(batch) for batch in batches], dtype=torch.int64).cumsum(0).tolist()]
    colptr, row, edge_id = (None if tensor is None else tensor.to(device) for tensor in graph)
    if drawing.method == "fastgcn":
        options["score"] = ops.node_scores(graph.relations(), drawing.scores).to(device)
    keys = [5 + b for b in range(len(batches))]
    seeds = torch.cat([torch.empty(0, dtype=torch.int64), *batches]).to(device)
    found = ops.sample_layers_bulk(colptr, row, seeds, ends, num_nodes, keys, drawing, edge_id=edge_id, **options)
    for sample in found:
        assert sample.edge_weight[0].device.type == sample.node[0].device.type == torch.device(device).type
    return [with_tensors(sample, Tensor.cpu) for sample in found]


def check(graph: Graph, batches: list[Tensor], num_nodes, drawing=LADIES, device="cpu", **options) -> None:
    relations = graph.relations()
    score = ops.node_scores(relations, drawing.scores) if drawing.method == "fastgcn" else None
    found = bulk(graph, batches, num_nodes, drawing, device, **options)
    for key, (sample, seeds) in enumerate(zip(found, batches, strict=True), start=5):
        one = ops.sample_layers(relations, seeds, num_nodes, key, drawing, score=score, **options)
        assert_same(sample, one)


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_batches(first, device):
    for seed in range(first, first + 20):
        check_random_layers(seed, lambda tensor, _: tensor.to(device), most=400)
        check_random_choice(seed, lambda tensor, _: tensor.to(device))


@pytest.mark.parametrize("method", METHODS)
def test_hubs_and_repeated_seeds(method, device):
    graph = graph_of_degrees([900, 0, 300, *[7] * 120, *[1] * 80], seed=3, dtype=torch.int32)
    batches = [torch.tensor([0, 2, 5, 0, 1]), random_ids(203, 60), torch.tensor([], dtype=torch.int64)]
    for scheme in SCHEMES_OF[method]:
        for scores in SCORES if method != "labor" else SCORES[:1]:
            drawing = ops.LayerDrawing(method, scheme, scores, aggregation="gcn", keep_known=method != "labor")
            for num_nodes in ([30, 40], [1, 150], [0, 5], [-1, 3], [199, 2]):
                check(graph, batches, num_nodes, drawing, device)


def test_ties_between_equal_scores_and_draws_are_settled(device):
    """All edges of each column have one source, so LABOR's draws are equal; stored order decides."""
    degree, nodes = 70, 6
    colptr = torch.arange(nodes + 1) * degree
    graph = Graph(colptr, torch.arange(nodes).repeat_interleave(degree))
    check(graph, [torch.arange(nodes)], [3, 40], ops.LayerDrawing("labor", "sequential"), device)
    check(graph, [torch.arange(nodes), torch.tensor([3, 3])], [2], LADIES, device)


def test_one_batch_on_its_own_device(device):
    """sample_layers with seeds there."""
    graph = random_graph(60, 6, seed=2)
    there = ops.relations([graph.colptr.to(device)], [graph.row.to(device)])
    sample = ops.sample_layers(there, random_ids(60, 9).to(device), [8, 8], 5, LADIES)
    here = with_tensors(sample, Tensor.cpu)
    assert_same(here, ops.sample_layers(graph.relations(), random_ids(60, 9), [8, 8], 5, LADIES))
    assert torch.equal(ops.node_scores(there).cpu(), ops.node_scores(graph.relations()))


def test_no_batch_and_no_hop(device):
    graph = random_graph(20, 4, seed=1)
    assert bulk(graph, [], [3], device=device) == []
    check(graph, [torch.tensor([4, 4])], [], device=device)
    check(Graph(torch.zeros(4, dtype=torch.int64), graph.row[:0]), [torch.tensor([1, 1, 2])], [3, 2], device=device)


def test_what_is_refused(device):
    graph, seeds = random_graph(20, 4, seed=1), torch.tensor([3, 20])
    with pytest.raises(IndexError, match=r"^seeds\[1\] = 20 is out of range: expected nodes in \[0, 20\)$"):
        bulk(graph, [seeds], [3], device=device)
    with pytest.raises(ValueError, match=r"^num_nodes\[0\]: expected -1 <= num_nodes\[0\] <= 2147483647, found -2$"):
        bulk(graph, [seeds[:1]], [-2], device=device)
    with pytest.raises(ValueError, match=r"^score: expected it only for method='fastgcn', found method='ladies'$"):
        bulk(graph, [seeds[:1]], [2], device=device, score=torch.ones(20, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^include_dst=False: expected layers=True, found False$"):
        bulk(graph, [seeds[:1]], [2], device=device, include_dst=False)


@pytest.mark.parametrize("method", METHODS)
def test_malformed_graphs(method, device):
    graph = graph_of_degrees([3, 4, 5], seed=1)
    drawing = ops.LayerDrawing(method, SCHEMES_OF[method][0])
    wrong = graph.row.clone()
    wrong[5] = 3
    given = [torch.tensor([0, 1])]
    score = {"score": torch.ones(3, dtype=torch.int64).to(device)} if method == "fastgcn" else {}
    with pytest.raises(RuntimeError, match=re.escape("the graph is malformed: row[5] = 3 in a graph of 3 nodes")):
        ops.sample_layers_bulk(graph.colptr.to(device), wrong.to(device), given[0].to(device), [0, 2], [3], [1],
                               drawing, **score)  # fmt: skip
    message = "the graph is malformed: colptr[1] = 3, colptr[2] = 99 with 12 edges"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        ops.sample_layers_bulk(torch.tensor([0, 3, 99, 12]).to(device), graph.row.to(device), given[0].to(device),
                               [0, 2], [3], [1], drawing, **score)  # fmt: skip


@pytest.mark.parametrize("end", [1, -1, 99])
def test_a_weight_that_depends_on_a_malformed_column(end, device):
    """The weight of an edge is computed from its source's column pointers, though no hop reads that column."""
    colptr, row = torch.tensor([0, 2, end, 4]).to(device), torch.tensor([1, 2, 0, 0]).to(device)
    drawing = ops.LayerDrawing(aggregation="gcn")
    message = f"the graph is malformed: colptr[1] = 2, colptr[2] = {end} with 4 edges"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        ops.sample_layers_bulk(colptr, row, torch.tensor([0]).to(device), [0, 1], [2], [1], drawing)


def peak_of_a_hop(drawing, num_nodes, nodes=3000) -> int:
    """The most bytes that torch is asked for at once, outputs included, by a hop from 500 nodes with 40 edges each."""
    graph, options = graph_of_degrees([40] * nodes, seed=1, dtype=torch.int32), {}
    if drawing.method == "fastgcn":
        options["score"] = ops.node_scores(graph.relations(), drawing.scores)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        ops.sample_layers_bulk(
            graph.colptr, graph.row, torch.arange(500), [0, 500], [num_nodes], [5], drawing, **options
        )
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


@pytest.mark.parametrize(("method", "num_nodes", "least", "most"), [("ladies", 64, 64, 96), ("labor", 5, 12, 24)])
def test_scratch_memory_per_scanned_edge(method, num_nodes, least, most):
    """On a GPU the same, and CUB's own scratch memory."""
    for scheme in SCHEMES_OF[method]:
        drawing = ops.LayerDrawing(method, scheme, keep_known=method == "ladies")
        assert least < peak_of_a_hop(drawing, num_nodes) / (40 * 500) <= most


@pytest.mark.parametrize(
    ("scheme", "each"), [("priority", 36), ("poisson", 40), ("replace", 56), ("successive", 56 + 8 / 31)]
)
def test_scratch_memory_of_fastgcn_per_node(scheme, each):
    """What 9000 nodes more take, with as many scanned edges."""
    drawing = ops.LayerDrawing("fastgcn", scheme)
    few, many = (peak_of_a_hop(drawing, 5, nodes) for nodes in (3000, 12_000))
    assert abs(many - few - each * 9000) <= 8


@pytest.mark.parametrize("candidates", [1, 2, 31, 32, 33, 1024, 1025, SLOW(32_769)])
@pytest.mark.parametrize("scheme", ["replace", "successive"])
def test_numbered_draws_among_any_number_of_candidates(scheme, candidates, device):
    """Each finds its candidate in a tree whose nodes have 32 children, of one to four levels, full ones and others."""
    generator = torch.Generator().manual_seed(candidates)
    node = torch.randperm(2 * candidates, generator=generator)[:candidates]
    score = torch.randint(1, 1000, (candidates,), generator=generator)
    count, key = max(1, min(candidates - 1, 50)), 7
    at, correction = ops.choose_nodes(node.to(device), score.to(device), count, scheme, key, 2)
    scores = dict(zip(node.tolist(), score.tolist(), strict=True))
    expected = {v: entry.rounded for v, entry in reference.choose_nodes(scores, count, scheme, key, 2).items()}
    assert dict(zip(node[at.cpu()].tolist(), correction.tolist(), strict=True)) == expected


def test_the_twin_of_a_bulk(device):
    """Not only the operator, which has the same functions."""
    graph = random_graph(40, 5, seed=7)
    (sample,) = bulk(graph, [torch.arange(9)], [6, 6], LADIES, device, layers=True, include_dst=False)
    twin = reference.sample_layers(
        graph.relations(), torch.arange(9), [6, 6], 5, LADIES, layers=True, include_dst=False
    )
    assert_same(sample, twin)
