"""ops.reverse_edges: the id of the edge that leads the other way, for every edge."""

import re

import pytest
import reference
import torch
from helpers.graphs import random_ids
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops
from torch_gnnscale.ops.arguments import OPS
from torch_gnnscale.topology import CSC

LINKS = torch.tensor([[0, 1, 1, 2, 3, 3, 0], [1, 2, 2, 2, 0, 3, 1]])


def both_ways(links, order=None):
    """Links in both directions, in the given order."""
    ends = torch.cat([links, links.flip(0)], dim=1)
    return ends if order is None else ends[:, order]


def relations(*edges, sizes=(4,), id_type=None, times=None, reverse=None):
    """Of one node type, or from type 0 to 1 and back; with ids that are no positions, or none."""
    cscs = [CSC.from_edge_index(ends, (sizes[r], sizes[-1 - r])) for r, ends in enumerate(edges)]
    stored = [csc.edge_id.long() for csc in cscs]
    ids = [None] * len(cscs) if id_type is None else [(3 * edge + 1).to(id_type) for edge in stored]
    times = None if times is None else [time[edge] for time, edge in zip(times, stored, strict=True)]
    types = list(range(len(edges)))
    return ops.relations(
        [csc.colptr for csc in cscs], [csc.row for csc in cscs], edge_id=ids, time=times, src_type=types,
        dst_type=types[::-1], sizes=sizes, reverse=types[::-1] if reverse is None else reverse,
    )  # fmt: skip


def assert_equals_the_twin(graph, number=0, threads=1, **options):
    num_ids = 3 * len(graph.row[number]) + 2
    expected = reference.reverse_edges(graph, number, num_ids, **options)
    found = ops.reverse_edges(graph, number, num_ids, threads=threads, **options)
    assert (found is None) == (expected is None)
    if found is not None:
        wide = graph.edge_id[number] is not None and graph.edge_id[number].dtype == torch.int64
        assert found.dtype == (torch.int64 if wide else torch.int32)
        assert torch.equal(found.long(), expected)
    return found


@pytest.mark.parametrize("id_type", [None, torch.int32, torch.int64])
@pytest.mark.parametrize("in_order", [False, True])
def test_links_of_a_graph(id_type, in_order):
    ends = both_ways(LINKS)
    if in_order:
        ends = ends[:, torch.argsort(ends[0], stable=True)]
    assert assert_equals_the_twin(relations(ends, id_type=id_type)) is not None
    assert assert_equals_the_twin(relations(ends[:, :0], id_type=id_type)) is not None


@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_edges_that_lead_one_way_are_not_sorted(id_type):
    colptr = torch.arange(101)
    row = torch.arange(100, dtype=id_type).roll(-1)  # a ring
    given = (colptr, row, None, None)
    table, complete = OPS.reverse_edges(*given, *given, 100, True, 1)
    assert not complete
    assert len(table) == 0
    both = torch.stack([row, row.roll(2)], dim=1).flatten()
    given = (2 * colptr, both, None, None)
    table, complete = OPS.reverse_edges(*given, *given, 200, True, 1)
    assert complete
    assert table[table.long()].tolist() == list(range(200))


def test_an_edge_without_reverse_among_many():
    """That a look at a few edges does not find, because its reverse would be in a long column or it is one of many."""
    star = torch.stack([torch.arange(1, 5001), torch.zeros(5000, dtype=torch.int64)])
    assert assert_equals_the_twin(relations(star, sizes=(5001,))) is None
    ends = both_ways(torch.stack([torch.arange(1000), torch.arange(1000).roll(1)]))
    ends[0, 7] = 500
    assert assert_equals_the_twin(relations(ends, sizes=(1000,))) is None


def test_copies_of_an_edge_belong_together_in_their_order():
    ends = torch.tensor([[0, 1, 0, 1, 1, 0], [1, 0, 1, 0, 1, 0]])
    graph = relations(ends, sizes=(2,), id_type=torch.int64)
    table = ops.reverse_edges(graph, 0, 17)
    assert table[1::3].tolist() == [4, 1, 10, 7, 13, 16]
    assert table[::3].unique().tolist() == [-1]


@pytest.mark.parametrize("id_type", [None, torch.int32])
@pytest.mark.parametrize("column", [3, 60])
def test_two_relations(id_type, column):
    """Of nodes that need other types, in columns of a few edges and of many."""
    links = torch.stack([random_ids(9, 9 * column, 1), random_ids(column, 9 * column, 2)])
    order = torch.randperm(links.size(1), generator=torch.Generator().manual_seed(3))
    graph = relations(links, links.flip(0)[:, order], sizes=(9, column), id_type=id_type)
    for number in (0, 1):
        assert assert_equals_the_twin(graph, number) is not None
        mixed = graph._replace(row=[graph.row[0].long(), graph.row[1]])
        assert torch.equal(*(ops.reverse_edges(g, number, 30 * column) for g in (graph, mixed)))


@pytest.mark.slow
@given(st.data())
def test_any_relations(data):
    size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    ends = st.tuples(st.integers(0, size[0] - 1), st.integers(0, size[1] - 1))
    links = data.draw(st.lists(ends, max_size=30))
    back = data.draw(st.permutations(links))
    if links and data.draw(st.booleans()):  # another edge
        back[0] = data.draw(ends)
    edges = [torch.tensor(some, dtype=torch.int64).reshape(-1, 2).T for some in (links, back)]
    times = [torch.tensor(data.draw(st.lists(st.integers(0, 1), min_size=30, max_size=30))) for _ in edges]
    graph = relations(edges[0], edges[1].flip(0), sizes=size, id_type=torch.int32, times=times)
    assert_equals_the_twin(graph, data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2)))
    assert_equals_the_twin(graph, 0, same_time=True)


def test_times():
    ends, time = both_ways(LINKS), torch.arange(7).repeat(2)
    graph = relations(ends, times=[time])
    assert torch.equal(assert_equals_the_twin(graph, same_time=True), ops.reverse_edges(graph, 0, 44))
    late = relations(ends, times=[time + (torch.arange(14) == 9)])
    assert assert_equals_the_twin(late, same_time=True) is None
    assert ops.reverse_edges(late, 0, 14) is not None
    half = relations(LINKS, LINKS.flip(0), sizes=(4, 4), times=[time[:7]] * 2)
    assert ops.reverse_edges(half, 0, 7, same_time=True) is not None
    assert ops.reverse_edges(half._replace(time=[half.time[0], None]), 0, 7, same_time=True) is None


@pytest.mark.parametrize("shift", [-1, 1])
def test_times_of_two_relations(shift):
    """The other direction is no reverse, whether it is earlier or later."""
    time = torch.arange(7)
    other = time + shift * (torch.arange(7) == 3)
    graph = relations(LINKS, LINKS.flip(0), sizes=(4, 4), times=[time, other])
    for number in (0, 1):
        assert assert_equals_the_twin(graph, number, same_time=True) is None
        assert ops.reverse_edges(graph, number, 7) is not None


def test_a_copy_of_an_edge_has_no_reverse_in_the_next_column():
    """Its pointer passes the end of its column by one, to an edge from the same node."""
    graph = relations(torch.tensor([[0, 0], [0, 0]]), torch.tensor([[0, 0], [0, 1]]), sizes=(2, 1))
    assert assert_equals_the_twin(graph) is None


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 99_999, 100_000, 299_998])
def test_by_several_threads(at):
    """Half of the edges lead to and from one node; one edge that is another is found wherever it is."""
    links = torch.stack([random_ids(5000, 150_000, 1), random_ids(5000, 150_000, 2)])
    links[0, ::2] = 17
    ends = both_ways(links, torch.randperm(300_000, generator=torch.Generator().manual_seed(3)))
    graph = relations(ends, sizes=(5000,))
    one, *others = (ops.reverse_edges(graph, 0, 300_000, threads=threads) for threads in (1, 2, 3, 5))
    assert all(torch.equal(one, other) for other in others)
    src, dst = graph.row[0].long(), torch.repeat_interleave(graph.colptr[0].diff())
    assert torch.equal(one.long().sort().values, torch.arange(300_000))
    assert torch.equal(src[one.long()], dst)
    assert torch.equal(dst[one.long()], src)
    ends[1, at] = (ends[1, at] + 1) % 5000
    wrong = relations(ends, sizes=(5000,))
    assert all(ops.reverse_edges(wrong, 0, 300_000, threads=threads) is None for threads in (1, 3))


def test_what_is_refused():
    graph = relations(both_ways(LINKS), id_type=torch.int64)
    for wrong, message in (
        (lambda: ops.reverse_edges(graph, 1, 44), "number: expected 0 <= number <= 0, found 1"),
        (lambda: ops.reverse_edges(graph, 0, -1), "num_ids: expected 0 <= num_ids <= 1099511627776, found -1"),
        (
            lambda: ops.reverse_edges(graph._replace(reverse=[-1]), 0, 44),
            "number: expected a relation with a reverse relation, found relation 0 without",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            wrong()
    with pytest.raises(RuntimeError, match=r"the graph is malformed: expected ids of edges in \[0, 30\)"):
        ops.reverse_edges(graph, 0, 30)
    far = graph.row[0].clone()
    far[0] = -1
    with pytest.raises(RuntimeError, match=r"the graph is malformed: row\[0\] is not in \[0, 4\)"):
        ops.reverse_edges(graph._replace(row=[far]), 0, 44)
