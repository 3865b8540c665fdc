"""A sampler's output by type: what all later steps of a batch read.

The type of a homogeneous graph's nodes and edges is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from ..sampler import HeteroNeighborOutput, NeighborOutput
from ..sampler.edge_types import end_types
from ..sampler.keyed import Output
from .layout import EdgeLayout, sort_by_destination

NO_IDS = torch.empty(0, dtype=torch.int64)


def by_type(out: Output, value: Any) -> dict:
    """A field of the output by type."""
    if isinstance(out, HeteroSamplerOutput):
        return value or {}
    return {} if value is None else {None: value}


class SampledEdges(NamedTuple):
    """The sampled edges of one type."""

    edge_index: Tensor
    """Local COO: int64, shape [2, e]."""
    colptr: Tensor | None
    """Where each column's edges begin, if they are sorted by destination; the nodes after the last one have none."""
    edge_id: Tensor | None
    """The user's ids."""
    weight: Tensor | None = None
    """The sampler's weights."""

    @classmethod
    def none(cls) -> SampledEdges:
        """No edges."""
        return cls(NO_IDS.expand(2, 0), torch.zeros(1, dtype=torch.int64), NO_IDS)


@dataclass
class SampledGraphPart:
    """What was sampled."""

    out: Output
    nodes: dict[Any, Tensor]
    """By type, ids of the stores."""
    edges: dict[Any, SampledEdges]
    """By type."""

    @property
    def hetero(self) -> bool:
        """Whether nodes and edges have types."""
        return isinstance(self.out, HeteroSamplerOutput)

    def size(self, edge_type: Any) -> tuple[int, int]:
        """How many sources and destinations the edges of a type have."""
        src, dst = end_types(edge_type)
        return len(self.nodes.get(src, NO_IDS)), len(self.nodes.get(dst, NO_IDS))


def drawn_ends(out: Output) -> dict[Any, tuple[Tensor, Tensor]]:
    """The sampler's own tensors of sources and destinations by type: what tells whether somebody changed them."""
    col = by_type(out, out.col)
    return {edge_type: (row, col[edge_type]) for edge_type, row in by_type(out, out.row).items()}


def sampled_part(out: Output, drawn: dict, permutation: Any, layouts: dict[Any, EdgeLayout]) -> SampledGraphPart:
    """The output by type, edges with the user's ids and sorted by destination where their layout needs it.

    Args:
        out: the output, which the user may have changed after ``drawn`` was taken from it.
        drawn: what :func:`drawn_ends` gave.
        permutation: what leads from the output's edge ids to the user's, if anything does.
        layouts: by edge type.

    Raises:
        TypeError: not a sampler's output.
    """
    if not isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
        raise TypeError(f"sampler output: expected PyG's SamplerOutput, found {type(out).__name__}")
    keeps = isinstance(out, (NeighborOutput, HeteroNeighborOutput))
    colptrs, indices, weights = (
        (by_type(out, out.colptr), by_type(out, out.edge_index), by_type(out, out.edge_weight))
        if keeps
        else ({}, {}, {})
    )
    ids, permutations, nodes = by_type(out, out.edge), by_type(out, permutation), dict(by_type(out, out.node))
    edges = {}
    for edge_type, (row, col) in drawn_ends(out).items():
        edge_id, order = ids.get(edge_type), permutations.get(edge_type)
        if edge_id is not None and order is not None:
            edge_id = order[edge_id.to(torch.int64)]
        weight = weights.get(edge_type)
        ends = drawn.get(edge_type)
        if edge_type in colptrs and ends is not None and row is ends[0] and col is ends[1]:
            edges[edge_type] = SampledEdges(indices[edge_type], colptrs[edge_type], edge_id, weight)
            continue
        found = SampledEdges(torch.stack([row, col]), None, edge_id, weight)
        if layouts[edge_type] in ("EdgeIndex", "sparse_csr"):
            order, colptr = sort_by_destination(col, len(nodes.get(end_types(edge_type)[1], NO_IDS)))
            found = SampledEdges(
                found.edge_index[:, order],
                colptr,
                None if edge_id is None else edge_id[order],
                None if weight is None else weight[order],
            )
        edges[edge_type] = found
    return SampledGraphPart(out, nodes, edges)
