"""A table of nodes: staged, checked, owned by parts, numbered by its sorted keys, and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..splits import SUBSETS
from .columns import Check, Value, check_family, feature, key_value, label_value, split_value, time_value
from .engine import Database, Engine, Join, case_of, error_at, first_row, reading, shortened, values_of
from .id_map import IdWriter
from .layout import (
    Feature,
    RowWriter,
    batch_rows,
    drop_codes,
    features_of,
    integers,
    make_codes,
    reals,
    selected,
    staged_names,
)
from .schema import NodeTable, Owner, Schema
from .sources import Source, name, source
from .survey import distinct, numbered, split_sql, text_kinds


def stage_owners(engine: Engine, schema: Schema, table: NodeTable, staged: str, key: str, parts: int) -> None:
    """Makes ``STAGED_owned``: the rows of a table of nodes with their ``part``.

    Args:
        engine: that has the staged table.
        schema: of all tables.
        table: whose rows these are.
        staged: the staged table.
        key: ``integer`` or ``string``, as its keys are.
        parts: their number.

    Raises:
        ValueError: a node has no part or two in a table of owners, or a part is none.
    """
    owner, owned = table.owner, f"{staged}_owned"
    if owner is None:
        drawn = "('0x' || substr(md5('owner' || chr(31) || CAST(key AS VARCHAR)), 1, 8))::UBIGINT"
        engine.stage(owned, staged, select=f"*, ({drawn} % {parts})::INTEGER AS part")
    elif owner.files is None:
        values = engine.ask(staged, "SELECT DISTINCT owner FROM {}")
        numbers = {value: at % parts for at, (value,) in enumerate(sorted(set(values), key=_nothing_first))}
        _numbers(engine, f"{staged}_values", numbers)
        of_value = Join("owner", f"{staged}_values", "value", ("part",), "value")
        of_none = numbers.get(None, 0)
        engine.stage(
            owned, staged, "*", [of_value],
            f"* EXCLUDE (owner, value_part), coalesce(value_part, {of_none})::INTEGER AS part",
        )  # fmt: skip
    else:
        _stage_given(engine, schema, table, staged, key, owner, parts)


def _nothing_first(row: tuple[str | None]) -> tuple[bool, str]:
    return row[0] is not None, row[0] or ""


def _numbers(engine: Engine, table: str, numbers: dict[str | None, int]) -> None:
    """Shares a table of the parts of values."""
    import pyarrow

    values = [value for value in numbers if value is not None]
    found = pyarrow.table({
        "value": pyarrow.array(values, pyarrow.string()),
        "part": pyarrow.array([numbers[value] for value in values], pyarrow.int32()),
    })  # fmt: skip
    engine.database.fill(table, found.schema, found.to_batches())
    engine.share(table)


def _stage_given(
    engine: Engine, schema: Schema, table: NodeTable, staged: str, key: str, owner: Owner, parts: int
) -> None:
    assert owner.files is not None
    path, given, gathered = f"{table.path}.owner", f"{staged}_given", f"{staged}_times"
    found = source(path, schema.folder, owner.files, None, [owner.key, owner.column])
    engine.check_packed(found)
    part = f"TRY_CAST({name(owner.column)} AS BIGINT)"
    wrong = f"({part} IS NULL OR {part} < 0 OR {part} >= {parts})"
    engine.stage(given, found, f"{key_value(found, owner.key, key)} AS key, {part} AS part, {wrong} AS wrong")
    if any(count for (count,) in engine.ask(given, "SELECT count(*) FROM {} WHERE wrong")):
        place = first_row(engine.database, found, owner.column, wrong)
        raise error_at(found, owner.column, place, f"a part from 0 to {parts - 1}")
    of_key = Join("key", given, "key", ("part",), "owner")
    engine.stage(f"{staged}_owned", staged, "*", [of_key], "* EXCLUDE (owner_part), owner_part::INTEGER AS part")
    engine.gather(f"{staged}_owned", "key, part", gathered)
    counted = f"SELECT key, count(part) AS times FROM {gathered} GROUP BY key HAVING times <> 1 ORDER BY key LIMIT 1"
    for value, times in engine.database.rows(counted):
        raise ValueError(f"{path}: expected each key of {table.path} once, found {value!r} in {times} rows")


@dataclass(frozen=True)
class Nodes:
    """A table of nodes that is staged."""

    table: NodeTable
    source: Source
    staged: str
    """The staged table; ``STAGED_keys``, of the engine's database, has the columns ``key`` and ``id``, by part also
    ``part``, as the staged table ``STAGED_owned`` has."""
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


def stage(engine: Engine, schema: Schema, table: NodeTable, staged: str, parts: int | None = None) -> Nodes:
    """Stages a table of nodes, checks it, and numbers its keys; ``parts``: how many own them, if they go by part.

    Raises:
        ValueError, FileNotFoundError: names table, file, column and row of what is wrong first.
    """
    needed = [table.key, *(column.name for column in table.columns)]
    needed += [column for column in (table.label and table.label.column, table.split and table.split.column) if column]
    needed += [table.time.column] if table.time is not None else []
    needed += [table.owner.column] if table.owner is not None and table.owner.files is None else []
    found = source(table.path, schema.folder, table.files, table.delimiter, list(dict.fromkeys(needed)))
    with reading(found):
        engine.check_packed(found)
        nodes = _staged(engine, schema, table, found, staged)
        if parts is not None:
            stage_owners(engine, schema, table, staged, nodes.key, parts)
        of_part = "" if parts is None else "part, "
        owned = staged if parts is None else f"{staged}_owned"
        engine.gather(owned, f"key, {of_part}", f"{staged}_gathered")
        engine.database.run(
            f"CREATE TABLE {staged}_keys AS SELECT key, {of_part}row_number() OVER (ORDER BY key) - 1 AS id FROM "
            f"{staged}_gathered"
        )
        engine.share(f"{staged}_keys")
        return nodes


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
    classes = None
    if table.label is not None and table.label.kind == "class":
        classes = tuple(distinct(engine, staged, "true", "label"))
    label = "key" if table.label is None else "label"
    counted = engine.ask(staged, f"SELECT count(*), count(*) - count({label}) FROM {{}}")
    count, unlabelled = map(sum, zip(*counted, strict=True))
    return Nodes(table, found, staged, key, count, features, classes, unlabelled)


def _create(engine: Engine, found: Source, staged: str, values: dict[str, Value], key_sql: str, of_key: Check) -> None:
    checks = [of_key, *(value.check for value in values.values())]
    engine.stage(staged, found, f"{key_sql} AS key, {values_of(values)} {case_of(checks, 1)} AS bad")
    failed = [bad for (bad,) in engine.ask(staged, "SELECT min(bad) FROM {} WHERE bad > 0") if bad is not None]
    if failed:
        check = checks[min(failed) - 1]
        place = first_row(engine.database, found, check.column, check.bad)
        raise error_at(found, check.column, place, check.expected)


def _key_type(found: Source, column: str, written_as_integers: bool) -> str:
    family = found.families[column]
    if family not in ("text", "integer", "null"):
        raise ValueError(
            f"{found.path}: {found.files[0]}: column {column}: expected keys (text, integer), found {family}"
        )
    return "integer" if family == "integer" or written_as_integers else "string"


def write_ids(database: Database, nodes: Nodes, ids: IdWriter) -> None:
    """Writes the ids of a type of nodes.

    Raises:
        ValueError: names the row whose key an earlier row has.
    """
    keys = f"{nodes.staged}_keys"
    with reading(nodes.source):
        (size,) = database.row(f"SELECT sum(strlen(key)) FROM {keys}") if nodes.key == "string" else (None,)
        with ids.writing(nodes.table.name, nodes.key, nodes.count, size) as put:
            batches = database.batches(f"SELECT key FROM {keys} ORDER BY id", batch_rows([]))
            for batch in batches:
                if (again := put(batch.column("key"))) is not None:
                    batches.close()
                    raise _duplicate(database, nodes, again)


def split_of(engine: Engine, nodes: Nodes) -> str:
    """The number of a row's split in SQL, NULL where it has none."""
    if nodes.table.split is None:
        return "NULL"
    kept = "true" if nodes.table.label is None else "label IS NOT NULL"
    split = split_sql(engine, nodes.table.split, nodes.staged, kept)
    return f"CASE WHEN {kept.replace('label', 'staged.label')} THEN {split} END"


def write(database: Database, piece: str, nodes: Nodes, split: str, rows: RowWriter) -> dict[str, int]:
    """Writes rows of nodes in the order of their keys.

    Args:
        database: that has them.
        piece: the table of all of them, or of some.
        nodes: what is known of all.
        split: the number of a row's split in SQL.
        rows: takes them.

    Returns:
        The sizes of the splits.
    """
    table, group = nodes.table, nodes.table.name
    columns, joins = selected(nodes.features, piece)
    make_codes(database, nodes.features, piece)
    if table.label is not None and nodes.classes is None:
        columns += "staged.label, "
    elif nodes.classes is not None:
        numbered(database, f"{piece}_classes", nodes.classes, 0)
        columns += "coalesce(label_of.code, -1) AS label, "
        joins += f" LEFT JOIN {piece}_classes AS label_of ON staged.label = label_of.value"
    columns += "staged.time, " if table.time is not None else ""
    sql = f"SELECT {columns} {split}::TINYINT AS split FROM {piece} AS staged{joins} ORDER BY staged.key"
    counts = dict.fromkeys(SUBSETS, 0)
    with reading(nodes.source):
        for batch in database.batches(sql, batch_rows(nodes.features)):
            rows.append_rows(group, batch, nodes.features)
            if table.label is not None:
                label = batch.column("label")
                rows.append(group, "y", reals(label) if nodes.classes is None else integers(label))
            if table.split is not None:
                number = integers(batch.column("split").fill_null(-1))
                counts = {name: counts[name] + int((number == place).sum()) for place, name in enumerate(counts)}
    drop_codes(database, nodes.features, piece)
    if nodes.classes is not None:
        database.run(f"DROP TABLE {piece}_classes")
    return counts if table.split is not None else {}


def add(nodes: Nodes, rows: RowWriter) -> None:
    """Adds the attributes that :func:`write` writes."""
    table, group = nodes.table, nodes.table.name
    rows.add_rows(group, nodes.count, nodes.features, table.time is not None, table.split is not None)
    if table.label is not None:
        rows.add(group, "y", torch.float32 if nodes.classes is None else torch.int64, (nodes.count,))


def _duplicate(database: Database, nodes: Nodes, key: Any) -> ValueError:
    """The error of the first row whose key an earlier row has."""
    found, column = nodes.source, nodes.table.key
    key_sql = f"CAST({name(column)} AS VARCHAR)"
    database.run("CREATE TABLE rows_of_keys (file INTEGER, row_of_file BIGINT, key VARCHAR)")
    with database.in_order(found.protocols):
        for number, file in enumerate(found.files):
            database.run(
                f"INSERT INTO rows_of_keys SELECT {number}, row_of_file, {key_sql} FROM ({found.sql_of(file)})"
            )
    rows = database.rows(
        "SELECT file, row_of_file, key FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY file, row_of_file) "
        "AS occurrence FROM rows_of_keys) WHERE occurrence = 2 ORDER BY file, row_of_file LIMIT 1"
    )
    if not rows:
        return ValueError(f"{found.path}: column {column}: expected each key once, found {key!r} twice")
    ((file, row, text),) = rows
    first = first_row(database, found, column, f"{key_sql} = '{text.replace(chr(39), chr(39) * 2)}'")
    assert first is not None
    return ValueError(
        f"{found.path}: {found.files[file]}: row {row}: column {column}: expected each key once, found "
        f"{shortened(text)!r} as in {first.file}, row {first.row}"
    )
