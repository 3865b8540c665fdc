"""Writes the folders of a directory of parts, from the user's data; columns of a relation piece by piece, in bounded
memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import files, ops
from ..sampler.graph import end_types
from ..topology import CSC
from ..topology.graph_store import KIND as GRAPH
from ..topology.reorder import Order
from ..topology.sort_on_disk import id_dtype
from . import directory
from .directory import PartitionBook, edge_type_of
from .input_graph import InputGraph, InputRows
from .whole import Known

_PIECE_BYTES = 128  # of memory per edge or node of a piece, while it is made
_LONGEST = 1 << 18  # edges or nodes; larger pieces take more time per edge, because fresh memory is slow


def order_by_part(owner: Tensor, parts: int, step: int) -> tuple[Order, Tensor]:
    """(order, bounds) that make parts contiguous; within a part, nodes keep the user's order.

    Args:
        owner: the part of each node: int32, shape [n].
        parts: their number.
        step: nodes that are sorted at a time.
    """
    counts = torch.bincount(owner, minlength=parts) if len(owner) else torch.zeros(parts, dtype=torch.int64)
    bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    place = bounds[:-1].clone()
    new = torch.empty(len(owner), dtype=id_dtype(len(owner)))
    for at in range(0, len(owner), step):
        part, order = torch.sort(owner[at : at + step], stable=True)
        counts = torch.bincount(part, minlength=parts)
        before = counts.cumsum(0) - counts
        new[at + order] = (torch.arange(len(part)) + (place - before)[part]).to(new.dtype)
        place += counts
    return order_of(new, step), bounds


def order_of(new: Tensor, step: int) -> Order:
    """The order that has these stored ids, by the user's ids; int32 where they fit."""
    dtype = id_dtype(len(new))
    new, old = new.to(dtype), torch.empty(len(new), dtype=dtype)
    for at in range(0, len(new), step):
        ids = new[at : at + step].to(torch.int64)
        old[ids] = torch.arange(at, at + len(ids), dtype=dtype)
    return Order(old, new)


def piece_length(memory: int) -> int:
    """How many edges or nodes a piece has that is made within ``memory`` bytes."""
    return min(max(1, memory // _PIECE_BYTES), _LONGEST)


def degrees(csc: CSC, columns: Tensor, step: int) -> Iterator[Tensor]:
    """The numbers of edges of ``columns``, user's ids of any integer type: int64, up to ``step`` at a time."""
    for part in columns.split(step):
        ids = part.to(torch.int64)
        yield csc.colptr[ids + 1] - csc.colptr[ids]


def pointers(csc: CSC, columns: Tensor, step: int) -> Iterator[Tensor]:
    """Pieces of the ``colptr`` of the relation that has only ``columns``: int64, [len(columns) + 1] in all."""
    last = torch.zeros(1, dtype=torch.int64)
    yield last
    for degree in degrees(csc, columns, step) if len(columns) else ():
        colptr = last + degree.cumsum(0)
        yield colptr
        last = colptr[-1:].clone()


def sources(csc: CSC, columns: Tensor, new: Tensor, step: int) -> Iterator[Tensor]:
    """The stored ids, from the user's by ``new``, of the sources of the edges of columns, up to ``step`` at a time."""
    return (new[csc.row[place].to(torch.int64)] for place in _places(csc, columns, step))


def edge_ids(csc: CSC, columns: Tensor, step: int) -> Iterator[Tensor]:
    """The user's ids of the edges of columns, in their order, up to ``step`` at a time; int64 if they are positions."""
    for place in _places(csc, columns, step):
        yield place if csc.edge_id is None else csc.edge_id[place]


def edges(csc: CSC, columns: Tensor, new: Tensor, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """What :func:`sources` and :func:`edge_ids` give, together."""
    for place in _places(csc, columns, step):
        yield new[csc.row[place].to(torch.int64)], place if csc.edge_id is None else csc.edge_id[place]


def positions(csc: CSC, order: Tensor, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The positions of edges in the relation whose columns are ``order``, a permutation of all columns.

    Yields:
        The user's ids of up to ``step`` edges, in the user's order, and their positions: int64.
    """
    begins, last = torch.empty(len(order), dtype=torch.int64), 0
    for columns, degree in zip(order.split(step), degrees(csc, order, step), strict=True):
        ends = last + degree.cumsum(0)
        begins[columns.to(torch.int64)] = ends - degree
        last = int(ends[-1]) if len(ends) else last
    at = 0
    for first in range(0, len(order), step):
        degree = csc.colptr[first : first + step + 1].diff()
        for place in _ranges(begins[first : first + step], degree, step):
            end = at + len(place)
            yield torch.arange(at, end) if csc.edge_id is None else csc.edge_id[at:end].to(torch.int64), place
            at = end


def _places(csc: CSC, columns: Tensor, step: int) -> Iterator[Tensor]:
    """The positions of the edges of columns in the user's relation: int64, up to ``step`` at a time."""
    for part in columns.split(step):
        first = csc.colptr[part.to(torch.int64)]
        yield from _ranges(first, csc.colptr[part.to(torch.int64) + 1] - first, step)


def _ranges(first: Tensor, count: Tensor, step: int) -> Iterator[Tensor]:
    """first[i], first[i] + 1, ..., first[i] + count[i] - 1 for each i, up to ``step`` numbers at a time."""
    ends = count.cumsum(0)
    begins = ends - count
    shift = first - begins
    total = int(count.sum())
    for at in range(0, total, step):
        end = min(at + step, total)
        # Those that have a number in [at, end); one of a large count may be in several pieces.
        low = int(torch.searchsorted(ends, at, right=True))
        high = int(torch.searchsorted(begins, end))
        here = ends[low:high].clamp(max=end) - begins[low:high].clamp(min=at)
        yield torch.arange(at, end) + shift[low:high].repeat_interleave(here, output_size=end - at)


class PartWriter:
    """Writes the folders of a directory of parts, from the user's data.

    Args:
        path: the directory.
        inputs: the data.
        memory: bytes that pieces of rows may take.
    """

    order: dict[Any, Order]
    book: PartitionBook
    fingerprint: int

    def __init__(self, path: Path, inputs: InputGraph, memory: int) -> None:
        self.path, self.inputs, self.memory, self.step = path, inputs, memory, piece_length(memory)
        self.types, self.relations = list(inputs.num_nodes), inputs.relations
        self._by_part: dict[str, Sequence[Tensor]] = {}  # by split, of each part, where its ids are
        self._known = {node_type: Known(count) for node_type, count in inputs.num_nodes.items()}

    def begin(self, given: dict[str, Any], owner: dict[Any, Tensor], found: dict[str, Any]) -> None:
        """Writes the graph, the ids and, last, the book.

        Args:
            given: what the book says of the data and the arguments.
            owner: the part of each node by type: int32, shape [n].
            found: what else the book keeps: how the parts were chosen.
        """
        self.topology, parts = given["topology"], given["parts"]
        self.order, bounds = {}, {}
        for node_type in self.types:
            self.order[node_type], bounds[node_type] = order_by_part(owner[node_type], parts, self.step)
        edge_bounds = {}
        for edge_type, csc in self.relations.items():
            dst = end_types(edge_type)[1]
            pieces = pointers(csc, self.order[dst].old, self.step)
            edge_bounds[edge_type] = _entries_at(pieces, bounds[dst])
        self.book = PartitionBook(bounds, edge_bounds)
        with files.creating(self.path) as whole:  # all of it or nothing
            folders = {}
            if self.topology == "replicated":
                with self._folder(whole / "graph", GRAPH, {"relations": given["relations"]}) as arrays:
                    for number, (edge_type, csc) in enumerate(self.relations.items()):
                        self._write_relation(arrays, number, csc, edge_type, self.order[end_types(edge_type)[1]].old)
                folders["graph"] = files.checksum(whole / "graph")
            if given["graph_attrs"]:
                with self._folder(whole / "attrs", directory.ATTRS, {}) as arrays:
                    self._write_attrs(arrays, given["graph_attrs"])
                folders["attrs"] = files.checksum(whole / "attrs")
            with self._folder(whole / "ids", directory.IDS, {}) as arrays:
                self._write_ids(arrays)
            folders["ids"] = files.checksum(whole / "ids")
            of_book = {f"bounds_{i}": bounds[node_type] for i, node_type in enumerate(self.types)}
            of_book |= {f"edge_bounds_{i}": edge_bounds[edge_type] for i, edge_type in enumerate(self.relations)}
            largest = [self._largest_degree(csc, end_types(edge_type)[1]) for edge_type, csc in self.relations.items()]
            about = {"given": given, "folders": folders, "largest_degree": largest, **found}
            files.save(whole / "book", directory.BOOK, of_book, about)
        self.fingerprint = directory.fingerprint_of_parts(self.path)

    @staticmethod
    @contextmanager
    def _folder(path: Path, kind: str, meta: dict[str, Any]) -> Iterator[_Arrays]:
        """Writes a folder's arrays in the block, then its manifest."""
        with files.creating(path) as folder:
            arrays = _Arrays(folder)
            yield arrays
            files.finish(folder, kind, arrays.entries, meta)

    def resume(self, given: dict[str, Any], owner: dict[Any, Tensor] | None) -> None:
        """Reads the book of an earlier call; ValueError if that was given something else, or does not say it."""
        self.book, meta = directory.load_book(self.path)
        self.topology = given["topology"]
        for name, value in given.items():
            if name not in meta["given"]:
                raise ValueError(f"{self.path / 'book'}: expected {name}, found none: an earlier version began the "
                                 f"directory; write a new one")  # fmt: skip
            if (found := meta["given"][name]) != value:
                raise ValueError(f"{self.path / 'book'}: expected the first call's {name}, {found}, found {value}")
        ids, _ = files.load(self.path / "ids", directory.IDS, verify=True)
        if owner is not None:
            for number, node_type in enumerate(self.types):
                if not torch.equal(self.book.part_of(ids[f"stored_{number}"], node_type), owner[node_type].long()):
                    raise ValueError(f"{self.path / 'book'}: expected the first call's owners, found others")
        self.order = {t: order_of(ids[f"stored_{i}"], self.step) for i, t in enumerate(self.types)}
        self.fingerprint = directory.fingerprint_of_parts(self.path)

    def of(self, inputs: InputGraph) -> PartWriter:
        """The same directory, of data that may lack what other parts have."""
        other = copy(self)
        other.inputs, other.relations, other._by_part = inputs, inputs.relations, {}
        return other

    def part(self, number: int) -> None:
        """Writes a part."""
        own = {}
        for node_type in self.types:
            nodes = self.book.nodes(number, node_type)
            own[node_type] = self.order[node_type].old[nodes.start : nodes.stop]
        meta = {"part": number, "fingerprint": self.fingerprint}
        with self._folder(directory.part_folder(self.path, number), directory.PART, meta) as arrays:
            for i, node_type in enumerate(self.types):
                arrays.write(f"user_ids_{i}", torch.int64, (len(own[node_type]),), self._wide(own[node_type]))
            if self.topology == "partitioned":
                for i, (edge_type, csc) in enumerate(self.relations.items()):
                    self._write_relation(arrays, i, csc, edge_type, own[end_types(edge_type)[1]])
            for i, rows in enumerate(self.inputs.rows):
                at = self.book.rows(number, rows.meta)
                arrays.write(f"rows_{i}", rows.meta.dtype, (len(at), *rows.meta.shape), self._rows(rows, own))
            for i, ((node_type, _), seeds) in enumerate(self.inputs.splits.items()):
                arrays.whole(f"seeds_{i}", seeds[self._of_part(number, f"seeds_{i}", node_type, seeds)])
            for i, ((edge_type, split), ends) in enumerate(self.inputs.links.items()):
                of_part = self._of_part(number, f"links_{i}", end_types(edge_type)[1], ends[1])
                arrays.whole(f"links_{i}", ends[:, of_part])
                if (ids := self.inputs.link_ids.get((edge_type, split))) is not None:
                    arrays.whole(f"link_ids_{i}", ids[of_part])
            self._write_halo(arrays, number, own)

    def _rows(self, rows: InputRows, columns: dict[Any, Tensor]) -> Iterator[Tensor]:
        """Pieces of the rows of some nodes (user's ids by type), or of the edges that lead to them."""
        if not rows.meta.of_edges:
            return rows.pieces([columns[rows.meta.group_name]], self.memory)
        edge_type = edge_type_of(rows.meta.group_name)
        csc = self.relations[edge_type]
        return rows.pieces(edge_ids(csc, columns[end_types(edge_type)[1]], self.step), self.memory)

    def _of_part(self, number: int, split: str, node_type: Any, ids: Tensor) -> Tensor:
        """Where in the user's ids of a split those of a part are, ascending. Their parts are found once."""
        if split not in self._by_part:
            part = self.book.part_of(self.order[node_type].new[ids], node_type)
            counts = torch.bincount(part, minlength=self.book.num_parts).tolist()
            self._by_part[split] = torch.argsort(part, stable=True).split(counts)
        return self._by_part[split][number]

    def _wide(self, ids: Tensor) -> Iterator[Tensor]:
        return (part.to(torch.int64) for part in ids.split(self.step))

    def _largest_degree(self, csc: CSC, dst: Any) -> int:
        """The largest number of edges that lead to one node."""
        pieces = degrees(csc, self.order[dst].old, self.step)
        return max((int(degree.max()) for degree in pieces if len(degree)), default=0)

    def _write_relation(self, arrays: _Arrays, number: int, csc: CSC, edge_type: Any, columns: Tensor) -> None:
        """The columns of a relation, under the names that a saved GraphStore has."""
        new, step = self.order[end_types(edge_type)[0]].new, self.step
        count = sum(int(degree.sum()) for degree in degrees(csc, columns, step))
        arrays.write(f"{number}_colptr", torch.int64, (len(columns) + 1,), pointers(csc, columns, step))
        kind, kind_of_id = id_dtype(csc.num_src), id_dtype(max(csc.num_edges, csc.num_src))
        if kind == kind_of_id:  # side by side, because they are read together
            pieces = (torch.stack([row.to(kind), ids.to(kind)], 1) for row, ids in edges(csc, columns, new, step))
            arrays.write(f"{number}_edges", kind, (count, 2), pieces)
        else:
            pieces = (row.to(kind) for row in sources(csc, columns, new, step))
            arrays.write(f"{number}_row", kind, (count,), pieces)
            pieces = (ids.to(kind_of_id) for ids in edge_ids(csc, columns, step))
            arrays.write(f"{number}_edge_id", kind_of_id, (count,), pieces)

    def _write_halo(self, arrays: _Arrays, number: int, own: dict[Any, Tensor]) -> None:
        """The part's halo, ascending, and the out-degree in the whole graph of each of its nodes."""
        ids, _ = files.load(self.path / "ids", directory.IDS, verify=False)
        for i, node_type in enumerate(self.types):
            nodes = self.book.nodes(number, node_type)
            for edge_type, csc in self.relations.items():
                src, dst = end_types(edge_type)
                if src == node_type:
                    for row in sources(csc, own[dst], self.order[src].new, self.step):
                        self._known[src].add(row[(row < nodes.start) | (row >= nodes.stop)].to(torch.int64))
            halo = self._known[node_type].taken()
            arrays.whole(f"halo_{i}", halo)
            arrays.whole(f"degree_{i}", ids[f"degree_{i}"][halo])

    def _write_attrs(self, arrays: _Arrays, names: Sequence[str]) -> None:
        """Attributes of the whole graph, in stored order."""
        whole = {node_type: order.old for node_type, order in self.order.items()}
        for i, rows in enumerate(self.inputs.rows):
            if rows.meta.attr_name in names:
                shape = (rows.meta.num_rows, *rows.meta.shape)
                arrays.write(f"rows_{i}", rows.meta.dtype, shape, self._rows(rows, whole))

    def _write_ids(self, arrays: _Arrays) -> None:
        """The stored id of each of the user's ids, out-degrees, and the seeds and links of all parts."""
        for i, node_type in enumerate(self.types):
            order, count = self.order[node_type], self.inputs.num_nodes[node_type]
            arrays.write(f"stored_{i}", torch.int64, (count,), self._wide(order.new))
            degree = self.inputs.out_degree(node_type)
            stored = (degree[ids] for ids in self._wide(order.old))
            arrays.write(f"degree_{i}", torch.int64, (count,), stored)
        with_rows = {edge_type_of(rows.meta.group_name) for rows in self.inputs.rows if rows.meta.of_edges}
        for i, (edge_type, csc) in enumerate(self.relations.items()):
            if edge_type in with_rows:
                arrays.write(f"edges_{i}", torch.int64, (csc.num_edges,), self._positions(edge_type, csc))
        for i, seeds in enumerate(self.inputs.splits.values()):
            arrays.whole(f"seeds_{i}", seeds)
        for i, (key, ends) in enumerate(self.inputs.links.items()):
            arrays.whole(f"links_{i}", ends)
            if key in self.inputs.link_ids:
                arrays.whole(f"link_ids_{i}", self.inputs.link_ids[key])

    def _positions(self, edge_type: Any, csc: CSC) -> Iterator[Tensor]:
        """The stored position of each edge by the user's id, a range of ids at a time; ValueError if one is missing."""
        order, most = self.order[end_types(edge_type)[1]].old, max(1, self.memory // 16)
        table = torch.empty(min(most, csc.num_edges), dtype=torch.int64)
        for begin in range(0, csc.num_edges, most):
            found = table[: csc.num_edges - begin].fill_(-1)
            for ids, place in positions(csc, order, self.step):
                if len(found) < csc.num_edges:
                    inside = (ids >= begin) & (ids < begin + len(found))
                    ids, place = ids[inside] - begin, place[inside]
                found[ids] = place
            if (missing := ops.first_outside(found, csc.num_edges)) >= 0:
                raise ValueError(
                    f"data: expected every edge id of {edge_type!r} once, found {begin + missing} not at all"
                )
            yield found


class _Arrays:
    """The arrays of a folder, written one after the other; ``entries`` are those of its manifest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, dict[str, Any]] = {}

    def write(self, name: str, dtype: torch.dtype, shape: tuple[int, ...], pieces: Iterable[Tensor]) -> None:
        """Writes an array from its pieces."""
        try:
            with files.ArrayWriter(self.folder / f"{name}.npy", dtype, shape) as writer:
                for piece in pieces:
                    writer.append(piece)
        except OSError as error:
            if error.errno is None or Path(error.filename or self.folder / name).parent != self.folder:
                raise  # of what the pieces are read from
            raise OSError(error.errno, f"{error.strerror}, while {name} was written", str(self.folder)) from error
        self.entries[name] = writer.entry

    def whole(self, name: str, array: Tensor) -> None:
        """Writes an array that is in memory."""
        self.write(name, array.dtype, tuple(array.shape), [array])


def _entries_at(pieces: Iterator[Tensor], places: Tensor) -> Tensor:
    """The entries at ``places``, which are ascending, of the vector that consists of the pieces."""
    found, begin = [], 0
    for piece in pieces:
        here = places[(places >= begin) & (places < begin + len(piece))]
        found.append(piece[here - begin])
        begin += len(piece)
    return torch.cat(found)
