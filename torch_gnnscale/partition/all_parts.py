"""All parts as the stores of one process, and what its rows have in common with those of one part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import TensorAttr
from torch_geometric.typing import NodeType
from typing_extensions import override

from .. import ops
from ..feature.composite import Composites
from ..feature.contract import BoundedAttr, RowStore
from ..feature.feature_store import row_ids
from ..ops.arguments import check_ids
from ..topology import CSC
from .directory import RowsMeta, edge_type_of


class WrittenRows(RowStore):
    """Base of FeatureStores over rows of a partitioned graph. A subclass sets ``_attrs``, by group and name."""

    _attrs: dict[tuple[Any, str], RowsMeta]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        meta = self._attrs.get((attr.group_name, attr.attr_name))
        return None if meta is None else (meta.num_rows, *meta.shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """One attribute per tensor, its index unset; without those of a homogeneous graph's edges, as in PyG."""
        return [attr for attr in self.all_attrs() if attr.group_name != (None, None)]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError("rows of a partitioned graph do not change; write the parts again")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError("rows of a partitioned graph do not change; write the parts again")


class RowsOfAllParts(WrittenRows):
    """A FeatureStore of the rows of all parts, by stored ids of nodes and the user's ids of edges.

    Args:
        attrs: the attributes.
        composites: those that are made of several of them.
        rows: by group and name, the rows of each part, in the order of parts.
        positions: returns the stored positions of edges, by their ids and their type.
        order: the numbering of nodes; None if stored ids are the user's.
    """

    def __init__(
        self, attrs: Sequence[RowsMeta], composites: Composites, rows: Mapping[tuple[Any, str], Sequence[Tensor]],
        positions: Callable[[Tensor, Any], Tensor], order: NumberingOfAllParts | None,
    ) -> None:  # fmt: skip
        super().__init__()
        state = self.__dict__
        state["_attrs"] = {(meta.group_name, meta.attr_name): meta for meta in attrs}
        state["composites"] = composites
        state["_rows"], state["_positions"], state["order"] = rows, positions, order

    @override
    def all_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(group, name) for group, name in self._attrs]

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        key, group = (attr.group_name, attr.attr_name), attr.group_name
        if key not in self._attrs:
            return None
        count = self._attrs[key].num_rows
        if attr.index is None and not isinstance(group, tuple):
            return torch.cat(list(self._rows[key]))
        ids = torch.arange(count) if attr.index is None else row_ids(attr.index, count)
        if not BoundedAttr.covers(attr, count):
            check_ids("index", ids, count, "rows")
        places = ids.to(torch.int64)
        if isinstance(group, tuple):
            places = self._positions(places, edge_type_of(group))
        return _gathered(self._rows[key], places)


class NumberingOfAllParts:
    """The numbering of a partitioned graph, a :class:`torch_gnnscale.topology.reorder.Numbering`.

    Args:
        to_stored: returns the stored ids of the user's nodes, by their ids and their type.
        user_ids: by type of nodes, the user's ids of each part, in the order of parts.
    """

    def __init__(
        self, to_stored: Callable[[Tensor, Any], Tensor], user_ids: Mapping[NodeType | None, Sequence[Tensor]]
    ) -> None:
        self._to_stored, self._user_ids = to_stored, user_ids

    @cached_property
    def _users(self) -> dict[NodeType | None, Tensor]:
        return {node_type: torch.cat(list(of_parts)) for node_type, of_parts in self._user_ids.items()}

    def to_stored(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """User ids to stored ids: int64 on the CPU, the shape of ``ids``."""
        return self._to_stored(ids.to("cpu", torch.int64), node_type)

    def to_user(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Stored ids to user ids: int64, on the device of ``ids``."""
        return self._users[node_type][ids.cpu()].to(ids.device)

    def to(self, device: torch.device) -> NumberingOfAllParts:
        """The numbering on a device; ids are mapped on the CPU."""
        return self

    def equals(self, other: Any) -> bool:
        """Whether ``other`` is this numbering."""
        return other is self


def joined_columns(of_parts: Sequence[CSC]) -> CSC:
    """The CSC of the whole graph from the columns of its parts, which are copied: edges keep their ids."""
    ends = torch.tensor([0, *(csc.num_edges for csc in of_parts)]).cumsum(0)
    pointers = [csc.colptr[:-1] + end for csc, end in zip(of_parts, ends, strict=False)]
    colptr = torch.cat([*pointers, ends[-1:]])
    edge_id = torch.cat([csc.edge_id for csc in of_parts if csc.edge_id is not None])
    return CSC(colptr, torch.cat([csc.row for csc in of_parts]), edge_id, of_parts[0].num_src)


def _gathered(of_parts: Sequence[Tensor], ids: Tensor) -> Tensor:
    """Row ``ids[i]`` of the tables, one after another: shape [n, ...]."""
    if len(of_parts) == 1:
        return ops.gather_rows(of_parts[0], ids)
    ends = torch.tensor([len(rows) for rows in of_parts]).cumsum(0)
    part = torch.searchsorted(ends, ids, right=True)
    order = torch.argsort(part, stable=True)
    counts = torch.bincount(part, minlength=len(of_parts)).tolist()
    each = zip(of_parts, ids[order].split(counts), [0, *ends.tolist()], strict=False)
    found = of_parts[0].new_empty(len(ids), *of_parts[0].shape[1:])
    for (rows, some, begin), places in zip(each, order.split(counts), strict=True):
        found[places] = ops.gather_rows(rows, some - begin)
    return found
