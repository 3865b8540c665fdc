"""What a batch's edges are: plain COO, EdgeIndex, or a transposed sparse adjacency."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData

EdgeLayout = Literal["coo", "EdgeIndex", "sparse_csr", "SparseTensor"]
"""What a batch's edges are: ``edge_index`` as a plain tensor or as an EdgeIndex that knows its column pointer, or
``adj_t`` as a torch sparse CSR tensor or a torch_sparse.SparseTensor."""


def edge_layouts_of(data: Any, asked: EdgeLayout | None) -> dict[Any, EdgeLayout]:
    """The layout asked for, or the one of the input, by edge type, as PyG's loaders do; "coo" for other types."""
    if asked is not None:
        if asked not in get_args(EdgeLayout):
            raise ValueError(f"edge_layout: expected one of {get_args(EdgeLayout)}, found {asked!r}")
        if asked == "SparseTensor":
            _sparse_tensor()
        return _Always(asked)
    layouts = _Always("coo")
    if isinstance(data, (Data, HeteroData)):
        stores = data.edge_items() if isinstance(data, HeteroData) else [(None, data)]
        for edge_type, store in stores:
            if "adj_t" in store:
                layouts[edge_type] = "sparse_csr" if isinstance(store["adj_t"], Tensor) else "SparseTensor"
    return layouts


class _Always(dict):
    """A dictionary with one value for every key that it does not have."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def __missing__(self, key: Any) -> Any:
        return self.value

    def __reduce__(self):
        return _Always, (self.value,), None, None, iter(self.items())


def _sparse_tensor() -> Any:
    try:
        from torch_sparse import SparseTensor
    except ImportError as error:
        raise ImportError("edge_layout='SparseTensor' needs torch-sparse: pip install torch-sparse") from error
    return SparseTensor


def laid_out(
    edge_index: Tensor, colptr: Tensor | None, size: tuple[int, int], layout: EdgeLayout, value: Tensor | None = None
) -> Any:
    """Edges in a layout.

    Args:
        edge_index: local COO, sorted by destination where the layout needs it: int64, shape [2, e].
        colptr: where the edges of the first destinations begin: int64, at most [num_dst + 1]; later ones have none.
            Needed for EdgeIndex and sparse_csr.
        size: how many sources and destinations there are.
        layout: what to make.
        value: values of the edges for ``adj_t``, if it has any, on the edges' device.
    """
    if layout == "coo":
        return edge_index
    num_src, num_dst = size
    if layout != "SparseTensor":
        assert colptr is not None
        pointer = torch.cat([colptr, colptr.new_full((num_dst + 1 - colptr.numel(),), edge_index.size(1))])
    if layout == "EdgeIndex":
        edges = EdgeIndex(edge_index, sparse_size=size, sort_order="col")
        edges._indptr = pointer
        return edges
    if layout == "sparse_csr":
        value = torch.ones(edge_index.size(1), device=edge_index.device) if value is None else value
        return torch.sparse_csr_tensor(pointer, edge_index[0], value, (num_dst, num_src), check_invariants=False)
    # Not flagged as sorted, for sources within a destination are in order of drawing; as PyG does.
    return _sparse_tensor()(
        row=edge_index[1], col=edge_index[0], value=value, sparse_sizes=(num_dst, num_src), is_sorted=False,
        trust_data=True,
    )  # fmt: skip


def set_edges(store: Any, edges: Any, layout: EdgeLayout) -> None:
    """Puts edges that are laid out into a Data or the storage of an edge type."""
    name, other = ("edge_index", "adj_t") if layout in ("coo", "EdgeIndex") else ("adj_t", "edge_index")
    if other in store:
        del store[other]
    store[name] = edges


def sort_by_destination(col: Tensor, num_dst: int) -> tuple[Tensor, Tensor]:
    """The order of edges by destination, equal ones in the order they have, and where each column's edges then begin:
    int64, shapes [e] and [num_dst + 1]."""
    order = torch.argsort(col, stable=True)
    return order, torch._convert_indices_from_coo_to_csr(col[order], num_dst)


def edge_device(store: Any) -> torch.device:
    """Where a batch's edges belong: where the input has its own, as PyG's loaders do; else in host memory."""
    edges = store.get("adj_t", store.get("edge_index"))
    if edges is None:
        return torch.device("cpu")
    return edges.device if isinstance(edges, Tensor) else edges.device()


def stored_values(store: Any) -> Tensor | None:
    """The values of the input's ``adj_t``, if it has any."""
    if "adj_t" not in store:
        return None
    adj_t = store["adj_t"]
    if isinstance(adj_t, Tensor):
        return adj_t._values() if adj_t.layout == torch.sparse_coo else adj_t.values()
    return adj_t.storage.value()
