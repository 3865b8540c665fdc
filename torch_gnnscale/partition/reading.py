"""Opens a partitioned graph: what all ranks share, and single parts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import files
from ..sampler.edge_types import end_types
from ..topology import CSC, GraphStore
from . import layout
from .book import PartitionBook, RowsMeta, check_part_number, edge_type_of
from .report import PartitionReport


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
    halo: dict[NodeType | None, Halo]


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
    _mark: dict[str, Any] = field(repr=False)

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

    def input_nodes(self, split: str, node_type: NodeType | None = None) -> Tensor:
        """The seeds of a split in all parts: the user's ids in the user's order, int64."""
        self._check_open()
        return self._ids[f"seeds_{_place('split', self.splits, (node_type, split))}"]

    def links(self, split: str, edge_type: EdgeType | None = None) -> Tensor:
        """The links of a split in all parts: the user's ids in the user's order, int64, shape [2, m]."""
        self._check_open()
        return self._ids[f"links_{_place('link split', self.link_splits, (edge_type, split))}"]

    def part(self, number: int, verify: bool | None = None) -> StoredPart:
        """Opens a part.

        Args:
            number: the part.
            verify: read its files once and compare checksums; by default as :func:`open_parts` was told.

        Raises:
            FileNotFoundError, ValueError: names the file that is missing, truncated, corrupt or of another book.
            IndexError: there is no such part.
        """
        self._check_open()
        folder = layout.part_folder(self.path, check_part_number("part", number, self.book.num_parts))
        arrays, meta = files.load(folder, layout.PART, self._verify if verify is None else verify)
        layout.check_part_of(folder, meta, number, self._mark["fingerprint"])
        if (found := files.checksum(folder)) != (expected := self._mark["parts"][number]):
            raise ValueError(f"{folder / files.MANIFEST}: expected checksum {expected}, found {found}: it was replaced")
        nodes = list(self.book.bounds)
        names = {(meta.group_name, meta.attr_name): f"rows_{i}" for i, meta in enumerate(self.attrs)}
        return StoredPart(
            number,
            {
                edge_type: self._relation(arrays, i, edge_type, number)
                for i, edge_type in enumerate(self.book.edge_bounds)
            },
            {key: arrays[name] for key, name in names.items()},
            {key: (str(folder), layout.PART, name) for key, name in names.items()},
            {node_type: arrays[f"user_ids_{i}"] for i, node_type in enumerate(nodes)},
            {pair: arrays[f"seeds_{i}"] for i, pair in enumerate(self.splits)},
            {pair: arrays[f"links_{i}"] for i, pair in enumerate(self.link_splits)},
            {node_type: Halo(arrays[f"halo_{i}"], arrays[f"degree_{i}"]) for i, node_type in enumerate(nodes)},
        )

    def _check_open(self) -> None:
        if not self._ids:
            raise ValueError(f"{self.path}: expected parts that are open, found closed ones")

    def _relation(self, arrays: dict[str, Tensor], i: int, edge_type: EdgeType | None, number: int) -> CSC:
        """The columns of a part: its own file's, or those of the whole graph that lead to its nodes."""
        origin = (partial(_reopened, self.path, edge_type), (number,))
        src, dst = end_types(edge_type)
        if self._graph is None:
            if f"{i}_edges" in arrays:
                row, edge_id = arrays[f"{i}_edges"].unbind(1)
            else:
                row, edge_id = arrays[f"{i}_row"], arrays[f"{i}_edge_id"]
            return CSC(arrays[f"{i}_colptr"], row, edge_id, self.book.num_nodes(src), origin)
        whole, nodes, edges = (
            self._graph.relation(edge_type),
            self.book.nodes(number, dst),
            self.book.edges(number, edge_type),
        )
        assert whole.edge_id is not None
        colptr = whole.colptr[nodes.start : nodes.stop + 1] - edges.start
        at = slice(edges.start, edges.stop)
        return CSC(colptr, whole.row[at], whole.edge_id[at], whole.num_src, origin)

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
    _, mark = files.load(path / "complete", layout.COMPLETE)
    book, meta = layout.load_book(path)
    fingerprint = layout.fingerprint_of_parts(path)
    if mark["fingerprint"] != fingerprint:
        raise ValueError(
            f"{path / 'book'}: expected the book {mark['fingerprint']}, found {fingerprint}: it was replaced"
        )
    for name, expected in meta["folders"].items():
        if (found := files.checksum(path / name)) != expected:
            raise ValueError(
                f"{path / name / files.MANIFEST}: expected checksum {expected}, found {found}: it was replaced"
            )
    given = meta["given"]
    ids, _ = files.load(path / "ids", layout.IDS, verify)
    graph = GraphStore.open(path / "graph", verify) if given["topology"] == "replicated" else None
    attrs = []
    for entry in given["rows"]:
        group = files.read_name(entry["group"])
        edges = isinstance(group, tuple)
        attrs.append(layout.rows_meta(entry, book.num_edges(edge_type_of(group)) if edges else book.num_nodes(group)))
    whole = {}
    if given["graph_attrs"]:
        arrays, _ = files.load(path / "attrs", layout.ATTRS, verify)
        named = {(meta.group_name, meta.attr_name): f"rows_{i}" for i, meta in enumerate(attrs)}
        whole = {key: arrays[name] for key, name in named.items() if name in arrays}
    degree = dict(zip(book.edge_bounds, meta["largest_degree"], strict=True))
    return StoredParts(
        path, book, given["topology"], attrs, _pairs(given["splits"]), _pairs(given["links"]), whole, given["about"],
        meta["assigned"], layout.report_of(meta), degree, layout.digest(mark), graph, ids, verify, mark,
    )  # fmt: skip


def read_report(path: str | os.PathLike) -> tuple[dict[str, Any], PartitionReport]:
    """How the parts of a directory, finished or not, were chosen and how good they are: ``assigned`` and ``report`` of
    :class:`StoredParts`."""
    _, meta = layout.load_book(Path(path))
    return meta["assigned"], layout.report_of(meta)


def _unfinished(path: Path) -> Exception:
    if not (path / "book" / files.MANIFEST).is_file():
        return FileNotFoundError(f"{path}: expected a directory of parts, found no book in it")
    if missing := layout.missing_parts(path, layout.load_book(path)[0].num_parts):
        return ValueError(f"{path}: expected all parts, found it unfinished: write(..., only={missing}) completes it")
    return ValueError(f"{path}: expected a complete directory, found it unfinished: write(..., only=[]) completes it")


def _reopened(path: Path, edge_type: EdgeType | None, number: int) -> CSC:
    """Maps a part's relation in another process, without verifying it."""
    return open_parts(path, verify=False).part(number).relations[edge_type]


def _pairs(entries: Iterable[list[Any]]) -> list[tuple[Any, str]]:
    """Type and name of each split, in the order of the book."""
    return [(files.read_name(type_name), split) for type_name, split, _ in entries]


def _place(what: str, known: Iterable[Any], wanted: Any) -> int:
    """The position of ``wanted``; ValueError if it is not there."""
    found = list(known)
    if wanted not in found:
        raise ValueError(f"{what} {wanted!r}: expected one of {found}")
    return found.index(wanted)
