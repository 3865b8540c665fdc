"""The graph that a sampler draws from: its relations, edge types and times in the form that the operator takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler.base import DataType, SubgraphType
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..memory import move_to_huge_pages
from ..ops.arguments import found_instead
from ..topology import CSC


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


def reverse_relations(edge_types: Sequence[EdgeType | None]) -> list[int]:
    """result[i]: the relation that holds the reverse edges of relation i by PyG's rules, or -1.

    The reverse of (src, rel, dst) is (dst, rev_rel, src) if it exists; else the relation itself if src == dst; else the
    relation from dst to src, if there is exactly one. A relation ``rev_rel`` gets a reverse only by the first rule.
    """
    numbers = {edge_type: number for number, edge_type in enumerate(edge_types)}
    ways = Counter(map(end_types, edge_types))
    reverse = [-1] * len(edge_types)
    for number, edge_type in enumerate(edge_types):
        if edge_type is None:
            reverse[number] = number
        elif len(edge_type) == 3 and not str(edge_type[1]).startswith("rev_"):  # stores accept types of any length
            src, rel, dst = edge_type
            if (named := numbers.get((dst, f"rev_{rel}", src))) is not None:
                reverse[number], reverse[named] = named, number
            elif src == dst:
                reverse[number] = number
            elif ways[dst, src] == 1:
                reverse[number] = next(n for n, t in enumerate(edge_types) if end_types(t) == (dst, src))
    return reverse


@dataclass(eq=False)
class Relation:
    """The edges of one type in the form in which they are sampled."""

    edge_type: EdgeType | None
    csc: CSC
    """Columns are destinations, or sources if edges are followed backward. Times do not decrease within a column."""
    weight: Tensor | None = None
    """Prefix sums of the weights in each column, from :func:`torch_gnnscale.ops.weight_sums`."""
    time: Tensor | None = None
    """Time of each stored edge: int64, from :func:`torch_gnnscale.sampler.graph.ordered`."""
    left_out: Tensor | None = None
    """Edges of weight 0, which are never sampled: (source, destination), int64, shape [2, k]."""
    mapped: bool = False
    """Whether the edges are memory-mapped from a file."""

    _id_bound: int | None = field(default=None, init=False, repr=False)

    @property
    def num_edges(self) -> int:
        """The number of edges that can be drawn."""
        return self.csc.num_edges

    @property
    def largest_degree(self) -> int:
        """The largest number of neighbors that a node has."""
        return int(self.csc.colptr.diff().max()) if self.csc.num_dst else 0

    @property
    def id_bound(self) -> int:
        """All of the user's edge ids are in [0, id_bound)."""
        if self._id_bound is None:
            edge_id = self.csc.edge_id
            if edge_id is None or len(edge_id) == 0:
                self._id_bound = self.csc.num_edges
            else:
                self._id_bound = int(edge_id.max()) + 1
        return self._id_bound


@dataclass(eq=False)
class SampledGraph:
    """A graph's relations, its nodes and their times.

    ``node_types`` and ``edge_types`` are [None] in a homogeneous graph. ``node_time`` and ``edge_time`` are the user's
    own tensors by type. A type that is missing in them has no times, and its nodes or edges may always be drawn.
    """

    data_type: DataType
    node_types: list[NodeType | None]
    sizes: list[int]
    relations: list[Relation]
    backward: bool
    node_time: dict[NodeType | None, Tensor] | None = None
    edge_time: dict[EdgeType | None, Tensor] | None = None
    floating_time: bool = False
    """Whether times are compared as float64."""

    types: GraphTypes = field(init=False)
    edge_types: list[EdgeType | None] = field(init=False)
    """The type of each relation."""
    _stored: ops.Relations | None = field(default=None, init=False, repr=False)
    _own_limits: dict[NodeType | None, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.edge_types = [relation.edge_type for relation in self.relations]
        self.types = GraphTypes(self.node_types, self.edge_types)
        self.is_hetero = self.types.hetero
        self.is_temporal = self.node_time is not None or self.edge_time is not None
        """Whether nodes or edges have times."""

    def __getstate__(self) -> dict[str, Any]:
        # A CSC of a file is pickled as its path; the bare tensors of _stored would be copied.
        return {**self.__dict__, "_stored": None, "_own_limits": {}}

    @property
    def stored(self) -> ops.Relations:
        """The operator's view of the relations, in the direction of sampling. Built on first use."""
        if self._stored is None:  # without a lock: a process forked while one is held could never acquire it
            self._stored = self._checked()
        return self._stored

    def _checked(self) -> ops.Relations:
        ends = [end_types(edge_type) for edge_type in self.edge_types]
        cscs = [relation.csc for relation in self.relations]
        return ops.relations(
            [csc.colptr for csc in cscs],
            [csc.row for csc in cscs],
            edge_id=[csc.edge_id for csc in cscs],
            weight=[relation.weight for relation in self.relations],
            time=[relation.time for relation in self.relations],
            src_type=[self.node_types.index(pair[self.backward]) for pair in ends],
            dst_type=[self.node_types.index(pair[not self.backward]) for pair in ends],
            sizes=self.sizes,
            reverse=reverse_relations(self.edge_types),
        )

    def move_to_huge_pages(self) -> None:
        """Moves the tensors that are read at random to huge pages, except those mapped from files."""
        found: list[Tensor | None] = []
        for relation in self.relations:
            csc = relation.csc
            found += [relation.time, relation.weight]
            found += [] if relation.mapped else [csc.colptr, csc.row, csc.edge_id]
        move_to_huge_pages(tensor for tensor in found if tensor is not None)

    @property
    def largest_degree(self) -> int:
        """The largest number of neighbors that any node has in one relation."""
        return max((relation.largest_degree for relation in self.relations), default=0)

    def bounds(self) -> dict[NodeType | None, int]:
        """The number of nodes per type."""
        return dict(zip(self.node_types, self.sizes, strict=True))

    def own_limits(self, node_type: NodeType | None) -> Tensor | None:
        """The times of a type's nodes as limits for the times of edges (:func:`ordered_limit`): int64, shape [n]; None
        if they have no times. Built on first use."""
        if (limits := self._own_limits.get(node_type)) is not None or self.node_time is None:
            return limits
        if (time := self.node_time.get(node_type)) is not None:
            limits = self._own_limits[node_type] = ordered_limit("time", time, self.floating_time)
        return limits

    def node_index(self, node_type: NodeType | None) -> int:
        """The position of a node type in ``node_types``; ValueError if it is not there."""
        if (number := self.types.node_number.get(node_type)) is None:
            raise ValueError(f"node type {node_type!r}: expected one of {self.node_types}")
        return number


def subgraph_kind(subgraph_type: SubgraphType | str) -> SubgraphType:
    """The argument ``subgraph_type``, which may be a name. Raises ValueError for another one."""
    try:
        return SubgraphType(subgraph_type)
    except ValueError:
        known = [kind.value for kind in SubgraphType]
        raise ValueError(f"subgraph_type: expected one of {known}, found {subgraph_type!r}") from None


_EXACT = 1 << 53
"""2^53: every integer of at most this size is exact as float64."""


def check_times(name: str, time: Tensor, count: int) -> None:
    """Raises TypeError or ValueError unless ``time`` is a vector of ``count`` integers or floats, none of them NaN."""
    if not isinstance(time, Tensor):
        raise TypeError(f"{name}: expected a tensor of times, found {found_instead(time)}")
    if time.dtype in (torch.bool, torch.uint64) or time.is_complex():
        raise TypeError(f"{name}: expected integers or real numbers, found {time.dtype}")
    if time.shape != (count,):
        raise ValueError(f"{name}: expected {count} times, found shape {tuple(time.shape)}")
    if time.is_floating_point() and bool((wrong := time.isnan()).any()):
        raise ValueError(f"{name}[{int(wrong.nonzero()[0])}]: expected a number, found nan")


def check_exact(name: str, time: Tensor, floats: str) -> None:
    """Raises ValueError if ``time`` has integers that float64 may round: above 2^53 in size. ``floats``: the times that
    are floats, for the error."""
    if not time.is_floating_point():
        time = time.to(torch.int64)
        if bool(((time < -_EXACT) | (time > _EXACT)).any()):
            raise ValueError(f"{name}: expected times up to 2^53, because {floats} are floats; found larger ones")


def ordered(time: Tensor, floating: bool) -> Tensor:
    """int64 that compare like ``time``: the integers themselves or, if ``floating``, the float64 bits, changed to sort
    as integers."""
    if not floating:
        return time.to(torch.int64)
    bits = (time.to(torch.float64) + 0.0).view(torch.int64)  # -0.0 + 0.0 is 0.0
    return torch.where(bits < 0, bits ^ torch.iinfo(torch.int64).max, bits)


def check_windows(name: str, start: Tensor, end_name: str, end: Tensor) -> None:
    """Raises TypeError or ValueError unless ``start`` has a time for each of ``end``, none NaN and none later."""
    check_times(name, start, len(end))
    if start.is_floating_point() and end.is_floating_point():
        late = start.to(torch.float64) > end.to(torch.float64)
    else:  # int64 holds all integers that float64 rounds
        late = ordered_limit(name, start, False, start=True) > ordered_limit(end_name, end, False)
        late |= outside_integers(start, end)
    if bool(late.any()):
        at = int(late.nonzero()[0])
        raise ValueError(f"{name}[{at}] = {start[at].item()}: expected at most {end_name}[{at}] = {end[at].item()}")


def outside_integers(start: Tensor, end: Tensor) -> Tensor:
    """Of which windows no int64 is a time, because their start lies above, or their end below all: bool, shape [n]."""
    none = torch.zeros(len(start), dtype=torch.bool, device=start.device)
    if start.is_floating_point():
        none |= start.to(torch.float64) >= 2.0**63
    if end.is_floating_point():
        none |= end.to(torch.float64) < -(2.0**63)
    return none


def ordered_limit(name: str, time: Tensor, floating: bool, start: bool = False) -> Tensor:
    """Limits for times from :func:`ordered`: ordered(t) <= ordered_limit(l) exactly if t <= l, and, of starts,
    ordered_limit(l) <= ordered(t) exactly if l <= t. Limits outside of int64 (:func:`outside_integers`) are its least
    and its largest number. A start of -2^63 is before all times.

    Raises:
        ValueError: an integer limit above 2^53 where the graph's times are floats.
    """
    if floating:
        if start and not time.is_floating_point():
            least = torch.iinfo(torch.int64).min
            whole = time.to(torch.int64)
            check_exact(name, whole[whole > least], "the graph's times")
            return torch.where(whole == least, least, ordered(whole, True))
        check_exact(name, time, "the graph's times")
        return ordered(time, True)
    if time.is_floating_point():
        limits = torch.iinfo(torch.int64)
        low, high = float(limits.min), float(limits.max)  # high is 2^63
        exact = time.to(torch.float64)
        whole = exact.ceil() if start else exact.floor()
        inside = whole.clamp(low, -low - 1024).to(torch.int64)
        return torch.where(whole >= high, limits.max, torch.where(whole < low, limits.min, inside))
    return time.to(torch.int64)


class ReverseIds:
    """The ids of the edges that are the reverses of others, for each relation of a graph. Made on first use.

    The reverse of an edge of a relation is an edge of its reverse relation between the same nodes and, where edges have
    times, at the same time; of several, the k-th that is stored belongs to the k-th. Relations have ids of reverses if
    every edge of both has a reverse.
    """

    def __init__(self, graph: SampledGraph) -> None:
        self._graph = graph
        self._tables: dict[int, Tensor | None] = {}
        self._copies: dict[tuple[int, torch.device], Tensor] = {}
        """Tables where samples are."""

    def __getitem__(self, number: int) -> Tensor | None:
        """For a relation that has a reverse relation: result[id of an edge of that one] is the id of this relation's
        edge that leads the other way; None unless every edge has such an edge."""
        if number not in self._tables:
            graph = self._graph
            reverse = graph.relations[graph.stored.reverse[number]]
            self._tables[number] = ops.reverse_edges(
                graph.stored, number, reverse.id_bound, same_time=graph.edge_time is not None
            )
        return self._tables[number]

    def found(self, number: int, edge: Tensor) -> Tensor | None:
        """The ids of a relation's sampled edges, of which those that were turned have -1 - (the id of the edge of the
        reverse relation); None if there are reverses that the graph does not have."""
        if self._graph.stored.reverse[number] < 0:
            return edge
        if (table := self[number]) is None:
            return None
        turned = edge < 0
        if edge.device.type == "cpu" and not bool(turned.any()):
            return edge
        if (there := self._copies.get((number, edge.device))) is None:
            there = self._copies[number, edge.device] = table.to(edge.device)
        return torch.where(turned, there[(-1 - edge).clamp(min=0)].to(edge.dtype), edge)
