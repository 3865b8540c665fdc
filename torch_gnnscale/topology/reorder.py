"""Renumberings of nodes: the contract between the user's ids and the stored ones, and nodes by score, hottest first
(Data Tiering, section 3.2, algorithm 2)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import NodeType

from .. import files, ops
from ..ops.arguments import check_ids, check_permutation
from .csc import CSC, check_graph


@runtime_checkable
class Numbering(Protocol):
    """Maps the user's node ids to stored ids and back, for each node type (None in a homogeneous graph).

    A pair of stores whose ids differ from the user's has one as ``order``. Loaders accept seeds as user ids and return
    ``n_id`` as user ids; samplers and row stores see stored ids only.
    """

    def to_stored(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """User ids to stored ids: int64, the shape of ``ids``. IndexError for ids that are no nodes."""
        ...

    def to_user(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor | None:
        """Stored ids to user ids: int64, on the device of ``ids``. None if the feature store has the user ids as an
        attribute ``n_id``, which is then read like any other row, and no process keeps a table of all nodes."""
        ...

    def to(self, device: torch.device) -> Numbering:
        """The same numbering, for ids on ``device``."""
        ...

    def equals(self, other: Any) -> bool:
        """Whether ``other`` maps every node to the same stored id."""
        ...


class Order(NamedTuple):
    """A renumbering of a graph's nodes: a permutation and its inverse.

    int64, but int32 where parts are written, whose ids fit.
    """

    old: Tensor
    """The old id of each new node: [n]."""
    new: Tensor
    """The new id of each old node: [n]."""

    @classmethod
    def from_permutation(cls, old: Tensor, num_nodes: int) -> Order:
        """The order that stores node ``old[i]`` as node i.

        Raises:
            TypeError, ValueError, IndexError: ``old`` is not int64 of shape [num_nodes] that holds every node once.
        """
        return cls(old, check_permutation("order", old, num_nodes))

    def inverse(self) -> Order:
        """The renumbering that undoes this one."""
        return Order(self.new, self.old)

    # As a :class:`torch_gnnscale.topology.reorder.Numbering` of a homogeneous graph's nodes

    def to_stored(self, ids: Tensor, node_type: Any = None) -> Tensor:
        """User ids to stored ids: int64, the shape of ``ids``."""
        assert node_type is None
        stored = ids.to(self.new.device, torch.int64)
        check_ids("ids", stored.reshape(-1), len(self.new), "nodes")
        return self.new[stored]

    def to_user(self, ids: Tensor, node_type: Any = None) -> Tensor:
        """Stored ids to user ids: int64, on the device of ``ids``."""
        assert node_type is None
        return self.old[ids]

    def to(self, device: torch.device) -> Order:
        """The numbering on a device. :meth:`to_stored`, which maps seeds, stays on the CPU."""
        return Order(self.old.to(device), self.new)

    def equals(self, other: Any) -> bool:
        """Whether ``other`` maps every node to the same stored id."""
        return isinstance(other, Order) and (other is self or torch.equal(other.old, self.old))


class TypedOrder(dict[NodeType, Order]):
    """A renumbering of the nodes of several types; the types that it does not have keep their ids, of whose number it
    knows nothing."""

    # As a :class:`torch_gnnscale.topology.reorder.Numbering`

    def to_stored(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """User ids to stored ids: int64, the shape of ``ids``."""
        return self[node_type].to_stored(ids) if node_type in self else ids.to(torch.int64)

    def to_user(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Stored ids to user ids: int64, on the device of ``ids``."""
        return self[node_type].to_user(ids) if node_type in self else ids

    def to(self, device: torch.device) -> TypedOrder:
        """The same numbering, for ids on ``device``."""
        return TypedOrder({node_type: order.to(device) for node_type, order in self.items()})

    def equals(self, other: Any) -> bool:
        """Whether ``other`` maps every node to the same stored id."""
        same = isinstance(other, TypedOrder) and self.keys() == other.keys()
        return same and all(order.equals(other[node_type]) for node_type, order in self.items())


def orders_of(data: Any, order: Order | TypedOrder | None) -> dict[NodeType | None, Order]:
    """The orders of a Data's or a HeteroData's nodes by type, those that there are.

    Raises:
        TypeError: ``data`` is neither, or ``order`` is not an Order, or with a HeteroData not a TypedOrder.
    """
    check_graph(data, Data, HeteroData)
    kind = TypedOrder if isinstance(data, HeteroData) else Order
    if not isinstance(order, (kind, type(None))):
        raise TypeError(f"order: expected {kind.__name__}, such as a store's order, found {type(order).__name__}")
    return {None: order} if isinstance(order, Order) else dict(order or {})


def order_arrays(order: Numbering | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(arrays, metadata) of a saved store from which :func:`saved_order` makes its order again.

    Raises:
        NotImplementedError: neither None, an Order nor a TypedOrder.
    """
    if order is None:
        return {}, {}
    if isinstance(order, Order):
        return {"order": order.old}, {}
    if not isinstance(order, TypedOrder):
        found = type(order).__name__
        raise NotImplementedError(f"save of a store that is numbered by {found} is not implemented: use a TypedOrder")
    arrays = {f"order_{i}": of_type.old for i, of_type in enumerate(order.values())}
    return arrays, {"orders": [files.check_name(node_type) for node_type in order]}


def saved_order(
    arrays: Mapping[str, Tensor], meta: Mapping[str, Any], num_nodes: Mapping[NodeType | None, int]
) -> Order | TypedOrder | None:
    """The order of a saved store.

    Args:
        arrays: all arrays of the store. ``order``, or ``order_i`` for the i-th type of ``meta["orders"]``, holds the
            old id of each new node.
        meta: the metadata of the store.
        num_nodes: the number of nodes by type (None in a homogeneous graph), as far as it is known.

    Raises:
        KeyError, TypeError, ValueError, IndexError: an array that is missing or is not an order of all nodes.
    """

    def read(name: str, node_type: NodeType | None) -> Order:
        old = arrays[name]
        return Order(old, check_permutation(name, old, num_nodes.get(node_type, old.numel())))

    if "order" in arrays:
        return read("order", None)
    if "orders" not in meta:
        return None
    return TypedOrder({files.read_name(node_type): read(f"order_{i}", node_type)
                       for i, node_type in enumerate(meta["orders"])})  # fmt: skip


def by_score(score: Tensor, name: str = "score") -> Order:
    """Nodes by falling score; those of equal scores by rising id.

    Args:
        score: any real dtype, shape [n].
        name: the argument's name in error messages.

    Raises:
        TypeError, ValueError: not a vector of real numbers, or it holds NaN.
    """
    if not isinstance(score, Tensor) or score.dtype == torch.bool or score.is_complex():
        raise TypeError(f"{name}: expected real numbers, found {getattr(score, 'dtype', type(score).__name__)}")
    if score.dim() != 1:
        raise ValueError(f"{name}: expected a vector, found shape {tuple(score.shape)}")
    if score.is_floating_point() and bool(score.isnan().any()):
        raise ValueError(f"{name}[{int(score.isnan().nonzero()[0])}]: expected a number, found nan")
    old = torch.sort(_rising_where_falling(score), stable=True).indices
    new = torch.empty_like(old)
    new[old] = torch.arange(len(old))
    return Order(old, new)


def _rising_where_falling(score: Tensor) -> Tensor:
    """Integers that rise where ``score`` falls. torch sorts rising integers on all threads (a radix sort)."""
    if score.dtype == torch.uint64:
        return ~(score.view(torch.int64) ^ torch.iinfo(torch.int64).min)
    if not score.is_floating_point():
        return ~(score.to(torch.int64) if score.dtype in (torch.uint16, torch.uint32) else score)
    wide = (score if score.dtype == torch.float64 else score.to(torch.float32)) + 0.0  # no -0.0, which equals 0.0
    bits = wide.view(torch.int64 if wide.dtype == torch.float64 else torch.int32)
    info = torch.iinfo(bits.dtype)
    return ~(bits ^ ((bits >> (info.bits - 1)) & info.max))  # negative numbers have magnitudes, not complements


def reorder_csc(csc: CSC, order: Order) -> CSC:
    """The same edges between renumbered nodes, with the same edge ids.

    Raises:
        ValueError: the numbers of sources, of destinations and of nodes in ``order`` differ.
    """
    if not csc.num_src == csc.num_dst == len(order.old):
        raise ValueError(f"csc: expected {len(order.old)} sources and destinations, found {csc}")
    colptr, edges = ops.renumber(csc.colptr, csc.row, order.old, edge_id=csc.edge_id)
    return CSC(colptr, edges[:, 0], edges[:, 1], csc.num_src)


def reorder_relation(csc: CSC, src: Order | None, dst: Order | None) -> CSC:
    """The same edges between renumbered sources and destinations, None leaving the ids as they are.

    Each edge keeps its original id, and the edges of a column keep their order.

    Raises:
        ValueError: an order of another number of nodes.
    """
    for name, order, count in (("src", src, csc.num_src), ("dst", dst, csc.num_dst)):
        if order is not None and len(order.old) != count:
            raise ValueError(f"order of {name}: expected one of {count} nodes, found one of {len(order.old)}")
    colptr, row, edge_id = csc.colptr, csc.row, csc.edge_id
    if dst is not None:
        degree = colptr.diff()[dst.old]
        moved = torch.cat([colptr.new_zeros(1), degree.cumsum(0)])
        place = torch.arange(csc.num_edges) + (colptr[:-1][dst.old] - moved[:-1]).repeat_interleave(degree)
        colptr, row, edge_id = moved, row[place], place if edge_id is None else edge_id[place]
    if src is not None:
        row = src.new[row.to(torch.int64)].to(row.dtype)
    return CSC(colptr, row, edge_id, csc.num_src)


def reorder_data(data: Data, order: Order) -> Data:
    """A copy of a Data with renumbered nodes: attributes of nodes are permuted, ids of nodes are replaced.

    Attributes of nodes are the tensors, arrays and lists for which ``data.is_node_attr`` is true; they are permuted
    along the dimension ``data.__cat_dim__``. Ids of nodes are, as everywhere in PyG, in ``edge_index``, ``face`` and
    other integer tensors with "index" in their names. Other tensors of ids, such as a ``train_idx``, are left as they
    are: replace them by ``order.new[train_idx]``.

    Edges and their attributes keep their positions. ``reorder_data(result, order.inverse())`` is the input again.

    Raises:
        ValueError: ``order`` is of another number of nodes, or an index holds something that is no node's id.
        NotImplementedError: not a Data, or its edges are in ``adj_t`` or ``adj``.
    """
    if not isinstance(data, Data):
        raise NotImplementedError(f"reorder_data of a {type(data).__name__} is not implemented: use a Data")
    if data.num_nodes != len(order.old):
        raise ValueError(f"order: expected one of {data.num_nodes} nodes, found {len(order.old)}")
    if "adj_t" in data or "adj" in data:
        raise NotImplementedError("reorder_data of a sparse adjacency is not implemented; use its edge_index")
    out = copy.copy(data)
    for name, value in data.items():
        if ("index" in name or name == "face") and isinstance(value, Tensor) and value.dtype in ops.ID_DTYPES:
            if (at := ops.first_outside(value.reshape(-1), len(order.old))) >= 0:
                wrong = int(value.reshape(-1)[at])
                raise ValueError(f"data.{name}: expected nodes in [0, {len(order.old)}), found {wrong}")
            out[name] = order.new[value.to(torch.int64)].to(value.dtype)
        if data.is_node_attr(name):
            out[name] = _moved(out[name], order.old, data.__cat_dim__(name, value))
    return out


def _moved(value: Any, ids: Tensor, dim: int) -> Any:
    """The entries at ``ids`` along ``dim``, of a tensor or array; a list or tuple has one dimension."""
    if isinstance(value, Tensor):
        native = dim == 0 and ops.can_gather_rows(value)
        return ops.gather_rows(value, ids) if native else value.index_select(dim, ids)
    if isinstance(value, np.ndarray):
        return value.take(ids.numpy(), axis=dim)
    return type(value)(value[i] for i in ids.tolist()) if isinstance(value, (list, tuple)) else value[ids]
