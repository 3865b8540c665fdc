"""Picks are uniform and independent: chi-square tests with fixed keys.

Each test draws all its statistics at once and asks that the smallest p-value of n stays above ALPHA / n (Bonferroni).
"""

import itertools

import numpy as np
import pytest
import torch
from helpers.chi_square import chi_square_p
from helpers.graphs import Graph, positions_of
from helpers.slow import SLOW

from torch_gnnscale import ops

ALPHA = 1e-3


def graph_of(degrees: torch.Tensor) -> Graph:
    """A graph whose edges take no memory: only the positions drawn matter here."""
    colptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    return Graph(colptr, torch.zeros(1, dtype=torch.int32).expand(int(colptr[-1])))


def picks(degree: int, nodes: int, fanout: int, key: int, replace: bool = False) -> np.ndarray:
    """Positions drawn by each of many nodes of one degree: [nodes, fanout]."""
    graph = graph_of(torch.full((nodes,), degree))
    sample = graph.sample(ops, torch.arange(nodes), [fanout], key, replace=replace)
    return positions_of(sample, graph)[1].reshape(nodes, fanout).numpy()


def p_value(observed: np.ndarray, expected: np.ndarray, factor: float = 1.0) -> float:
    """Of Pearson's statistic over all cells. `factor`: what draws without replacement lack in variance."""
    return chi_square_p(torch.from_numpy(observed), torch.from_numpy(expected), factor)


def assert_plausible(p_values: list[float]) -> None:
    assert min(p_values) > ALPHA / len(p_values), min(p_values)
    # Too good a fit is as improbable as a bad one.
    assert max(p_values) < 1 - ALPHA / len(p_values), max(p_values)


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_degree_and_fanout_is_uniform(replace):
    nodes_each, degrees = 1500, np.arange(1, 41)
    per_node = torch.arange(1, 41).repeat(nodes_each)  # neighbors in number have different degrees
    graph, seeds = graph_of(per_node), torch.arange(len(per_node))
    p_values, included = [], []
    for fanout in range(1, 41):
        node, position = positions_of(graph.sample(ops, seeds, [fanout], fanout, replace=replace), graph)
        cells = torch.bincount(per_node[node] * 40 + position, minlength=41 * 40).reshape(41, 40).numpy()[1:]
        for degree, counts in zip(degrees, cells, strict=True):
            observed, count = counts[:degree], fanout if replace else min(fanout, degree)
            assert counts.sum() == observed.sum() == nodes_each * count
            if not replace and fanout >= degree:
                assert (observed == nodes_each).all()
            elif degree > 1:
                factor = 1.0 if replace else (degree - 1) / (degree - count)
                p_values.append(p_value(observed, np.full(degree, nodes_each * count / degree), factor))
                if not replace:
                    share = count / degree  # each position's own inclusion probability
                    scale = (share * (1 - share) / nodes_each) ** 0.5
                    included.append(np.abs(observed / nodes_each - share).max() / scale)
    assert len(p_values) == (39 * 40 if replace else 39 * 40 // 2)
    assert_plausible(p_values)
    assert max(included, default=0) < 6


@pytest.mark.parametrize(("degree", "fanout"), [(4, 2), (5, 2), (5, 3), (6, 3), (7, 4), (6, 5)])
def test_every_subset_is_equally_likely(degree, fanout):
    chosen = np.sort(picks(degree, 60_000, fanout, key=degree), axis=1)
    assert (np.diff(chosen, axis=1) > 0).all()
    masks = (1 << chosen).sum(1)
    subsets = [sum(1 << i for i in subset) for subset in itertools.combinations(range(degree), fanout)]
    observed = np.bincount(masks, minlength=1 << degree)
    assert observed[subsets].sum() == len(masks)
    assert_plausible([p_value(observed[subsets], np.full(len(subsets), len(masks) / len(subsets)))])


@pytest.mark.parametrize(("degree", "fanout"), [(10, 4), (70, 6), (600, 8)])
def test_pairs_are_included_together_as_often_as_they_should(degree, fanout):
    nodes = 40_000
    chosen = picks(degree, nodes, fanout, key=3)
    chosen = chosen * 10 // degree if degree > 10 else chosen
    size = max(degree // 10, 1)
    member = np.zeros((nodes, 10))
    for i in range(fanout):
        member[np.arange(nodes), chosen[:, i]] += 1
    together = member.T @ member
    pair = fanout * (fanout - 1) / (degree * (degree - 1)) * size**2 * nodes
    off_diagonal = together[~np.eye(10, dtype=bool)]
    assert np.abs(off_diagonal - pair).max() < 5 * pair**0.5
    inside = fanout / 10 * nodes + fanout * (fanout - 1) / (degree * (degree - 1)) * size * (size - 1) * nodes
    assert np.abs(np.diag(together) - inside).max() < 5 * 3 * inside**0.5


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("degree", [65, 512, 513, 1025, 40_000, 65_535, 65_537, SLOW(3_000_000)])
def test_hubs(degree, replace):
    p_values = []
    for fanout in (10, 13, 15, 64, 65):
        nodes = 60_000 // fanout
        if fanout >= degree:
            continue
        chosen = picks(degree, nodes, fanout, key=fanout, replace=replace)
        assert chosen.min() >= 0
        assert chosen.max() < degree
        if not replace:
            assert (np.diff(np.sort(chosen, axis=1), axis=1) > 0).all()
        factor = 1.0 if replace else (degree - 1) / (degree - fanout)
        for bins in (2, 50, 100):
            if bins > degree:
                continue
            observed = np.bincount((chosen * bins // degree).ravel(), minlength=bins)
            sizes = np.bincount(np.arange(degree) * bins // degree, minlength=bins)
            p_values.append(p_value(observed, sizes * nodes * fanout / degree, factor))
        low_bits = np.bincount((chosen % 16).ravel(), minlength=16)
        sizes = np.bincount(np.arange(degree) % 16, minlength=16)
        p_values.append(p_value(low_bits, sizes * nodes * fanout / degree, factor))
    assert_plausible(p_values)


def independent(left: np.ndarray, right: np.ndarray, cells: int) -> float:
    observed = np.bincount(left * cells + right, minlength=cells * cells)
    return p_value(observed, np.full(cells * cells, len(left) / (cells * cells)))


def test_nodes_hops_keys_and_draws_are_independent():
    degree, nodes = 20, 100_000
    graph, seeds = graph_of(torch.full((nodes,), degree)), torch.arange(nodes)
    hops = graph.sample(ops, seeds, [1, 1, 1], 1, layers=True)
    assert hops.num_nodes == [[nodes, 0, 0, 0]]
    first, second, third = (hops.edge_id[0].reshape(3, nodes) - graph.colptr[:-1]).numpy()
    p_values = [independent(first[:-step], first[step:], degree) for step in (1, 2, 3, 256, 1 << 16)]
    p_values += [independent(first, second, degree), independent(second, third, degree)]
    for key in (2, 3, 257, 1 + (1 << 32), -1):
        p_values.append(independent(first, picks(degree, nodes, 1, key)[:, 0], degree))
    drawn = picks(degree, nodes, 6, 1, replace=True)
    assert (drawn[:, 0] == first).all()  # draw 0, with or without replacement
    p_values += [independent(drawn[:, i], drawn[:, j], degree) for i, j in itertools.combinations(range(6), 2)]
    p_values += [independent(drawn[:-1, 1], drawn[1:, 0], degree)]
    assert_plausible(p_values)


def test_nodes_of_different_degree_are_independent():
    degrees = torch.tensor([12, 20]).repeat(50_000)
    graph = graph_of(degrees)
    position = positions_of(graph.sample(ops, torch.arange(100_000), [1], 4), graph)[1].numpy()
    observed = np.bincount(position[::2] * 20 + position[1::2], minlength=240)
    assert_plausible([p_value(observed, np.full(240, 50_000 / 240))])


def test_the_test_finds_a_small_bias():
    # A draw with one position in forty 25 % too likely, as often as the tests above draw.
    generator = np.random.default_rng(0)
    observed = np.bincount(np.minimum((generator.random(60_000) * 40.25).astype(int), 39), minlength=40)
    with pytest.raises(AssertionError):
        assert_plausible([p_value(observed, np.full(40, 1500.0))] * 780)


@pytest.mark.slow
def test_permutations_are_equally_likely():
    for n in (2, 3, 4, 5):
        orders = {order: i for i, order in enumerate(itertools.permutations(range(n)))}
        draws = 200 * len(orders)
        found = [orders[tuple(ops.permutation(n, key).tolist())] for key in range(draws)]
        assert_plausible([p_value(np.bincount(found, minlength=len(orders)), np.full(len(orders), 200.0))])


@pytest.mark.slow
def test_random_bits_are_fair_in_each_bit_and_byte():
    bits = np.unpackbits(ops.random_bits(50_000, key=3).numpy().view(np.uint8).reshape(-1, 8), axis=1)
    assert np.abs(bits.sum(0, dtype=np.int64) - 25_000).max() < 5 * (50_000 / 4) ** 0.5
    assert np.abs(np.corrcoef(bits.T) - np.eye(64)).max() < 6 / 50_000**0.5
    values = ops.random_bits(50_000, key=4).numpy().view(np.uint8)
    assert_plausible([p_value(np.bincount(values, minlength=256), np.full(256, 50_000 * 8 / 256))])


def weighted_picks(weights: list[float], nodes: int, fanout: int, key: int, replace: bool) -> np.ndarray:
    """Positions drawn by each of many nodes with neighbors of these weights: [nodes, fanout]."""
    graph = graph_of(torch.full((nodes,), len(weights)))
    sums = ops.weight_sums(graph.colptr, torch.tensor(weights, dtype=torch.float64).repeat(nodes))
    stored = graph.relations(weight=[sums])
    sample = ops.sample_neighbors(stored, [torch.arange(nodes)], [fanout], key, replace=replace)
    return positions_of(sample, graph)[1].reshape(nodes, fanout).numpy()


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [1, 2, 3, 4], [0.001, 5, 5, 1], [100, 1, 1, 1, 1]])
def test_weighted_picks_follow_the_weights(weights):
    nodes, p_values = 60_000, []
    share = np.array(weights) / sum(weights)
    for fanout in (1, 3):
        chosen = weighted_picks(weights, nodes, fanout, key=fanout, replace=True)
        observed = np.bincount(chosen.ravel(), minlength=len(weights))
        p_values.append(p_value(observed, share * nodes * fanout))
        # One after the other, in proportion to the weights of those that are left.
        chosen = weighted_picks(weights, nodes, fanout, key=fanout, replace=False)
        orders = list(itertools.permutations(range(len(weights)), fanout))
        expected = []
        for order in orders:
            left, probability = 1.0, 1.0
            for position in order:
                probability *= share[position] / left
                left -= share[position]
            expected.append(probability * nodes)
        code = (chosen * len(weights) ** np.arange(fanout)).sum(1)
        counts = np.bincount(code, minlength=len(weights) ** fanout)
        observed = np.array([counts[sum(p * len(weights) ** i for i, p in enumerate(order))] for order in orders])
        assert observed.sum() == nodes
        common = np.array(expected) > 5  # what a chi-square test can judge; the rest makes one cell
        rest = np.array(expected)[~common].sum()
        cells, means = observed[common], np.array(expected)[common]
        if rest > 1:
            cells, means = np.append(cells, observed[~common].sum()), np.append(means, rest)
        p_values.append(p_value(cells, means))
    assert_plausible(p_values)
