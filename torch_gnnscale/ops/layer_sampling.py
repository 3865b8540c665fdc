"""Layer-wise samples: nodes are drawn for a whole frontier at once, and edges have weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .arguments import (
    ID_DTYPES,
    OPS,
    check_choice,
    check_ids,
    check_int,
    check_key,
    check_tensor,
    check_vector,
    resolve_threads,
)
from .graph_arguments import MAX_HOPS, Relations, Sample
from .layer_drawing import (
    AGGREGATIONS,
    MAX_DRAWN,
    SCHEMES,
    SCHEMES_OF,
    WEIGHTS,
    LayerDrawing,
    check_drawing,
    check_layer_graph,
    check_num_nodes,
    check_weighing,
    choices_of,
    options_of,
    sample_layers_bulk,
)


def scores_of_columns(degree: Tensor, num_nodes: int, scores: str) -> Tensor:
    """What each edge into a node of d stored edges adds to its source's score: int64, shape of ``degree``. ``counts``:
    1; ``squares``: max(1, floor(2^B / d^2)), B = min(40, 61 - bits(n)), so that no sum over edges reaches 2^62."""
    if scores == "counts":
        return torch.ones_like(degree)
    unit = 1 << min(40, 61 - num_nodes.bit_length())
    return (unit // degree.clamp(1, 1 << 20) ** 2).clamp_(min=1)


def squared_counts(count: Tensor, batch: Tensor, batches: int) -> Tensor:
    """LADIES' scores ``counts`` of candidates with e_v edges into a batch's frontier: e_v^2; in batches in which all
    e_v sum to b > 30 bits, max(1, floor(e_v^2 / 2^(2 b - 61))). The division by their sum is left to the drawing.

    Args:
        count: e_v of all batches' candidates: int64, shape [m].
        batch: the batch of each, in [0, batches): int64, shape [m].
        batches: how many there are.

    Returns:
        int64, shape [m].
    """
    edges = torch.zeros(batches, dtype=torch.int64).index_add_(0, batch, count)
    shifts = [max(0, 2 * total.bit_length() - 61) for total in edges.tolist()]
    if not any(shifts):
        return count**2
    each = zip(count.tolist(), batch.tolist(), strict=True)  # of more than 2^30 edges: in integers of any size
    return torch.tensor([max(1, entry**2 >> shifts[t]) for entry, t in each], dtype=torch.int64)


def node_scores(graph: Relations, scores: str = "squares") -> Tensor:
    """The scores q_v of all nodes v by which FastGCN draws: int64, shape [n].

    The sum over edges v -> i of what :func:`scores_of_columns` says of i's degree.
    """
    colptr, row, count = graph.colptr[0], graph.row[0], graph.sizes[0]
    result = torch.zeros(count, dtype=torch.int64, device=colptr.device)
    degree = colptr.diff()
    term = scores_of_columns(degree, count, scores)
    step = 1 << 24  # edges at a time
    for first in range(0, len(row), step):
        last = min(first + step, len(row))
        begin, end = (int(torch.searchsorted(colptr, edge, right=True)) - 1 for edge in (first, last - 1))
        edges = colptr[begin : end + 2].clamp(first, last).diff()
        result.index_add_(0, row[first:last].long(), term[begin : end + 1].repeat_interleave(edges))
    return result


def choose_nodes(node: Tensor, score: Tensor, count: int, scheme: str, key: int, hop: int) -> tuple[Tensor, Tensor]:
    """Draws ``count`` of the candidates of a hop by their scores q_v; :func:`sample_layers` has the schemes and c_v.

    Args:
        node: the candidates, distinct ids of at least 0, in any order: int64, shape [m].
        score: q_v of each, positive, with a sum below 2^62: int64, shape [m].
        count: how many to draw; -1 takes all.
        scheme: ``priority``, ``poisson``, ``replace`` or ``successive``.
        key: 64 bits.
        hop: the number of the hop, from 0.

    Returns:
        (positions in ``node`` of the drawn candidates, ascending: int64, shape [k]; c_v of each: float64, shape [k]).
    """
    check_ids("node", node)
    check_vector("score", score, len(node))
    check_choice("scheme", scheme, SCHEMES[:4])
    check_int("count", count, -1, MAX_DRAWN - 1)
    check_int("hop", hop, 0, MAX_HOPS - 1)
    if len(score) and int(score.min()) < 1:
        raise ValueError(f"score: expected positive numbers, found {int(score.min())}")
    node, score = node.to(torch.int64).contiguous(), score.contiguous()
    return OPS.choose_nodes(node, score, count, SCHEMES.index(scheme), check_key(key), hop)


def choose_edges(
    source: Tensor,
    degree: Tensor,
    column_ptr: Sequence[int],
    keys: Sequence[int],
    hop: int,
    fanout: int,
    scheme: str = "sequential",
) -> tuple[Tensor, Tensor]:
    """Draws ``fanout`` of the edges into each destination as LABOR does; :func:`sample_layers` has the schemes and c_v.

    Args:
        source: the sources of all edges, destination after destination, in stored order: int64, shape [e].
        degree: the number of edges into each destination: int64, shape [n].
        column_ptr: destinations ``column_ptr[j]`` to ``column_ptr[j + 1] - 1`` have the key ``keys[j]``: k + 1 numbers
            from 0 to n.
        keys: 64 bits each: k numbers.
        hop: the number of the hop, from 0.
        fanout: how many to draw; -1 takes all.
        scheme: ``sequential`` or ``poisson``.

    Returns:
        (positions in ``source`` of the drawn edges, ascending: int64, shape [m]; c_v of each: float64, shape [m]).

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or numbers.
    """
    check_ids("source", source)
    check_vector("degree", degree, degree.numel() if isinstance(degree, Tensor) else 0)
    _check_degrees("degree", degree)
    if (edges := int(degree.sum())) != len(source):
        raise ValueError(f"degree: expected a sum of {len(source)}, the number of sources, found {edges}")
    ends, keys = [check_int("column_ptr", end) for end in column_ptr], [check_key(key) for key in keys]
    if ends != sorted(ends) or len(ends) != len(keys) + 1 or ends[0] != 0 or ends[-1] != len(degree):
        raise ValueError(f"column_ptr: expected {len(keys) + 1} numbers that do not fall, from 0 to {len(degree)} "
                         f"destinations, found {ends}")  # fmt: skip
    check_int("hop", hop, 0, MAX_HOPS - 1)
    check_int("fanout", fanout, -1, MAX_DRAWN - 1)
    check_choice("scheme", scheme, SCHEMES_OF["labor"])
    source, number = source.to(torch.int64).contiguous(), SCHEMES.index(scheme)
    return OPS.choose_edges(source, degree.contiguous(), ends, keys, hop, fanout, number)


def weigh_edges(
    drawing: LayerDrawing,
    degree: Tensor,
    row: Tensor,
    correction: Tensor,
    source_degree: Tensor | None = None,
    stored_source_degree: Tensor | None = None,
) -> Tensor:
    """The weights of drawn edges, as :func:`sample_layers` gives them. All tensors are in host memory.

    Args:
        drawing: its ``aggregation`` and ``weights`` are read.
        degree: d_i, the number of stored edges of each row: int64, shape [n].
        row: the row of each drawn edge, ascending: int64, shape [m].
        correction: c_v of each drawn edge: float64, shape [m].
        source_degree: for ``aggregation="gcn"``, d_j of each drawn edge's source: int64, shape [m].
        stored_source_degree: for ``aggregation="gcn"``, d_j of the sources of all stored edges of the rows, in stored
            order: int64, shape [the sum of ``degree``].

    Returns:
        float32, shape [m].

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or options; rows that are not ascending; drawn edges of a row
            without stored ones; degrees below 0.
    """
    check_weighing(drawing.aggregation, drawing.weights)
    for name, vector in (("degree", degree), ("row", row)):
        check_tensor(name, vector)
        check_vector(name, vector, vector.numel())
    check_tensor("correction", correction)
    if correction.dtype != torch.float64:
        raise TypeError(f"correction: expected a float64 vector, found {correction.dtype}")
    if correction.shape != row.shape:
        raise ValueError(f"correction: expected shape {tuple(row.shape)}, found {tuple(correction.shape)}")
    if len(row) and (int(row[0]) < 0 or int(row[-1]) >= len(degree) or bool((row.diff() < 0).any())):
        raise ValueError(f"row: expected ascending numbers in [0, {len(degree)}), found others")
    _check_degrees("degree", degree)
    if len(row) and int(degree[row].min()) == 0:
        raise ValueError("degree: expected at least 1 for each row that has drawn edges, found 0")
    of_sources: list[Tensor | None] = [None, None]
    if drawing.aggregation == "gcn":
        check_vector("source_degree", source_degree, len(row))
        check_vector("stored_source_degree", stored_source_degree, int(degree.sum()))
        _check_degrees("source_degree", source_degree)
        _check_degrees("stored_source_degree", stored_source_degree)
        of_sources = [source_degree, stored_source_degree]
    tensors = [None if values is None else values.contiguous() for values in (degree, row, correction, *of_sources)]
    return OPS.weigh_edges(*tensors, AGGREGATIONS.index(drawing.aggregation), WEIGHTS.index(drawing.weights))


def _check_degrees(name: str, degree: Tensor | None) -> None:
    if degree is not None and len(degree) and int(degree.min()) < 0:
        raise ValueError(f"{name}: expected numbers of at least 0, found {int(degree.min())}")


def sample_layers(
    graph: Relations,
    seeds: Tensor,
    num_nodes: Sequence[int],
    key: int,
    drawing: LayerDrawing,
    *,
    score: Tensor | None = None,
    layers: bool = False,
    include_dst: bool = True,
) -> Sample:
    """Draws all hops of a batch layer by layer, as CSC with local ids and weights.

    r_v: draw 0 of (key, node v, hop). d_i: the number of stored edges into i. F: the set of nodes that a hop expands.
    bits(n): the number of bits of n. A hop adds all stored edges from its drawn nodes into F, in stored order; with
    LABOR, the drawn edges.

    - LADIES (Zou et al. 2019): candidates are the sources v of edges into F, with scores q_v. ``squares``: the sum over
      edges v -> i, i in F, of max(1, floor(2^B / d_i^2)), B = min(40, 61 - bits(n)). ``counts`` (Tripathy et al. 2024,
      section 2.2.2): e_v^2, e_v being the number of edges from v into F; if the sum of all e_v has b > 30 bits:
      max(1, floor(e_v^2 / 2^(2 b - 61))).
    - FastGCN (Chen et al. 2018): candidates are all nodes of positive ``score``, which is q_v; drawn nodes without an
      edge into F are left out.
    - LABOR-0 (Balin & Catalyurek 2023): each destination i draws among its own edges v -> i; r_v is the same for all
      destinations.

    Schemes that draw s of the candidates, and the correction c_v for a node's probability:

    - ``priority`` (Duffield, Lund, Thorup 2007): the s nodes of least r_v / q_v, ties by id. c_v =
      max(1, 2^64 q* / (max(r*, 1) q_v)), where r* / q* is the next value in this order. Exactly s nodes; unbiased.
    - ``poisson``: node v with probability min(1, kappa q_v), kappa being such that these sum to s. If t nodes are
      certain, for which c_v = 1, and R is the sum of the other scores: v is drawn if floor(r_v R / 2^64) <
      (s - t) q_v, and c_v = R / ((s - t) q_v).
    - ``replace``: s draws in proportion to q_v (draw j: counter node j, relation 1), from prefix sums in id order.
      c_v = m Q / (s q_v), m being how often v was drawn, Q the sum of all scores.
    - ``successive``: as ``replace``, each draw among the candidates not drawn yet; c_v = Q / (s q_v). Biased.
    - LABOR, ``sequential``: the min(s, d_i) edges of least r_v, ties in stored order (so parallel edges are biased);
      ``poisson``: the edges with r_v d_i < 2^64 s. c_v = max(1, d_i / s).

    If there are at most s candidates, all are taken, with c_v = 1 (except by ``replace``). The weight of an edge, in
    double, rounded once to float32: ``unbiased``: a_e c_v; ``self_normalized``: a_e c_v W / S, with W the sum of a_e
    over the stored edges of its destination and S the sum of a_e c_v over the drawn ones, both
    in stored order, in pieces of 128: each piece is summed by itself, then the sums of the pieces are added.

    Args:
        graph: one relation between nodes of one type, from :func:`relations`.
        seeds: int32 or int64, shape [s]; a repeated seed has a row and edges of its own. Those on a GPU are sampled
            there, as a bulk of one batch (:func:`sample_layers_bulk`).
        num_nodes: for each hop, s: the nodes to draw (LABOR: the edges of each destination); -1 takes all.
        key: 64 bits.
        drawing: the options.
        score: for FastGCN: from :func:`node_scores`.
        layers: F is every node found so far, not only the nodes that the last hop found.
        include_dst: False, with ``layers``: F is the nodes that the last hop drew, and the sources of a hop are its
            drawn nodes alone, with local ids that begin at 0 in each hop; ``node`` has the nodes hop after hop.

    Returns:
        The sample with ``edge_weight``, float32.

    Raises:
        TypeError, ValueError, IndexError: unknown options, or options that do not fit; seeds out of range.
        RuntimeError: the graph is malformed in values that :func:`relations` does not check.
    """
    if isinstance(seeds, Tensor) and seeds.is_cuda:
        check_layer_graph(graph)
        (sample,) = sample_layers_bulk(
            graph.colptr[0], graph.row[0], seeds, [0, len(seeds)], num_nodes, [key], drawing,
            edge_id=graph.edge_id[0], score=score, layers=layers, include_dst=include_dst,
        )  # fmt: skip
        return sample
    prepared = PreparedLayers(graph, num_nodes, drawing, score=score, layers=layers, include_dst=include_dst)
    return prepared.sample(seeds, key)


class PreparedLayers:
    """:func:`sample_layers` with a graph and options that are checked once, for any number of batches."""

    def __init__(
        self,
        graph: Relations,
        num_nodes: Sequence[int],
        drawing: LayerDrawing,
        *,
        score: Tensor | None = None,
        layers: bool = False,
        include_dst: bool = True,
    ) -> None:
        check_layer_graph(graph)
        check_drawing(drawing, layers, include_dst)
        if (score is not None) != (drawing.method == "fastgcn"):
            raise ValueError(f"score: expected it only for method='fastgcn', found method={drawing.method!r}")
        if score is not None:
            check_vector("score", score, graph.sizes[0])
            score = score.contiguous()
        self._graph, self._score = graph, score
        self._num_nodes = check_num_nodes(num_nodes)
        self._choices = choices_of(drawing)
        self._options = options_of(drawing, layers, include_dst)
        self._held: Tensor | None = None  # the number of the graph that the operators hold in this process

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def sample(self, seeds: Tensor, key: int) -> Sample:
        """The sample of a batch; arguments and errors as of :func:`sample_layers`."""
        return self._run([seeds], ["seeds"], [key], 1)[0]

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int], threads: int = 0) -> list[Sample]:
        """The samples of many batches, each equal to what :meth:`sample` returns for it. Threads take whole batches: a
        thread that has finished one takes the next.

        Raises:
            ValueError, TypeError, IndexError, RuntimeError: as :meth:`sample`, for the first batch that has an error;
                no batch is returned then. Another number of keys than of batches.
        """
        if len(keys) != len(seeds):
            raise ValueError(f"keys: expected one entry for each of {len(seeds)} batches, found {len(keys)}")
        return self._run(seeds, [f"seeds[{b}]" for b in range(len(seeds))], keys, resolve_threads(threads))

    def _run(self, seeds: Sequence[Tensor], names: list[str], keys: Sequence[int], threads: int) -> list[Sample]:
        ids = []
        for name, entry in zip(names, seeds, strict=True):
            if not (isinstance(entry, Tensor) and entry.dtype in ID_DTYPES and entry.dim() == 1):
                check_ids(name, entry)
            ids.append(entry.to(torch.int64).contiguous())
        keys = [check_key(key) for key in keys]
        try:
            if (held := self._held) is None:
                held = self._held = OPS.hold_relations(*self._graph[:-1])
            *arrays, counts = OPS.sample_layers(
                held, ids, self._score, self._num_nodes, keys, self._choices, self._options, threads
            )
            of_batch = [[[array] for array in arrays[first : first + 5]] for first in range(0, len(arrays), 5)]
            hops = len(self._num_nodes)
            return [
                Sample(node, colptr, edges, edge_id, [], [of_hops[: hops + 1]], [of_hops[hops + 1 :]], weight)
                for (node, edges, colptr, edge_id, weight), of_hops in zip(of_batch, counts.tolist(), strict=True)
            ]
        except RuntimeError as failed:
            error = failed
        for name, entry in zip(names, ids, strict=True):
            check_ids(name, entry, self._graph.sizes[0], "nodes")
        raise error
