"""What runs the steps from files to parts: the contract, and DuckDB in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from .database import Database
from .sources import Source, absolute, torn_file


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
