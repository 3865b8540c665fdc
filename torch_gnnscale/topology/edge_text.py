"""Edges from lines of text: the columns of sources and destinations; two ids each, or an error that names the line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeAlias

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


HEADERS = ("auto", "yes", "no")
"""Whether a file's first line is a header. ``auto``: if it names the columns and is no edge; ``yes``: always; ``no``:
never."""
_DELIMITERS = ",\t; "
_ID = re.compile(r"[ \t]*([0-9]+|0[xX][0-9a-fA-F]+)[ \t]*")
_FOREIGN = {b"\x1f\x8b": "gzip: unpack it first", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"PK": "a zip archive",
            b"PAR1": "parquet"}  # fmt: skip
"""How files begin that are no text that is read here."""

OF_WORDS = "for words as ids, number the nodes first: numpy.unique(words, return_inverse=True)"
"""What to do about words in place of ids."""


@dataclass(frozen=True)
class TextFormat:
    """How a text file is read."""

    skipped: int
    """Lines before the first edge: comments, blank lines, the header."""
    delimiter: str
    num_columns: int
    ends: tuple[int, int]
    """The columns of sources and destinations."""
    may_be_header: bool
    """Whether the line of the first edge reads like a header, and nobody said that it is none."""


def open_text(path: Path) -> TextIO:
    """The file's text; lines end with CR, LF or both, a byte order mark is left out, other bytes than UTF-8 are kept
    as U+FFFD (they may stand in comments)."""
    return path.open(encoding="utf-8-sig", errors="replace", newline=None)


def find_format(path: Path, columns: Columns | None, header: str) -> TextFormat | None:
    """How to read a file, from its first line that is neither blank nor a comment; None if there is none.

    The delimiter is the first of comma, tab, semicolon and space that the line has. The line is a header if ``header``
    is "yes", or with "auto", if it names the ``columns`` that are given or those of sources and destinations
    (:data:`ENDS`). Without a header, columns are positions.

    Raises:
        ValueError: a file that is no UTF-8 text, a header without the columns, a line of one column, or one that may be
            a header as well as an edge.
    """
    with path.open("rb") as stream:
        begin = stream.read(4)
    for mark, what in _FOREIGN.items():
        if begin.startswith(mark):
            raise ValueError(f"{path}: expected UTF-8 text, found {what}")
    with open_text(path) as text:
        lines = enumerate(text, 1)
        number, line = next((entry for entry in lines if entry[1].strip() and not entry[1].startswith("#")), (0, ""))
    if number == 0:
        return None
    delimiter = next((mark for mark in _DELIMITERS if mark in line.strip()), ",")
    names = [name.strip() for name in _fields(line, delimiter)]
    if header == "yes" or (header == "auto" and _is_header(path, number, names, columns)):
        return TextFormat(number, delimiter, len(names), find_ends(path, names, columns), False)
    if len(names) < 2:
        raise ValueError(f"{path}, line {number}: expected two columns, found {_shown(line)}")
    ends = (0, 1) if columns is None else find_ends(path, [""] * len(names), columns)
    may_be_header = header == "auto" and all(_is_name(names[end]) for end in ends)
    return TextFormat(number - 1, delimiter, len(names), ends, may_be_header)


def _is_header(path: Path, number: int, names: list[str], columns: Columns | None) -> bool:
    """Whether the first line names the columns; ValueError if it may be an edge as well."""
    if pairs_among(names) or columns is None:
        return bool(pairs_among(names))
    if any(position(column) is None for column in columns):
        return True
    may_name = all(map(is_id, names)) and all(str(column) in names for column in columns)
    if may_name or names == ["", *map(str, range(len(names) - 1))]:  # as pandas names columns, its index first
        raise ValueError(
            f"{path}, line {number}: {','.join(names)!r} may be an edge or the names of columns; say which "
            f"(header='no' or 'yes', --header no or yes)"
        )
    return False


def _fields(line: str, delimiter: str) -> list[str]:
    if "\0" in line:  # csv of Python 3.10 raises an error for it
        return line.rstrip("\n").split(delimiter)
    return next(csv.reader([line.rstrip("\n")], delimiter=delimiter), [])


def _shown(line: str) -> str:
    return repr(line.rstrip("\n")[:80])


def is_id(field: str) -> bool:
    """Whether it is a decimal or hexadecimal number below 2^63."""
    found = _ID.fullmatch(field)
    return found is not None and int(found[1], 16 if found[1][1:2] in ("x", "X") else 10) < 1 << 63


def first_refused(path: Path, how: TextFormat, read: int) -> str | None:
    """What is wrong with the first line that is no edge, and its number; None if every line is one.

    Args:
        path: the file.
        how: how it is read.
        read: so many edges are known to be right.
    """
    first = True
    for number, line in _edge_lines(path, how.skipped):
        if read > 0:
            read, first = read - 1, False
            continue
        try:
            fields: Sequence[str] = _fields(line, how.delimiter)
        except csv.Error:
            fields = ()
        if len(fields) != how.num_columns:
            return f"{path}, line {number}: expected {how.num_columns} columns, found {len(fields)}: {_shown(line)}"
        if not all(is_id(fields[end]) for end in how.ends):
            hint = "; is it a header? Then say so (header='yes', --header yes)" if first and how.may_be_header else ""
            hint += f"; {OF_WORDS}" if all(_is_name(fields[end]) for end in how.ends) else ""
            return f"{path}, line {number}: expected two integer ids, found {_shown(line)}{hint}"
        first = False
    return None


def _is_name(field: str) -> bool:
    """Whether it could name a column: it has a letter, is printable, and is no number (``nan``, ``1e5``)."""
    try:
        float(field)
    except ValueError:
        return field.isprintable() and any(map(str.isalpha, field)) and _ID.fullmatch(field) is None
    return False


def _edge_lines(path: Path, skipped: int) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers, from 1, after the first ``skipped``."""
    with open_text(path) as text:
        for number, line in enumerate(text, 1):
            if number > skipped and line != "\n":
                yield number, line
