"""A graph as partitioners see it: the nodes of all types in one sequence, with what each adds to a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..ops.arguments import as_ids, check_ids, check_int
from ..topology import CSC
from ..topology.csc import CHUNK
from .report import nodes_of

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
