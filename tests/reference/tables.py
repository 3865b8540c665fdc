"""What :func:`torch_gnnscale.tables.build` writes, in plain Python, of tables in memory: all rows in lists."""

import datetime
import hashlib
import math

import numpy as np
import torch

EPOCH = datetime.datetime(1970, 1, 1)


class Wrong(Exception):
    """Where the first wrong value is: (path of the table, number of the file, row from 1, column)."""


def build(schema, tables):
    """The arrays of a graph.

    Args:
        schema: a Schema.
        tables: by the path of a table, the Arrow tables of its files, in their order.

    Returns:
        ({(group, name): tensor}, {edge type: (colptr, row)}, {type: sorted keys}).
    """
    features, graph, keys = {}, {}, {}
    for name, table in schema.nodes.items():
        keys[name] = _nodes(schema, table, _rows(tables[table.path]), features)
    number = {name: {key: at for at, key in enumerate(found)} for name, found in keys.items()}
    for edge_type, table in schema.edges.items():
        rows = _rows(tables[table.path if table.table is None else schema.nodes[table.table].path])
        _edges(schema, table, rows, number[edge_type[0]], number[edge_type[-1]], features, graph)
    return features, graph, keys


def _rows(files):
    """[(place, {column: value})] of all rows."""
    return [((at, row), values) for at, file in enumerate(files) for row, values in enumerate(file.to_pylist(), 1)]


def _first(table, rows, checks):
    """Raises Wrong for the first row that fails the first of the checks that some row fails."""
    for column, fails in checks:
        for place, row in rows:
            if fails(row):
                raise Wrong(table.path, *place, column)


BAD = object()


def _number(value):
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = BAD if "_" in value else float(value)
        except ValueError:
            return BAD
        if value is BAD:
            return BAD
    value = float(value)
    return None if math.isnan(value) else BAD if abs(value) > 3.4e38 else value + 0.0


def _boolean(value):
    text = None if value is None else str(value).lower()
    return {None: None, "true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}.get(text, BAD)


def _micros(value, unit):
    if value is None:
        return None
    if unit is not None:
        factor = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}[unit]
        return value // 1000 if unit == "ns" else value * factor
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            return BAD
    if not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if value.tzinfo is not None:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return (value - EPOCH) // datetime.timedelta(microseconds=1)


def _vector(value, size):
    fine = value is not None and len(value) == size and all(v is not None and math.isfinite(v) for v in value)
    return value if fine else BAD


def _value(column, value):
    """The value of a feature: None where it is missing, BAD where it is wrong."""
    if column.kind == "category":
        return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if column.kind == "vector":
        return _vector(value, column.size)
    if column.kind == "number":
        found = _number(value)
    elif column.kind == "boolean":
        found = _boolean(value)
    else:
        found = _micros(value, column.unit)
        found = found if found is None or found is BAD else found / 1e6
    return BAD if found is None and column.missing == "error" else found


def _features(table, rows):
    """(the columns of x, those of category, what rows are sorted by) of rows without wrong values."""
    numbers, codes, order = [], [], []
    for column in table.columns:
        values = [_value(column, row[column.name]) for _, row in rows]
        if column.kind == "category":
            names = sorted({value for value in values if value is not None}, key=str.encode)
            codes.append([0 if value is None else 1 + names.index(value) for value in values])
            order.append([b"" if value is None else b"\1" + value.encode() for value in values])
            continue
        if column.kind == "vector":
            numbers += [list(part) for part in zip(*values, strict=True)] if values else [[]] * column.size
            order.append([tuple(np.float32(v) for v in value) for value in values])
            continue
        known = [value for value in values if value is not None]
        mean = math.fsum(known) / len(known) if known else 0.0
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / len(known)) if known else 1.0
        if column.kind == "boolean" or column.scale == "none":
            numbers.append([mean if value is None else value for value in values])
        else:
            numbers.append([0.0 if value is None else (value - mean) / (std or 1.0) for value in values])
        if column.missing == "mean":
            numbers.append([float(value is None) for value in values])
        order.append([(value is not None, value or 0.0) for value in values])
    return numbers, codes, order


def _split(schema, table, rows, keys, labelled):
    """0, 1, 2 or None of each row."""
    split = table.split
    if split.column is not None:
        found = [{"train": 0, "val": 1, "test": 2}.get(row[split.column]) for _, row in rows]
    elif split.by == "key":
        found = []
        for _, row in rows:
            text = "\x1f".join([str(split.seed), *(str(row[key]) for key in keys)])
            share = int(hashlib.md5(text.encode()).hexdigest()[:8], 16)
            found.append(
                1 if share < int(split.val * 2**32) else 2 if share < int((split.val + split.test) * 2**32) else 0
            )
    else:
        times = [_time(schema, table, row) for _, row in rows]
        kept = sorted(time for time, known in zip(times, labelled, strict=True) if known)
        test = len(kept) - int(len(kept) * split.test)
        val = test - int(len(kept) * split.val)
        begins = [kept[first] if first < len(kept) else math.inf for first in (val, test)]
        found = [2 if time >= begins[1] else 1 if time >= begins[0] else 0 for time in times]
    return [number if known else None for number, known in zip(found, labelled, strict=True)]


def _time(schema, table, row):
    return _micros(row[table.time.column], table.time.unit) // {"s": 1_000_000, "ms": 1000, "us": 1}[schema.time_unit]


def _checks(table):
    """(column, whether a row is wrong) of everything but keys, in the order in which it is checked."""
    found = [(c.name, lambda row, c=c: _value(c, row[c.name]) is BAD) for c in table.columns]
    if getattr(table, "label", None) is not None:
        label = table.label.column
        found.append((label, lambda row: isinstance(row[label], float) and not row[label].is_integer()))
    if getattr(table, "weight", None) is not None:
        weight = table.weight
        found.append((weight, lambda row: (v := _number(row[weight])) is None or v is BAD or v < 0))
    if table.time is not None:
        found.append((table.time.column, lambda row: _micros(row[table.time.column], table.time.unit) in (None, BAD)))
    if table.split is not None and table.split.column is not None:
        column = table.split.column
        found.append((column, lambda row: row[column] not in ("train", "val", "test", None)))
    return found


def _put(features, group, columns, codes, times, splits):
    if columns:
        name = "edge_attr" if isinstance(group, tuple) else "x"
        features[group, name] = torch.tensor(np.array(columns, np.float64).T.astype(np.float32))
    if codes:
        features[group, "category"] = torch.tensor(codes, dtype=torch.int64).T
    if times is not None:
        features[group, "time"] = torch.tensor(times, dtype=torch.int64)
    for number, subset in enumerate(("train", "val", "test") if splits is not None else ()):
        features[group, f"{subset}_mask"] = torch.tensor([split == number for split in splits], dtype=torch.bool)


def _nodes(schema, table, rows, features):
    _first(table, rows, [(table.key, lambda row: row[table.key] is None), *_checks(table)])
    seen = set()
    for place, row in rows:
        if row[table.key] in seen:
            raise Wrong(table.path, *place, table.key)
        seen.add(row[table.key])
    by = (lambda row: row[1][table.key].encode()) if any(isinstance(key, str) for key in seen) else (
        lambda row: row[1][table.key]
    )  # fmt: skip
    rows = sorted(rows, key=by)
    columns, codes, _ = _features(table, rows)
    labels = None if table.label is None else [row[table.label.column] for _, row in rows]
    labelled = [True] * len(rows) if labels is None else [label is not None for label in labels]
    splits = None if table.split is None else _split(schema, table, rows, [table.key], labelled)
    times = None if table.time is None else [_time(schema, table, row) for _, row in rows]
    _put(features, table.name, columns, codes, times, splits)
    if labels is not None:
        classes = sorted({label for label in labels if label is not None})
        numbers = [-1 if label is None else classes.index(label) for label in labels]
        features[table.name, "y"] = torch.tensor(numbers, dtype=torch.int64)
    return [row[table.key] for _, row in rows]


def _edges(schema, table, rows, sources, destinations, features, graph):
    kept = []
    causes = [
        (table.source, lambda row: row[table.source] is None),
        (table.source, lambda row: row[table.source] is not None and row[table.source] not in sources),
        (table.destination, lambda row: row[table.destination] is None),
        (
            table.destination,
            lambda row: row[table.destination] is not None and row[table.destination] not in destinations,
        ),
    ]
    if table.dangling == "drop":
        rows = [(place, row) for place, row in rows if not any(fails(row) for _, fails in causes)]
    # A row fails the first check that it fails: of both ends, a row counts for its source.
    for at, (column, fails) in enumerate(causes):
        before = [other for _, other in causes[:at]]
        _first(table, rows, [(column, lambda row, f=fails, b=before: f(row) and not any(o(row) for o in b))])
    _first(table, rows, _checks(table))
    columns, codes, order = _features(table, rows)
    times = None if table.time is None else [_time(schema, table, row) for _, row in rows]
    splits = None
    if table.split is not None:
        splits = _split(schema, table, rows, [table.source, table.destination], [True] * len(rows))
    weights = None if table.weight is None else [_number(row[table.weight]) for _, row in rows]
    kept = [(sources[row[table.source]], destinations[row[table.destination]]) for _, row in rows]
    src, rel, dst = table.edge_type
    for edge_type, flip in [(table.edge_type, False)] + ([((dst, f"rev_{rel}", src), True)] if table.reverse else []):
        ends = [(b, a) if flip else (a, b) for a, b in kept]

        def key(at, ends=ends):
            beside = [part[at] for part in (times, [end[0] for end in ends], weights, *order) if part is not None]
            split = [] if splits is None else [-1 if splits[at] is None else splits[at]]
            return ends[at][1], *beside, *split

        by = sorted(range(len(ends)), key=key)
        count = len(sources if flip else destinations)
        degrees = np.bincount(np.array([ends[at][1] for at in by], np.int64), minlength=count)
        graph[edge_type] = (
            torch.tensor([0, *degrees.cumsum()], dtype=torch.int64),
            torch.tensor([ends[at][0] for at in by], dtype=torch.int32),
        )
        _put(
            features, edge_type, [[column[at] for at in by] for column in columns],
            [[column[at] for at in by] for column in codes], times and [times[at] for at in by],
            splits and [splits[at] for at in by],
        )  # fmt: skip
        if times == []:
            features[edge_type, "time"] = torch.empty(0, dtype=torch.int64)
        if splits == []:
            features |= {(edge_type, f"{s}_mask"): torch.empty(0, dtype=torch.bool) for s in ("train", "val", "test")}
        if weights is not None:
            features[edge_type, "edge_weight"] = torch.tensor([weights[at] for at in by], dtype=torch.float32)
