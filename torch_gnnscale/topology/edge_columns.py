"""Which columns of a file of edges are the sources and the destinations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

ENDS = (("src", "dst"), ("source", "target"), ("source", "destination"), ("from", "to"), ("row", "col"), ("u", "v"),
        ("head", "tail"), ("sender", "receiver"), ("u", "i"), ("user", "item"), ("citing", "cited"))  # fmt: skip
"""Pairs of column names that mean source and destination, in any case."""

Columns: TypeAlias = tuple[str | int, str | int]
"""Names, or positions from 0, of the columns of sources and of destinations. Digits are a name if a column has it, and
else a position."""


def position(column: str | int) -> int | None:
    """The position that a column is asked for by, unless its name has the same digits; None: it is a name."""
    return column if isinstance(column, int) else int(column) if column.isascii() and column.isdecimal() else None


def pairs_among(names: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of :data:`ENDS` of which ``names`` have both."""
    known = {name.strip().lower() for name in names}
    return [pair for pair in ENDS if known.issuperset(pair)]


def find_ends(path: Path, names: Sequence[str], columns: Columns | None) -> tuple[int, int]:
    """The positions of the columns of sources and destinations.

    Args:
        path: the file, for errors.
        names: of all its columns, in their order.
        columns: the ones asked for; None for those of one pair of :data:`ENDS`, else the only two columns.

    Raises:
        ValueError: columns that are missing, names that several columns have, or that leave several choices.
    """
    if columns is not None:
        src, dst = (_find(path, column, names, columns) for column in columns)
        if src == dst:
            raise ValueError(f"{path}: expected two different columns, found {list(columns)}")
        return src, dst
    if len(pairs := pairs_among(names)) == 1:
        wanted, known = pairs[0], [name.strip().lower() for name in names]
    elif len(names) == 2 and not pairs:
        wanted, known = (names[0], names[1]), list(names)
    else:
        raise ValueError(
            f"{path}: expected two columns, or some named as sources and destinations are (src and dst, ...), found "
            f"{list(names)}; name them by columns= (--columns)"
        )
    src, dst = (_only(path, name, known, names) for name in wanted)
    return src, dst


def _find(path: Path, column: str | int, names: Sequence[str], columns: Columns) -> int:
    """The position of one column that is asked for."""
    if isinstance(column, str) and column in names:
        return _only(path, column, names, names)
    at = position(column)
    if at is None:
        missing = [name for name in columns if name not in names]
        raise ValueError(f"{path}: expected columns {list(columns)}, found {list(names)} without {missing}")
    if not 0 <= at < len(names):
        raise ValueError(f"{path}: expected columns {list(columns)}, counted from 0, found {len(names)} columns")
    return at


def _only(path: Path, name: str, known: Sequence[str], names: Sequence[str]) -> int:
    """The position of the only column of this name."""
    if (count := known.count(name)) != 1:
        raise ValueError(f"{path}: expected one column named {name!r}, found {count} in {list(names)}")
    return known.index(name)
