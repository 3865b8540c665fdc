"""PyG's outputs, with their CSC: made of the carrier of a batch where a user's code is called, and written into it
where a user's sampler or transform returns one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import EdgeType
from typing_extensions import override

from .base import KeyedSampler, Output
from .graph import GraphTypes
from .minibatch import HOMOGENEOUS, NO_EDGES, MiniBatch, SampledEdges


def _as_pyg(output: SamplerOutput | HeteroSamplerOutput, kind: type) -> Any:
    """The output as PyG's class ``kind``, without the fields that we add."""
    return kind(**{entry.name: getattr(output, entry.name) for entry in dataclasses.fields(kind) if entry.init})


def _end(number: int) -> Any:
    """The property ``row`` (0) or ``col`` (1) of an output: ``edge_index[number]``, in a dictionary where edges have
    types, made on first use; or what it was set to, unless that is None."""
    name = ("_row", "_col")[number]

    def get(self: Any) -> Any:
        if (end := getattr(self, name)) is None and (index := self.edge_index) is not None:
            typed = isinstance(index, dict)
            end = {edge_type: ends[number] for edge_type, ends in index.items()} if typed else index[number]
            setattr(self, name, end)
        return end

    def put(
        self: Any, end: Any
    ) -> None:  # not through __dict__, which makes every later attribute twice as slow to set
        setattr(self, name, end)

    return property(get, put)


@dataclass
class NeighborOutput(SamplerOutput):
    """A SamplerOutput with its CSC. ``edge`` holds the user's edge ids; ``row`` and ``col``, where None is given for
    them, are the rows of ``edge_index``."""

    row, col = _end(0), _end(1)
    _row, _col = None, None

    colptr: Tensor | None = None
    """Edges colptr[i]..colptr[i+1]-1 lead to node i: int64, shape [columns + 1]. Later nodes have no edges. With
    ``layers``, the columns of hop 0 are followed by those of hop 1, and so on. None if edges are not sorted by
    destination."""
    edge_index: Tensor | None = None
    """Local COO, sorted by destination if there is ``colptr``: int64, shape [2, e]. Not needed beside ``row`` and
    ``col``."""
    edge_weight: Tensor | None = None
    """edge_weight[i]: weight of edge i; floating point, shape [e]. Its name in batches is the sampler's
    ``weight_name``."""
    separate_sources: bool = False
    """Whether, with ``layers``, a layer's sources are its hop's nodes alone; local ids begin with 0 in each hop."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields that batches get, by name."""
    whole: dict[str, int] | None = None
    """What :attr:`MiniBatch.whole` is."""

    def to_pyg(self) -> SamplerOutput:
        """The same as PyG's own class."""
        return _as_pyg(self, SamplerOutput)

    def __repr__(self) -> str:
        return repr(self.to_pyg())


@dataclass
class HeteroNeighborOutput(HeteroSamplerOutput):
    """A HeteroSamplerOutput with a CSC per relation; see :class:`NeighborOutput`."""

    row, col = _end(0), _end(1)

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
    """One bipartite layer of a batch that was drawn with ``layers=True``: a message-flow graph of GraphSAGE.

    Its sources begin with its destinations. Layers are in the order of the model's: the destinations of layers[i] are
    the sources of layers[i + 1], and the destinations of layers[-1] are the seeds.
    """

    edge_index: Any
    """Local COO [2, e], or another form by ``edge_layout``; in a heterogeneous batch, a dictionary by edge type."""
    e_id: Any
    """The user's ids of these edges, [e]; in a heterogeneous batch, a dictionary by edge type."""
    size: Any
    """(number of sources, number of destinations); in a heterogeneous batch, a dictionary by node type."""


class WeightedLayer(NamedTuple):
    """A :class:`Layer` whose edges have weights.

    With ``include_dst=False`` (:class:`torch_gnnscale.LayerSampler`), sources do not begin with the destinations: those
    of layers[0] are the last ``size[0]`` nodes of the batch.
    """

    edge_index: Any
    """As in :class:`Layer`."""
    e_id: Any
    """As in :class:`Layer`."""
    size: Any
    """As in :class:`Layer`."""
    edge_weight: Any
    """The weights of these edges, [e]; in a heterogeneous batch, a dictionary by edge type."""


def output_of(batch: MiniBatch) -> Any:
    """PyG's output of a batch after sampling: what a sampler or a transform of the user's returned, or one that is made
    of what ours wrote."""
    if batch.out is not None:
        return batch.out
    types, trees, original = batch.types, batch.trees, batch.original
    num_nodes, num_edges, fields = batch.num_nodes, batch.num_edges, batch.fields or {}
    if not types.hetero and original is None:
        index, colptr, edge_id, weight = batch.edges[0]
        out = NeighborOutput.__new__(NeighborOutput)  # the constructor takes three times as long: it sets all fields
        out.node, out.edge, out.metadata, out.fields = batch.nodes[0], edge_id, batch.metadata, fields
        if colptr is None:
            out.row, out.col = index
        else:
            out.colptr, out.edge_index = colptr, index
        if num_nodes is not None:
            out.num_sampled_nodes = num_nodes[0]
        if num_edges is not None:
            out.num_sampled_edges = num_edges[0]
        if trees is not None:
            out.batch = trees[0]
        if weight is not None:
            out.edge_weight = weight
        if batch.separate_sources or batch.whole is not None:
            out.separate_sources, out.whole = batch.separate_sources, batch.whole
        return out

    def of_nodes(values: Any) -> Any:
        return None if values is None else dict(zip(types.nodes, values, strict=True)) if types.hetero else values[0]

    def of_edges(values: Any) -> Any:
        return None if values is None else dict(zip(types.edges, values, strict=True)) if types.hetero else values[0]

    indices, pointers, ids, weights = ([edges[part] for edges in batch.edges] for part in range(4))
    is_sorted, weighted = (all(part is not None for part in parts) for parts in (pointers, weights))
    ends, ends_before = (
        [None, None] if given is None else [of_edges([index[end] for index in given]) for end in (0, 1)]  # type: ignore
        for given in (None if is_sorted else indices, original)
    )
    made: Any = HeteroNeighborOutput if types.hetero else NeighborOutput
    return made(
        of_nodes(batch.nodes), *ends, of_edges(ids), of_nodes(trees), of_nodes(num_nodes), of_edges(num_edges),
        *ends_before, batch.metadata, colptr=of_edges(pointers) if is_sorted else None,
        edge_index=of_edges(indices) if is_sorted else None,
        edge_weight=of_edges(weights) if weights and weighted else None, fields=fields,
    )  # fmt: skip


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
