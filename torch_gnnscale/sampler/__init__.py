"""Samplers: the contract of keyed samplers, neighbor sampling and layer-wise sampling."""

from .base import KeyedSampler
from .executor import EdgesInto, Neighbors
from .layerwise import LayerSampler
from .methods import register_method
from .neighbor import BidirectionalNeighborSampler, NeighborSampler
from .outputs import HeteroNeighborOutput, Layer, NeighborOutput, WeightedLayer

__all__ = [
    "BidirectionalNeighborSampler", "EdgesInto", "HeteroNeighborOutput", "KeyedSampler", "Layer", "LayerSampler",
    "NeighborOutput", "NeighborSampler", "Neighbors", "WeightedLayer", "register_method",
]  # fmt: skip
