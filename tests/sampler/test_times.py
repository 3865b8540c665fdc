"""Times and limits as int64 that compare like the numbers given."""

import itertools

import pytest
import torch

from torch_gnnscale.sampler.graph import check_times, ordered, ordered_limit

LEAST, MOST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
INTEGERS = [LEAST, LEAST + 1, -(1 << 53), -7, -1, 0, 1, 2, 1 << 53, MOST - 1024, MOST - 1, MOST]
FLOATS = [
    -torch.inf,
    -1e300,
    -(2.0**63),
    -7.5,
    -1.0,
    -0.0,
    0.0,
    5e-324,
    2.7,
    2.0**53,
    2.0**63 - 1024,
    2.0**63,
    torch.inf,
]


def test_limits_of_floats_compare_with_times_of_integers():
    times, limits = ordered(torch.tensor(INTEGERS), False), torch.tensor(FLOATS, dtype=torch.float64)
    found = ordered_limit("time", limits, False)
    for (i, time), (j, limit) in itertools.product(enumerate(INTEGERS), enumerate(FLOATS)):
        if limit >= -(2.0**63):  # below it, no integer is small enough
            assert (int(times[i]) <= int(found[j])) == (time <= limit), (time, limit)


def test_floats_are_in_their_order():
    floats = torch.tensor(FLOATS, dtype=torch.float64)
    for times, limits in ((floats, floats), (floats.float(), floats.float())):
        given, bounds = ordered(times, True), ordered_limit("time", limits, True)
        assert torch.equal(given[:, None] <= bounds, times[:, None] <= limits)
    few = torch.tensor([-7, 0, 2, 1 << 53])
    assert torch.equal(ordered(floats, True)[:, None] <= ordered_limit("time", few, True), floats[:, None] <= few)


def test_limits_that_are_no_exact_floats():
    for wrong in ((1 << 53) + 1, -(1 << 53) - 1, LEAST):
        with pytest.raises(ValueError, match=r"^t: expected times up to 2\^53, because the graph's times are floats"):
            ordered_limit("t", torch.tensor([0, wrong]), True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.uint32, torch.int64, torch.float16, torch.float64])
def test_times_of_every_type(dtype):
    check_times("t", torch.ones(3).to(dtype), 3)


@pytest.mark.parametrize(
    ("time", "error", "message"),
    [
        (torch.ones(3, dtype=torch.uint64), TypeError, "expected integers or real numbers, found torch.uint64"),
        (torch.ones(3, dtype=torch.bool), TypeError, "expected integers or real numbers, found torch.bool"),
        (torch.ones(3) * 1j, TypeError, "expected integers or real numbers, found torch.complex64"),
        ([1, 2, 3], TypeError, "expected a tensor of times, found list"),
        (torch.ones(4), ValueError, r"expected 3 times, found shape \(4,\)"),
        (torch.ones(3, 1), ValueError, r"expected 3 times, found shape \(3, 1\)"),
    ],
)
def test_times_that_are_refused(time, error, message):
    with pytest.raises(error, match=f"^t: {message}$"):
        check_times("t", time, 3)


def test_a_time_that_is_no_number():
    with pytest.raises(ValueError, match=r"^t\[1\]: expected a number, found nan$"):
        check_times("t", torch.tensor([1.0, torch.nan, torch.nan]), 3)
