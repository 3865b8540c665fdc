"""A sampler of the user's over a partitioned graph gives what it gives in one process."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import make_data

from torch_gnnscale import NeighborLoader, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.sampler import KeyedSampler, NeighborOutput, Neighbors


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
    with pytest.raises(ValueError, match="rounds"):
        Neighbors(make_data(), 0)
