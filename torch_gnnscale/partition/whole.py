"""A graph as partitioners see it: the nodes of all types in one sequence, with what each adds to a part; and how good a
partition of it is: the edges that it cuts, how equal the parts are, and what each reads from others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from .._user import table
from ..ops.arguments import as_ids, check_ids, check_int
from ..topology import CSC
from ..topology.csc import CHUNK

BALANCED = ("nodes", "edges", "train")
"""The things that can be divided equally over the parts."""


@dataclass(frozen=True, eq=False)
class Whole:
    """Nodes of all types, numbered type after type, and the edges between them."""

    sizes: dict[NodeType | None, int]
    """How many nodes each type has, in the order of their numbers."""
    sides: list[ops.Side]
    """The edges into nodes: one side per relation."""
    weight: Tensor
    """What each node adds to each constraint: int64, shape [n, constraints]."""
    names: list[str]
    """What each constraint counts."""
    edge_weight: list[Tensor] | None = None
    """By side, the weight of each edge in the cut: int64, positive; None: all weights are 1."""

    @property
    def num_nodes(self) -> int:
        """The nodes of all types."""
        return sum(self.sizes.values())

    @property
    def num_edges(self) -> int:
        """The edges of all relations."""
        return sum(len(side.row) for side in self.sides)

    @classmethod
    def of(
        cls,
        relations: Mapping[EdgeType | None, CSC],
        num_nodes: Mapping[NodeType | None, int],
        train: Mapping[NodeType | None, Tensor],
        balance: Sequence[str] = BALANCED,
    ) -> Whole:
        """The whole of a graph's relations. No edge is copied.

        Constraints: the nodes of each type ("nodes"), edges by their destinations ("edges"), training nodes ("train").
        A constraint to which no node adds is left out.

        Raises:
            TypeError, ValueError, IndexError: relations of other sizes or types, a training node that does not exist,
                nothing or something unknown to balance.
        """
        if isinstance(balance, str) or not set(balance) <= set(BALANCED) or len(balance) == 0:
            raise ValueError(f"balance: expected some of {BALANCED}, found {balance!r}")
        sizes = {t: check_int("num_nodes", size, 0, ops.MAX_COUNT) for t, size in num_nodes.items()}
        first, total = {}, 0
        for node_type, size in sizes.items():
            first[node_type], total = total, total + size
        sides, degree = [], torch.zeros(total, dtype=torch.int64)
        for relation, csc in relations.items():
            src, dst = (None, None) if relation is None else (relation[0], relation[2])
            for end, count in ((src, csc.num_src), (dst, csc.num_dst)):
                if sizes.get(end) != count:
                    raise ValueError(
                        f"relations[{relation!r}]: expected {sizes.get(end)} nodes of type {end!r}, found {csc}"
                    )
            sides.append(ops.Side(csc.colptr, csc.row, first[dst], first[src], csc.num_src))
            degree[first[dst] : first[dst] + csc.num_dst] += csc.colptr.diff()
        columns: dict[str, Tensor] = {}
        if "nodes" in balance:
            for node_type, size in sizes.items():
                of_type = torch.zeros_like(degree)
                of_type[first[node_type] : first[node_type] + size] = 1
                columns[nodes_of(node_type)] = of_type
        if "edges" in balance:
            columns["edges"] = degree
        trained = _trained(train, sizes, first, total)
        if "train" in balance:
            columns["train"] = trained
        names = [name for name, column in columns.items() if bool(column.any())]
        weight = torch.stack([columns[name] for name in names], 1) if names else degree.new_zeros(total, 0)
        return cls(sizes, sides, weight, names)

    def both_sides(self) -> list[ops.Side]:
        """The edges by destination, and copies of them by source: 4 more bytes per edge if ids fit in 31 bits."""
        return [*self.sides, *(side.transposed() for side in self.sides)]

    def merged(self) -> tuple[Tensor, Tensor, Tensor]:
        """The graph of both directions as METIS takes it (:func:`.assignment.part_graph`): its ``colptr``, ``row`` and
        ``edge_weight``. All edges between two nodes become one, whose weight is their sum; self loops are dropped."""
        colptr, row, count = ops.contract(self.both_sides(), self.num_nodes)
        if self.edge_weight is None:
            return colptr, row, count
        pairs = torch.arange(self.num_nodes).repeat_interleave(colptr.diff()).mul_(self.num_nodes).add_(row)  # rising
        weight = count.zero_()
        for side, weights in zip(self.sides, self.edge_weight, strict=True):
            for begin in range(0, len(side.row), CHUNK):
                end = min(begin + CHUNK, len(side.row))
                dst = torch.searchsorted(side.colptr, torch.arange(begin, end), right=True) - 1 + side.first_node
                src = side.row[begin:end].to(torch.int64) + side.first_neighbor
                kept = src != dst
                for a, b in ((dst[kept], src[kept]), (src[kept], dst[kept])):
                    weight.index_add_(0, torch.searchsorted(pairs, a * self.num_nodes + b), weights[begin:end][kept])
        return colptr, row, weight

    def by_type(self, values: Tensor) -> dict[NodeType | None, Tensor]:
        """Values of all nodes, shape [n], apart by node type."""
        return dict(zip(self.sizes, values.split(list(self.sizes.values())), strict=True))


def _trained(train: Mapping[NodeType | None, Tensor], sizes: dict, first: dict, total: int) -> Tensor:
    """1 for training nodes, 0 for others: int64, shape [total]."""
    trained = torch.zeros(total, dtype=torch.int64)
    for node_type, ids in train.items():
        name = "train" if node_type is None else f"train[{node_type!r}]"
        if node_type not in sizes:
            raise ValueError(f"{name}: expected node types among {list(sizes)}, found another")
        check_ids(name, as_ids(name, ids), sizes[node_type], "nodes")
        trained[first[node_type] + ids.to(torch.int64)] = 1
    return trained


@dataclass(frozen=True)
class PartitionReport:
    """What :func:`report` counted. A list has one entry per part; an edge belongs to its destination's part."""

    num_edges: int
    cut_edges: int
    """Edges whose source lies in another part than their destination."""
    nodes: dict[str, list[int]]
    """Nodes by node type: the keys are ``"nodes"`` in a homogeneous graph, else ``"nodes TYPE"``."""
    edges: list[int]
    """Edges, of all relations."""
    train: list[int]
    """Training nodes, of all types."""
    halo: list[int]
    """Distinct sources of the part's edges that lie in other parts, of all types."""

    @property
    def cut(self) -> float:
        """cut_edges / num_edges; 0 without edges."""
        return self.cut_edges / self.num_edges if self.num_edges else 0.0

    def balance(self) -> dict[str, float]:
        """max / mean over the parts, of the nodes of each type, the edges and the training nodes; 1 where all is 0."""
        counted = {**self.nodes, "edges": self.edges, "train": self.train}
        return {name: max(counts) * len(counts) / max(sum(counts), 1) or 1.0 for name, counts in counted.items()}

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain values, as JSON takes them."""
        return {**asdict(self), "cut": self.cut, "balance": self.balance()}

    def __str__(self) -> str:
        columns = {**self.nodes, "edges": self.edges, "train": self.train, "halo": self.halo}
        lines = [["part", *columns]]
        lines += [[str(part), *(f"{counts[part]:,}" for counts in columns.values())] for part in range(len(self.edges))]
        balance = self.balance()
        lines += [["max / mean", *(f"{balance[name]:.3f}" if name in balance else "" for name in columns)]]
        return "\n".join([*table(lines), f"cut: {self.cut_edges:,} of {self.num_edges:,} edges ({self.cut:.2%})"])


def report(
    relations: Mapping[EdgeType | None, CSC],
    owner: Mapping[NodeType | None, Tensor],
    parts: int,
    train: Mapping[NodeType | None, Tensor] | None = None,
) -> PartitionReport:
    """Counts what a partition cuts and how equal its parts are. The edges may be mapped: they are read in chunks.

    Args:
        relations: the edges, by edge type; None for the one relation of a homogeneous graph.
        owner: the part of each node, by node type: int32, shape [n], in [0, parts).
        parts: how many parts there are.
        train: ids of the training nodes, by node type; a node counts once.
    """
    nodes = {nodes_of(t): of_parts(parts_of, parts) for t, parts_of in owner.items()}
    trained = torch.zeros(parts, dtype=torch.int64)
    for node_type, ids in (train or {}).items():
        trained += of_parts(owner[node_type][ids.unique()], parts)
    edges, cut = torch.zeros(parts, dtype=torch.int64), 0
    columns = {}  # the destinations of each part, part after part, and where each part begins
    for node_type, parts_of in owner.items():
        order = torch.sort(parts_of, stable=True).indices
        columns[node_type] = order.split(of_parts(parts_of, parts).tolist())
    for relation, csc in relations.items():
        dst = owner[None if relation is None else relation[2]]
        edges += torch.zeros_like(edges).index_add_(0, dst.to(torch.int64), csc.colptr.diff())
    halo, known = [0] * parts, {t: Known(len(parts_of)) for t, parts_of in owner.items()}
    for part in range(parts):
        for relation, csc in relations.items():
            src_type, _, dst_type = (None, "", None) if relation is None else relation
            for sources in _sources(csc, columns[dst_type][part]):
                away = sources[owner[src_type][sources] != part]
                cut += len(away)
                known[src_type].add(away)
        halo[part] = sum(len(of_type.taken()) for of_type in known.values())
    return PartitionReport(
        num_edges=sum(csc.num_edges for csc in relations.values()),
        cut_edges=cut,
        nodes={name: counts.tolist() for name, counts in nodes.items()},
        edges=edges.tolist(),
        train=trained.tolist(),
        halo=halo,
    )


class Known:
    """A set of nodes of one type that is filled and emptied, part after part. Only the first part pays for all nodes.

    Args:
        count: how many nodes there are.
    """

    def __init__(self, count: int) -> None:
        self._marked = torch.zeros(count, dtype=torch.bool)
        self._nodes: list[Tensor] = []

    def add(self, nodes: Tensor) -> None:
        """Adds nodes: int64, repeats allowed."""
        new = nodes[~self._marked[nodes]].unique()
        self._marked[new] = True
        self._nodes.append(new)

    def taken(self) -> Tensor:
        """The nodes, ascending: int64. The set is then empty."""
        found = torch.cat(self._nodes).sort().values if self._nodes else torch.empty(0, dtype=torch.int64)
        self._marked[found], self._nodes = False, []
        return found


def nodes_of(node_type: NodeType | None) -> str:
    """The key under which the numbers of nodes of a type are reported."""
    return "nodes" if node_type is None else f"nodes {node_type}"


def of_parts(owner: Tensor, parts: int) -> Tensor:
    """How many nodes each part has: int64, shape [parts]."""
    return ops.count_ids(owner, parts)


def _sources(csc: CSC, columns: Tensor) -> Iterator[Tensor]:
    """The sources of the edges of some columns, a chunk at a time: int64."""
    first, degree = csc.colptr[columns], csc.colptr[columns + 1] - csc.colptr[columns]
    before = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
    for begin in range(0, int(before[-1]), CHUNK):
        end = min(begin + CHUNK, int(before[-1]))
        low, high = (int(torch.searchsorted(before, edge, right=True)) - 1 for edge in (begin, end - 1))
        shift = (first - before[:-1])[low : high + 1]
        counts = before[low + 1 : high + 2].clamp(max=end) - before[low : high + 1].clamp(min=begin)
        yield csc.row[torch.arange(begin, end) + shift.repeat_interleave(counts)].to(torch.int64)
