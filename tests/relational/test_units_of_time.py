"""Datetimes of every unit become whole seconds."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from torch_gnnscale.relational.database_graph import NEVER, check_same_unit, seconds
from torch_gnnscale.relational.loaders import _warn_of_late, seed_times

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


@pytest.mark.parametrize("rows", [1, 10_000])
def test_units_may_differ_by_a_factor_of_100(rows):
    check_same_unit({"orders": torch.tensor([rows])}, torch.tensor([100]), "train.date")
    with pytest.raises(ValueError, match=r"^train\.date: expected times in the unit of those of orders"):
        check_same_unit({"orders": torch.tensor([rows])}, torch.tensor([99 if rows > 100 else 101]), "train.date")


@pytest.mark.parametrize("late", [0, 2])
def test_rows_that_are_later_than_seeds_are_counted(late, recwarn):
    """Those of the same second are not later."""
    data = HeteroData()
    data["user"].time = torch.tensor([5, 6, 7])
    moments = pd.Series(pd.to_datetime([5, 7 - late, 6, 7 - late], unit="s"))
    table, nodes = SimpleNamespace(df=pd.DataFrame({"date": moments}), time_col="date"), torch.tensor([0, 2, 1, 2])
    time = seed_times(data, table, "train", nodes, "user")
    _warn_of_late(data, torch.tensor([0, 1, 2, 3, 4]), nodes, time, "train: users", "user")
    assert [str(found.message) for found in recwarn] == (
        [
            "train.date: 2 of 4 times are earlier than those of their own rows of user",
            "train: users: 2 of 4 destinations are later than the times of their rows: they are not drawn",
        ]
        if late
        else []
    )


@pytest.mark.slow
def test_relbench_takes_microseconds_for_nanoseconds():
    """Why times are converted here. If this fails, RelBench has mended it."""
    from relbench.modeling.utils import to_unix_time

    column = pd.Series(pd.to_datetime([DAY], unit="s")).astype("datetime64[us]")
    assert to_unix_time(column).tolist() == [DAY // 1000]
