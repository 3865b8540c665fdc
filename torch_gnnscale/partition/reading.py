"""Opens a partitioned graph: what all ranks share, and single parts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import files, ops
from ..feature.composite import Composites
from ..ops.arguments import ID_DTYPES, check_ids, to_int
from ..sampler.graph import end_types
from ..topology import CSC, GraphStore
from ..topology.csc import CHUNK
from . import directory
from .all_parts import NumberingOfAllParts, RowsOfAllParts, joined_columns
from .directory import PartitionBook, RowsMeta, check_part_number, edge_type_of
from .whole import PartitionReport


class Halo(NamedTuple):
    """The nodes outside a part from which its edges come."""

    ids: Tensor
    """Stored ids, rising: int64, shape [h]."""
    degree: Tensor
    """How many edges of the whole graph begin at each: int64, shape [h]."""


@dataclass(eq=False)
class StoredPart:
    """One part: mapped, and equal for all processes of a machine that open it."""

    number: int
    relations: dict[EdgeType | None, CSC]
    """By edge type: column j has the edges that lead to the part's node j. Sources are stored ids of all parts, edge
    ids are the user's."""
    rows: dict[tuple[Any, str], Tensor]
    """By group and name. Row j is that of the part's node j or, where the group is an edge type, (None, None) in a
    homogeneous graph, that of its edge j in the order of ``relations``."""
    origins: dict[tuple[Any, str], tuple[str, str, str]]
    """The file of each entry of ``rows``: directory, its kind, and array (:mod:`torch_gnnscale.files`)."""
    user_ids: dict[NodeType | None, Tensor]
    """The user's id of each node: int64, shape [m], rising."""
    seeds: dict[tuple[NodeType | None, str], Tensor]
    """By node type and split: the user's ids of the part's seeds, in the user's order: int64."""
    links: dict[tuple[EdgeType | None, str], Tensor]
    """By edge type and split: the links that lead to the part's nodes, in the user's ids and order: int64, [2, m]."""
    link_ids: dict[tuple[EdgeType | None, str], Tensor]
    """The ids of the edges that the links of a split are, if it was written by these: int64, shape [m]."""
    halo: dict[NodeType | None, Halo]


class Mark(NamedTuple):
    """What says that a directory is complete."""

    fingerprint: int
    """Of the book and what all parts share."""
    parts: list[int]
    """The checksum of each part's manifest."""


@dataclass(eq=False)
class StoredParts:
    """An opened directory: what all ranks share. Nothing is read before it is asked for, and files are mapped.

    A context manager. What it returned stays valid after it is closed; its methods then raise ValueError.
    """

    path: Path
    book: PartitionBook
    topology: str
    """``replicated`` or ``partitioned``."""
    attrs: list[RowsMeta]
    composites: Composites
    """The attributes that are made of several of ``attrs``."""
    splits: list[tuple[NodeType | None, str]]
    """Node type and name of each split of nodes."""
    link_splits: list[tuple[EdgeType | None, str]]
    """Edge type and name of each split of links."""
    graph_attrs: dict[tuple[Any, str], Tensor]
    """Attributes that are stored whole, by group and name: of nodes by stored id, of edges by position."""
    about: dict[str, Any]
    """What was given to ``write``."""
    assigned: dict[str, Any]
    """How the parts were chosen: ``method``, and what that took."""
    report: PartitionReport
    largest_degree: dict[EdgeType | None, int]
    """By edge type: the largest number of edges that lead to one node."""
    fingerprint: int
    """63 bits, equal for equal graphs with equal rows in equal parts."""
    _graph: GraphStore | None = field(repr=False)
    _ids: dict[str, Tensor] = field(repr=False)
    _verify: bool = field(repr=False)
    _mark: Mark = field(repr=False)

    @property
    def hetero(self) -> bool:
        """Whether nodes and edges have types."""
        return None not in self.book.bounds

    def graph(self) -> GraphStore:
        """The whole graph in stored ids; edge ids are the user's. ValueError if its topology is partitioned."""
        self._check_open()
        if self._graph is None:
            raise ValueError(f"{self.path}: expected topology 'replicated', found 'partitioned'")
        return self._graph

    def stored_ids(self, node_type: NodeType | None = None) -> Tensor:
        """The stored id of each of the user's nodes: int64, shape [n]."""
        self._check_open()
        return self._ids[f"stored_{_place('node type', self.book.bounds, node_type)}"]

    def stored_edges(self, edge_type: EdgeType | None = None) -> Tensor:
        """The stored position of each of the user's edges: int64, shape [e]; ValueError for edges without rows."""
        self._check_open()
        name = f"edges_{_place('edge type', self.book.edge_bounds, edge_type)}"
        if name not in self._ids:
            raise ValueError(f"edge type {edge_type!r}: expected one whose edges have rows")
        return self._ids[name]

    def to_stored(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """The stored ids of the user's nodes ``ids``, int64 of any shape; IndexError for an id that is no node."""
        table = self.stored_ids(node_type)
        check_ids("ids", ids.reshape(-1), len(table), "nodes")
        return _checked(table[ids], len(table), self._file(f"stored_{list(self.book.bounds).index(node_type)}"))

    def to_positions(self, ids: Tensor, edge_type: EdgeType | None = None) -> Tensor:
        """The stored positions of the user's edges ``ids``, int64 in [0, e), which are not checked."""
        table = self.stored_edges(edge_type)
        return _checked(table[ids], len(table), self._file(f"edges_{list(self.book.edge_bounds).index(edge_type)}"))

    def input_nodes(self, split: str | None, node_type: NodeType | None = None) -> Tensor:
        """The seeds of a split in all parts, None for all nodes: the user's ids in the user's order, int64."""
        self._check_open()
        if split is None:
            _place("node type", self.book.bounds, node_type)
            return torch.arange(self.book.num_nodes(node_type))
        name = f"seeds_{_place('split', self.splits, (node_type, split))}"
        return _checked(self._ids[name], self.book.num_nodes(node_type), self._file(name))

    def links(self, split: str, edge_type: EdgeType | None = None) -> Tensor:
        """The links of a split in all parts: the user's ids in the user's order, int64, shape [2, m]."""
        self._check_open()
        name = f"links_{_place('link split', self.link_splits, (edge_type, split))}"
        return _checked_links(self._ids[name], self.book, edge_type, self._file(name))

    def link_ids(self, split: str, edge_type: EdgeType | None = None) -> Tensor | None:
        """The ids of the edges that these links are: int64, shape [m]; None unless they were written by these."""
        self._check_open()
        name = f"link_ids_{_place('link split', self.link_splits, (edge_type, split))}"
        ids = self._ids.get(name)
        return None if ids is None else _checked(ids, self.book.num_edges(edge_type), self._file(name))

    def part(self, number: int, verify: bool | None = None) -> StoredPart:
        """Opens a part.

        Args:
            number: the part.
            verify: read its files once, compare checksums, and check the sources and ids of its edges; by default as
                :func:`open_parts` was told. Column pointers, seeds, links and ids of nodes are always checked.

        Raises:
            FileNotFoundError, ValueError: names the file that is missing, truncated, corrupt or of another book.
            IndexError: there is no such part.
        """
        self._check_open()
        folder = directory.part_folder(self.path, check_part_number("part", number, self.book.num_parts))
        verify = self._verify if verify is None else verify
        arrays, meta = files.load(folder, directory.PART, verify)
        directory.check_part_of(folder, meta, number, self._mark.fingerprint)
        if (found := files.checksum(folder)) != (expected := self._mark.parts[number]):
            raise ValueError(f"{folder / files.MANIFEST}: expected checksum {expected}, found {found}: it was replaced")
        of, book = partial(directory.array_of, folder, arrays), self.book
        names = {(meta.group_name, meta.attr_name): f"rows_{i}" for i, meta in enumerate(self.attrs)}
        rows = [of(f"rows_{i}", m.dtype, len(book.rows(number, m)), *m.shape) for i, m in enumerate(self.attrs)]
        nodes = {node_type: len(book.nodes(number, node_type)) for node_type in book.bounds}

        def ids_of(name: str, count: int, limit: int) -> Tensor:
            return _checked(of(name, torch.int64, count), limit, folder / f"{name}.npy")

        halos = [of(f"halo_{i}", torch.int64, -1) for i in range(len(nodes))]
        degrees = [of(f"degree_{i}", torch.int64, len(halo)) for i, halo in enumerate(halos)]
        links = {
            (t, split): _checked_links(of(name, torch.int64, 2, -1), book, t, folder / f"{name}.npy")
            for i, (t, split) in enumerate(self.link_splits)
            if (name := f"links_{i}")
        }
        return StoredPart(
            number,
            {t: self._relation(folder, arrays, i, t, number, verify) for i, t in enumerate(book.edge_bounds)},
            dict(zip(names, rows, strict=True)),
            {key: (str(folder), directory.PART, name) for key, name in names.items()},
            {t: ids_of(f"user_ids_{i}", count, book.num_nodes(t)) for i, (t, count) in enumerate(nodes.items())},
            {(t, split): ids_of(f"seeds_{i}", -1, book.num_nodes(t)) for i, (t, split) in enumerate(self.splits)},
            links,
            {
                pair: ids_of(name, links[pair].size(1), book.num_edges(pair[0]))
                for i, pair in enumerate(self.link_splits)
                if (name := f"link_ids_{i}") in arrays
            },
            dict(zip(nodes, map(Halo, halos, degrees), strict=True)),
        )

    def stores(self) -> tuple[RowsOfAllParts, GraphStore]:
        """All parts as the stores of one process, while they are open: for evaluation, embeddings, or a look. They are
        given to a loader as any pair of stores, with the user's ids, such as those of :meth:`input_nodes`.

        Rows are mapped. A graph whose topology is partitioned is copied to memory, 8 or 16 bytes per edge.
        """
        self._check_open()
        each = [self.part(number) for number in range(self.book.num_parts)]
        order = None
        if len(each) > 1:
            users = {t: [part.user_ids[t] for part in each] for t in self.book.bounds}
            order = NumberingOfAllParts(self.to_stored, users)
        rows = {key: [part.rows[key] for part in each] for key in each[0].rows}
        graph = self._graph
        if graph is None:
            graph = GraphStore()
            for edge_type in self.book.edge_bounds:
                graph._relations[edge_type] = joined_columns([part.relations[edge_type] for part in each])
        return RowsOfAllParts(self.attrs, self.composites, rows, self.to_positions, order), graph.numbered_by(order)

    def _file(self, name: str) -> Path:
        return self.path / "ids" / f"{name}.npy"

    def _check_open(self) -> None:
        if not self._ids:
            raise ValueError(f"{self.path}: expected parts that are open, found closed ones")

    def _relation(
        self, folder: Path, arrays: dict[str, Tensor], i: int, edge_type: EdgeType | None, number: int, verify: bool
    ) -> CSC:
        """The columns of a part: those of its own folder, or of the whole graph, that lead to its nodes. ``verify``:
        check the sources and ids of edges, too, those of the whole graph excepted."""
        origin = (partial(_reopened, self.path, edge_type), (number,))
        src, dst = end_types(edge_type)
        nodes, edges = self.book.nodes(number, dst), self.book.edges(number, edge_type)
        if self._graph is not None:
            whole = self._graph.relation(edge_type)
            assert whole.edge_id is not None
            at, colptr = slice(edges.start, edges.stop), whole.colptr[nodes.start : nodes.stop + 1] - edges.start
            csc = CSC(colptr, whole.row[at], whole.edge_id[at], whole.num_src, origin)
            _check_colptr(csc, self.path / "graph" / f"{i}_colptr.npy")
            return csc
        of = partial(directory.array_of, folder, arrays)
        if f"{i}_edges" in arrays:
            row, edge_id = of(f"{i}_edges", ID_DTYPES, len(edges), 2).unbind(1)
        else:
            row, edge_id = (of(f"{i}_{name}", ID_DTYPES, len(edges)) for name in ("row", "edge_id"))
        csc = CSC(of(f"{i}_colptr", torch.int64, len(nodes) + 1), row, edge_id, self.book.num_nodes(src), origin)
        _check_colptr(csc, folder / f"{i}_colptr.npy")
        for name, ids, limit in (("row", row, csc.num_src), ("edge_id", edge_id, self.book.num_edges(edge_type))):
            if verify:
                _checked(ids, limit, folder / f"{i}_{'edges' if f'{i}_edges' in arrays else name}.npy")
        return csc

    def close(self) -> None:
        """Lets go of the mapped files."""
        self._graph = None
        self._ids, self.graph_attrs = {}, {}

    def __enter__(self) -> StoredParts:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def open_parts(path: str | os.PathLike, verify: bool = True) -> StoredParts:
    """Opens what all ranks share of a directory that :func:`write` has completed; a part is opened by ``part``.

    On each machine, one process needs to verify what all of them share, and one of those that open a part needs to
    verify the part's files: ``part(number, verify=...)``.

    Args:
        path: the directory.
        verify: read everything once and compare checksums; sizes and manifests are always compared.

    Raises:
        FileNotFoundError, ValueError: the directory is unfinished; or names the file that is missing, truncated,
            corrupt or foreign.
    """
    path = Path(path).resolve()
    if not (path / "complete" / files.MANIFEST).is_file():
        raise _unfinished(path)
    _, completed = files.load(path / "complete", directory.COMPLETE)
    book, meta = directory.load_book(path)
    said, fingerprint = directory.Described.of(path, book, meta), directory.fingerprint_of_parts(path)
    with files.described(path / "complete" / files.MANIFEST, "the mark of a complete directory"):
        checksums = [to_int("checksum", of) for of in completed["parts"]]
        mark = Mark(to_int("fingerprint", completed["fingerprint"]), checksums)
        if len(mark.parts) != book.num_parts:
            raise ValueError(f"{len(mark.parts)} parts, of which the book has {book.num_parts}")
    if mark.fingerprint != fingerprint:
        raise ValueError(f"{path / 'book'}: expected the book {mark.fingerprint}, found {fingerprint}: it was replaced")
    for name, expected in said.folders.items():
        if (found := files.checksum(path / name)) != expected:
            raise ValueError(
                f"{path / name / files.MANIFEST}: expected checksum {expected}, found {found}: it was replaced"
            )
    ids = _opened_ids(path / "ids", book, said, verify)
    graph = _opened_graph(path / "graph", book, verify) if said.topology == "replicated" else None
    whole = {}
    if said.graph_attrs:
        arrays, _ = files.load(path / "attrs", directory.ATTRS, verify)
        for i, m in enumerate(said.attrs):
            if m.attr_name in said.graph_attrs:
                rows = directory.array_of(path / "attrs", arrays, f"rows_{i}", m.dtype, m.num_rows, *m.shape)
                whole[m.group_name, m.attr_name] = rows
    return StoredParts(
        path, book, said.topology, said.attrs, said.composites, list(said.splits), list(said.links), whole, said.about,
        said.assigned, said.report, said.largest_degree, directory.digest_of(mark._asdict()), graph, ids, verify, mark,
    )  # fmt: skip


def _opened_ids(path: Path, book: PartitionBook, said: directory.Described, verify: bool) -> dict[str, Tensor]:
    """The arrays of all ids, by name. ValueError names one that is not of its shape."""
    arrays, _ = files.load(path, directory.IDS, verify)
    shapes: dict[str, tuple[int, ...]] = {}
    for i, node_type in enumerate(book.bounds):
        shapes |= dict.fromkeys((f"stored_{i}", f"degree_{i}"), (book.num_nodes(node_type),))
    with_rows = {edge_type_of(meta.group_name) for meta in said.attrs if meta.of_edges}
    shapes |= {f"edges_{i}": (book.num_edges(of),) for i, of in enumerate(book.edge_bounds) if of in with_rows}
    shapes |= {f"seeds_{i}": (count,) for i, count in enumerate(said.splits.values())}
    for i, count in enumerate(said.links.values()):
        shapes |= {f"links_{i}": (2, count)} | ({f"link_ids_{i}": (count,)} if f"link_ids_{i}" in arrays else {})
    return {name: directory.array_of(path, arrays, name, torch.int64, *shape) for name, shape in shapes.items()}


def _opened_graph(path: Path, book: PartitionBook, verify: bool) -> GraphStore:
    """The whole graph; ValueError, which names the manifest, unless its relations are those of the book."""
    graph = GraphStore.open(path, verify)
    with files.described(path / files.MANIFEST, "the graph of the book"):
        if (found := [attr.edge_type for attr in graph.get_all_edge_attrs()]) != list(book.edge_bounds):
            raise ValueError(f"relations {found}")
        for edge_type, bounds in book.edge_bounds.items():
            csc, (src, dst) = graph.relation(edge_type), end_types(edge_type)
            if csc.edge_id is None or (csc.num_src, csc.num_dst) != (book.num_nodes(src), book.num_nodes(dst)):
                raise ValueError(f"relation {edge_type!r}: {csc}")
            if not torch.equal(csc.colptr[book.bounds[dst]], bounds):
                raise ValueError(f"relation {edge_type!r}: parts that begin at other edges")
    return graph


def read_report(path: str | os.PathLike) -> tuple[dict[str, Any], PartitionReport]:
    """How the parts of a directory, finished or not, were chosen and how good they are: ``assigned`` and ``report`` of
    :class:`StoredParts`."""
    said = directory.Described.of(Path(path), *directory.load_book(Path(path)))
    return said.assigned, said.report


def _unfinished(path: Path) -> Exception:
    if not (path / "book" / files.MANIFEST).is_file():
        return FileNotFoundError(f"{path}: expected a directory of parts, found no book in it")
    if missing := directory.missing_parts(path, directory.load_book(path)[0].num_parts):
        return ValueError(f"{path}: expected all parts, found it unfinished: write(..., only={missing}) completes it")
    return ValueError(f"{path}: expected a complete directory, found it unfinished: write(..., only=[]) completes it")


def _reopened(path: Path, edge_type: EdgeType | None, number: int) -> CSC:
    """Maps a part's relation in another process, without verifying it."""
    return open_parts(path, verify=False).part(number).relations[edge_type]


def _checked(found: Tensor, limit: int, file: Path) -> Tensor:
    """What a table in a file says, unless it leads outside of [0, limit); then raises ValueError."""
    for some in found.reshape(-1).split(CHUNK):
        if (at := ops.first_outside(some, limit)) >= 0:
            raise ValueError(f"{file}: expected numbers in [0, {limit}), found {int(some[at])}")
    return found


def _checked_links(links: Tensor, book: PartitionBook, edge_type: EdgeType | None, file: Path) -> Tensor:
    """Links, [2, m], of a file; raises ValueError unless both ends are nodes."""
    for end, node_type in zip(links, end_types(edge_type), strict=True):
        _checked(end, book.num_nodes(node_type), file)
    return links


def _check_colptr(csc: CSC, file: Path) -> None:
    """Raises ValueError unless the column pointers of a file rise from 0 to the number of edges."""
    with files.described(file, "column pointers"):
        ops.check_colptr(csc.colptr, csc.num_edges)


def _place(what: str, known: Iterable[Any], wanted: Any) -> int:
    """The position of ``wanted``; ValueError if it is not there."""
    found = list(known)
    if wanted not in found:
        raise ValueError(f"{what} {wanted!r}: {f'expected one of {found}' if found else 'there is none'}")
    return found.index(wanted)
