"""A sampler of the user's over a partitioned graph gives what it gives in one process."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import make_data
from helpers.hetero import CITES, HELD, LIKES, PAPER, REV_WRITES, WRITES, make_hetero, with_times

from torch_gnnscale import NeighborLoader, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.sampler import KeyedSampler, NeighborOutput, Neighbors
from torch_gnnscale.sampler.outputs import HeteroNeighborOutput


class PageRank(KeyedSampler):
    """The sources with the largest personalized PageRank of each batch, after two pushes along in-edges, and the edges
    among them and the seeds (ShaDow with PPR)."""

    def __init__(self, data, most=15, rounds=3):
        self.neighbors, self.most = Neighbors(data, rounds), most
        self.collective = self.neighbors.collective

    def join(self, steps, own_seeds):
        self.neighbors.join(steps, own_seeds)

    def options(self):
        return {"sampler": "pagerank", "most": self.most}

    def sample_from_nodes(self, inputs, key=None):
        with self.neighbors.batch() as ask:
            nodes = inputs.node.unique()
            mass, score = torch.ones(len(nodes), dtype=torch.float64), {}
            for _ in range(2):
                colptr, row, _ = ask(nodes)
                degree = colptr.diff()
                pushed = (0.85 * mass / degree.clamp(min=1)).repeat_interleave(degree)
                nodes, at = row.unique(return_inverse=True)
                mass = torch.zeros(len(nodes), dtype=torch.float64).index_add_(0, at, pushed)
                for node, of in zip(nodes.tolist(), mass.tolist(), strict=True):
                    score[node] = score.get(node, 0.0) + of
            found = [node for node in score if node not in set(inputs.node.tolist())]
            found = sorted(found, key=lambda node: (-score[node], node))[: self.most]
            nodes = torch.cat([inputs.node, torch.tensor(found, dtype=torch.int64)])
            colptr, row, edge_id = ask(nodes)
        local = {node: place for place, node in reversed(list(enumerate(nodes.tolist())))}
        kept = torch.tensor([place for place, node in enumerate(row.tolist()) if node in local], dtype=torch.int64)
        src = torch.tensor([local[node] for node in row[kept].tolist()], dtype=torch.int64)
        dst = torch.arange(len(nodes)).repeat_interleave(colptr.diff())[kept]
        return NeighborOutput(nodes, src, dst, edge_id[kept], None, None, None, metadata=(inputs.input_id, None))


class Wanderer(KeyedSampler):
    """Asks for edges into its seeds, and into what it finds, of types that depend on the seeds: ranks ask for different
    ones, and different numbers of times. Keeps the answers."""

    takes_types = True

    def __init__(self, data, types, rounds, time_attr=None):
        self.neighbors, self.types, self.timed = Neighbors(data, rounds, time_attr=time_attr), types, bool(time_attr)
        self.collective, self.rounds, self.answers = self.neighbors.collective, rounds, []

    def join(self, steps, own_seeds):
        self.neighbors.join(steps, own_seeds)

    def options(self):
        return {"sampler": "wanderer"}

    def sample_from_nodes(self, inputs, key=None):
        with self.neighbors.batch() as ask:
            nodes, at, answers = inputs.node.unique(), inputs.input_type, []
            for number in range(int(inputs.input_id.sum()) % (self.rounds + 1)):
                into = [of for of in self.types if of is None or of[2] == at]
                edge_type = into[(int(nodes.sum()) + number) % len(into)]
                given = {"time": nodes % 60} if self.timed and number % 2 == 0 else {}
                found = ask(nodes, edge_type, **given)
                answers.append((edge_type, *found))
                nodes, at = found.row.unique(), None if edge_type is None else edge_type[0]
            self.answers.append(answers)
        ids, metadata = inputs.node, (inputs.input_id, None)
        if inputs.input_type is None:
            return NeighborOutput(ids, ids[:0], ids[:0], ids[:0], None, None, None, metadata=metadata)
        return HeteroNeighborOutput({inputs.input_type: ids}, {}, {}, {}, None, None, None, metadata=metadata)


def answers_of_rank(path, types, of, options):
    """What the ranks' owners answered to this rank, batch after batch."""
    with open_part(path) as part:
        data = (part.features, part.graph)
        sampler = Wanderer(data, types, 4, **options)
        loader = NeighborLoader(
            data, [1], part.input_nodes(None, "all", of), batch_size=6, seed=3, seed_order="global",
            neighbor_sampler=sampler,
        )  # fmt: skip
        assert sum(1 for _ in loader) == len(sampler.answers)
        return sampler.answers


def plain(batch):
    return [batch.n_id.clone(), batch.edge_index.clone(), batch.e_id.clone(), batch.x.clone()]


def sampled(path, options):
    """This rank's batches."""
    with open_part(path) as part:
        data = (part.features, part.graph)
        sampler = PageRank(data, **options)
        loader = NeighborLoader(
            data, [1], part.input_nodes(None, of="all"), batch_size=20, shuffle=True, seed=3, seed_order="global",
            neighbor_sampler=sampler,
        )  # fmt: skip
        return [plain(batch) for batch in loader]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    path = tmp_path_factory.mktemp("parts") / "parts"
    partition.write(make_data(), path, parts=2, method="random", topology="partitioned")
    return str(path)


def test_two_ranks_and_one_process(parts):
    with partition.open_parts(parts) as opened:
        data = opened.stores()
        loader = NeighborLoader(
            data, [1], opened.input_nodes(None), batch_size=20, shuffle=True, seed=3, neighbor_sampler=PageRank(data)
        )
        expected = [plain(batch) for batch in loader]
    of_ranks = cluster(2).run(sampled, parts, {})
    assert len(expected) == 10
    assert sum(edges.size(1) for _, edges, *_ in expected) > 100
    for number, of_batch in enumerate(expected):
        for value, other in zip(of_batch, of_ranks[number % 2][number // 2], strict=True):
            assert torch.equal(value, other)


def timed_edges():
    data = make_data()
    data.time = torch.arange(data.num_edges) % 61
    return data


TYPES = [CITES, WRITES, REV_WRITES, HELD, LIKES]
WALKS = {
    "types": (make_hetero, TYPES, PAPER, {}),
    "types, times of nodes": (lambda: with_times(make_hetero()), TYPES, PAPER, {"time_attr": "time"}),
    "types, times of edges": (
        lambda: with_times(make_hetero(), torch.float64, edges=True), TYPES, PAPER, {"time_attr": "time"},
    ),
    "times": (timed_edges, [None], None, {"time_attr": "time"}),
}  # fmt: skip


@pytest.mark.parametrize("walk", WALKS)
def test_ranks_ask_for_different_edges(walk, tmp_path):
    make, types, of, options = WALKS[walk]
    path = str(tmp_path / "parts")
    of_all = ["time"] if "nodes" in walk else []
    partition.write(make(), path, parts=2, method="random", topology="partitioned", graph_attrs=of_all)
    with partition.open_parts(path) as opened:
        data = opened.stores()
        sampler = Wanderer(data, types, 4, **options)
        nodes = opened.input_nodes(None, of)
        loader = NeighborLoader(
            data, [1], nodes if of is None else (of, nodes), batch_size=6, seed=3, prefetch=0, neighbor_sampler=sampler
        )
        list(loader)
    expected, of_ranks = sampler.answers, cluster(2).run(answers_of_rank, path, types, of, options)
    assert len({len(answers) for answers in expected}) > 2
    if of is not None:
        assert len({answer[0] for answers in expected for answer in answers}) > 2
    for number, answers in enumerate(expected):
        found = of_ranks[number % 2][number // 2]
        assert [answer[0] for answer in found] == [answer[0] for answer in answers]
        for answer, other in zip(answers, found, strict=True):
            assert all(torch.equal(*pair) for pair in zip(answer[1:], other[1:], strict=True))


@pytest.mark.parametrize(("data", "edge_type"), [(timed_edges(), None), (with_times(make_hetero()), CITES)])
def test_edges_of_a_time(data, edge_type):
    store = data if edge_type is None else data[edge_type]
    src, dst = store.edge_index
    times = data.time if edge_type is None else data[PAPER].time[src]
    nodes, limits = torch.arange(40).repeat(2), torch.arange(80)
    with Neighbors(data, 2, time_attr="time").batch() as ask:
        colptr, row, edge_id = ask(nodes, edge_type, time=limits)
        whole = ask(nodes, edge_type)
    for place, (node, limit) in enumerate(zip(nodes.tolist(), limits.tolist(), strict=True)):
        expected = ((dst == node) & (times <= limit)).nonzero().view(-1)
        found = edge_id[colptr[place] : colptr[place + 1]]
        assert torch.equal(found.sort().values, expected)
        assert torch.equal(row[colptr[place] : colptr[place + 1]], src[found])
    assert torch.equal(whole.colptr.diff(), torch.bincount(dst, minlength=40)[:40].repeat(2))


def test_more_rounds_than_were_said_and_fewer(parts):
    text = "ValueError: rounds: expected at most 2 of a batch, found one more"
    for rank, (returned, said) in enumerate(cluster(2).results(sampled, parts, {"rounds": 2})):
        assert not returned
        assert said.endswith(text), (rank, said)
    assert len(cluster(2).run(sampled, parts, {"rounds": 5})) == 2


def test_refused():
    neighbors = Neighbors(make_data(), 1)
    with neighbors.batch() as ask:
        with pytest.raises(ValueError, match=r"^edge_type: expected one of \[None\], found \('a', 'to', 'b'\)$"):
            ask(torch.tensor([0]), ("a", "to", "b"))
        with pytest.raises(IndexError, match=r"^nodes\[1\] = 200 is out of range: expected nodes in \[0, 200\)$"):
            ask(torch.tensor([0, 200]))
        assert ask(torch.tensor([3, 3])).colptr.diff().unique().numel() == 1
        with pytest.raises(ValueError, match=r"^rounds: expected at most 1 of a batch, found one more$"):
            ask(torch.tensor([0]))
    with (
        Neighbors(make_data(), 1).batch() as ask,
        pytest.raises(ValueError, match=r"^time: expected none without time_attr"),
    ):
        ask(torch.tensor([0]), time=torch.tensor([1]))
    with (
        Neighbors(timed_edges(), 1, time_attr="time").batch() as ask,
        pytest.raises(ValueError, match=r"^time: expected 2 times, found shape \(1,\)$"),
    ):
        ask(torch.tensor([0, 1]), time=torch.tensor([1]))
    with pytest.raises(ValueError, match="rounds"):
        Neighbors(make_data(), 0)
