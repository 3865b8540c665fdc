"""Loaders: drop-in subclasses of PyG's."""

from .link_neighbor_loader import LinkNeighborLoader
from .neighbor_loader import NeighborLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader"]
