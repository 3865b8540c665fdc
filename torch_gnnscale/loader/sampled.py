"""A batch after sampling: nodes and edges by type, which fetching and collating read and add to.

The only node type and the only edge type of a homogeneous graph are None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from ..sampler import HeteroNeighborOutput, NeighborOutput
from ..sampler.base import Output
from ..sampler.graph import end_types
from ..sampler.output import NO_IDS
from .layout import EdgeLayouts, sort_by_destination


def by_type(out: Output, value: Any) -> dict:
    """The value of a field of the output as a dictionary by type; empty if the value is None."""
    if isinstance(out, HeteroSamplerOutput):
        return value or {}
    return {} if value is None else {None: value}


class SampledEdges(NamedTuple):
    """The sampled edges of one type."""

    edge_index: Tensor
    """Local COO: int64, shape [2, e]."""
    colptr: Tensor | None
    """Edges colptr[i]..colptr[i+1]-1 lead to node i; later nodes have no edges. None if edges are not sorted by
    destination."""
    edge_id: Tensor | None
    """The user's ids of the edges, [e]."""
    weight: Tensor | None = None
    """The sampler's weights of the edges, [e]."""

    @classmethod
    def none(cls) -> SampledEdges:
        """No edges."""
        return cls(NO_IDS.expand(2, 0), torch.zeros(1, dtype=torch.int64), NO_IDS)


@dataclass
class MiniBatch:
    """A batch from its sample to its Data: fetching writes ``rows`` and ``versions``, collating ``data``."""

    out: Output
    nodes: dict[Any, Tensor]
    """By node type, ids of the stores."""
    edges: dict[Any, SampledEdges]
    """By edge type."""
    transformed: bool
    """Whether the user's transform was called on the output."""
    rows: Any = None
    """What :meth:`RowSource.fetch` returned; None before, after collating, and if attributes were changed so that they
    could not be read."""
    versions: Any = None
    """See :meth:`RowSource.versions`: before the rows were read."""
    data: Any = None
    """The Data or HeteroData with all fields; None if its rows were not read."""

    @property
    def hetero(self) -> bool:
        """Whether nodes and edges have types."""
        return isinstance(self.out, HeteroSamplerOutput)

    def size(self, edge_type: Any) -> tuple[int, int]:
        """(number of sampled nodes of the source type, of the destination type)."""
        src, dst = end_types(edge_type)
        return self.nodes.get(src, NO_IDS).numel(), self.nodes.get(dst, NO_IDS).numel()


class DrawnEdges(NamedTuple):
    """The edges of one type in a sampler's output, before the user's transform."""

    row: Tensor
    col: Tensor
    edge: Tensor | None
    weight: Tensor | None


def drawn_by_type(out: Output) -> dict[Any, DrawnEdges]:
    """The edges of an output by edge type."""
    ids, weights = by_type(out, out.edge), _weights_by_type(out)
    return {
        edge_type: DrawnEdges(*ends, ids.get(edge_type), weights.get(edge_type))
        for edge_type, ends in _ends_by_type(out).items()
    }


def _ends_by_type(out: Output) -> dict[Any, tuple[Tensor, Tensor]]:
    """(row, col) by edge type."""
    col = by_type(out, out.col)
    return {edge_type: (row, col[edge_type]) for edge_type, row in by_type(out, out.row).items()}


def _weights_by_type(out: Output) -> dict:
    return by_type(out, out.edge_weight) if isinstance(out, (NeighborOutput, HeteroNeighborOutput)) else {}


def mini_batch(out: Output, drawn: dict | None, permutation: Any, layouts: EdgeLayouts) -> MiniBatch:
    """The output by type; edges have the user's ids, and are sorted by destination where their layout needs it.

    Args:
        out: the output, possibly changed by the user's transform.
        drawn: what :func:`drawn_by_type` returned before that transform; None without one.
        permutation: permutation[i]: the user's id of the output's edge id i; None if they are the same.
        layouts: layouts of edges, by edge type.

    Raises:
        TypeError: not a sampler's output.
        ValueError: the transform replaced edges and left their weights.
    """
    as_drawn = type(out) is NeighborOutput and drawn is None and permutation is None
    if as_drawn and out.colptr is not None and out.edge_index is not None:  # as below, in fewer steps
        edges = SampledEdges(out.edge_index, out.colptr, out.edge, out.edge_weight)
        return MiniBatch(out, {None: out.node}, {None: edges}, False)
    if not isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
        raise TypeError(f"sampler output: expected PyG's SamplerOutput, found {type(out).__name__}")
    weights = _weights_by_type(out)
    ids, permutations, nodes = by_type(out, out.edge), by_type(out, permutation), dict(by_type(out, out.node))
    now = None if drawn is None else drawn_by_type(out)
    if drawn is not None and now is not None:
        _check_weights(drawn, now)
    made = _as_drawn(out, drawn, now)
    ends: dict = now if now is not None else {} if made else _ends_by_type(out)
    edges_by_type = {}
    for edge_type in ends or made:
        edge_id, order = ids.get(edge_type), permutations.get(edge_type)
        if edge_id is not None and order is not None:
            edge_id = order[edge_id.to(torch.int64)]
        weight = weights.get(edge_type)
        if edge_type in made:
            edges_by_type[edge_type] = SampledEdges(*made[edge_type], edge_id, weight)
            continue
        row, col, *_ = ends[edge_type]
        found = SampledEdges(torch.stack([row, col]), None, edge_id, weight)
        if layouts[edge_type] in ("EdgeIndex", "sparse_csr"):
            order, colptr = sort_by_destination(col, len(nodes.get(end_types(edge_type)[1], NO_IDS)))
            found = SampledEdges(
                found.edge_index[:, order],
                colptr,
                None if edge_id is None else edge_id[order],
                None if weight is None else weight[order],
            )
        edges_by_type[edge_type] = found
    return MiniBatch(out, nodes, edges_by_type, drawn is not None)


def _check_weights(drawn: dict[Any, DrawnEdges], now: dict[Any, DrawnEdges]) -> None:
    """Raises ValueError if edges of a type were replaced and their weights are the same tensor. Where as many edges
    keep their ids, only ends have changed: the weights still belong to them."""
    for edge_type, after in now.items():
        before = drawn.get(edge_type)
        if before is None or after.weight is None or after.weight is not before.weight or _same_ends(before, after):
            continue
        if after.edge is not before.edge or after.row.numel() != before.row.numel():
            of_type = "" if edge_type is None else f" of {edge_type}"
            raise ValueError(
                f"transform_sampler_output: expected edge_weight{of_type} to be changed with row, col and edge, found "
                f"the weights of the edges before"
            )


def _same_ends(before: DrawnEdges, after: DrawnEdges) -> bool:
    return before.row is after.row and before.col is after.col


def _as_drawn(out: Output, drawn: dict | None, now: dict | None) -> dict[Any, tuple[Tensor, Tensor]]:
    """(edge_index, colptr) by edge type, for the types whose edges are those that the sampler drew, which are sorted by
    destination. ``drawn``: as above; ``now``: the same after the transform. If the transform replaced ``row`` or
    ``col`` of a type, its edges are others."""
    if not isinstance(out, (NeighborOutput, HeteroNeighborOutput)) or out.colptr is None:
        return {}

    def kept(edge_type: Any) -> bool:
        if drawn is None or now is None:
            return True
        before, after = drawn.get(edge_type), now.get(edge_type)
        return before is not None and after is not None and _same_ends(before, after)

    pointers = {edge_type: colptr for edge_type, colptr in by_type(out, out.colptr).items() if kept(edge_type)}
    if out.edge_index is None:
        if out.row is None or out.col is None:
            raise ValueError("sampler output: expected edge_index, or row and col, beside colptr, found none")
        indices = {edge_type: torch.stack(ends) for edge_type, ends in _ends_by_type(out).items()}
    else:
        indices = by_type(out, out.edge_index)
    return {edge_type: (indices[edge_type], colptr) for edge_type, colptr in pointers.items()}
