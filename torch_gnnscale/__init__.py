"""Mini-batch GNN training that scales, for PyTorch Geometric."""

from . import _library as _library  # first, because its errors name a missing package
from . import ops
from ._library import __version__ as __version__
from .feature import FeatureStore, TieredFeatureStore
from .loader import AnchorLoader, LinkNeighborLoader, NeighborLoader
from .patch import patch_pyg, unpatch_pyg
from .sampler import BidirectionalNeighborSampler, LayerSampler, NeighborSampler
from .topology import CSC, GraphStore

__all__ = [
    "AnchorLoader", "BidirectionalNeighborSampler", "CSC", "FeatureStore", "GraphStore", "LayerSampler",
    "LinkNeighborLoader", "NeighborLoader", "NeighborSampler", "TieredFeatureStore", "ops", "patch_pyg", "unpatch_pyg",
]  # fmt: skip
