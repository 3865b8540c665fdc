"""What is asked of a staged table piece by piece: what is missing, categories, exact means, the n-th time, and which
rows are for training, validation and testing; and what the text of columns is that have no types."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..splits import first_of
from .columns import INTEGER, ZONED, TextKinds
from .engine import Database, Engine, error_at, first_row
from .schema import Split
from .sources import Source, name

MOST_ROWS = 1 << 17
"""In a batch of rows."""
_DIGITS = 1 << 16
"""Into how many ranges times are counted at once."""


def missing_of(engine: Engine, table: str, kept: str, columns: Sequence[str]) -> dict[str, int]:
    """How many of the rows that are kept lack a value, by column."""
    if not columns:
        return {}
    counts = ", ".join(f"count(*) - count({column})" for column in columns)
    rows = engine.ask(table, f"SELECT {counts} FROM {{}} WHERE {kept}")
    return dict(zip(columns, map(sum, zip(*rows, strict=True)), strict=True))


def distinct(engine: Engine, table: str, kept: str, column: str) -> list[Any]:
    """The values of a column in rising order, strings in that of their bytes in UTF-8."""
    rows = engine.ask(table, f"SELECT DISTINCT {column} FROM {{}} WHERE {kept} AND {column} IS NOT NULL")
    return sorted({value for (value,) in rows})


def numbered(database: Database, table: str, values: Sequence[Any], first: int) -> None:
    """Makes a table of values, strings or integers, and their numbers: ``value``, ``code``."""
    import pyarrow

    kind = pyarrow.int64() if values and isinstance(values[0], int) else pyarrow.string()
    found = pyarrow.table({
        "value": pyarrow.array(values, kind),
        "code": pyarrow.array(range(first, first + len(values)), pyarrow.int64()),
    })  # fmt: skip
    database.fill(table, found.schema, found.to_batches())


# Means ################################################################################################################


def moments_of(engine: Engine, table: str, kept: str, columns: Sequence[str]) -> dict[str, tuple[float, float]]:
    """The mean and the standard deviation (1 if it is 0) of columns: of exact sums, whatever order rows come in."""
    if not columns:
        return {}
    sums = _added(engine, table, kept, dict.fromkeys(columns))
    means = {column: nearest(total) / count if count else 0.0 for column, (count, total) in sums.items()}
    squares = _added(engine, table, kept, means)
    return {
        column: (means[column], math.sqrt(nearest(total) / count) or 1.0 if count else 1.0)
        for column, (count, total) in squares.items()
    }


def _added(engine: Engine, table: str, kept: str, means: Mapping[str, float | None]) -> dict[str, tuple[int, int]]:
    """The number and the exact sum of the values of columns, or of the squares of what they are beyond means."""
    pieces = engine.each(table, partial(_sums, kept, means))
    return {
        column: (sum(piece[at][0] for piece in pieces), sum(piece[at][1] for piece in pieces))
        for at, column in enumerate(means)
    }


def _sums(kept: str, means: Mapping[str, float | None], database: Database, piece: str) -> list[tuple[int, int]]:
    def values(column: str, mean: float | None) -> Iterator[np.ndarray]:
        sql = f"SELECT {column} FROM {piece} WHERE {kept} AND {column} IS NOT NULL"
        for batch in database.batches(sql, MOST_ROWS):
            found = batch.column(0).to_numpy(zero_copy_only=False)
            yield found if mean is None else (found - mean) ** 2

    return [exact_sum(values(column, mean)) for column, mean in means.items()]


def exact_sum(pieces: Iterable[np.ndarray]) -> tuple[int, int]:
    """The number of finite float64, and their sum as an integer of :func:`nearest`.

    A number is (high * 2^27 + low) * 2^(exponent - 53) with integers |high| <= 2^26 and low < 2^27. Those of one
    exponent are added in float64, exactly while a piece has at most 2^26 numbers; the sums are Python's integers.
    """
    count = 0
    sums = [0] * _EXPONENTS
    for piece in pieces:
        assert len(piece) <= 1 << 26
        count += len(piece)
        fraction, exponent = np.frexp(piece)
        high, low = np.divmod(np.ldexp(fraction, 53), 1 << 27)
        place = exponent + _LEAST_EXPONENT
        found = [np.bincount(place, weights=of, minlength=_EXPONENTS) for of in (high, low)]
        for at in np.flatnonzero((found[0] != 0) | (found[1] != 0)).tolist():
            sums[at] += (int(found[0][at]) << 27) + int(found[1][at])
    return count, sum(of << at for at, of in enumerate(sums) if of)


def nearest(whole: int) -> float:
    """The float64 nearest to a sum, as math.fsum rounds it; sums of pieces add up to those of all numbers."""
    return whole / (1 << (_LEAST_EXPONENT + 53))


_LEAST_EXPONENT = 1074
"""The least exponent of a float64 that np.frexp finds is -1073."""
_EXPONENTS = _LEAST_EXPONENT + 1025


# Times ################################################################################################################


def times_at(engine: Engine, table: str, kept: str, positions: Sequence[int]) -> list[int]:
    """The times at positions of the rows that are kept, in the order of their times: counted in ever smaller ranges."""
    bounds = engine.ask(table, f"SELECT min(time), max(time) FROM {{}} WHERE {kept}")
    known = [bound for bound in bounds if bound[0] is not None]
    begin, end = min(low for low, _ in known), max(high for _, high in known)
    return [_time_at(engine, table, kept, position, begin, end) for position in positions]


def _time_at(engine: Engine, table: str, kept: str, position: int, begin: int, end: int) -> int:
    while begin < end:
        step = -(-(end - begin + 1) // _DIGITS)
        rows = engine.ask(
            table,
            f"SELECT ((time::HUGEINT - {begin}) // {step})::BIGINT AS digit, count(*) FROM {{}} WHERE {kept} AND time "
            f"BETWEEN {begin} AND {end} GROUP BY digit",
        )
        counts = np.zeros(_DIGITS, np.int64)
        for digit, count in rows:
            counts[digit] += count
        digit = int(np.searchsorted(counts.cumsum(), position, side="right"))
        position -= int(counts[:digit].sum())
        begin, end = begin + digit * step, min(end, begin + (digit + 1) * step - 1)
    return begin


def split_sql(engine: Engine, split: Split, staged: str, kept: str) -> str:
    """The number of a row's split (0 train, 1 val, 2 test), in SQL, of the columns of ``staged``.

    By time as of :func:`torch_gnnscale.splits.by_time`, of the rows that are kept.
    """
    if split.by == "key":
        return "staged.split"
    count = sum(rows for (rows,) in engine.ask(staged, f"SELECT count(*) FROM {{}} WHERE {kept}"))
    firsts = [
        (number, first) for number, first in enumerate(first_of(count, split.val, split.test), 1) if first < count
    ]
    if not firsts:
        return "0"
    begins = times_at(engine, staged, kept, [first for _, first in firsts])
    whens = [f"WHEN staged.time >= {begin} THEN {number}" for (number, _), begin in zip(firsts, begins, strict=True)]
    return f"CASE {' '.join(reversed(whens))} ELSE 0 END"


def text_kinds(engine: Engine, source: Source, integers: Sequence[str], times: Sequence[str]) -> TextKinds:
    """Reads columns that have no types.

    Args:
        engine: that reads.
        source: the table.
        integers: columns of text files that may hold integers alone.
        times: columns of times as text, which must have time zones everywhere or nowhere.

    Raises:
        ValueError: names the first time that has a time zone where the first has none, or the other way round.
    """
    asked = {column: None for column in integers if source.is_untyped(column)}
    written = [column for column in dict.fromkeys(times) if source.families[column] == "text"]
    tests = [
        f"bool_and({name(column)} IS NULL OR (regexp_full_match({name(column)}, {INTEGER}) AND TRY_CAST({name(column)} "
        f"AS BIGINT) IS NOT NULL))"
        for column in asked
    ]
    for column in written:
        zoned = f"regexp_matches({name(column)}, {ZONED})"
        tests += [f"count(*) FILTER (WHERE {zoned})", f"count({name(column)})"]
    if not tests:
        return TextKinds(frozenset(), frozenset())
    columns = list(zip(*engine.scan(source, ", ".join(tests)), strict=True))
    whole = {column for column, alone in zip(asked, columns, strict=False) if False not in alone}
    counts = [sum(values) for values in columns[len(asked) :]]
    with_zone = set()
    for column, zoned, count in zip(written, counts[::2], counts[1::2], strict=True):
        if zoned == 0:
            continue
        with_zone.add(column)
        if zoned < count:
            has_zone = f"regexp_matches({name(column)}, {ZONED})"
            first = first_row(engine.database, source, column, f"{name(column)} IS NOT NULL")
            other = first_row(engine.database, source, column, f"NOT {has_zone}")
            if first is None or other is None or (first.file, first.row) != (other.file, other.row):
                raise error_at(source, column, other, "a time zone, as other rows have")
            raise error_at(
                source, column, first_row(engine.database, source, column, has_zone), "no time zone, as other rows have"
            )
    return TextKinds(frozenset(whole), frozenset(with_zone))
