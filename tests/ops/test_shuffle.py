"""Rows that ranks of a split take, add and drop."""

import re

import pytest
import reference
import torch
from helpers.data import DTYPES
from helpers.graphs import random_ids, random_rows
from hypothesis import given
from hypothesis import strategies as st
from reference.draws import philox

from torch_gnnscale import ops
from torch_gnnscale.ops.ranks import FLOATS

SHAPES = [(), (1,), (7,), (33,), (130,), (2, 3, 2), (0,)]


def some_tables(shape, dtype, sizes=(20, 1, 9)):
    """Tables, each at a stride of its own."""
    steps = range(2, len(sizes) + 2)
    return [
        random_rows((step * size, *shape), dtype)[step - 1 :: step] for step, size in zip(steps, sizes, strict=True)
    ]


def entries(sizes, count, seed):
    """The tables and rows of entries: the last row of each table, the first one, then random ones."""
    part = torch.cat([torch.arange(len(sizes)).repeat(2), random_ids(len(sizes), count, seed=seed)])[:count]
    last = torch.tensor(sizes) - 1
    ends = torch.cat([last, torch.zeros_like(last), random_ids(1 << 20, count, seed=seed + 1)])[:count]
    return part, ends % (last + 1)[part]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_taken_as_they_are(dtype, shape):
    tables = some_tables(shape, dtype)
    part, row = entries([20, 1, 9], 70, seed=3)
    for threads in (1, 2):
        found = ops.shuffle_rows(None, tables, part, row, threads=threads)
        assert (found.dtype, found.shape) == (dtype, (70, *shape))
        assert torch.equal(found, reference.shuffle_rows(None, tables, part, row))
    assert torch.equal(ops.shuffle_rows(None, tables, None, row % 20), tables[0][row % 20])


@pytest.mark.slow
@given(
    st.sampled_from(FLOATS),
    st.sampled_from(SHAPES),
    st.lists(st.integers(0, 5), max_size=9),
    st.booleans(),
    st.booleans(),
)
def test_sums_are_those_of_the_twin(dtype, shape, degrees, with_base, with_parts):
    sizes = [20, 1, 9] if with_parts else [20]
    tables = some_tables(shape, dtype, sizes)
    part, row = entries(sizes, sum(degrees), seed=len(degrees))
    ptr = torch.tensor([0, *degrees]).cumsum(0)
    base = random_rows((2 * len(degrees), *shape), dtype)[::2] if with_base else None
    given_part = part if with_parts else None
    for threads in (1, 2):
        found = ops.shuffle_rows(base, tables, given_part, row, ptr, threads)
        assert torch.equal(found, reference.shuffle_rows(base, tables, given_part, row, ptr))
    alone = None if base is None else base[:1].expand(len(row), *shape)
    found = ops.shuffle_rows(alone, tables, given_part, row)
    assert torch.equal(found, reference.shuffle_rows(alone, tables, given_part, row))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_sum_of_16_bits_is_rounded_to_the_nearest(dtype):
    """Of all numbers and a small one, subnormal numbers, infinities and NaN among them."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).view(-1, 64)
    rows = torch.arange(len(every))
    for other in (0.0, 6e-8, 1e-3, 1.0, 5e4):
        base = torch.full_like(every, other)
        found = ops.shuffle_rows(base, [every], None, rows)
        expected = (base.float() + every.float()).to(dtype)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


ROWS, IDS = torch.ones(4, 3), torch.tensor([0, 3])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((None, [], None, IDS), ValueError, "parts: expected 1 to 64 tables, found 0"),
        ((None, [ROWS[0, 0]], None, IDS), ValueError, "parts[0]: expected contiguous rows, found shape (), strides ()"),
        ((ROWS[0, 0], [ROWS], None, IDS), ValueError, "base: expected contiguous rows, found shape (), strides ()"),
        ((None, [ROWS.T], None, IDS), ValueError,
         "parts[0]: expected contiguous rows, found shape (3, 4), strides (1, 3)"),
        ((None, [ROWS, ROWS.half()], None, IDS), ValueError,
         "parts[1]: expected torch.float32 rows of shape (3,) as in parts[0], found torch.float16 (3,)"),
        ((ROWS[:2, :2], [ROWS], None, IDS), ValueError,
         "base: expected torch.float32 rows of shape (3,) as in parts[0], found torch.float32 (2,)"),
        ((ROWS.long()[:2], [ROWS.long()], None, IDS), TypeError, "parts: expected floats to add, found torch.int64"),
        ((None, [ROWS], None, IDS.int()), ValueError, "row: expected int64 on cpu, found torch.int32 on cpu"),
        ((None, [ROWS], IDS[:1], IDS), ValueError, "part: expected an entry for each of 2 rows, found 1"),
        ((ROWS, [ROWS], None, IDS), ValueError, "base: expected 2 rows as the result has, found 4"),
        ((None, [ROWS], None, IDS, IDS[:0]), ValueError, "ptr: expected at least one entry, found none"),
        ((None, [ROWS], None, IDS, torch.tensor([0, 3])), ValueError,
         "ptr: expected it to rise from 0 to 2, found 0 to 3"),
        ((None, [ROWS], None, IDS, torch.tensor([0, 2, 1, 2])), ValueError,
         "ptr: expected it to rise from 0 to 2, found 0 to 2"),
        ((None, [ROWS], None, IDS + 1), IndexError, "row[1] = 4 is out of range: expected rows in [0, 4)"),
        ((None, [ROWS], IDS, IDS), IndexError, "part[1] = 3 is out of range: expected tables in [0, 1)"),
        ((None, [ROWS, ROWS[:2]], IDS - 2, IDS - 2), IndexError,
         "part[0] = -2 is out of range: expected tables in [0, 2)"),
        ((None, [ROWS, ROWS[:2]], torch.tensor([0, 1]), torch.tensor([3, 2])), IndexError,
         "row[1] = 2 is out of range: expected rows of parts[1] in [0, 2)"),
        ((None, [ROWS, ROWS[:2]], IDS - IDS + 1, IDS), IndexError,
         "row[1] = 3 is out of range: expected rows of parts[1] in [0, 2)"),
    ],
)  # fmt: skip
def test_entries_that_are_refused(arguments, error, message):
    with pytest.raises(error, match=rf"^{re.escape(message)}$"):
        ops.shuffle_rows(*arguments)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [0, 1, 3, 4, 9])
def test_dropped_numbers_are_those_of_the_twin(dtype, columns):
    x, id = random_rows((30, columns), dtype), random_ids(1 << 40, 30, seed=columns)
    for p in (0.0, 0.25, 0.9, 1.0):
        for threads in (1, 2):
            assert torch.equal(ops.dropout_rows(x, id, 5, p, threads), reference.dropout_rows(x, id, 5, p))


def test_masks_follow_ids_and_are_drawn_again_for_gradients():
    x, id = torch.ones(50, 40, dtype=torch.float64, requires_grad=True), torch.arange(50)
    out = ops.dropout_rows(x, id, -7, 0.4)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ops.dropout_rows(x, id[order], -7, 0.4), out[order])
    assert not torch.equal(ops.dropout_rows(x, id, -8, 0.4), out)
    (grad,) = torch.autograd.grad((out * 3).sum(), x)
    assert torch.equal(grad, 3 * out)


def test_numbers_are_kept_with_the_probability_said():
    kept = (ops.dropout_rows(torch.ones(2000, 37), torch.arange(2000), 11, 0.3) > 0).double()
    bound = 5 * (0.3 * 0.7) ** 0.5
    assert abs(float(kept.mean()) - 0.7) < bound / kept.numel() ** 0.5
    assert float((kept.mean(0) - 0.7).abs().max()) < bound / 2000**0.5
    assert float((kept.mean(1) - 0.7).abs().max()) < bound / 37**0.5


def test_a_number_whose_bits_are_the_threshold_is_kept():
    """And one whose bits are one less is dropped."""
    bits = philox(11, 5, 0, 0, 0)[2]
    for threshold, kept in ((bits, True), (bits + 1, False)):
        (row,) = ops.dropout_rows(torch.ones(1, 4), torch.tensor([5]), 11, threshold / (1 << 32))
        assert bool(row[2]) is kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ROWS[0], IDS, 1, 0.5), "x: expected a matrix of floats, found torch.float32 (3,)"),
        ((ROWS, IDS, 1, 0.5), "id: expected int64 of shape (4,) on cpu, found torch.int64 (2,) on cpu"),
        ((ROWS[:2], IDS, 1, 1.5), "p: expected 0 <= p <= 1, found 1.5"),
    ],
)
def test_rows_that_cannot_be_dropped(arguments, message):
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}$"):
        ops.dropout_rows(*arguments)
