"""All hops of k batches of GraphSAGE, LADIES and FastGCN: algorithm 1, EXTRACT, local ids and weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ops import LayerDrawing, Sample, weigh_edges
from ..ops.arguments import check_choice, check_ids, check_key
from ..ops.layer_drawing import SCORES, check_num_nodes, check_weighing
from ..ops.layer_sampling import scores_of_columns, squared_counts
from .algebra import (
    Adjacency,
    Drawn,
    Frontier,
    FrontierEdges,
    choose,
    choose_neighbors,
    csr_array,
    one_node_each,
    ptr_of,
    stacked_sets,
    stored_order,
    unsigned,
)

Step = Callable[[Frontier, int], FrontierEdges]
"""A hop of a method: takes the frontier and the number to draw, and returns the sampled edges."""


def graphsage(graph: Adjacency, replace: bool = False) -> Step:
    """Neighbor sampling (section 4.1), with the draws of :func:`torch_gnnscale.ops.sample_neighbors`."""

    def step(frontier: Frontier, count: int) -> FrontierEdges:
        p = one_node_each(frontier, graph.num_nodes) @ graph.position  # NORM would give a row equal entries, 1 / |N(v)|
        return choose_neighbors(p, count, frontier, replace)  # EXTRACT returns the drawn entries

    return step


def ladies(graph: Adjacency, scheme: str = "priority", scores: str = "squares", keep_known: bool = False) -> Step:
    """LADIES (section 4.2), with the draws and options of :func:`torch_gnnscale.ops.sample_layers`."""
    value = edge_scores(graph, scores)

    def step(frontier: Frontier, count: int) -> FrontierEdges:
        p = stacked_sets(frontier, value) @ graph.ones
        p = squared(p) if scores == "counts" else p
        return extract(graph, frontier, choose(p, count, scheme, frontier, keep_known))

    return step


def fastgcn(graph: Adjacency, scheme: str = "priority", scores: str = "squares", keep_known: bool = False) -> Step:
    """FastGCN, with the draws and options of :func:`torch_gnnscale.ops.sample_layers`."""
    everything = csr_array(edge_scores(graph, scores)[None])
    p = everything @ graph.ones  # one row for all batches and hops

    def step(frontier: Frontier, count: int) -> FrontierEdges:
        return extract(graph, frontier, choose(p, count, scheme, frontier, keep_known))

    return step


def edge_scores(graph: Adjacency, scores: str) -> np.ndarray:
    """For each node, what an edge into it adds to its source's score: int64, shape [n]."""
    check_choice("scores", scores, SCORES)
    return scores_of_columns(torch.from_numpy(graph.degree), graph.num_nodes, scores).numpy()


def squared(p: Any) -> Any:
    """NORM of section 2.2.2: :func:`torch_gnnscale.ops.layer_sampling.squared_counts` of each row's entries e_v."""
    rows = p.shape[0]
    row = np.repeat(np.arange(rows), np.diff(p.indptr))
    data = squared_counts(torch.from_numpy(p.data), torch.from_numpy(row), rows).numpy()
    return csr_array((data, p.indices, p.indptr), shape=p.shape)


def extract(graph: Adjacency, frontier: Frontier, drawn: Drawn) -> FrontierEdges:
    """The edges of A_S = diag(A_R1, ..., A_Rk) Q_C, each row's in stored order; A_R = Q_R A (sections 4.2.3 and 4.2.4).

    A_S has kb x s entries; column c of a row is the c-th node that the row's batch drew. The paper's Q_C has kn rows;
    here it has a row only for each (batch, node) that occurs in A_R. A drawn node without an edge into the frontier has
    none.
    """
    a_r = one_node_each(frontier, graph.num_nodes) @ graph.position
    batch = frontier.batch
    code = np.repeat(batch, np.diff(a_r.indptr)) * graph.num_nodes + a_r.indices
    occurring = np.unique(code)
    column = np.searchsorted(occurring, code)
    diagonal = csr_array((a_r.data, column, a_r.indptr), shape=(len(frontier.node), len(occurring)))
    del code, column  # arrays as large as A_R: freed before the product
    counts = np.diff(drawn.ptr)
    batch_of = np.repeat(np.arange(len(counts)), counts)
    wanted = batch_of * graph.num_nodes + drawn.node
    at = np.searchsorted(occurring, wanted)
    occurs = at < len(occurring)
    occurs[occurs] = occurring[at[occurs]] == wanted[occurs]
    number = (np.arange(len(wanted)) - drawn.ptr[batch_of])[occurs]
    width = int(counts.max(initial=0))
    q_c = csr_array((np.ones(len(number), np.int64), (at[occurs], number)), shape=(len(occurring), width))
    a_s = stored_order(diagonal @ graph.hold(q_c))
    of_draw = drawn.ptr[batch[a_s.row]] + a_s.source
    return a_s._replace(source=drawn.node[of_draw], correction=drawn.correction[of_draw])


def sample_batches(
    graph: Adjacency,
    seeds: Sequence[Tensor],
    num_nodes: Sequence[int],
    keys: Sequence[int],
    step: Step,
    *,
    include_dst: bool = True,
    aggregation: str = "mean",
    weights: str = "self_normalized",
) -> list[Sample]:
    """Draws k batches, as the fused operators do with ``layers=True``: a hop's frontier is all nodes found so far.

    Args:
        graph: from :func:`adjacency`.
        seeds: for each batch, int32 or int64, on any device; a repeated seed has a row and edges of its own.
        num_nodes: for each hop, the number that ``step`` gets.
        keys: for each batch, 64 bits.
        step: the method, such as :func:`ladies` returns.
        include_dst: False: the frontier is the nodes that the last hop drew: see
            :func:`torch_gnnscale.ops.sample_layers`.
        aggregation: of :class:`torch_gnnscale.ops.LayerDrawing`.
        weights: of :class:`torch_gnnscale.ops.LayerDrawing`.

    Returns:
        A sample for each batch, where the graph is, with ``edge_weight`` if the method's edges have corrections.

    Raises:
        TypeError, ValueError, IndexError: wrong options or numbers of entries; ``include_dst=False`` with a step that
            keeps known nodes; seeds out of range.
    """
    check_weighing(aggregation, weights)
    if len(seeds) != len(keys):
        raise ValueError(f"seeds: expected one entry for each of {len(keys)} keys, found {len(seeds)}")
    seeds = [entry.cpu() if isinstance(entry, Tensor) else entry for entry in seeds]
    for batch, entry in enumerate(seeds):
        check_ids(f"seeds[{batch}]", entry, graph.num_nodes, "nodes")
    counts = check_num_nodes(num_nodes)
    if not counts:
        raise ValueError("num_nodes: expected at least one hop, found none")
    ids = [entry.to(torch.int64).numpy() for entry in seeds]
    known = _Pieces(ids)
    made = [_Batch(entry) for entry in ids]
    bits = unsigned([check_key(key) for key in keys])
    for hop, count in enumerate(counts):
        frontier = Frontier(known.value, known.ptr, bits, hop, include_dst)
        edges = step(frontier, count)
        local, new = _numbered(graph.num_nodes, frontier, edges, include_dst)
        weight = None if edges.correction is None else edge_weights(graph, frontier, edges, aggregation, weights)
        first = edges.ptr[frontier.ptr]
        for batch, one in enumerate(made):
            rows, some = slice(frontier.ptr[batch], frontier.ptr[batch + 1] + 1), slice(first[batch], first[batch + 1])
            one.add(new[batch], edges.ptr[rows], local[some], edges.position[some], weight, some)
        known = _Pieces([np.concatenate(one.nodes) for one in made] if include_dst else new)
    return [one.sample(graph) for one in made]


class _Pieces:
    """Arrays of the batches, concatenated: ``value``, in which batch b has [ptr[b], ptr[b + 1])."""

    def __init__(self, pieces: Sequence[np.ndarray]) -> None:
        self.value = np.concatenate([np.empty(0, np.int64), *pieces])
        self.ptr = ptr_of(np.array([len(piece) for piece in pieces], np.int64))


class _Batch:
    """What one batch has found so far."""

    def __init__(self, seeds: np.ndarray) -> None:
        self.nodes = [seeds]
        self._edges: list[np.ndarray] = [np.empty((3, 0), np.int64)]  # local sources, local destinations, positions
        self._degrees: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []

    def add(
        self, new: np.ndarray, ptr: np.ndarray, local: np.ndarray, position: np.ndarray, weight: np.ndarray | None,
        some: slice,
    ) -> None:  # fmt: skip
        """Adds a hop.

        Args:
            new: the nodes that it found.
            ptr: where each row's edges begin.
            local: the local sources of its edges.
            position: their positions in the stored order.
            weight: the weights of the edges of all batches.
            some: the slice of ``weight`` that belongs to this batch.
        """
        degree = np.diff(ptr)
        self.nodes.append(new)
        self._degrees.append(degree)
        self._edges.append(np.stack([local, np.repeat(np.arange(len(degree)), degree), position]))
        if weight is not None:
            self._weights.append(weight[some])

    def sample(self, graph: Adjacency) -> Sample:
        """The sample of all hops."""
        edges = np.concatenate(self._edges, axis=1)
        degrees = np.concatenate([np.empty(0, np.int64), *self._degrees])
        names, position = graph.graph.edge_id[0], torch.from_numpy(edges[2].copy())
        weights = [np.concatenate(self._weights)] if self._weights else []

        def put(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(graph.device)

        return Sample(
            node=[put(np.concatenate(self.nodes))],
            colptr=[put(ptr_of(degrees))],
            edge_index=[put(edges[:2].copy())],
            edge_id=[(position if names is None else names[position].to(torch.int64)).to(graph.device)],
            tree=[],
            num_nodes=[[len(nodes) for nodes in self.nodes]],
            num_edges=[[part.shape[1] for part in self._edges[1:]]],
            edge_weight=[put(weight) for weight in weights],
        )


def _numbered(
    num_nodes: int, frontier: Frontier, edges: FrontierEdges, include_dst: bool
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The local ids of the edges' sources, and the new nodes of each batch.

    Empty columns of A^l are removed. The others are ordered by the first edge that has them; with ``include_dst`` the
    frontier's nodes come before them.
    """
    k, size = len(frontier.keys), np.diff(frontier.ptr)
    found = frontier.batch[edges.row] * num_nodes + edges.source
    before = frontier.batch * num_nodes + frontier.node if include_dst else np.empty(0, np.int64)
    code, first, which = np.unique(np.concatenate([before, found]), return_index=True, return_inverse=True)
    order = np.argsort(first)
    order = order[first[order] >= len(before)]  # new ones, batch by batch
    batch, node = np.divmod(code[order], max(num_nodes, 1))
    ptr = np.searchsorted(batch, np.arange(k + 1))
    local = np.empty(len(code), np.int64)
    old = np.flatnonzero(first < len(before))
    local[old] = first[old] - frontier.ptr[:-1][code[old] // max(num_nodes, 1)]
    local[order] = np.arange(len(order)) - ptr[batch] + (size[batch] if include_dst else 0)
    return local[which[len(before) :]], np.split(node, ptr[1:-1]) if k else []


def edge_weights(
    graph: Adjacency, frontier: Frontier, edges: FrontierEdges, aggregation: str, weights: str
) -> np.ndarray:
    """The weight of each edge: float32, shape [e]."""
    assert edges.correction is not None
    degree, of_source, of_stored = graph.degree[frontier.node], None, None
    if aggregation == "gcn":
        first = graph.graph.colptr[0].numpy()[frontier.node]
        stored = np.arange(int(degree.sum())) + np.repeat(first - ptr_of(degree)[:-1], degree)
        of_source, of_stored = graph.degree[edges.source], graph.degree[graph.graph.row[0].numpy()[stored]]
    given = [degree, edges.row, edges.correction, of_source, of_stored]
    tensors: list[Any] = [None if values is None else torch.from_numpy(values) for values in given]
    return weigh_edges(LayerDrawing(aggregation=aggregation, weights=weights), *tensors).numpy()
