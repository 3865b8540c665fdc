"""How often training will read each node's features: scores that decide which rows lie in the fastest memory.

The scores of Data Tiering (section 3.1), and two that count: accesses of past epochs, and of the one to come, which is
known because batches are pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import ops
from ..topology import CSC

if TYPE_CHECKING:
    from ..loader import NeighborLoader


def out_degree(csc: CSC) -> Tensor:
    """How many edges leave each node, and so in how many neighborhoods it is: int64, shape [num_src]."""
    return ops.count_ids(csc.row, csc.num_src)


def reverse_pagerank(csc: CSC, labelled: Tensor | None = None, *, iterations: int = 5, damping: float = 0.85) -> Tensor:
    """Reverse PageRank, weighted if the nodes that training starts from are given.

    A node sums the scores of the nodes that it points to, each divided by that node's in-degree. The initial score of a
    labelled node is |V| / |labelled| times the others'; few iterations, so that it still counts (algorithm 1).

    Args:
        csc: a graph with as many sources as destinations.
        labelled: ids of the labelled nodes or a mask of all nodes; None gives every node the same.
        iterations: passes over the edges.
        damping: the share of a score that is passed on; the rest is spread over all nodes.

    Returns:
        int64, shape [num_src]: scores in units of ``ops.score_unit(num_src)``, the same for any number of threads.

    Raises:
        TypeError, ValueError, IndexError: not such a graph, ids or numbers.
    """
    num_nodes = csc.num_src
    if csc.num_dst != num_nodes:
        raise ValueError(f"csc: expected as many sources as destinations, found {csc}")
    unit = ops.score_unit(num_nodes)
    initial = torch.full((num_nodes,), unit, dtype=torch.int64)
    if labelled is not None:
        if not isinstance(labelled, Tensor):
            raise TypeError(f"labelled: expected a tensor of ids or a mask, found {type(labelled).__name__}")
        if labelled.dtype == torch.bool:
            if labelled.shape != (num_nodes,):
                raise ValueError(f"labelled: expected a mask of {num_nodes} nodes, found {tuple(labelled.shape)}")
            labelled = labelled.nonzero().view(-1)
        if (at := ops.first_outside(labelled, num_nodes)) >= 0:
            raise IndexError(f"labelled[{at}] = {int(labelled[at])}: expected nodes in [0, {num_nodes})")
        labelled = labelled.unique()
        if len(labelled):
            initial[labelled] = unit * num_nodes // len(labelled)
    return ops.reverse_pagerank(csc.colptr, csc.row, initial, iterations, damping)


def accesses(loader: NeighborLoader, epochs: Sequence[int]) -> Tensor:
    """How often a loader's batches of some epochs read each node's features.

    Epochs of other numbers than training will have are a sample of it (presampling, as GNNLab and GSplit do); the epoch
    to come itself gives its accesses exactly. Nothing but the topology is read.

    Args:
        loader: a homogeneous NeighborLoader, whose order is a function of its seed.
        epochs: their numbers, at least 0.

    Returns:
        int64, shape [num_nodes], by the user's ids.
    """
    num_nodes = loader.node_sampler.num_nodes
    if not isinstance(num_nodes, int):
        raise NotImplementedError(
            "accesses of a heterogeneous graph's nodes are not implemented; count by type yourself"
        )
    count = torch.zeros(num_nodes, dtype=torch.int64)
    for epoch in epochs:
        for out in loader.samples(epoch):
            node = out.node.cpu()
            count.index_add_(0, node, torch.ones_like(node))
    return count if loader.order is None else count[loader.order.new]
