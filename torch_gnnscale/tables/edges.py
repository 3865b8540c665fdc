"""A table of edges: joined with the numbers of nodes, checked, and written by destination."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType

from ..splits import SUBSETS
from ..topology.csc import CHUNK
from .columns import feature, key_value, no_key, split_value, time_value, weight_value
from .engine import Engine, Place, case_of, error_at, first_row, reading, text_kinds, values_of
from .layout import Feature, batch_rows, features_of, order_of, selected, staged_names
from .nodes import Nodes
from .schema import EdgeTable, Schema
from .sources import Source, source
from .splits import split_sql
from .writing import RowWriter, degrees_of, integers, reals

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


def stage(engine: Engine, schema: Schema, nodes: Mapping[str, Nodes], table: EdgeTable, staged: str) -> Edges:
    """Reads a table of edges into the database, as numbers of nodes, and checks it; errors as of nodes."""
    needed = [table.source, table.destination, *(column.name for column in table.columns)]
    needed += [column for column in (table.weight, table.split and table.split.column) if column]
    needed += [table.time.column] if table.time is not None else []
    found = source(table.path, schema.folder, table.files, table.delimiter, list(dict.fromkeys(needed)))
    with reading(found):
        return _staged(engine, schema, nodes, table, found, staged)


def _staged(
    engine: Engine, schema: Schema, nodes: Mapping[str, Nodes], table: EdgeTable, found: Source, staged: str
) -> Edges:
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
    checks = [value.check for value in values.values()]
    given = (
        f"SELECT {values_of(values)} {ends[0]} AS src_key, {ends[1]} AS dst_key, {no_key(found, table.source)} AS "
        f"no_src, {no_key(found, table.destination)} AS no_dst, {case_of(checks, 5)} AS wrong FROM ({found.sql()})"
    )
    with engine.of_files():
        engine.run(
            f"CREATE TABLE {staged} AS SELECT given.* EXCLUDE (src_key, dst_key, no_src, no_dst, wrong), src.id AS "
            f"src, dst.id AS dst, "
            f"CASE WHEN no_src THEN 1 WHEN src.id IS NULL THEN 2 WHEN no_dst THEN 3 WHEN dst.id IS NULL "
            f"THEN 4 ELSE wrong END::USMALLINT AS bad FROM ({given}) AS given LEFT JOIN {src.staged}_keys AS src ON "
            f"given.src_key = src.key LEFT JOIN {dst.staged}_keys AS dst ON given.dst_key = dst.key"
        )
    counts = dict(engine.rows(f"SELECT bad, count(*) FROM {staged} GROUP BY bad"))
    wrong = min((bad for bad in counts if bad > (4 if table.dangling == "drop" else 0)), default=None)
    if wrong is not None and wrong > 4:
        check = checks[wrong - 5]
        condition = (
            check.bad if table.dangling == "error" else f"({check.bad}) AND {_both_known(table, ends, src, dst)}"
        )
        raise error_at(found, check.column, first_row(engine, found, check.column, condition), check.expected)
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
    place: Place | None = first_row(engine, found, column, condition)
    return ValueError(f"{error_at(found, column, place, f'a key of {nodes.table.path}')}{hint}")


Pieces: TypeAlias = Iterator[tuple[Tensor, Tensor, Tensor | None]]
"""Of a CSC, as :func:`torch_gnnscale.topology.sort_on_disk.write_relation` takes them."""


def write(
    engine: Engine, edges: Edges, nodes: Mapping[str, Nodes], rows: RowWriter, put: Callable[[EdgeType, Pieces], None]
) -> dict[str, int]:
    """Writes a relation, and the one that leads the other way, with their rows.

    Args:
        engine: that has them.
        edges: the table.
        nodes: by type.
        rows: takes the rows of edges; also their ends as ``src`` and ``dst``, if it knows these.
        put: takes the edges of each of both, while it reads them.

    Returns:
        The sizes of the splits.
    """
    split = None if edges.table.split is None else split_sql(engine, edges.table.split, edges.staged, "bad = 0")
    sizes = dict.fromkeys(SUBSETS, 0)
    for edge_type in edges.edge_types:
        forward = edge_type == edges.table.edge_type
        of_type = _Rows(edges, edge_type, rows, sizes if forward else {})
        put(edge_type, of_type.pieces(engine, "dst" if forward else "src", split, nodes[edge_type[-1]].count))
    return sizes if split is not None else {}


class _Rows:
    """The edges of a relation, read in the order of their destinations, while their rows are written."""

    def __init__(self, edges: Edges, edge_type: EdgeType, features: RowWriter, sizes: dict[str, int]) -> None:
        self._edges, self._type, self._features, self._sizes = edges, edge_type, features, sizes
        table = edges.table
        features.add_rows(edge_type, edges.count, edges.features, table.time is not None, table.split is not None)
        if table.weight is not None:
            features.add(edge_type, "edge_weight", torch.float32, (edges.count,))

    def pieces(self, engine: Engine, by: str, split: str | None, num_dst: int) -> Pieces:
        """The pieces of the CSC.

        Args:
            engine: that has the edges.
            by: the column of destinations, ``dst`` or, of the relation that leads the other way, ``src``.
            split: the number of a row's split in SQL.
            num_dst: number of destinations.
        """
        none = torch.empty(0, dtype=torch.int64)
        at = held = 0
        for batch in engine.batches(self._sql(by, split), batch_rows(self._edges.features)):
            dst, src = integers(batch.column("destination")), integers(batch.column("origin"))
            for degrees in degrees_of(dst, at, held, CHUNK):
                yield degrees, none, None
            last = int(dst[-1])
            held = int((dst == last).sum()) + (held if last == at else 0)
            at = last
            for end, ids in (("src", src), ("dst", dst)):
                self._features.append(self._type, end, ids)
            self._append(batch)
            yield none, src, None
        while at < num_dst:
            count = min(num_dst - at, CHUNK)
            degrees = torch.zeros(count, dtype=torch.int64)
            degrees[0] = held
            held, at = 0, at + count
            yield degrees, none, None

    def _sql(self, by: str, split: str | None) -> str:
        edges, table = self._edges, self._edges.table
        columns, joins = selected(edges.features, edges.staged)
        other = "src" if by == "dst" else "dst"
        order = f"staged.{by}"
        for given, named in ((table.time, "time"), (True, other), (table.weight, "weight")):
            if given is not None:
                order += f", staged.{named}"
                columns += f"staged.{named}, " if given is not True else ""
        order += order_of(edges.features)
        order += "" if split is None else ", split NULLS FIRST"
        return (
            f"SELECT staged.{by} AS destination, staged.{other} AS origin, {columns} {split or 'NULL'}::TINYINT AS "
            f"split FROM {edges.staged} AS staged{joins} WHERE staged.bad = 0 ORDER BY {order}"
        )

    def _append(self, batch: Any) -> None:
        self._features.append_rows(self._type, batch, self._edges.features)
        if self._edges.table.weight is not None:
            self._features.append(self._type, "edge_weight", reals(batch.column("weight")))
        if self._edges.table.split is not None and self._sizes:
            number = integers(batch.column("split").fill_null(-1))
            for place, subset in enumerate(self._sizes):
                self._sizes[subset] += int((number == place).sum())
