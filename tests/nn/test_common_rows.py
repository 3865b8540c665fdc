"""Which operands are cut to the rows that all of them have, of a batch of one seed."""

from types import SimpleNamespace

import pytest
import torch

from torch_gnnscale.nn.forward_pass import CommonRows
from torch_gnnscale.nn.hops import NodeRows

HOPS = SimpleNamespace(are_rows={1, 5, 9}.issuperset)
FEW, MANY = torch.arange(5.0).view(-1, 1), torch.arange(9.0).view(-1, 1)


def test_rows_of_later_hops_are_left_out():
    with CommonRows(HOPS):
        assert torch.equal(FEW + MANY, torch.arange(0.0, 10.0, 2).view(-1, 1))
        assert torch.cat([MANY, FEW], dim=1).shape == torch.cat([MANY, FEW], -1).shape == (5, 2)
        assert torch.stack([MANY, FEW]).shape == (2, 5, 1)


def test_operands_of_functions_that_are_only_noted_stay():
    rows = CommonRows(HOPS)
    with rows, rows.noting():
        assert torch.cat([MANY, FEW]).shape == (14, 1)
        with pytest.raises(RuntimeError, match="must match"):
            FEW + MANY
    assert rows.called == ["cat", "add"]
    with rows:
        assert len(FEW + MANY) == 5


def test_a_single_row_is_joined_with_that_of_the_same_node():
    """The last batch of an epoch may have one seed."""
    with CommonRows(HOPS):
        for rows in ([MANY, FEW, FEW[:1]], [FEW[:1], MANY]):
            assert torch.equal(torch.cat(rows, 1), torch.zeros(1, len(rows)))
            assert torch.stack(rows).shape == (len(rows), 1, 1)


def test_a_single_row_is_added_to_all():
    with CommonRows(HOPS):
        assert torch.equal(MANY + torch.ones(1, 1), torch.arange(1.0, 10.0).view(-1, 1))


def test_a_single_row_of_a_node_is_not_added_to_all():
    """Also after other functions, of lists, too."""
    nodes, mode = NodeRows([1, 4, 4]), CommonRows(HOPS)
    single = torch.ones(1, 1)
    with mode:
        mode.returned(single, nodes)
        for row in (single, single.relu(), torch.stack([single.tanh(), single]).max(0)[0], torch.ones(1, 1) * single):
            assert (MANY + row).shape == (row + FEW).shape == torch.where(MANY > 0, MANY, row).shape == (1, 1)
        single += MANY
        assert (torch.ones(7, 1) + single).shape == (7, 1), "these are rows of no hops"


def test_a_single_row_that_is_added_to_those_of_another_type():
    mode = CommonRows(HOPS)
    with mode:
        for nodes in (NodeRows([1, 0, 0]), NodeRows([1, 1, 1])):
            single = torch.ones(1, 1)
            mode.returned(single, nodes)
            assert (MANY + single).shape == MANY.shape


@pytest.mark.parametrize("dim", [0, -2])
def test_rows_that_are_joined_are_all_kept(dim):
    with CommonRows(HOPS):
        assert torch.cat([MANY, FEW], dim=dim).shape == (14, 1)
        assert torch.cat([MANY, FEW], dim).shape == (14, 1)


def test_a_pause_within_a_pause_ends_with_the_outer_one():
    mode = CommonRows(HOPS)
    with mode:
        for _ in range(2):
            with mode.paused():
                with mode.paused(), pytest.raises(RuntimeError, match="must match the size"):
                    FEW + MANY
                with pytest.raises(RuntimeError, match="must match the size"):
                    FEW + MANY
            assert len(FEW + MANY) == 5
        with CommonRows(HOPS), mode.paused():  # not the innermost mode
            assert len(FEW + MANY) == 5
        assert len(FEW + MANY) == 5
    with pytest.raises(RuntimeError, match="must match the size"):
        FEW + MANY
