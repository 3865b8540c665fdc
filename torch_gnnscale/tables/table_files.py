"""The files of tables: which they are, on this machine or by URL, of which format, and what their first lines say."""

from __future__ import annotations

import csv
import glob
import io
import os
from collections.abc import Sequence
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
