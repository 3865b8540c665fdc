"""Where the graph lives: CSC, the GraphStore over it, and generators."""

from .csc import CSC
from .generators import rmat
from .graph_store import GraphStore

__all__ = ["CSC", "GraphStore", "rmat"]
