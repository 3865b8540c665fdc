"""Samplers: the contract of keyed samplers, and neighbor sampling."""

from .bidirectional import BidirectionalNeighborSampler
from .keyed import KeyedSampler
from .neighbor import NeighborSampler
from .output import HeteroNeighborOutput, Layer, NeighborOutput, WeightedLayer

__all__ = [
    "BidirectionalNeighborSampler", "HeteroNeighborOutput", "KeyedSampler", "Layer", "NeighborOutput",
    "NeighborSampler", "WeightedLayer",
]  # fmt: skip
