"""Which operands are cut to the rows that all of them have, of a batch of one seed."""

from types import SimpleNamespace

import pytest
import torch

from torch_gnnscale.nn.common_rows import CommonRows

HOPS = SimpleNamespace(groups=lambda rows: {1: 1, 5: 2, 9: 3}.get(rows, 0))
FEW, MANY = torch.arange(5.0).view(-1, 1), torch.arange(9.0).view(-1, 1)


def test_rows_of_later_hops_are_left_out():
    with CommonRows(HOPS):
        assert torch.equal(FEW + MANY, torch.arange(0.0, 10.0, 2).view(-1, 1))
        assert torch.cat([MANY, FEW], dim=1).shape == torch.cat([MANY, FEW], -1).shape == (5, 2)
        assert torch.stack([MANY, FEW]).shape == (2, 5, 1)


def test_a_single_row_is_added_to_all():
    with CommonRows(HOPS):
        assert torch.equal(MANY + torch.ones(1, 1), torch.arange(1.0, 10.0).view(-1, 1))


@pytest.mark.parametrize("dim", [0, -2])
def test_rows_that_are_joined_are_all_kept(dim):
    with CommonRows(HOPS):
        assert torch.cat([MANY, FEW], dim=dim).shape == (14, 1)
        assert torch.cat([MANY, FEW], dim).shape == (14, 1)
