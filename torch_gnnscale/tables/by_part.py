"""A graph of tables by part: the rows of each part's nodes and edges as parquet, and what is known of all parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.typing import EdgeType
from typing_extensions import override

from .. import files
from ..partition.book import RowsMeta
from ..partition.directory import digest_of, rows_entry
from ..partition.report import PartitionReport, nodes_of
from ..splits import SUBSETS
from ..topology.csc import CHUNK
from ..topology.graph_store import relation_entry
from .columns import key_value
from .edges import Edges, Pieces
from .engine import Engine, error_at, first_row, reading
from .nodes import Nodes
from .schema import Owner, Schema
from .sources import name, source
from .writing import RowWriter

KIND = "tables-by-part"
"""The kind of the folder ``counts``."""
ENDS = ("src", "dst")


def folder_of(path: Path, group: Any, part: int) -> Path:
    """The folder with the rows of a part's nodes of a type, or edges of a relation."""
    of = path / "edges" / ".".join(group) if isinstance(group, tuple) else path / "nodes" / group
    return of / f"part={part}"


class TablesByPart:
    """Tables of parts, while they are written: ``nodes/TYPE/part=K``, ``edges/RELATION/part=K`` and ``counts``, with 16
    bytes for each node.

    Args:
        folder: a new one.
        engine: that has the tables.
        schema: of them.
        parts: number of parts.
    """

    def __init__(self, folder: Path, engine: Engine, schema: Schema, parts: int) -> None:
        self.rows = _PartRows(folder, parts)
        self._folder, self._engine, self._schema, self._parts = folder, engine, schema, parts
        self._relations: list[dict[str, Any]] = []
        self._arrays: dict[str, Tensor] = {}
        self._checksums: list[int] = []
        self._cut = 0
        engine.run("CREATE TABLE halo (type VARCHAR, part INTEGER, node BIGINT)")

    def nodes(self, nodes: Nodes) -> None:
        """Decides which part each node of a type is in."""
        table, number = f"{nodes.staged}_parts", len(self.rows.owner)
        with reading(nodes.source):
            self._engine.run(f"CREATE TABLE {table} AS {_owner_sql(self._engine, self._schema, nodes, self._parts)}")
        owner = torch.empty(nodes.count, dtype=torch.int32)
        at = 0
        for batch in self._engine.batches(f"SELECT part FROM {table} ORDER BY id", CHUNK):
            owner[at : at + len(batch)] = torch.from_numpy(batch.column(0).to_numpy().astype(np.int32))
            at += len(batch)
        self.rows.owner[nodes.table.name] = owner
        self._arrays |= {f"owner_{number}": owner, f"degree_{number}": torch.zeros(nodes.count, dtype=torch.int64)}

    def relation(self, edges: Edges, nodes: Mapping[str, Nodes], edge_type: EdgeType, pieces: Pieces) -> None:
        """Counts the edges of a relation, which are written meanwhile."""
        src, dst = edge_type[0], edge_type[-1]
        degree, owner = self._arrays[f"degree_{[*self.rows.owner].index(src)}"], self.rows.owner
        counted = []

        def sources() -> Iterator[Tensor]:
            for degrees, row, _ in pieces:
                counted.append(degrees)
                degree.index_add_(0, row, torch.ones_like(row))
                yield row

        of_row = [files.block_checksums(piece) for piece in _rejoined(sources(), edges.count)]
        colptr = torch.cat([torch.zeros(1, dtype=torch.int64), *counted]).cumsum(0)
        self._checksums.append(digest_of([[files.block_checksums(piece) for piece in colptr.split(CHUNK)], of_row]))
        self._arrays[f"colptr_{len(self._relations)}"] = colptr
        self._relations.append(relation_entry(edge_type, len(owner[src]), len(owner[dst]), edges.count))
        by, other = ("dst", "src") if edge_type == edges.table.edge_type else ("src", "dst")
        self._engine.run(
            f"INSERT INTO halo SELECT DISTINCT '{src}', b.part, e.{other} FROM {edges.staged} AS e JOIN "
            f"{nodes[src].staged}_parts AS a ON e.{other} = a.id JOIN {nodes[dst].staged}_parts AS b ON e.{by} = b.id "
            f"WHERE e.bad = 0 AND a.part <> b.part"
        )
        (cut,) = self._engine.row(
            f"SELECT count(*) FROM {edges.staged} AS e JOIN {nodes[src].staged}_parts AS a ON e.{other} = a.id JOIN "
            f"{nodes[dst].staged}_parts AS b ON e.{by} = b.id WHERE e.bad = 0 AND a.part <> b.part"
        )
        self._cut += cut

    def close(self) -> None:
        """Writes what is known of all parts."""
        self.rows.close()
        owner, parts = self.rows.owner, self._parts
        halo = dict(
            self._engine.rows("SELECT part, count(*) FROM (SELECT DISTINCT type, part, node FROM halo) GROUP BY part")
        )
        edges = torch.zeros(parts, dtype=torch.int64)
        for number, relation in enumerate(self._relations):
            dst = owner[relation["edge_type"][-1]].long()
            edges.index_add_(0, dst, self._arrays[f"colptr_{number}"].diff())
        seeds = {key: torch.cat(ids) for key, ids in self.rows.seeds.items()}
        train = [owner[node_type][ids] for (node_type, subset), ids in seeds.items() if subset == "train"]
        counts = {nodes_of(node_type): torch.bincount(of, minlength=parts).tolist() for node_type, of in owner.items()}
        report = PartitionReport(
            sum(relation["num_edges"] for relation in self._relations), self._cut, counts, edges.tolist(),
            torch.bincount(torch.cat([torch.empty(0, dtype=torch.int32), *train]), minlength=parts).tolist(),
            [halo.get(part, 0) for part in range(parts)],
        )  # fmt: skip
        meta = {
            "parts": parts, "num_nodes": [[node_type, len(of)] for node_type, of in owner.items()],
            "relations": self._relations, "rows": [rows_entry(of) for of in self.rows.attrs()],
            "splits": [list(key) for key in seeds], "edge_checksums": self._checksums, "report": report.to_dict(),
        }  # fmt: skip
        files.save(
            self._folder / "counts", KIND,
            {**self._arrays, **{f"seeds_{i}": ids for i, ids in enumerate(seeds.values())}}, meta,
        )  # fmt: skip


class _PartRows(RowWriter):
    """Writes the rows of nodes and edges by the part that owns them.

    Args:
        folder: the directory.
        parts: number of parts.
    """

    def __init__(self, folder: Path, parts: int) -> None:
        super().__init__()
        self.owner: dict[str, Tensor] = {}
        """The part of each node by type: int32, shape [n]."""
        self.seeds: dict[tuple[str, str], list[Tensor]] = {}
        """The nodes of each split, by type and subset."""
        self._folder, self._parts = folder, parts
        self._group: Any = None
        self._pending: dict[str, Tensor] = {}
        self._at = 0
        self._writers: dict[int, Any] = {}

    def add_rows(self, group: Any, *table: Any) -> None:
        """See :meth:`RowWriter.add_rows`; of edges, the ends, too."""
        if isinstance(group, tuple):
            for end in ENDS:
                self.add(group, end, torch.int64, (0,))
        super().add_rows(group, *table)
        for subset in SUBSETS:
            if not isinstance(group, tuple) and (group, f"{subset}_mask") in self._known:
                self.seeds[group, subset] = [torch.empty(0, dtype=torch.int64)]

    def attrs(self) -> list[RowsMeta]:
        """The attributes, without ends."""
        return [
            RowsMeta(group, attr, dtype, tuple(shape[1:]), shape[0])
            for (group, attr), (dtype, shape) in self._known.items()
            if not (isinstance(group, tuple) and attr in ENDS)
        ]

    @override
    def append(self, group: Any, name: str, rows: Tensor) -> None:
        if group != self._group:
            self.close()
            self._group, self._at = group, 0
        if (group, name) in self._known:
            self._pending[name] = rows
        names = [attr for of, attr in self._known if of == group]
        if len(self._pending) == len(names) or not names:
            self._write({attr: self._pending[attr] for attr in names}, len(rows))
            self._pending = {}

    def _write(self, columns: dict[str, Tensor], count: int) -> None:
        import pyarrow

        ids = torch.arange(self._at, self._at + count)
        self._at += count
        of_nodes = isinstance(self._group, str)
        of = self.owner[self._group][ids] if of_nodes else self.owner[self._group[-1]][columns["dst"]]
        for subset in SUBSETS:
            if (self._group, subset) in self.seeds:
                self.seeds[self._group, subset].append(ids[columns[f"{subset}_mask"]])
        order = torch.sort(of, stable=True).indices
        arrays = {attr: _arrow(rows[order]) for attr, rows in {"id": ids, **columns}.items()}
        table = pyarrow.table(arrays)
        at = 0
        for part, size in enumerate(torch.bincount(of, minlength=self._parts).tolist()):
            if size:
                self._writer(part, table.schema).write_table(table.slice(at, size))
            at += size

    def _writer(self, part: int, schema: Any) -> Any:
        from pyarrow import parquet

        if part not in self._writers:
            (folder := folder_of(self._folder, self._group, part)).mkdir(parents=True)
            self._writers[part] = parquet.ParquetWriter(folder / "0.parquet", schema, write_page_checksum=True)
        return self._writers[part]

    def close(self) -> None:
        """Closes the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def _arrow(rows: Tensor) -> Any:
    """Rows as an Arrow array: numbers, or lists of one size."""
    import pyarrow

    if rows.dim() == 1:
        return pyarrow.array(rows.numpy())
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1).numpy()), rows.size(1))


def _rejoined(pieces: Iterator[Tensor], count: int) -> Iterator[Tensor]:
    """The same numbers, ``CHUNK`` of them at a time."""
    kept = torch.empty(min(CHUNK, count), dtype=torch.int64)
    at = 0
    for piece in pieces:
        while len(piece):
            size = min(len(piece), len(kept) - at)
            kept[at : at + size] = piece[:size]
            piece, at = piece[size:], at + size
            if at == len(kept) == CHUNK:
                yield kept
                at = 0
    if at or not count:
        yield kept[:at]


def _owner_sql(engine: Engine, schema: Schema, nodes: Nodes, parts: int) -> str:
    """A query of the number of each node, ``id``, and its ``part``."""
    keys, owner = f"{nodes.staged}_keys", nodes.table.owner
    if owner is None:
        drawn = "('0x' || substr(md5('owner' || chr(31) || CAST(key AS VARCHAR)), 1, 8))::UBIGINT"
        return f"SELECT id, ({drawn} % {parts})::INTEGER AS part FROM {keys}"
    if owner.files is None:
        number = "dense_rank() OVER (ORDER BY owner NULLS FIRST) - 1"
        return (
            f"SELECT id, (({number}) % {parts})::INTEGER AS part FROM {nodes.staged} AS staged JOIN {keys} AS keys ON "
            f"staged.key = keys.key"
        )
    return _given_owners(engine, schema, nodes, owner, parts)


def _given_owners(engine: Engine, schema: Schema, nodes: Nodes, owner: Owner, parts: int) -> str:
    """The query, of a table of owners; ValueError if a node has none or two, or a part is none."""
    assert owner.files is not None
    path, keys, given = f"{nodes.table.path}.owner", f"{nodes.staged}_keys", f"{nodes.staged}_given"
    found = source(path, schema.folder, owner.files, None, [owner.key, owner.column])
    part = f"TRY_CAST({name(owner.column)} AS BIGINT)"
    wrong = f"({part} IS NULL OR {part} < 0 OR {part} >= {parts})"
    with engine.of_files():
        engine.run(
            f"CREATE TABLE {given} AS SELECT {key_value(found, owner.key, nodes.key)} AS key, {part} AS part, "
            f"{wrong} AS wrong FROM ({found.sql()})"
        )
    if engine.row(f"SELECT count(*) FROM {given} WHERE wrong")[0]:
        place = first_row(engine, found, owner.column, wrong)
        raise error_at(found, owner.column, place, f"a part from 0 to {parts - 1}")
    counted = (
        f"SELECT keys.key, count(given.key) AS times FROM {keys} AS keys LEFT JOIN {given} AS given ON keys.key = "
        f"given.key GROUP BY keys.key HAVING times <> 1 ORDER BY keys.key LIMIT 1"
    )
    for key, times in engine.rows(counted):
        raise ValueError(f"{path}: expected each key of {nodes.table.path} once, found {key!r} {times} times")
    return f"SELECT id, part::INTEGER AS part FROM {keys} AS keys JOIN {given} AS given ON keys.key = given.key"
