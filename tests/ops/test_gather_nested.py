"""Rows of nested tensors, whose cells have any number of values each."""

import pytest
import reference
import torch

from torch_gnnscale import ops


def nested(rows: int, columns: int, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random values and offsets."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(4, (rows * columns,), generator=generator)
    offset = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return torch.randint(100, (int(offset[-1]),), generator=generator).to(dtype), offset


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8, torch.bool])
@pytest.mark.parametrize("columns", [1, 2, 5])
def test_any_rows(columns, dtype):
    values, offset = nested(40, columns, dtype, columns)
    for count in (0, 1, 17, 100):
        index = torch.randint(40, (count,), generator=torch.Generator().manual_seed(count))
        for found, expected in zip(
            ops.gather_nested(values, offset, columns, index),
            reference.gather_nested(values, offset, columns, index),
            strict=True,
        ):
            assert torch.equal(found, expected)
    strided = torch.arange(40)[::2]
    assert torch.equal(
        ops.gather_nested(values, offset, columns, strided)[0],
        reference.gather_nested(values, offset, columns, strided)[0],
    )


def test_rows_without_values():
    found, offset = ops.gather_nested(torch.empty(0), torch.zeros(4, dtype=torch.int64), 3, torch.tensor([0, 0]))
    assert found.shape == (0,)
    assert offset.tolist() == [0] * 7


VALUES, OFFSET, ROW = torch.arange(5), torch.tensor([0, 2, 2, 5]), torch.tensor([0])


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            (VALUES, OFFSET, 1, torch.tensor([1, 3])),
            IndexError,
            r"index\[1\] = 3 is out of range: expected rows in \[0, 3\)",
        ),
        ((VALUES, OFFSET, 1, torch.tensor([-1])), IndexError, r"index\[0\] = -1 is out of range"),
        ((VALUES, OFFSET, 2, ROW), ValueError, "offset: expected a multiple of 2 columns and 1 more, found 4"),
        ((VALUES, OFFSET, 0, ROW), ValueError, "columns: expected .*1.*, found 0"),
        (
            (VALUES, OFFSET.int(), 1, ROW),
            ValueError,
            "offset: expected a vector of torch.int64 on the CPU, found torch.int32",
        ),
        ((VALUES, OFFSET, 1, ROW.int()), ValueError, "index: expected a vector of torch.int64"),
        (
            (VALUES.view(1, 5), OFFSET, 1, ROW),
            ValueError,
            r"values: expected a vector on the CPU, found torch.int64 \(1, 5\)",
        ),
        ((VALUES.tolist(), OFFSET, 1, ROW), TypeError, "values"),
        ((VALUES[::2], OFFSET, 1, ROW), ValueError, r"contiguous ones.*strides \(2,\)"),
        (
            (VALUES, torch.tensor([0, 2, 9, 5]), 1, torch.tensor([1])),
            RuntimeError,
            "ascending places in 5 values, found 2, 9",
        ),
    ],
)
def test_bad_input(given, error, text):
    with pytest.raises(error, match=text):
        ops.gather_nested(*given)
