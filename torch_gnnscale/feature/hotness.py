"""How often training will read each node's features: scores that decide which rows lie in the fastest memory.

The scores of Data Tiering (section 3.1); :func:`torch_gnnscale.loader.accesses` counts what a loader reads instead.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from .. import ops
from ..ops.arguments import check_ids
from ..topology import CSC

NAMES = ("out_degree", "reverse_pagerank", "weighted_reverse_pagerank")
"""Of the scores that follow from a graph, and for the last from the nodes that training starts from."""


def scores_of(data: Data, hotness: str | Tensor, labelled: Tensor | None = None) -> Tensor:
    """The scores of a name, weighted for ``labelled`` or ``data.train_mask``; scores themselves as they are.

    Raises:
        TypeError, ValueError, IndexError: neither, or ``labelled`` where it has no effect or where none is known.
    """
    if not isinstance(hotness, (str, Tensor)):
        raise TypeError(f"hotness: expected scores as a tensor, or a name, found {type(hotness).__name__}")
    if isinstance(hotness, str) and hotness not in NAMES:
        raise ValueError(f"hotness: expected scores or one of {NAMES}, found {hotness!r}")
    weighted = isinstance(hotness, str) and hotness == "weighted_reverse_pagerank"
    if labelled is not None and not weighted:
        raise ValueError("labelled: expected hotness='weighted_reverse_pagerank' beside it, for which alone it counts")
    if isinstance(hotness, Tensor):
        return hotness
    csc = CSC.from_data(data)
    if hotness == "out_degree":
        return out_degree(csc)
    if not weighted:
        return reverse_pagerank(csc)
    labelled = getattr(data, "train_mask", None) if labelled is None else labelled
    if labelled is None:
        raise ValueError("labelled: expected the nodes that training starts from, found neither it nor data.train_mask")
    return reverse_pagerank(csc, labelled)


def out_degree(csc: CSC) -> Tensor:
    """How many edges leave each node, and so in how many neighborhoods it is: int64, shape [num_src]."""
    return ops.count_ids(csc.row, csc.num_src)


def reverse_pagerank(csc: CSC, labelled: Tensor | None = None, *, iterations: int = 5, damping: float = 0.85) -> Tensor:
    """Reverse PageRank, weighted if the nodes that training starts from are given.

    A node sums the scores of the nodes that it points to, each divided by that node's in-degree. The initial score of a
    labelled node is ``|V| / |labelled|`` times the others'; few iterations, so that it still counts (algorithm 1).

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
        check_ids("labelled", labelled, num_nodes, "nodes")
        labelled = labelled.unique()
        if len(labelled):
            initial[labelled] = unit * num_nodes // len(labelled)
    return ops.reverse_pagerank(csc.colptr, csc.row, initial, iterations, damping)
