"""Loaders: drop-in subclasses of PyG's."""

from .accesses import Accesses, accesses, accesses_by_hop
from .anchor_loader import AnchorLoader
from .link_neighbor_loader import LinkNeighborLoader
from .neighbor_loader import NeighborLoader

__all__ = ["Accesses", "AnchorLoader", "LinkNeighborLoader", "NeighborLoader", "accesses", "accesses_by_hop"]
