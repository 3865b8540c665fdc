"""How good a partition is: the edges that it cuts, how equal the parts are, and what each part reads from others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..text import table
from ..topology import CSC
from ..topology.csc import CHUNK


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
