"""Which columns of a file of edges are the sources and the destinations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ENDS = (("src", "dst"), ("source", "target"), ("source", "destination"), ("from", "to"), ("row", "col"), ("u", "v"),
        ("head", "tail"), ("sender", "receiver"))  # fmt: skip
"""Pairs of column names that mean source and destination, in any case."""


def pairs_among(names: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of :data:`ENDS` of which ``names`` have both."""
    known = {name.strip().lower() for name in names}
    return [pair for pair in ENDS if known.issuperset(pair)]


def find_ends(path: Path, names: Sequence[str], columns: tuple[str, str] | None) -> tuple[int, int]:
    """The positions of the columns of sources and destinations.

    Args:
        path: the file, for errors.
        names: of all its columns, in their order.
        columns: the names asked for; None for those of one pair of :data:`ENDS`, else the only two columns.

    Raises:
        ValueError: names that are missing, that several columns have, or that leave several choices.
    """
    if columns is not None:
        wanted, known = columns, list(names)
        if missing := [name for name in columns if name not in known]:
            raise ValueError(f"{path}: expected columns {list(columns)}, found {known} without {missing}")
    elif len(pairs := pairs_among(names)) == 1:
        wanted, known = pairs[0], [name.strip().lower() for name in names]
    elif len(names) == 2 and not pairs:
        wanted, known = (names[0], names[1]), list(names)
    else:
        raise ValueError(
            f"{path}: expected two columns, or some named as sources and destinations are (src and dst, ...), found "
            f"{list(names)}; name them by columns="
        )
    for name in wanted:
        if (count := known.count(name)) != 1:
            raise ValueError(f"{path}: expected one column named {name!r}, found {count} in {list(names)}")
    return known.index(wanted[0]), known.index(wanted[1])
