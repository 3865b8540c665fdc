"""What is drawn."""

from .neighbor import NeighborOutput, NeighborSampler

__all__ = ["NeighborOutput", "NeighborSampler"]
