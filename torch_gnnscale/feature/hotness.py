"""Hotness scores of nodes: estimates of how often training reads a node's features. High scores go to fast memory.

Source: Data Tiering, section 3.1. :func:`torch_gnnscale.loader.accesses` counts what a loader reads instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..ops.arguments import check_ids, check_int
from ..topology import CSC, GraphStore

NAMES = ("out_degree", "reverse_pagerank", "weighted_reverse_pagerank")
"""Names of the scores. They are computed from the graph; the last one also from the labelled nodes."""


def scores_of(
    data: Data | HeteroData,
    hotness: str | Tensor | Mapping[NodeType, Tensor],
    labelled: Tensor | Mapping[NodeType, Tensor] | None = None,
) -> dict[NodeType | None, Tensor]:
    """The scores called ``hotness`` of the nodes of each type (None in a homogeneous graph); given scores are returned
    as they are.

    ``labelled``: the nodes that training starts from, by default the ``train_mask``; for ``weighted_reverse_pagerank``
    only. With types, scores and ``labelled`` are mappings by type.

    Raises:
        TypeError, ValueError, IndexError: an unknown name or another type; ``labelled`` given for other scores, or
            missing.
    """
    if isinstance(data, HeteroData):
        return _typed_scores_of(data, hotness, labelled)
    weighted = check_hotness(hotness, labelled)
    if isinstance(hotness, Tensor):
        return {None: hotness}
    if weighted and labelled is None:
        labelled = getattr(data, "train_mask", None)
        if labelled is None:
            raise ValueError(
                "labelled: expected the nodes that training starts from, found neither it nor data.train_mask"
            )
    assert isinstance(hotness, str)
    if isinstance(labelled, Mapping):
        raise TypeError("labelled: expected ids or a mask of a graph without types, found a mapping by type")
    return {None: named_scores(hotness, CSC.from_data(data), labelled)}


def _typed_scores_of(data: HeteroData, hotness: Any, labelled: Any) -> dict[NodeType | None, Tensor]:
    if isinstance(hotness, Mapping):
        if labelled is not None:
            check_hotness(torch.empty(0), labelled)
        if unknown := [node_type for node_type in hotness if node_type not in data.node_types]:
            raise ValueError(f"hotness: expected scores of types among {data.node_types}, found {unknown[0]!r}")
        return dict(hotness)
    if not isinstance(hotness, str):
        raise TypeError(f"hotness: expected scores by node type, or a name, found {type(hotness).__name__}")
    weighted = check_hotness(hotness, labelled)
    if weighted and labelled is None:
        labelled = {store._key: store.train_mask for store in data.node_stores if "train_mask" in store}
    if labelled is not None and not isinstance(labelled, Mapping):
        raise TypeError(f"labelled: expected a mapping by node type, found {type(labelled).__name__}")
    if weighted and not labelled:
        raise ValueError(
            "labelled: expected the nodes that training starts from, found none and no type with a train_mask"
        )
    graph = GraphStore.from_data(data)
    relations = {attr.edge_type: graph.relation(attr.edge_type) for attr in graph.get_all_edge_attrs()}
    num_nodes = {store._key: int(store.num_nodes) for store in data.node_stores}
    if hotness != "out_degree":
        return {**typed_reverse_pagerank(relations, num_nodes, labelled)}
    scores: dict[NodeType | None, Tensor] = {t: torch.zeros(count, dtype=torch.int64) for t, count in num_nodes.items()}
    for edge_type, csc in relations.items():
        scores[edge_type[0]] += out_degree(csc)
    return scores


def check_hotness(hotness: Any, labelled: Any) -> bool:
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


def typed_reverse_pagerank(
    relations: Mapping[EdgeType, CSC],
    num_nodes: Mapping[NodeType, int],
    labelled: Mapping[NodeType, Tensor] | None = None,
    *,
    iterations: int = 5,
    damping: float = 0.85,
) -> dict[NodeType, Tensor]:
    """:func:`reverse_pagerank` of a graph with types, whose neighbors are drawn from each relation by itself::

        score[v] = (1 - d) + d * sum(score[w] / in_degree_r[w] for each relation r and edge (v, w) of r)

    Args:
        relations: the edges of each type, of (source, destination) types that ``num_nodes`` has.
        num_nodes: the number of nodes of each type.
        labelled: by type, the nodes that training starts from: ids, or a mask of all nodes of the type. Each of them
            begins with the number of all nodes over that of all labelled ones; others begin with 1.
        iterations, damping: as of :func:`reverse_pagerank`.

    Returns:
        The scores of each type, float64, shape [num_nodes of the type]. While a relation's scores are passed on, 16
        bytes for each of its edges.

    Raises:
        TypeError, ValueError, IndexError: ids or numbers of another form or out of range, an unknown type, or relations
            of other numbers of nodes.
    """
    if not 0 <= damping <= 1:
        raise ValueError(f"damping: expected 0 <= damping <= 1, found {damping}")
    for edge_type, csc in relations.items():
        expected = num_nodes.get(edge_type[0]), num_nodes.get(edge_type[-1])
        if expected != (csc.num_src, csc.num_dst):
            raise ValueError(f"relations[{edge_type}]: expected {expected} sources and destinations, found {csc}")
    score = {node_type: torch.ones(count, dtype=torch.float64) for node_type, count in num_nodes.items()}
    if unknown := [node_type for node_type in labelled or () if node_type not in score]:
        raise ValueError(f"labelled: expected types among {list(score)}, found {unknown[0]!r}")
    starts = {t: labelled_ids(ids, num_nodes[t]).to(torch.int64).unique() for t, ids in (labelled or {}).items()}
    count = sum(map(len, starts.values()))
    for node_type, ids in starts.items():
        score[node_type][ids] = sum(num_nodes.values()) / max(count, 1)
    for _ in range(check_int("iterations", iterations, most=ops.MAX_ITERATIONS)):
        found = {node_type: torch.full_like(of_type, 1 - damping) for node_type, of_type in score.items()}
        for (src, _name, dst), csc in relations.items():
            degree = csc.colptr.diff()
            passed = (damping * score[dst] / degree.clamp(min=1)).repeat_interleave(degree)
            found[src].index_add_(0, csc.row.to(torch.int64), passed)
        score = found
    return score
