"""Graphs of tables: files of nodes and edges with ids of any kind, to stores, by an engine."""

from .build import build, is_saved, open
from .clusters import Ray, Spark
from .guess import read_manifest
from .id_map import Ids, about, ids
from .parts import write_parts
from .schema import Schema

__all__ = [
    "Ids", "Ray", "Schema", "Spark", "about", "build", "ids", "is_saved", "open", "read_manifest", "write_parts",
]  # fmt: skip
