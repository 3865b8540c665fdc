"""Graphs to train on: generated, or read from files and from PyG's and OGB's data sets."""

from .planted import planted
from .planted_types import planted_events, planted_links, planted_types
from .readers import NodeTask, load
from .typed import EventTask, LinkTask, load_events, load_links, load_types

__all__ = [
    "EventTask",
    "LinkTask",
    "NodeTask",
    "load",
    "load_events",
    "load_links",
    "load_types",
    "planted",
    "planted_events",
    "planted_links",
    "planted_types",
]
