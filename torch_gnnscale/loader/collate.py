"""From a sampler's output to the Data that a model gets."""

from __future__ import annotations

import copy
import threading
import warnings
from collections import deque
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.loader.utils import index_select
from torch_geometric.sampler import SamplerOutput

from .. import ops

EdgeLayout = Literal["coo", "EdgeIndex", "sparse_csr", "SparseTensor"]
"""What a batch's edges are: ``edge_index`` as a plain tensor or as an EdgeIndex that knows its column pointer, or
``adj_t`` as a torch sparse CSR tensor or a torch_sparse.SparseTensor."""


_HUGE_FROM = 64 << 20  # bytes; of smaller tensors the processor keeps most page table entries


def edge_layout_of(data: Any, asked: EdgeLayout | None) -> EdgeLayout:
    """The layout asked for, or the one of the input, as PyG's loaders do."""
    if asked is not None:
        if asked not in get_args(EdgeLayout):
            raise ValueError(f"edge_layout: expected one of {get_args(EdgeLayout)}, found {asked!r}")
        if asked == "SparseTensor":
            _sparse_tensor()
        return asked
    if not isinstance(data, Data) or "adj_t" not in data:
        return "coo"
    return "sparse_csr" if isinstance(data.adj_t, Tensor) else "SparseTensor"


def _sparse_tensor() -> Any:
    try:
        from torch_sparse import SparseTensor
    except ImportError as error:
        raise ImportError("edge_layout='SparseTensor' needs torch-sparse: pip install torch-sparse") from error
    return SparseTensor


def warn_of_slow_rows(data: Data) -> None:
    """Names the tensors whose rows the native gather cannot copy, but could."""
    for name, value in data.items():
        is_row_tensor = isinstance(value, Tensor) and (data.is_node_attr(name) or data.is_edge_attr(name))
        if not is_row_tensor or value.layout != torch.strided or data.__cat_dim__(name, value) != 0:
            continue
        if value.numel() and not value[0].is_contiguous():
            warnings.warn(
                f"data.{name} has no contiguous rows (strides {value.stride()}), so torch.index_select gathers them, "
                f"which is slower; use data.{name} = data.{name}.contiguous()",
                stacklevel=4,
            )


def move_to_huge_pages(data: Data) -> None:
    """Moves the large tensors whose rows are gathered, in a thread beside the first batches."""
    large = [
        value
        for name, value in data.items()
        if isinstance(value, Tensor)
        and ops.can_gather_rows(value)
        and value.device.type == "cpu"
        and value.nbytes >= _HUGE_FROM
        and value.is_contiguous()
        and not value.is_shared()
        and (data.is_node_attr(name) or data.is_edge_attr(name))
    ]
    if large:
        threading.Thread(target=lambda: deque(map(ops.huge_pages, large), maxlen=0), daemon=True).start()


def _rows(value: Any, index: Tensor, dim: int) -> Any:
    if isinstance(value, Tensor):
        index = index.to(value.device)
        if dim == 0 and ops.can_gather_rows(value):
            return ops.gather_rows(value, index)
    return index_select(value, index, dim=dim)


def from_data(data: Data, out: SamplerOutput, edge_id: Tensor | None) -> Data:
    """The Data's attributes, those of nodes and edges reduced to the sampled ones; the edges are still the Data's."""
    store = data._store
    batch = copy.copy(data)
    for key, value in store.items():
        if key == "num_nodes":
            batch.num_nodes = out.node.numel()
        elif key in ("edge_index", "adj_t"):
            continue
        elif store.is_node_attr(key):
            batch[key] = _rows(value, out.node, data.__cat_dim__(key, value, store))
        elif store.is_edge_attr(key):
            dim = data.__cat_dim__(key, value, store)
            batch[key] = None if edge_id is None else _rows(value, edge_id, dim)
    return batch


def from_store(feature_store: Any, out: SamplerOutput, edge_index: Tensor, custom_cls: Any) -> Data:
    """All tensors of a FeatureStore at the sampled nodes, behind the edges."""
    batch = custom_cls() if custom_cls is not None else Data()
    batch.edge_index = edge_index
    attrs = feature_store.get_all_tensor_attrs()
    for attr in attrs:
        attr.index = out.node
        batch.num_nodes = out.node.numel()
    for attr, tensor in zip(attrs, feature_store.multi_get_tensor(attrs), strict=True):
        batch[attr.attr_name] = tensor
    return batch


def sort_edges(edge_index: Tensor, num_nodes: int, edge_id: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Edges of somebody else's making, sorted by destination: edge_index, colptr, edge_id."""
    order = torch.argsort(edge_index[1], stable=True)
    edge_index = edge_index[:, order]
    colptr = torch._convert_indices_from_coo_to_csr(edge_index[1].contiguous(), num_nodes)
    return edge_index, colptr, None if edge_id is None else edge_id[order]


def set_edges(
    batch: Data, edge_index: Tensor, colptr: Tensor | None, num_nodes: int, layout: EdgeLayout, value: Tensor | None
) -> None:
    """Puts the sampled edges into ``batch``.

    Args:
        batch: the Data to fill.
        edge_index: local COO, sorted by destination where the layout needs it: int64, shape [2, e].
        colptr: where the edges of the first nodes begin: int64, at most [num_nodes + 1]; later nodes have none. Needed
            for EdgeIndex and sparse_csr.
        num_nodes: nodes of the batch.
        layout: what to put.
        value: values of the edges for ``adj_t``, if it has any, on the edges' device.
    """
    if (other := "adj_t" if layout in ("coo", "EdgeIndex") else "edge_index") in batch:
        del batch[other]
    if layout == "coo":
        batch.edge_index = edge_index
        return
    size = (num_nodes, num_nodes)
    if layout != "SparseTensor":
        assert colptr is not None
        pointer = torch.cat([colptr, colptr.new_full((num_nodes + 1 - colptr.numel(),), edge_index.size(1))])
    if layout == "EdgeIndex":
        batch.edge_index = EdgeIndex(edge_index, sparse_size=size, sort_order="col")
        batch.edge_index._indptr = pointer
    elif layout == "sparse_csr":
        value = torch.ones(edge_index.size(1), device=edge_index.device) if value is None else value
        batch.adj_t = torch.sparse_csr_tensor(pointer, edge_index[0], value, size, check_invariants=False)
    else:
        # Not flagged as sorted, for sources within a destination are in order of drawing; as PyG does.
        batch.adj_t = _sparse_tensor()(
            row=edge_index[1], col=edge_index[0], value=value, sparse_sizes=size, is_sorted=False, trust_data=True
        )


def edge_device(data: Any) -> torch.device:
    """Where a batch's edges belong: where the Data has its own, as PyG's loaders do; else in host memory."""
    edges = data.get("adj_t", data.edge_index) if isinstance(data, Data) else None
    if edges is None:
        return torch.device("cpu")
    return edges.device if isinstance(edges, Tensor) else edges.device()


def edge_values(data: Data, edge_id: Tensor | None) -> Tensor | None:
    """The values of ``data.adj_t`` at the sampled edges, if it has any."""
    if "adj_t" not in data or edge_id is None:
        return None
    if isinstance(data.adj_t, Tensor):
        value = data.adj_t._values() if data.adj_t.layout == torch.sparse_coo else data.adj_t.values()
    else:
        value = data.adj_t.storage.value()
    return None if value is None else _rows(value, edge_id, 0)
