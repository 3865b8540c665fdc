"""From a graph of tables by part to a directory of parts, each from its own rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import NodeType
from typing_extensions import override

from .. import files
from ..ops import first_outside
from ..ops.arguments import check_int
from ..partition.directory import RowsMeta, check_part_number
from ..partition.input_graph import InputGraph
from ..partition.part_writer import PartWriter
from ..partition.whole import BALANCED
from ..partition.writing import check_out, finish, given_of
from .part_rows import ENDS, KIND, folder_of

_MEMORY = 1 << 30
"""Bytes that pieces of rows may take."""


def write_parts(
    tables: str | os.PathLike, out: str | os.PathLike, only: Sequence[int] | None = None, progress: bool = False,
    graph_attrs: Sequence[str] = (),
) -> list[int]:  # fmt: skip
    """Writes the parts of a graph of tables, with the edges of each in its part, for
    :func:`torch_gnnscale.distributed.open_part`: what :func:`torch_gnnscale.partition.write` writes of the whole graph
    and the same owners.

    A part is made of its own rows, which are in memory, an attribute at a time, and of 32 bytes for each node of the
    graph. Calls with ``only`` write some parts, so that several machines can share the work; the first writes the book.

    Args:
        tables: the directory that :func:`torch_gnnscale.tables.build` wrote with ``parts``, or a copy of its folder
            ``counts`` and of the rows of parts that are to be written.
        out: the directory: a new one, or with ``only`` one that an earlier call has begun.
        only: the parts to write, by default all.
        progress: show a progress bar, if stderr is a terminal.
        graph_attrs: names of attributes that samplers need of the whole graph (times, weights), as of
            :func:`torch_gnnscale.partition.write`. The call that writes the book needs these rows of all parts, and has
            an attribute of all of them in memory.

    Returns:
        The parts that are still to be written.

    Raises:
        FileExistsError: ``out`` is not empty; or it has a book, and ``only`` is not given.
        FileNotFoundError, ValueError, IndexError: names what is missing or damaged, or the part that is none.
        OSError: a file that cannot be written.
    """
    path = Path(tables)
    arrays, meta = files.load(path / "counts", KIND)
    with files.described(path / "counts" / files.MANIFEST, "tables by part"):
        parts, report, whole = check_int("parts", meta["parts"], 1), meta["report"], _Whole.of(arrays, meta)
        owner = {node_type: arrays[f"owner_{number}"] for number, node_type in enumerate(whole.num_nodes)}
        whole.check(owner, parts)
    wanted = sorted({check_part_number("only", part, parts) for part in (range(parts) if only is None else only)})
    begun = check_out(out, only)
    given = given_of(
        whole, graph_attrs, parts=parts, topology="partitioned", seed=0, balance=list(BALANCED), method="owners",
        about={"dataset": path.resolve().name},
    )  # fmt: skip
    writer = PartWriter(Path(out), whole, _MEMORY)
    if begun:
        writer.resume(given, owner)
    else:
        whole.hold(path, graph_attrs, owner, parts)
        writer.begin(given, owner, {"report": report, "assigned": {"method": "owners"}})
    return finish(writer, wanted, parts, lambda part: writer.of(whole.part(path, part, owner)).part(part), progress)


class _Columns(NamedTuple):
    """A relation of which some columns are there; see CSC for what the others are."""

    colptr: Tensor
    row: Tensor
    edge_id: Tensor | None
    num_src: int
    num_dst: int
    num_edges: int


@dataclass(eq=False)
class _Whole(InputGraph):
    """A graph of which the rows and the sources of edges are elsewhere."""

    degrees: dict[NodeType | None, Tensor] = field(default_factory=dict)
    checksums: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, arrays: dict[str, Tensor], meta: dict[str, Any]) -> _Whole:
        """Of what the folder ``counts`` holds."""
        num_nodes = dict(meta["num_nodes"])
        relations: dict[Any, Any] = {}
        for number, entry in enumerate(meta["relations"]):
            sizes = entry["num_src"], entry["num_dst"], entry["num_edges"]
            none = torch.empty(0, dtype=torch.int64)
            relations[tuple(entry["edge_type"])] = _Columns(arrays[f"colptr_{number}"], none, None, *sizes)
        rows = []
        for entry in meta["rows"]:
            group = entry["group"] if isinstance(entry["group"], str) else tuple(entry["group"])
            count = num_nodes[group] if isinstance(group, str) else relations[group].num_edges
            dtype = getattr(torch, entry["dtype"])
            rows.append(_Rows(RowsMeta(group, entry["name"], dtype, tuple(entry["shape"]), count)))
        splits = {tuple(key): arrays[f"seeds_{number}"] for number, key in enumerate(meta["splits"])}
        degrees = {node_type: arrays[f"degree_{number}"] for number, node_type in enumerate(num_nodes)}
        return cls(relations, num_nodes, rows, splits, {}, degrees=degrees, checksums=meta["edge_checksums"])  # type: ignore[arg-type]

    @override
    def out_degree(self, node_type: NodeType | None) -> Tensor:
        return self.degrees[node_type]

    @override
    def edge_checksums(self) -> list[int]:
        return self.checksums

    def hold(self, path: Path, names: Sequence[str], owner: dict[Any, Tensor], parts: int) -> None:
        """Reads the rows of attributes from the folders of all parts; errors as of :meth:`part`."""
        for place, of in enumerate(self.rows):
            group = of.meta.group_name
            if of.meta.attr_name not in names:
                continue
            part = owner[group] if isinstance(group, str) else owner[group[-1]]
            if not isinstance(group, str):
                part = torch.repeat_interleave(part, self.relations[group].colptr.diff())
            rows = torch.empty(of.meta.num_rows, *of.meta.shape, dtype=of.meta.dtype)
            for number in range(parts):
                ids = (part == number).nonzero().view(-1)
                rows[ids] = _read(folder_of(path, group, number), of.meta, len(ids))
            self.rows[place] = _AllRows(of.meta, rows)  # type: ignore[call-overload]

    def check(self, owner: dict[Any, Tensor], parts: int) -> None:
        """Raises ValueError unless there are as many owners, degrees and pointers as nodes, and splits of these."""
        arrays = [(f"owners of {of}", owner[of], torch.int32, count) for of, count in self.num_nodes.items()]
        arrays += [(f"degrees of {of}", self.degrees[of], torch.int64, count) for of, count in self.num_nodes.items()]
        for of, csc in self.relations.items():
            arrays.append((f"pointers of {of}", csc.colptr, torch.int64, csc.num_dst + 1))
        for what, array, dtype, count in arrays:
            if array.shape != (count,) or array.dtype != dtype:
                raise ValueError(f"{what}: {array.dtype} of shape {tuple(array.shape)}")
        for of, part in owner.items():
            if bool(((part < 0) | (part >= parts)).any()):
                raise ValueError(f"owners of {of} that are no parts")
        for (of, *_), seeds in self.splits.items():
            if of not in owner:
                raise ValueError(f"a split of {of!r}")
            if seeds.dtype != torch.int64 or seeds.dim() != 1 or first_outside(seeds, len(owner[of])) >= 0:
                raise ValueError(f"seeds of {of} that are no nodes")

    def part(self, path: Path, number: int, owner: dict[Any, Tensor]) -> InputGraph:
        """What is there of a part: the columns and rows of its nodes, and its seeds.

        Raises:
            FileNotFoundError, ValueError: names the folder that is missing, or lacks rows.
        """
        own = {node_type: (of == number).nonzero().view(-1) for node_type, of in owner.items()}
        relations: dict[Any, Any] = {}
        ids: dict[Any, Tensor] = dict(own)
        for edge_type, csc in self.relations.items():
            assert edge_type is not None
            folder, nodes = folder_of(path, edge_type, number), own[edge_type[-1]]
            degree = torch.zeros(csc.num_dst, dtype=torch.int64)
            degree[nodes] = csc.colptr[nodes + 1] - csc.colptr[nodes]
            row, dst = (_column(folder, end, int(degree.sum())) for end in ENDS)
            if not torch.equal(torch.bincount(dst, minlength=csc.num_dst), degree) or bool((dst.diff() < 0).any()):
                raise ValueError(f"{folder}: expected the edges of part {number} by destination, found others")
            colptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
            edge = torch.arange(len(dst)) + (csc.colptr[:-1] - colptr[:-1])[dst]
            relations[edge_type] = _Columns(colptr, row, edge, csc.num_src, csc.num_dst, csc.num_edges)
            ids[edge_type] = edge
        metas = [of.meta for of in self.rows]
        rows = [_Rows(meta, folder_of(path, meta.group_name, number), ids[meta.group_name]) for meta in metas]
        splits = {key: seeds[owner[key[0]][seeds] == number] for key, seeds in self.splits.items()}
        return InputGraph(relations, self.num_nodes, rows, splits, {})  # type: ignore[arg-type]


@dataclass(eq=False)
class _Rows:
    """The rows of an attribute of one part; see :class:`torch_gnnscale.partition.input_graph.InputRows`."""

    meta: RowsMeta
    folder: Path | None = None
    ids: Tensor | None = None
    """Of the rows that are there, ascending."""

    def pieces(self, ids: Iterator[Tensor] | Sequence[Tensor], memory: int) -> Iterator[Tensor]:
        """The rows at ``ids``, as many at a time as ``memory`` bytes hold twice."""
        assert self.folder is not None
        assert self.ids is not None
        rows = _read(self.folder, self.meta, len(self.ids))
        step = max(1, memory // (2 * max(1, self.meta.row_bytes)))
        for some in ids:
            for part in some.split(step):
                yield rows[torch.searchsorted(self.ids, part.to(torch.int64))]


@dataclass(eq=False)
class _AllRows:
    """All rows of an attribute, in memory; as :class:`_Rows`."""

    meta: RowsMeta
    rows: Tensor

    def pieces(self, ids: Iterator[Tensor] | Sequence[Tensor], memory: int) -> Iterator[Tensor]:
        """The rows at ``ids``."""
        return (self.rows[some.to(torch.int64)] for some in ids)


def _read(folder: Path, meta: RowsMeta, count: int) -> Tensor:
    """The rows of an attribute that a folder has; errors as of :func:`_column`."""
    return _column(folder, meta.attr_name, count).view(-1, *meta.shape).to(meta.dtype)


def _column(folder: Path, name: str, count: int) -> Tensor:
    """A column of the files of a folder, in the order of their names; lists one after the other.

    Raises:
        FileNotFoundError: there is none.
        ValueError: names the folder that lacks the column or rows, or is damaged.
    """
    import pyarrow
    from pyarrow import parquet

    if not count and not folder.exists():
        return torch.empty(0, dtype=torch.int64)
    try:
        found = [
            parquet.read_table(file, columns=[name], page_checksum_verification=True).column(name).combine_chunks()
            for file in sorted(folder.glob("*.parquet"))
        ]
    except (pyarrow.ArrowException, KeyError, OSError) as error:
        raise ValueError(f"{folder}: expected parquet files with the column {name}, found {error}") from error
    if not found:
        raise FileNotFoundError(f"{folder}: expected parquet files, found none")
    if (rows := sum(map(len, found))) != count:
        raise ValueError(f"{folder}: expected {count} rows, found {rows}")
    flat = [column.flatten() if pyarrow.types.is_fixed_size_list(column.type) else column for column in found]
    return torch.cat([torch.from_numpy(column.to_numpy(zero_copy_only=False).copy()) for column in flat])
