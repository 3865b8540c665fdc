"""The options of sampling, which are arguments of samplers and loaders and entries of a loader's state; fanouts: how
many neighbors are drawn per node, relation and hop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.typing import EdgeType, EdgeTypeStr

from .. import ops
from ..memory import Budget
from .graph import subgraph_kind
from .links import ExcludeSeedEdges, StrictNegatives

NumNeighborsLike: TypeAlias = NumNeighbors | Sequence[int] | dict[EdgeType, list[int]]


def fanouts_of(num_neighbors: NumNeighborsLike, edge_types: Sequence[EdgeType | None]) -> list[list[int]]:
    """Returns ``fanouts[relation][hop]``.

    Args:
        num_neighbors: one list for all relations, or a list per edge type; a NumNeighbors may have a default for the
            other edge types. -1 takes all neighbors.
        edge_types: the relations; [None] in a homogeneous graph.

    Raises:
        TypeError, ValueError: ``num_neighbors`` has another form, or the lists differ in length; a NumNeighbors cannot
            tell two edge types apart whose names joined by ``__`` are equal.
    """
    if isinstance(num_neighbors, (np.ndarray, Sequence)):
        return [_checked(num_neighbors)] * len(edge_types)
    if isinstance(num_neighbors, NumNeighbors):
        given, default = num_neighbors.values, num_neighbors.default
    else:
        given, default = num_neighbors, None
    if not isinstance(given, dict):
        if not isinstance(num_neighbors, NumNeighbors):
            raise TypeError(f"num_neighbors: expected a list of ints, found {type(num_neighbors).__name__}")
        return [_checked(given)] * len(edge_types)
    if edge_types == [None]:
        raise ValueError("num_neighbors: expected a list of ints for a graph without edge types, found a dict")
    found = _by_edge_type(given, [edge_type for edge_type in edge_types if edge_type is not None])
    if default is None and (missing := [edge_type for edge_type in edge_types if edge_type not in found]):
        name = EdgeTypeStr(missing[0])
        raise ValueError(f"num_neighbors: expected fanouts of edge type {name!r} or a default, found neither")
    fanouts = [_checked(found.get(edge_type, default)) for edge_type in edge_types]
    if len({len(entry) for entry in fanouts}) > 1:
        raise ValueError(
            f"num_neighbors: number of hops must be the same across all edge types, found {[len(f) for f in fanouts]}"
        )
    return fanouts


def as_num_neighbors(num_neighbors: Any) -> Any:
    """Fanouts as PyG's NumNeighbors; the dictionary itself where a NumNeighbors would take two of its edge types for
    one, because their names joined by ``__`` are equal."""
    if isinstance(num_neighbors, NumNeighbors):
        return num_neighbors
    if not isinstance(num_neighbors, dict):
        return NumNeighbors([int(fanout) for fanout in num_neighbors])
    made = NumNeighbors(num_neighbors)
    return made if len(made.values) == len(num_neighbors) else num_neighbors


def _by_edge_type(given: dict[Any, Any], edge_types: list[EdgeType]) -> dict[EdgeType | None, Any]:
    """Values by edge type. A key is an edge type, PyG's short form of one, or its names joined by ``__``.

    Raises:
        ValueError: a key of no edge type, or of several whose joined names are equal; two keys of one.
    """
    named: dict[str, list[EdgeType]] = {}
    for edge_type in edge_types:
        named.setdefault(EdgeTypeStr(edge_type), []).append(edge_type)
    found: dict[EdgeType | None, Any] = {}
    unknown = []
    for key, value in given.items():
        if key in edge_types:
            matching = [key]
        else:
            matching = named.get(str(key) if isinstance(key, str) else EdgeTypeStr(key), [])
        if len(matching) > 1:
            raise ValueError(
                f"num_neighbors: expected a dictionary whose keys are edge types, because {str(key)!r} could be any of "
                f"{matching}"
            )
        if not matching:
            unknown.append(key)
        elif matching[0] in found:
            raise ValueError(f"num_neighbors: expected fanouts of {matching[0]} once, found them twice")
        else:
            found[matching[0]] = value
    if unknown:
        raise ValueError(f"num_neighbors: expected edge types of {edge_types}, found {unknown}")
    return found


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


@dataclass(frozen=True)
class DrawingOptions:
    """The options that decide what is drawn. They are attributes of a :class:`NeighborSampler`, which explains them."""

    subgraph_type: SubgraphType | str = "directional"
    replace: bool = False
    disjoint: bool = False
    temporal_strategy: str = "uniform"
    time_attr: str | None = None
    weight_attr: str | None = None
    layers: bool = False
    exclude_seed_edges: ExcludeSeedEdges = False
    strict_negatives: StrictNegatives = False

    @staticmethod
    def said_by(sampler: Any) -> dict[str, Any]:
        """The present values of a sampler's attributes, as plain ones: True for links that are no negatives."""
        values = {entry.name: getattr(sampler, entry.name) for entry in fields(DrawingOptions)}
        values["strict_negatives"] = values["strict_negatives"] is not False
        return {name: getattr(value, "value", value) for name, value in values.items()}


@dataclass(frozen=True)
class SamplingOptions(DrawingOptions):
    """The arguments of loaders that are their sampler's, with its defaults."""

    is_sorted: bool = False
    directed: bool = True
    device: torch.device | str | None = None
    graph_on_gpu: Budget | None = None
    graph_on_peers: Sequence[Budget] = ()

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> SamplingOptions:
        """Those of a loader's arguments that are options of sampling."""
        return cls(**{entry.name: arguments[entry.name] for entry in fields(cls) if entry.name in arguments})

    def changed(self) -> dict[str, Any]:
        """The options that are not their defaults."""
        values = {entry.name: (getattr(self, entry.name), entry.default) for entry in fields(self)}
        return {name: value for name, (value, default) in values.items() if not _equal(value, default)}

    @property
    def subgraph(self) -> SubgraphType:
        """Which edges a sample has."""
        return subgraph_kind(self.subgraph_type) if self.directed else SubgraphType.induced


def _equal(value: Any, default: Any) -> bool:
    value = tuple(value) if isinstance(value, list) else value
    return not isinstance(value, Tensor) and getattr(value, "value", value) == default
