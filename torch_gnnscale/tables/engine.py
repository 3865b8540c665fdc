"""What runs the steps from files to parts: the contract, and DuckDB in this process, whose database joins and sorts
tables in bounded memory, on disk where they are larger."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from .._library import needed
from ..memory import format_bytes
from ..remote import file_system
from .columns import Check, Value
from .sources import Source, absolute, name, quoted, torn_file

_WRONG = "'type_pushdown', 'statistics_propagation'"
"""Optimizers of DuckDB that change results (1.5 has the latter alone): of a TRY_CAST of a text file's column they make
a cast, which fails, and they take parquet's least and largest values, which leave NaN out, to mean that no value is
NaN."""


class Database:
    """A database in a folder, deleted with it.

    Results depend neither on ``threads`` nor on ``memory``, because everything that is read has an order of its own.

    Args:
        folder: an existing one.
        memory: bytes that DuckDB may use.
        threads: that it may use.
    """

    def __init__(self, folder: Path, memory: int, threads: int) -> None:
        why = "tables need DuckDB and pyarrow: pip install 'torch_gnnscale[tables]'"
        _, self._duckdb = needed("pyarrow", why), needed("duckdb", why)
        self.memory, self._threads = memory, threads
        self._connection = self._duckdb.connect(str(folder / "tables.duckdb"))
        for setting in (
            f"memory_limit = '{memory}B'", f"temp_directory = {quoted(str(folder / 'spilled'))}", "TimeZone = 'UTC'",
            f"threads = {threads}", "preserve_insertion_order = false", "autoinstall_known_extensions = false",
            "enable_progress_bar = false",
        ):  # fmt: skip
            self._connection.execute(f"SET {setting}")

    def close(self) -> None:
        """Closes the database's files."""
        self._connection.close()

    def fill(self, table: str, schema: Any, batches: Iterable[Any]) -> None:
        """Makes a table of Arrow's RecordBatches that have the columns of ``schema``, in any order."""
        import pyarrow

        whole = (pyarrow.Table.from_batches([batch]).select(schema.names).cast(schema) for batch in batches)
        reader = pyarrow.RecordBatchReader.from_batches(
            schema, (piece for some in whole for piece in some.to_batches())
        )
        self._connection.register("given_rows", reader)
        try:
            self.run(f"CREATE TABLE {table} AS SELECT * FROM given_rows")
        finally:
            self._connection.unregister("given_rows")

    def schema(self, sql: str) -> Any:
        """The Arrow schema of a query's result."""
        with self._errors():
            return self._connection.sql(f"SELECT * FROM ({sql}) LIMIT 0").to_arrow_table().schema

    def run(self, sql: str) -> None:
        """Runs a statement."""
        with self._errors():
            self._connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a short result."""
        with self._errors():
            return self._connection.execute(sql).fetchall()

    def row(self, sql: str) -> tuple[Any, ...]:
        """The one row of a result."""
        (found,) = self.rows(sql)
        return found

    def batches(self, sql: str, rows: int) -> Generator[Any, None, None]:
        """A result as Arrow's RecordBatches of about so many rows, none of them empty; to be read or closed before
        other statements run."""
        with self._errors():
            reader = self._connection.sql(sql).to_arrow_reader(rows)
        try:
            while True:
                with self._errors():
                    batch = next(reader, None)
                if batch is None:
                    return
                if batch.num_rows:
                    yield batch
        finally:
            reader.close()

    @contextmanager
    def of_files(self, protocols: Sequence[str] = ()) -> Iterator[None]:
        """A block whose statements read files; ``protocols``: of their URLs."""
        for protocol in protocols:
            if not self._connection.filesystem_is_registered(protocol):
                self._connection.register_filesystem(file_system(f"{protocol}://")[0])
        found = self.rows(f"SELECT name FROM duckdb_optimizers() WHERE name IN ({_WRONG})")
        self.run(f"SET disabled_optimizers = '{','.join(of for (of,) in found)}'")
        yield
        self.run("SET disabled_optimizers = ''")  # of the sorts, which statistics make a third faster

    @contextmanager
    def in_order(self, protocols: Sequence[str] = ()) -> Iterator[None]:
        """A block whose statements read files, as :meth:`of_files`, rows in their order."""
        self.run("SET threads = 1")
        self.run("SET preserve_insertion_order = true")
        with self.of_files(protocols):
            yield
        self.run("SET preserve_insertion_order = false")
        self.run(f"SET threads = {self._threads}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """DuckDB's errors as Python's."""
        import pyarrow

        try:
            yield
        except self._duckdb.OutOfMemoryException as error:
            found = format_bytes(self.memory)
            raise MemoryError(
                f"memory: expected more for these tables, found {found} ({_first_line(error)})"
            ) from error
        except self._duckdb.IOException as error:
            raise OSError(_first_line(error)) from error
        except (
            self._duckdb.DataError, self._duckdb.InvalidInputException, self._duckdb.NotSupportedError,
            pyarrow.ArrowInvalid,
        ) as error:  # fmt: skip
            raise ValueError(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    """What an error of DuckDB says first, and the file that it names."""
    text = str(error)
    file = re.search(r"^ *file = (.*)$", text, re.MULTILINE)
    first = shortened(" ".join(re.split(r"\n\n|\nPossible ", text)[0].split()))
    return first if file is None or file[1] in first else f"{file[1]}: {first}"


def shortened(text: str, most: int = 400) -> str:
    """The beginning and the end of what is longer than ``most``."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


# What is wrong with a table ###########################################################################################


@dataclass(frozen=True)
class Place:
    """A row of a table's files, and what one of its columns holds there."""

    file: str
    row: int
    """From 1, without the line of a text file that names the columns."""
    found: str | None


def first_row(database: Database, source: Source, column: str, condition: str) -> Place | None:
    """The first row, by files and their rows, that fulfils a condition in SQL."""
    with database.in_order(source.protocols):
        for file in source.files:
            found = database.rows(
                f"SELECT row_of_file, CAST({name(column)} AS VARCHAR) FROM ({source.sql_of(file)}) WHERE {condition} "
                f"ORDER BY row_of_file LIMIT 1"
            )
            if found:
                return Place(file, *found[0])
    return None


def error_at(source: Source, column: str, place: Place | None, expected: str) -> ValueError:
    """The error that says what is wrong, and where."""
    if place is None:  # the file has changed since it was read
        return ValueError(f"{source.path}: column {column}: expected {expected} in every row, found something else")
    found = "nothing" if place.found is None else repr(shortened(place.found))
    return ValueError(
        f"{source.path}: {place.file}: row {place.row}: column {column}: expected {expected}, found {found}"
    )


@contextmanager
def reading(source: Source) -> Iterator[None]:
    """A block that reads a table: ValueErrors of DuckDB, such as of a line with too many columns, name the table."""
    try:
        yield
    except (ValueError, OSError) as error:
        if str(error).startswith((f"{source.path}:", f"{source.path}.")):
            raise
        raise type(error)(f"{source.path}: {error}") from error


def case_of(checks: Sequence[Check], first: int) -> str:
    """The number of the first check that a row fails, counted from ``first``; 0 if it fails none."""
    whens = [f"WHEN {check.bad} THEN {number}" for number, check in enumerate(checks, first) if check.bad != "false"]
    return f"CASE {' '.join(whens)} ELSE 0 END::INTEGER" if whens else "0::INTEGER"


def values_of(values: dict[str, Value]) -> str:
    """The columns of a staged table, as a list for SELECT."""
    return "".join(f"{value.sql} AS {name(column)}, " for column, value in values.items())


@dataclass(frozen=True)
class Join:
    """Columns of a table that rows get where their ``column`` is its ``key``, each of which is there once; or NULL."""

    column: str
    table: str
    key: str
    taken: tuple[str, ...]
    prefix: str
    """Of the names of the columns, before ``_``."""

    @property
    def names(self) -> list[str]:
        """The names of the columns that rows are given."""
        return [f"{self.prefix}_{column}" for column in self.taken]


class Engine(ABC):
    """Stages tables, joins them, and splits them by part; in the words of DuckDB's SQL, whatever distributes the work.

    A staged table is in pieces. What is asked of a piece is a function of a :class:`Database`, in any process, and of
    the name of the table that is the piece there.
    """

    database: Database
    """Of this process: small tables, the keys of nodes, and the first row that is wrong."""

    @abstractmethod
    def open(self, database: Database, work: Path) -> None:
        """Begins; ``work``: an empty folder that all processes see, deleted afterwards."""

    @abstractmethod
    def of_files(self, files: Sequence[str], function: Callable[[str], Any]) -> list[Any]:
        """What a function returns of the name of each file, in any order, where files are read."""

    def check_packed(self, source: Source) -> None:
        """Reads packed text to its end, for DuckDB takes what is there of a file that ends too early.

        Raises:
            ValueError: names the first file that is not whole.
        """
        found = self.of_files([absolute(file) for file in source.packed], torn_file)
        torn = dict(one for one in found if one is not None)
        for file in source.packed:
            if absolute(file) in torn:
                raise ValueError(f"{source.path}: {file}: expected a whole file, found {torn[absolute(file)]}")

    @abstractmethod
    def scan(self, source: Source, select: str) -> list[tuple[Any, ...]]:
        """The rows of ``SELECT select FROM`` the rows of some of the files, for all files."""

    @abstractmethod
    def stage(
        self, staged: str, source: Source | str, given: str = "*", joins: Sequence[Join] = (), select: str = "*"
    ) -> None:
        """Makes a staged table, ``SELECT select FROM (SELECT given FROM source) LEFT JOIN ...``: of files it is stored,
        of another staged table made whenever it is read."""

    @abstractmethod
    def each(self, staged: str, function: Callable[[Database, str], Any]) -> list[Any]:
        """What a function returns of each piece, in any order; at least one piece."""

    def ask(self, staged: str, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query of each piece, which it calls ``{}``."""
        return [row for rows in self.each(staged, partial(_asked, query)) for row in rows]

    @abstractmethod
    def gather(self, staged: str, columns: str, table: str) -> None:
        """Makes a table of :attr:`database` of columns of all pieces."""

    @abstractmethod
    def share(self, table: str) -> None:
        """Makes a table of :attr:`database` one that rows can be joined with."""

    @abstractmethod
    def group(self, staged: str, kept: str, by: str, function: Callable[[Database, str], Any]) -> list[Any]:
        """What a function returns of the rows that fulfil the condition ``kept`` and have one value of the column
        ``by``, for each value."""

    @abstractmethod
    def drop(self, staged: str) -> None:
        """Forgets a staged table and what it stores."""

    @abstractmethod
    def close(self) -> None:
        """Ends, also after an error: forgets all staged tables."""


def _asked(query: str, database: Database, piece: str) -> list[tuple[Any, ...]]:
    return database.rows(query.format(piece))


class DuckDB(Engine):
    """DuckDB in this process: a staged table is one piece, a table of the database."""

    @override
    def open(self, database: Database, work: Path) -> None:
        self.database = database

    @override
    def of_files(self, files: Sequence[str], function: Callable[[str], Any]) -> list[Any]:
        return [*map(function, files)]

    @override
    def scan(self, source: Source, select: str) -> list[tuple[Any, ...]]:
        with self.database.of_files(source.protocols):
            return self.database.rows(f"SELECT {select} FROM ({source.sql()})")

    @override
    def stage(
        self, staged: str, source: Source | str, given: str = "*", joins: Sequence[Join] = (), select: str = "*"
    ) -> None:
        taken = [
            f"{join.prefix}.{column} AS {name}"
            for join in joins
            for column, name in zip(join.taken, join.names, strict=True)
        ]
        sql = f"SELECT {select} FROM (SELECT {', '.join(['given.*', *taken])} FROM (SELECT {given} FROM "
        sql += f"({source.sql()})) AS given" if isinstance(source, Source) else f"{source}) AS given"
        for join in joins:
            sql += f" LEFT JOIN {join.table} AS {join.prefix} ON given.{join.column} = {join.prefix}.{join.key}"
        sql += ")"
        if isinstance(source, str):
            self.database.run(f"CREATE VIEW {staged} AS {sql}")
            return
        with self.database.of_files(source.protocols):
            self.database.run(f"CREATE TABLE {staged} AS {sql}")

    @override
    def each(self, staged: str, function: Callable[[Database, str], Any]) -> list[Any]:
        return [function(self.database, staged)]

    @override
    def gather(self, staged: str, columns: str, table: str) -> None:
        self.database.run(f"CREATE VIEW {table} AS SELECT {columns} FROM {staged}")

    @override
    def share(self, table: str) -> None:
        pass

    @override
    def group(self, staged: str, kept: str, by: str, function: Callable[[Database, str], Any]) -> list[Any]:
        database, found = self.database, []
        database.run(f"CREATE TABLE grouped AS SELECT * FROM {staged} WHERE {kept} ORDER BY {by}")
        for (value,) in database.rows(f"SELECT DISTINCT {by} FROM grouped ORDER BY 1"):
            database.run(f"CREATE TABLE of_part AS SELECT * FROM grouped WHERE {by} = {value}")
            found.append(function(database, "of_part"))
            database.run("DROP TABLE of_part")
        database.run("DROP TABLE grouped")
        return found

    @override
    def drop(self, staged: str) -> None:
        self.database.run(f"DROP TABLE {staged}")

    @override
    def close(self) -> None:
        """Nothing: the database is closed by who opened it."""
