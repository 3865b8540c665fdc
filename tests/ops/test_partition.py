"""The operators that cut graphs into parts: equal to their twins, for any number of threads, and what they refuse."""

import re
from itertools import chain

import pytest
import reference
import torch
from helpers.graphs import Graph, random_graph, random_ids, small_graphs
from helpers.slow import examples
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops
from torch_gnnscale.ops import Side

DTYPES = [torch.int32, torch.int64]


def both(graph: Graph) -> list[Side]:
    side = Side(graph.colptr, graph.row, 0, 0, graph.num_nodes)
    return [side, side.transposed()]


def typed() -> list[Side]:
    """Nodes 0 .. 29 and 30 .. 69 with edges between and within them; nodes 70 .. 74 have none."""
    across = Side(random_graph(40, 4, 1).colptr, random_graph(40, 4, 1).row % 30, 30, 0, 30)
    within = Side(random_graph(30, 5, 2).colptr, random_graph(30, 5, 2).row.int(), 0, 0, 30)
    return [across, across.transposed(), within, within.transposed()]


def random_weight(count: int, constraints: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(4, (count, constraints), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_transpose_equals_the_twin(dtype, interleaved):
    graph = random_graph(200, 5, seed=1).stored(dtype, dtype, interleaved)
    for colptr, row, num_src in [(*graph[:2], 200), (*graph[:2], 250), (graph.colptr[:1], graph.row[:0], 7),
                                 (graph.colptr[:1], graph.row[:0], 0)]:  # fmt: skip
        for found, expected in zip(
            ops.transpose(colptr, row, num_src), reference.transpose(colptr, row, num_src), strict=True
        ):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)


def test_transpose_reads_nothing_after_the_last_pointer():
    """All columns but the last one are empty, and zeros follow it in memory."""
    colptr = torch.tensor([0, 0, 0, 3, 0, 0, 0, 0])[:4]
    found = ops.transpose(colptr, torch.tensor([1, 0, 1]), 2)
    assert [tensor.tolist() for tensor in found] == [[0, 1, 3], [2, 2, 2]]


@pytest.mark.slow
def test_threads_change_nothing_in_a_large_graph():
    graph = random_graph(60_000, 15, seed=2)
    assert len(graph.row) > 3 << 18
    one = [ops.transpose(graph.colptr, graph.row, 60_000, threads=1), ops.contract(both(graph), 60_000, threads=1)]
    weight = torch.stack([torch.ones(60_000, dtype=torch.int64), graph.colptr.diff()], 1)
    given = (both(graph), 60_000, torch.arange(60_000), weight, [50, 5000])
    label = ops.propagate_labels(*given, key=3, rounds=2, threads=1)
    assert label.unique().numel() < 40_000
    group = label.unique(return_inverse=True)[1]
    count = int(group.max()) + 1
    grouped = (both(graph), 60_000, torch.arange(count), torch.ones(count, 1, dtype=torch.int64), [30])
    larger = ops.propagate_labels(*grouped, key=3, group=group, threads=1)
    for threads in (2, 3, 20):
        many = [
            ops.transpose(graph.colptr, graph.row, 60_000, threads),
            ops.contract(both(graph), 60_000, threads=threads),
        ]
        assert all(
            torch.equal(a, b) for left, right in zip(one, many, strict=True) for a, b in zip(left, right, strict=True)
        )
        assert torch.equal(ops.propagate_labels(*given, key=3, rounds=2, threads=threads), label)
        assert torch.equal(ops.propagate_labels(*grouped, key=3, group=group, threads=threads), larger)


@pytest.mark.parametrize("most", [1 << 40, 3, 0])
@pytest.mark.parametrize("groups", [None, 1, 9, 100])
def test_contract_equals_the_twin(groups, most):
    for sides, count in [(both(random_graph(75, 4, 3)), 75), (typed(), 75), ([], 75), ([], 0)]:
        group = None if groups is None else random_ids(groups, count, seed=1)
        found = ops.contract(sides, count, group, groups, most=most)
        expected = reference.contract(sides, count, group, groups, most=most)
        assert all(torch.equal(a, b) and a.dtype == torch.int64 for a, b in zip(found, expected, strict=True))


def test_exactly_the_most_edges_are_returned():
    sides = both(random_graph(75, 4, 3))
    colptr, row, weight = ops.contract(sides, 75)
    for most, count in ((len(row), len(row)), (len(row) - 1, 0)):
        for found in (ops.contract(sides, 75, most=most), reference.contract(sides, 75, most=most)):
            assert torch.equal(found[0], colptr)
            assert torch.equal(found[1], row[:count])
            assert torch.equal(found[2], weight[:count])


def test_neighbors_that_share_a_cell_are_counted_for_each_node():
    """Of 24 nodes each pair, some of which share a cell of the hash table, are the neighbors of two nodes in a row."""
    pairs = torch.combinations(torch.arange(24)).repeat_interleave(2, 0)
    side = Side(torch.arange(len(pairs) + 1) * 2, pairs.reshape(-1), 24, 0, 24)
    found = ops.contract([side], 24 + len(pairs))
    assert all(map(torch.equal, found, reference.contract([side], 24 + len(pairs))))


def test_a_symmetric_contraction():
    colptr, row, weight = ops.contract(both(random_graph(300, 6, 1)), 300)
    dense = torch.zeros(300, 300, dtype=torch.int64)
    dense[torch.arange(300).repeat_interleave(colptr.diff()), row] = weight
    assert torch.equal(dense, dense.T)
    assert int(dense.diagonal().sum()) == 0


@pytest.mark.parametrize("constraints", [0, 1, 3])
@pytest.mark.parametrize("rounds", [0, 1, 4])
@pytest.mark.parametrize("steps", [1, 5])
def test_labels_equal_the_twin(constraints, rounds, steps):
    for sides, count in [(both(random_graph(75, 4, 3)), 75), (typed(), 75), ([], 75), ([], 0)]:
        for group, groups in [(None, count), (random_ids(20, count, seed=1), 25)]:
            weight = random_weight(groups, constraints)
            for label in (torch.arange(groups), random_ids(max(groups, 1), groups, seed=2) % 4):
                given = (sides, count, label, weight, [20] * constraints)
                options = {"key": 7, "group": group, "rounds": rounds, "steps": steps, "least": 2}
                options["fewest"] = None if rounds == 1 else [3] * constraints
                expected = reference.propagate_labels(*given, **options)
                for threads in (1, 2, 3):
                    assert torch.equal(ops.propagate_labels(*given, **options, threads=threads), expected)


@pytest.mark.slow
@given(small_graphs(), st.integers(0, 3), st.integers(1, 12), st.integers(-(1 << 63), (1 << 63) - 1))
@examples(60)
def test_labels_of_any_graph(graph, rounds, most, key):
    given = (both(graph), graph.num_nodes, torch.arange(graph.num_nodes), random_weight(graph.num_nodes, 2), [most, 9])
    found = ops.propagate_labels(*given, key=key, rounds=rounds, steps=3)
    assert torch.equal(found, reference.propagate_labels(*given, key=key, rounds=rounds, steps=3))
    sums = torch.zeros(graph.num_nodes, 2, dtype=torch.int64).index_add_(0, found, given[3])
    assert bool((sums <= torch.tensor([max(most, 3), 9])).all())  # more than that only by a node of its own


def test_two_cliques_become_two_clusters():
    ends = [(a, b) for first in (0, 10) for a in range(first, first + 10) for b in range(first, first + 10)] + [(0, 10)]
    graph = Graph(*ops.coo_to_csc(*torch.tensor(ends).T, 20, 20))
    side = Side(graph.colptr, graph.row[:, 0], 0, 0, 20)
    given = ([side, side.transposed()], 20, torch.arange(20), torch.ones(20, 1, dtype=torch.int64))
    label = ops.propagate_labels(*given, [10], key=1, rounds=20, steps=20)
    assert label[:10].unique().numel() == label[10:].unique().numel() == 1
    assert label[0] != label[10]
    smaller = ops.propagate_labels(*given, [4], key=1, rounds=20, steps=20)
    assert smaller.bincount().max() == 4


@pytest.mark.parametrize("rows", [{5: [328, 1677]}, {5: [1677, 328]}, {328: [5], 1677: [5]}])
def test_of_equal_priorities_the_first_comes_first(rows):
    """Under key 466, nodes 328 and 1677 have the same 32 bits; a label takes two nodes."""
    degree = torch.zeros(3000, dtype=torch.int64)
    for node, of_node in rows.items():
        degree[node] = len(of_node)
    colptr, row = torch.cat([degree[:1] * 0, degree.cumsum(0)]), torch.tensor([*chain(*rows.values())])
    given = ([Side(colptr, row, 0, 0, 3000)], 3000, torch.arange(3000), torch.ones(3000, 1, dtype=torch.int64), [2])
    expected = torch.arange(3000)
    expected[5 if 5 in rows else 328] = 328 if 5 in rows else 5
    assert torch.equal(ops.propagate_labels(*given, key=466, rounds=1, steps=1), expected)
    assert torch.equal(reference.propagate_labels(*given, key=466, rounds=1, steps=1), expected)


def test_no_label_falls_below_the_fewest():
    graph = random_graph(300, 8, 1)
    label, weight = random_ids(6, 300, seed=3), torch.ones(300, 1, dtype=torch.int64)
    given = (both(graph), 300, label, weight, [300])
    free = ops.propagate_labels(*given, key=1, rounds=10)
    assert free.bincount(minlength=6).min() < 10
    kept = ops.propagate_labels(*given, key=1, rounds=10, fewest=[30])
    assert kept.bincount(minlength=6).min() == 30
    assert not torch.equal(kept, label)


@pytest.mark.parametrize("place", [0, 70, -1])
def test_each_row_of_a_graph_to_be_transposed_is_checked(place):
    row = GRAPH.row.clone()
    row[place] = 50
    with pytest.raises(IndexError, match=rf"^row\[{place % len(row)}\] = 50 is out of range"):
        ops.transpose(GRAPH.colptr, row, 50)


GRAPH = random_graph(50, 4, 1)
SIDES, LABEL, WEIGHT = both(GRAPH), torch.arange(50), torch.ones(50, 1, dtype=torch.int64)


def labels(**changed):
    given = {"sides": SIDES, "num_nodes": 50, "label": LABEL, "weight": WEIGHT, "most": [5], "key": 1, **changed}
    return ops.propagate_labels(**given)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "label: expected int64 of shape (50,), found torch.int64 (49,)", lambda: labels(label=LABEL[1:])),
        (IndexError, "label[49] = 50 is out of range: expected labels in [0, 50)", lambda: labels(label=LABEL + 1)),
        (ValueError, "weight: expected int64 of shape (50, 2), found torch.int64 (50, 1)", lambda: labels(most=[5, 5])),
        (ValueError, "weight: expected int64 of shape (50, 1), found torch.float32 (50, 1)",
         lambda: labels(weight=WEIGHT.float())),
        (ValueError, "weight: expected numbers of at least 0 with sums below 2^62", lambda: labels(weight=-WEIGHT)),
        (ValueError, "weight: expected numbers of at least 0 with sums below 2^62",
         lambda: labels(weight=WEIGHT << 57)),
        (ValueError, "most: expected 0 <= most <= ", lambda: labels(most=[-1])),
        (ValueError, "fewest: expected one for each of 1 constraints, found 2", lambda: labels(fewest=[1, 2])),
        (ValueError, "fewest: expected 0 <= fewest <= ", lambda: labels(fewest=[-1])),
        (ValueError, "steps: expected 1 <= steps <= 4096, found 0", lambda: labels(steps=0)),
        (ValueError, "rounds: expected 0 <= rounds <= 65536, found -1", lambda: labels(rounds=-1)),
        (ValueError, "least: expected 0 <= least <= ", lambda: labels(least=-1)),
        (ValueError, "group: expected int64 of shape (50,), found torch.int32 (50,)",
         lambda: labels(group=LABEL.int())),
        (IndexError, "group[49] = 50 is out of range: expected groups in [0, 50)", lambda: labels(group=LABEL + 1)),
        (ValueError, "sides: expected nodes in [0, 49), found 0 to 49",
         lambda: labels(num_nodes=49, label=LABEL[:49], weight=WEIGHT[:49])),
        (ValueError, "sides: expected nodes in [0, 50), found -1 to 48",
         lambda: labels(sides=[SIDES[0]._replace(first_neighbor=-1)])),
        (RuntimeError, "the graph is malformed: row[", lambda: labels(sides=[SIDES[0]._replace(num_neighbors=9)])),
        (RuntimeError, "the graph is malformed: row[",
         lambda: ops.contract([SIDES[0]._replace(num_neighbors=9)], 50)),
        (ValueError, "num_groups: expected it with group, found one of them alone",
         lambda: ops.contract(SIDES, 50, LABEL)),
        (ValueError, "num_groups: expected it with group, found one of them alone",
         lambda: ops.contract(SIDES, 50, num_groups=50)),
        (IndexError, "row[", lambda: ops.transpose(GRAPH.colptr, GRAPH.row, 9)),
        (ValueError, "colptr[50] (the last): expected the number of edges",
         lambda: ops.transpose(GRAPH.colptr, GRAPH.row[1:], 50)),
    ],
)  # fmt: skip
def test_wrong_arguments(error, message, call):
    with pytest.raises(error, match=re.escape(message)):
        call()
