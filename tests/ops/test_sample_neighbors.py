"""Samples equal the twin's, bit for bit, and have the properties that the twin cannot vouch for."""

import concurrent.futures
import os
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from helpers import forked
from helpers.graphs import Graph, assert_same, graph_of_degrees, random_graph, random_ids, small_graphs
from helpers.slow import NIGHTLY, SLOW
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops

INDEX = [torch.int32, torch.int64]


def check(graph: Graph, seeds: torch.Tensor, fanouts: list[int], key: int = 1, threads: int = 1, **options):
    found = graph.sample(ops, seeds, fanouts, key, threads=threads, **options)
    assert_same(found, graph.sample(reference, seeds, fanouts, key, **options))
    return found


@pytest.mark.slow
@given(
    graph=small_graphs(),
    data=st.data(),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 2, 3, 5, 12]), max_size=4),
    key=st.integers(-(1 << 63), (1 << 63) - 1),
    flags=st.tuples(*[st.booleans()] * 4),
    threads=st.integers(0, 2),
)
def test_small_graphs(graph, data, fanouts, key, flags, threads):
    chosen = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), max_size=8)) if graph.num_nodes else []
    seeds = torch.tensor(chosen, dtype=data.draw(st.sampled_from(INDEX)))
    options = dict(zip(["replace", "layers", "with_col", "with_edge_id"], flags, strict=True))
    check(graph, seeds, fanouts, key, threads, **options)


@pytest.mark.parametrize("replace", [False, SLOW(True)])
@pytest.mark.parametrize("fanout", [-1, 0, 1, 2, 5, 15, 32, 33, 63, 64, 65, 66, 129, 511, 512, 513, 1000, 1500])
def test_degrees_around_the_bounds_of_the_method(fanout, replace):
    degrees = [
        0,
        1,
        2,
        5,
        6,
        63,
        64,
        65,
        66,
        72,
        79,
        100,
        127,
        128,
        129,
        511,
        512,
        513,
        514,
        700,
        1000,
        1001,
        1024,
        1500,
        1501,
        5000,
    ]
    graph = graph_of_degrees(degrees, seed=3)
    for key in (5, -6) if fanout <= 512 else (5,):
        check(graph, torch.arange(len(degrees)), [fanout], key, replace=replace)


@pytest.mark.slow
def test_largest_fanout():
    graph = graph_of_degrees([ops.MAX_FANOUT + 1, 3], seed=4, dtype=torch.int32)
    found = graph.sample(ops, torch.tensor([0, 1]), [ops.MAX_FANOUT], 3)
    assert found.num_edges == [[ops.MAX_FANOUT + 3]]
    picked = found.edge_id[0][: ops.MAX_FANOUT]
    assert len(picked.unique()) == ops.MAX_FANOUT
    assert picked.tolist() == reference.choose(3, 0, 0, ops.MAX_FANOUT + 1, ops.MAX_FANOUT, False)


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"layers": True}, {"replace": True, "layers": True}])
@pytest.mark.parametrize("dtype", INDEX)
@pytest.mark.parametrize("edge_id_dtype", [None, *INDEX])
@pytest.mark.parametrize("interleaved", [False, True])
def test_random_graphs(dtype, edge_id_dtype, interleaved, options):
    graph = random_graph(300, 6, seed=5).stored(dtype, edge_id_dtype, interleaved)
    assert graph.row.is_contiguous() != interleaved
    seeds = random_ids(300, 40, seed=6, dtype=dtype)
    assert len(seeds.unique()) < len(seeds)
    for fanouts in ([], [4], [3, -1], [5, 4, 2], [2, 2, 2, 2]):
        check(graph, seeds, fanouts, key=len(fanouts), **options)


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
def test_no_seeds_and_no_edges(num_nodes):
    empty = Graph(torch.zeros(num_nodes + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    for seeds in (torch.empty(0, dtype=torch.int64), torch.arange(num_nodes)):
        for layers in (False, True):
            check(empty, seeds, [3, -1], layers=layers)
    check(graph_of_degrees([2, 0, 3]), torch.empty(0, dtype=torch.int64), [2, 2])


def test_64_hops():
    ring = Graph(torch.arange(101), (torch.arange(100) + 1) % 100)
    found = check(ring, torch.tensor([0]), [1] * ops.MAX_HOPS)
    assert found.node[0].tolist() == list(range(65))


def test_repeated_seeds_have_rows_and_edges_of_their_own():
    graph = random_graph(50, 8, seed=7)
    once = graph.sample(ops, torch.tensor([4, 9, 2]), [5, 5], 3)
    found = check(graph, torch.tensor([4, 9, 4, 2, 4]), [5, 5], 3)
    begin = found.colptr[0]
    for column, original in ((0, 0), (1, 1), (2, 0), (3, 2), (4, 0)):
        ours = found.edge_id[0][begin[column] : begin[column + 1]]
        theirs = once.edge_id[0][once.colptr[0][original] : once.colptr[0][original + 1]]
        assert len(ours) > 0
        assert torch.equal(ours, theirs)
    assert not torch.isin(found.edge_index[0][0], torch.tensor([2, 4])).any()
    assert found.node[0][:5].tolist() == [4, 9, 4, 2, 4]
    assert torch.equal(found.node[0][5:], once.node[0][3:])


@pytest.mark.parametrize("fanout", [2, 3, NIGHTLY(32), SLOW(40)])
@pytest.mark.parametrize("replace", [False, True])
def test_more_than_2_to_32_neighbors(fanout, replace, tmp_path):
    """A row of zeros that takes no space, and positions as edge ids."""
    degrees = torch.tensor([3, 1, 0, (1 << 32) - 1, 2, 40, 33, 5, 7, (1 << 32) + 1, (1 << 32) + 9, 50, 0, 1, 2, 3])
    colptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    row = torch.from_file(str(tmp_path / "row"), shared=True, size=int(colptr[-1]), dtype=torch.int32)
    graph = Graph(colptr, row)
    found = graph.sample(ops, torch.arange(16), [fanout], 11, replace=replace)
    expected = [
        int(first) + pick
        for node, (first, degree) in enumerate(zip(colptr[:-1], degrees.tolist(), strict=True))
        for pick in reference.choose(11, node, 0, degree, fanout, replace)
    ]
    assert found.edge_id[0].tolist() == expected
    assert max(expected) > 2 << 32


@pytest.mark.parametrize("fanouts", [[5, 4], [3, -1]])
def test_graphs_of_a_billion_nodes(fanouts):
    """Local ids come from the table if fanouts bound the batch. Nearly all of colptr are zeros that take no space."""
    small, first = random_graph(3000, 12, seed=8), 1_000_000_000 - 3000
    colptr = torch.from_numpy(np.zeros(1_000_000_001, dtype=np.int64))
    colptr[first:] = small.colptr
    seeds = random_ids(3000, 200, seed=1) + first
    seeds, graph = torch.cat([seeds, seeds[:9]]), Graph(colptr, small.row + first)

    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    ops.pool_trim()
    before = mapped()
    found = graph.sample(ops, seeds, fanouts, 1, threads=2)
    assert (mapped() - before >= 4_000_000_000) == (fanouts[-1] < 0)  # the map
    assert_same(found, check(graph, seeds, fanouts, key=1))
    ops.pool_trim()


@pytest.mark.slow
def test_calls_from_several_threads_at_once():
    graphs = [random_graph(n, 10, seed=n) for n in (50, 3000, 20_000)]
    jobs = [(graphs[i % 3], random_ids(graphs[i % 3].num_nodes, 100 + i, seed=i), i) for i in range(120)]

    def work(job) -> ops.Sample:
        graph, seeds, key = job
        return graph.sample(ops, seeds, [10, 10, 5], key, threads=1 + key % 2)

    expected = [work(job) for job in jobs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found, single in zip(pool.map(work, jobs), expected, strict=True):
            assert_same(found, single)


def test_without_destinations_and_edge_ids():
    graph, seeds = random_graph(500, 8, seed=2).stored(torch.int64, torch.int64, False), random_ids(500, 60)
    full = graph.sample(ops, seeds, [4, 4], 5)
    bare = graph.sample(ops, seeds, [4, 4], 5, with_col=False, with_edge_id=False)
    assert torch.equal(bare.edge_index[0], full.edge_index[0][:1])
    assert bare.edge_id == []
    assert_same(bare._replace(edge_index=full.edge_index, edge_id=full.edge_id), full)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("layers", [False, True])
def test_edges_are_edges_of_the_graph(layers, replace):
    graph = random_graph(2000, 10, seed=11).stored(torch.int32, torch.int64, False)
    fanouts = [7, 3, 5]
    found = graph.sample(ops, random_ids(2000, 90, seed=4), fanouts, 6, layers=layers, replace=replace)
    position = graph.edge_id.argsort()[torch.searchsorted(graph.edge_id.sort().values, found.edge_id[0])]
    assert torch.equal(graph.edge_id[position], found.edge_id[0])
    source, destination = found.node[0][found.edge_index[0]]
    assert torch.equal(graph.row[position].long(), source)
    assert torch.equal(torch.searchsorted(graph.colptr, position, right=True) - 1, destination)

    known = list(accumulate(found.num_nodes[0]))
    columns = [torch.arange(0 if layers or hop == 0 else known[hop - 1], known[hop]) for hop in range(3)]
    degree = graph.colptr.diff()[found.node[0]]
    counts = [degree[c].gt(0) * f if replace else degree[c].clamp(max=f) for c, f in zip(columns, fanouts, strict=True)]
    assert torch.equal(found.colptr[0].diff(), torch.cat(counts))
    assert found.num_edges[0] == [int(count.sum()) for count in counts]
    assert torch.equal(found.edge_index[0][1], torch.cat(columns).repeat_interleave(torch.cat(counts)))
    if not replace:
        column = torch.arange(len(found.colptr[0]) - 1).repeat_interleave(torch.cat(counts))
        assert len(torch.stack([column, position]).unique(dim=1)[0]) == len(position)
    # New nodes come in the order of the edges that find them.
    first = {}
    for i, source_id in enumerate(found.edge_index[0][0].tolist()):
        first.setdefault(source_id, i)
    new = [i for i in first if i >= known[0]]
    assert new == list(range(known[0], len(found.node[0])))


def test_layers_with_all_neighbors_are_the_induced_edges():
    graph = random_graph(400, 3, seed=12)
    seeds = torch.randperm(400, generator=torch.Generator().manual_seed(1))[:10]
    found = graph.sample(ops, seeds, [-1, -1, -1], 0, layers=True)
    ends, known = list(accumulate(found.num_edges[0])), list(accumulate(found.num_nodes[0]))
    destination = torch.arange(400).repeat_interleave(graph.colptr.diff())
    reached = seeds
    for hop, begin in enumerate([0, *ends[:-1]]):
        expected = torch.isin(destination, reached).nonzero().flatten()
        assert torch.equal(found.edge_id[0][begin : ends[hop]].sort().values, expected)
        reached = torch.cat([reached, graph.row[expected]]).unique()
        assert torch.equal(found.node[0][: known[hop + 1]].sort().values, reached)
    # Each node found is expanded once by the other rule: the last layer holds the same edges.
    once = graph.sample(ops, seeds, [-1, -1, -1], 0)
    assert torch.equal(once.node[0], found.node[0])
    assert torch.equal(once.edge_id[0].sort().values, found.edge_id[0][ends[1] :].sort().values)


def test_key_and_hop_change_the_draws():
    graph, seeds = graph_of_degrees([30] * 200, seed=1), torch.arange(200)
    by_key = [graph.sample(ops, seeds, [5], key).edge_id[0] for key in (0, 1, -1, 1 << 32)]
    by_hop = graph.sample(ops, seeds, [5, 5], 0, layers=True).edge_id[0].split(1000)
    assert torch.equal(by_hop[0], by_key[0])
    picks = [*by_key, by_hop[1]]
    assert all(not torch.equal(a, b) for i, a in enumerate(picks) for b in picks[:i])


def test_one_relabel_map_serves_graphs_of_all_sizes():
    graphs = [random_graph(n, 6, seed=n) for n in (2000, 10, 300, 1, 40)]
    ops.pool_trim()
    for key in range(60):
        graph = graphs[key * 7 % 5]
        check(graph, random_ids(graph.num_nodes, 6, seed=key), [4, 3], key)


def check_the_last_tags(tags: int) -> None:
    """A batch's tags are the 4-byte numbers that follow those of the batch before: one for each of its nodes. ``tags``
    of them are left when the map is new."""
    graph, nodes = random_graph(100, 6, seed=1), torch.arange(100)
    for _ in range(tags - len(nodes)):
        check(graph, nodes[-1:], [])
    # As many tags are left as there are nodes, but there are more seeds. The cells of most nodes are still 0, which
    # would be a tag of this batch if its tags went on at 0.
    check(graph, torch.cat([nodes[-3:].repeat(50), nodes[:60].flip(0)]), [3, 2])
    for key in range(50):
        check(graph, random_ids(100, 20, seed=key), [3, 3], key)


@pytest.mark.slow
def test_relabel_map_survives_the_wrap_of_its_tags():
    done = forked.run("from test_sample_neighbors import *; check_the_last_tags(500)", GNNSCALE_TAGS="500")
    assert done.returncode == 0, done.stderr


def test_graph_malformed_after_all():
    graph = graph_of_degrees([5, 5, 5], seed=1)
    for value in (-1, 3):
        row = graph.row.clone()
        row[7] = value
        with pytest.raises(RuntimeError, match=rf"malformed: row\[7\] = {value} in a graph of 3 nodes"):
            Graph(graph.colptr, row).sample(ops, torch.tensor([1]), [-1], 0)
    for at, value in ((1, -2), (1, 11), (2, 16)):
        colptr = graph.colptr.clone()
        colptr[at] = value
        with pytest.raises(RuntimeError, match=rf"malformed: colptr\[.*{value}.* with 15 edges"):
            Graph(colptr, graph.row).sample(ops, torch.tensor([at]), [2], 0)
    check(graph, torch.tensor([1, 0]), [2, 2])


@pytest.mark.parametrize("bad", [3, 4, -1, 2**31 - 1])
@pytest.mark.parametrize("edge_id", [None, torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_source_that_is_no_node_ends_the_hop_that_reads_it(dtype, edge_id, bad):
    graph = Graph(torch.tensor([0, 2, 3, 4]), torch.tensor([1, 2, bad, 1])).stored(dtype, edge_id, edge_id == dtype)
    with pytest.raises(RuntimeError, match=rf"the graph is malformed: row\[2\] = {bad} in a graph of 3 nodes"):
        graph.sample(ops, torch.arange(3), [-1], 1)
    assert graph.sample(ops, torch.tensor([0, 2]), [-1], 1).node[0].tolist() == [0, 2, 1]


# Strides #############################################################################################################


def test_seeds_with_strides():
    graph, ids = random_graph(100, 6, seed=1), random_ids(100, 18)
    for seeds in (ids, ids.int()):
        assert_same(graph.sample(ops, seeds[::2], [3, 2], 7), graph.sample(ops, seeds[::2].clone(), [3, 2], 7))


@pytest.mark.parametrize("strided", ["row", "edge_id"])
def test_one_of_rows_and_edge_ids_with_strides(strided):
    """Of two columns side by side one is read, as if both were."""
    graph = random_graph(100, 6, seed=4).stored(torch.int64, torch.int64, interleaved=False)
    apart = graph._replace(**{strided: torch.stack([getattr(graph, strided)] * 2, dim=1)[:, 0]})
    found, expected = (
        ops.sample_neighbors(given.relations(), [torch.arange(20)], [[5, 5]], key=1, with_edge_id=True)
        for given in (apart, graph)
    )
    assert_same(found, expected)


def test_times_with_strides():
    graph, seeds, limits = random_graph(100, 6, seed=1), [random_ids(100, 9)], 50 * torch.arange(18).flip(0)
    timed = graph.relations()._replace(time=[torch.arange(len(graph.row))], timed=True)
    strided, whole = (
        ops.sample_neighbors(timed, seeds, [3, 2], 7, seed_time=[limit], disjoint=True)
        for limit in (limits[::2], limits[::2].clone())
    )
    assert_same(strided, whole)


@pytest.mark.parametrize("subgraph", ["directional", "induced"])
def test_trees_of_more_nodes_than_the_table_of_one_holds(subgraph):
    """All neighbors of two hops, of which one tree has more than 2^14 nodes: each tree is the sample of its seed."""
    size, generator = 20_000, torch.Generator().manual_seed(1)
    degree = torch.full((size,), 2)
    degree[5], degree[::7] = size - 1, 0
    colptr = torch.cat([torch.zeros(1).long(), degree.cumsum(0)])
    row = torch.randint(size, (int(degree.sum()),), generator=generator)
    row[int(colptr[5]) : int(colptr[6])] = torch.randperm(size, generator=generator)[: size - 1]
    graph, seeds = ops.relations([colptr], [row]), torch.tensor([3, 5, 9, 5, 11])
    options = {"subgraph": subgraph, "threads": 2}
    found = ops.sample_neighbors(graph, [seeds], [-1, -1], 1, disjoint=True, **options)
    source, destination = found.edge_index[0]
    for tree, seed in enumerate(seeds):
        alone = ops.sample_neighbors(graph, [seed[None]], [-1, -1], 1, **options)
        assert torch.equal(found.node[0][found.tree[0] == tree], alone.node[0])
        mine = found.tree[0][destination] == tree
        assert torch.equal(found.node[0][source[mine]], alone.node[0][alone.edge_index[0][0]])
        assert torch.equal(found.edge_id[0][mine], alone.edge_id[0])
