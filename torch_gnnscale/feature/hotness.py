"""Hotness scores of nodes and edges: estimates of how often training reads their features. High scores go to fast
memory.

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
from ..ops.arguments import check_ids, check_int, check_tensor
from ..topology import CSC, GraphStore
from ..topology.reorder import by_score
from .feature_store import HOMOGENEOUS_EDGES

NAMES = ("out_degree", "reverse_pagerank", "weighted_reverse_pagerank")
"""Names of the scores. They are computed from the graph; the last one also from the labelled nodes."""
DAMPING = 0.85
"""The share of a score that is passed on along edges, where no other is given."""
BINS, LEAST_READS = 1024, 64
"""Of :func:`calibrated`: the largest number of bins, and the reads that each has at least."""


def graph_scores(
    graph: GraphStore,
    name: str = "weighted_reverse_pagerank",
    labelled: Tensor | Mapping[NodeType, Tensor] | None = None,
    *,
    edges: bool = False,
) -> Tensor | dict[Any, Tensor]:
    """The scores called ``name`` of a graph's nodes, such as those of an opened one.

    Args:
        graph: the edges; with types, every type of which nodes are scored has a relation.
        name: one of :data:`NAMES`.
        labelled: for ``weighted_reverse_pagerank``: the nodes that training starts from, the user's ids or a mask; with
            types, by type.
        edges: whether edges are scored too. The score of an edge (v, w) is its part in the score of v: 1 in the
            out-degree, else d * score[w] / in_degree[w] (see :func:`edge_reads`).

    Returns:
        By the user's ids: shape [num_nodes]; of a graph with types, such a tensor for each type. With ``edges``, always
        a mapping by type, also of the edges: float64, shape [num_edges]. In a homogeneous graph its keys are None for
        the nodes and (None, None) for the edges.

    Raises:
        TypeError, ValueError, IndexError: another graph or name; ``labelled`` given for other scores, or missing.
    """
    if not isinstance(graph, GraphStore):
        raise TypeError(f"graph: expected a GraphStore, found {type(graph).__name__}")
    if not isinstance(name, str):
        raise TypeError(f"name: expected one of {NAMES}, found {type(name).__name__}")
    if check_hotness(name, labelled) and labelled is None:
        raise ValueError("labelled: expected the nodes that training starts from, found None")
    relations, num_nodes = relations_of(graph), graph._num_nodes()
    starts = by_type_of(labelled, None not in num_nodes)
    if graph.order is not None and starts is not None:
        check_types("labelled", starts, num_nodes)
        starts = {t: graph.order.to_stored(labelled_ids(ids, num_nodes[t]), t) for t, ids in starts.items()}
    scores = named_scores(name, relations, num_nodes, starts)
    of_edges = edge_scores(name, relations, scores) if edges else {}
    if graph.order is not None:
        scores = {t: score[graph.order.to_stored(torch.arange(len(score)), t)] for t, score in scores.items()}
    return scores | of_edges if edges else scores.get(None, scores)


def scores_of(
    data: Data | HeteroData,
    hotness: str | Tensor | Mapping[Any, Tensor],
    labelled: Tensor | Mapping[NodeType, Tensor] | None = None,
    edges: bool = False,
) -> dict[Any, Tensor]:
    """The scores called ``hotness`` of the nodes, and with ``edges`` of the edges, of each type (see
    :func:`graph_scores`); given scores are returned as they are.

    ``labelled``: the nodes that training starts from, by default the ``train_mask``; for ``weighted_reverse_pagerank``
    only. With types, scores and ``labelled`` are mappings by type.

    Raises:
        TypeError, ValueError, IndexError: an unknown name or type; ``labelled`` given for other scores, or missing.
    """
    node_types = [store._key for store in data.node_stores]
    typed = None not in node_types
    if not isinstance(hotness, str):
        check_hotness(hotness, labelled)
        if isinstance(hotness, Tensor) and typed:
            raise TypeError("hotness: expected scores by type, or a name, found Tensor")
        given = {None: hotness} if isinstance(hotness, Tensor) else dict(hotness)
        known = [*node_types, *data.edge_types] if typed else [None, HOMOGENEOUS_EDGES]
        if unknown := [of for of in given if of not in known]:
            raise ValueError(f"hotness: expected scores of types among {known}, found {unknown[0]!r}")
        return given
    if check_hotness(hotness, labelled) and labelled is None:
        if typed:
            labelled = {store._key: store.train_mask for store in data.node_stores if "train_mask" in store}
        else:
            labelled = getattr(data, "train_mask", None)
        if labelled is None or (typed and not labelled):
            where = "none and no type with a train_mask" if typed else "neither it nor data.train_mask"
            raise ValueError(f"labelled: expected the nodes that training starts from, found {where}")
    starts = by_type_of(labelled, typed)
    relations = relations_of(GraphStore.from_data(data))
    num_nodes = {store._key: int(store.num_nodes) for store in data.node_stores}
    scores = named_scores(hotness, relations, num_nodes, starts)
    return scores | edge_scores(hotness, relations, scores) if edges else scores


def relations_of(graph: GraphStore) -> dict[EdgeType | None, CSC]:
    """The relations of a graph by edge type."""
    return {attr.edge_type: graph.relation(attr.edge_type) for attr in graph.get_all_edge_attrs()}


def by_type_of(labelled: Any, typed: bool) -> dict[Any, Tensor] | None:
    """``labelled`` by node type. Raises TypeError for a mapping without types, or types without a mapping."""
    if labelled is None:
        return None
    if typed and not isinstance(labelled, Mapping):
        raise TypeError(f"labelled: expected a mapping by node type, found {type(labelled).__name__}")
    if not typed and isinstance(labelled, Mapping):
        raise TypeError("labelled: expected ids or a mask of a graph without types, found a mapping by type")
    return dict(labelled) if typed else {None: labelled}


def named_scores(
    name: str, relations: Mapping[Any, CSC], num_nodes: Mapping[Any, int], labelled: Mapping[Any, Tensor] | None
) -> dict[Any, Tensor]:
    """The scores of a name in :data:`NAMES` by node type, of relations by edge type, None in a homogeneous graph;
    ``labelled``: for ``weighted_reverse_pagerank``, by node type."""
    if name == "out_degree":
        scores = {node_type: torch.zeros(count, dtype=torch.int64) for node_type, count in num_nodes.items()}
        for edge_type, csc in relations.items():
            scores[None if edge_type is None else edge_type[0]] += out_degree(csc)
        return scores
    if None in relations:
        return {None: reverse_pagerank(relations[None], None if labelled is None else labelled[None])}
    return {**typed_reverse_pagerank(relations, num_nodes, labelled)}


def edge_scores(name: str, relations: Mapping[Any, CSC], scores: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
    """The scores of edges beside those of nodes, of the same name; see :func:`graph_scores`."""
    found = {}
    for edge_type, csc in relations.items():
        if name == "out_degree":
            reads = edge_reads(csc, torch.ones(csc.num_dst), -1)
        else:
            of_dst = scores[None if edge_type is None else edge_type[-1]]
            reads = edge_reads(csc, DAMPING * of_dst.to(torch.float64), 1)
        found[HOMOGENEOUS_EDGES if edge_type is None else edge_type] = reads
    return found


def edge_reads(csc: CSC, expansions: Tensor, fanout: int) -> Tensor:
    """The expected reads of edges whose destinations draw neighbors uniformly, without replacement::

        result[e] = expansions[w] * min(1, fanout / in_degree[w]) for each edge e = (v, w)

    Args:
        csc: the edges of one type.
        expansions: how often the neighbors of each node are drawn, counted or estimated: any real dtype, shape
            [num_dst]. Of several hops, add the results: ``accesses_by_hop(loader, [1000]).nodes[h]`` counts those of
            hop h + 1 in the presampled epoch 1000.
        fanout: the number of neighbors drawn; -1: all.

    Returns:
        float64, shape [num_edges], by the user's ids of edges.

    Raises:
        TypeError, ValueError: a fanout below -1, or expansions of another number of nodes.
    """
    check_int("fanout", fanout, -1)
    if expansions.shape != (csc.num_dst,):
        raise ValueError(f"expansions: expected shape ({csc.num_dst},), found {tuple(expansions.shape)}")
    degree = csc.colptr.diff()
    drawn = degree if fanout == -1 else degree.clamp(max=fanout)
    each = (expansions.to(torch.float64) * drawn / degree.clamp(min=1)).repeat_interleave(degree)
    if csc.edge_id is None:
        return each
    out = torch.empty_like(each)
    out[csc.edge_id.to(torch.int64)] = each
    return out


def calibrated(
    score: Tensor | Mapping[Any, Tensor], reads: Tensor | Mapping[Any, Tensor]
) -> Tensor | dict[Any, Tensor]:
    """Scores that keep the order of ``score`` and are frequencies: reads in batches in which ``reads`` were counted.

    The nodes by falling score are cut into bins with equal numbers of reads: 1024 bins, or fewer if they would have
    less than 64 reads each. The score of a node in bin b is ::

        min over a <= b of max over c >= b of (the reads of bins a to c) / (the nodes of bins a to c)

    This is the nonincreasing function of bins that is nearest to the counts (isotonic regression). Within a bin,
    scores fall by a millionth of a read from the first node of all to the last, so that nodes stay in their order.

        counts = accesses(loader, [1000], batches=32)       # batches that training does not draw
        score = hotness.calibrated(hotness.graph_scores(graph, labelled=train_ids), counts)

    Args:
        score: any score of the nodes or edges, any real dtype, shape [n]; with types, a mapping by type.
        reads: how often each was read in some batches, int64, shape [n], as :func:`torch_gnnscale.loader.accesses`
            counts them; with types, a mapping by type that has those of ``score``.

    Returns:
        float64, shape [n]; with types, a mapping of such tensors by type.

    Raises:
        TypeError, ValueError: scores that are not real vectors or have NaN; other shapes; negative reads.
    """
    if isinstance(score, Mapping) != isinstance(reads, Mapping):
        raise TypeError(f"reads: expected a {type(score).__name__}, as score is, found {type(reads).__name__}")
    if not isinstance(score, Mapping):
        assert not isinstance(reads, Mapping)
        return _calibrated("reads", score, reads)
    assert isinstance(reads, Mapping)
    if missing := [of for of in score if of not in reads]:
        raise ValueError(f"reads: expected those of {missing[0]!r}, found {list(reads)}")
    return {of: _calibrated(f"reads[{of!r}]", of_type, reads[of]) for of, of_type in score.items()}


def _calibrated(name: str, score: Tensor, reads: Tensor) -> Tensor:
    order = by_score(score)
    check_tensor(name, reads)
    if reads.dtype != torch.int64:
        raise TypeError(f"{name}: expected counts in int64, found {reads.dtype}")
    if reads.shape != score.shape:
        raise ValueError(f"{name}: expected shape {tuple(score.shape)}, found {tuple(reads.shape)}")
    if len(reads) and int(reads.min()) < 0:
        raise ValueError(f"{name}: expected counts of at least 0, found {int(reads.min())}")
    count = len(reads)
    before = torch.cat([torch.zeros(1, dtype=torch.int64), reads[order.old].to(torch.int64).cumsum(0)])
    bins = min(BINS, int(before[-1]) // LEAST_READS)
    wanted = before[-1] * torch.arange(1, bins + 1) // max(bins, 1)
    ends = torch.cat([torch.searchsorted(before, wanted), torch.tensor([count])]).unique().tolist()
    sums: list[int] = []
    sizes: list[int] = []
    begin = 0
    for end in ends:  # pools a bin with those before it while it has more reads per node
        total, size, begin = int(before[end] - before[begin]), end - begin, end
        while sizes and sums[-1] * size <= total * sizes[-1]:
            total, size = total + sums.pop(), size + sizes.pop()
        sums.append(total)
        sizes.append(size)
    of_bins = torch.tensor(sums, dtype=torch.float64) / torch.tensor(sizes).clamp(min=1)
    steps = torch.arange(count, 0, -1, dtype=torch.float64) / max(count, 1) * 1e-6
    falling = of_bins.repeat_interleave(torch.tensor(sizes)) + steps
    out = torch.empty(count, dtype=torch.float64)
    out[order.old] = falling
    return out


def check_hotness(hotness: Any, labelled: Any) -> bool:
    """Whether ``hotness`` is the name of the score that needs ``labelled``; errors as of :func:`scores_of`."""
    if not isinstance(hotness, (str, Tensor, Mapping)):
        raise TypeError(f"hotness: expected scores as a tensor or by type, or a name, found {type(hotness).__name__}")
    if isinstance(hotness, str) and hotness not in NAMES:
        raise ValueError(f"hotness: expected scores or one of {NAMES}, found {hotness!r}")
    weighted = isinstance(hotness, str) and hotness == "weighted_reverse_pagerank"
    if labelled is not None and not weighted:
        raise ValueError("labelled: expected hotness='weighted_reverse_pagerank', which alone uses it, found another")
    return weighted


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


def reverse_pagerank(
    csc: CSC, labelled: Tensor | None = None, *, iterations: int = 5, damping: float = DAMPING
) -> Tensor:
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
    damping: float = DAMPING,
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
    check_types("labelled", labelled or {}, score)
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


def check_types(name: str, given: Mapping[Any, Any], known: Mapping[Any, Any]) -> None:
    """Raises ValueError for a type that is not known."""
    if unknown := [node_type for node_type in given if node_type not in known]:
        raise ValueError(f"{name}: expected types among {list(known)}, found {unknown[0]!r}")
