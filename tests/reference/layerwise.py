"""Layer-wise samples: scores and draws in integers, weights of edges in double."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from torch_gnnscale.ops import LayerDrawing, Relations, Sample

from .draws import bounded, draw


class Correction(NamedTuple):
    """The factor above / below of the edges of a drawn node, which corrects for its probability: c_v."""

    above: int
    below: int

    @property
    def exact(self) -> Fraction:
        """The quotient of the integers."""
        return Fraction(self.above, self.below)

    @property
    def rounded(self) -> float:
        """The quotient in double: each integer is rounded, then the quotient."""
        return float(self.above) / float(self.below)


ONE = Correction(1, 1)


def _at_least_one(above: int, below: int) -> Correction:
    return Correction(above, below) if above > below else ONE


# Scores ##############################################################################################################


def square_bits(num_nodes: int) -> int:
    """B: the square that an edge adds to a score is stored in units of 2^-B, so that no sum over edges reaches 2^62."""
    return min(40, 61 - num_nodes.bit_length())


def square_term(bits: int, degree: int) -> int:
    """What an edge into a node of ``degree`` edges adds to its source's score: max(1, floor(2^bits / degree^2))."""
    return max(1, (1 << bits) // degree**2)


def count_shift(num_edges: int) -> int:
    """The bits by which squares are shifted right, so that squares of numbers of sum ``num_edges`` sum to < 2^62."""
    return max(0, 2 * num_edges.bit_length() - 61)


def count_score(count: int, shift: int) -> int:
    """The score of a source with ``count`` edges into the frontier: max(1, floor(count^2 / 2^shift))."""
    return max(1, count**2 >> shift)


def _ends(graph: Relations) -> tuple[list[int], list[int]]:
    return graph.colptr[0].tolist(), graph.row[0].tolist()


def node_scores(graph: Relations, scores: str = "squares") -> Tensor:
    """FastGCN's scores of all nodes, as :func:`torch_gnnscale.ops.node_scores` returns them."""
    colptr, row = _ends(graph)
    result = [0] * graph.sizes[0]
    bits = square_bits(graph.sizes[0])
    for node in range(len(colptr) - 1):
        for position in range(colptr[node], colptr[node + 1]):
            result[row[position]] += 1 if scores == "counts" else square_term(bits, colptr[node + 1] - colptr[node])
    return torch.tensor(result, dtype=torch.int64)


def frontier_scores(graph: Relations, frontier: Sequence[int], scores: str) -> dict[int, int]:
    """LADIES' scores of the sources of edges into ``frontier``, a set, by node."""
    colptr, row = _ends(graph)
    bits, found = square_bits(graph.sizes[0]), dict[int, int]()
    for node in frontier:
        for position in range(colptr[node], colptr[node + 1]):
            term = 1 if scores == "counts" else square_term(bits, colptr[node + 1] - colptr[node])
            found[row[position]] = found.get(row[position], 0) + term
    if scores == "counts":
        shift = count_shift(sum(found.values()))
        return {node: count_score(count, shift) for node, count in found.items()}
    return found


# Schemes #############################################################################################################


def choose_nodes(score: Mapping[int, int], count: int, scheme: str, key: int, hop: int) -> dict[int, Correction]:
    """The drawn nodes, each with its correction c_v, as :func:`torch_gnnscale.ops.choose_nodes` draws them.

    ``score``: a positive score for each candidate; ``count``: how many are drawn, -1 for all.
    """
    candidates = sorted(score)
    if count < 0 or (len(candidates) <= count and scheme != "replace"):
        return dict.fromkeys(candidates, ONE)
    total = sum(score.values())
    if count == 0 or total == 0:
        return {}
    if scheme == "priority":
        random = {node: draw(key, node, hop, 0) for node in candidates}
        order = sorted(candidates, key=lambda node: (Fraction(random[node], score[node]), node))
        following = order[count]
        return {
            node: _at_least_one(score[following] << 64, max(random[following], 1) * score[node])
            for node in order[:count]
        }
    if scheme == "poisson":
        certain: set[int] = set()
        while True:
            left, rest = count - len(certain), sum(score[node] for node in candidates if node not in certain)
            more = {node for node in candidates if node not in certain and left * score[node] >= rest}
            if not more:
                break
            certain.add(max(more, key=lambda node: score[node]))
        found = dict.fromkeys(certain, ONE)
        for node in candidates:
            if node not in certain and bounded(draw(key, node, hop, 0), rest) < left * score[node]:
                found[node] = _at_least_one(rest, left * score[node])
        return found
    times: dict[int, int] = {}
    left_over = {node: score[node] for node in candidates}
    for number in range(count):
        unit = bounded(draw(key, number, hop, 0, relation=1), sum(left_over.values()))
        node = next(v for v, end in zip(left_over, accumulate(left_over.values()), strict=True) if unit < end)
        times[node] = times.get(node, 0) + 1
        if scheme == "successive":
            del left_over[node]
    return {node: Correction(often * total, count * score[node]) for node, often in times.items()}


def choose_neighbors(
    sources: Sequence[int], fanout: int, scheme: str, key: int, hop: int
) -> list[tuple[int, Correction]]:
    """LABOR-0: which of a destination's stored sources are drawn: their positions in ``sources``, ascending, each with
    its correction."""
    degree = len(sources)
    if fanout < 0 or fanout >= degree:
        return [(at, ONE) for at in range(degree)]
    random = [draw(key, source, hop, 0) for source in sources]
    if scheme == "poisson":
        found = [at for at in range(degree) if random[at] * degree < fanout << 64]
    else:
        found = sorted(sorted(range(degree), key=lambda at: (random[at], at))[:fanout])
    return [(at, Correction(degree, fanout)) for at in found]


# Weights #############################################################################################################


def edge_factor(aggregation: str, degree: int, source_degree: int) -> float:
    """a_e of an edge into a node of ``degree`` stored edges from one of ``source_degree``.

    ``sum``: 1; ``mean``: 1 / degree; ``gcn``: 1 / sqrt(degree source_degree), and 0 where source_degree is 0, as in
    PyG's gcn_norm.
    """
    if aggregation == "sum":
        return 1.0
    if aggregation == "mean":
        return 1.0 / float(degree)
    return 0.0 if source_degree == 0 else 1.0 / math.sqrt(float(degree) * float(source_degree))


def sum_in_pieces(numbers: Sequence[float]) -> float:
    """The sum of the sums of 128 numbers each, which are added one by one."""
    total = 0.0
    for begin in range(0, len(numbers), 128):
        piece = 0.0
        for entry in numbers[begin : begin + 128]:
            piece += entry
        total += piece
    return total


def edge_weights(
    drawing: LayerDrawing, source_degrees: Sequence[int], drawn: Sequence[tuple[int, Correction]]
) -> list[float]:
    """The weights, in double, of the drawn edges of one destination.

    Args:
        drawing: the options.
        source_degrees: the number of stored edges into the source of each stored edge.
        drawn: positions among the stored edges, ascending, each with its correction c_v.
    """
    degree = len(source_degrees)
    factor = [edge_factor(drawing.aggregation, degree, source_degree) for source_degree in source_degrees]
    weights = [factor[at] * correction.rounded for at, correction in drawn]
    if drawing.weights == "unbiased":
        return weights
    whole = sum_in_pieces(factor) if drawing.aggregation == "gcn" else {"mean": 1.0, "sum": float(degree)}[
        drawing.aggregation
    ]  # fmt: skip
    drawn_sum = sum_in_pieces(weights)
    return [weight * whole / drawn_sum if drawn_sum > 0 else 0.0 for weight in weights]


# All hops ############################################################################################################


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
    """All hops of a batch, as :func:`torch_gnnscale.ops.sample_layers` returns them."""
    colptr, row = _ends(graph)
    names = range(len(row)) if graph.edge_id[0] is None else graph.edge_id[0].tolist()
    degrees = [last - first for first, last in pairwise(colptr)]
    labor = drawing.method == "labor"
    nodes: list[int] = seeds.tolist()
    local: dict[int, int] = {}
    for at, node in enumerate(nodes):
        local.setdefault(node, at)
    begin, found_nodes, found_edges = 0, [len(nodes)], []
    edges: list[tuple[int, int, int, float]] = []
    columns: list[int] = []
    for hop, count in enumerate(num_nodes):
        end, before, edges_before = len(nodes), dict(local), len(edges)
        base = begin if not include_dst else 0
        of_draws = 0 if labor and drawing.layer_dependency else hop
        chosen: dict[int, Correction] = {}
        if not labor:
            frontier = list(dict.fromkeys(nodes[begin:end]))
            if score is None:
                candidates = frontier_scores(graph, frontier, drawing.scores)
            else:
                candidates = {node: int(score[node]) for node in range(len(score)) if int(score[node]) > 0}
            kept = {node: ONE for node in candidates if drawing.keep_known and node in before}
            others = {node: candidates[node] for node in candidates if node not in kept}
            chosen = kept | choose_nodes(others, count, drawing.scheme, key, hop)
        block: dict[int, int] = {}
        first_new = len(nodes)
        for column in range(begin, end):
            node = nodes[column]
            sources = row[colptr[node] : colptr[node + 1]]
            if labor:
                drawn = choose_neighbors(sources, count, drawing.scheme, key, of_draws)
            else:
                drawn = [(at, chosen[source]) for at, source in enumerate(sources) if source in chosen]
            weights = edge_weights(drawing, [degrees[source] for source in sources], drawn)
            for (at, _), weight in zip(drawn, weights, strict=True):
                known = local if include_dst else block
                if sources[at] not in known:
                    known[sources[at]] = len(nodes) - (0 if include_dst else first_new)
                    nodes.append(sources[at])
                edges.append((known[sources[at]], column - base, names[colptr[node] + at], weight))
            columns.append(len(edges))
        found_nodes.append(len(nodes) - end)
        found_edges.append(len(edges) - edges_before)
        begin = 0 if layers and include_dst else end

    def ids(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    return Sample(
        node=[ids(nodes)],
        colptr=[ids([0, *columns])],
        edge_index=[ids([[edge[0] for edge in edges], [edge[1] for edge in edges]])],  # type: ignore[list-item]
        edge_id=[ids([edge[2] for edge in edges])],
        tree=[],
        num_nodes=[found_nodes],
        num_edges=[found_edges],
        edge_weight=[torch.tensor([edge[3] for edge in edges], dtype=torch.float64).to(torch.float32)],
    )
