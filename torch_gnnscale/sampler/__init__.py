"""What is drawn."""

from .neighbor import NeighborSampler
from .output import HeteroNeighborOutput, Layer, NeighborOutput

__all__ = ["HeteroNeighborOutput", "Layer", "NeighborOutput", "NeighborSampler"]
