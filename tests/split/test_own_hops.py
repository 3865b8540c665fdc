"""The edges that a layer reads of a rank's share of a batch, without processes."""

import pytest
import torch
from helpers.narrow import batches
from helpers.split import cut_batches, random_owners

from torch_gnnscale.split.local_rows import KnownRows, OwnHops, OwnNodeRows


@pytest.mark.parametrize("last", [False, True])
def test_prefixes_are_of_own_rows_and_the_halo_that_a_layer_gets(last):
    """``last``: whether rank 0 has nodes of the last group."""
    whole = next(iter(batches()))
    owners = random_owners(200, 3)
    if not last:
        found = whole.n_id[-whole.num_sampled_nodes[-1] :]
        owners[found] = 1 + found.to(owners.dtype) % 2
    hops = OwnHops(cut_batches(whole, owners, 3)[0], verify=True)
    assert (hops.rows[-1] > hops.rows[-2]) == last
    assert all(sum(levels) for levels in hops.index.num_received[1:])
    source, num_own = hops.only.edges.edges.index[0].tolist(), hops.rows[-1]
    for groups in range(2, len(hops.rows) + 1):
        own, count = hops.rows[groups - 1], hops.only.ends[groups - 2]
        place = {num_own + at: own + number for number, at in enumerate(hops.moves(groups - 1).halo.tolist())}
        expected = [at if at < own else place[at] for at in source[:count]]
        assert hops.only.edges.prefix(groups).index.tolist() == [
            expected,
            hops.only.edges.edges.index[1, :count].tolist(),
        ]


def test_a_vector_of_rows_is_not_cut_beside_a_matrix():
    """Its numbers are for the columns of the matrix, whose rows are of other nodes."""
    hops = OwnHops(cut_batches(next(iter(batches())), random_owners(200, 3), 3)[0], verify=True)
    rows, few, many = OwnNodeRows(hops, drop=None), hops.rows[1], hops.rows[2]
    assert 0 < few < many
    matrix, vector = torch.ones(many, few), torch.arange(float(few))
    column = torch.ones(few, 1)
    for groups, tensor in ((3, matrix), (2, vector), (2, column)):
        rows.mark(tensor, groups)
    with rows:
        assert torch.equal(matrix + vector, 1 + vector.expand(many, few))
        assert torch.equal(matrix + column, torch.full((few, few), 2.0))


def test_numbers_beside_rows_change_nothing():
    hops = OwnHops(cut_batches(next(iter(batches())), random_owners(200, 3), 3)[0], verify=True)
    rows, few, many = OwnNodeRows(hops, drop=None), hops.rows[1], hops.rows[2]
    first, second = torch.zeros(many, 2, 3), torch.ones(few, 2, 3)
    for groups, tensor in ((3, first), (2, second)):
        rows.mark(tensor, groups)
    with rows:
        assert torch.equal(torch.lerp(first, second, torch.tensor(0.25)), torch.full((few, 2, 3), 0.25))
        found = torch.where(torch.tensor([True, False, True]), first, second)
        assert torch.equal(found, torch.tensor([0.0, 1.0, 0.0]).expand(few, 2, 3))


@pytest.mark.parametrize("place", [False, True])
def test_columns_of_rows_of_different_groups_are_joined(place):
    hops = OwnHops(cut_batches(next(iter(batches())), random_owners(200, 3), 3)[0], verify=True)
    rows, few, many = OwnNodeRows(hops, drop=None), hops.rows[1], hops.rows[2]
    first, second = torch.zeros(many, 2), torch.ones(few, 3)
    for groups, tensor in ((3, first), (2, second)):
        rows.mark(tensor, groups)
    with rows:
        found = torch.cat([first, second], 1) if place else torch.cat([first, second], dim=1)
    assert torch.equal(found, torch.tensor([0.0, 0, 1, 1, 1]).expand(few, 5))


def test_own_rows_remain_of_mixed_ones_beside_those_of_more_groups():
    hops = OwnHops(cut_batches(next(iter(batches())), random_owners(200, 3), 3)[0], verify=True)
    rows = OwnNodeRows(hops, drop=None)
    mixed, own = torch.ones(hops.mixed_rows(2), 4), torch.ones(hops.rows[2], 4)
    rows.mark(mixed, 2, mixed=True)
    rows.mark(own, 3)
    with rows:
        found = mixed + own
    assert len(found) == hops.rows[1] != len(mixed)
    assert rows.rows_of(found) == KnownRows(2)


def test_of_equal_numbers_of_rows_those_of_the_fewest_groups_remain():
    """A rank may have no node of the last group; others have some."""
    whole = next(iter(batches()))
    owners = random_owners(200, 3)
    owners[whole.n_id[-whole.num_sampled_nodes[-1] :]] = 1
    hops = OwnHops(cut_batches(whole, owners, 3)[0], verify=True)
    rows, count = OwnNodeRows(hops, drop=None), hops.rows[-1]
    assert count == hops.rows[-2]
    many, few = torch.ones(count, 1, 1), torch.ones(count, 1, 1)
    rows.mark(many, len(hops.rows))
    rows.mark(few, len(hops.rows) - 1)
    for operands in ((many, few), (few, many)):
        with rows:
            found = torch.bmm(*operands)
        assert rows.rows_of(found) == KnownRows(len(hops.rows) - 1)
