"""Graphs to train on: generated, or read from files and from PyG's and OGB's data sets."""

from .planted import planted
from .readers import NodeTask, load

__all__ = ["NodeTask", "load", "planted"]
