"""Fanouts: how many neighbors are drawn per node, relation and hop."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
from torch_geometric.sampler.base import NumNeighbors
from torch_geometric.typing import EdgeType, EdgeTypeStr

from .. import ops

NumNeighborsLike: TypeAlias = NumNeighbors | Sequence[int] | dict[EdgeType, list[int]]


def fanouts_of(num_neighbors: NumNeighborsLike, edge_types: Sequence[EdgeType | None]) -> list[list[int]]:
    """Returns ``fanouts[relation][hop]``.

    Args:
        num_neighbors: one list for all relations, or a list per edge type; a NumNeighbors may have a default for the
            other edge types. -1 takes all neighbors.
        edge_types: the relations; [None] in a homogeneous graph.

    Raises:
        TypeError, ValueError: ``num_neighbors`` has another form, or the lists differ in length.
    """
    if isinstance(num_neighbors, (np.ndarray, Sequence)):
        return [_checked(num_neighbors)] * len(edge_types)
    if isinstance(num_neighbors, dict):
        num_neighbors = NumNeighbors(num_neighbors)
    if not isinstance(num_neighbors, NumNeighbors):
        raise TypeError(f"num_neighbors: expected a list of ints, found {type(num_neighbors).__name__}")
    given, default = num_neighbors.values, num_neighbors.default
    if not isinstance(given, dict):
        return [_checked(given)] * len(edge_types)
    if edge_types == [None]:
        raise ValueError("num_neighbors: expected a list of ints for a graph without edge types, found a dict")
    names = [EdgeTypeStr(edge_type) for edge_type in edge_types]
    if unknown := [name for name in given if name not in names]:
        raise ValueError(f"num_neighbors: expected edge types of {names}, found {unknown}")
    if default is None and (missing := [name for name in names if name not in given]):
        raise ValueError(f"num_neighbors: expected fanouts of edge type {missing[0]!r} or a default, found neither")
    fanouts = [_checked(given.get(name, default)) for name in names]
    if len({len(entry) for entry in fanouts}) > 1:
        raise ValueError(
            f"num_neighbors: number of hops must be the same across all edge types, found {[len(f) for f in fanouts]}"
        )
    return fanouts


def _checked(values: Any) -> list[int]:
    if isinstance(values, np.ndarray) and values.ndim == 1:
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"num_neighbors: expected a list of ints, found {type(values).__name__}")
    if not all(isinstance(value, Integral) and not isinstance(value, bool) for value in values):
        raise TypeError(f"num_neighbors: expected a list of ints, found {list(values)}")
    fanouts = [int(value) for value in values]
    if min(fanouts, default=0) < -1:
        raise ValueError(f"num_neighbors: expected -1 (all) or 0..{ops.MAX_FANOUT} each, found {fanouts}")
    return fanouts


def drawable(fanouts: list[list[int]], largest_degree: int, replace: bool) -> list[list[int]]:
    """The fanouts, with -1 (all neighbors) in place of those above ``ops.MAX_FANOUT``, which the operator cannot draw.

    Raises:
        ValueError: -1 is not the same, because some node has more neighbors than the fanout, or draws are with
            replacement.
    """
    too_large = [entry for entry in fanouts if max(entry, default=0) > ops.MAX_FANOUT]
    if not too_large:
        return fanouts
    if replace or largest_degree > min(fanout for entry in too_large for fanout in entry if fanout > ops.MAX_FANOUT):
        raise ValueError(
            f"num_neighbors: expected -1 (all) or 0..{ops.MAX_FANOUT} each, found {too_large[0]} with "
            f"{'replacement' if replace else f'nodes of {largest_degree} neighbors'}"
        )
    return [[-1 if fanout > ops.MAX_FANOUT else fanout for fanout in entry] for entry in fanouts]
