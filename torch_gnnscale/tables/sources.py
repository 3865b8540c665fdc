"""The files of a table: which they are, what their columns are, and how DuckDB reads them."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..remote import is_url
from .table_files import DELIMITERS, find, header, is_packed, of_folders, opened, suffix

ROW = "file_row_number"
"""The key of a table without one: the number of its row in its one parquet file, from 0."""


def quoted(value: str) -> str:
    """A string of SQL."""
    return "'" + value.replace("'", "''") + "'"


def name(column: str) -> str:
    """A name of SQL."""
    return '"' + column.replace('"', '""') + '"'


@dataclass(frozen=True)
class Group:
    """Files whose columns are alike."""

    files: tuple[str, ...]
    columns: tuple[str, ...]
    """Their names, in the order of the files."""
    of_folders: tuple[tuple[str, str | None], ...] = ()
    """The columns that are in the names of folders, NAME=VALUE, and their values in all rows; None: missing."""

    def read(self, reader: str) -> str:
        """A query of what the function ``reader`` of DuckDB reads, with these columns."""
        values = "".join(
            f", {'NULL' if value is None else quoted(value)}::VARCHAR AS {name(column)}"
            for column, value in self.of_folders
        )
        return f"SELECT *{values} FROM {reader}"


@dataclass(frozen=True)
class Source:
    """The rows of a table.

    ``families``: by column what its values are: ``integer``, ``real``, ``text``, ``boolean``, ``timestamp``,
    ``timestamp with time zone``, ``date``, ``list``, ``null`` (no row has a value), or the name of another type.
    Columns of text files are ``text``.
    """

    path: str
    """What errors call the table."""
    files: tuple[str, ...]
    groups: tuple[Group, ...]
    delimiter: str | None
    """Of text files; None: parquet."""
    families: dict[str, str]
    sizes: dict[str, int]
    """Of columns of lists of one size, as the files say."""

    @property
    def is_text(self) -> bool:
        """Whether the files are text, whose columns have no types."""
        return self.delimiter is not None

    def is_untyped(self, column: str) -> bool:
        """Whether the values of a column are text for want of types: of text files, or of names of folders."""
        return self.is_text or any(column == given for group in self.groups for given, _ in group.of_folders)

    @property
    def packed(self) -> tuple[str, ...]:
        """The files that are packed text."""
        return tuple(file for file in self.files if is_packed(file))

    @property
    def protocols(self) -> tuple[str, ...]:
        """Those of the files' URLs, such as ``s3``."""
        return tuple(dict.fromkeys(file.partition("://")[0] for file in self.files if is_url(file)))

    def sql(self) -> str:
        """A query of all rows, in any order."""
        return " UNION ALL BY NAME ".join(group.read(self._reader(group, group.files)) for group in self.groups)

    def pieces(self) -> list[str]:
        """A query of each file's rows, which any process can run that sees the files."""
        return [group.read(self._reader(group, [absolute(file)])) for group in self.groups for file in group.files]

    def sql_of(self, file: str) -> str:
        """A query of a file's rows, with their numbers from 1 as ``row_of_file``; where one thread reads in order."""
        group = next(group for group in self.groups if file in group.files)
        return f"SELECT row_number() OVER () AS row_of_file, * FROM ({group.read(self._reader(group, (file,)))})"

    def _reader(self, group: Group, files: Sequence[str]) -> str:
        names = ", ".join(quoted(glob.escape(file)) for file in files)
        if not self.is_text:
            row = f", {ROW} = true" if ROW in self.families else ""
            return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false{row})"
        assert self.delimiter is not None
        columns = ", ".join(f"{quoted(column)}: 'VARCHAR'" for column in group.columns)
        return (
            f"read_csv([{names}], columns = {{{columns}}}, auto_detect = false, header = true, delim = "
            f"{quoted(self.delimiter)}, quote = '\"', escape = '\"', nullstr = '', allow_quoted_nulls = false, "
            f"hive_partitioning = false)"
        )


def source(path: str, folder: Path, patterns: Sequence[str], delimiter: str | None, needed: Sequence[str]) -> Source:
    """The files of a table, and the types of the columns that are needed of it.

    Args:
        path: what errors call the table.
        folder: what the patterns are relative to.
        patterns: files, directories (all tables below them) and globs, each a path or a URL that fsspec knows.
        delimiter: of text files; by default a comma in .csv, a tab in .tsv and .txt.
        needed: names of columns.

    Raises:
        FileNotFoundError, OSError, ImportError: as of :func:`table_files.find`.
        ValueError: files of several formats, or of one that is not known; names table, file and column of a column that
            is missing or whose type changes between files.
    """
    files = find(path, folder, patterns)
    formats = {file: _format(path, file) for file in files}
    first, *others = files
    for file in others:
        if formats[file] != formats[first]:
            raise ValueError(
                f"{path}: expected files of one format, found {formats[first]} ({first}) and {formats[file]} ({file})"
            )
    if formats[first] == "parquet":
        if delimiter is not None:
            raise ValueError(f"{path}.delimiter: expected none for parquet, found {delimiter!r}")
        return _of_parquet(path, folder, files, needed)
    sep = delimiter or DELIMITERS[formats[first]]
    groups: dict[Any, list[str]] = {}
    for file in files:
        columns = header(path, file, sep)
        groups.setdefault((columns, of_folders(path, folder, file, needed, columns)), []).append(file)
    alike = tuple(Group(tuple(group), *key) for key, group in groups.items())
    return Source(path, files, alike, sep, dict.fromkeys(needed, "text"), {})


def absolute(file: str) -> str:
    """A path that other processes of any folder know; or a URL."""
    return file if is_url(file) else str(Path(file).absolute())


def _format(path: str, file: str) -> str:
    kind = suffix(file)
    if kind is None:
        raise ValueError(
            f"{path}: expected .parquet, .csv, .tsv or .txt, the last three also .gz or .zst, found {file}"
        )
    return kind.removeprefix(".") if kind == ".parquet" else kind


def _of_parquet(path: str, folder: Path, files: tuple[str, ...], needed: Sequence[str]) -> Source:
    import pyarrow
    from pyarrow import parquet

    families: dict[str, str] = {}
    said_by: dict[str, str] = {}
    sizes: dict[str, int] = {}
    groups: dict[Any, list[str]] = {}
    names: tuple[str, ...] = ()
    if ROW in needed:
        families[ROW] = "integer"
    for file in files:
        try:
            with opened(file) as stored:
                schema = parquet.read_schema(stored)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path}: {file}: expected a parquet file, found {error}") from error
        given = of_folders(path, folder, file, [column for column in needed if column != ROW], schema.names)
        groups.setdefault(given, []).append(file)
        names = names or tuple(schema.names)
        for column in needed:
            if column == ROW:
                continue
            if (count := schema.names.count(column)) > 1:
                raise ValueError(f"{path}: {file}: column {column}: expected it once, found it {count} times")
            kind = pyarrow.string() if column in dict(given) else schema.field(column).type
            family = "null" if dict(given).get(column, "") is None else _family(kind)
            if family == "null":
                continue
            before = families.setdefault(column, family)
            said_by.setdefault(column, file)
            size = kind.list_size if pyarrow.types.is_fixed_size_list(kind) else None
            if size is not None and sizes.setdefault(column, size) != size:
                raise ValueError(
                    f"{path}: {file}: column {column}: expected lists of {sizes[column]} numbers, as in "
                    f"{said_by[column]}, found lists of {size}"
                )
            if {before, family} == {"integer", "real"}:
                families[column] = "real"
            elif before != family:
                raise ValueError(
                    f"{path}: {file}: column {column}: expected {before}, as in {said_by[column]}, found {family}"
                )
    alike = tuple(Group(tuple(group), names, given) for given, group in groups.items())
    return Source(path, files, alike, None, {**dict.fromkeys(needed, "null"), **families}, sizes)


def _family(kind: Any) -> str:
    """What values of an Arrow type are, as :class:`Source` names it."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _family(kind.value_type)
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with time zone"
    tests = {
        "null": types.is_null, "integer": types.is_integer, "boolean": types.is_boolean, "date": types.is_date,
    }  # fmt: skip
    if found := [family for family, test in tests.items() if test(kind)]:
        return found[0]
    if types.is_floating(kind) or types.is_decimal(kind):
        return "real"
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        return "text"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return "list" if _family(kind.value_type) in ("integer", "real") else str(kind)
    return str(kind)
