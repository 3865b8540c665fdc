"""Checks of a database's tables: keys and times, by table, column and row."""

from __future__ import annotations

from typing import Any

import numpy as np

from .times import check_datetimes


def check_tables(database: Any, left_out: str = "") -> None:
    """Raises an error that names table, column and first row of what RelBench would take for something else, or refuse.

    Args:
        database: RelBench's.
        left_out: added to errors of primary keys: which rows are not there.

    Raises:
        TypeError: times that are no datetimes.
        ValueError: primary keys that are not 0, 1, ..., n - 1 in this order; a foreign key that none of them equals.
    """
    tables = database.table_dict
    for name, table in tables.items():
        if table.time_col is not None:
            check_datetimes(table.df[table.time_col], f"{name}.{table.time_col}")
        if table.pkey_col is not None:
            _check_primary(table.df[table.pkey_col], f"{name}.{table.pkey_col}", left_out)
    for name, table in tables.items():
        for column, other in table.fkey_col_to_pkey_table.items():
            check_keys(table.df[column], f"{name}.{column}", other, len(tables[other]), missing=True)


def _check_primary(column: Any, name: str, left_out: str) -> None:
    values = column.to_numpy()
    wrong = np.flatnonzero(values != np.arange(len(values)))
    if not len(wrong):
        return
    again = np.flatnonzero(column.duplicated().to_numpy())
    row = again[0] if len(again) else wrong[0]
    twice = f", as in row {int(np.flatnonzero(values == values[row])[0])}" if len(again) else ""
    raise ValueError(
        f"{name}: expected keys from 0 to {len(values) - 1} in the order of rows{left_out}, found {values[row]} in row "
        f"{int(row)}{twice}"
    )


def check_keys(column: Any, name: str, table: str, count: int, missing: bool) -> None:
    """Raises ValueError unless all entries of a column are keys of ``table``, which has ``count`` rows; or missing
    ones, if these may be."""
    is_missing = column.isna().to_numpy()
    values = column.to_numpy()
    if values.dtype.kind not in "iuf":
        values = np.array([-1 if none else value for value, none in zip(values, is_missing, strict=True)])
        if values.dtype.kind not in "iuf":
            raise TypeError(f"{name}: expected integers, the keys of {table}, found {column.dtype}")
    with np.errstate(invalid="ignore"):
        inside = (values >= 0) & (values < count) & (values == np.floor(values))
    wrong = np.flatnonzero(~(inside | is_missing if missing else inside & ~is_missing))
    if len(wrong):
        row, or_none = int(wrong[0]), ", or none" if missing else ""
        raise ValueError(
            f"{name}: expected keys of {table}, from 0 to {count - 1}{or_none}, found {column.iloc[row]} in row {row}"
        )
