"""The door for PyG's outputs: what samplers and transforms of users return is written into the carrier of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from typing_extensions import override

from ..sampler.base import KeyedSampler, Output
from ..sampler.minibatch import (
    HOMOGENEOUS,
    NO_EDGES,
    GraphTypes,
    HeteroNeighborOutput,
    MiniBatch,
    NeighborOutput,
    SampledEdges,
)


class Draws(Protocol):
    """What a loader asks for samples: one of our samplers, or :class:`OutputsOf`."""

    def draw(self, batch: MiniBatch, neg_sampling: Any = None) -> None:
        """Samples for ``batch.inputs`` by ``batch.key``, and writes into the batch."""

    def draw_many(self, batches: Sequence[MiniBatch], neg_sampling: Any = None) -> None:
        """:meth:`draw` for many batches, by one call."""


class OutputsOf(Draws):
    """Asks a sampler of the user's, and writes its outputs into batches, as ours do themselves."""

    def __init__(self, sampler: KeyedSampler) -> None:
        self.sampler = sampler

    @override
    def draw(self, batch: MiniBatch, neg_sampling: Any = None) -> None:
        self._write(batch, self.sampler.sample_inputs(batch.inputs, batch.key, neg_sampling))

    @override
    def draw_many(self, batches: Sequence[MiniBatch], neg_sampling: Any = None) -> None:
        inputs, keys = [batch.inputs for batch in batches], [batch.key for batch in batches]
        for batch, out in zip(batches, self.sampler.sample_many(inputs, keys, neg_sampling), strict=True):
            self._write(batch, out)

    def _write(self, batch: MiniBatch, out: Output) -> None:
        batch.inputs = None
        write_output(batch, out, self.sampler.edge_permutation)


def drawing_into_batches(sampler: KeyedSampler) -> Draws:
    """What a loader asks for samples: one of our samplers itself, unless the user changed how it samples."""
    return cast(Draws, sampler) if sampler._draws else OutputsOf(sampler)


class DrawnEdges(NamedTuple):
    """The edges of one type in a sampler's output, before the user's transform."""

    row: Tensor
    col: Tensor
    edge: Tensor | None
    weight: Tensor | None


def drawn_by_type(out: Output) -> dict[Any, DrawnEdges]:
    """The edges of an output by edge type."""
    ids, weights, col = (
        _by_type(out, out.edge),
        _by_type(out, getattr(out, "edge_weight", None)),
        _by_type(out, out.col),
    )
    return {
        edge_type: DrawnEdges(row, col[edge_type], ids.get(edge_type), weights.get(edge_type))
        for edge_type, row in _by_type(out, out.row).items()
    }


def _by_type(out: Output, value: Any) -> dict:
    """The value of a field of the output as a dictionary by type; empty if the value is None."""
    if isinstance(out, HeteroSamplerOutput):
        return value or {}
    return {} if value is None else {None: value}


def write_output(batch: MiniBatch, out: Output, permutation: Any = None, drawn: dict | None = None) -> None:
    """Writes an output into a batch. Edges that are sorted by destination stay so.

    Args:
        batch: gets nodes, edges, trees, sizes of hops, metadata and further fields.
        out: of a sampler, possibly changed by the user's transform.
        permutation: permutation[i]: the user's id of the output's edge id i; None if they are the same.
        drawn: what :func:`drawn_by_type` returned before that transform; None without one.

    Raises:
        TypeError: not a sampler's output.
        ValueError: the transform replaced edges and left their weights.
    """
    if not isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
        raise TypeError(f"sampler output: expected PyG's SamplerOutput, found {type(out).__name__}")
    nodes, ids, weights = (_by_type(out, value) for value in (out.node, out.edge, getattr(out, "edge_weight", None)))
    permutations, now = _by_type(out, permutation), None if drawn is None else drawn_by_type(out)
    if drawn is not None and now is not None:
        _check_weights(drawn, now)
    ends = _sorted_as_drawn(out, drawn, now)
    col = _by_type(out, out.col)
    for edge_type, row in _by_type(out, out.row).items():
        if edge_type not in ends:
            ends[edge_type] = torch.stack([row, col[edge_type]]), None
    batch.edges = []
    for edge_type, (index, colptr) in ends.items():
        edge_id, order = ids.get(edge_type), permutations.get(edge_type)
        if edge_id is not None and order is not None:
            edge_id = order[edge_id.to(torch.int64)]
        batch.edges.append(SampledEdges(index, colptr, edge_id, weights.get(edge_type)))
    if isinstance(out, HeteroSamplerOutput):
        batch.types = GraphTypes(list(nodes), list(ends))
    else:
        batch.types, batch.edges = HOMOGENEOUS, batch.edges or [NO_EDGES]
    types = batch.types

    def entries(value: Any, of: list[Any]) -> list[Any] | None:
        return None if value is None else [_by_type(out, value).get(t) for t in of]

    batch.nodes, batch.trees = list(nodes.values()), entries(out.batch, types.nodes)
    batch.num_nodes, batch.num_edges = (
        entries(out.num_sampled_nodes, types.nodes),
        entries(out.num_sampled_edges, types.edges),
    )
    batch.original = None
    if out.orig_row is not None and out.orig_col is not None:
        rows, cols = _by_type(out, out.orig_row), _by_type(out, out.orig_col)
        batch.original = [torch.stack([rows[t], cols[t]]) if t in rows else None for t in types.edges]
    batch.metadata, batch.fields = out.metadata, getattr(out, "fields", {})
    batch.separate_sources, batch.whole = getattr(out, "separate_sources", False), getattr(out, "whole", None)
    batch.out, batch.transformed = out, drawn is not None


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


def _sorted_as_drawn(out: Any, drawn: dict | None, now: dict | None) -> dict[Any, tuple[Tensor, Tensor | None]]:
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

    pointers = {edge_type: colptr for edge_type, colptr in _by_type(out, out.colptr).items() if kept(edge_type)}
    indices = _by_type(out, out.edge_index)
    if out.edge_index is None:
        if out.row is None or out.col is None:
            raise ValueError("sampler output: expected edge_index, or row and col, beside colptr, found none")
        cols = _by_type(out, out.col)
        indices = {edge_type: torch.stack([row, cols[edge_type]]) for edge_type, row in _by_type(out, out.row).items()}
    return {edge_type: (indices[edge_type], colptr) for edge_type, colptr in pointers.items()}
