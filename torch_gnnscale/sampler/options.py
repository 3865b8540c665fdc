"""The options of sampling: arguments of samplers and loaders, entries of a loader's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler.base import SubgraphType

from ..memory import Budget
from .graph import subgraph_kind
from .links import ExcludeSeedEdges, StrictNegatives


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
