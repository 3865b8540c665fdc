"""The carrier of a batch: one object from its number to its Data, into which order, sampling, fetching and collating
write in turn. Inside, there is one entry per node type and per relation; a homogeneous graph has one of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
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
