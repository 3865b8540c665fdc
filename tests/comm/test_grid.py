"""Ranks as a grid of parts and copies."""

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale.distributed import Grid


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from(["copies", "parts"]))
def test_every_rank_is_in_one_row_and_one_column(parts, copies, consecutive):
    grid = Grid(parts * copies, parts, consecutive)
    assert grid.copies == copies
    for rank in range(grid.ranks):
        part, copy = grid.part(rank), grid.copy(rank)
        assert grid.rank(part, copy) == rank
        ranks = grid.ranks_of(rank)
        assert (ranks.rank, ranks.world, ranks.part, ranks.parts) == (rank, grid.ranks, part, parts)
        assert (ranks.copy, ranks.copies) == (copy, copies)
        assert grid.row(part)[copy] == grid.column(copy)[part] == rank
    for groups in ([grid.row(part) for part in range(parts)], [grid.column(copy) for copy in range(copies)]):
        assert sorted(rank for group in groups for rank in group) == list(range(grid.ranks))


def test_which_ranks_are_consecutive():
    assert Grid(6, 3).row(1) == [2, 3]
    assert Grid(6, 3).column(1) == [1, 3, 5]
    assert Grid(6, 3, "parts").row(1) == [1, 4]
    assert Grid(6, 3, "parts").column(1) == [3, 4, 5]


@pytest.mark.parametrize(("ranks", "parts"), [(3, 2), (0, 1), (2, 0), (2, 4)])
def test_ranks_that_are_no_multiple(ranks, parts):
    with pytest.raises(ValueError, match=rf"^ranks: expected a multiple of {parts} parts, found {ranks} ranks$"):
        Grid(ranks, parts)


def test_equal_grids_are_one_key():
    assert {Grid(4, 2): 1, Grid(4, 2, "parts"): 2}[Grid(4, 2)] == 1
    with pytest.raises(FrozenInstanceError, match=r"^cannot assign to field 'parts'$"):
        Grid(4, 2).parts = 4
