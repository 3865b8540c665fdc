"""The partition book: the contract between all ranks about which part stores what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..ops.arguments import as_ids, to_int


@dataclass(frozen=True, eq=False)
class PartitionBook:
    """The bounds of the parts, K + 1 per type: part i stores the ids ``bounds[i] .. bounds[i + 1] - 1``."""

    bounds: dict[NodeType | None, Tensor]
    """By node type (None in a homogeneous graph), of stored nodes: int64, shape [K + 1], rising from 0."""
    edge_bounds: dict[EdgeType | None, Tensor]
    """By edge type, of positions in the stored relation: an edge belongs to its destination's part."""

    @property
    def num_parts(self) -> int:
        """K."""
        return len(next(iter(self.bounds.values()))) - 1

    def num_nodes(self, node_type: NodeType | None = None) -> int:
        """The number of nodes of a type in all parts."""
        return int(_of_type("node type", self.bounds, node_type)[-1])

    def num_edges(self, edge_type: EdgeType | None = None) -> int:
        """The number of edges of a type in all parts."""
        return int(_of_type("edge type", self.edge_bounds, edge_type)[-1])

    def part_of(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """The part of each node.

        Args:
            ids: stored ids, any integer type and shape.
            node_type: their type.

        Returns:
            int64, the shape of ``ids``.

        Raises:
            IndexError: an id that is no node.
        """
        bounds, ids = _of_type("node type", self.bounds, node_type), as_ids("ids", ids)
        if (at := ops.first_outside(ids.reshape(-1), int(bounds[-1]))) >= 0:
            found = int(ids.reshape(-1)[at])
            raise IndexError(f"ids[{at}] = {found} is out of range: expected nodes in [0, {int(bounds[-1])})")
        return torch.searchsorted(bounds, ids.to(torch.int64), right=True) - 1

    def nodes(self, part: int, node_type: NodeType | None = None) -> range:
        """The stored ids of a part's nodes."""
        return self._range(_of_type("node type", self.bounds, node_type), part)

    def edges(self, part: int, edge_type: EdgeType | None = None) -> range:
        """The positions of a part's edges in the stored relation."""
        return self._range(_of_type("edge type", self.edge_bounds, edge_type), part)

    def rows(self, part: int, of: RowsMeta) -> range:
        """Where a part's rows of an attribute are among those of all parts."""
        return self.edges(part, edge_type_of(of.group_name)) if of.of_edges else self.nodes(part, of.group_name)

    def _range(self, bounds: Tensor, part: int) -> range:
        return range(*bounds[check_part_number("part", part, self.num_parts) :][:2].tolist())


@dataclass(frozen=True)
class RowsMeta:
    """What is known of an attribute without its rows."""

    group_name: Any
    """The node or edge type; in a homogeneous graph None for nodes, (None, None) for edges."""
    attr_name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    """The shape of a row."""
    num_rows: int
    """The number of rows in all parts: that of the nodes or edges of the type."""

    @property
    def of_edges(self) -> bool:
        """Whether the rows are those of edges."""
        return isinstance(self.group_name, tuple)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def edge_type_of(group: Any) -> EdgeType | None:
    """The edge type of a group of rows of edges, which in a homogeneous graph is (None, None)."""
    return None if group == (None, None) else group


def check_part_number(name: str, part: int, parts: int) -> int:
    """Returns the number of a part; raises TypeError or IndexError naming it."""
    part = to_int(name, part)
    if not 0 <= part < parts:
        raise IndexError(f"{name}: expected a part in [0, {parts}), found {part}")
    return part


def _of_type(name: str, bounds: dict[Any, Tensor], type_name: Any) -> Tensor:
    if type_name not in bounds:
        raise ValueError(f"{name} {type_name!r}: expected one of {list(bounds)}")
    return bounds[type_name]
