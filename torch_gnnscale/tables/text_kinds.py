"""What the text of columns is that have no types."""

from __future__ import annotations

from collections.abc import Sequence

from .columns import INTEGER, ZONED, TextKinds
from .database import error_at, first_row
from .engine import Engine
from .sources import Source, name


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
