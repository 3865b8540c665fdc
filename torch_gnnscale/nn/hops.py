"""The hops of a batch, and the edges that each layer of a model needs of them."""

from __future__ import annotations

import copy
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, HeteroData

from .. import ops
from .aggregate import Adjacency


def first_rows(x: Tensor, count: int) -> Tensor:
    """``x[:count]``, or x itself if it has no other rows: the gradient of a slice is a copy."""
    return x if x.size(0) == count else x[:count]


def check_no_graphs(batch: Any) -> None:
    """Raises ValueError for PyG's Batch, whose ``batch_size`` is a number of graphs."""
    if isinstance(batch, Batch):
        raise ValueError(
            "batch: expected a batch of a loader, found a torch_geometric.data.Batch, whose batch_size is its number "
            "of graphs; this package's loaders make a Data of it"
        )


def num_seeds(batch: Any) -> int:
    """The number of a batch's seeds, which are its first nodes. Of links these are the ends, each once, or once per
    tree. Raises ValueError for PyG's Batch."""
    check_no_graphs(batch)
    size = getattr(batch, "batch_size", None)
    return batch.num_sampled_nodes[0] if size is None else size


def _colptr(dst: Tensor, num_nodes: int, verify: bool) -> Tensor:
    """The column pointer of a batch's edges, which are sorted by destination; without ``verify`` this is not checked on
    a GPU, for which the host would wait.

    Raises:
        ValueError: they are not, or a destination is out of range.
    """
    if dst.device.type == "cpu":
        try:
            return ops.colptr_of_sorted(dst, num_nodes)
        except (IndexError, ValueError) as error:
            raise ValueError(f"batch.edge_index: {error}") from None
    if verify and dst.numel():
        if bool((dst[1:] < dst[:-1]).any()):
            raise ValueError("batch.edge_index: dst: expected edges sorted by destination, found others")
        if (least := int(dst[0])) < 0 or (most := int(dst[-1])) >= num_nodes:
            found = least if least < 0 else most
            raise ValueError(f"batch.edge_index: dst: expected ids in [0, {num_nodes}), found {found}")
    return torch._convert_indices_from_coo_to_csr(dst.contiguous(), num_nodes)


class HopEdges:
    """Edges between the nodes of a batch, sorted by destination, and the prefixes of them that layers need.

    Args:
        edges: all edges.
        rows, ends: ``rows`` and ``num_edges`` as in :class:`Hops`, counted for these edges.
    """

    def __init__(self, edges: Adjacency, rows: list[int], ends: list[int]) -> None:
        self.edges = edges
        self.rows = rows
        self.ends = ends
        self._prefixes: dict[int, Adjacency] = {}

    def prefix(self, groups: int) -> Adjacency:
        """The edges from the nodes of the first ``groups`` groups to those of the first ``groups - 1``."""
        found = self._prefixes.get(groups)
        if found is None:
            sizes = self.rows[groups - 1], self.rows[groups - 2], self.ends[groups - 2]
            found = self._prefixes[groups] = self.edges.prefix(*sizes)
        return found


class Hops:
    """The nodes and edges of a batch's first hops, as prefixes of all of them.

    The nodes of a batch of L hops are in L + 1 groups: ``rows[g - 1]`` is the number of nodes of the first g, and the
    first group are the seeds. ``num_edges[h - 1]`` is the number of edges that lead into the first h groups; their
    sources are in the first h + 1. So a layer whose input has rows of the first g groups computes those of the first
    g - 1.

    Args:
        batch: a homogeneous mini-batch with ``edge_index``, sorted by destination, ``num_sampled_nodes`` and
            ``num_sampled_edges``, as this package's loader and PyG's make them.
        verify: check the number of nodes, and, on a GPU too, that the edges are sorted and where each hop ends. The
            host then waits for the GPU. On a CPU edges are always checked.

    Raises:
        ValueError: the batch has no hops, or its edges do not agree with the numbers of its hops.
    """

    def __init__(self, batch: Any, verify: bool = True) -> None:
        check_no_graphs(batch)
        if isinstance(batch, HeteroData):
            raise ValueError("batch: expected one of a homogeneous graph, found a HeteroData, which cannot be narrowed")
        names = "edge_index", "num_sampled_nodes", "num_sampled_edges"
        read: dict[str, Any] = {name: getattr(batch, name, None) for name in names}
        for name, value in read.items():
            if value is None:
                raise ValueError(
                    f"batch: expected one of NeighborLoader with {name}, found none; subgraph_type='induced' and "
                    f"'bidirectional', edge_layout='sparse_csr' and 'SparseTensor' have no hops to narrow to"
                )
        nodes, edges = read["num_sampled_nodes"], read["num_sampled_edges"]
        self.edge_index: Tensor = read["edge_index"]
        if len(edges) == 0:
            raise ValueError("batch: expected one with hops to narrow to, found none (num_sampled_edges=[])")
        self.rows = list(accumulate(nodes))
        self.num_edges = list(accumulate(edges))
        self._groups = {count: g for g, count in enumerate(self.rows, 1)}
        self.tell = len(self._groups) == len(self.rows)
        """Whether numbers of rows tell groups: whether every hop found a node."""
        index = self.edge_index.as_tensor() if isinstance(self.edge_index, EdgeIndex) else self.edge_index
        if self.num_edges[-1] != index.size(1) or (verify and self.rows[-1] != batch.num_nodes):
            raise ValueError(
                f"batch: expected {self.num_edges[-1]} edges and {self.rows[-1]} nodes as its hops say, found "
                f"{index.size(1)} and {batch.num_nodes}"
            )
        num_nodes = self.rows[-1]
        ptr = _colptr(index[1], num_nodes, verify)
        verify = verify or index.device.type == "cpu"
        if verify and (found := self.ends(ptr)) != self.num_edges:
            raise ValueError(f"batch: expected {self.num_edges} edges into its hops' nodes, found {found}")
        self.edges = HopEdges(Adjacency.sorted(index, ptr, num_nodes), self.rows, self.num_edges)

    def ends(self, ptr: Tensor) -> list[int]:
        """How many edges lead into the first 1, 2, ..., L groups, by the column pointer of edges between all nodes. The
        host waits for the tensor."""
        if ptr.device.type == "cpu":  # one by one in a third of the time, but on a GPU each would be waited for
            return [int(ptr[row].item()) for row in self.rows[:-1]]
        return ptr[self.rows[:-1]].tolist()

    def groups(self, rows: int) -> int:
        """The number of first groups that have ``rows`` nodes together; 0 if there is none, the largest if there are
        several."""
        return self._groups.get(rows, 0)


def has_nodes_as_edges(batch: Any) -> bool:
    """Whether it has as many nodes as edges, so that the names of fields alone say which are nodes'."""
    return sum(batch.num_sampled_nodes) == batch.edge_index.size(1)


def with_nodes_in_every_group(batch: Any) -> Any:
    """The batch, which has seeds, with one more node for each of its later groups that has none. No edge leads to such
    a node or from it; its row of every field is that of the batch's first node."""
    sizes = batch.num_sampled_nodes
    num_nodes, device, by_name = sum(sizes), batch.edge_index.device, has_nodes_as_edges(batch)
    origins, first = [torch.arange(sizes[0])], sizes[0]
    for size in sizes[1:]:
        origins.append(torch.arange(first, first + size) if size else torch.zeros(1, dtype=torch.int64))
        first += size
    is_new = torch.cat([torch.full((len(of_group),), not size) for size, of_group in zip(sizes, origins, strict=True)])
    is_new[: sizes[0]] = False
    origin, place = torch.cat(origins).to(device), is_new.logical_not().nonzero()[:, 0].to(device)
    found = copy.copy(batch)
    for name, value in batch.to_dict().items():
        of_nodes = isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == num_nodes
        if of_nodes and name != "edge_index" and not (by_name and ("edge" in name or name == "e_id")):
            found[name] = value[origin.to(value.device)]
    index = batch.edge_index
    if isinstance(index, EdgeIndex):
        numbered, size = place[index.as_tensor()], (len(origin), len(origin))
        found.edge_index = EdgeIndex(numbered, sparse_size=size, sort_order=index.sort_order)
    else:
        found.edge_index = place[index]
    found.num_sampled_nodes = [sizes[0], *(max(size, 1) for size in sizes[1:])]
    found.num_nodes = len(origin)
    return found
