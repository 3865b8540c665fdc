"""A table of nodes: staged, checked, numbered by its sorted keys, and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..splits import SUBSETS
from .columns import Check, Value, check_family, feature, key_value, label_value, split_value, time_value
from .engine import Engine, case_of, error_at, first_row, reading, text_kinds, values_of
from .id_map import IdWriter
from .layout import Feature, batch_rows, features_of, selected, staged_names
from .schema import NodeTable, Schema
from .sources import Source, name, source
from .splits import split_sql
from .writing import RowWriter, integers, reals


@dataclass(frozen=True)
class Nodes:
    """A table of nodes that is staged."""

    table: NodeTable
    source: Source
    staged: str
    """The staged table; ``STAGED_keys`` has the columns ``key`` and ``id``."""
    key: str
    """``integer`` or ``string``."""
    count: int
    features: list[Feature]
    classes: tuple[Any, ...] | None
    unlabelled: int

    def about(self) -> dict[str, Any]:
        """What is stored beside the arrays."""
        found: dict[str, Any] = {"key": self.key, "columns": [feature.about() for feature in self.features]}
        return found if self.classes is None else found | {"classes": list(self.classes)}

    def report(self) -> dict[str, Any]:
        """What was counted."""
        found: dict[str, Any] = {"rows": self.count, "files": len(self.source.files), "key": self.key}
        found["missing"] = {f.column.name: f.missing for f in self.features if f.missing}
        found["categories"] = {f.column.name: len(f.categories) for f in self.features if f.column.kind == "category"}
        found |= {} if self.classes is None else {"classes": len(self.classes)}
        found |= {} if self.table.label is None else {"unlabelled": self.unlabelled}
        return found


def stage(engine: Engine, schema: Schema, table: NodeTable, staged: str) -> Nodes:
    """Reads a table of nodes into the database, and checks it.

    Raises:
        ValueError, FileNotFoundError: names table, file, column and row of what is wrong first.
    """
    needed = [table.key, *(column.name for column in table.columns)]
    needed += [column for column in (table.label and table.label.column, table.split and table.split.column) if column]
    needed += [table.time.column] if table.time is not None else []
    needed += [table.owner.column] if table.owner is not None and table.owner.files is None else []
    found = source(table.path, schema.folder, table.files, table.delimiter, list(dict.fromkeys(needed)))
    with reading(found):
        return _staged(engine, schema, table, found, staged)


def _staged(engine: Engine, schema: Schema, table: NodeTable, found: Source, staged: str) -> Nodes:
    times = [column.name for column in table.columns if column.kind == "time" and column.unit is None]
    times += [table.time.column] if table.time is not None and table.time.unit is None else []
    kinds = text_kinds(engine, found, [table.key, *([table.label.column] if table.label else [])], times)
    key = table.key_type or _key_type(found, table.key, table.key in kinds.integers)
    key_sql = key_value(found, table.key, key)
    names = staged_names(len(table.columns))
    values = {given: feature(found, column, kinds) for given, column in zip(names, table.columns, strict=True)}
    if table.label is not None:
        values["label"] = label_value(found, table.label, kinds)
    if table.time is not None:
        values["time"] = time_value(found, table.time, kinds, schema.time_unit)
    if table.split is not None:
        values["split"] = split_value(found, table.split, [table.key])
    if table.owner is not None and table.owner.files is None:
        check_family(found, table.owner.column, ("text", "integer", "boolean"), "what decides the part")
        given = f"CAST({name(table.owner.column)} AS VARCHAR)"
        values["owner"] = Value(given, Check(table.owner.column, "false", ""))
    of_key = Check(table.key, f"({key_sql}) IS NULL", "a key" if key == "string" else "a key, an integer of 64 bits")
    _create(engine, found, staged, values, key_sql, of_key)
    features = features_of(engine, found, table.columns, names, staged, "true")
    classes, unlabelled = None, 0
    if table.label is not None and table.label.kind == "class":
        engine.run(
            f"CREATE TABLE {staged}_classes AS SELECT value, row_number() OVER (ORDER BY value) - 1 AS code FROM "
            f"(SELECT DISTINCT label AS value FROM {staged} WHERE label IS NOT NULL)"
        )
        classes = tuple(value for (value,) in engine.rows(f"SELECT value FROM {staged}_classes ORDER BY value"))
    if table.label is not None:
        (unlabelled,) = engine.row(f"SELECT count(*) FROM {staged} WHERE label IS NULL")
    (count,) = engine.row(f"SELECT count(*) FROM {staged}")
    engine.run(f"CREATE TABLE {staged}_keys AS SELECT key, row_number() OVER (ORDER BY key) - 1 AS id FROM {staged}")
    return Nodes(table, found, staged, key, count, features, classes, unlabelled)


def _create(engine: Engine, found: Source, staged: str, values: dict[str, Value], key_sql: str, of_key: Check) -> None:
    checks = [of_key, *(value.check for value in values.values())]
    with engine.of_files():
        engine.run(
            f"CREATE TABLE {staged} AS SELECT {key_sql} AS key, {values_of(values)} {case_of(checks, 1)} AS bad FROM "
            f"({found.sql()})"
        )
    (bad,) = engine.row(f"SELECT min(bad) FROM {staged} WHERE bad > 0")
    if bad is not None:
        check = checks[bad - 1]
        raise error_at(found, check.column, first_row(engine, found, check.column, check.bad), check.expected)


def _key_type(found: Source, column: str, written_as_integers: bool) -> str:
    family = found.families[column]
    if family not in ("text", "integer", "null"):
        raise ValueError(
            f"{found.path}: {found.files[0]}: column {column}: expected keys (text, integer), found {family}"
        )
    return "integer" if family == "integer" or written_as_integers else "string"


def write(engine: Engine, nodes: Nodes, ids: IdWriter, features: RowWriter) -> dict[str, int]:
    """Writes the rows of a type of nodes and its ids; returns the sizes of its splits.

    Raises:
        ValueError: names the row whose key an earlier row has.
    """
    table, staged, group = nodes.table, nodes.staged, nodes.table.name
    features.add_rows(group, nodes.count, nodes.features, table.time is not None, table.split is not None)
    if table.label is not None:
        features.add(group, "y", torch.float32 if nodes.classes is None else torch.int64, (nodes.count,))
    columns, joins = selected(nodes.features, staged)
    if table.label is not None and nodes.classes is None:
        columns += "staged.label, "
    elif table.label is not None:
        columns += "coalesce(label_of.code, -1) AS label, "
        joins += f" LEFT JOIN {staged}_classes AS label_of ON staged.label = label_of.value"
    columns += "staged.time, " if table.time is not None else ""
    kept = "true" if table.label is None else "label IS NOT NULL"
    split = "NULL" if table.split is None else split_sql(engine, table.split, staged, kept)
    sql = (
        f"SELECT staged.key, {columns} CASE WHEN {kept.replace('label', 'staged.label')} THEN {split} END::TINYINT AS "
        f"split FROM {staged} AS staged{joins} ORDER BY staged.key"
    )
    counts = dict.fromkeys(SUBSETS, 0)
    with reading(nodes.source):
        (size,) = engine.row(f"SELECT sum(strlen(key)) FROM {staged}") if nodes.key == "string" else (None,)
        with ids.writing(group, nodes.key, nodes.count, size) as put:
            batches = engine.batches(sql, batch_rows(nodes.features))
            for batch in batches:
                if (again := put(batch.column("key"))) is not None:
                    batches.close()
                    raise _duplicate(engine, nodes, again)
                features.append(group, "id", torch.arange(len(batch)))  # rows are counted, also without attributes
                features.append_rows(group, batch, nodes.features)
                if table.label is not None:
                    label = batch.column("label")
                    features.append(group, "y", reals(label) if nodes.classes is None else integers(label))
                if table.split is not None:
                    number = integers(batch.column("split").fill_null(-1))
                    counts = {name: counts[name] + int((number == place).sum()) for place, name in enumerate(counts)}
    return counts if table.split is not None else {}


def _duplicate(engine: Engine, nodes: Nodes, key: Any) -> ValueError:
    """The error of the first row whose key an earlier row has."""
    found, column = nodes.source, nodes.table.key
    key_sql = f"CAST({name(column)} AS VARCHAR)"
    engine.run("CREATE TABLE rows_of_keys (file INTEGER, row_of_file BIGINT, key VARCHAR)")
    with engine.in_order():
        for number, file in enumerate(found.files):
            engine.run(f"INSERT INTO rows_of_keys SELECT {number}, row_of_file, {key_sql} FROM ({found.sql_of(file)})")
    rows = engine.rows(
        "SELECT file, row_of_file, key FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY file, row_of_file) "
        "AS occurrence FROM rows_of_keys) WHERE occurrence = 2 ORDER BY file, row_of_file LIMIT 1"
    )
    if not rows:
        return ValueError(f"{found.path}: column {column}: expected each key once, found {key!r} twice")
    ((file, row, text),) = rows
    first = first_row(engine, found, column, f"{key_sql} = '{text.replace(chr(39), chr(39) * 2)}'")
    assert first is not None
    return ValueError(
        f"{found.path}: {found.files[file]}: row {row}: column {column}: expected each key once, found {text!r} as in "
        f"{first.file}, row {first.row}"
    )
