"""Weights of nodes and edges get through to METIS."""

from types import SimpleNamespace

import pytest
import torch
from helpers.data import edges_of

from torch_gnnscale import CSC, ops
from torch_gnnscale.partition.assignment import Found
from torch_gnnscale.partition.whole import Whole
from torch_gnnscale.split import planning

pytest.importorskip("pymetis")


@pytest.mark.parametrize("seed", range(5))
def test_merged_edges_weigh_what_all_edges_between_two_nodes_do(seed):
    csc = CSC.from_edge_index(edges_of(40, 200, seed), 40)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(1, 50, (csc.num_edges,), generator=generator)
    whole = Whole.of({None: csc}, {None: csc.num_src}, {}, ["nodes"])
    expected = torch.zeros(csc.num_src, csc.num_src, dtype=torch.int64)
    dst = torch.arange(csc.num_dst).repeat_interleave(csc.colptr.diff())
    for a, b in ((dst, csc.row.long()), (csc.row.long(), dst)):
        expected.index_put_((a, b), weight, accumulate=True)
    expected.fill_diagonal_(0)
    colptr, row, found = Whole(whole.sizes, whole.sides, whole.weight, whole.names, [weight]).merged()
    dense = torch.zeros_like(expected)
    dense[torch.arange(csc.num_src).repeat_interleave(colptr.diff()), row] = found
    assert torch.equal(dense, expected)
    assert (found > 0).all()
    assert all(map(torch.equal, whole.merged()[:2], (colptr, row)))


def ring(num_nodes: int) -> CSC:
    ids = torch.arange(num_nodes)
    return CSC.from_edge_index(torch.stack([ids, ids.roll(-1)]), num_nodes)


def by(weights: str, node_load: torch.Tensor, edge_load: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    return planning.owners_by(weights, ring(40), node_load, edge_load, seeds, 2, 1)


@pytest.mark.parametrize("weights", ["presampled", "node"])
def test_what_metis_is_told(weights, monkeypatch):
    told = []

    def by_metis(whole, parts, seed, tolerance):
        told.append((whole, parts, seed, tolerance))
        return Found(torch.zeros(40, dtype=torch.int64), 0)

    monkeypatch.setattr(planning, "by_metis", by_metis)
    by(weights, torch.arange(40), torch.arange(40) / 4, torch.arange(3))
    ((whole, *others),) = told
    assert others == [2, 1, 1.01]
    assert whole.weight.tolist() == [[1 + 10 * load] for load in range(40)]
    expected = [1 + 25 * load for load in range(40)]
    assert whole.edge_weight is None if weights == "node" else whole.edge_weight[0].tolist() == expected


def test_what_is_balanced_without_presampling(monkeypatch):
    told = []

    def assign(relations, sizes, parts, **options):
        told.append((parts, options))
        return SimpleNamespace(owner={None: torch.zeros(40, dtype=torch.int32)})

    monkeypatch.setattr(planning, "assign", assign)
    by("edge", torch.zeros(40), torch.zeros(40), torch.tensor([5, 3, 5]))
    ((parts, options),) = told
    assert options.pop("train")[None].tolist() == [3, 5]
    assert (parts, options) == (2, {"method": "metis", "balance": ("edges", "train"), "seed": 1})


@pytest.mark.slow
def test_a_ring_is_cut_where_nothing_was_drawn():
    drawn = torch.full((40,), 9.0)
    drawn[[3, 23]] = 0  # edges into nodes 3 and 23
    owner = by("presampled", torch.ones(40, dtype=torch.int64), drawn, torch.arange(40))
    assert (owner != owner.roll(1)).nonzero().view(-1).tolist() == [3, 23]
    assert owner.dtype == torch.int32


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["presampled", "node"])
def test_parts_have_equal_loads(weights):
    load = torch.zeros(40, dtype=torch.int64)
    load[:10] = 99
    owner = by(weights, load, torch.ones(40, dtype=torch.int64), torch.arange(40)).long()
    sums = torch.zeros(2, dtype=torch.int64).index_add_(0, owner, 1 + 10 * load)
    assert int(sums.max()) <= 1.01 * int(sums.sum()) / 2
    assert int((owner != owner.roll(1)).sum()) == 2


@pytest.mark.slow
def test_edge_has_equal_numbers_of_seeds():
    seeds = torch.tensor([0, 0, 1, 2, 3, 4, 5, 5])
    owner = by("edge", torch.zeros(40, dtype=torch.int64), torch.zeros(40, dtype=torch.int64), seeds)
    assert owner[:6].sum() == 3
    assert int(owner.sum()) in (19, 20, 21)


def test_random_is_a_permutation_in_equal_ranges():
    owner = by("random", torch.zeros(40, dtype=torch.int64), torch.zeros(40, dtype=torch.int64), torch.arange(40))
    assert int(owner.sum()) == 20
    assert ops.count_ids(owner, 2).tolist() == [20, 20]


def test_weights_are_scaled_before_they_overflow():
    count = torch.tensor([0, 3, 5])
    assert planning.weights_of(count, 10).tolist() == [1, 31, 51]
    large = torch.tensor([0, 1 << 50, 1 << 52, 1 << 52])
    assert planning.weights_of(large, 1).tolist()[:2] == [1, ((1 << 53) - 4) * (1 << 50) // int(large.sum()) + 1]
    for factor in (1, 10):
        assert int(planning.weights_of(large, factor).sum()) <= 1 << 53
    assert planning.weights_of(torch.full((8,), 1 << 59), 10).tolist() == [(1 << 50)] * 8
    assert planning.weights_of(torch.zeros(3, dtype=torch.int64), 10).tolist() == [1, 1, 1]
