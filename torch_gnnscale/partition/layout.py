"""How parts lie in a directory: the names of its folders and arrays, and what the manifests say."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from .. import files
from .book import PartitionBook, RowsMeta
from .report import PartitionReport

BOOK, IDS, PART, ATTRS, COMPLETE = (
    "partition-book", "partition-ids", "partition-part", "partition-attrs", "partition-complete",
)  # fmt: skip
"""Kinds of directories. The graph is of the kind of a saved GraphStore."""


def part_folder(path: Path, part: int) -> Path:
    """The folder of a part."""
    return path / f"part-{part:05d}"


def rows_entry(meta: RowsMeta) -> dict[str, Any]:
    """An attribute in the book."""
    dtype = str(meta.dtype).removeprefix("torch.")
    return {"group": meta.group_name, "name": meta.attr_name, "dtype": dtype, "shape": list(meta.shape)}


def rows_meta(entry: dict[str, Any], num_rows: int) -> RowsMeta:
    """An attribute of the book."""
    group = files.read_name(entry["group"])
    return RowsMeta(group, entry["name"], getattr(torch, entry["dtype"]), tuple(entry["shape"]), num_rows)


def plain(value: Any) -> Any:
    """What JSON makes of a value."""
    return json.loads(json.dumps(value))


def load_book(path: Path, verify: bool = True) -> tuple[PartitionBook, dict[str, Any]]:
    """The book of a directory, and its metadata.

    Raises:
        FileNotFoundError, ValueError: there is none, or it is damaged; names the file.
    """
    arrays, meta = files.load(path / "book", BOOK, verify)
    try:
        given = meta["given"]
        nodes = [files.read_name(node_type) for node_type, _ in given["num_nodes"]]
        edges = [files.read_name(entry["edge_type"]) for entry in given["relations"]]
        bounds = {node_type: arrays[f"bounds_{i}"] for i, node_type in enumerate(nodes)}
        return PartitionBook(bounds, {edge_type: arrays[f"edge_bounds_{i}"] for i, edge_type in enumerate(edges)}), meta
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path / 'book' / files.MANIFEST}: expected a partition book, found {error}") from error


def report_of(meta: dict[str, Any]) -> PartitionReport:
    """The report that is in the metadata of a book."""
    return PartitionReport(**{field.name: meta["report"][field.name] for field in fields(PartitionReport)})


def fingerprint_of_parts(path: Path) -> int:
    """63 bits of what the book says, the checksums of its arrays and of the ids included; not how it was made."""
    manifest = json.loads((path / "book" / files.MANIFEST).read_text())
    said = {"arrays": manifest["arrays"], "given": manifest["meta"]["given"], "folders": manifest["meta"]["folders"]}
    return digest(said)


def digest(said: Any) -> int:
    """63 bits of a value of JSON."""
    found = hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=8).digest()
    return int.from_bytes(found, "little") >> 1


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
