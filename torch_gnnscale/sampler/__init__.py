"""What is drawn."""

from .bidirectional import BidirectionalNeighborSampler
from .neighbor import NeighborSampler
from .output import HeteroNeighborOutput, Layer, NeighborOutput

__all__ = ["BidirectionalNeighborSampler", "HeteroNeighborOutput", "Layer", "NeighborOutput", "NeighborSampler"]
