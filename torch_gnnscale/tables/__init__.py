"""Graphs of tables: files of nodes and edges with ids of any kind, to stores, by DuckDB."""

from .build import build, is_saved, open
from .guess import read_manifest
from .id_map import Ids, about, ids
from .parts import write_parts
from .schema import Schema
from .spark import Spark

__all__ = ["Ids", "Schema", "Spark", "about", "build", "ids", "is_saved", "open", "read_manifest", "write_parts"]
