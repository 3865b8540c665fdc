"""METIS over clusters."""

import pytest
import torch
from helpers.graphs import random_graph
from helpers.mapped import resident_bytes

from torch_gnnscale import CSC, GraphStore, ops
from torch_gnnscale.datasets import planted, planted_types
from torch_gnnscale.partition import assignment
from torch_gnnscale.partition.assignment import assign, report
from torch_gnnscale.topology.graph_store import open_relation

pytest.importorskip("pymetis")

DATA = planted(4000)
CSC_OF_DATA = CSC.from_data(DATA)
TRAIN = {None: DATA.train_mask.nonzero().view(-1)}


def assigned(method: str, csc: CSC = CSC_OF_DATA, **options) -> torch.Tensor:
    return assign({None: csc}, {None: csc.num_src}, 4, method=method, train=TRAIN, **options).owner[None]


class Clusters(Exception):
    """How many METIS is given."""


def test_a_cluster_takes_a_training_node_although_its_share_of_them_is_less(monkeypatch):
    """60 stars, one leaf of each for training: 1/50 of what each of two parts has of them is 0.6."""

    def part_graph(colptr, *_):
        raise Clusters(len(colptr) - 1)

    monkeypatch.setattr(assignment, "part_graph", part_graph)
    ends = torch.stack([torch.arange(60).repeat_interleave(10), 60 + torch.arange(600)])
    csc = CSC.from_edge_index(torch.cat([ends, ends.flip(0)], 1), (6000, 6000))
    train = {None: 60 + torch.arange(0, 600, 10)}
    with pytest.raises(Clusters, match=f"^{6000 - 600}$"):  # every star is one
        assign({None: csc}, {None: 6000}, 2, method="coarse", train=train, balance=("nodes", "train"))


@pytest.mark.slow
def test_as_good_as_metis():
    cut = {}
    for method in ("metis", "coarse", "random"):
        counted = report({None: CSC_OF_DATA}, {None: assigned(method)}, 4, TRAIN)
        cut[method] = counted.cut
        assert max(counted.balance().values()) <= (1.06 if method != "random" else 1.1)
    assert cut["coarse"] <= 1.2 * cut["metis"] < 0.6 * cut["random"]


@pytest.mark.slow
def test_equal_for_any_number_of_threads_and_for_a_mapped_graph(tmp_path):
    expected = assigned("coarse", seed=5)
    for threads in (1, 3):
        ops.limit_threads(threads)
        try:
            assert torch.equal(assigned("coarse", seed=5), expected)
        finally:
            ops.limit_threads(0)
    GraphStore.from_csc(CSC_OF_DATA).save(tmp_path / "graph")
    mapped = open_relation(str(tmp_path / "graph"), None)
    assert mapped.origin is not None
    assert torch.equal(assigned("coarse", mapped, seed=5), expected)
    assert not torch.equal(assigned("coarse", seed=6), expected)


@pytest.mark.slow
def test_metis_runs_beside_no_pages_of_the_graph(tmp_path, monkeypatch):
    def part_graph(*given):
        found.append(resident_bytes(tmp_path / "graph" / "0_edges.npy"))
        return found_by_metis(*given)

    found, found_by_metis = [], assignment.part_graph
    monkeypatch.setattr(assignment, "part_graph", part_graph)
    GraphStore.from_csc(CSC_OF_DATA).save(tmp_path / "graph")
    mapped = open_relation(str(tmp_path / "graph"), None)
    mapped.row.sum()
    assert resident_bytes(tmp_path / "graph" / "0_edges.npy") > 0
    assigned("coarse", mapped)
    assert found == [0]


def test_levels_until_metis_can_take_the_clusters(monkeypatch):
    given = {}

    def part_graph(colptr, row, edge_weight, weight, names, parts, seed):
        given.update(edges=len(row), weight=weight, names=names, nodes=colptr.numel() - 1)
        return assignment.Found(torch.arange(len(weight)) % parts, 5)

    monkeypatch.setattr(assignment, "part_graph", part_graph)
    sizes = []
    for least in (1 << 22, 34_000):
        monkeypatch.setattr(assignment, "_LEAST_EDGES", least)
        assigned("coarse")
        sizes.append(given["nodes"])
        assert given["edges"] <= least
        assert given["names"] == ["nodes", "edges", "train"]
        total = torch.tensor([4000, CSC_OF_DATA.num_edges, len(TRAIN[None])])
        assert torch.equal(given["weight"].sum(0), total)
        bound = total // (assignment.CLUSTERS * 4)
        alone = torch.tensor([1, int(CSC_OF_DATA.colptr.diff().max()), 1])
        assert bool((given["weight"].amax(0) <= torch.maximum(bound, alone)).all())
    assert sizes[1] < sizes[0] < 2000
    monkeypatch.setattr(assignment, "_LEAST_EDGES", given["edges"])  # as many as METIS takes: no further level
    assigned("coarse")
    assert (given["edges"], given["nodes"]) == (assignment._LEAST_EDGES, sizes[1])


def test_metis_gets_all_edges_of_the_last_level(monkeypatch):
    given = {}

    def part_graph(colptr, row, edge_weight, weight, names, parts, seed):
        given.update(edges=len(row), expected=int(colptr[-1]))
        return assignment.Found(torch.arange(len(weight)) % parts, 5)

    monkeypatch.setattr(assignment, "part_graph", part_graph)
    monkeypatch.setattr(assignment, "_LEVELS", 1)
    monkeypatch.setattr(assignment, "_LEAST_EDGES", 1)
    monkeypatch.setattr(assignment, "_REDUCTION", 1 << 40)  # so few edges that each level has more
    assigned("coarse")
    assert given["edges"] == given["expected"] > 1


def test_nodes_move_after_metis_only_where_parts_stay_equal(monkeypatch):
    owners = torch.arange(4000) % 4

    def part_graph(colptr, row, edge_weight, weight, names, parts, seed):
        return assignment.Found(torch.arange(len(weight)) % parts, 5)

    monkeypatch.setattr(assignment, "part_graph", part_graph)
    monkeypatch.setattr(assignment, "_LEVELS", 1)
    monkeypatch.setattr(assignment, "_ROUNDS", 0)  # each node is a cluster
    before = report({None: CSC_OF_DATA}, {None: owners.int()}, 4, TRAIN)
    after = report({None: CSC_OF_DATA}, {None: assigned("coarse")}, 4, TRAIN)
    assert after.cut < 0.8 * before.cut
    for name, found in after.balance().items():
        assert found <= max(before.balance()[name], 1.05) + 1e-9


def test_nodes_enter_a_part_that_metis_left_too_large_if_as_many_leave_it(monkeypatch):
    """Two groups of which all nodes know each other, but for node 23 and node 39, which are friends of the others'."""

    def part_graph(colptr, *_):
        return assignment.Found((torch.arange(40) >= 24).long(), 5)

    monkeypatch.setattr(assignment, "part_graph", part_graph)
    monkeypatch.setattr(assignment, "_LEVELS", 1)
    monkeypatch.setattr(assignment, "_ROUNDS", 0)  # each node is a cluster
    belongs = torch.cat([torch.zeros(23), torch.ones(16), torch.zeros(1)]).long()
    index = (belongs[:, None] == belongs).nonzero().t()
    csc = CSC.from_edge_index(index[:, index[0] != index[1]], 40)
    owner = assign({None: csc}, {None: 40}, 2, method="coarse", balance=["nodes"]).owner[None]
    assert torch.equal(owner.long(), belongs)


@pytest.mark.slow
def test_types_are_clustered_together():
    data = planted_types()
    relations = {t: CSC.from_storage(data[t], (data[t[0]].num_nodes, data[t[2]].num_nodes)) for t in data.edge_types}
    sizes = {t: data[t].num_nodes for t in data.node_types}
    counted = {}
    for method in ("coarse", "random"):
        owner = assign(relations, sizes, 4, method=method, balance=["nodes"]).owner
        assert {t: len(parts_of) for t, parts_of in owner.items()} == sizes
        counted[method] = report(relations, owner, 4)
    for node_type in sizes:
        assert counted["coarse"].balance()[f"nodes {node_type}"] <= 1.06
    assert counted["coarse"].cut < 0.9 * counted["random"].cut


@pytest.mark.slow
@pytest.mark.parametrize("degree", [0, 1, 5])
def test_odd_graphs(degree):
    graph = random_graph(300, degree, seed=1)
    csc = CSC(graph.colptr, graph.row, None, 300)
    for parts in (2, 7, 30):
        owner = assign({None: csc}, {None: 300}, parts, method="coarse", balance=["nodes"]).owner[None]
        counts = owner.bincount(minlength=parts)
        assert counts.max() <= 1.06 * 300 / parts + 2
        assert counts.min() > 0
    assert assign({}, {"a": 30, "b": 0}, 3, method="coarse").owner["a"].bincount().tolist() == [10, 10, 10]
