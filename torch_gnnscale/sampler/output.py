"""What samplers return: PyG's outputs with their CSC added, and the papers' list of layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from .graph import SampledGraph


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


NO_IDS = torch.empty(0, dtype=torch.int64)
"""No ids of nodes or edges."""
Seeds: TypeAlias = Tensor | dict[NodeType, Tensor]
"""Seeds or their times: a tensor; in a heterogeneous graph, tensors by node type."""


def renumbered_trees(trees: list[Tensor], seeds: list[tuple[int, int]]) -> list[Tensor]:
    """Renumbers trees. ``trees``: per node type, numbered over the seeds of node type 0, then 1, and so on. The result
    is numbered over ``seeds``, pairs (node type, number of seeds), in the order given."""
    if [number for number, _ in seeds] == sorted(number for number, _ in seeds):
        return trees
    begin, first = 0, {}
    for number, count in seeds:
        first[number] = torch.arange(begin, begin + count)
        begin += count
    renumber = torch.cat([first[number] for number in sorted(first)])
    return [renumber[tree] for tree in trees]


def as_output(
    sample: ops.Sample, graph: SampledGraph, subgraph: str,
    ids: Callable[[int, Tensor], Tensor | None] | None = None,
) -> NeighborOutput | HeteroNeighborOutput:  # fmt: skip
    """The operator's lists as PyG's output without metadata.

    Args:
        sample: of ``graph``.
        graph: what was sampled.
        subgraph: how edges were chosen; hops have counts only where they are ``directional``.
        ids: ids(number of a relation, the operator's ids of its edges) are the edges' ids in the output; None: they are
            the operator's.
    """
    drawn = subgraph == "directional"
    num_nodes, num_edges = sample.num_nodes, sample.num_edges
    edge_ids: Sequence[Tensor | None] = sample.edge_id
    if ids is not None:
        edge_ids = [ids(number, edge) for number, edge in enumerate(sample.edge_id)]
    if not graph.is_hetero:
        index = sample.edge_index[0]
        col, row = index.unbind() if graph.backward else (None, None)
        return NeighborOutput(
            sample.node[0],
            row,
            col,
            edge_ids[0],
            sample.tree[0] if sample.tree else None,
            num_nodes[0] if drawn else None,
            num_edges[0] if drawn else None,
            colptr=None if graph.backward else sample.colptr[0],
            edge_index=None if graph.backward else index,
            edge_weight=sample.edge_weight[0] if sample.edge_weight else None,
        )
    node = dict(zip(graph.node_types, sample.node, strict=True))
    trees = dict(zip(graph.node_types, sample.tree, strict=True)) if sample.tree else None
    edge_index = dict(zip(graph.edge_types, sample.edge_index, strict=True))
    edge: dict[Any, Tensor | None] = dict(zip(graph.edge_types, edge_ids, strict=True))
    ends: Any = (None, None)
    if graph.backward:
        ends = tuple({edge_type: index[end] for edge_type, index in edge_index.items()} for end in (1, 0))
    weight = dict(zip(graph.edge_types, sample.edge_weight, strict=True)) if sample.edge_weight else None
    return HeteroNeighborOutput(
        node,
        *ends,
        edge,
        trees,
        dict(zip(graph.node_types, num_nodes, strict=True)) if drawn else None,
        dict(zip(graph.edge_types, num_edges, strict=True)) if drawn else None,
        colptr=None if graph.backward else dict(zip(graph.edge_types, sample.colptr, strict=True)),
        edge_index=None if graph.backward else edge_index,
        edge_weight=weight,
    )
