"""The partition book, which part stores what, on which all ranks agree; and how parts lie in a directory: names and
manifests."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import files, ops
from ..feature.composite import Composites, read_composites
from ..ops.arguments import as_ids, check_int, to_int
from ..random import digest
from ..sampler.graph import end_types
from .whole import PartitionReport


@dataclass(frozen=True, eq=False)
class PartitionBook:
    """The bounds of the parts, K + 1 per type: part i stores the ids ``bounds[i] .. bounds[i + 1] - 1``."""

    bounds: dict[NodeType | None, Tensor]
    """By node type (None in a homogeneous graph), of stored nodes: int64, shape [K + 1], rising from 0."""
    edge_bounds: dict[EdgeType | None, Tensor]
    """By edge type, of positions in the stored relation: an edge belongs to its destination's part."""

    @property
    def num_parts(self) -> int:
        """K."""
        return len(next(iter(self.bounds.values()))) - 1

    def num_nodes(self, node_type: NodeType | None = None) -> int:
        """The number of nodes of a type in all parts."""
        return int(_of_type("node type", self.bounds, node_type)[-1])

    def num_edges(self, edge_type: EdgeType | None = None) -> int:
        """The number of edges of a type in all parts."""
        return int(_of_type("edge type", self.edge_bounds, edge_type)[-1])

    def part_of(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """The part of each node.

        Args:
            ids: stored ids, any integer type and shape.
            node_type: their type.

        Returns:
            int64, the shape of ``ids``.

        Raises:
            IndexError: an id that is no node.
        """
        bounds, ids = _of_type("node type", self.bounds, node_type), as_ids("ids", ids)
        if (at := ops.first_outside(ids.reshape(-1), int(bounds[-1]))) >= 0:
            found = int(ids.reshape(-1)[at])
            raise IndexError(f"ids[{at}] = {found} is out of range: expected nodes in [0, {int(bounds[-1])})")
        return torch.searchsorted(bounds, ids.to(torch.int64), right=True) - 1

    def nodes(self, part: int, node_type: NodeType | None = None) -> range:
        """The stored ids of a part's nodes."""
        return self._range(_of_type("node type", self.bounds, node_type), part)

    def edges(self, part: int, edge_type: EdgeType | None = None) -> range:
        """The positions of a part's edges in the stored relation."""
        return self._range(_of_type("edge type", self.edge_bounds, edge_type), part)

    def rows(self, part: int, of: RowsMeta) -> range:
        """Where a part's rows of an attribute are among those of all parts."""
        return self.edges(part, edge_type_of(of.group_name)) if of.of_edges else self.nodes(part, of.group_name)

    def _range(self, bounds: Tensor, part: int) -> range:
        return range(*bounds[check_part_number("part", part, self.num_parts) :][:2].tolist())


@dataclass(frozen=True)
class RowsMeta:
    """What is known of an attribute without its rows."""

    group_name: Any
    """The node or edge type; in a homogeneous graph None for nodes, (None, None) for edges."""
    attr_name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    """The shape of a row."""
    num_rows: int
    """The number of rows in all parts: that of the nodes or edges of the type."""

    @property
    def of_edges(self) -> bool:
        """Whether the rows are those of edges."""
        return isinstance(self.group_name, tuple)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def edge_type_of(group: Any) -> EdgeType | None:
    """The edge type of a group of rows of edges, which in a homogeneous graph is (None, None)."""
    return None if group == (None, None) else group


def check_part_number(name: str, part: int, parts: int) -> int:
    """Returns the number of a part; raises TypeError or IndexError naming it."""
    part = to_int(name, part)
    if not 0 <= part < parts:
        raise IndexError(f"{name}: expected a part in [0, {parts}), found {part}")
    return part


def _of_type(name: str, bounds: dict[Any, Tensor], type_name: Any) -> Tensor:
    if type_name not in bounds:
        raise ValueError(f"{name} {type_name!r}: expected one of {list(bounds)}")
    return bounds[type_name]


BOOK, IDS, PART, ATTRS, COMPLETE = (
    "partition-book", "partition-ids", "partition-part", "partition-attrs", "partition-complete",
)  # fmt: skip
"""Kinds of directories. The graph is of the kind of a saved GraphStore."""
TOPOLOGIES = ("replicated", "partitioned")
"""Where the edges of a partitioned graph are stored: all in one place that every rank maps, or each with its part."""


def part_folder(path: Path, part: int) -> Path:
    """The folder of a part."""
    return path / f"part-{part:05d}"


def rows_entry(meta: RowsMeta) -> dict[str, Any]:
    """An attribute in the book."""
    dtype = str(meta.dtype).removeprefix("torch.")
    return {"group": meta.group_name, "name": meta.attr_name, "dtype": dtype, "shape": list(meta.shape)}


def _rows_meta(entry: dict[str, Any], book: PartitionBook) -> RowsMeta:
    """An attribute of the book."""
    group, dtype = files.read_name(entry["group"]), getattr(torch, entry["dtype"])
    count = book.num_edges(edge_type_of(group)) if isinstance(group, tuple) else book.num_nodes(group)
    if not isinstance(dtype, torch.dtype) or not isinstance(entry["name"], str):
        raise ValueError(f"rows {entry}")
    return RowsMeta(group, entry["name"], dtype, tuple(check_int("shape", size) for size in entry["shape"]), count)


def plain(value: Any) -> Any:
    """What JSON makes of a value."""
    return json.loads(json.dumps(value))


def load_book(path: Path, verify: bool = True) -> tuple[PartitionBook, dict[str, Any]]:
    """The book of a directory, and its metadata.

    Raises:
        FileNotFoundError, ValueError: there is none, or it is damaged; names the file.
    """
    folder = path / "book"
    arrays, meta = files.load(folder, BOOK, verify)
    with _said(path):
        given = meta["given"]
        parts = check_int("parts", given["parts"], 1)
        nodes = {files.read_name(node_type): check_int("num_nodes", count) for node_type, count in given["num_nodes"]}
        edges = {files.read_name(of["edge_type"]): check_int("num_edges", of["num_edges"]) for of in given["relations"]}
        if not nodes or (len(nodes), len(edges)) != (len(given["num_nodes"]), len(given["relations"])):
            raise ValueError(f"types {[*nodes, *edges]}, not all different")
        for edge_type, entry in zip(edges, given["relations"], strict=True):
            sizes, counted = [entry["num_src"], entry["num_dst"]], [nodes[end] for end in end_types(edge_type)]
            if sizes != counted:
                raise ValueError(f"{sizes} nodes at the ends of {edge_type!r}, of which there are {counted}")
    bounds, edge_bounds = (
        {of: _bounds(folder, arrays, f"{name}_{i}", parts, count) for i, (of, count) in enumerate(counts.items())}
        for name, counts in (("bounds", nodes), ("edge_bounds", edges))
    )
    return PartitionBook(bounds, edge_bounds), meta


def _said(path: Path) -> AbstractContextManager[None]:
    """A block that reads what the manifest of a directory's book says; ValueError where that is not there."""
    return files.described(path / "book" / files.MANIFEST, "a partition book")


class Described(NamedTuple):
    """What a book says besides the bounds of parts."""

    topology: str
    folders: dict[str, int]
    """The checksums of the folders that all parts share, by name."""
    attrs: list[RowsMeta]
    composites: Composites
    """Attributes that are made of several of ``attrs``."""
    graph_attrs: list[str]
    splits: dict[tuple[NodeType | None, str], int]
    """By node type and name: the number of seeds."""
    links: dict[tuple[EdgeType | None, str], int]
    """By edge type and name: the number of links."""
    about: dict[str, Any]
    assigned: dict[str, Any]
    report: PartitionReport
    largest_degree: dict[EdgeType | None, int]

    @classmethod
    def of(cls, path: Path, book: PartitionBook, meta: dict[str, Any]) -> Described:
        """Reads the metadata of the book of a directory; ValueError for what is missing or of another type."""
        with _said(path):
            given, folders = meta["given"], dict(meta["folders"])
            topology, shared = given["topology"], {"ids", "graph"} if given["topology"] == "replicated" else {"ids"}
            if topology not in TOPOLOGIES or not shared <= folders.keys() <= {"ids", "graph", "attrs"}:
                raise ValueError(f"topology {topology!r} and folders {sorted(folders)}")
            attrs = [_rows_meta(entry, book) for entry in given["rows"]]
            composites = read_composites(given.get("composites", []), [(of.group_name, of.attr_name) for of in attrs])
            degrees = [check_int("largest_degree", degree) for degree in meta["largest_degree"]]
            return cls(
                topology, folders, attrs, composites, list(given["graph_attrs"]), _counts(given["splits"], book.bounds),
                _counts(given["links"], book.edge_bounds), dict(given["about"]), dict(meta["assigned"]),
                report_of(path, meta), dict(zip(book.edge_bounds, degrees, strict=True)),
            )  # fmt: skip


def _counts(entries: Iterable[list[Any]], types: Container[Any]) -> dict[tuple[Any, str], int]:
    """How many seeds or links each split has, by type and name, in the order of the book."""
    found = {(files.read_name(of), name): check_int("count", count) for of, name, count in entries}
    if unknown := [key for key in found if key[0] not in types or not isinstance(key[1], str)]:
        raise ValueError(f"splits {unknown}")
    return found


def array_of(folder: Path, arrays: Mapping[str, Tensor], name: str, kinds: Any, *shape: int) -> Tensor:
    """An array of a folder, of a shape that follows from the book.

    Args:
        folder: where it lies.
        arrays: all arrays of the folder, by name.
        name: of the array.
        kinds: its dtype, or those that it may have.
        shape: -1 for any size.

    Raises:
        ValueError: names the file of an array that is missing, or of another dtype or shape.
    """
    kinds, array = kinds if isinstance(kinds, tuple) else (kinds,), arrays.get(name)
    if array is None:
        raise ValueError(f"{folder / files.MANIFEST}: expected an array {name}, found {sorted(arrays)}")
    alike = array.dim() == len(shape) and all(n in (-1, size) for n, size in zip(shape, array.shape, strict=True))
    if array.dtype not in kinds or not alike:
        dtypes, sizes = " or ".join(map(str, kinds)), ", ".join("any" if n < 0 else str(n) for n in shape)
        raise ValueError(
            f"{folder / name}.npy: expected {dtypes} of shape ({sizes}), found {array.dtype} of {tuple(array.shape)}"
        )
    return array


def _bounds(folder: Path, arrays: Mapping[str, Tensor], name: str, parts: int, count: int) -> Tensor:
    """The bounds of the parts of ``count`` nodes or edges; ValueError unless they rise from 0 to ``count``."""
    bounds = array_of(folder, arrays, name, torch.int64, parts + 1)
    ends = int(bounds[0]), int(bounds[-1])
    if ends != (0, count) or bool((bounds[1:] < bounds[:-1]).any()):
        raise ValueError(f"{folder / name}.npy: expected bounds that rise from 0 to {count}, found others")
    return bounds


def report_of(path: Path, meta: dict[str, Any]) -> PartitionReport:
    """The report that is in the metadata of the book of a directory; ValueError unless it can be printed."""
    with _said(path):
        found = PartitionReport(**{field.name: meta["report"][field.name] for field in fields(PartitionReport)})
        str(found)
    return found


def fingerprint_of_parts(path: Path) -> int:
    """63 bits of what the book says, the checksums of its arrays and of the ids included; not how it was made."""
    manifest = json.loads((path / "book" / files.MANIFEST).read_text())
    said = {"arrays": manifest["arrays"], "given": manifest["meta"]["given"], "folders": manifest["meta"]["folders"]}
    return digest_of(said)


def digest_of(said: Any) -> int:
    """63 bits of a value of JSON."""
    return digest(json.dumps(said, sort_keys=True).encode()) >> 1


def missing_parts(path: Path, parts: int) -> list[int]:
    """The parts that are still to be written."""
    return [part for part in range(parts) if not (part_folder(path, part) / files.MANIFEST).exists()]


def check_part_of(folder: Path, meta: dict[str, Any], part: int, fingerprint: int) -> None:
    """Raises ValueError unless a folder holds this part of this book."""
    found = (meta.get("part"), meta.get("fingerprint"))
    if found != (part, fingerprint):
        raise ValueError(
            f"{folder}: expected part {part} of the book {fingerprint}, found part {found[0]} of {found[1]}"
        )
