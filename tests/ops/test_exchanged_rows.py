"""Rows as bytes that travel between ranks."""

import re

import pytest
import reference
import torch
from helpers.data import DTYPES
from helpers.graphs import random_ids, random_rows
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops

SHAPES = [(), (1,), (7,), (100,), (2, 3, 2), (0,)]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES), st.integers(0, 9)), max_size=4), st.data())
def test_packed_rows_are_those_of_the_twin(pieces, data):
    rows, index, at, total = [], [], [], 0
    for number, (shape, dtype, count) in enumerate(pieces):
        total += data.draw(st.integers(0, 9))
        rows.append(random_rows((20, *shape), dtype)[data.draw(st.integers(0, 3)) :: 2])
        index.append(random_ids(len(rows[-1]), count, seed=number))
        at.append(total)
        total += rows[-1][:1].nbytes * count
    total += data.draw(st.integers(0, 9))
    for threads in (1, 2):
        out = torch.full((total,), 7, dtype=torch.uint8)
        found = ops.pack_rows(rows, index, at, out, threads)
        assert found is out
        assert torch.equal(found, reference.pack_rows(rows, index, at, total))


def test_bytes_between_and_after_packed_rows_are_zeros():
    """Whatever was in the memory, which is sent whole."""
    rows, out = torch.tensor([[1], [2]], dtype=torch.uint8), torch.full((7,), 9, dtype=torch.uint8)
    first, second = torch.tensor([1]), torch.tensor([0, 1])
    assert ops.pack_rows([rows, rows], [first, second], [1, 4], out).tolist() == [0, 2, 0, 0, 1, 2, 0]
    assert ops.pack_rows([rows], [first[:0]], [3], out).tolist() == [0] * 7
    assert ops.pack_rows([], [], [], out.fill_(9)).tolist() == [0] * 7


@pytest.mark.parametrize("dtype", DTYPES)
def test_joined_rows_are_those_of_the_twin(dtype):
    for number, shape in enumerate(SHAPES):
        own, came = (random_rows((rows, *shape), dtype) for rows in (20, 30))
        bytes_ = ops.pack_rows([came], [torch.arange(30)], [3], ops.empty_bytes(3 + came.nbytes))  # at odd addresses
        at = 3 + torch.arange(30).flip(0) * came[:1].nbytes
        place = random_ids(50, 90, seed=number) - 30
        for threads in (1, 2):
            found = ops.join_rows(own, bytes_, at, place, threads)
            assert (found.dtype, found.shape) == (dtype, (90, *shape))
            assert torch.equal(found, reference.join_rows(own, bytes_, at, place))
        expected = torch.cat([came, own])[place + 30]
        assert torch.equal(found, expected)


def test_many_rows_by_several_threads():
    own, other = (random_rows((5000, 300), torch.float32) for _ in range(2))
    index = random_ids(5000, 5000)
    out = ops.empty_bytes(own.nbytes + other.nbytes)
    packed = ops.pack_rows([own, other], [index, index], [0, own.nbytes], out)
    assert torch.equal(packed, torch.cat([own[index], other[index]]).view(-1).view(torch.uint8))
    place = random_ids(10000, 5000) - 5000
    found = ops.join_rows(own, packed, torch.arange(5000) * 1200, place)
    assert torch.equal(found, torch.cat([own[index].flip(0), own])[place + 5000])


ROWS, IDS = torch.ones(4, 3), torch.tensor([0, 3])
BYTES = torch.zeros(24, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("rows", "index", "at", "total", "error", "message"),
    [
        ([ROWS], [], [0], 24, ValueError, "rows, index, at: expected as many of each, found 1, 0, 1"),
        ([None], [IDS], [0], 24, TypeError, "rows[0]: expected a tensor, found NoneType"),
        ([ROWS.T], [IDS], [0], 24, ValueError,
         "rows[0]: expected contiguous rows on the CPU, found shape (3, 4), strides (1, 3) on cpu"),
        ([ROWS], [IDS.int()], [0], 24, ValueError,
         "index[0]: expected an int64 vector on the CPU, found torch.int32 (2,)"),
        ([ROWS], [IDS + 1], [0], 24, IndexError, "index[0][1] = 4 is out of range: expected rows in [0, 4)"),
        ([ROWS, ROWS[:2]], [IDS, IDS], [0, 24], 48, IndexError,
         "index[1][1] = 3 is out of range: expected rows in [0, 2)"),
        ([ROWS, ROWS[:3]], [IDS, IDS], [0, 24], 48, IndexError,
         "index[1][1] = 3 is out of range: expected rows in [0, 3)"),
        ([ROWS, ROWS, ROWS[:3]], [IDS, IDS, IDS], [0, 24, 48], 72, IndexError,
         "index[2][1] = 3 is out of range: expected rows in [0, 3)"),
        ([ROWS], [IDS], [1], 24, ValueError, "at[0]: expected bytes between 0 and 24, found 1 to 25"),
        ([ROWS, ROWS], [IDS, IDS], [0, 23], 48, ValueError,
         "at[1]: expected bytes between 24 and 48, found 23 to 47"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_packed(rows, index, at, total, error, message):
    with pytest.raises(error, match=rf"^{re.escape(message)}$"):
        ops.pack_rows(rows, index, at, ops.empty_bytes(total))


@pytest.mark.parametrize("out", [torch.empty(24), torch.empty(2, 12, dtype=torch.uint8), ops.empty_bytes(48)[::2]])
def test_memory_into_which_no_rows_are_packed(out):
    with pytest.raises(ValueError, match=r"^out: expected bytes in a row on the CPU, found "):
        ops.pack_rows([ROWS], [IDS], [0], out)


@pytest.mark.parametrize(
    ("own", "other", "at", "place", "error", "message"),
    [
        (torch.tensor(1.0), BYTES, IDS, IDS, ValueError,
         "own: expected contiguous rows on the CPU, found shape (), strides () on cpu"),
        (ROWS, ROWS, IDS, IDS, ValueError,
         "other: expected bytes in a row on the CPU, found torch.float32 (4, 3)"),
        (ROWS, BYTES, IDS.int(), IDS, ValueError, "at: expected an int64 vector on the CPU, found torch.int32 (2,)"),
        (ROWS, BYTES, IDS, IDS[None], ValueError,
         "place: expected an int64 vector on the CPU, found torch.int64 (1, 2)"),
        (ROWS, BYTES, IDS + 10, IDS, IndexError, "at[1] = 13 is out of range: expected rows in [0, 13)"),
        (ROWS, BYTES, IDS, IDS + 1, IndexError, "place[1] = 4 is out of range: expected places in [-2, 4)"),
        (ROWS, BYTES, IDS, IDS - 3, IndexError, "place[0] = -3 is out of range: expected places in [-2, 4)"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_joined(own, other, at, place, error, message):
    with pytest.raises(error, match=rf"^{re.escape(message)}$"):
        ops.join_rows(own, other, at, place)
