"""One relation's edges, sorted by destination."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.storage import EdgeStorage
from torch_geometric.edge_index import EdgeIndex

from .. import ops
from .._user import on_host
from ..ops.arguments import as_ids, as_tensor, check_tensor, to_int

CHUNK = 1 << 22
"""How many edges of a graph that may be mapped are read at a time."""


def _check_ends(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> None:
    """Raises IndexError naming the first entry of ``edge_index`` that is no node."""
    for end, (ids, limit) in enumerate(((src, num_src), (dst, num_dst))):
        if (at := ops.first_outside(ids, limit)) >= 0:
            raise IndexError(
                f"edge_index[{end}, {at}] = {int(ids[at])} is out of range: expected nodes in [0, {limit})"
            )


def _check_size(**sizes: int | None) -> list[int | None]:
    """Numbers of nodes as ints or None; raises TypeError or ValueError naming them."""
    for name, size in sizes.items():
        if size is not None and to_int(name, size) < 0:
            raise ValueError(f"{name}: expected at least 0 nodes, found {size}")
    return [None if size is None else int(size) for size in sizes.values()]


def _tensor(name: str, value: Any) -> Tensor:
    check_tensor(name, value)
    return value.detach().cpu()


def check_graph(data: Any, *kinds: type) -> None:
    """Raises TypeError unless the data are of one of these kinds of PyG's graphs."""
    if not isinstance(data, kinds):
        expected = " or ".join(f"a {kind.__name__}" for kind in kinds)
        raise TypeError(f"data: expected {expected}, found {type(data).__name__}")


def bound_of(ids: Tensor) -> int:
    """All ids are in [0, bound_of(ids)): the largest one + 1, or 0."""
    return int(ids.max()) + 1 if ids.numel() else 0


@dataclass(frozen=True, eq=False)
class CSC:
    """Edges sorted by destination, with the way back to the user's edge ids.

    Use the ``from_*`` constructors: they check their arguments and never change them.
    """

    colptr: Tensor
    """Where each destination's edges begin: int64, shape [num_dst + 1]."""
    row: Tensor
    """Source of each edge: int32 where ids fit, else int64, shape [num_edges]; it may be strided."""
    edge_id: Tensor | None
    """The user's id of each edge, like ``row``; None where it is the position."""
    num_src: int
    """Number of source nodes."""
    origin: tuple[Callable[..., CSC], tuple[Any, ...]] | None = None
    """Of a mapped relation: a function that maps it, and its arguments, which are pickled instead of the tensors."""

    def __reduce__(self):
        if self.origin is not None:
            return self.origin
        return CSC, (self.colptr, self.row, self.edge_id, self.num_src)

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        return self.colptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.row.numel()

    def __repr__(self) -> str:
        return f"CSC(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}, row={self.row.dtype})"

    def relations(self) -> ops.Relations:
        """What sampling operators draw from: the graph of these edges alone, between nodes of one type."""
        return ops.relations([self.colptr], [self.row], edge_id=[self.edge_id])

    @classmethod
    @on_host
    def from_edge_index(
        cls, edge_index: Any, size: int | tuple[int | None, int | None] | None = None, is_sorted: bool = False
    ) -> CSC:
        """From COO.

        Args:
            edge_index: sources and destinations, shape [2, E]: a tensor, an EdgeIndex, a NumPy array or a list, or two
                of these, of any integer type.
            size: number of nodes, or of (sources, destinations); by default what an EdgeIndex says, else one more
                than the largest id.
            is_sorted: the edges are already sorted by destination. No edge ids are stored then: each is the position.

        Raises:
            TypeError, ValueError, IndexError: wrong dtype or shape, an id out of range, edges not sorted after all.
        """
        edge_index = as_tensor("edge_index", edge_index)
        if edge_index.dim() != 2 or edge_index.size(0) != 2:
            raise ValueError(f"edge_index: expected shape (2, num_edges), found {tuple(edge_index.shape)}")
        if isinstance(size, (tuple, list)) and len(size) != 2:
            raise ValueError(f"size: expected a number of nodes or (sources, destinations), found {size}")
        num_src, num_dst = size if isinstance(size, (tuple, list)) else (size, size)
        if isinstance(edge_index, EdgeIndex):
            known = edge_index.sparse_size()
            num_src = known[0] if num_src is None else num_src
            num_dst = known[1] if num_dst is None else num_dst
            is_sorted = is_sorted or edge_index.is_sorted_by_col
            edge_index = edge_index.as_tensor()
        edge_index = as_ids("edge_index", edge_index)
        num_src, num_dst = _check_size(num_src=num_src, num_dst=num_dst)
        src, dst = edge_index.detach().cpu()
        if num_src is None and num_dst is None:
            num_src = num_dst = max(bound_of(src), bound_of(dst))
        num_src = bound_of(src) if num_src is None else num_src
        num_dst = bound_of(dst) if num_dst is None else num_dst
        if not is_sorted:
            try:
                colptr, edges = ops.coo_to_csc(src, dst, num_src, num_dst)
            except IndexError:
                _check_ends(src, dst, num_src, num_dst)
                raise
            row, edge_id = edges.unbind(1)
            if edges.dtype == torch.int64 and num_src <= torch.iinfo(torch.int32).max:
                row, edge_id = row.to(torch.int32), edge_id.contiguous()  # the edges alone need 64 bits
            return cls(colptr, row, edge_id, num_src)
        _check_ends(src, dst, num_src, num_dst)
        try:
            colptr = ops.colptr_of_sorted(dst, num_dst)
        except ValueError as error:
            raise ValueError(str(error).replace("dst: ", "is_sorted: ", 1)) from None
        return cls.from_csc(colptr, src, num_src=num_src)

    @classmethod
    @on_host
    def from_csc(cls, colptr: Tensor, row: Tensor, edge_id: Tensor | None = None, num_src: int | None = None) -> CSC:
        """From column pointers and sources.

        Args:
            colptr: int32 or int64, shape [num_dst + 1].
            row: int32 or int64, shape [num_edges].
            edge_id: the user's edge ids, int32 or int64, shape [num_edges]; by default the position.
            num_src: number of source nodes; by default that of destinations.

        Raises:
            TypeError, ValueError, IndexError: wrong dtype, a malformed ``colptr``, a source out of range.
        """
        colptr, row = _tensor("colptr", colptr), _tensor("row", row)
        edge_id = None if edge_id is None else _tensor("edge_id", edge_id)
        if colptr.dtype == torch.int32:
            colptr = colptr.to(torch.int64)
        ops.check_colptr(colptr, row.numel())
        _check_size(num_src=num_src)
        num_src = colptr.numel() - 1 if num_src is None else int(num_src)
        if row.dtype not in ops.ID_DTYPES or row.dim() != 1:
            raise TypeError(f"row: expected a vector of int32 or int64, found {row.dtype} {tuple(row.shape)}")
        if (at := ops.first_outside(row, num_src)) >= 0:
            raise IndexError(f"row[{at}] = {int(row[at])} is out of range: expected nodes in [0, {num_src})")
        if edge_id is not None and (edge_id.dtype not in ops.ID_DTYPES or edge_id.shape != row.shape):
            raise TypeError(
                f"edge_id: expected int32 or int64 ids for {row.numel()} edges, found {edge_id.dtype} "
                f"{tuple(edge_id.shape)}"
            )
        if num_src <= torch.iinfo(torch.int32).max:
            row = row.to(torch.int32)
        return cls(colptr.contiguous(), row, edge_id, num_src)

    @classmethod
    @on_host
    def from_adj_t(cls, adj_t: Any) -> CSC:
        """From a transposed adjacency (rows are destinations): a torch sparse CSR, CSC or COO tensor or a SparseTensor.

        An edge's id is the position of its entry in ``adj_t``, as its values are stored.
        """
        if isinstance(adj_t, Tensor):
            if adj_t.layout == torch.sparse_csr:
                return cls.from_csc(adj_t.crow_indices(), adj_t.col_indices(), num_src=adj_t.size(1))
            if adj_t.layout == torch.sparse_csc:
                dst = adj_t.row_indices()
                src = torch.repeat_interleave(adj_t.ccol_indices().diff()).to(dst.dtype)
                return cls.from_edge_index(torch.stack([src, dst]), (adj_t.size(1), adj_t.size(0)))
            if adj_t.layout == torch.sparse_coo:
                return cls.from_edge_index(adj_t._indices().flip(0), (adj_t.size(1), adj_t.size(0)))
        elif hasattr(adj_t, "csr") and hasattr(adj_t, "sparse_sizes"):  # torch_sparse.SparseTensor
            rowptr, col, _ = adj_t.csr()
            return cls.from_csc(rowptr, col, num_src=adj_t.sparse_size(1))
        found = f"a tensor of {adj_t.layout}" if isinstance(adj_t, Tensor) else type(adj_t).__name__
        raise TypeError(f"adj_t: expected torch.sparse_csr, sparse_csc or sparse_coo, or a SparseTensor, found {found}")

    @classmethod
    @on_host
    def from_data(cls, data: Data, is_sorted: bool = False) -> CSC:
        """From a Data's ``adj_t`` or ``edge_index``; a Data that has neither has no edges.

        Raises:
            TypeError: ``data`` is no Data.
            ValueError: the edges are in ``adj``, a layout that batches do not have, or the number of nodes is unknown.
        """
        check_graph(data, Data)
        num_nodes = data.num_nodes
        if num_nodes is None:
            raise ValueError("data: expected it to know its number of nodes; set data.num_nodes")
        return cls.from_storage(data, (num_nodes, num_nodes), is_sorted)

    @classmethod
    @on_host
    def from_storage(cls, store: Data | EdgeStorage, size: tuple[int, int], is_sorted: bool = False) -> CSC:
        """From the storage of one edge type; ``size``: numbers of sources and destinations (see :meth:`from_data`)."""
        if "adj_t" in store:
            return cls.from_adj_t(store["adj_t"])
        if "edge_index" not in store:
            if "adj" in store:
                raise ValueError("data: expected edge_index or adj_t, found adj; use data.adj_t = data.adj.t()")
            return cls.from_edge_index(torch.empty(2, 0, dtype=torch.int64), size)
        return cls.from_edge_index(store["edge_index"], size, is_sorted)

    def transposed(self) -> CSC:
        """The same edges in the opposite direction; in each column by rising edge id."""
        src, dst, edge_id = self.row.to(torch.int64), self.col(), self.edge_id
        if edge_id is not None:
            by_id = torch.argsort(edge_id, stable=True)
            src, dst, edge_id = src[by_id], dst[by_id], edge_id[by_id]
        csc = CSC.from_edge_index(torch.stack([dst, src]), (self.num_dst, self.num_src))
        assert csc.edge_id is not None
        return csc if edge_id is None else CSC(csc.colptr, csc.row, edge_id[csc.edge_id.to(torch.int64)], csc.num_src)

    def col(self) -> Tensor:
        """Destination of each edge: int64, shape [num_edges]."""
        return torch.repeat_interleave(self.colptr.diff(), output_size=self.num_edges)
