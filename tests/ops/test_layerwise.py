"""Layer-wise samples equal their twin, bit for bit, and have the probabilities that their formulas say."""

import pickle

import pytest
import reference
import torch
from helpers import forked
from helpers.graphs import Graph, assert_same, graph_of_degrees, random_graph, random_ids, small_graphs
from helpers.layers import BATCH, FIGURE, both
from helpers.slow import quick
from hypothesis import example, given
from hypothesis import strategies as st
from reference import layerwise as twin

from torch_gnnscale import ops
from torch_gnnscale.ops.graph_arguments import MAX_HOPS
from torch_gnnscale.ops.layer_drawing import AGGREGATIONS, MAX_DRAWN, METHODS, SCHEMES, SCHEMES_OF, SCORES, WEIGHTS
from torch_gnnscale.ops.layer_sampling import scores_of_columns, squared_counts

INDEX = [torch.int32, torch.int64]
LADIES, LABOR = ops.LayerDrawing(), ops.LayerDrawing("labor", "sequential")


@st.composite
def drawings(draw):
    method = draw(st.sampled_from(METHODS))
    return ops.LayerDrawing(
        method,
        draw(st.sampled_from(SCHEMES_OF[method])),
        draw(st.sampled_from(SCORES if method != "labor" else SCORES[:1])),
        draw(st.sampled_from(AGGREGATIONS)),
        draw(st.sampled_from(WEIGHTS)),
        method != "labor" and draw(st.booleans()),
        method == "labor" and draw(st.booleans()),
    )


# Equality with the twin ##############################################################################################


@pytest.mark.slow
@given(small_graphs(), drawings(), st.lists(st.integers(-1, 8), max_size=3), st.integers(-(1 << 63), (1 << 63) - 1),
       st.data())  # fmt: skip
def test_samples_equal_the_twin(graph, drawing, num_nodes, key, data):
    nodes = st.integers(0, graph.num_nodes - 1)
    seeds = torch.tensor(data.draw(st.lists(nodes, max_size=8)) if graph.num_nodes else [], dtype=torch.int64)
    layers = data.draw(st.booleans())
    include_dst = not layers or drawing.keep_known or data.draw(st.booleans())
    both(graph, seeds, num_nodes, key, drawing, layers=layers, include_dst=include_dst)


@pytest.mark.parametrize("method", quick(list(METHODS), "labor"))
def test_hubs_and_every_scheme_of_a_larger_graph(method):
    graph = graph_of_degrees([900, 0, 300, *[7] * 120, *[1] * 80], seed=3, dtype=torch.int32)
    seeds = torch.tensor([0, 2, 5, 0, 1], dtype=torch.int32)
    for scheme in SCHEMES_OF[method]:
        for scores in SCORES if method != "labor" else SCORES[:1]:
            drawing = ops.LayerDrawing(method, scheme, scores, aggregation="gcn")
            for num_nodes in ([30, 40], [1, 150], [0, 5], [-1, 3], [199, 2]):
                both(graph, seeds, num_nodes, 11, drawing)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INDEX)
def test_neighbors_with_equal_draws(dtype):
    """40 parallel edges of each of six sources: of edges with equal draws the first ones are drawn."""
    row = torch.arange(6).repeat(40)
    graph = Graph(torch.tensor([0, 240, 480, 720, 726, 727, 727]), torch.cat([row, row, row, row[:7]]).to(dtype))
    for fanout in (1, 2, 39, 40, 41, 79, 80, 200, 239, 240):
        for key in range(3):
            both(graph, torch.arange(6), [fanout, 3], key, LABOR)


def check_labor():
    """Blocks of many short lists, of a long one, and of both."""
    degrees = [*[1, 0, 2] * 25, 40, 9, 1100, 1, *[11] * 20]
    for dtype, fanout in zip(INDEX * 2, (8, 100, 0, 1050), strict=True):
        graph = graph_of_degrees(degrees, seed=5, dtype=dtype)
        for scheme in SCHEMES_OF["labor"]:
            both(graph, torch.arange(len(degrees)), [fanout], 4, LABOR._replace(scheme=scheme))


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize("simd", ["", "avx2", "0"])
def test_blocks_of_lists_in_each_instruction_set(simd):
    done = forked.run("from test_layerwise import *; check_labor()", GNNSCALE_SIMD=simd)
    assert done.returncode == 0, done.stderr


def check_ladies(scheme, keep_known):
    """Of nodes of very unlike degrees, some are certain; the ids of 3,000 sources share the cells of some 500 edges."""
    graph = graph_of_degrees([1, 2, 400, 0, *[12] * 40, *[0] * 2956], seed=9, dtype=torch.int64)
    hubs = graph_of_degrees([250, 1, *[90] * 30, *[3] * 60], seed=8, dtype=torch.int32)
    drawing = LADIES._replace(scheme=scheme, keep_known=keep_known)
    for key in range(3):
        both(graph, torch.tensor([0, 2, 4, 2, 7, 9, 1, 0]), [8, 20], key, drawing)
        both(graph, torch.tensor([3]), [1], key, drawing)
        both(hubs, torch.arange(20).repeat(2), [10, 40], key, drawing, layers=True)
        both(hubs, torch.tensor([5, 0, 40]), [30, 5, 9], key, drawing)


@pytest.mark.parametrize("keep_known", [False, True])
@pytest.mark.parametrize("scheme", ["priority", "poisson"])
def test_many_more_edges_than_nodes_to_draw(scheme, keep_known):
    check_ladies(scheme, keep_known)


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize("simd", ["avx2", "0"])
def test_edges_are_sifted_by_every_instruction_set(simd):
    code = "from test_layerwise import *; check_ladies('poisson', True); check_ladies('priority', False)"
    done = forked.run(code, GNNSCALE_SIMD=simd)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("count", [993, 2979])
def test_cells_of_nodes_that_fill_whole_pages(count):
    """The last cell is the last number of the last page."""
    graph = Graph(torch.arange(count + 1), torch.arange(count).flip(0))
    ops.pool_trim()  # the next cells are new ones
    both(graph, torch.arange(count), [20], 3, LADIES)


@pytest.mark.parametrize("drawn", [1, 2, 3])
def test_columns_that_just_fill_a_buffer(drawn):
    """A buffer of 4 KiB has room for 512 pointers. A write after its end is found by ``make sanitize`` alone."""
    graph = Graph(torch.arange(1025) * 2, random_ids(1024, 2048, seed=2))
    for seeds in (510, 511, 512):
        ops.pool_trim()
        both(graph, torch.arange(seeds), [drawn, 4], 3, LADIES)


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [(1 << 21) - 1, 1 << 21])
def test_scores_of_a_graph_of_so_many_nodes_that_they_have_fewer_bits(num_nodes):
    """An edge into a node of 741,000 edges counts 2 units, and of 600,000 edges 3; from 2^21 nodes on each counts 1."""
    degrees = [741_000, 600_000]
    assert [twin.square_term(twin.square_bits(num_nodes), degree) for degree in degrees] == (
        [1, 1] if num_nodes >> 21 else [2, 3]
    )
    colptr = torch.full((num_nodes + 1,), sum(degrees))
    colptr[:2] = torch.tensor([0, degrees[0]])
    row = torch.cat([torch.arange(count) % 4 + first for count, first in zip(degrees, (2, 6), strict=True)])
    both(Graph(colptr, row), torch.tensor([0, 1]), [3], 5, LADIES._replace(scheme="poisson", weights="unbiased"))


@pytest.mark.slow
def test_cells_are_cleared_when_the_tags_are_used_up():
    """Both graphs use up 1000 tags: one has more nodes than that, so each of its hops clears the cells; the other has
    fewer, so only some hops do."""
    code = "from test_layerwise import *; check_ladies('priority', True); check_ladies('poisson', False)"
    done = forked.run(code, GNNSCALE_TAGS="1000")
    assert done.returncode == 0, done.stderr


def check_every_last_tag(tags):
    """A graph of one node uses a tag at a time, so that for one of these numbers none is left: the next tag is that of
    cells which are still 0, as most of the larger graph's are, unless the cells are cleared before."""
    graph, alone = random_graph(40, 4, seed=2), Graph(torch.tensor([0, 1]), torch.tensor([0]))
    few, nodes = torch.tensor([0]), torch.arange(40)
    relations, of_one = graph.relations(), alone.relations()
    expected = reference.sample_layers(relations, nodes, [5], 3, LADIES)
    for number in range(tags):
        ops.pool_trim()  # the next cells are new ones
        ops.sample_layers(relations, few, [1], 3, LADIES)
        for _ in range(number):
            ops.sample_layers(of_one, few, [1], 3, LADIES)
        assert_same(ops.sample_layers(relations, nodes, [5], 3, LADIES), expected)


@pytest.mark.slow
def test_cells_are_cleared_before_a_tag_is_used_twice():
    done = forked.run("from test_layerwise import *; check_every_last_tag(60)", GNNSCALE_TAGS="60")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("scheme", SCHEMES_OF["labor"])
@pytest.mark.parametrize("fanout", [-1, 0, 1, 4, MAX_DRAWN - 1])
def test_edges_chosen_of_lists_equal_the_twin(scheme, fanout):
    """Of no edges, as many as are drawn, one more; hubs; a source that occurs twice."""
    degree, ends, keys = [0, 1, 4, 5, 0, 400, 9, 0], [0, 3, 3, 6, 8], [5, -6, 7, 1 << 62]
    source = random_ids(1 << 40, sum(degree), seed=4)
    source[6:10] = source[5]
    for hop in (0, MAX_HOPS - 1):
        place, correction = ops.choose_edges(source, torch.tensor(degree), ends, keys, hop, fanout, scheme)
        expected, first = [], 0
        for column, count in enumerate(degree):
            key = next(key for key, last in zip(keys, ends[1:], strict=True) if column < last)
            drawn = twin.choose_neighbors(source[first : first + count].tolist(), fanout, scheme, key, hop)
            expected += [(first + at, c.rounded) for at, c in drawn]
            first += count
        assert list(zip(place.tolist(), correction.tolist(), strict=True)) == expected


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_batches_dealt_to_threads(method, layers):
    """Each equals what is drawn for it alone."""
    graph = random_graph(400, 9, seed=4, dtype=torch.int32)
    relations = graph.relations()
    score = ops.node_scores(relations) if method == "fastgcn" else None
    seeds = [random_ids(400, 60 if b % 4 else 0, seed=b, dtype=torch.int32 if b % 3 else torch.int64) for b in range(9)]
    for scheme in SCHEMES_OF[method]:
        drawing = ops.LayerDrawing(method, scheme, keep_known=method != "labor" and not layers)
        prepared = ops.PreparedLayers(relations, [40, 7], drawing, score=score, layers=layers, include_dst=not layers)
        for threads in (1, 4):
            found = prepared.sample_many(seeds, range(-4, 5), threads=threads)
            for sample, ids, key in zip(found, seeds, range(-4, 5), strict=True):
                assert_same(sample, prepared.sample(ids, key))
        assert prepared.sample_many([], []) == []


def test_an_error_names_the_first_batch_that_has_it():
    prepared = ops.PreparedLayers(FIGURE.relations(), [2], LADIES)
    with pytest.raises(IndexError, match=r"^seeds\[1\]\[2\] = 6 is out of range: expected nodes in \[0, 6\)$"):
        prepared.sample_many([BATCH, torch.tensor([0, 1, 6]), torch.tensor([-1])], [1, 2, 3])
    with pytest.raises(ValueError, match=r"^keys: expected one entry for each of 1 batches, found 2$"):
        prepared.sample_many([BATCH], [1, 2])


CANDIDATE = st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 62))


@given(st.lists(CANDIDATE, max_size=30, unique_by=lambda entry: entry[0]), st.integers(-1, 31),
       st.sampled_from(SCHEMES[:4]), st.integers(0, 1 << 62), st.integers(0, MAX_HOPS - 1))  # fmt: skip
@example([(node, (1 << 62) // 30 - 1) for node in range(30)], 5, "priority", 1, 0)
@example([(node, (1 << 62) // 30 - 1) for node in range(30)], 5, "poisson", 2, 0)
@example([(0, (1 << 62) - 40), *((node, 1) for node in range(1, 30))], 3, "poisson", 3, 0)
@example([(0, (1 << 62) - 40), *((node, 1) for node in range(1, 30))], 3, "priority", 3, 0)
@example([(0, (1 << 62) - 40), *((node, 1) for node in range(1, 30))], 29, "successive", 4, 0)
def test_choices_equal_the_twin_for_sums_up_to_2_62(candidates, count, scheme, key, hop):
    total = sum(score for _, score in candidates)
    divisor = max(1, -(-total // ((1 << 62) - 1)))  # to a sum below 2^62
    scores = {node: max(1, score // divisor - 1) for node, score in candidates}
    assert sum(scores.values()) < 1 << 62
    node = torch.tensor(list(scores), dtype=torch.int64)
    score = torch.tensor(list(scores.values()), dtype=torch.int64)
    at, correction = ops.choose_nodes(node, score, count, scheme, key, hop)
    expected = twin.choose_nodes(scores, count, scheme, key, hop)
    found = dict(zip(node[at].tolist(), correction.tolist(), strict=True))
    assert found == {node: entry.rounded for node, entry in expected.items()}
    assert at.tolist() == sorted(at.tolist())


def test_scores_of_all_nodes_equal_the_twin():
    graph = random_graph(60, 5, seed=2, dtype=torch.int32).relations()
    for scores in SCORES:
        assert torch.equal(ops.node_scores(graph, scores), reference.node_scores(graph, scores))
    empty = Graph(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)).relations()
    assert ops.node_scores(empty).tolist() == []


def test_no_edge_and_no_seed():
    lonely = graph_of_degrees([0, 0, 0])
    for method in METHODS:
        drawing = ops.LayerDrawing(method, SCHEMES_OF[method][0])
        found = both(lonely, torch.tensor([1, 1]), [3, 3], 5, drawing)
        assert found.node[0].tolist() == [1, 1]
        assert found.num_edges == [[0, 0]]
        assert both(FIGURE, BATCH[:0], [3], 5, drawing).node[0].tolist() == []


def test_scores_stay_in_their_bounds():
    assert [twin.square_bits(n) for n in (1, (1 << 20) - 1, 1 << 21, 1 << 40)] == [40, 40, 39, 20]
    assert twin.square_term(40, 1 << 20) == twin.square_term(40, 1 << 30) == 1
    assert [twin.count_shift(edges) for edges in (0, (1 << 30) - 1, 1 << 30, 1 << 40)] == [0, 0, 1, 21]
    for edges in ((1 << 30) - 1, 1 << 30, (1 << 40) - 1):
        assert twin.count_score(edges, twin.count_shift(edges)) + edges < 1 << 62
    for n in (1, 1 << 21, 1 << 40):
        degrees = [0, 1, 7, 1 << 20, 1 << 30]
        of_columns = scores_of_columns(torch.tensor(degrees), n, "squares").tolist()
        assert of_columns == [twin.square_term(twin.square_bits(n), max(1, degree)) for degree in degrees]
    for large in ((1 << 30) - 3, (1 << 30) - 2, 1 << 33):  # beside batches whose sums are small
        counts = [[large, 2], [5, 7]]
        expected = [twin.count_score(count, twin.count_shift(sum(some))) for some in counts for count in some]
        assert squared_counts(torch.tensor(counts).view(-1), torch.tensor([0, 0, 1, 1]), 2).tolist() == expected


# Weights #############################################################################################################


def test_self_normalized_rows_keep_their_sum():
    graph, seeds = random_graph(80, 6, seed=5), random_ids(80, 20, seed=6)
    degree = graph.colptr.diff()
    whole = {"mean": torch.ones(80), "sum": degree.double(), "gcn": torch.zeros(80, dtype=torch.float64)}
    factor = 1 / (degree.repeat_interleave(degree) * degree[graph.row]).double().sqrt()
    whole["gcn"].index_add_(0, torch.arange(80).repeat_interleave(degree), torch.where(factor.isinf(), 0.0, factor))
    for aggregation in AGGREGATIONS:
        for scheme in SCHEMES[:4]:
            found = both(graph, seeds, [15], 7, LADIES._replace(aggregation=aggregation, scheme=scheme))
            rows = torch.zeros(len(seeds), dtype=torch.float64)
            rows.index_add_(0, found.edge_index[0][1], found.edge_weight[0].double())
            drawn = rows > 0
            assert drawn.any()
            assert torch.allclose(rows[drawn], whole[aggregation][seeds][drawn].double(), rtol=1e-5)


def test_all_candidates_have_the_weights_of_the_whole_list():
    for weights in WEIGHTS:
        found = both(FIGURE, BATCH, [-1], 1, LADIES._replace(weights=weights))
        assert torch.allclose(found.edge_weight[0], torch.tensor([1 / 3] * 3 + [1 / 2] * 2))
    assert (both(FIGURE, BATCH, [-1], 1, LADIES._replace(aggregation="gcn")).edge_weight[0] == 0).all()


# Frontiers ###########################################################################################################


def test_a_repeated_seed_has_its_own_row_and_edges():
    once = both(FIGURE, BATCH, [2], 4, LADIES)
    twice = both(FIGURE, torch.tensor([1, 5, 1]), [2], 4, LADIES)
    of = once.edge_index[0][1] == 0
    again = twice.edge_index[0][1] == 2
    assert torch.equal(twice.edge_id[0][again], once.edge_id[0][of])
    assert torch.equal(twice.edge_weight[0][again], once.edge_weight[0][of])


def test_known_candidates_stay_beside_s_others():
    graph, seeds = random_graph(60, 6, seed=8), torch.arange(0, 30)
    found = both(graph, seeds, [4], 2, LADIES._replace(keep_known=True))
    sources = found.node[0][found.edge_index[0][0]].unique()
    known = torch.cat([graph.row[graph.colptr[i] : graph.colptr[i + 1]] for i in seeds]).unique()
    assert set(sources[sources < 30].tolist()) == set(known[known < 30].tolist())
    assert found.num_nodes == [[30, 4]]
    assert (sources >= 30).sum() == 4
    for method in METHODS[:2]:  # those of all hops before, not of the last one alone
        for layers in (False, True):
            both(graph, seeds[:6], [5, 5, 5], 2, ops.LayerDrawing(method, keep_known=True), layers=layers)


def test_exactly_s_distinct_nodes_are_sources():
    graph, seeds = random_graph(60, 6, seed=8), torch.arange(0, 30)
    for scheme in ("priority", "successive"):
        found = both(graph, seeds, [7], 2, LADIES._replace(scheme=scheme))
        assert len(found.edge_index[0][0].unique()) == 7


def test_sources_without_their_destinations():
    graph, seeds = random_graph(60, 6, seed=8), torch.tensor([3, 9, 9, 40])
    found = both(graph, seeds, [8, 5], 2, LADIES, layers=True, include_dst=False)
    first, second = found.edge_index[0].split(found.num_edges[0], dim=1)
    blocks = found.node[0].split(found.num_nodes[0])
    edges = torch.stack([graph.row, torch.arange(60).repeat_interleave(graph.colptr.diff())])[:, found.edge_id[0]]
    for hop, local in enumerate((first, second)):
        begin = sum(found.num_edges[0][:hop])
        assert torch.equal(blocks[hop + 1][local[0]], edges[0, begin : begin + local.size(1)])
        assert torch.equal(blocks[hop][local[1]], edges[1, begin : begin + local.size(1)])
    assert len(blocks[1]) == 8


# Bad input ###########################################################################################################


def test_scores_need_not_be_contiguous():
    graph, drawing = random_graph(60, 6, seed=8), ops.LayerDrawing("fastgcn")
    score = torch.arange(1, 121)[::2]
    found, expected = (
        ops.sample_layers(graph.relations(), torch.arange(9), [5, 5], 1, drawing, score=given)
        for given in (score, score.contiguous())
    )
    assert_same(found, expected)


def test_a_prepared_graph_is_pickled_after_it_was_used():
    graph = graph_of_degrees([3, 2, 4, 0, 5])
    prepared = ops.PreparedLayers(graph.relations(), [2, 2], ops.LayerDrawing("ladies"))
    expected = prepared.sample(torch.tensor([2, 4]), 5)
    again = pickle.loads(pickle.dumps(prepared))
    assert again._held is None
    assert torch.equal(again.sample(torch.tensor([2, 4]), 5).node[0], expected.node[0])
