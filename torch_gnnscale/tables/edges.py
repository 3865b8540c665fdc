"""A table of edges: joined with the numbers of nodes, checked, and written by destination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType

from ..splits import SUBSETS
from ..topology.csc import CHUNK
from .columns import Check, feature, is_inexact, key_value, no_key, split_value, time_value, weight_value
from .engine import Database, Engine, Join, Place, case_of, error_at, first_row, reading, values_of
from .layout import (
    Feature,
    RowWriter,
    batch_rows,
    degrees_of,
    drop_codes,
    features_of,
    integers,
    make_codes,
    order_of,
    reals,
    selected,
    staged_names,
)
from .nodes import Nodes
from .schema import EdgeTable, Schema
from .sources import Source, source
from .survey import split_sql, text_kinds

_CAUSES = ("no source", "unknown source", "no destination", "unknown destination")
"""Why a row is no edge: the numbers 1 to 4 of ``bad`` in a staged table."""


@dataclass(frozen=True)
class Edges:
    """A table of edges that is staged."""

    table: EdgeTable
    source: Source
    staged: str
    count: int
    dropped: dict[str, int]
    features: list[Feature]

    @property
    def edge_types(self) -> list[EdgeType]:
        """The relation, and the one that leads the other way."""
        src, rel, dst = self.table.edge_type
        return [self.table.edge_type, (dst, f"rev_{rel}", src)] if self.table.reverse else [self.table.edge_type]

    def about(self) -> dict[str, Any]:
        """What is stored beside the arrays."""
        return {"columns": [feature.about() for feature in self.features], "reverse": self.table.reverse}

    def report(self) -> dict[str, Any]:
        """What was counted."""
        found: dict[str, Any] = {"rows": self.count + sum(self.dropped.values()), "files": len(self.source.files)}
        found |= {"edges": self.count, "dropped": self.dropped}
        found["missing"] = {f.column.name: f.missing for f in self.features if f.missing}
        found["categories"] = {f.column.name: len(f.categories) for f in self.features if f.column.kind == "category"}
        return found


def stage(
    engine: Engine, schema: Schema, nodes: Mapping[str, Nodes], table: EdgeTable, staged: str, by_part: bool = False
) -> Edges:
    """Stages a table of edges as numbers of nodes, ``src`` and ``dst``, and checks it; errors as of nodes.

    ``by_part``: with the parts of the ends, ``src_part`` and ``dst_part``.
    """
    needed = [table.source, table.destination, *(column.name for column in table.columns)]
    needed += [column for column in (table.weight, table.split and table.split.column) if column]
    needed += [table.time.column] if table.time is not None else []
    found = source(table.path, schema.folder, table.files, table.delimiter, list(dict.fromkeys(needed)))
    with reading(found):
        if table.table is None:
            engine.check_packed(found)
        return _staged(engine, schema, nodes, table, found, staged, by_part)


def _staged(
    engine: Engine, schema: Schema, nodes: Mapping[str, Nodes], table: EdgeTable, found: Source, staged: str,
    by_part: bool,
) -> Edges:  # fmt: skip
    times = [column.name for column in table.columns if column.kind == "time" and column.unit is None]
    times += [table.time.column] if table.time is not None and table.time.unit is None else []
    kinds = text_kinds(engine, found, [], times)
    src, dst = nodes[table.edge_type[0]], nodes[table.edge_type[-1]]
    ends = [key_value(found, column, of.key) for column, of in ((table.source, src), (table.destination, dst))]
    names = staged_names(len(table.columns))
    values = {given: feature(found, column, kinds) for given, column in zip(names, table.columns, strict=True)}
    if table.weight is not None:
        values["weight"] = weight_value(found, table.weight)
    if table.time is not None:
        values["time"] = time_value(found, table.time, kinds, schema.time_unit)
    if table.split is not None:
        values["split"] = split_value(found, table.split, [table.source, table.destination])
    checks = [
        Check(column, is_inexact(found, column), "an integer that a column of floating-point numbers holds exactly")
        for column in (table.source, table.destination)
    ]
    checks += [value.check for value in values.values()]
    given = (
        f"{values_of(values)} {ends[0]} AS src_key, {ends[1]} AS dst_key, {no_key(found, table.source)} AS no_src, "
        f"{no_key(found, table.destination)} AS no_dst, {case_of(checks, 5)} AS wrong"
    )
    taken = ("id", "part") if by_part else ("id",)
    joins = [Join(f"{end}_key", f"{of.staged}_keys", "key", taken, end) for end, of in (("src", src), ("dst", dst))]
    select = (
        "* EXCLUDE (src_key, dst_key, no_src, no_dst, wrong, src_id, dst_id), src_id AS src, dst_id AS dst, "
        "CASE WHEN no_src THEN 1 WHEN src_id IS NULL THEN 2 WHEN no_dst THEN 3 WHEN dst_id IS NULL "
        "THEN 4 ELSE wrong END::INTEGER AS bad"
    )
    engine.stage(staged, found, given, joins, select)
    counts: dict[int, int] = {}
    for bad, rows in engine.ask(staged, "SELECT bad, count(*) FROM {} GROUP BY bad"):
        counts[bad] = counts.get(bad, 0) + rows
    wrong = min((bad for bad in counts if bad > (4 if table.dangling == "drop" else 0)), default=None)
    if wrong is not None and wrong > 4:
        check = checks[wrong - 5]
        condition = (
            check.bad if table.dangling == "error" else f"({check.bad}) AND {_both_known(table, ends, src, dst)}"
        )
        raise error_at(found, check.column, first_row(engine.database, found, check.column, condition), check.expected)
    if wrong is not None:
        raise _dangling(engine, found, table, wrong, ends, src, dst)
    dropped = {cause: counts[bad] for bad, cause in enumerate(_CAUSES, 1) if bad in counts}
    features = features_of(engine, found, table.columns, names, staged, "bad = 0")
    return Edges(table, found, staged, counts.get(0, 0), dropped, features)


def _known(end: str, nodes: Nodes) -> str:
    """Whether a row's key is that of a node."""
    return f"({end}) IN (SELECT key FROM {nodes.staged}_keys)"


def _both_known(table: EdgeTable, ends: list[str], src: Nodes, dst: Nodes) -> str:
    known = [f"coalesce({_known(end, nodes)}, false)" for end, nodes in zip(ends, (src, dst), strict=True)]
    return " AND ".join(known)


def _dangling(
    engine: Engine, found: Source, table: EdgeTable, wrong: int, ends: list[str], src: Nodes, dst: Nodes
) -> ValueError:
    """The error of the first row that lacks an end."""
    at = (wrong - 1) // 2
    column, nodes = (table.source, table.destination)[at], (src, dst)[at]
    hint = "" if table.dangling == "drop" else " (dangling: drop leaves such rows out)"
    if wrong % 2:
        condition = no_key(found, column)
    else:
        condition = f"NOT {no_key(found, column)} AND NOT coalesce({_known(ends[at], nodes)}, false)"
    place: Place | None = first_row(engine.database, found, column, condition)
    return ValueError(f"{error_at(found, column, place, f'a key of {nodes.table.path}')}{hint}")


Pieces: TypeAlias = Iterator[tuple[Tensor, Tensor, Tensor | None]]
"""Of a CSC, as :func:`torch_gnnscale.topology.sort_on_disk.write_relation` takes them."""


class Order(NamedTuple):
    """A relation of a table of edges, and how its edges are read: in the order of their destinations."""

    edge_type: EdgeType
    by: str
    """The column of destinations: ``dst`` or, of the relation that leads the other way, ``src``."""
    split: str | None
    """The number of an edge's split in SQL."""

    @property
    def other(self) -> str:
        """The column of sources."""
        return "src" if self.by == "dst" else "dst"


def orders_of(engine: Engine, edges: Edges) -> list[Order]:
    """The relations of a table."""
    split = None if edges.table.split is None else split_sql(engine, edges.table.split, edges.staged, "bad = 0")
    return [
        Order(edge_type, "dst" if edge_type == edges.table.edge_type else "src", split)
        for edge_type in edges.edge_types
    ]


def add(edges: Edges, edge_type: EdgeType, rows: RowWriter) -> None:
    """Adds the attributes that :func:`read` writes."""
    table = edges.table
    rows.add_rows(edge_type, edges.count, edges.features, table.time is not None, table.split is not None)
    if table.weight is not None:
        rows.add(edge_type, "edge_weight", torch.float32, (edges.count,))


def read(
    database: Database, piece: str, edges: Edges, order: Order, rows: RowWriter, sizes: dict[str, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Reads edges, whose rows are written meanwhile.

    Args:
        database: that has them.
        piece: the table of all of them, or of some.
        edges: what is known of all.
        order: the relation.
        rows: takes their rows.
        sizes: by subset, to which the sizes of splits are added.

    Yields:
        Their sources and destinations: int64, shape [m], never empty.
    """
    make_codes(database, edges.features, piece)
    for batch in database.batches(_sql(piece, edges, order), batch_rows(edges.features)):
        rows.append_rows(order.edge_type, batch, edges.features)
        if edges.table.weight is not None:
            rows.append(order.edge_type, "edge_weight", reals(batch.column("weight")))
        if edges.table.split is not None:
            number = integers(batch.column("split").fill_null(-1))
            for place, subset in enumerate(SUBSETS):
                sizes[subset] += int((number == place).sum())
        yield integers(batch.column("origin")), integers(batch.column("destination"))
    drop_codes(database, edges.features, piece)


def _sql(piece: str, edges: Edges, order: Order) -> str:
    table = edges.table
    columns, joins = selected(edges.features, piece)
    by = f"staged.{order.by}"
    for given, named in ((table.time, "time"), (True, order.other), (table.weight, "weight")):
        if given is not None:
            by += f", staged.{named}"
            columns += f"staged.{named}, " if given is not True else ""
    by += order_of(edges.features)
    by += "" if order.split is None else ", split NULLS FIRST"
    return (
        f"SELECT staged.{order.by} AS destination, staged.{order.other} AS origin, {columns} {order.split or 'NULL'}"
        f"::TINYINT AS split FROM {piece} AS staged{joins} WHERE staged.bad = 0 ORDER BY {by}"
    )


def pieces_of(edges: Iterator[tuple[Tensor, Tensor]], num_dst: int) -> Pieces:
    """The pieces of a CSC of the sources and destinations of all edges, in the order of destinations."""
    none = torch.empty(0, dtype=torch.int64)
    at = held = 0
    for src, dst in edges:
        for degrees in degrees_of(dst, at, held, CHUNK):
            yield degrees, none, None
        last = int(dst[-1])
        held = int((dst == last).sum()) + (held if last == at else 0)
        at = last
        yield none, src, None
    while at < num_dst:
        count = min(num_dst - at, CHUNK)
        degrees = torch.zeros(count, dtype=torch.int64)
        degrees[0] = held
        held, at = 0, at + count
        yield degrees, none, None
