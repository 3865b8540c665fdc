"""Hotness scores of nodes: estimates of how often training reads a node's features. High scores go to fast memory.

Source: Data Tiering, section 3.1. :func:`torch_gnnscale.loader.accesses` counts what a loader reads instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from .. import ops
from ..ops.arguments import check_ids
from ..topology import CSC

NAMES = ("out_degree", "reverse_pagerank", "weighted_reverse_pagerank")
"""Names of the scores. They are computed from the graph; the last one also from the labelled nodes."""


def scores_of(data: Data, hotness: str | Tensor, labelled: Tensor | None = None) -> Tensor:
    """The scores called ``hotness``, shape [num_nodes]; a tensor of scores is returned as it is.

    ``labelled``: the nodes that training starts from, by default ``data.train_mask``; for
    ``weighted_reverse_pagerank`` only.

    Raises:
        TypeError, ValueError, IndexError: an unknown name or another type; ``labelled`` given for other scores, or
            missing.
    """
    weighted = check_hotness(hotness, labelled)
    if isinstance(hotness, Tensor):
        return hotness
    if weighted and labelled is None:
        labelled = getattr(data, "train_mask", None)
        if labelled is None:
            raise ValueError(
                "labelled: expected the nodes that training starts from, found neither it nor data.train_mask"
            )
    return named_scores(hotness, CSC.from_data(data), labelled)


def check_hotness(hotness: Any, labelled: Tensor | None) -> bool:
    """Whether ``hotness`` is the name of the score that needs ``labelled``; errors as of :func:`scores_of`."""
    if not isinstance(hotness, (str, Tensor)):
        raise TypeError(f"hotness: expected scores as a tensor, or a name, found {type(hotness).__name__}")
    if isinstance(hotness, str) and hotness not in NAMES:
        raise ValueError(f"hotness: expected scores or one of {NAMES}, found {hotness!r}")
    weighted = isinstance(hotness, str) and hotness == "weighted_reverse_pagerank"
    if labelled is not None and not weighted:
        raise ValueError("labelled: expected hotness='weighted_reverse_pagerank', which alone uses it, found another")
    return weighted


def named_scores(name: str, csc: CSC, labelled: Tensor | None = None) -> Tensor:
    """The scores of a name in :data:`NAMES`; ``labelled``: for ``weighted_reverse_pagerank``."""
    return out_degree(csc) if name == "out_degree" else reverse_pagerank(csc, labelled)


def out_degree(csc: CSC) -> Tensor:
    """result[v]: the number of edges that leave node v. int64, shape [num_src]."""
    return ops.count_ids(csc.row, csc.num_src)


def labelled_ids(labelled: Tensor, num_nodes: int) -> Tensor:
    """The ids of ``labelled``: ids, or a mask of all nodes.

    Raises:
        TypeError, ValueError, IndexError: neither.
    """
    if not isinstance(labelled, Tensor):
        raise TypeError(f"labelled: expected a tensor of ids or a mask, found {type(labelled).__name__}")
    if labelled.dtype == torch.bool:
        if labelled.shape != (num_nodes,):
            raise ValueError(f"labelled: expected a mask of {num_nodes} nodes, found {tuple(labelled.shape)}")
        labelled = labelled.nonzero().view(-1)
    check_ids("labelled", labelled, num_nodes, "nodes")
    return labelled


def reverse_pagerank(csc: CSC, labelled: Tensor | None = None, *, iterations: int = 5, damping: float = 0.85) -> Tensor:
    """Reverse PageRank; weighted reverse PageRank if ``labelled`` is given (Data Tiering, algorithm 1).

    In each iteration, with d = ``damping``::

        score[v] = (1 - d) + d * sum(score[w] / in_degree[w] for each edge (v, w))

    Initially score[v] = 1; for a labelled node score[v] = num_nodes / len(labelled). Iterations are few so that the
    initial scores still show.

    Args:
        csc: a graph with as many sources as destinations.
        labelled: ids of the nodes that training starts from, or a mask of all nodes; None: every node starts at 1.
        iterations: passes over the edges.
        damping: d, the share of a score that is passed on along edges.

    Returns:
        int64, shape [num_src]: scores in units of ``1 / ops.score_unit(num_src)``, equal for any number of threads.

    Raises:
        TypeError, ValueError, IndexError: a graph, ids or numbers of another form or out of range.
    """
    num_nodes = csc.num_src
    if csc.num_dst != num_nodes:
        raise ValueError(f"csc: expected as many sources as destinations, found {csc}")
    unit = ops.score_unit(num_nodes)
    initial = torch.full((num_nodes,), unit, dtype=torch.int64)
    if labelled is not None:
        labelled = labelled_ids(labelled, num_nodes).unique()
        if len(labelled):
            initial[labelled] = unit * num_nodes // len(labelled)
    return ops.reverse_pagerank(csc.colptr, csc.row, initial, iterations, damping)
