"""How inference cuts the nodes of a stage into batches, and a hub's edges into pieces: by the definition."""

import pytest
import torch
from helpers.hetero import AUTHOR, PAPER, VENUE, make_hetero
from torch_geometric.data import Data
from torch_geometric.utils import add_remaining_self_loops

from torch_gnnscale.infer import work
from torch_gnnscale.infer.plan import StagePlan, Table
from torch_gnnscale.infer.stage import Rows
from torch_gnnscale.infer.staged_graph import WholeGraph
from torch_gnnscale.infer.staged_model import Pieces
from torch_gnnscale.infer.work import NodeSet, batches, first_hub, work_of_stage


def into(data, node_type, node):
    """The number of edges of each type into a node."""
    return [int((data[t].edge_index[1] == node).sum()) for t in data.edge_types if t[2] == node_type]


SETS = {
    PAPER: NodeSet(33, torch.arange(40)[torch.arange(40) % 6 != 1]),
    AUTHOR: NodeSet(9, begin=16),  # up to the last author
    VENUE: NodeSet(1, torch.tensor([4])),
}


DATA = make_hetero()
DEGREES = {t: [sum(into(DATA, t, node)) for node in of.slice(0, of.count)] for t, of in SETS.items()}


@pytest.mark.parametrize(("sizes", "size"), [([3] * 5, 3), ([1000, 7], 64), ([50, 0, 1], 10), ([9], 4), ([0, 0], 2)])
def test_batches_have_at_most_as_many_nodes(sizes, size):
    sets = dict(enumerate(map(NodeSet, sizes)))
    none = WholeGraph(Data(x=torch.zeros(3, 1), edge_index=torch.empty(2, 0, dtype=torch.int64)))
    none.columns.clear()
    parts = list(batches(none, sets, size, 1))
    assert all(0 < sum(end - first for first, end in part.values()) <= size for part in parts)
    for node_type, count in enumerate(sizes):
        assert [node for part in parts for node in range(*part[node_type])] == list(range(count))
    assert len(parts) <= 2 * -(-sum(sizes) // size)


@pytest.mark.parametrize("most_edges", [1, 2, 5, 6, 18, 40, 1000])
def test_work_has_at_most_as_many_edges(most_edges):
    """Or is a single node; pieces of its edges have as many of each type, but for the last one. Batches are cut no
    further than that, and each node is in one of them."""
    graph = WholeGraph(DATA)
    works = list(work_of_stage(graph, SETS, 7, most_edges, True))
    parts = {of.batch: of.part for of in works}
    assert list(parts) == list(range(1, len(parts) + 1))
    for node_type, of in SETS.items():
        assert [node for part in parts.values() for node in range(*part[node_type])] == list(range(of.count))

    def edges(part):
        return sum(sum(DEGREES[t][slice(*bounds)]) for t, bounds in part.items())

    for number, part in parts.items():
        of_batch = [of for of in works if of.batch == number]
        nodes = of_batch[0].num_nodes
        assert 1 <= nodes <= 7
        assert [of.completes for of in of_batch] == [False] * (len(of_batch) - 1) + [True]
        if nodes > 1 or edges(part) <= most_edges:
            assert edges(part) <= most_edges
            assert of_batch[0].piece is None
            continue
        ((node_type, seed),) = ((t, ids) for t, ids in of_batch[0].seeds(SETS).items() if len(ids))
        largest = max(into(DATA, node_type, int(seed)))
        pieces = [range(largest)[of.piece.edges] for of in of_batch]
        assert [edge for piece in pieces for edge in piece] == list(range(largest))
        assert all(0 < len(piece) <= most_edges for piece in pieces)
        assert len(pieces) == -(-largest // most_edges)
    assert [of.piece for of in work_of_stage(graph, SETS, 7, most_edges, False)] == [None] * len(parts)
    if most_edges == 1000:
        assert len(parts) == 9  # of 43 nodes at most 5, for of three types the shares are rounded up


@pytest.mark.parametrize("chunk", [1, 2, 9, 1000])
def test_the_first_hub_has_more_edges_than_may_be(chunk, monkeypatch):
    """Of all types together; a node with as many edges is none."""
    monkeypatch.setattr(work, "_CHUNK", chunk)
    graph = WholeGraph(DATA)
    for most in range(1 + max(map(max, DEGREES.values()))):
        found = first_hub(graph, SETS, most)
        expected = next(((t, at) for t, of in DEGREES.items() for at, count in enumerate(of) if count > most), None)
        if expected is None:
            assert found is None
        else:
            node_type, at = expected
            assert (found[0], found[1].tolist()) == (node_type, SETS[node_type].slice(at, at + 1).tolist())


@pytest.mark.parametrize(
    ("pieces", "loops"),
    [
        ([([0, 1, 2], [3.0, 4.0, 5.0])], [3.0]),
        ([([1, 0, 0], [3.0, 4.0, 5.0])], [5.0]),
        ([([0, 1], [3.0, 4.0]), ([2, 2], [5.0, 6.0])], [3.0]),
        ([([0, 1], [3.0, 4.0]), ([2, 0], [5.0, 6.0])], [6.0]),
        ([([1], [3.0]), ([], [])], [1.5]),
    ],
)
def test_self_loops_of_pieces_are_those_of_pyg(pieces, loops):
    """The last one's weight; where a node has none, ``fill``."""
    found, seen = Pieces(), []
    for at, (sources, weights) in enumerate(pieces):
        found.begin(last=at == len(pieces) - 1)
        index = torch.tensor([sources, [0] * len(sources)], dtype=torch.int64)
        seen.append(found.loops(index, torch.tensor(weights), 1.5, "loops"))
    index, weight = (torch.cat(of, dim=-1) for of in zip(*seen, strict=True))
    every = torch.tensor([[s for of, _ in pieces for s in of], [0] * sum(len(of) for of, _ in pieces)])
    given = torch.tensor([w for _, of in pieces for w in of])
    expected = add_remaining_self_loops(every, given, 1.5, int(every.max()) + 1 if every.numel() else 1)
    into = expected[0][1] == 0
    assert index.tolist() == expected[0][:, into].tolist()
    assert weight.tolist() == expected[1][into].tolist()
    assert weight[index[0] == 0].tolist() == loops


def test_rows_that_no_later_stage_reads_are_dropped():
    first, second, result = (Table(None, (2,), torch.float32, *stages) for stages in ((1, 2), (1, 3), (2, 2)))
    plan = StagePlan([], [first, second, result], {None: result}, [], [1, 2, 3], {})
    rows = Rows(plan, WholeGraph(Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=5)))
    for stage, held in ((1, {first, second}), (2, {second, result}), (3, {result})):
        rows.begin(stage)
        rows.end(stage)
        assert rows._of.keys() == held
    assert rows.results()[None].shape == (5, 2)
