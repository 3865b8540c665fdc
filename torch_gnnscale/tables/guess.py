"""A first schema of tables: what their values look like."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from .. import machine
from ..remote import hiding_secrets, is_url, without_secrets
from .columns import INTEGER, time_text
from .engine import Database, reading
from .schema import Schema, pyyaml
from .sources import ROW, Source, name, source

MOST_CATEGORIES = 1000
"""Text with at most so many values, each in two rows on average, is a category."""


_NAMED = re.compile(r"(^|_|-)(id|key|code|uuid)$|Id$|ID$")
"""How columns with keys are often named."""


@dataclass
class _Table:
    """A file or directory, and what is guessed of it."""

    name: str
    pattern: str
    source: Source
    rows: int
    columns: dict[str, dict[str, Any]]
    """By column: its ``kind`` (None: text that is no category), whether it is ``unique``, and ``missing`` values."""
    key: str | None = None
    foreign: dict[str, _Table] = field(default_factory=dict)
    """By column, the table whose keys it holds."""

    def features(self, without: Sequence[str | None]) -> dict[str, Any]:
        """The entry ``columns`` of a schema."""
        found: dict[str, Any] = {}
        for column, about in self.columns.items():
            if column in without or column in self.foreign or about["kind"] is None:
                continue
            missing = about["missing"] and about["kind"] != "category"
            found[column] = {"kind": about["kind"], "missing": "mean"} if missing else about["kind"]
        return found


def guess(paths: Sequence[str], folder: Path) -> tuple[dict[str, Any], list[str]]:
    """A schema of tables, as :meth:`Schema.parse` takes it, and what was guessed in words.

    A key is a column whose values are all there and occur once; a foreign key has values of a table's key, but
    for one row in a hundred.
    A table is one of edges if it has two foreign keys and no other table names its key; else it is one of nodes.

    Args:
        paths: files or directories, or URLs of them, each a table. Users, passwords and queries of URLs are left out of
            the schema.
        folder: what the names of files in the schema are relative to.

    Raises:
        ValueError: two tables of one name, or none that has a key.
    """
    with hiding_secrets(paths), tempfile.TemporaryDirectory() as work:
        database = Database(Path(work), 1 << 30, machine.cores())
        try:
            tables = [_table(database, path, folder) for path in paths]
            for table in tables:
                table.key = _key(table)
            for table in tables:
                table.foreign = _foreign(database, table, tables)
        finally:
            database.close()
    if same := [table.name for table in tables if sum(table.name == other.name for other in tables) > 1]:
        raise ValueError(f"tables: expected names that differ, found {same[0]!r} twice")
    named = {id(other) for table in tables for other in table.foreign.values()}
    nodes = [t for t in tables if t.key is not None and (id(t) in named or len(t.foreign) < 2)]
    if not nodes:
        raise ValueError("tables: expected one with a column whose values are all there and occur once, found none")
    schema, said = _schema(tables, nodes)
    for path, table in zip(paths, tables, strict=True):
        if is_url(path) and table.pattern != path:
            said.append(
                f"{table.name}: the URL is written without user, password and query: {table.pattern}; what is "
                f"needed of them goes into fsspec's configuration"
            )
    return schema, said


def read_manifest(folder: str | os.PathLike) -> tuple[Schema, list[str]]:
    """The schema of a database as RelBench 3 stores it (``manifest.yaml``, ``db/TABLE.parquet``), and what was guessed.

    Each table is a type of nodes; one without a primary key has the numbers of its rows. Each foreign key COLUMN is a
    relation (TABLE, f2p_COLUMN, OTHER), as RelBench names it, and its reverse. Features are guessed as by
    :func:`guess`; hidden columns of tasks are not known here.

    Args:
        folder: with the manifest.

    Raises:
        FileNotFoundError: no manifest.
        ValueError: an entry of the manifest that is none, or as of :meth:`Schema.parse`.
    """
    file = Path(folder) / "manifest.yaml"
    content = pyyaml().safe_load(file.read_text("utf-8"))
    specs = content.get("tables") if isinstance(content, dict) else None
    if not isinstance(specs, dict) or not all(isinstance(spec, dict) for spec in specs.values()):
        raise ValueError(f"{file}: tables: expected the tables of a database of RelBench, found {specs!r}")
    schema: dict[str, Any] = {"nodes": {}, "edges": {}}
    said = []
    with tempfile.TemporaryDirectory() as work:
        database = Database(Path(work), 1 << 30, machine.cores())
        try:
            for table, spec in specs.items():
                found = _table(database, str(Path(folder) / "db" / f"{table}.parquet"), Path(folder))
                key, time, foreign = spec.get("pkey"), spec.get("time_col"), spec.get("fkeys") or {}
                columns = found.features([key, time, *foreign])
                entry = {"files": found.pattern, "key": key or ROW, "columns": columns}
                schema["nodes"][table] = entry | ({"time": time} if time else {})
                left = [c for c, about in found.columns.items() if c not in (key, time, *foreign, *columns)]
                said.append(f"{table}: nodes, {found.rows:,} rows{f'; left out: {chr(44).join(left)}' if left else ''}")
                for column, other in foreign.items():
                    edge = {"table": table, "destination": column, "undirected": "reverse", "dangling": "drop"}
                    schema["edges"][f"{table}.f2p_{column}.{other}"] = edge
        finally:
            database.close()
    try:
        return Schema.parse(schema, folder), said
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _schema(tables: Sequence[_Table], nodes: Sequence[_Table]) -> tuple[dict[str, Any], list[str]]:
    schema: dict[str, Any] = {"nodes": {}, "edges": {}}
    said = []
    for table in tables:
        if table in nodes:
            entry: dict[str, Any] = {"files": table.pattern, "key": table.key}
            columns = table.features([table.key])
            schema["nodes"][table.name] = entry | ({"columns": columns} if columns else {})
            said.append(f"{table.name}: nodes, {table.rows:,} rows; key {table.key}{_left_out(table, [table.key])}")
            for column, other in table.foreign.items():
                edge_type = f"{table.name}.{_relation(column)}.{other.name}"
                missing = {"dangling": "drop"} if table.columns[column]["missing"] else {}
                schema["edges"][edge_type] = {"table": table.name, "destination": column, **missing}
                said.append(f"{edge_type}: edges, {column} of {table.name} has keys of {other.name}")
            continue
        ends = list(table.foreign.items())
        if len(ends) < 2:
            said.append(f"{table.name}: left out, {table.rows:,} rows; no key, and no two columns with keys of others")
            continue
        (src, source_table), (dst, destination) = ends[:2]
        times = [column for column, about in table.columns.items() if about["kind"] == "time"]
        entry = {"files": table.pattern, "source": src, "destination": dst}
        entry |= {"time": times[0]} if times and not table.columns[times[0]]["missing"] else {}
        columns = table.features([table.key, entry.get("time")])
        entry |= {"columns": columns} if columns else {}
        entry |= {"dangling": "drop"} if any(table.columns[column]["missing"] for column in (src, dst)) else {}
        edge_type = f"{source_table.name}.{table.name}.{destination.name}"
        schema["edges"][edge_type] = {**entry, "undirected": "reverse"}
        said.append(f"{edge_type}: edges, {table.rows:,} rows; from {src} to {dst}{_left_out(table, [])}")
    return schema, said


def _left_out(table: _Table, keys: Sequence[str | None]) -> str:
    left = [c for c, about in table.columns.items() if about["kind"] is None and c not in (*keys, *table.foreign)]
    return f"; left out: {', '.join(left)}" if left else ""


def _relation(column: str) -> str:
    return re.sub(r"_*(id|key|code)$", "", column.replace(".", "_"), flags=re.IGNORECASE).replace("__", "_") or "of"


def _table(database: Database, path: str, folder: Path) -> _Table:
    pattern = without_secrets(path) if is_url(path) else str(Path(path).resolve())
    if Path(pattern).is_relative_to(folder.resolve()):
        pattern = str(Path(pattern).relative_to(folder.resolve()))
    stem = re.sub(r"(\.(parquet|csv|tsv|txt|gz|zst))+$", "", PurePosixPath(pattern).name)
    named = re.sub(r"_{2,}", "_", stem.replace(".", "_")) or "table"
    whole = source(named, Path(), [path], None, [])
    columns = whole.groups[0].columns
    found = source(named, Path(), [path], None, list(columns))
    with reading(found), database.of_files(found.protocols):
        (rows,) = database.row(f"SELECT count(*) FROM ({found.sql()})")
        about = {column: _column(database, found, column, rows) for column in columns}
    return _Table(named, pattern, found, rows, about)


def _column(database: Database, found: Source, column: str, rows: int) -> dict[str, Any]:
    given, family = name(column), found.families[column]
    distinct = "0" if family == "list" else f"count(DISTINCT {given})"
    there, different = database.row(f"SELECT count({given}), {distinct} FROM ({found.sql()})")
    about: dict[str, Any] = {"missing": rows - there, "unique": different == rows > 0, "integers": family == "integer"}
    kinds = {"integer": "number", "real": "number", "boolean": "boolean", "date": "time", "timestamp": "time"}
    kind = kinds.get(family, "time" if family == "timestamp with time zone" else None)
    if family == "real":
        (about["missing"],) = database.row(f"SELECT count_if({given} IS NULL OR isnan({given})) FROM ({found.sql()})")
    if family == "list" and column in found.sizes:
        kind = "vector"
    if family == "text" and there:
        tests = [
            f"bool_and(lower({given}) IN ('true', 'false'))",
            f"bool_and(TRY_CAST({given} AS DOUBLE) IS NOT NULL)",
            f"bool_and(TRY_CAST({time_text(given)} AS TIMESTAMP) IS NOT NULL)",
            f"bool_and(regexp_full_match({given}, {INTEGER}))",
        ]
        values = f"({found.sql()}) WHERE {given} IS NOT NULL"
        alone = database.row(f"SELECT {', '.join(tests)} FROM {values}") if found.is_text else (False,) * 4
        written = [kind for kind, fits in zip(("boolean", "number", "time"), alone, strict=False) if fits]
        about["integers"] = bool(alone[3])
        kind = written[0] if written else "category" if different <= min(MOST_CATEGORIES, rows // 2) else None
    return about | {"kind": kind, "text": family == "text"}


def _key(table: _Table) -> str | None:
    """The column that is most likely the key: of those that may be, the first that is named like one."""
    found = [
        column for column, about in table.columns.items()
        if about["unique"] and not about["missing"] and (about["text"] or about["integers"]) and about["kind"] != "time"
    ]  # fmt: skip
    named = [column for column in found if _NAMED.search(column)]
    return next(iter(named or found), None)


def _foreign(database: Database, table: _Table, tables: Sequence[_Table]) -> dict[str, _Table]:
    """The columns with keys of tables: of text, or of integers and named like a key, other than the key; each of the
    table whose key has its name, if there are several."""
    found = {}
    for column, about in table.columns.items():
        if column == table.key or not (about["text"] or about["integers"]) or about["missing"] == table.rows:
            continue
        fits = []
        for other in tables:
            if other.key is None or other.columns[other.key]["integers"] != about["integers"]:
                continue
            if about["integers"] and column != other.key and not _NAMED.search(column):
                continue  # small numbers of any kind are among keys
            keys = f"SELECT CAST({name(other.key)} AS VARCHAR) FROM ({other.source.sql()})"
            with database.of_files([*table.source.protocols, *other.source.protocols]):
                (unknown,) = database.row(
                    f"SELECT count(*) FROM ({table.source.sql()}) WHERE {name(column)} IS NOT NULL AND "
                    f"CAST({name(column)} AS VARCHAR) NOT IN ({keys})"
                )
            if unknown <= 0.01 * table.rows:
                about["missing"] += unknown
                fits.append(other)
        if fits:
            found[column] = next((other for other in fits if other.key == column), fits[0])
    return found
