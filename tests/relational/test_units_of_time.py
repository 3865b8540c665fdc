"""Datetimes of every unit become whole seconds."""

import numpy as np
import pytest
import torch

from torch_gnnscale.relational.database_graph import NEVER, check_same_unit, seconds

pd = pytest.importorskip("pandas")

DAY = 86_400


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Vienna"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_every_unit_gives_seconds(unit, zone):
    days = pd.Series(pd.to_datetime(np.arange(-3, 4) * DAY, unit="s").as_unit(unit))
    column = days if zone is None else days.dt.tz_localize("UTC").dt.tz_convert(zone)
    found = seconds(column, "orders.placed", "up")
    assert found.dtype == torch.int64
    assert found.tolist() == [day * DAY for day in range(-3, 4)]


def test_a_part_of_a_second_hides_a_row_that_is_later_than_a_seed():
    column = pd.Series(pd.to_datetime([1_500, 2_000, -1_500, None], unit="ms"))
    assert seconds(column, "t", "up").tolist() == [2, 2, -1, NEVER]
    assert seconds(column, "t", "down").tolist() == [1, 2, -2, NEVER]


def test_numbers_have_no_unit():
    with pytest.raises(TypeError, match=r"orders\.placed: expected datetimes, found int64; convert them by pandas"):
        seconds(pd.Series([1, 2]), "orders.placed", "up")


def test_times_in_another_unit_are_refused():
    rows = {"orders": torch.tensor([1_600_000_000, 1_700_000_000, 1_650_000_000, NEVER]), "none": torch.tensor([NEVER])}
    check_same_unit(rows, torch.tensor([1_500_000_000]), "task, train.date")
    check_same_unit(rows, torch.tensor([], dtype=torch.int64), "task, train.date")
    expected = r"task, train\.date: expected times in the unit of those of orders, found medians of 1650000 and 16500"
    with pytest.raises(ValueError, match=expected):
        check_same_unit(rows, torch.tensor([1_650_000]), "task, train.date")


@pytest.mark.slow
def test_relbench_takes_microseconds_for_nanoseconds():
    """Why times are converted here. If this fails, RelBench has mended it."""
    from relbench.modeling.utils import to_unix_time

    column = pd.Series(pd.to_datetime([DAY], unit="s")).astype("datetime64[us]")
    assert to_unix_time(column).tolist() == [DAY // 1000]
