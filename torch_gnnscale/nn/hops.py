"""The hops of a batch, and what a layer needs of them."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData

from .aggregate import Edges


def first_rows(x: Tensor, count: int) -> Tensor:
    """``x[:count]``; x itself where that is all of it, for the gradient of a slice is a copy."""
    return x if x.size(0) == count else x[:count]


class Hops:
    """The nested prefixes of a batch: the nodes and edges of its first hops.

    With L hops there are L + 1 groups of nodes (the seeds first) and L groups of edges; those drawn in hop h lead from
    the first h + 1 groups of nodes into the first h. A layer whose input has the rows of the first g groups can give
    those of the first g - 1.

    Args:
        batch: a homogeneous mini-batch with ``edge_index``, sorted by destination, ``num_sampled_nodes`` and
            ``num_sampled_edges``, as this package's loader and PyG's make them.
        verify: on a GPU too, where the host waits for it, look whether the edges are sorted and lie as the numbers say.

    Raises:
        ValueError: the batch is none.
    """

    def __init__(self, batch: Any, verify: bool = True) -> None:
        if isinstance(batch, HeteroData):
            raise ValueError("batch: expected one of a homogeneous graph, found a HeteroData, which cannot be narrowed")
        for name in ("edge_index", "num_sampled_nodes", "num_sampled_edges"):
            if getattr(batch, name, None) is None:
                raise ValueError(
                    f"batch: expected one of NeighborLoader with {name}, found none; subgraph_type='induced' and "
                    f"'bidirectional', edge_layout='sparse_csr' and 'SparseTensor' have no hops to narrow to"
                )
        self.edge_index: Tensor = batch.edge_index
        self.rows = list(accumulate(batch.num_sampled_nodes))
        """Nodes of the first 1, 2, ... groups."""
        self.num_edges = list(accumulate(batch.num_sampled_edges))
        """Edges into the first 1, 2, ... groups, but the last."""
        index = self.edge_index.as_tensor() if isinstance(self.edge_index, EdgeIndex) else self.edge_index
        if self.num_edges[-1] != index.size(1) or self.rows[-1] != batch.num_nodes:
            raise ValueError(
                f"batch: expected {self.num_edges[-1]} edges and {self.rows[-1]} nodes as its hops say, found "
                f"{index.size(1)} and {batch.num_nodes}"
            )
        verify = verify or index.device.type == "cpu"
        if verify and bool((index[1, 1:] < index[1, :-1]).any()):
            raise ValueError("batch.edge_index: expected edges sorted by destination, found others")
        num_nodes = self.rows[-1]
        ptr = torch._convert_indices_from_coo_to_csr(index[1].contiguous(), num_nodes)
        if verify and (found := self.ends(ptr)) != self.num_edges:
            raise ValueError(f"batch: expected {self.num_edges} edges into its hops' nodes, found {found}")
        self.edges = Edges.sorted(index, ptr, num_nodes)

    def ends(self, ptr: Tensor) -> list[int]:
        """``num_edges`` by the pointers of sorted edges, which may be more than the batch's; the host waits for it."""
        return ptr[self.rows[:-1]].tolist()

    def groups(self, rows: int) -> int:
        """How many groups have so many nodes, the most if several numbers fit; 0 if none does."""
        return max((g for g, count in enumerate(self.rows, 1) if count == rows), default=0)
