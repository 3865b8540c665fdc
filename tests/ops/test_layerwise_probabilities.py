"""How probable layer-wise draws are, and what corrects their weights."""

import math
from collections import Counter
from fractions import Fraction
from itertools import permutations, product

import pytest
import torch
from helpers.chi_square import chi_square_p
from helpers.graphs import Graph, graph_of_degrees
from helpers.layers import BATCH, FIGURE, both, scores_of
from reference import layerwise as twin

from torch_gnnscale import ops
from torch_gnnscale.ops.layer_drawing import SCHEMES_OF

LADIES = ops.LayerDrawing()


# The papers' example #################################################################################################


def test_probabilities_of_figure_1():
    def shares(scores):
        found = scores_of(FIGURE, BATCH, scores)
        return [Fraction(found.get(node, 0), sum(found.values())) for node in range(6)]

    assert shares("counts") == [Fraction(1, 7), 0, Fraction(1, 7), Fraction(1, 7), Fraction(4, 7), 0]
    exact = [Fraction(2, 15), 0, Fraction(2, 15), Fraction(3, 10), Fraction(13, 30), 0]
    assert all(abs(found - share) < Fraction(1, 1 << 39) for found, share in zip(shares("squares"), exact, strict=True))


def outcomes(scores, count, scheme):
    """The probability of each sequence of ``count`` draws: all of those that there are."""
    orders = product(scores, repeat=count) if scheme == "replace" else permutations(scores, count)
    for order in orders:
        probability, left = Fraction(1), sum(scores.values())
        for node in order:
            probability *= Fraction(scores[node], left)
            left -= scores[node] if scheme == "successive" else 0
        yield order, probability


def inclusion(scores, count):
    """The probability with which each candidate is among ``count`` successive draws, by enumeration."""
    found = dict.fromkeys(scores, Fraction(0))
    for order, probability in outcomes(scores, count, "successive"):
        for node in order:
            found[node] += probability
    return found


def frequencies(scores, count, scheme, keys):
    """(how often each candidate is drawn, the sum of its corrections) over ``keys``."""
    node, score = torch.tensor(list(scores)), torch.tensor(list(scores.values()))
    found = zip(*(ops.choose_nodes(node, score, count, scheme, key, 0) for key in keys), strict=True)
    at, correction = (torch.cat(of_keys) for of_keys in found)
    terms = torch.ones_like(correction), correction, correction.square()
    return tuple(torch.bincount(at, term, len(scores)) for term in terms)


@pytest.mark.slow
def test_inclusion_by_successive_draws_in_figure_1():
    scores = scores_of(FIGURE, BATCH, "counts")
    expected = inclusion(scores, 2)
    assert expected == {0: Fraction(8, 21), 2: Fraction(8, 21), 4: Fraction(6, 7), 3: Fraction(8, 21)}
    keys = 5_000
    often, _, _ = frequencies(scores, 2, "successive", range(keys))
    for found, share in zip(often.tolist(), expected.values(), strict=True):
        share = float(share)
        assert abs(found - keys * share) < 4.5 * math.sqrt(keys * share * (1 - share))


def assert_probable(found, expected):
    """``found`` of equal keys as ``expected``, how often each outcome was drawn and its probability."""
    assert sum(expected.values()) == 1
    assert found.keys() <= expected.keys()
    total = found.total()
    shares = torch.tensor([float(share) * total for share in expected.values()], dtype=torch.float64)
    assert chi_square_p(torch.tensor([found[outcome] for outcome in expected]), shares) > 1e-5


@pytest.mark.slow
def test_replacement_draws_each_multiset_as_often_as_enumerated():
    scores, count, total = {3: 1, 4: 2, 7: 4, 9: 9}, 3, 16
    expected, found = Counter(), Counter()
    for order, probability in outcomes(scores, count, "replace"):
        expected[tuple(order.count(node) for node in scores)] += probability
    node, score = torch.tensor(list(scores)), torch.tensor(list(scores.values()))
    for key in range(10_000):
        at, correction = ops.choose_nodes(node, score, count, "replace", key, 0)
        times = torch.zeros(len(node), dtype=torch.float64)
        times[at] = correction * count * score[at] / total
        found[tuple(times.round().long().tolist())] += 1
    assert_probable(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["successive", "replace"])
@pytest.mark.parametrize("scores", ["squares", "counts"])
def test_fastgcn_finds_each_set_as_often_as_enumerated(scheme, scores):
    """Nodes are drawn of the whole graph; those without an edge into the batch are left out."""
    sources = torch.tensor([[0, 1, 2], [0, 2, 3], [3, 4, 0], [4, 1, 0], [3, 2, 4]])
    graph = Graph(torch.arange(0, 16, 3), sources.flatten())
    seeds = torch.tensor([0, 1])
    score = ops.node_scores(graph.relations(), scores)
    every, near = dict(enumerate(score.tolist())), {0, 1, 2, 3}
    expected, found = Counter(), Counter()
    for order, probability in outcomes(every, 2, scheme):
        expected[frozenset(order) & near] += probability
    drawing = ops.LayerDrawing("fastgcn", scheme, scores=scores)
    for key in range(5_000):
        sample = ops.sample_layers(graph.relations(), seeds, [2], key, drawing, score=score)
        found[frozenset(sample.node[0][sample.edge_index[0][0]].tolist())] += 1
    assert_probable(found, expected)


# Probabilities #######################################################################################################

UNEVEN = dict(enumerate([1, 2, 3, 5, 8, 13, 21, 200]))


@pytest.mark.parametrize(("count", "keys"), [(2, 5_000), (5, 5_000), pytest.param(2, 50_000, marks=pytest.mark.slow)])
def test_priority_draws_exactly_s_without_bias(count, keys):
    often, sums, squares = frequencies(UNEVEN, count, "priority", range(keys))
    assert int(often.sum()) == keys * count
    deviation = (squares / keys - (sums / keys).square()).sqrt()
    assert ((sums / keys - 1).abs() < 4.5 * deviation / math.sqrt(keys) + 1e-12).all()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3, 6])
def test_poisson_probabilities_sum_to_s_and_are_corrected_exactly(count):
    left, rest, certain = count, sum(UNEVEN.values()), set()
    for node in sorted(UNEVEN, key=UNEVEN.get, reverse=True):
        if left * UNEVEN[node] >= rest:
            certain.add(node)
            left, rest = left - 1, rest - UNEVEN[node]
    share = {node: Fraction(1) if node in certain else Fraction(left * UNEVEN[node], rest) for node in UNEVEN}
    assert sum(share.values()) == count
    for key in range(50):
        for node, correction in twin.choose_nodes(UNEVEN, count, "poisson", key, 0).items():
            assert correction.exact * share[node] == 1
    keys = 5_000
    often, _, _ = frequencies(UNEVEN, count, "poisson", range(keys))
    for node, found in enumerate(often.tolist()):
        bound = 4.5 * math.sqrt(keys * float(share[node] * (1 - share[node])))
        assert abs(found - keys * float(share[node])) <= bound


@pytest.mark.slow
def test_replacement_is_corrected_exactly():
    total, count = sum(UNEVEN.values()), 6
    for key in range(30):
        found = twin.choose_nodes(UNEVEN, count, "replace", key, 0)
        # times drawn q / Q = c s q / Q: the corrections say how often, and these sum to s
        times = {node: entry.exact * count * UNEVEN[node] / total for node, entry in found.items()}
        assert sum(times.values()) == count
        assert all(entry.denominator == 1 for entry in times.values())
    keys = 5_000
    _, sums, squares = frequencies(UNEVEN, count, "replace", range(keys))
    deviation = (squares / keys - (sums / keys).square()).sqrt()
    assert ((sums / keys - 1).abs() < 4.5 * deviation / math.sqrt(keys)).all()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES_OF["labor"])
def test_labor_draws_k_neighbors_without_bias(scheme):
    graph, seeds, keys, fanout = graph_of_degrees([40, 25, 3], seed=4), torch.arange(3), 4000, 5
    graph = Graph(graph.colptr, torch.cat([torch.randperm(40), torch.randperm(40)[:25], torch.arange(3)]))
    graph = Graph(torch.cat([graph.colptr, graph.colptr[-1:].expand(37)]), graph.row)
    drawing = ops.LayerDrawing("labor", scheme, aggregation="sum", weights="unbiased")
    prepared = ops.PreparedLayers(graph.relations(), [fanout], drawing)
    weights, squares, counts = torch.zeros(68, dtype=torch.float64), torch.zeros(68, dtype=torch.float64), set()
    for key in range(keys):
        found = prepared.sample(seeds, key)
        weights[found.edge_id[0]] += found.edge_weight[0]
        squares[found.edge_id[0]] += found.edge_weight[0].square()
        counts.add(tuple(found.colptr[0].diff().tolist()))
    deviation = (squares / keys - (weights / keys).square()).clamp(min=0).sqrt()
    assert ((weights / keys - 1).abs() <= 4.5 * deviation / math.sqrt(keys)).all()
    assert (counts == {(5, 5, 3)}) == (scheme == "sequential")


def test_labor_draws_a_source_for_all_destinations_alike():
    """Two nodes of equal neighbors draw the same ones, and with layer_dependency later hops do, too."""
    sources = torch.arange(2, 32)
    graph = Graph(torch.tensor([0, 30, 60, *[60] * 30]), torch.cat([sources, sources.flip(0)]))
    for scheme in SCHEMES_OF["labor"]:
        found = both(graph, torch.tensor([0, 1]), [6], 3, ops.LayerDrawing("labor", scheme))
        first, second = (found.edge_index[0][0][found.edge_index[0][1] == i] for i in (0, 1))
        assert set(first.tolist()) == set(second.tolist())
    loop = Graph(torch.tensor([0, 30, *[30] * 29]), torch.arange(30))
    for dependent in (False, True):
        drawing = ops.LayerDrawing("labor", "sequential", layer_dependency=dependent)
        found = both(loop, torch.tensor([0]), [6, 6], 3, drawing, layers=True)
        first, second = found.edge_id[0].split(found.num_edges[0])
        again = second[torch.isin(second, torch.arange(30))]
        assert torch.equal(first, again) == dependent
