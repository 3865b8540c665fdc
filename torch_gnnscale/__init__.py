"""Mini-batch GNN training that scales, for PyTorch Geometric."""

from . import ops
from .feature import FeatureStore
from .loader import LinkNeighborLoader, NeighborLoader
from .sampler import NeighborSampler
from .topology import CSC, GraphStore

__version__ = "0.1.0"
__all__ = ["CSC", "FeatureStore", "GraphStore", "LinkNeighborLoader", "NeighborLoader", "NeighborSampler", "ops"]
