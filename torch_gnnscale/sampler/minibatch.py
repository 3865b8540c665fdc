"""The carrier of a batch: one object from its number to its Data, into which order, sampling, fetching and collating
write in turn. Inside, there is one entry per node type and per relation; a homogeneous graph has one of each. And PyG's
outputs with their CSC, which are made of it where a user's code is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import EdgeType, NodeType

NO_IDS = torch.empty(0, dtype=torch.int64)
"""No ids of nodes or edges."""


def end_types(edge_type: EdgeType | None) -> tuple[NodeType | None, NodeType | None]:
    """(type of sources, type of destinations); (None, None) in a homogeneous graph."""
    return (None, None) if edge_type is None else (edge_type[0], edge_type[-1])


class GraphTypes:
    """The node types and edge types of a graph, in the order in which lists have entries of them; [None] and [None] of
    a homogeneous graph."""

    def __init__(self, nodes: Sequence[NodeType | None], edges: Sequence[EdgeType | None]) -> None:
        self.nodes, self.edges = list(nodes), list(edges)
        self.hetero = self.nodes != [None]
        """Whether nodes and edges have types."""
        self.node_number = {of: number for number, of in enumerate(self.nodes)}
        self.edge_number = {of: number for number, of in enumerate(self.edges)}


HOMOGENEOUS = GraphTypes([None], [None])
"""The types of a homogeneous graph."""


class SampledEdges(NamedTuple):
    """The sampled edges of one type."""

    edge_index: Tensor
    """Local COO: int64, shape [2, e]."""
    colptr: Tensor | None
    """Edges colptr[i]..colptr[i+1]-1 lead to node i; later nodes have no edges. With ``layers``, the columns of hop 0
    are followed by those of hop 1, and so on. None if edges are not sorted by destination."""
    edge_id: Tensor | None
    """The user's ids of the edges, [e]."""
    weight: Tensor | None = None
    """The sampler's weights of the edges, [e]."""


NO_EDGES = SampledEdges(NO_IDS.expand(2, 0), torch.zeros(1, dtype=torch.int64), NO_IDS)
"""The edges of a type that was not sampled."""


_NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class MiniBatch:
    """A batch from its number to its Data. What a step has not written yet is None or empty."""

    # Of the order of seeds, and known before sampling

    inputs: Any = None
    """The inputs at ``positions``: seeds, or links; None again after sampling."""
    key: int = 0
    """Of all draws."""
    transform_key: int | None = None
    """Of the draws of the user's ``transform_sampler_output``, if there is one."""
    labels: int | None = None
    """The number of the version of links' labels, if there are labels."""

    # Written by sampling

    types: GraphTypes = HOMOGENEOUS
    nodes: list[Tensor]
    """Per node type, ids of the stores: int64, [n]."""
    edges: list[SampledEdges]
    """Per edge type."""
    trees: Sequence[Tensor | None] | None = None
    """Per node type, the tree of each node, [n], if trees are disjoint."""
    num_nodes: Sequence[Sequence[int] | None] | None = None
    """Per node type, how many nodes each hop found, beginning with the seeds; None if edges do not belong to hops."""
    num_edges: Sequence[Sequence[int] | None] | None = None
    """Per edge type, how many edges each hop drew."""
    original: Sequence[Tensor | None] | None = None
    """Per edge type, the edges before their reverses were added, if they are kept: local COO."""
    metadata: Any = None
    """What is known of the inputs: (input_id, time) of seeds, what PyG's LinkLoader expects of links; by type, if they
    are of several types."""
    fields: Any = _NO_FIELDS
    """Further fields that the batch gets, by name."""
    separate_sources: bool = False
    """Whether, with ``layers``, a layer's sources are its hop's nodes alone; local ids begin with 0 in each hop."""
    whole: dict[str, int] | None = None
    """Of a rank's part of a batch, numbers that are alike on all ranks that have parts of it."""
    out: Any = None
    """The output of a sampler or a transform of the user's, if this is what it says."""
    transformed: bool = False
    """Whether the user's transform was called."""

    # Written by fetching

    rows: Any = None
    """What a row source returned; None before, after collating, and if attributes were changed so that they could not
    be read."""
    versions: Any = None
    """The versions of attributes before rows were read."""

    # Written by collating

    data: Any = None
    """The Data or HeteroData with all fields; None if its rows were not read."""

    def __init__(self, epoch: int = 0, number: int = -1, positions: Any = None) -> None:
        self.epoch, self.number = epoch, number
        """The number of the batch in its epoch; -1 for inputs that a user has chosen."""
        self.positions = positions
        """Of its inputs, among all of a loader's."""

    def size(self, edge_type: Any) -> tuple[int, int]:
        """(number of sampled nodes of the source type, of the destination type)."""
        src, dst = (self.nodes_of(end) for end in end_types(edge_type))
        return src.numel(), dst.numel()

    def nodes_of(self, node_type: Any) -> Tensor:
        """The nodes of a type; none of a type that was not sampled."""
        number = self.types.node_number.get(node_type)
        return NO_IDS if number is None else self.nodes[number]

    def edges_of(self, edge_type: Any) -> SampledEdges | None:
        """The edges of a type; None if it was not sampled."""
        number = self.types.edge_number.get(edge_type)
        return None if number is None else self.edges[number]


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


_NO_ENDS = (None, None)


def output_of(batch: MiniBatch) -> Any:
    """PyG's output of a batch after sampling: what a sampler or a transform of the user's returned, or one that is made
    of what ours wrote."""
    if batch.out is not None:
        return batch.out
    types, trees, original = batch.types, batch.trees, batch.original
    num_nodes, num_edges, fields = batch.num_nodes, batch.num_edges, batch.fields or {}
    if not types.hetero and original is None:
        index, colptr, edge_id, weight = batch.edges[0]
        return NeighborOutput(
            batch.nodes[0], *(index if colptr is None else _NO_ENDS), edge_id, None if trees is None else trees[0],
            None if num_nodes is None else num_nodes[0], None if num_edges is None else num_edges[0],
            metadata=batch.metadata, colptr=colptr, edge_index=None if colptr is None else index, edge_weight=weight,
            separate_sources=batch.separate_sources, fields=fields, whole=batch.whole,
        )  # fmt: skip

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
