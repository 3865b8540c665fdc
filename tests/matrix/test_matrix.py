"""Samples by products of matrices equal those of the fused operators, bit for bit."""

import re
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import reference
import scipy.sparse
import torch
from helpers.graphs import Graph, assert_same, random_graph, random_ids, small_graphs
from helpers.slow import NIGHTLY
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import matrix, ops
from torch_gnnscale.matrix.algebra import bounded
from torch_gnnscale.ops.layer_drawing import AGGREGATIONS, SCHEMES_OF, SCORES, WEIGHTS

LAYERWISE = {"ladies": matrix.ladies, "fastgcn": matrix.fastgcn}
KEYS = st.integers(-(1 << 63), (1 << 63) - 1)
# Figure 1 of the paper: N(1) = {0, 2, 4}, N(5) = {3, 4}; edges into other nodes do not matter for one hop.
FIGURE = Graph(torch.tensor([0, 0, 3, 3, 3, 3, 5]), torch.tensor([4, 0, 2, 3, 4]))
BATCH = torch.tensor([1, 5])


def without_parallel_edges(graph: Graph) -> Graph:
    """The same edges, each pair once: the first in stored order."""
    into = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.colptr.diff())
    _, first = np.unique((into * graph.num_nodes + graph.row).numpy(), return_index=True)
    kept = torch.from_numpy(np.sort(first))
    degree = torch.bincount(into[kept], minlength=graph.num_nodes)
    colptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    return Graph(colptr, graph.row[kept], None if graph.edge_id is None else graph.edge_id[kept])


def layerwise(graph, seeds, num_nodes, keys, drawing, include_dst):
    """The samples, which equal the fused operator's."""
    relations = graph.relations()
    score = ops.node_scores(relations, drawing.scores) if drawing.method == "fastgcn" else None
    adjacency = matrix.adjacency(relations)
    step = LAYERWISE[drawing.method](adjacency, drawing.scheme, drawing.scores, drawing.keep_known)
    found = matrix.sample_batches(
        adjacency, seeds, num_nodes, keys, step,
        include_dst=include_dst, aggregation=drawing.aggregation, weights=drawing.weights,
    )  # fmt: skip
    assert len(found) == len(keys)
    for sample, ids, key in zip(found, seeds, keys, strict=True):
        options = {"score": score, "layers": True, "include_dst": include_dst}
        assert_same(sample, ops.sample_layers(relations, ids, num_nodes, key, drawing, **options))
    return found


@st.composite
def drawings(draw) -> ops.LayerDrawing:
    method = draw(st.sampled_from(sorted(LAYERWISE)))
    choices = SCHEMES_OF[method], SCORES, AGGREGATIONS, WEIGHTS
    return ops.LayerDrawing(method, *(draw(st.sampled_from(names)) for names in choices), draw(st.booleans()))


@st.composite
def bulks(draw):
    """(A graph without parallel edges, the seeds of up to four batches, their keys.)"""
    graph = without_parallel_edges(draw(small_graphs()))
    keys = draw(st.lists(KEYS, max_size=4))
    nodes = st.lists(st.integers(0, graph.num_nodes - 1), max_size=6) if graph.num_nodes else st.just([])
    dtype = draw(st.sampled_from(ops.ID_DTYPES))
    return graph, [torch.tensor(draw(nodes), dtype=dtype) for _ in keys], keys


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("method", LAYERWISE)
def test_each_score_of_a_small_graph(method, scores):
    graph = without_parallel_edges(random_graph(100, 8, seed=1))
    (found,) = layerwise(graph, [random_ids(100, 10, 0)], [12], [7], ops.LayerDrawing(method, scores=scores), True)
    assert found.num_edges[0][0] > 0


@pytest.mark.slow
@given(bulks(), drawings(), st.lists(st.integers(-1, 6), min_size=1, max_size=3), st.booleans())
def test_layer_wise_bulks_equal_the_fused_operator(bulk, drawing, num_nodes, include_dst):
    graph, seeds, keys = bulk
    layerwise(graph, seeds, num_nodes, keys, drawing, include_dst or drawing.keep_known)


@pytest.mark.slow
@given(bulks(), st.lists(st.integers(-1, 6), min_size=1, max_size=3), st.booleans())
def test_bulks_of_graphsage_equal_the_fused_sampler(bulk, fanouts, replace):
    graph, seeds, keys = bulk
    relations = graph.relations()
    adjacency = matrix.adjacency(relations)
    found = matrix.sample_batches(adjacency, seeds, fanouts, keys, matrix.graphsage(adjacency, replace))
    for sample, ids, key in zip(found, seeds, keys, strict=True):
        assert_same(sample, ops.sample_neighbors(relations, [ids], fanouts, key, layers=True, replace=replace))


@pytest.mark.parametrize("replace", [False, True])
def test_graphsage_of_nodes_without_edges(replace):
    relations, seeds = FIGURE.relations(), torch.tensor([0, 1, 2])
    adjacency = matrix.adjacency(relations)
    (found,) = matrix.sample_batches(adjacency, [seeds], [4], [3], matrix.graphsage(adjacency, replace))
    assert_same(found, ops.sample_neighbors(relations, [seeds], [4], 3, layers=True, replace=replace))
    assert found.colptr[0].diff().tolist() == [0, 4 if replace else 3, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("include_dst", "keep_known"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("method", LAYERWISE)
def test_a_larger_graph_with_every_scheme(method, include_dst, keep_known):
    graph = without_parallel_edges(random_graph(400, 12, seed=1, dtype=torch.int32))
    seeds = [random_ids(400, 20, seed) for seed in range(4)]
    for scheme in SCHEMES_OF[method]:
        for scores in SCORES:
            for aggregation in AGGREGATIONS:
                drawing = ops.LayerDrawing(method, scheme, scores, aggregation, keep_known=keep_known)
                found = layerwise(graph, seeds, [30, 50, 40], [7, 8, 9, -1], drawing, include_dst)
                assert all(sample.num_edges[0][0] > 0 for sample in found)


@pytest.mark.parametrize("include_dst", [True, False])
def test_no_batches(include_dst):
    adjacency = matrix.adjacency(FIGURE.relations())
    for step in (matrix.ladies(adjacency), matrix.fastgcn(adjacency), matrix.graphsage(adjacency)):
        assert matrix.sample_batches(adjacency, [], [2, 2], [], step, include_dst=include_dst) == []


def test_hubs_of_graphsage():
    graph = without_parallel_edges(random_graph(400, 12, seed=1))
    relations, seeds = graph.relations(), [random_ids(400, 20, seed) for seed in range(3)]
    adjacency = matrix.adjacency(relations)
    found = matrix.sample_batches(adjacency, seeds, [15, 10, 5], [1, 2, -3], matrix.graphsage(adjacency))
    for sample, ids, key in zip(found, seeds, [1, 2, -3], strict=True):
        assert_same(sample, ops.sample_neighbors(relations, [ids], [15, 10, 5], key, layers=True))


# The paper's example #################################################################################################


def frontier_of(*batches, hop=0, keys=None):
    node = np.concatenate([np.array(batch, np.int64) for batch in batches])
    ptr = np.cumsum([0, *map(len, batches)])
    return matrix.Frontier(node, ptr, np.array(range(len(batches)) if keys is None else keys, np.uint64), hop)


def test_the_matrices_of_figure_2():
    graph, frontier = matrix.adjacency(FIGURE.relations()), frontier_of([1, 5])
    of_sage = matrix.one_node_each(frontier, 6) @ graph.ones
    assert of_sage.toarray().tolist() == [[1, 0, 1, 0, 1, 0], [0, 0, 0, 1, 1, 0]]
    p = matrix.stacked_sets(frontier, np.ones(6, np.int64)) @ graph.ones
    assert p.toarray().tolist() == [[1, 0, 1, 1, 2, 0]]
    assert matrix.squared(p).toarray().tolist() == [[1, 0, 1, 1, 4, 0]]  # of 7
    drawn = matrix.Drawn(np.array([0, 2]), np.array([0, 4]), np.array([3.5, 7 / 8]))
    edges = matrix.extract(graph, frontier, drawn)
    assert edges.ptr.tolist() == [0, 2, 3]
    assert edges.source.tolist() == [4, 0, 4]  # in stored order
    assert edges.position.tolist() == [0, 1, 4]
    assert edges.correction.tolist() == [7 / 8, 3.5, 7 / 8]


def test_stacked_batches_do_not_mix():
    graph, frontier = matrix.adjacency(FIGURE.relations()), frontier_of([1, 5], [], [5, 5])
    p = matrix.stacked_sets(frontier, np.ones(6, np.int64)) @ graph.ones
    assert p.toarray().tolist() == [[1, 0, 1, 1, 2, 0], [0] * 6, [0, 0, 0, 1, 1, 0]]
    drawn = matrix.Drawn(np.array([0, 1, 1, 3]), np.array([0, 3, 5]), np.ones(3))  # no edge leads from 5 into 5
    edges = matrix.extract(graph, frontier, drawn)
    assert edges.ptr.tolist() == [0, 1, 1, 2, 3]
    assert edges.source.tolist() == [0, 3, 3]


def test_large_sums_of_counts_are_shifted_as_in_the_twin():
    ones = [1, (1 << 30) - 5, 3, 1 << 20]
    p = matrix.squared(matrix.stacked_sets(frontier_of([0, 1, 2, 3], [0, 2]), np.array(ones)))
    shift = reference.layerwise.count_shift(sum(ones))
    assert shift == 1
    assert p.data.tolist() == [*(reference.layerwise.count_score(count, shift) for count in ones), 1, 9]


# Products on a GPU ###################################################################################################

# cupy's functions that products call, by NumPy: a CPU has no cuSPARSE, but the same doubles.
IN_CUPYS_PLACE = SimpleNamespace(
    asarray=np.asarray, asnumpy=np.asarray, cuda=SimpleNamespace(Device=lambda _: nullcontext())
)


def held(csr):
    return matrix.DeviceMatrix(csr, IN_CUPYS_PLACE, scipy.sparse, 0)


@pytest.mark.slow
@given(st.integers(0, 1000), st.integers(1, 61))
def test_products_of_doubles_are_those_of_integers(seed, bits):
    generator = np.random.default_rng(seed)
    rows, inner, columns = generator.integers(1, 9, 3)
    left = generator.integers(1, 1 << bits, (rows, inner)) // inner * (generator.random((rows, inner)) < 0.5)
    right = (generator.random((inner, columns)) < 0.5).astype(np.int64)
    q, a = (scipy.sparse.csr_array(dense.astype(np.int64)) for dense in (left, right))
    found, expected = q @ held(a), q @ a
    assert found.dtype == np.int64
    assert np.array_equal(found.toarray(), expected.toarray())
    assert found.has_sorted_indices


def test_products_that_no_parts_make_exact():
    largest = (1 << 53) - 1
    of_one, of_three = (scipy.sparse.csr_array(np.array(entries)) for entries in ([[largest]], [[largest // 3]] * 3))
    assert (scipy.sparse.csr_array(np.array([[1]])) @ held(of_one)).toarray().tolist() == [[largest]]
    assert (scipy.sparse.csr_array(np.array([[1, 1, 1]])) @ held(of_three)).toarray().tolist() == [[largest // 3 * 3]]
    with pytest.raises(ValueError, match=r"^expected products that sum up to less than 2\^53, found sums of up to "):
        scipy.sparse.csr_array(np.array([[1, 1]])) @ held(scipy.sparse.csr_array(np.array([[largest]] * 2)))


@pytest.mark.parametrize("method", [*LAYERWISE, "graphsage"])
def test_samples_by_products_of_doubles(method):
    graph = matrix.adjacency(without_parallel_edges(random_graph(300, 9, seed=2)).relations())
    of_gpu = graph._replace(position=held(graph.position), ones=held(graph.ones), hold=held)
    seeds = [random_ids(300, 15, seed) for seed in range(3)]
    for options in [{}] if method == "graphsage" else [{"scores": scores} for scores in SCORES]:
        make = getattr(matrix, method)
        expected, found = (
            matrix.sample_batches(entry, seeds, [12, 20], [1, 2, 3], make(entry, **options))
            for entry in (graph, of_gpu)
        )
        for one, other in zip(found, expected, strict=True):
            assert one.num_edges[0][1] > 0
            assert_same(one, other)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_weights_of_a_small_graph(aggregation, weights):
    graph = without_parallel_edges(random_graph(100, 8, seed=1))
    drawing = ops.LayerDrawing("ladies", aggregation=aggregation, weights=weights)
    layerwise(graph, [random_ids(100, 9, 1)], [12, 20], [5], drawing, True)


@pytest.mark.cuda
@pytest.mark.parametrize("method", [*LAYERWISE, "graphsage"])
def test_samples_of_a_graph_on_a_gpu(method):
    pytest.importorskip("cupy")
    graph = without_parallel_edges(random_graph(300, 9, seed=2))
    there = Graph(graph.colptr.cuda(), graph.row.cuda(), None)
    here, there = (matrix.adjacency(entry.relations()) for entry in (Graph(graph.colptr, graph.row), there))
    seeds, step = [random_ids(300, 15, seed) for seed in range(3)], getattr(matrix, method)
    expected, found = (matrix.sample_batches(entry, seeds, [12, 20], [1, 2, 3], step(entry)) for entry in (here, there))
    for one, other in zip(found, expected, strict=True):
        assert one.node[0].is_cuda
        for name in ("node", "colptr", "edge_index", "edge_id", "edge_weight"):
            assert all(torch.equal(x.cpu(), y) for x, y in zip(getattr(one, name), getattr(other, name), strict=True))


# Inverse transform sampling ##########################################################################################


@pytest.mark.slow
@pytest.mark.parametrize("redraws", [NIGHTLY(1), 8])
def test_its_draws_as_often_as_successive_draws(redraws):
    scores, count, k = [1, 1, 1, 4, 1, 30], 3, 2000
    frontier = frontier_of(*[[0]] * k)
    p = matrix.stacked_sets(frontier, np.array([1])) @ matrix.stacked_sets(frontier_of(range(6)), np.array(scores))
    by_its = matrix.choose_by_its(p, count, frontier, redraws)
    other = matrix.choose(p, count, "successive", frontier._replace(keys=frontier.keys + np.uint64(k)))
    assert np.diff(by_its.ptr).tolist() == np.diff(other.ptr).tolist() == [count] * k
    sets = [np.sort(drawn.node.reshape(k, count)) @ [36, 6, 1] for drawn in (by_its, other)]
    assert (np.diff(np.sort(by_its.node.reshape(k, count))) > 0).all()
    assert np.array_equal(by_its.correction, sum(scores) / (count * np.array(scores)[by_its.node]))
    often = np.stack([np.bincount(entry, minlength=216) for entry in sets]).astype(float)
    often = often[:, often.sum(0) > 0]
    expected = often.mean(0)
    statistic, freedom = (((often - expected) ** 2) / expected).sum(), often.shape[1] - 1
    assert freedom >= 9
    assert statistic < freedom + 4.5 * np.sqrt(2 * freedom)


def test_its_takes_all_of_few_candidates():
    frontier = frontier_of([0], [0])
    p = matrix.stacked_sets(frontier, np.array([1])) @ matrix.stacked_sets(frontier_of(range(3)), np.array([1, 5, 2]))
    for count in (3, 9, -1):
        found = matrix.choose_by_its(p, count, frontier)
        assert found.node.tolist() == [0, 1, 2] * 2
        assert found.correction.tolist() == [1] * 6
    assert matrix.choose_by_its(p, 0, frontier).node.tolist() == []


def test_its_takes_one_row_of_scores_for_all_batches():
    one, both = frontier_of([0]), frontier_of([0], [0])
    scores = matrix.stacked_sets(frontier_of(range(9)), np.arange(1, 10))
    rows = [matrix.stacked_sets(frontier, np.array([1])) @ scores for frontier in (one, both)]
    first, second = (matrix.choose_by_its(p, 4, both) for p in rows)
    assert first.ptr.tolist() == [0, 4, 8]
    assert np.array_equal(first.node, second.node)
    assert np.array_equal(first.correction, 45 / (4 * (first.node + 1)))
    assert np.array_equal(first.correction, second.correction)


def test_its_removes_what_was_found_after_as_many_rounds_as_said():
    p = matrix.stacked_sets(frontier_of([0]), np.array([1]))
    p = p @ matrix.stacked_sets(frontier_of(range(4)), np.array([1 << 50, 3, 3, 3]))
    keys = np.arange(20, dtype=np.uint64)
    for redraws in (1, 2, 5):
        found = matrix.choose_by_its(p, 2, frontier_of(*[[0]] * 20, keys=keys), redraws).node.reshape(20, 2)
        # The first two draws, and one in each further round, find node 0; the next one is among the others.
        bits = matrix.draw(keys, np.full(20, redraws + 1), 0, 0, relation=1)
        assert found.tolist() == [[0, 1 + pick // 3] for pick in bounded(bits, 9).tolist()]


@pytest.mark.parametrize("redraws", [1, 3])
def test_its_ends_where_the_other_candidates_are_never_found(redraws):
    frontier = frontier_of([0])
    p = matrix.stacked_sets(frontier_of(range(4)), np.array([1, 1 << 61, 1, 1]))[[0]]
    p = matrix.stacked_sets(frontier, np.array([1])) @ p
    assert sorted(matrix.choose_by_its(p, 3, frontier, redraws).node.tolist())[:2] in ([0, 1], [1, 2])


# Draws and errors ####################################################################################################


@given(KEYS, st.integers(0, (1 << 62) - 1), st.integers(0, 63), st.integers(0, (1 << 17) - 1), st.integers(0, 1))
def test_draws_equal_the_twin(key, node, hop, number, relation):
    unsigned = np.array([key & (1 << 64) - 1], np.uint64)
    found = matrix.draw(unsigned, np.array([node]), hop, number, relation)
    assert found.tolist() == [reference.draws.draw(key, node, hop, number, relation=relation)]


@given(st.integers(0, (1 << 64) - 1), st.integers(1, (1 << 63) - 1))
def test_bounded_numbers_equal_the_twin(random, limit):
    assert bounded(np.array([random], np.uint64), limit).tolist() == [reference.draws.bounded(random, limit)]


def test_bad_arguments():
    def raises(kind, text, function, *arguments, **options):
        with pytest.raises(kind, match=f"^{re.escape(text)}$"):
            function(*arguments, **options)

    colptr, row = torch.tensor([0, 3, 3]), torch.tensor([1, 0, 1])
    text = "graph: expected no parallel edges, found two 1 -> 0"
    raises(ValueError, text, matrix.adjacency, Graph(colptr, row).relations())
    raises(TypeError, "graph: expected what relations() returns, found int", matrix.adjacency, 3)
    text = "graph: expected one relation of one node type, found 2 relations of 1 node types"
    raises(ValueError, text, matrix.adjacency, ops.relations([colptr] * 2, [row] * 2))
    text = "graph: expected edges without weights and times, found some"
    raises(ValueError, text, matrix.adjacency, Graph(colptr, row).relations(weight=[torch.tensor([1, 2, 3])]))
    graph = matrix.adjacency(FIGURE.relations())
    text = "scores: expected one of ('squares', 'counts'), found 'ones'"
    raises(ValueError, text, matrix.ladies, graph, scores="ones")
    step = matrix.ladies(graph)
    text = "seeds: expected one entry for each of 2 keys, found 1"
    raises(ValueError, text, matrix.sample_batches, graph, [BATCH], [2], [1, 2], step)
    text = "num_nodes: expected at least one hop, found none"
    raises(ValueError, text, matrix.sample_batches, graph, [BATCH], [], [1], step)
    text = "weights: expected one of ('self_normalized', 'unbiased'), found 'none'"
    raises(ValueError, text, matrix.sample_batches, graph, [BATCH], [2], [1], step, weights="none")
    keeping, text = matrix.fastgcn(graph, keep_known=True), "include_dst=False: expected keep_known=False, found True"
    raises(ValueError, text, matrix.sample_batches, graph, [BATCH], [2], [1], keeping, include_dst=False)
    with pytest.raises(IndexError, match=re.escape("seeds[0][1] = 6 is out of range")):
        matrix.sample_batches(graph, [torch.tensor([1, 6])], [2], [1], step)
