"""What samplers return: PyG's outputs that keep their CSC, and the papers' list of layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import EdgeType, NodeType


def _as_pyg(output: SamplerOutput | HeteroSamplerOutput, kind: type) -> Any:
    """The same output as one of PyG's classes, without what is ours."""
    return kind(**{entry.name: getattr(output, entry.name) for entry in dataclasses.fields(kind) if entry.init})


@dataclass(repr=False)
class NeighborOutput(SamplerOutput):
    """A SamplerOutput that keeps its CSC: ``row`` and ``col`` are the rows of ``edge_index``, ``edge`` holds the user's
    edge ids."""

    colptr: Tensor | None = None
    """Where each column's edges begin: int64, shape [columns + 1]; the nodes after them have none. With ``layers``,
    every hop has columns of its own. None where edges are not sorted by destination."""
    edge_index: Tensor | None = None
    """Local COO, sorted by destination: int64, shape [2, e]."""
    edge_weight: Tensor | None = None
    """A weight of each sampled edge, in the order of ``edge``: floating point, shape [e]. Loaders put it into the batch
    under this name."""
    fields: dict[str, Any] = field(default_factory=dict)
    """What else a batch gets, by name."""

    def to_pyg(self) -> SamplerOutput:
        """The same as PyG's own class."""
        return _as_pyg(self, SamplerOutput)

    def __repr__(self) -> str:
        return repr(self.to_pyg())


@dataclass(repr=False)
class HeteroNeighborOutput(HeteroSamplerOutput):
    """A HeteroSamplerOutput that keeps its CSC, one a relation; see :class:`NeighborOutput`."""

    colptr: dict[EdgeType, Tensor] | None = None
    edge_index: dict[EdgeType, Tensor] | None = None
    edge_weight: dict[EdgeType, Tensor] | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def to_pyg(self) -> HeteroSamplerOutput:
        """The same as PyG's own class."""
        return _as_pyg(self, HeteroSamplerOutput)

    def __repr__(self) -> str:
        return repr(self.to_pyg())


class Layer(NamedTuple):
    """One bipartite layer of a batch that was drawn with ``layers=True``, the tuple of GraphSAGE's message-flow graphs.

    Its destinations are the first of its sources, and the layers of a batch follow each other as a model's do: the
    destinations of one are the sources of the next, and those of the last are the seeds.
    """

    edge_index: Any
    """Local COO [2, e], or what ``edge_layout`` says; in a heterogeneous batch, a dictionary by edge type."""
    e_id: Any
    """The user's ids of these edges; a dictionary by edge type likewise."""
    size: Any
    """Numbers of (sources, destinations); in a heterogeneous batch, a dictionary of them by node type."""


class WeightedLayer(NamedTuple):
    """A :class:`Layer` whose edges have weights."""

    edge_index: Any
    """As of :class:`Layer`."""
    e_id: Any
    """As of :class:`Layer`."""
    size: Any
    """As of :class:`Layer`."""
    edge_weight: Any
    """The weights of these edges, shape [e]; a dictionary by edge type likewise."""


Seeds: TypeAlias = Tensor | dict[NodeType, Tensor]
"""Seeds, or what belongs to them: by node type in a heterogeneous graph."""


def renumbered_trees(trees: list[Tensor], seeds: list[tuple[int, int]]) -> list[Tensor]:
    """Trees that are numbered by node type, numbered over (type, number of seeds) in the order given."""
    if [number for number, _ in seeds] == sorted(number for number, _ in seeds):
        return trees
    begin, first = 0, {}
    for number, count in seeds:
        first[number] = torch.arange(begin, begin + count)
        begin += count
    renumber = torch.cat([first[number] for number in sorted(first)])
    return [renumber[tree] for tree in trees]
