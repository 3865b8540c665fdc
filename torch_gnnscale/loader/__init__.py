"""Loaders: drop-in subclasses of PyG's."""

from .neighbor_loader import NeighborLoader

__all__ = ["NeighborLoader"]
