"""Times of rows and of seeds in whole seconds since 1970."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
NEVER = torch.iinfo(torch.int64).max
"""The time of a row whose time is missing: it is later than every seed."""
MOST = 100
"""The medians of two columns of seconds differ by no more than this factor."""


def check_datetimes(column: Any, name: str) -> None:
    """Raises TypeError unless a column of a DataFrame has datetimes, whose dtype tells their unit."""
    import pandas as pd

    if not pd.api.types.is_datetime64_any_dtype(column.dtype):
        raise TypeError(
            f"{name}: expected datetimes, found {column.dtype}; convert them by pandas.to_datetime(column, unit=...)"
        )


def seconds(column: Any, name: str, part: Literal["up", "down"]) -> Tensor:
    """The datetimes of a column in seconds since 1970, UTC: int64, one for each row; :data:`NEVER` for missing ones.

    Args:
        column: a pandas Series of datetimes of any unit, with or without a time zone.
        name: what errors call it.
        part: whether a part of a second is rounded up or down. Rows are rounded up and seeds down, so that no row that
            is later than a seed becomes as early.

    Raises:
        TypeError: a column of anything else: the unit of plain numbers is not known.
    """
    import pandas as pd

    check_datetimes(column, name)
    index = pd.DatetimeIndex(column)
    ticks = torch.from_numpy(index.asi8.copy())
    divisor = PER_SECOND[index.unit]
    whole = ticks.div(divisor, rounding_mode="floor")
    if part == "up":
        whole += whole * divisor != ticks
    return whole.masked_fill_(torch.from_numpy(index.isna()), NEVER)


def check_same_unit(rows: dict[str, Tensor], seeds: Tensor, name: str) -> None:
    """Raises ValueError if the median of the seeds' times and that of any table's differ by more than a factor of 100,
    as they do if one of them was converted by the wrong unit.

    Args:
        rows: the times of each table's rows, in seconds.
        seeds: those of seeds.
        name: what errors call the seeds' times.
    """
    if not seeds.numel():
        return
    of_seeds = int(seeds.median())
    for table, time in rows.items():
        known = time[time != NEVER]
        if not known.numel():
            continue
        of_rows = int(known.median())
        low, high = sorted(max(abs(value), 1) for value in (of_rows, of_seeds))
        if high > MOST * low:
            raise ValueError(
                f"{name}: expected times in the unit of those of {table}, found medians of {of_seeds} and {of_rows} "
                f"seconds since 1970"
            )
