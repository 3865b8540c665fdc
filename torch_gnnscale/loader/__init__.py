"""Loaders: drop-in subclasses of PyG's."""

from .accesses import Accesses, accesses, accesses_by_hop
from .anchor_loader import AnchorLoader
from .neighbor_loaders import LinkNeighborLoader, NeighborLoader

__all__ = ["Accesses", "AnchorLoader", "LinkNeighborLoader", "NeighborLoader", "accesses", "accesses_by_hop"]
