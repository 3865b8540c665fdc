"""Which part owns each node."""

from __future__ import annotations

from .columns import key_value
from .database import error_at, first_row
from .engine import Engine, Join
from .schema import NodeTable, Owner, Schema
from .sources import name, source


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
