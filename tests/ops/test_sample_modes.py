"""Sampling with relations, weights, times, disjoint trees, exclusions and subgraphs equals the twin's, bit for bit."""

import re
import resource
from pathlib import Path

import pytest
import reference
import torch
from helpers.graphs import assert_same, graph_of_degrees, random_graph, random_ids
from helpers.sampling_cases import random_case, times_of, turned
from helpers.slow import SLOW

from torch_gnnscale import ops


@pytest.mark.parametrize("number", [number if number % 3 == 1 else SLOW(number) for number in range(16)])
def test_many_relations(number):
    """Of so many that nodes without edges of a relation are found without looking at its column pointers."""
    arguments, options = random_case(number, (31, 40, 70, 130))
    expected = reference.sample_neighbors(*arguments, **options)
    for threads in (1, 3):
        assert_same(ops.sample_neighbors(*arguments, **options, threads=threads), expected)


@pytest.mark.parametrize("layers", [SLOW(False), True])
def test_many_relations_of_different_sizes(layers):
    """Small arrays share a buffer, large ones have their own; neither is used again while a tensor of it lives."""
    graphs = [random_graph(300, 1 + 8 * (r % 10 == 0), seed=r) for r in range(40)]
    relations = ops.relations([graph.colptr for graph in graphs], [graph.row for graph in graphs])
    found, expected = (
        [executor.sample_neighbors(relations, [random_ids(300, 20)], [4, 3], key, layers=layers) for key in range(3)]
        for executor in (ops, reference)
    )
    sizes = [index.numel() for index in found[0].edge_index]
    assert min(sizes) < 512 < max(sizes)
    for sample, twin in zip(found, expected, strict=True):
        assert_same(sample, twin)
    kept = [[sample.edge_id[r] for sample in found] for r in (0, 1)]
    del sample, found
    ops.sample_neighbors(relations, [random_ids(300, 20)], [4, 3], 9, layers=layers)
    for r, ids in enumerate(kept):
        assert all(torch.equal(entry, twin.edge_id[r]) for entry, twin in zip(ids, expected, strict=True))


@pytest.mark.parametrize("block", [*range(10), *map(SLOW, range(10, 20))])
def test_random_cases(block):
    for number in range(30 * block, 30 * block + 30):
        arguments, options = random_case(number)
        expected = reference.sample_neighbors(*arguments, **options)
        assert_same(ops.sample_neighbors(*arguments, **options, threads=1 + number % 2), expected)


# Many batches at once ################################################################################################


@pytest.mark.parametrize("block", range(6))
def test_batches_dealt_to_threads(block):
    """Each equals what is drawn for it alone: in every mode, with other seeds, times and exclusions, or none."""
    for number in range(15 * block, 15 * block + 15):
        (graph, seeds, fanouts, key), options = random_case(number)
        times, starts, exclude = (options.pop(name) for name in ("seed_time", "seed_start_time", "exclude"))
        prepared = ops.PreparedNeighbors(graph, fanouts, **options)
        others = [ids[:3] for ids in seeds]
        batches = [
            (seeds, key, times, starts, exclude),
            (turned(seeds), 5, turned(times), turned(starts), None),
            (others, -6, None if times is None else [time[:3] for time in times], None, exclude),
            (seeds, key, times, starts, exclude),
        ]
        for threads in (1, 3):
            found = prepared.sample_many(*zip(*batches, strict=True), threads=threads)
            for sample, batch in zip(found, batches, strict=True):
                assert_same(sample, prepared.sample(*batch))
        assert prepared.sample_many([], []) == []


def test_an_error_names_the_first_batch_that_has_it():
    graph = random_graph(50, 4, seed=1)
    prepared = ops.PreparedNeighbors(graph.relations(), [2, 2])
    good, bad = torch.arange(9), torch.tensor([3, 50, -1])
    for threads in (1, 3):
        with pytest.raises(IndexError, match=r"^seeds\[2\]\[1\] = 50 is out of range: expected nodes in \[0, 50\)$"):
            prepared.sample_many([[good], [good], [bad], [good], [bad + 1]], range(5), threads=threads)
        for at in range(3):  # the first and the last one, too
            with pytest.raises(IndexError, match=rf"^seeds\[{at}\]\[1\] = 50 is out of range"):
                prepared.sample_many([[bad if batch == at else good] for batch in range(3)], range(3), threads=threads)
    with pytest.raises(ValueError, match=r"^keys: expected one entry for each of 2 batches, found 3$"):
        prepared.sample_many([[good], [good]], [1, 2, 3])
    with pytest.raises(ValueError, match=r"^exclude: expected one entry for each of 2 batches, found 1$"):
        prepared.sample_many([[good], [good]], [1, 2], exclude=[None])
    with pytest.raises(TypeError, match=r"^seeds\[1\]: expected int32 or int64 ids, found torch.float32$"):
        prepared.sample_many([[good], [good.float()]], [1, 2])
    with pytest.raises(ValueError, match=r"^seeds\[1\]: expected one entry for each of 1 node types, found 2$"):
        prepared.sample_many([[good], [good, good]], [1, 2])
    broken = ops.PreparedNeighbors(ops.relations([graph.colptr], [graph.row + 50]), [2, 2])
    with pytest.raises(RuntimeError, match="the graph is malformed"):
        broken.sample_many([[good[:0]], [good], [good]], [1, 2, 3])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_trees_of_more_nodes_than_local_ids():
    """They are refused before 16 GiB are asked for."""
    edges, limits = 1 << 31, resource.getrlimit(resource.RLIMIT_AS)
    graph = ops.relations([torch.tensor([0, edges])], [torch.zeros(1, dtype=torch.int32).expand(edges)])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), limits[1]))
    try:
        with pytest.raises(RuntimeError, match=r"a batch of disjoint trees has up to 2147483650 nodes, and 2\^31 are"):
            ops.sample_neighbors(graph, [torch.tensor([0])], [-1], 1, disjoint=True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


MODES = ["plain", "weight", "time", "last", "window", "exclude", "disjoint", "induced", "bidirectional", "layers"]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_threads_and_batches_in_a_row_change_nothing(mode, replace):
    graph = random_graph(3000, 12, seed=5)
    generator, nodes = torch.Generator().manual_seed(1), graph.num_nodes
    timed = mode in ("time", "last", "window")
    options: dict = {"replace": replace, "disjoint": timed or mode == "disjoint"}
    of_graph: dict = {}
    seeds = random_ids(nodes, 150, seed=6)
    if mode == "weight":
        of_graph["weight"] = [ops.weight_sums(graph.colptr, torch.rand(len(graph.row), generator=generator) + 0.01)]
    if timed:
        of_graph["time"], options["last"] = [times_of(graph.colptr, generator)], mode == "last"
        options["seed_time"] = [torch.randint(25, (150,), generator=generator)]
    if mode == "window":
        options["seed_start_time"] = [options["seed_time"][0] - torch.randint(8, (150,), generator=generator)]
    if mode == "exclude":
        column = torch.arange(nodes).repeat_interleave(graph.colptr.diff())
        some = torch.isin(column, seeds) & (torch.rand(len(column), generator=generator) < 0.5)
        pairs = torch.stack([graph.row[some], column[some]])
        options["exclude"] = [pairs[:, torch.argsort(pairs[1] * nodes + pairs[0])]]
    if mode in ("induced", "bidirectional"):
        options["subgraph"] = mode
    options["layers"] = mode == "layers"
    stored = graph.relations(**of_graph)
    for key in range(3):
        arguments = (stored, [seeds], [6, 5, 3][: 2 + key % 2], key)
        found = ops.sample_neighbors(*arguments, **options, threads=1)
        for threads in (2, 5):
            assert_same(ops.sample_neighbors(*arguments, **options, threads=threads), found)
        assert_same(found, reference.sample_neighbors(*arguments, **options))


@pytest.mark.slow
def test_a_large_weighted_fanout():
    graph = graph_of_degrees([5000, 3], seed=4)
    weight = [ops.weight_sums(graph.colptr, torch.rand(5003, generator=torch.Generator().manual_seed(1)) + 1e-3)]
    for replace in (False, True):
        arguments = (graph.relations(weight=weight), [torch.tensor([0, 1])], [1000], 3)
        found = ops.sample_neighbors(*arguments, replace=replace)
        assert_same(found, reference.sample_neighbors(*arguments, replace=replace))


def test_a_tree_has_no_edge_later_than_its_seed_and_shares_no_node():
    graph, generator = random_graph(400, 8, seed=9), torch.Generator().manual_seed(2)
    time = times_of(graph.colptr, generator)
    seeds, seed_time = random_ids(400, 60, seed=3), torch.randint(20, (60,), generator=generator)
    found = ops.sample_neighbors(graph.relations(time=[time]), [seeds], [5, 5], 1, seed_time=[seed_time], disjoint=True)
    source, destination = found.edge_index[0]
    tree = found.tree[0]
    assert torch.equal(tree[:60], torch.arange(60))
    assert torch.equal(tree[source], tree[destination])
    assert len(source) > 200
    assert (time[found.edge_id[0]] <= seed_time[tree[destination]]).all()
    assert len(torch.stack([tree, found.node[0]]).unique(dim=1)[0]) == len(tree)


def test_the_last_neighbors():
    graph = graph_of_degrees([10], seed=1)
    arguments = (graph.relations(time=[torch.arange(10)]), [torch.tensor([0])], [3], 1)
    times = {"seed_time": [torch.tensor([6])], "disjoint": True}
    assert ops.sample_neighbors(*arguments, **times, last=True).edge_id[0].tolist() == [4, 5, 6]
    assert max(ops.sample_neighbors(*arguments, **times).edge_id[0].tolist()) <= 6


def test_excluded_pairs_are_not_sampled_and_others_take_their_place():
    graph = random_graph(60, 10, seed=2)
    column = torch.arange(60).repeat_interleave(graph.colptr.diff())
    pairs = torch.stack([graph.row, column]).unique(dim=1)[:, ::3]
    pairs = pairs[:, torch.argsort(pairs[1] * 60 + pairs[0])]
    excluded = set(zip(*pairs.tolist(), strict=True))
    for subgraph in ("directional", "induced"):
        found = graph.sample(ops, torch.arange(60), [4], 1, exclude=[pairs], subgraph=subgraph)
        source, destination = found.node[0][found.edge_index[0]].tolist()
        assert not excluded & set(zip(source, destination, strict=True))
        if subgraph == "directional":
            left = torch.tensor(
                [pair not in excluded for pair in zip(graph.row.tolist(), column.tolist(), strict=True)]
            )
            candidates = torch.bincount(column[left], minlength=60)
            assert torch.equal(found.colptr[0].diff(), candidates.clamp(max=4))


def test_subgraphs_have_the_edges_that_they_promise():
    graph = random_graph(80, 6, seed=3)
    drawn, both, induced = (
        graph.sample(ops, torch.arange(10), [3, 2], 4, subgraph=kind)
        for kind in ("directional", "bidirectional", "induced")
    )
    assert torch.equal(drawn.node[0], both.node[0])
    assert torch.equal(drawn.node[0], induced.node[0])
    edges = set(zip(*drawn.edge_index[0].tolist(), strict=True))
    found = list(zip(*both.edge_index[0].tolist(), strict=True))
    assert len(found) == len(set(found))
    assert set(found) == edges | {(dst, src) for src, dst in edges}
    local = {node: i for i, node in enumerate(induced.node[0].tolist())}
    column = torch.arange(80).repeat_interleave(graph.colptr.diff())
    kept = [
        edge
        for edge, (src, dst) in enumerate(zip(graph.row.tolist(), column.tolist(), strict=True))
        if src in local and dst in local
    ]
    assert sorted(induced.edge_id[0].tolist()) == kept


def test_a_hop_may_find_more_nodes_than_there_are_destinations():
    ends = {"src_type": [1], "dst_type": [0], "sizes": [3, 300_000]}
    graph = ops.relations([torch.arange(4) * 100_000], [torch.arange(300_000)], **ends)
    found = ops.sample_neighbors(graph, [torch.arange(3), torch.empty(0, dtype=torch.int64)], [-1], 1)
    assert torch.equal(found.node[1], torch.arange(300_000))


GRAPH = graph_of_degrees([2, 2])
EDGES = {"colptr": [GRAPH.colptr], "row": [GRAPH.row]}
PAIR = {"colptr": [GRAPH.colptr] * 2, "row": [GRAPH.row] * 2}
TYPES = {**PAIR, "src_type": [0, 1], "dst_type": [1, 0]}
SEED = torch.tensor([0])


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "row: expected one entry for each of 1 relations, found 0", {"row": []}),
        (ValueError, "edge_id: expected one entry for each of 1 relations, found 2", {"edge_id": [None, None]}),
        (ValueError, "edge_id: expected one for each of 4 edges, found 3", {"edge_id": [torch.arange(3)]}),
        (ValueError, "src_type: expected 0 <= src_type <= 0, found 1", {"src_type": [1], "sizes": [2]}),
        (ValueError, "src_type: expected 0 <= src_type <= 1, found 2", {"src_type": [2]}),
        (ValueError, "sizes: expected at least one node type, found none", {"sizes": []}),
        (ValueError, "sizes: expected them, for no relation leads to node types [1]", {"src_type": [1]}),
        (ValueError, "sizes: expected them, for no relation leads to node types [0]", {"colptr": [], "row": []}),
        (ValueError, "colptr[0]: expected 4 entries for 3 nodes, found 3", {"sizes": [3]}),
        (ValueError, "colptr[1]: expected 3 entries for 2 nodes, found 2",
         {**PAIR, "colptr": [GRAPH.colptr, torch.tensor([0, 4])], "sizes": [2]}),
        (TypeError, "colptr: expected an int64 vector, found torch.int32 (3,)", {"colptr": [GRAPH.colptr.int()]}),
        (TypeError, "row: expected int32 or int64 ids, found torch.float32", {"row": [GRAPH.row.float()]}),
        (TypeError, "time[0]: expected an int64 vector, found torch.float32", {"time": [torch.ones(4)]}),
        (ValueError, "weight[0]: expected shape (4,), found (3,)", {"weight": [torch.arange(3)]}),
        (ValueError, "reverse: expected one entry for each of 1 relations, found 0", {"reverse": []}),
        (ValueError, "reverse[0]: expected a relation from type 1 to 0", {**TYPES, "reverse": [0, 0]}),
        (ValueError, "colptr: expected at most 1024 relations, found 1025",
         {"colptr": [GRAPH.colptr] * 1025, "row": [GRAPH.row] * 1025}),
    ],
)  # fmt: skip
def test_bad_relations(error, message, arguments):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        ops.relations(**{**EDGES, **arguments})


@pytest.mark.parametrize(
    ("error", "message", "of_graph", "arguments"),
    [
        (ValueError, "seeds: expected one entry for each of 1 node types, found 0", {}, {"seeds": []}),
        (ValueError, "seeds: expected one entry for each of 1 node types, found 2", PAIR, {"seeds": [SEED, SEED]}),
        (ValueError, "seed_time: expected one entry for each of 1 node types, found 0", {}, {"seed_time": []}),
        (ValueError, "exclude: expected one entry for each of 2 relations, found 1", PAIR, {"exclude": [None]}),
        (ValueError, "fanouts: expected 2 lists of as many hops, found [[1]]", TYPES,
         {"seeds": [SEED, SEED], "fanouts": [[1]]}),
        (ValueError, "fanouts: expected 2 lists of as many hops, found [[1], [1, 2]]", TYPES,
         {"seeds": [SEED, SEED], "fanouts": [[1], [1, 2]]}),
        (ValueError, "subgraph: expected one of ('directional', 'bidirectional', 'induced'), found 'all'", {},
         {"subgraph": "all"}),
        (ValueError, "layers: expected subgraph='directional', whose hops have edges, found 'induced'", {},
         {"subgraph": "induced", "layers": True}),
        (ValueError, "time: expected disjoint=True, for each seed has a time of its own", {"time": [torch.arange(4)]},
         {}),
        (TypeError, "seed_time[0]: expected an int64 vector, found NoneType", {"time": [torch.arange(4)]},
         {"disjoint": True}),
        (ValueError, "seed_time[0]: expected shape (1,), found (2,)", {"time": [torch.arange(4)]},
         {"disjoint": True, "seed_time": [torch.arange(2)]}),
        (ValueError, "seed_start_time: expected one entry for each of 1 node types, found 2", {},
         {"seed_start_time": [SEED, SEED]}),
        (ValueError, "seed_start_time[0]: expected shape (1,), found (2,)", {}, {"seed_start_time": [torch.arange(2)]}),
        (TypeError, "seed_start_time[0]: expected an int64 vector, found torch.float32", {"time": [torch.arange(4)]},
         {"disjoint": True, "seed_time": [SEED], "seed_start_time": [torch.ones(1)]}),
        (TypeError, "exclude[0]: expected int64 of shape [2, m], found torch.int64 (3,)", {},
         {"exclude": [torch.arange(3)]}),
        (ValueError, "exclude[0]: expected pairs sorted by destination, then source", {},
         {"exclude": [torch.tensor([[0, 0], [1, 0]])]}),
        (ValueError, "exclude[0]: expected pairs sorted by destination, then source", {},
         {"exclude": [torch.tensor([[1, 0], [1, 1]])]}),
        (IndexError, "seeds[1][0] = 5 is out of range: expected nodes in [0, 2)", TYPES,
         {"seeds": [SEED, torch.tensor([5])]}),
        (IndexError, "seeds[1] = -1 is out of range: expected nodes in [0, 2)", {},
         {"seeds": [torch.tensor([0, -1], dtype=torch.int32)]}),
    ],
)  # fmt: skip
def test_bad_arguments(error, message, of_graph, arguments):
    graph = ops.relations(**{**EDGES, **of_graph})
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        ops.sample_neighbors(graph, **{"seeds": [SEED], "fanouts": [1], "key": 0, **arguments})


def test_a_graph_that_was_not_checked():
    seeds, graph = [SEED], ops.relations(**EDGES)
    with pytest.raises(TypeError, match=r"^graph: expected what relations\(\) returns, found list$"):
        ops.sample_neighbors([GRAPH.colptr], seeds, [1], 0)
    for name in ("edge_id", "weight", "time"):
        with pytest.raises(RuntimeError, match="relation 0 has 4 edges and another number of their ids"):
            ops.sample_neighbors(graph._replace(**{name: [torch.arange(1)]}), seeds, [1], 0)


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"layers": True}])
def test_a_batch_after_one_with_seeds_that_are_none(options):
    graph = random_graph(300, 6, seed=5)
    for key in range(20):
        with pytest.raises(IndexError, match=r"seeds\[3\] = 300 is out of range") as caught:
            graph.sample(ops, torch.tensor([1, 2, 3, 300]), [4, 3], key, **options)
        assert caught.value.__context__ is None
        seeds = random_ids(300, 40, seed=key)
        found, expected = (graph.sample(by, seeds, [4, 3], key, **options) for by in (ops, reference))
        assert_same(found, expected)
