"""Where the graph lives: CSC, the GraphStore over it, generators, and graphs built on disk."""

from .csc import CSC
from .edge_sources import EdgeFiles, rmat, rmat_chunks
from .graph_store import GraphStore
from .sort_on_disk import build_on_disk

__all__ = ["CSC", "EdgeFiles", "GraphStore", "build_on_disk", "rmat", "rmat_chunks"]
