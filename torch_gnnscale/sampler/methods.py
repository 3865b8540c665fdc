"""Samplers by the name of their method, the loaders' argument ``method``."""

from __future__ import annotations

import inspect
from typing import Any

from ..ops.layer_drawing import METHODS as LAYERWISE
from .layerwise import LayerSampler
from .neighbor import NeighborSampler

NEIGHBOR = "neighbor"
"""The method of :class:`NeighborSampler`."""
METHODS = (NEIGHBOR, *LAYERWISE)
"""The values of ``method``."""


def make_sampler(method: str, data: Any, num_neighbors: Any, options: dict[str, Any]) -> NeighborSampler | LayerSampler:
    """A sampler of a method, with the sampler's defaults for all other options.

    Args:
        method: ``neighbor``, or a method of :class:`LayerSampler`.
        data: the graph.
        num_neighbors: for each hop, the fanout, or the number of nodes.
        options: the loader's sampling arguments; a LayerSampler takes ``is_sorted``, ``layers``, ``strict_negatives``,
            ``device``, ``graph_on_gpu`` and ``graph_on_peers`` of them, and the others must have their defaults.

    Raises:
        ValueError: an unknown method, or an option that the method does not have.
    """
    if method == NEIGHBOR:
        return NeighborSampler(data, num_neighbors, **options)
    if method not in METHODS:
        raise ValueError(f"method: expected one of {METHODS}, found {method!r}")
    names = ("is_sorted", "layers", "strict_negatives", "device", "graph_on_gpu", "graph_on_peers")
    known = {name: options.pop(name) for name in names if name in options}
    usual = inspect.signature(NeighborSampler).parameters
    for name, value in options.items():
        value, default = getattr(value, "value", value), usual[name].default
        if value != default:
            instead = "; use neighbor_sampler=LayerSampler(..., scheme='replace')" if name == "replace" else ""
            raise ValueError(f"{name}={value!r}: expected {default!r} with method={method!r}{instead}")
    return LayerSampler(data, num_neighbors, method, **known)
