"""From a database to a graph: RelBench's own conversion, with checked keys, times in whole seconds since 1970 and
texts as numbers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from ..random import seeded_draws

TextEmbedder = Callable[[list[str]], Tensor]
"""Makes a row of each text; called once for a column with text."""


def database_graph(
    database: Any, hidden: Iterable[tuple[str, str]], text_embedder: TextEmbedder
) -> tuple[HeteroData, dict]:
    """The graph of a database: a node per row, and for each foreign key the edges to the rows it points to, and back.

    Args:
        database: RelBench's; its tables are changed.
        hidden: (table, column): columns that are left out of the rows.
        text_embedder: of columns with text.

    Returns:
        (data, column statistics), as of RelBench's ``make_pkey_fkey_graph``: each type has ``tf``, a TensorFrame, and,
        if its table has times, ``time``: int64, seconds since 1970, rounded up; NEVER where it is missing.
    """
    from relbench.modeling.graph import make_pkey_fkey_graph
    from relbench.modeling.utils import get_stype_proposal
    from torch_frame.config import TextEmbedderConfig

    for table in database.table_dict.values():
        _lists_of_arrays(table.df)
    with seeded_draws(0):  # it looks at a random sample of the rows
        kinds = get_stype_proposal(database)
    for table, column in hidden:
        kinds.get(table, {}).pop(column, None)
    config = TextEmbedderConfig(text_embedder=text_embedder, batch_size=None)
    data, statistics = make_pkey_fkey_graph(database, kinds, text_embedder_cfg=config)
    for name, table in database.table_dict.items():
        data[name].num_nodes = len(table)
        if table.time_col is not None:  # RelBench's are a thousandth of these for datetime64[us], pandas 3's default
            data[name].time = seconds(table.df[table.time_col], f"{name}.{table.time_col}", "up")
    return data, statistics


def _lists_of_arrays(frame: Any) -> None:
    """Makes lists of arrays, as which parquet's lists are read: torch_frame finds types of lists only."""
    for column in frame.columns:
        values = frame[column]
        if values.dtype == object and any(isinstance(value, np.ndarray) for value in values.iloc[:1000]):
            frame[column] = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


@dataclass(frozen=True)
class HashedWords:
    """Makes a row of each text: the sum of a signed unit vector for each word, of length 1 (feature hashing).

    Word w adds 1 - 2 b to column h mod ``width``, where h = CRC-32(w) // 2 and b = CRC-32(w) mod 2.

    Args:
        width: how many numbers a text has.
    """

    width: int = 64

    def __call__(self, texts: list[str]) -> Tensor:
        """Rows of the texts: float32, shape [len(texts), width]; zeros for one without words."""
        row, column, sign = [], [], []
        for number, text in enumerate(texts):
            for word in re.findall(r"\w+", str(text).lower()):
                code = zlib.crc32(word.encode())
                row.append(number)
                column.append(code // 2 % self.width)
                sign.append(1.0 - 2 * (code % 2))
        found = torch.zeros(len(texts), self.width)
        found.index_put_((torch.tensor(row, dtype=torch.int64), torch.tensor(column, dtype=torch.int64)),
                         torch.tensor(sign), accumulate=True)  # fmt: skip
        return torch.nn.functional.normalize(found)


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
