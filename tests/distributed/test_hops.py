"""One hop at a time: composed hop by hop, the two operators give the sample of all hops, in every mode, bit for bit."""

import re
from itertools import pairwise

import pytest
import reference
import torch
from helpers import forked
from helpers.graphs import Graph, assert_same, graph_of_degrees, random_graph, random_ids, small_graphs
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops
from torch_gnnscale.distributed.neighbor_sampling import by_hops, finish_together
from torch_gnnscale.distributed.owners import _Form

INDEX = [torch.int32, torch.int64]
MODES = ["uniform", "weight", "disjoint", "time", "last", "window"]


def case(graph: Graph, mode: str, seeds: torch.Tensor, seed: int = 1) -> tuple[ops.Relations, dict]:
    """The graph with what a mode needs, and the options of a sample in that mode."""
    generator, edges = torch.Generator().manual_seed(seed), len(graph.row)
    if mode == "weight":
        weight = torch.rand(edges, generator=generator) ** 4 + 1e-6
        return graph.relations(weight=[ops.weight_sums(graph.colptr, weight)]), {}
    if mode not in ("time", "last", "window"):
        return graph.relations(), {"disjoint": mode == "disjoint"}
    column = torch.arange(graph.num_nodes).repeat_interleave(graph.colptr.diff())
    drawn = torch.randint(20, (edges,), generator=generator)
    time = drawn[torch.argsort(column * 20 + drawn)]
    seed_time = torch.randint(22, (len(seeds),), generator=generator)
    options = {"disjoint": True, "last": mode == "last", "seed_time": [seed_time]}
    if mode == "window":
        options["seed_start_time"] = [seed_time - torch.randint(-1, 9, (len(seeds),), generator=generator)]
    return graph.relations(time=[time]), options


def parts_of(graph: ops.Relations, bounds: list[int]) -> list[tuple[int, ops.Relations]]:
    """The columns of each range of nodes, with the id of its first node; edges keep their ids."""
    (colptr,), (row,), (edge_id,), (weight,), (time,) = graph[:5]
    edge_id = torch.arange(len(row)) if edge_id is None else edge_id
    found = []
    for first, last in pairwise(bounds):
        pointer = colptr[first : last + 1]
        edges = slice(int(pointer[0]), int(pointer[-1]))
        of_edges = {"edge_id": [edge_id[edges]], "weight": [None if weight is None else weight[edges]],
                    "time": [None if time is None else time[edges]]}  # fmt: skip
        types = {"src_type": [0], "dst_type": [1], "sizes": [graph.sizes[0], last - first]}
        found.append((first, ops.relations([pointer - pointer[0]], [row[edges]], **of_edges, **types)))
    return found


def sample_by_hops(pick, seeds, fanouts, *ends, **options) -> ops.Sample:
    """A sample whose frontiers' edges ``pick`` draws; others as of ``by_hops``."""
    return finish_together([by_hops(seeds, fanouts, *ends, **options)], lambda waiting: list(map(pick, waiting)))[0]


def sample_over_parts(
    by, graph: ops.Relations, seeds: torch.Tensor, fanouts: list[int], key: int, *, bounds: list[int] | None = None,
    disjoint: bool = False, last: bool = False, layers: bool = False, replace: bool = False,
    seed_time: list[torch.Tensor] | None = None, seed_start_time: list[torch.Tensor] | None = None,
) -> ops.Sample:  # fmt: skip
    """A sample of ``ops`` or ``reference``, each hop's requests sent to the parts between ``bounds``."""
    parts = parts_of(graph, [0, graph.sizes[0]] if bounds is None else bounds)

    def pick(frontier):
        node = frontier.node
        count, pieces = torch.zeros(len(node), dtype=torch.int64), {}
        for first, part in parts:
            mine = ((node >= first) & (node < first + part.sizes[1])).nonzero().view(-1)
            found = by.pick_neighbors(
                part, node[mine], [0, len(mine)], [key], frontier.hop, frontier.fanout, first=first, replace=replace,
                tree=None if frontier.tree is None else frontier.tree[mine], last=last,
                time=None if frontier.time is None else frontier.time[mine],
                start_time=None if frontier.start_time is None else frontier.start_time[mine],
            )  # fmt: skip
            count[mine] = found.num_edges
            replies = [entry.split(found.num_edges.tolist()) for entry in found[1:]]
            pieces |= dict(zip(mine.tolist(), zip(*replies, strict=True), strict=True))
        none = (torch.empty(0, dtype=torch.int64),) * 2
        source, edge = (torch.cat(entry) for entry in zip(none, *(pieces[i] for i in range(len(node))), strict=True))
        return ops.Picks(count, source, edge)

    return sample_by_hops(
        pick, [seeds], [fanouts], disjoint=disjoint, layers=layers, seed_time=seed_time,
        seed_start_time=seed_start_time, relabel=by.relabel,
    )  # fmt: skip


@pytest.mark.parametrize("fanouts", [[5, 4, 3], [-1, 2], [1, 0, 4], [33, 40], []])
@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_hop_by_hop_is_the_sample_of_all_hops(mode, replace, layers, fanouts):
    graph, seeds = random_graph(400, 8, seed=5), random_ids(400, 40, seed=6)
    assert len(seeds.unique()) < len(seeds)
    stored, options = case(graph, mode, seeds)
    options |= {"replace": replace, "layers": layers}
    expected = ops.sample_neighbors(stored, [seeds], fanouts, 7, **options)
    for given_seeds, bounds in ((seeds, None), (seeds.int(), [0, 100, 100, 101, 400])):
        assert_same(sample_over_parts(ops, stored, given_seeds, fanouts, 7, bounds=bounds, **options), expected)


@pytest.mark.parametrize("windows", [(0, 1), (0,), (1,), ()])
def test_types_of_which_some_have_windows(windows):
    """A tree whose seed has no window begins before all times."""
    ends, sizes, generator = [(0, 1), (1, 0), (0, 0)], [60, 40], torch.Generator().manual_seed(2)
    graphs = [graph_of_degrees(torch.randint(9, (sizes[dst],), generator=generator), seed=4) for _, dst in ends]
    rows = [graph.row % sizes[src] for graph, (src, _) in zip(graphs, ends, strict=True)]
    times = [case(graph, "time", torch.empty(0))[0].time[0] for graph in graphs]
    graph = ops.relations(
        [graph.colptr for graph in graphs], rows, time=times, src_type=[0, 1, 0], dst_type=[1, 0, 0], sizes=sizes
    )
    seeds = [random_ids(size, 12, seed=size) for size in sizes]
    seed_time = [random_ids(22, 12, seed=5), random_ids(22, 12, seed=6)]
    start = [seed_time[of] - 6 if of in windows else None for of in range(2)]
    fanouts = [[3, 2], [-1, 2], [2, 0]]

    def pick(frontier):
        return ops.pick_neighbors(
            graph, frontier.node, [0, len(frontier.node)], [7], frontier.hop, frontier.fanout, tree=frontier.tree,
            time=frontier.time, start_time=frontier.start_time, relation=frontier.relation,
        )  # fmt: skip

    options = {"disjoint": True, "seed_time": seed_time, "seed_start_time": start}
    expected = ops.sample_neighbors(graph, seeds, fanouts, 7, **options)
    assert all(sum(counts) for counts in expected.num_edges)
    assert_same(sample_by_hops(pick, seeds, fanouts, ends, **options), expected)


@pytest.mark.slow
@given(
    graph=small_graphs(),
    data=st.data(),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 2, 3, 5, 12]), max_size=3),
    key=st.integers(-(1 << 63), (1 << 63) - 1),
    flags=st.tuples(*[st.booleans()] * 2),
    mode=st.sampled_from(MODES),
)
def test_small_graphs(graph, data, fanouts, key, flags, mode):
    count = graph.num_nodes
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []).long()
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, count), max_size=3))), count]
    stored, options = case(graph, mode, seeds)
    options |= dict(zip(["replace", "layers"], flags, strict=True))
    expected = reference.sample_neighbors(stored, [seeds], fanouts, key, **options)
    for by in (ops, reference):
        assert_same(sample_over_parts(by, stored, seeds, fanouts, key, bounds=bounds, **options), expected)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_requests_of_several_keys_and_threads(mode):
    graph, node = random_graph(3000, 12, seed=8), random_ids(3000, 2500, seed=9)
    stored, options = case(graph, mode, node)
    names = {"seed_time": "time", "seed_start_time": "start_time"}
    given = {name: options[of_seeds][0] for of_seeds, name in names.items() if of_seeds in options}
    given |= {"tree": random_ids(50, 2500)} if options.get("disjoint") else {}
    ends, keys = [0, 1000, 1000, 1003, 2500], [5, -6, 7, 1 << 40]
    for hop, fanout in ((0, 7), (3, -1), (63, 40)):
        arguments = (stored, node, ends, keys, hop, fanout)
        options = {"last": mode == "last", **given}
        expected = reference.pick_neighbors(*arguments, **options)
        for threads in (1, 2, 5):
            for found, theirs in zip(ops.pick_neighbors(*arguments, **options, threads=threads), expected, strict=True):
                assert torch.equal(found, theirs)


def test_draws_depend_on_the_number_of_the_relation():
    graph, node = random_graph(300, 12, seed=8), random_ids(300, 90, seed=9)
    stored = ops.relations([graph.colptr] * 3, [graph.row] * 3)
    found = []
    for relation in range(3):
        arguments = (stored, node, [0, 40, 90], [5, -6], 2, 3)
        found.append(ops.pick_neighbors(*arguments, relation=relation).source)
        assert torch.equal(found[-1], reference.pick_neighbors(*arguments, relation=relation).source)
    assert not any(torch.equal(found[0], other) for other in found[1:])


def check_high_words() -> None:
    """Nodes beyond 2^32, whose ids differ from those of the columns stored here in the high word alone."""
    degrees = [9, 40, 41, 33, 3, 64, 100, 50] * 3
    graph = graph_of_degrees(degrees, seed=2)
    node = random_ids(len(degrees), 80, seed=3)
    for fanout, replace, first in ((5, False, 1 << 32), (8, True, 5 << 36), (32, False, 3 << 32), (60, False, 1 << 33)):
        found = {}
        for base in (0, first):
            arguments = (graph.relations(), node + base, [0, 80], [11], 1, fanout)
            found[base] = ops.pick_neighbors(*arguments, first=base, replace=replace).edge_id
            expected = reference.pick_neighbors(*arguments, first=base, replace=replace).edge_id
            assert torch.equal(found[base], expected)
        assert not torch.equal(found[0], found[first])


@pytest.mark.slow
def test_nodes_beyond_2_to_32():
    check_high_words()


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize("simd", ["", "avx2", "0"])
def test_nodes_beyond_2_to_32_in_each_instruction_set(simd):
    code = "from test_hops import *; check_high_words()"
    done = forked.run(code, GNNSCALE_SIMD=simd)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", INDEX)
@pytest.mark.parametrize("trees", [False, True])
def test_relabel(dtype, trees):
    for key, (known, found) in enumerate([(0, 0), (0, 50), (50, 0), (9, 3), (3000, 20_000)]):
        node, ids = random_ids(1000, known, seed=key, dtype=dtype), random_ids(1000, found, seed=key + 9, dtype=dtype)
        given = {"known_tree": random_ids(9, known), "tree": random_ids(9, found, dtype=dtype)} if trees else {}
        result = ops.relabel(node, ids, **given)
        for ours, theirs in zip(result, reference.relabel(node, ids, **given), strict=True):
            assert ours is theirs is None or torch.equal(ours, theirs)
        assert torch.equal(torch.cat([node.long(), result.node])[result.local], ids.long())


def test_relabel_after_errors_and_large_ids():
    ids = torch.tensor([1 << 40, 5, (1 << 40) + 5, 1 << 40, 7])
    for _ in range(3):
        found = ops.relabel(torch.tensor([5, 9, 5]), ids)
        assert found.local.tolist() == [3, 0, 4, 3, 5]
        assert found.node.tolist() == [1 << 40, (1 << 40) + 5, 7]
        with pytest.raises(IndexError):
            ops.relabel(ids, ids, known_tree=ids, tree=ids)


GRAPH = graph_of_degrees([2, 3, 1])
STORED = GRAPH.relations()
TIMED = GRAPH.relations(time=[torch.zeros(6, dtype=torch.int64)])
NODE = torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (TypeError, "graph: expected what relations() returns, found tuple", {"graph": ()}),
        (ValueError, "relation: expected 0 <= relation <= 0, found 1", {"relation": 1}),
        (TypeError, "node: expected int32 or int64 ids, found torch.float32", {"node": NODE.float()}),
        (ValueError, "node: expected a vector, found shape (1, 2)", {"node": NODE.view(1, 2)}),
        (IndexError, "node[1] = 3 is out of range: expected nodes in [0, 3)", {"node": torch.tensor([0, 3])}),
        (IndexError, "node[0] = 0 is out of range: expected nodes in [5, 8)", {"first": 5}),
        (ValueError, "first: expected 0 <= first <= 4611686018427387904, found -1", {"first": -1}),
        (ValueError, "node_ptr: expected 2 entries for 1 keys, found 3", {"node_ptr": [0, 1, 2]}),
        (ValueError, "node_ptr: expected numbers that do not fall, from 0 to 2 nodes, found [0, 1]",
         {"node_ptr": [0, 1]}),
        (ValueError, "hop: expected 0 <= hop <= 63, found 64", {"hop": 64}),
        (ValueError, "fanouts[0]: expected -1 (all) or 0..131072, found -2", {"fanout": -2}),
        (ValueError, "tree: expected 2 trees, found 1", {"tree": torch.tensor([0])}),
        (IndexError, "tree[1] = -1 is out of range: expected trees in [0, 2147483648)",
         {"tree": torch.tensor([0, -1])}),
        (ValueError, "time: expected it where edges have times", {"graph": TIMED}),
        (ValueError, "time: expected it only where edges have times", {"time": NODE}),
        (TypeError, "time: expected an int64 vector, found torch.int32", {"graph": TIMED, "time": NODE.int()}),
        (ValueError, "start_time: expected it only where edges have times", {"start_time": NODE}),
        (ValueError, "start_time: expected shape (2,), found (1,)",
         {"graph": TIMED, "time": NODE, "start_time": NODE[:1]}),
        (ValueError, "last: expected a graph whose edges have times", {"last": True}),
        (RuntimeError, "the graph is malformed: row[5] = 9 in a graph of 3 nodes",
         {"graph": STORED._replace(row=[torch.tensor([0, 1, 2, 0, 1, 9])])}),
        (RuntimeError, "the graph is malformed: colptr[2] = 5, colptr[3] = 7 with 6 edges",
         {"graph": STORED._replace(colptr=[torch.tensor([0, 2, 5, 7])])}),
        (NotImplementedError, "node: expected a tensor in host memory, found one on meta; move it",
         {"node": NODE.to("meta")}),
        (ValueError, "tree: expected it on cpu, where node is, found it on meta", {"tree": NODE.to("meta")}),
        (ValueError, "graph.row: expected it on cpu, where node is, found it on meta",
         {"graph": STORED._replace(row=[GRAPH.row.to("meta")])}),
    ],
)  # fmt: skip
def test_bad_requests(error, message, change):
    arguments = {"graph": STORED, "node": NODE, "node_ptr": [0, 2], "keys": [1], "hop": 0, "fanout": -1}
    ops.pick_neighbors(**arguments)
    with pytest.raises(error, match=re.escape(message)):
        ops.pick_neighbors(**arguments | change)


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (TypeError, "known: expected int32 or int64 ids, found torch.float32", {"known": NODE.float()}),
        (ValueError, "ids: expected a vector, found shape (1, 2)", {"ids": NODE.view(1, 2)}),
        (ValueError, "tree and known_tree: expected both or none", {"tree": NODE}),
        (ValueError, "known_tree: expected 2 trees, found 1", {"tree": NODE, "known_tree": NODE[:1]}),
        (NotImplementedError, "ids: expected a tensor in host memory, found one on meta; move it",
         {"ids": NODE.to("meta")}),
        (ValueError, "known: expected it on cpu, where ids are, found it on meta", {"known": NODE.to("meta")}),
    ],
)  # fmt: skip
def test_bad_relabelling(error, message, change):
    with pytest.raises(error, match=re.escape(message)):
        ops.relabel(**{"known": NODE, "ids": NODE} | change)


@pytest.mark.parametrize("dtype", INDEX)
@pytest.mark.parametrize(("groups", "batches"), [(1, 1), (3, 1), (2, 2), (6, 3)])
def test_requests_arrive_as_they_were_sent(dtype, groups, batches):
    """Wherever they begin in what a rank gets of all."""
    form, counts = _Form(groups, batches, 2, dtype), 1 + torch.arange(groups)
    keys = [(1 << 62) + b for b in range(batches)]
    requests = torch.arange(2 * int(counts.sum())).view(-1, 2).to(dtype)
    sent = form.sent(counts, requests, keys)
    assert sent.dtype == dtype
    for begin in range(3):
        came = torch.cat([torch.zeros(begin, dtype=dtype), sent])[begin:]
        found = form.received(came, keys[0])
        assert torch.equal(found.table, requests.to(torch.int64))
        assert (found.counts, found.keys) == (counts.tolist(), keys)
    nothing = form.sent(counts * 0, requests[:0], keys)
    assert len(nothing) == 0
    found = form.received(nothing, 7)
    assert (found.table.shape, found.counts, found.keys) == ((0, 2), [0] * groups, [7] * batches)
