"""Scores of how often features are read: the twin's, and those that batches themselves have."""

import re

import pytest
import reference
import torch
from helpers.graphs import Graph, random_graph, random_ids
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import CSC, NeighborLoader, ops
from torch_gnnscale.feature import hotness
from torch_gnnscale.loader import accesses, accesses_by_hop


def csc_of(graph: Graph) -> CSC:
    return CSC(graph.colptr, graph.row, graph.edge_id, graph.num_nodes)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_reverse_pagerank_equals_the_twin(dtype, iterations):
    graph = random_graph(300, 6, seed=1).stored(dtype, dtype, interleaved=True)
    initial = torch.randint(ops.score_unit(300), (300,), generator=torch.Generator().manual_seed(1))
    for damping in (0.0, 0.5, 0.85, 1.0):
        expected = reference.reverse_pagerank(graph.colptr, graph.row, initial, iterations, damping)
        found = ops.reverse_pagerank(graph.colptr, graph.row, initial, iterations, damping)
        assert torch.equal(found, expected)


@pytest.mark.slow
def test_threads_change_nothing():
    graph = random_graph(40_000, 40, seed=2)
    assert len(graph.row) > 3 << 17
    initial = torch.full((40_000,), ops.score_unit(40_000))
    one = ops.reverse_pagerank(graph.colptr, graph.row, initial, threads=1)
    for threads in (2, 3, 20):
        assert torch.equal(ops.reverse_pagerank(graph.colptr, graph.row, initial, threads=threads), one)
    scores = torch.full((40_000,), 1.0, dtype=torch.float64)
    share = torch.zeros(40_000, dtype=torch.float64)
    column = torch.arange(40_000).repeat_interleave(graph.colptr.diff())
    for _ in range(5):
        share = scores * 0.85 / graph.colptr.diff().clamp(min=1)
        scores = torch.full_like(scores, 0.15).index_add_(0, graph.row, share[column])
    assert torch.allclose(one.double() / ops.score_unit(40_000), scores, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("size", [1, 5, 1000, 40_000])
def test_counts_equal_the_twin_and_those_of_any_number_of_threads(dtype, size):
    ids = random_ids(size, (3 << 18) + 77, seed=size, dtype=dtype)
    for some in (ids[:0], ids[:1000], ids[:2000].view(-1, 2)[:, 1]):
        assert torch.equal(ops.count_ids(some, size), reference.count_ids(some, size))
    for threads in (1, 2, 3, 20):
        assert torch.equal(ops.count_ids(ids, size, threads), torch.bincount(ids, minlength=size))
    assert torch.equal(ops.count_ids(ids[:0], 0), torch.empty(0, dtype=torch.int64))


def test_the_weighted_scores_of_a_chain():
    # 0 -> 1 -> 2, and training starts from 2: its neighbors are hotter the nearer they are.
    csc = CSC.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 3)
    unit = ops.score_unit(3)
    scores = hotness.reverse_pagerank(csc, torch.tensor([2]), iterations=1) / unit
    assert scores.tolist() == pytest.approx([0.15 + 0.85, 0.15 + 0.85 * 3, 0.15], abs=1e-6)
    scores = hotness.reverse_pagerank(csc, torch.tensor([2]), iterations=2) / unit
    assert scores.tolist() == pytest.approx([0.15 + 0.85 * (0.15 + 0.85 * 3), 0.15 + 0.85 * 0.15, 0.15], abs=1e-6)
    mask = torch.tensor([False, False, True])
    assert torch.equal(hotness.reverse_pagerank(csc, mask), hotness.reverse_pagerank(csc, torch.tensor([2, 2])))
    assert torch.equal(hotness.reverse_pagerank(csc), hotness.reverse_pagerank(csc, torch.arange(3)))


@pytest.mark.parametrize("nodes", [[4], [0, 3], [0, 1, 4], [0, 1, 2, 3]])
def test_labelled_nodes_share_the_initial_scores(nodes):
    csc = CSC.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 5)
    scores = hotness.reverse_pagerank(csc, torch.tensor(nodes), iterations=0)
    expected = [5 / len(nodes) if node in nodes else 1.0 for node in range(5)]
    assert (scores / ops.score_unit(5)).tolist() == pytest.approx(expected, abs=1e-6)


def test_the_largest_sum_of_initial_scores():
    unit = ops.score_unit(5)
    most = torch.full((5,), 2 * unit)
    assert ops.reverse_pagerank(GRAPH.colptr, GRAPH.row, most, iterations=0).equal(most)
    with pytest.raises(ValueError, match=rf"^initial: expected .* a sum of at most {10 * unit}$"):
        ops.reverse_pagerank(GRAPH.colptr, GRAPH.row, most + unit // 50)


def test_labelled_ids_that_repeat_count_once():
    graph = random_graph(200, 5, seed=4)
    labelled = torch.tensor([7, 3, 7, 199, 3, 7])
    expected = hotness.reverse_pagerank(csc_of(graph), torch.tensor([3, 7, 199]))
    assert torch.equal(hotness.reverse_pagerank(csc_of(graph), labelled), expected)


def test_out_degree():
    graph = random_graph(200, 5, seed=3)
    assert torch.equal(hotness.out_degree(csc_of(graph)), torch.bincount(graph.row, minlength=200))


@pytest.mark.parametrize("prefetch", [0, 3])
def test_accesses_are_those_of_the_batches(prefetch):
    graph = random_graph(500, 6, seed=4)
    column = torch.arange(500).repeat_interleave(graph.colptr.diff())
    data = Data(edge_index=torch.stack([graph.row, column]), num_nodes=500)
    loader = NeighborLoader(data, [4, 3], random_ids(500, 90, seed=5), batch_size=32, shuffle=True, seed=3,
                            prefetch=prefetch)  # fmt: skip
    first = [batch.n_id for batch in loader]
    state = loader.state_dict()
    counted = accesses(loader, [0])
    assert torch.equal(counted, torch.bincount(torch.cat(first), minlength=500))
    assert loader.state_dict() == state
    second = [batch.n_id for batch in loader]
    assert torch.equal(accesses(loader, [0, 1]) - counted, torch.bincount(torch.cat(second), minlength=500))
    assert accesses(loader, []).sum() == 0


def test_the_scores_find_what_is_read():
    # Nodes are sampled near the seeds, as on the web: neighbors have numbers near by.
    generator, nodes = torch.Generator().manual_seed(6), 20_000
    col = torch.arange(nodes).repeat_interleave(8)
    row = (col + torch.randint(1, 20, (len(col),), generator=generator)) % nodes
    data, seeds = Data(edge_index=torch.stack([row, col]), num_nodes=nodes), random_ids(nodes, 40, seed=7)
    read = accesses(NeighborLoader(data, [5, 5], seeds, batch_size=50, seed=1), range(3)).double()

    def hit_rate(score: torch.Tensor) -> float:
        return float(read[torch.argsort(score, descending=True)[:2000]].sum() / read.sum())

    csc = CSC.from_data(data)
    weighted = hit_rate(hotness.reverse_pagerank(csc, seeds))
    assert hit_rate(read) > weighted > 0.3
    assert max(hit_rate(hotness.reverse_pagerank(csc)), hit_rate(hotness.out_degree(csc))) < 0.15


GRAPH = random_graph(5, 2, seed=8)
LOADER = NeighborLoader(Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=2), [1], seed=1)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "damping: expected 0 <= damping <= 1, found 1.5",
         lambda: hotness.reverse_pagerank(csc_of(GRAPH), damping=1.5)),
        (IndexError, "ids[1] = 3 is out of range: expected ids in [0, 3)",
         lambda: ops.count_ids(torch.tensor([0, 3]), 3)),
        (TypeError, "ids: expected int32 or int64 ids, found torch.float32", lambda: ops.count_ids(torch.ones(3), 3)),
        (ValueError, "iterations: expected 0 <= iterations <= 65536, found -1",
         lambda: hotness.reverse_pagerank(csc_of(GRAPH), iterations=-1)),
        (TypeError, "labelled: expected a tensor of ids or a mask, found list",
         lambda: hotness.reverse_pagerank(csc_of(GRAPH), [1])),
        (ValueError, "labelled: expected a mask of 5 nodes, found (3,)",
         lambda: hotness.reverse_pagerank(csc_of(GRAPH), torch.ones(3, dtype=torch.bool))),
        (IndexError, "labelled[1] = 5 is out of range: expected nodes in [0, 5)",
         lambda: hotness.reverse_pagerank(csc_of(GRAPH), torch.tensor([0, 5]))),
        (TypeError, "loader: expected one of this package with a KeyedSampler, found list",
         lambda: accesses([], [0])),
        (TypeError, "epochs: expected their numbers, found 3", lambda: accesses(LOADER, 3)),
        (ValueError, "epochs[1]: expected 0 <= epochs[1] <=", lambda: accesses(LOADER, [0, -1])),
        (TypeError, "epochs[0]: expected an int, found float", lambda: accesses(LOADER, [0.5])),
        (ValueError, "initial: expected int64 of shape (5,), found torch.float32 (5,)",
         lambda: ops.reverse_pagerank(GRAPH.colptr, GRAPH.row, torch.ones(5))),
        (ValueError, "initial: expected scores of at least 0 with a sum of at most",
         lambda: ops.reverse_pagerank(GRAPH.colptr, GRAPH.row, torch.tensor([-1, 0, 0, 0, 0]))),
        (ValueError, "initial: expected scores of at least 0 with a sum of at most",
         lambda: ops.reverse_pagerank(GRAPH.colptr, GRAPH.row, torch.full((5,), 1 << 61))),
        (ValueError, "csc: expected as many sources as destinations, found CSC(",
         lambda: hotness.reverse_pagerank(CSC(GRAPH.colptr, GRAPH.row, None, 6))),
    ],
)  # fmt: skip
def test_bad_input(error, message, call):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call()


def test_a_malformed_graph():
    row = GRAPH.row.clone()
    row[1] = 5
    with pytest.raises(RuntimeError, match=re.escape("the graph is malformed: row[1] is not in [0, 5)")):
        ops.reverse_pagerank(GRAPH.colptr, row, torch.zeros(5, dtype=torch.int64))


def test_orders_that_are_the_users_alone():
    data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    loader = NeighborLoader(data, [1], sampler=torch.utils.data.RandomSampler(range(2)), batch_size=1, seed=1)
    with pytest.raises(ValueError, match="samples: expected an order that follows from seed and epoch"):
        accesses(loader, [0])


def test_a_heterogeneous_graph():
    data = HeteroData()
    data["a"].num_nodes = 2
    data["a", "to", "a"].edge_index = torch.tensor([[0], [1]])
    loader = NeighborLoader(data, [1], ("a", None), batch_size=1, seed=1)
    with pytest.raises(
        NotImplementedError, match="accesses by hop of a heterogeneous graph's nodes are not implemented"
    ):
        accesses_by_hop(loader, [0])
