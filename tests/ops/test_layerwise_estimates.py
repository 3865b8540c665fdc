"""Layer-wise samples estimate what their formulas say: expectations of weights, probabilities of nodes."""

import math

import pytest
import reference
import torch
from helpers.graphs import Graph, assert_same
from helpers.slow import NIGHTLY

from torch_gnnscale import ops
from torch_gnnscale.ops.layer_drawing import AGGREGATIONS, SCHEMES, SCHEMES_OF, SCORES

SCHEMES_WITHOUT_BIAS = {method: [s for s in schemes if s != "successive"] for method, schemes in SCHEMES_OF.items()}
CASES = {
    method: [(name, False) for name in AGGREGATIONS] + ([("mean", True)] if method != "labor" else [])
    for method in SCHEMES_OF
}
"""(aggregation, keep_known) by method."""
UNBIASED = [
    *((method, scheme, CASES[method], 1_000) for method, schemes in SCHEMES_WITHOUT_BIAS.items() for scheme in schemes),
    *(NIGHTLY(method, SCHEMES_OF[method][0], [case], 50_000) for method, cases in CASES.items() for case in cases),
]
"""(method, scheme, cases, number of keys)."""


def simple_graph(num_nodes=14, seed=0):
    """Three of four pairs of nodes are edges, none twice, so that hubs and small rows have common sources."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.linspace(0.2, 1, num_nodes)
    dst, src = (torch.rand(num_nodes, num_nodes, generator=generator) < share[:, None]).nonzero().t()
    degree = torch.bincount(dst, minlength=num_nodes)
    return Graph(torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)]), src)


def moments(graph, seeds, keys, drawing, score, size=2_000):
    """Means, over one sample per key, of each stored edge's weight and its square; a sample is a hop of 3 nodes (LABOR:
    3 neighbors)."""
    prepared = ops.PreparedLayers(graph.relations(), [3], drawing, score=score)
    sums = torch.zeros(2, len(graph.row), dtype=torch.float64)
    for first in range(0, keys, size):
        of_bulk = range(first, min(first + size, keys))
        found = prepared.sample_many([seeds] * len(of_bulk), of_bulk, threads=1)
        edge = torch.cat([sample.edge_id[0] for sample in found])
        weight = torch.cat([sample.edge_weight[0] for sample in found]).double()
        sums += torch.stack([torch.bincount(edge, w, len(graph.row)) for w in (weight, weight.square())])
    return sums / keys


@pytest.mark.slow
@pytest.mark.parametrize(("method", "scheme", "cases", "keys"), UNBIASED)
def test_unbiased_weights_have_the_terms_of_the_aggregation_as_expectations(method, scheme, cases, keys):
    graph, seeds = simple_graph(), torch.tensor([1, 4, 9, 13])
    degree = graph.colptr.diff().double()
    into = torch.arange(graph.num_nodes).repeat_interleave(graph.colptr.diff())
    asked = torch.isin(into, seeds)
    terms = {"mean": 1 / degree[into], "sum": torch.ones(len(into), dtype=torch.float64)}
    terms["gcn"] = 1 / (degree[into] * degree[graph.row]).sqrt()
    relations = graph.relations()
    score = ops.node_scores(relations) if method == "fastgcn" else None
    for aggregation, keep_known in cases:
        drawing = ops.LayerDrawing(method, scheme, aggregation=aggregation, weights="unbiased", keep_known=keep_known)
        means, squares = moments(graph, seeds, keys, drawing, score)
        deviation = (squares - means.square()).clamp(min=0).sqrt()
        assert (means[~asked] == 0).all()
        bound = 4.5 * deviation / math.sqrt(keys) + 1e-6
        assert ((means - terms[aggregation]).abs() <= bound)[asked].all()


def of_priority(scores, count, steps=4_000):
    """The probability of each candidate: the integral over r_v of the probability that fewer than ``count`` others have
    a smaller r / q."""
    found = []
    for place, own in enumerate(scores):
        r = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
        smaller = torch.zeros(count, steps, dtype=torch.float64)  # [m]: that m others are smaller
        smaller[0] = 1
        for other in scores[:place] + scores[place + 1 :]:
            share = (r * other / own).clamp(max=1)
            smaller = smaller * (1 - share) + torch.cat([torch.zeros(1, steps), smaller[:-1]]) * share
        found.append(float(smaller.sum(0).mean()))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_priority_takes_nodes_with_the_probabilities_of_the_integral(count):
    scores, keys = [1, 1, 2, 5, 8, 30], 5_000
    expected = of_priority(scores, count)
    assert abs(float(expected.sum()) - count) < 1e-4
    node, score, often = torch.arange(6), torch.tensor(scores), torch.zeros(6, dtype=torch.float64)
    for key in range(keys):
        often[ops.choose_nodes(node, score, count, "priority", key, 0)[0]] += 1
    assert ((often / keys - expected).abs() < 4.5 * (expected * (1 - expected) / keys).sqrt() + 1e-4).all()


@pytest.mark.slow
def test_poisson_takes_nodes_independently():
    scores, keys = torch.tensor([1, 2, 2, 3, 4, 6, 9]), 4_000
    share = 3 * scores / scores.sum()
    assert float(share.max()) <= 1
    drawn = torch.zeros(keys, len(scores), dtype=torch.float64)
    for key in range(keys):
        drawn[key, ops.choose_nodes(torch.arange(7), scores, 3, "poisson", key, 0)[0]] = 1
    both = drawn.t() @ drawn / keys
    expected = share[:, None] * share.double()
    expected.diagonal().copy_(share)
    assert ((both - expected).abs() < 4.5 * (expected * (1 - expected) / keys).sqrt() + 1e-12).all()


@pytest.mark.slow
def test_sequential_labor_takes_each_neighbor_equally_often():
    graph, keys, fanout = simple_graph(), 2_000, 4
    prepared = ops.PreparedLayers(graph.relations(), [fanout], ops.LayerDrawing("labor", "sequential"))
    often = torch.zeros(len(graph.row), dtype=torch.float64)
    for key in range(keys):
        often[prepared.sample(torch.arange(graph.num_nodes), key).edge_id[0]] += 1
    degree = graph.colptr.diff()
    share = (fanout / degree.double()).clamp(max=1).repeat_interleave(degree)
    assert ((often / keys - share).abs() <= 4.5 * (share * (1 - share) / keys).sqrt()).all()


@pytest.mark.parametrize("scheme", SCHEMES[:4])
def test_samples_by_scores_near_2_62_equal_the_twin(scheme):
    graph = simple_graph(40)
    relations, seeds = graph.relations(), torch.tensor([0, 7, 7, 31])
    even = torch.full((40,), (1 << 62) // 40 - 1)
    uneven = torch.ones(40, dtype=torch.int64)
    uneven[graph.row[0]] = (1 << 62) - 40
    for score in (even, uneven):
        assert sum(score.tolist()) < 1 << 62
        for keep_known in (False, True):
            drawing = ops.LayerDrawing("fastgcn", scheme, weights="unbiased", keep_known=keep_known)
            arguments = relations, seeds, [5, 30, 39], -9, drawing
            found = ops.sample_layers(*arguments, score=score, layers=True)
            assert_same(found, reference.sample_layers(*arguments, score=score, layers=True))
            assert found.num_edges[0][0] > 0


@pytest.mark.parametrize("method", SCHEMES_OF)
def test_empty_frontiers_and_all_nodes(method):
    """Hops that draw 0, or follow one that did; -1 is all stored edges."""
    graph, seeds = simple_graph(), torch.tensor([3, 8])
    relations, names = graph.relations(), torch.arange(len(graph.row))
    into = torch.arange(graph.num_nodes).repeat_interleave(graph.colptr.diff())
    for scheme in SCHEMES_OF[method]:
        for scores in SCORES if method != "labor" else SCORES[:1]:
            drawing = ops.LayerDrawing(method, scheme, scores)
            score = ops.node_scores(relations, scores) if method == "fastgcn" else None
            none = ops.sample_layers(relations, seeds, [0, 4], 1, drawing, score=score)
            assert none.num_edges == [[0, 0]]
            assert none.node[0].tolist() == [3, 8]
            every = ops.sample_layers(relations, seeds, [-1], 1, drawing, score=score)
            assert torch.equal(every.edge_id[0].sort().values, names[torch.isin(into, seeds)])
            assert torch.allclose(every.edge_weight[0], 1 / graph.colptr.diff()[into[every.edge_id[0]]])
