"""The files of a table: which they are, on this machine or by URL, of which format, what their columns are, and how
DuckDB reads them."""

from __future__ import annotations

import csv
import glob
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from ..remote import file_system, is_url

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_PACKED = {"": None, ".gz": "gzip", ".zst": "zstd"}
"""How the name of a text file may go on after .csv, .tsv or .txt, and what pyarrow calls it."""


def find(path: str, folder: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    """The files of a table, each once: paths, or URLs.

    Args:
        path: what errors call the table.
        folder: what the patterns are relative to.
        patterns: files, directories (all tables below them) and globs, each a path or a URL.

    Raises:
        FileNotFoundError: a pattern that no file fits.
        OSError: a file system that does not answer, or that nobody knows.
        ValueError: a URL with what fsspec takes to be no part of a path, such as the server of ``ftp``: the URLs of
            files, by which they are read, would lack it.
        ImportError: fsspec, or what it needs for a URL, is missing.
    """
    found: list[str] = []
    for pattern in patterns:
        there = pattern if is_url(pattern) else str(folder / pattern)
        matches = _by_url(path, pattern) if is_url(pattern) else _local(Path(there))
        if not matches:
            folders = "" if is_url(pattern) or not glob.glob(there) else f" but folders, whose files are {there}/**"
            raise FileNotFoundError(f"{path}: expected files {there}, found none{folders}")
        found += matches
    once: dict[str, str] = {}
    for file in found:
        once.setdefault(file if is_url(file) else os.path.realpath(file), file)
    return tuple(once.values())


def _local(there: Path) -> list[str]:
    if there.is_dir():
        return [str(file) for file in sorted(there.rglob("*")) if file.is_file() and _is_table(file.name)]
    if there.is_file():
        return [str(there)]
    return [match for match in sorted(glob.glob(str(there), recursive=True)) if Path(match).is_file()]


def _by_url(path: str, pattern: str) -> list[str]:
    try:
        files, there = file_system(pattern)
        files.invalidate_cache()
        if files.isdir(there):
            found = [file for file in files.find(there) if _is_table(PurePosixPath(file).name)]
        else:
            found = [there] if files.isfile(there) else [file for file in files.glob(there) if files.isfile(file)]
    except FileNotFoundError:
        return []
    except ImportError:
        raise
    except Exception as error:  # of any kind: file systems have their own
        raise OSError(f"{path}: {pattern} cannot be read: {error}") from error
    urls = [files.unstrip_protocol(file) for file in sorted(found)]
    if urls and isinstance(again := file_system(urls[0])[0], type(files)) and again != files:
        raise ValueError(
            f"{path}: {pattern}: expected a URL of a path alone, and its server, user and other options in fsspec's "
            f"configuration, found them in the URL"
        )
    return urls


def _is_table(name: str) -> bool:
    return not name.startswith((".", "_")) and suffix(name) is not None


def suffix(file: str) -> str | None:
    """``.parquet``, ``.csv``, ``.tsv`` or ``.txt``; None of other files."""
    named = PurePosixPath(file)
    if named.suffix == ".parquet":
        return ".parquet"
    packed = named.suffix if named.suffix in _PACKED else ""
    inner = PurePosixPath(named.name.removesuffix(packed)).suffix
    return inner if inner in DELIMITERS else None


def opened(file: str) -> BinaryIO:
    """The bytes of a file, as they are stored."""
    if is_url(file):
        files, there = file_system(file)
        return cast(BinaryIO, files.open(there, "rb"))
    return open(file, "rb")


def of_folders(
    path: str, folder: Path, file: str, needed: Sequence[str], found: Sequence[str]
) -> tuple[tuple[str, str | None], ...]:
    """The needed columns that a file lacks, of the names of its folders, NAME=VALUE, as Hive and Spark write them.

    Those of ``folder`` itself do not count, unless the file is elsewhere. ValueError for a column that is in neither,
    and for two that DuckDB, which knows no case of ASCII letters, would take for one.
    """
    whole = PurePosixPath(file)
    inside = whole.relative_to(folder) if whole.is_relative_to(folder) else whole
    pairs = [part.split("=", 1) for part in inside.parent.parts if "=" in part]
    known = {unquote(key): None if value == _NOTHING else unquote(value) for key, value in pairs}
    lacking = [column for column in needed if column not in found]
    for key, value in pairs:
        if (column := unquote(key)) in lacking and value != (other := dict(pairs)[key]):
            raise ValueError(
                f"{path}: {file}: column {column}: expected one folder that names it, found {value} and {other}"
            )
    if missing := [column for column in lacking if column not in known]:
        raise ValueError(f"{path}: {file}: column {missing[0]}: expected it, found only {', '.join([*found, *known])}")
    read: dict[bytes, str] = {}
    for column in (*found, *lacking):
        if (other := read.setdefault(column.encode().lower(), column)) is not column:
            raise ValueError(
                f"{path}: {file}: column {column}: expected names that differ in more than case, found {other}, too"
            )
    return tuple((column, known[column]) for column in lacking)


_NOTHING = "__HIVE_DEFAULT_PARTITION__"
"""How the name of a folder says that a value is missing."""


def is_packed(file: str) -> bool:
    """Whether a file is packed text."""
    return _PACKED.get(PurePosixPath(file).suffix) is not None


def torn_file(file: str) -> tuple[str, str] | None:
    """A packed file and what is wrong with it; None if it is whole."""
    import pyarrow

    try:
        with opened(file) as stored, _unpacked(stored, file) as stream:
            while stream.read(1 << 20):
                pass
    except (OSError, pyarrow.ArrowException) as error:
        return file, str(error)
    return None


def _unpacked(stored: BinaryIO, file: str) -> Any:
    import pyarrow

    packed: Any = _PACKED.get(PurePosixPath(file).suffix)
    return pyarrow.input_stream(stored, compression=packed)


def header(path: str, file: str, delimiter: str) -> tuple[str, ...]:
    """The names of a text file's columns, in its first line."""
    import pyarrow

    try:
        with opened(file) as stored, _unpacked(stored, file) as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            columns = next(csv.reader(text, delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error, OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: {file}: expected a line with the names of columns, found {error}") from error
    if not columns or len(set(columns)) < len(columns) or not all(columns):
        raise ValueError(
            f"{path}: {file}: expected a first line with the names of columns, each once, found "
            f"{delimiter.join(columns)!r}"
        )
    return tuple(columns)


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
        FileNotFoundError, OSError, ImportError: as of :func:`find`.
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
