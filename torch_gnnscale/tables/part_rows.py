"""A graph of tables by part: the rows of each part as parquet, written by whatever process an engine has them in, and
read again; and what is known of all parts.

A process that fails may leave files behind, and another one begins anew: files have names of their own in the folder
``work``, which is deleted at the end, and move to their places when they are whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from .. import files
from ..partition.directory import RowsMeta, rows_entry
from ..partition.input_graph import edge_sum
from ..partition.whole import PartitionReport, nodes_of
from ..splits import SUBSETS
from ..topology.csc import CHUNK
from ..topology.graph_store import relation_entry
from . import edges as edge_tables
from . import nodes as node_tables
from .edges import Edges, Order
from .engine import Database, Engine
from .layout import KnownRows, RowWriter, batch_rows, integers
from .nodes import Nodes

ENDS = ("src", "dst")


def _new_file(suffix: str) -> Path:
    """A file of no other process, in the directory of tables by part."""
    return Path("work") / f"{uuid4().hex}.{suffix}"


def folder_of(path: Path, group: Any, part: int) -> Path:
    """The folder with the rows of a part's nodes of a type, or edges of a relation; ``a/b`` is ``a%2Fb`` there."""
    kind, of = ("edges", ".".join(group)) if isinstance(group, tuple) else ("nodes", group)
    return path / kind / of.replace("%", "%25").replace("/", "%2F") / f"part={part}"


@dataclass(frozen=True)
class WrittenNodes:
    """What is known of a part's nodes of a type."""

    part: int
    places: dict[str, np.ndarray]
    """By subset: which of the part's nodes are in it, counted in the order of their ids."""
    sizes: dict[str, int]
    """Of the subsets."""


@dataclass(frozen=True)
class WrittenEdges:
    """What is known of a part's edges of a relation."""

    part: int
    ends: str
    """A file in the directory, deleted afterwards: the ids and numbers of edges of destinations and sources, and the
    sources in other parts."""
    checksum: int
    cut: int
    sizes: dict[str, int]


def write_nodes(folder: Path, nodes: Nodes, split: str, database: Database, piece: str) -> WrittenNodes:
    """Writes the rows of a part's nodes of a type, in the order of ids.

    Args:
        folder: the directory of tables by part.
        nodes: what is known of all nodes of the type.
        split: the number of a row's split in SQL.
        database: that has the part's rows.
        piece: the table of them.
    """
    (part,) = database.row(f"SELECT part FROM {piece} LIMIT 1")
    rows = _PartRows(folder, nodes.table.name, part, batch_rows(nodes.features))
    node_tables.add(nodes, rows)
    sizes = node_tables.write(database, piece, nodes, split, rows)
    rows.close()
    return WrittenNodes(part, {name: np.concatenate(of) for name, of in rows.places.items()}, sizes)


def write_edges(folder: Path, edges: Edges, order: Order, database: Database, piece: str) -> WrittenEdges:
    """Writes a part's edges of a relation, in the order of ids; arguments as of :func:`write_nodes`."""
    part = f"{order.by}_part"
    (number,) = database.row(f"SELECT {part} FROM {piece} LIMIT 1")
    rows = _PartRows(folder, order.edge_type, number, batch_rows(edges.features))
    for end in ENDS:
        rows.add(order.edge_type, end, torch.int64, (0,))
    edge_tables.add(edges, order.edge_type, rows)
    sizes, checksum, last, place = dict.fromkeys(SUBSETS, 0), 0, -1, 0
    for src, dst in edge_tables.read(database, piece, edges, order, rows, sizes):
        rows.append(order.edge_type, "src", src)
        rows.append(order.edge_type, "dst", dst)
        here = torch.arange(len(dst))
        places = here - torch.searchsorted(dst, dst)  # in the column, of what this piece has of it
        places[dst == last] += place
        last, place = int(dst[-1]), int(places[-1]) + 1
        checksum += edge_sum(dst, places, src)
    rows.close()
    other = f"{order.other}_part"
    (cut,) = database.row(f"SELECT count(*) FROM {piece} WHERE {part} <> {other}")
    counted = {
        "dst": f"SELECT {order.by}, count(*) FROM {piece} GROUP BY 1 ORDER BY 1",
        "src": f"SELECT {order.other}, count(*) FROM {piece} GROUP BY 1 ORDER BY 1",
        "halo": f"SELECT DISTINCT {order.other}, 0 FROM {piece} WHERE {part} <> {other} ORDER BY 1",
    }
    found = {}
    for what, sql in counted.items():
        batches = list(database.batches(sql, 1 << 17))
        for at, column in ((0, what), (1, f"{what}_count")):
            arrays = [integers(batch.column(at)) for batch in batches]
            found[column] = torch.cat([torch.empty(0, dtype=torch.int64), *arrays]).numpy()
    ends = _new_file("npz")
    np.savez(
        folder / ends, dst=found["dst"], dst_count=found["dst_count"], src=found["src"], src_count=found["src_count"],
        halo=found["halo"],
    )  # fmt: skip
    return WrittenEdges(number, str(ends), checksum, cut, sizes)


class _PartRows(RowWriter):
    """Writes the rows of one part's nodes of a type, or edges of a relation.

    Args:
        folder: the directory of tables by part.
        group, part: whose rows these are.
        length: rows of a row group of the file.
    """

    def __init__(self, folder: Path, group: Any, part: int, length: int) -> None:
        super().__init__()
        self.places: dict[str, list[np.ndarray]] = {subset: [np.empty(0, np.int64)] for subset in SUBSETS}
        """The rows of each split's nodes."""
        self._length = length
        self._written, self._file = folder / _new_file("parquet"), folder_of(folder, group, part) / "0.parquet"
        self._pending: dict[str, Tensor] = {}
        self._held: list[Any] = []
        self._writer: Any = None
        self._at = 0

    @override
    def append(self, group: Any, name: str, rows: Tensor) -> None:
        import pyarrow

        self._pending[name] = rows
        if len(self._pending) < len(self.attrs):
            return
        for subset in SUBSETS:
            if f"{subset}_mask" in self._pending:
                self.places[subset].append(self._at + self._pending[f"{subset}_mask"].nonzero().view(-1).numpy())
        self._at += len(rows)
        self._held.append(pyarrow.table({name: _arrow(self._pending[name]) for _, name in self.attrs}))
        self._pending = {}
        if sum(map(len, self._held)) >= self._length:
            self._write(self._length)

    def _write(self, least: int) -> None:
        """Writes row groups of ``length`` rows; ``least``: how many rows a last one has to have."""
        import pyarrow
        from pyarrow import parquet

        table, at = pyarrow.concat_tables(self._held), 0
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._written, table.schema, write_page_checksum=True)
        while len(table) - at >= least and at < len(table):
            group = table.slice(at, self._length).combine_chunks()  # pages depend on the chunks, too
            self._writer.write_table(group, row_group_size=self._length)
            at += len(group)
        self._held = [table.slice(at)]

    def close(self) -> None:
        """Writes the last rows."""
        if self._held:
            self._write(1)
            self._writer.close()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._written.replace(self._file)


def _arrow(rows: Tensor) -> Any:
    """Rows as an Arrow array: numbers, or lists of one size."""
    import pyarrow

    if rows.dim() == 1:
        return pyarrow.array(rows.numpy())
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1).numpy()), rows.size(1))


KIND = "tables-by-part"
"""The kind of the folder ``counts``."""


class TablesByPart:
    """Tables of parts, while they are written: ``nodes/TYPE/part=K``, ``edges/RELATION/part=K`` and ``counts``, with 16
    bytes for each node. The rows of a part are written where the engine has them.

    Args:
        folder: a new one.
        engine: that has the tables.
        parts: number of parts.
    """

    def __init__(self, folder: Path, engine: Engine, parts: int) -> None:
        self._folder, self._engine, self._parts = folder.absolute(), engine, parts
        self._known = KnownRows()
        self._owner: dict[str, Tensor] = {}
        """The part of each node by type: int32, shape [n]."""
        self._seeds: dict[tuple[str, str], Tensor] = {}
        self._relations: list[dict[str, Any]] = []
        self._arrays: dict[str, Tensor] = {}
        self._checksums: list[int] = []
        self._halo: dict[tuple[str, int], list[Path]] = {}
        """By type and part: files with the ids of nodes in other parts from which edges lead into it."""
        self._cut = 0

    def nodes(self, nodes: Nodes) -> dict[str, int]:
        """Writes the rows of a type of nodes; returns the sizes of its splits."""
        node_type, number = nodes.table.name, len(self._owner)
        node_tables.add(nodes, self._known)
        owner = torch.empty(nodes.count, dtype=torch.int32)
        at = 0
        for batch in self._engine.database.batches(f"SELECT part FROM {nodes.staged}_keys ORDER BY id", CHUNK):
            owner[at : at + len(batch)] = torch.from_numpy(batch.column(0).to_numpy().astype(np.int32))
            at += len(batch)
        self._owner[node_type] = owner
        self._arrays |= {f"owner_{number}": owner, f"degree_{number}": torch.zeros(nodes.count, dtype=torch.int64)}
        split = node_tables.split_of(self._engine, nodes)
        written = self._engine.group(
            f"{nodes.staged}_owned", "true", "part", partial(write_nodes, self._folder, nodes, split)
        )
        if nodes.table.split is None:
            return {}
        for subset in SUBSETS:
            mask = torch.zeros(nodes.count, dtype=torch.bool)
            for found in written:
                mask[(owner == found.part).nonzero().view(-1)[torch.from_numpy(found.places[subset])]] = True
            self._seeds[node_type, subset] = mask.nonzero().view(-1)
        return {subset: sum(found.sizes[subset] for found in written) for subset in SUBSETS}

    def relation(self, edges: Edges, nodes: Any, order: Order) -> dict[str, int]:
        """Writes a relation; returns the sizes of its splits."""
        src, dst = order.edge_type[0], order.edge_type[-1]
        edge_tables.add(edges, order.edge_type, self._known)
        function = partial(write_edges, self._folder, edges, order)
        written = self._engine.group(edges.staged, "bad = 0", f"{order.by}_part", function)
        degree = torch.zeros(nodes[dst].count, dtype=torch.int64)
        out_degree = self._arrays[f"degree_{[*self._owner].index(src)}"]
        for found in written:
            with np.load(file := self._folder / found.ends) as ends:
                degree[torch.from_numpy(ends["dst"])] = torch.from_numpy(ends["dst_count"])
                out_degree[torch.from_numpy(ends["src"])] += torch.from_numpy(ends["src_count"])
            self._halo.setdefault((src, found.part), []).append(file)
        self._cut += sum(found.cut for found in written)
        self._checksums.append(sum(found.checksum for found in written) % (1 << 63))
        colptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
        self._arrays[f"colptr_{len(self._relations)}"] = colptr
        self._relations.append(
            relation_entry(order.edge_type, len(self._owner[src]), len(self._owner[dst]), edges.count)
        )
        return {subset: sum(found.sizes[subset] for found in written) for subset in SUBSETS}

    def close(self) -> None:
        """Writes what is known of all parts."""
        owner, parts = self._owner, self._parts
        halo = [0] * parts
        for (_, part), found in self._halo.items():
            halo[part] += len(np.unique(np.concatenate([_halo_of(file) for file in found])))
        edges = torch.zeros(parts, dtype=torch.int64)
        for number, relation in enumerate(self._relations):
            dst = owner[relation["edge_type"][-1]].long()
            edges.index_add_(0, dst, self._arrays[f"colptr_{number}"].diff())
        train = [owner[node_type][ids] for (node_type, subset), ids in self._seeds.items() if subset == "train"]
        counts = {nodes_of(node_type): torch.bincount(of, minlength=parts).tolist() for node_type, of in owner.items()}
        report = PartitionReport(
            sum(relation["num_edges"] for relation in self._relations), self._cut, counts, edges.tolist(),
            torch.bincount(torch.cat([torch.empty(0, dtype=torch.int32), *train]), minlength=parts).tolist(), halo,
        )  # fmt: skip
        rows = [
            RowsMeta(group, attr, dtype, tuple(shape[1:]), shape[0])
            for (group, attr), (dtype, shape) in self._known.attrs.items()
        ]
        meta = {
            "parts": parts, "num_nodes": [[node_type, len(of)] for node_type, of in owner.items()],
            "relations": self._relations, "rows": [rows_entry(of) for of in rows],
            "splits": [list(key) for key in self._seeds], "edge_checksums": self._checksums,
            "report": report.to_dict(),
        }  # fmt: skip
        files.save(
            self._folder / "counts", KIND,
            {**self._arrays, **{f"seeds_{i}": ids for i, ids in enumerate(self._seeds.values())}}, meta,
        )  # fmt: skip


def _halo_of(file: Path) -> np.ndarray:
    with np.load(file) as ends:
        return ends["halo"]
