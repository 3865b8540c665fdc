"""Time windows of seeds: each tree is the one that is sampled from the graph that has only the edges of its window."""

from collections.abc import Callable

import pytest
import torch
from helpers.graphs import assert_same, graph_of_degrees, random_graph, random_ids
from helpers.sampling_cases import times_of
from helpers.slow import examples
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops

LEAST, MOST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max


def only(graph: ops.Relations, r: int, keep: torch.Tensor) -> dict:
    """Relation ``r`` with some of its edges, which keep their ids and integer weights, and without times."""
    colptr, row, edge_id, weight = graph.colptr[r], graph.row[r], graph.edge_id[r], graph.weight[r]
    before = torch.cat([torch.zeros(1, dtype=torch.int64), keep.cumsum(0)])
    kept = before[colptr]
    sums = None
    if weight is not None:
        each = weight.diff(prepend=weight.new_zeros(1))
        first = colptr[:-1][colptr.diff() > 0]
        each[first] = weight[first]
        total = torch.cat([weight.new_zeros(1), each[keep].cumsum(0)])
        sums = total[1:] - total[kept[:-1]].repeat_interleave(kept.diff())
    ids = torch.arange(len(row)) if edge_id is None else edge_id
    return {"colptr": kept, "row": row[keep], "edge_id": ids[keep], "weight": sums}


def of_window(graph: ops.Relations, start: int, end: int) -> ops.Relations:
    """The graph without edges earlier than ``start`` or later than ``end``."""
    parts = []
    for r, time in enumerate(graph.time):
        whole = torch.ones(len(graph.row[r]), dtype=torch.bool)
        parts.append(only(graph, r, whole if time is None else (time >= start) & (time <= end)))
    lists = {name: [part[name] for part in parts] for name in parts[0]}
    return ops.relations(
        **lists, src_type=graph.src_type, dst_type=graph.dst_type, sizes=graph.sizes, reverse=graph.reverse
    )


def tree_of(sample: ops.Sample, tree: int, relations: ops.Relations) -> list:
    """What a sample of disjoint trees has in one of them: by type its nodes, by relation the sources, destinations and
    ids of its edges."""
    nodes = [ids[trees == tree].tolist() for ids, trees in zip(sample.node, sample.tree, strict=True)]
    edges: list = []
    for r, (source, destination) in enumerate(sample.edge_index):
        mine = sample.tree[relations.dst_type[r]][destination] == tree
        ends = zip((relations.src_type[r], relations.dst_type[r]), (source, destination), strict=True)
        of_type = [sample.node[t][index[mine]].tolist() for t, index in ends]
        edges.append([*of_type, sample.edge_id[r][mine].tolist()])
    return [nodes, edges]


def check_windows(graph, seeds, starts, ends, fanouts, key, **options) -> None:
    """Every tree equals that of the filtered graph."""
    found = ops.sample_neighbors(
        graph, seeds, fanouts, key, seed_time=ends, seed_start_time=starts, disjoint=True, **options
    )
    tree = 0
    for start_of, end_of in zip(starts, ends, strict=True):
        for start, end in zip(start_of.tolist(), end_of.tolist(), strict=True):
            filtered = of_window(graph, start, end)
            alone = ops.sample_neighbors(filtered, seeds, fanouts, key, disjoint=True, **options)
            assert tree_of(found, tree, graph) == tree_of(alone, tree, graph)
            tree += 1


MODES: dict[str, dict] = {
    "uniform": {},
    "replace": {"replace": True},
    "induced": {"subgraph": "induced"},
    "bidirectional": {"subgraph": "bidirectional"},
    "layers": {"layers": True},
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_tree_is_that_of_the_filtered_graph(mode, weighted):
    graph, generator = random_graph(80, 9, seed=4), torch.Generator().manual_seed(5)
    weight = ops.weight_sums(graph.colptr, torch.rand(len(graph.row), generator=generator) + 0.01)
    stored = graph.relations(time=[times_of(graph.colptr, generator)], weight=[weight if weighted else None])
    seeds = [random_ids(80, 12, seed=6)]
    ends = [torch.randint(20, (12,), generator=generator)]
    starts = [ends[0] - torch.randint(10, (12,), generator=generator)]
    check_windows(stored, seeds, starts, ends, [4, 3], 7, **MODES[mode])


@st.composite
def typed_graphs(draw: Callable) -> tuple[ops.Relations, list[torch.Tensor]]:
    """Graphs of up to three relations, some of them with times or weights, and seeds of each type."""
    types = draw(st.integers(1, 2))
    sizes = [draw(st.integers(1, 5)) for _ in range(types)]
    relations: dict[str, list] = {name: [] for name in ("colptr", "row", "time", "weight", "src_type", "dst_type")}
    for _ in range(draw(st.integers(1, 3))):
        src, dst = (draw(st.integers(0, types - 1)) for _ in range(2))
        columns = [
            draw(st.lists(st.tuples(st.integers(0, sizes[src] - 1), st.integers(-3, 3)), max_size=9))
            for _ in range(sizes[dst])
        ]
        edges = [edge for column in columns for edge in sorted(column, key=lambda edge: edge[1])]
        colptr = torch.tensor([0, *map(len, columns)]).cumsum(0)
        timed, weighted = draw(st.integers(0, 3)) > 0, draw(st.booleans())
        row, time = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t().contiguous()
        weights = draw(st.lists(st.integers(1, 9), min_size=len(edges), max_size=len(edges)))
        relations["colptr"].append(colptr)
        relations["row"].append(row)
        relations["time"].append(time if timed else None)
        relations["weight"].append(ops.weight_sums(colptr, torch.tensor(weights)) if weighted else None)
        relations["src_type"].append(src)
        relations["dst_type"].append(dst)
    seeds = [torch.tensor(draw(st.lists(st.integers(0, size - 1), max_size=3)), dtype=torch.int64) for size in sizes]
    return ops.relations(**relations, sizes=sizes), seeds


BOUNDS = st.sampled_from([LEAST, LEAST + 1, -3, -2, -1, 0, 1, 2, 3, MOST])


@pytest.mark.slow
@examples(200)
@given(
    drawn=typed_graphs(),
    data=st.data(),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 2, 3, 5]), max_size=3),
    key=st.integers(-(1 << 63), (1 << 63) - 1),
    mode=st.sampled_from([*MODES]),
)
def test_any_graph(drawn, data, fanouts, key, mode):
    graph, seeds = drawn
    windows = [[sorted(data.draw(st.tuples(BOUNDS, BOUNDS))) for _ in ids] for ids in seeds]
    starts, ends = (
        [torch.tensor([window[side] for window in of_type], dtype=torch.int64) for of_type in windows]
        for side in (0, 1)
    )
    check_windows(graph, seeds, starts, ends, fanouts, key, **MODES[mode])


def test_the_last_ones_are_the_latest_within_the_window():
    graph = graph_of_degrees([10], seed=1).relations(time=[torch.arange(10)])
    seeds = [torch.zeros(4, dtype=torch.int64)]
    starts, ends = [torch.tensor([5, 0, 6, 7])], [torch.tensor([6, 6, 6, 6])]
    options = {"seed_time": ends, "seed_start_time": starts, "disjoint": True, "last": True}
    found = ops.sample_neighbors(graph, seeds, [3], 1, **options)
    assert found.colptr[0].diff().tolist()[:4] == [2, 3, 1, 0]
    assert found.edge_id[0].tolist() == [5, 6, 4, 5, 6, 6]


def test_the_least_time_is_no_limit():
    graph, seeds = random_graph(90, 7, seed=3), random_ids(90, 30, seed=4)
    time = times_of(graph.colptr, torch.Generator().manual_seed(1))
    time[: int(graph.colptr[9])] = LEAST
    stored, ends = graph.relations(time=[time]), [random_ids(20, 30, seed=5)]
    expected = ops.sample_neighbors(stored, [seeds], [3, 3], 7, seed_time=ends, disjoint=True)
    starts = [torch.full((30,), LEAST)]
    for given_starts in (starts, [None]):
        found = ops.sample_neighbors(
            stored, [seeds], [3, 3], 7, seed_time=ends, seed_start_time=given_starts, disjoint=True
        )
        assert_same(found, expected)


def test_excluded_edges_of_a_window():
    graph = ops.relations([torch.tensor([0, 12, 12, 12])], [torch.arange(12) % 3], time=[torch.arange(12)])
    pairs = torch.tensor([[1], [0]])
    found = ops.sample_neighbors(
        graph, [torch.tensor([0])], [-1], 7, seed_time=[torch.tensor([9])], seed_start_time=[torch.tensor([4])],
        exclude=[pairs], disjoint=True,
    )  # fmt: skip
    assert found.edge_id[0].tolist() == [5, 6, 8, 9]
