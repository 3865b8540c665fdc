"""The rows of one part as parquet: written by whatever process an engine has them in, and read again.

A process that fails may leave files behind, and another one begins anew: files have names of their own in the folder
``work``, which is deleted at the end, and move to their places when they are whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from ..partition.input_graph import edge_sum
from ..splits import SUBSETS
from . import edges as edge_tables
from . import nodes as node_tables
from .database import Database
from .edges import Edges, Order
from .layout import RowWriter, batch_rows, integers
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
