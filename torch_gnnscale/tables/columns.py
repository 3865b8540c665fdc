"""What the columns of a table become: expressions of SQL for their values, and for what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .schema import Column, Label, Split, Time
from .sources import Source, name, quoted

INTEGER = "'0|-?[1-9][0-9]{0,18}'"
"""How text files write an integer that is a key or a class."""
LARGEST = "3.4e38"
"""About the largest number of float32."""
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?"
_ZONE = r" ?([Zz]|UTC|[+-](0[0-9]|1[0-4])(:?[0-5][0-9])?)"
TIME = rf"'[0-9]{{4}}[-/][0-9]{{1,2}}[-/][0-9]{{1,2}}([T ]{_CLOCK}({_ZONE})?)?'"
"""How text says a time. DuckDB reads more, such as ``10:00 PM`` as 10:00, and leaves names of time zones aside."""
ZONED = rf"'{_CLOCK}{_ZONE}$'"
"""How a time ends that has a time zone."""
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class Check:
    """A condition that no row of a table may fulfil."""

    column: str
    bad: str
    """The condition, in SQL, of the columns of the table's files."""
    expected: str


@dataclass(frozen=True)
class Value:
    """A column of a staged table."""

    sql: str
    """Its values, of the columns of the table's files."""
    check: Check


@dataclass(frozen=True)
class TextKinds:
    """What the text of columns is that have no types, as all of their values tell."""

    integers: frozenset[str]
    """Columns whose values are written as integers."""
    zoned: frozenset[str]
    """Columns of times that have time zones."""


def check_family(source: Source, column: str, allowed: Sequence[str], what: str) -> str:
    """The family of a column; ValueError unless it is one of ``allowed``, or empty."""
    family = source.families[column]
    if family not in (*allowed, "null"):
        raise ValueError(
            f"{source.path}: {source.files[0]}: column {column}: expected {what} ({', '.join(allowed)}), found {family}"
        )
    return family


def feature(source: Source, column: Column, kinds: TextKinds) -> Value:
    """A column of features: DOUBLE, VARCHAR of categories and text, or FLOAT[] of vectors; NULL where it is missing."""
    if column.kind == "number":
        sql, bad, expected = _number(source, column.name)
    elif column.kind == "boolean":
        sql, bad, expected = _boolean(source, column.name)
    elif column.kind == "category":
        check_family(source, column.name, ("text", "integer", "boolean"), "categories")
        return Value(f"CAST({name(column.name)} AS VARCHAR)", Check(column.name, "false", "a category"))
    elif column.kind == "text":
        check_family(source, column.name, ("text",), "text")
        return Value(name(column.name), Check(column.name, "false", "text"))
    elif column.kind == "time":
        micros, bad, expected = _micros(source, Time(column.name, column.unit), kinds)
        sql = f"CAST({micros} AS DOUBLE) / 1e6"
    else:
        return _vector(source, column)
    if column.missing == "error":
        bad = f"({bad}) OR ({sql}) IS NULL"
    return Value(sql, Check(column.name, bad, expected))


def _number(source: Source, column: str) -> tuple[str, str, str]:
    """(value: NULL where it is missing or NaN; what is bad; what is expected)."""
    check_family(source, column, ("integer", "real", "text"), "numbers")
    is_text = source.families[column] == "text"
    given = f"CASE WHEN NOT contains({name(column)}, '_') THEN {name(column)} END" if is_text else name(column)
    number = f"TRY_CAST({given} AS DOUBLE)"
    value = f"CASE WHEN {number} = 0 THEN 0.0 WHEN NOT isnan({number}) THEN {number} END"
    bad = f"({name(column)} IS NOT NULL AND {number} IS NULL) OR (NOT isnan({number}) AND abs({number}) > {LARGEST})"
    return value, bad, "a finite number"


def _boolean(source: Source, column: str) -> tuple[str, str, str]:
    family = check_family(source, column, ("boolean", "integer", "text"), "booleans")
    given = f"lower({name(column)})" if family == "text" else f"CAST({name(column)} AS VARCHAR)"
    value = f"CASE WHEN {given} IN ('true', '1') THEN 1.0::DOUBLE WHEN {given} IN ('false', '0') THEN 0.0::DOUBLE END"
    return value, f"{name(column)} IS NOT NULL AND ({value}) IS NULL", "true or false, or 1 or 0"


def _vector(source: Source, column: Column) -> Value:
    check_family(source, column.name, ("list",), "lists of numbers")
    size = vector_size(source, column)
    value = f"TRY_CAST({name(column.name)} AS FLOAT[])"
    whole = f"len({value}) = {size} AND list_count({value}) = {size} AND isfinite(list_sum(CAST({value} AS DOUBLE[])))"
    return Value(value, Check(column.name, f"({whole}) IS NOT TRUE", f"a list of {size} finite numbers"))


def vector_size(source: Source, column: Column) -> int:
    """How many numbers the lists of a column have; ValueError if neither the schema nor the files say it."""
    found = source.sizes.get(column.name)
    if column.size is not None and found not in (None, column.size):
        raise ValueError(
            f"{source.path}.columns.{column.name}.size: expected {found}, as in the files, found {column.size}"
        )
    size = column.size or found
    if size is None:
        raise ValueError(
            f"{source.path}.columns.{column.name}.size: expected it, because the files do not say it, found nothing"
        )
    return size


def floor_div(value: str, divisor: int) -> str:
    """``value // divisor``, rounded down, of integers in SQL, whose division rounds towards 0."""
    if divisor == 1:
        return value
    return f"(({value}) - ((({value}) % {divisor}) + {divisor}) % {divisor}) // {divisor}"


def time_text(column: str) -> str:
    """The text of a time, in SQL; NULL where it is none."""
    return f"CASE WHEN regexp_full_match({column}, {TIME}) THEN regexp_replace({column}, ' ([+-])', '\\1') END"


def _micros(source: Source, time: Time, kinds: TextKinds) -> tuple[str, str, str]:
    """Microseconds since 1970, as BIGINT; without a time zone, times are UTC."""
    column, path = name(time.column), source.path
    families = ("timestamp", "timestamp with time zone", "date", "integer", "text")
    family = check_family(source, time.column, families, "times")
    numbers = family == "integer" or (family == "text" and time.unit is not None)
    if numbers and time.unit is None:
        raise ValueError(
            f"{path}: column {time.column}: expected a unit of times that are integers, found none in the schema"
        )
    if not numbers and time.unit is not None and family != "null":
        raise ValueError(
            f"{path}: column {time.column}: expected no unit of times that say it, found {time.unit!r} in the schema"
        )
    if numbers:
        assert time.unit is not None
        given = f"CASE WHEN regexp_full_match({column}, {INTEGER}) THEN {column} END" if family == "text" else column
        per_second = _PER_SECOND[time.unit]
        number = f"TRY_CAST({given} AS HUGEINT)"
        if per_second > 1_000_000:
            number = floor_div(number, per_second // 1_000_000)
        else:
            number = f"{number} * {1_000_000 // per_second}"
        value, expected = f"TRY_CAST({number} AS BIGINT)", f"an integer, a time in {time.unit}"
    else:
        if family == "text":
            kind = "TIMESTAMPTZ" if time.column in kinds.zoned else "TIMESTAMP"
            stamp = f"CAST(TRY_CAST({time_text(column)} AS {kind}) AS TIMESTAMP)"
        else:
            stamp = f"CAST({column} AS TIMESTAMP)"
        value, expected = f"CASE WHEN isfinite({stamp}) THEN epoch_us({stamp}) END", "a time"
    return value, f"{column} IS NOT NULL AND ({value}) IS NULL", expected


def time_value(source: Source, time: Time, kinds: TextKinds, unit: str) -> Value:
    """The time of each row in ``unit``, as BIGINT, rounded down; none is missing."""
    micros, _, expected = _micros(source, time, kinds)
    return Value(floor_div(micros, 1_000_000 // _PER_SECOND[unit]), Check(time.column, f"({micros}) IS NULL", expected))


def weight_value(source: Source, column: str) -> Value:
    """The weight of each edge, as DOUBLE; none is missing."""
    sql, bad, _ = _number(source, column)
    return Value(sql, Check(column, f"({bad}) OR ({sql}) IS NULL OR ({sql}) < 0", "a finite number of at least 0"))


def label_value(source: Source, label: Label, kinds: TextKinds) -> Value:
    """The label of each node, NULL where it has none: its class, BIGINT or VARCHAR, or a number, DOUBLE."""
    column = label.column
    if label.kind == "number":
        sql, bad, expected = _number(source, column)
        return Value(sql, Check(column, bad, expected))
    family = check_family(source, column, ("text", "integer", "boolean", "real"), "classes")
    given = name(column)
    if family == "real":
        value = f"TRY_CAST({given} AS BIGINT)"
        bad = f"{given} IS NOT NULL AND (({value} = {given}) IS NOT TRUE OR {is_inexact(source, column)})"
        return Value(value, Check(column, bad, "a class, or nothing"))
    if family == "boolean" or family == "integer" or column in kinds.integers:
        value = f"TRY_CAST({given} AS BIGINT)"
        return Value(value, Check(column, f"{given} IS NOT NULL AND {value} IS NULL", "a class, an integer of 64 bits"))
    return Value(f"CAST({given} AS VARCHAR)", Check(column, f"lower({given}) = 'nan'", "a class, or nothing"))


def split_value(source: Source, split: Split, keys: Sequence[str]) -> Value:
    """0 for training, 1 for validation, 2 for testing or NULL, as TINYINT; NULL everywhere if times decide it.

    Args:
        source: the table.
        split: how it is split.
        keys: the columns by which shares are drawn.
    """
    if split.column is not None:
        check_family(source, split.column, ("text",), "the names of splits")
        given = name(split.column)
        value = f"CASE {given} WHEN 'train' THEN 0 WHEN 'val' THEN 1 WHEN 'test' THEN 2 END::TINYINT"
        bad = f"{given} IS NOT NULL AND ({value}) IS NULL"
        return Value(value, Check(split.column, bad, "train, val, test or nothing"))
    no_check = Check(keys[0], "false", "")
    if split.by == "time":
        return Value("NULL::TINYINT", no_check)
    values = [f"TRY_CAST({name(key)} AS BIGINT)" if source.families[key] == "real" else name(key) for key in keys]
    text = " || ".join([quoted(str(split.seed)), *(f"chr(31) || CAST({value} AS VARCHAR)" for value in values)])
    drawn = f"substr(md5({text}), 1, 8)"
    val, both = (quoted(share_bound(share)) for share in (split.val, split.val + split.test))
    return Value(f"CASE WHEN {drawn} < {val} THEN 1 WHEN {drawn} < {both} THEN 2 ELSE 0 END::TINYINT", no_check)


def share_bound(share: float) -> str:
    """The 8 hexadecimal digits below which a ``share`` of all such numbers are; of less than 1."""
    return f"{int(share * 2**32):08x}"


def key_value(source: Source, column: str, key: str) -> str:
    """The key of each row that names a node, as SQL; NULL where it is missing or can be the key of no node.

    Args:
        source: the table.
        column: with the keys.
        key: ``integer`` or ``string``, as the keys of the node table are.

    Raises:
        ValueError: a column of the other kind.
    """
    family, given = source.families[column], name(column)
    expected = "integer" if key == "integer" else "text"
    as_reals = ("real",) if key == "integer" else ()  # as which pandas writes integers of which some are missing
    allowed = (expected, "null", *as_reals, *(("text",) if source.is_untyped(column) else ()))
    if family not in allowed:
        raise ValueError(
            f"{source.path}: {source.files[0]}: column {column}: expected {expected}, as the keys of the nodes are, "
            f"found {family}"
        )
    if key == "string":
        return f"CAST({given} AS VARCHAR)"
    if source.is_untyped(column):
        return f"TRY_CAST(CASE WHEN regexp_full_match({given}, {INTEGER}) THEN {given} END AS BIGINT)"
    if family == "real":
        return f"CASE WHEN {given} = trunc({given}) THEN TRY_CAST({given} AS BIGINT) END"
    return f"TRY_CAST({given} AS BIGINT)"


def is_inexact(source: Source, column: str) -> str:
    """Whether a row's integer is one that others are rounded to in a column of floating-point numbers, in SQL."""
    if source.families[column] != "real":
        return "false"
    given = name(column)
    exact = f"CASE typeof({given}) WHEN 'FLOAT' THEN {1 << 24} ELSE {1 << 53} END"
    return f"(typeof({given}) NOT LIKE 'DECIMAL%' AND coalesce(abs(CAST({given} AS DOUBLE)) >= {exact}, false))"


def no_key(source: Source, column: str) -> str:
    """Whether a row's key is missing, in SQL."""
    given = name(column)
    return f"({given} IS NULL OR isnan({given}))" if source.families[column] == "real" else f"{given} IS NULL"
