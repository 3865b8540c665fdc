"""The options of layer-wise drawing, operators that score nodes, and batches sampled many at a time, as a GPU does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import MAX_COUNT, OPS, check_choice, check_ids, check_int, check_readable, check_tensor, resolve_threads
from .bulk_input import check_bulk_input, in_halves, joined_on, split_bulk
from .graph_arguments import (
    INCLUDE_DST,
    KEEP_KNOWN,
    LAYER_DEPENDENCY,
    LAYERS,
    MAX_HOPS,
    Relations,
    Sample,
    check_vector,
)
from .topology import check_colptr

METHODS = ("ladies", "fastgcn", "labor")
"""The methods of :func:`sample_layers`."""
SCHEMES = ("priority", "poisson", "replace", "successive", "sequential")
SCHEMES_OF = {"ladies": SCHEMES[:4], "fastgcn": SCHEMES[:4], "labor": ("sequential", "poisson")}
"""The schemes of each method; the first is the default."""
SCORES = ("squares", "counts")
AGGREGATIONS = ("mean", "sum", "gcn")
WEIGHTS = ("self_normalized", "unbiased")
MAX_DRAWN = 1 << 31
"""The number of nodes drawn in a hop is below this."""


class LayerDrawing(NamedTuple):
    """The options of :func:`sample_layers` that decide which nodes are drawn and the weights of edges."""

    method: str = "ladies"
    """One of METHODS."""
    scheme: str = "priority"
    """One of the method's schemes."""
    scores: str = "squares"
    """LADIES: how the sources of edges into the frontier are scored; one of SCORES."""
    aggregation: str = "mean"
    """a_e of an edge j -> i: "mean" 1 / d_i, "sum" 1, "gcn" 1 / sqrt(d_i d_j)."""
    weights: str = "self_normalized"
    """"unbiased": a_e c_v; "self_normalized": these, scaled so that the weights of a destination's drawn edges sum to
    what a_e sums to over its stored edges."""
    keep_known: bool = False
    """Not LABOR: all candidates that are already in the batch are taken, and others are drawn in addition."""
    layer_dependency: bool = False
    """LABOR: the same random numbers in all hops."""


def check_layer_graph(graph: Relations) -> None:
    """Raises TypeError or ValueError for a graph that :func:`sample_layers` does not sample."""
    if not isinstance(graph, Relations):
        raise TypeError(f"graph: expected what relations() returns, found {type(graph).__name__}")
    if len(graph.colptr) != 1 or len(graph.sizes) != 1:
        found = f"{len(graph.colptr)} relations of {len(graph.sizes)} node types"
        raise ValueError(f"graph: expected one relation of one node type, found {found}")
    if graph.weight[0] is not None or graph.time[0] is not None:
        raise ValueError("graph: expected edges without weights and times, found some")


def check_drawing(drawing: LayerDrawing, layers: bool, include_dst: bool) -> None:
    """Raises ValueError for an option that is unknown, or does not fit the method or the frontier."""
    method = drawing.method
    check_choice("method", method, METHODS)
    for name, value, known in (
        ("scheme", drawing.scheme, SCHEMES_OF[method]),
        ("scores", drawing.scores, SCORES),
    ):
        if value not in known:
            of = f" of method={method!r}" if name == "scheme" else ""
            raise ValueError(f"{name}: expected one of {known}{of}, found {value!r}")
    check_weighing(drawing.aggregation, drawing.weights)
    if drawing.scores != SCORES[0] and method == "labor":
        raise ValueError(f"scores={drawing.scores!r}: expected method='ladies' or 'fastgcn', found 'labor'")
    if drawing.keep_known and method == "labor":
        raise ValueError("keep_known=True: expected method='ladies' or 'fastgcn', found 'labor'")
    if drawing.layer_dependency and method != "labor":
        raise ValueError(f"layer_dependency=True: expected method='labor', found {method!r}")
    if not include_dst and not layers:
        raise ValueError("include_dst=False: expected layers=True, found False")
    if not include_dst and drawing.keep_known:
        raise ValueError("include_dst=False: expected keep_known=False, found True")


def check_weighing(aggregation: str, weights: str) -> None:
    """Raises ValueError for an unknown option of the weights of edges."""
    check_choice("aggregation", aggregation, AGGREGATIONS)
    check_choice("weights", weights, WEIGHTS)


def choices_of(drawing: LayerDrawing) -> list[int]:
    """What the operators are told of the options that are names."""
    return [
        METHODS.index(drawing.method), SCHEMES.index(drawing.scheme), SCORES.index(drawing.scores),
        AGGREGATIONS.index(drawing.aggregation), WEIGHTS.index(drawing.weights),
    ]  # fmt: skip


def options_of(drawing: LayerDrawing, layers: bool, include_dst: bool) -> int:
    """The other options, as bits of one integer: see :mod:`torch_gnnscale.ops.graph_arguments`."""
    return (
        LAYERS * layers | KEEP_KNOWN * drawing.keep_known | LAYER_DEPENDENCY * drawing.layer_dependency
        | INCLUDE_DST * include_dst
    )  # fmt: skip


def check_num_nodes(num_nodes: Sequence[int]) -> list[int]:
    """The number of each hop as a list of ints. Raises TypeError or ValueError for other values."""
    if isinstance(num_nodes, (str, dict)) or not isinstance(num_nodes, Sequence):
        raise TypeError(f"num_nodes: expected a list of ints, found {type(num_nodes).__name__}")
    if len(num_nodes) > MAX_HOPS:
        raise ValueError(f"num_nodes: expected at most {MAX_HOPS} hops, found {len(num_nodes)}")
    return [check_int(f"num_nodes[{hop}]", count, -1, MAX_DRAWN - 1) for hop, count in enumerate(num_nodes)]


MAX_ITERATIONS = 1 << 16
"""Of :func:`reverse_pagerank`: scores of the usual damping do not change any more after some hundreds."""


def score_unit(num_nodes: int) -> int:
    """What a score of 1 is in the integers of :func:`reverse_pagerank`: a power of two, for sums below 2^62."""
    return 1 << (60 - max(num_nodes, 1).bit_length())


def reverse_pagerank(
    colptr: Tensor, row: Tensor, initial: Tensor, iterations: int = 5, damping: float = 0.85, threads: int = 0
) -> Tensor:
    """Reverse PageRank (Data Tiering, section 3.1, algorithm 1), in integers.

    In each iteration a node's score becomes ``(1 - damping) * unit`` plus, over the nodes that it points to, their
    scores times ``damping``, divided by their in-degrees, rounded down. Integers do not depend on the order of sums.

    Args:
        colptr: int64, shape [n + 1].
        row: sources, int32 or int64, shape [E]; any stride.
        initial: the scores to begin with, in units of :func:`score_unit`: int64, shape [n], in [0, 2^62), with a sum of
            at most twice what n nodes of score 1 have.
        iterations: how many, from 0 to :data:`MAX_ITERATIONS`.
        damping: in [0, 1].
        threads: see the module; every further one takes 8 bytes per node.

    Returns:
        int64, shape [n].

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or numbers.
        RuntimeError: the graph is malformed after all.
    """
    check_ids("row", row)
    check_colptr(colptr, len(row), threads)
    num_nodes = colptr.numel() - 1
    check_tensor("initial", initial)
    if initial.dtype != torch.int64 or initial.shape != (num_nodes,):
        raise ValueError(
            f"initial: expected int64 of shape ({num_nodes},), found {initial.dtype} {tuple(initial.shape)}"
        )
    if not 0 <= damping <= 1:
        raise ValueError(f"damping: expected 0 <= damping <= 1, found {damping}")
    unit = score_unit(num_nodes)
    if num_nodes and (int(initial.min()) < 0 or float(initial.to(torch.float64).sum()) > 2.001 * unit * num_nodes):
        raise ValueError(f"initial: expected scores of at least 0 with a sum of at most {2 * unit * num_nodes}")
    share = round(damping * (1 << 32))
    teleport = unit - (unit * share >> 32)
    check_int("iterations", iterations, most=MAX_ITERATIONS)
    return OPS.reverse_pagerank(
        colptr.contiguous(), row, initial.contiguous(), iterations, teleport, share, resolve_threads(threads)
    )


def count_ids(ids: Tensor, size: int, threads: int = 0) -> Tensor:
    """How often each id occurs.

    Args:
        ids: int32 or int64, shape [n], in [0, ``size``); any stride; it may be mapped from a file.
        size: how many different ids there may be.
        threads: see the module; every further one takes 8 bytes per id.

    Returns:
        int64, shape [size].

    Raises:
        TypeError, ValueError, IndexError: wrong dtype or shape, an id out of range.
    """
    check_ids("ids", ids)
    size = check_int("size", size, 0, MAX_COUNT)
    try:
        return OPS.count_ids(ids, size, resolve_threads(threads))
    except RuntimeError:
        check_ids("ids", ids, size, "ids", threads)
        raise


def sample_layers_bulk(
    colptr: Tensor,
    row: Tensor | Sequence[Tensor],
    seeds: Tensor,
    seed_ptr: Sequence[int],
    num_nodes: Sequence[int],
    keys: Sequence[int],
    drawing: LayerDrawing,
    *,
    edge_id: Tensor | Sequence[Tensor] | None = None,
    spread: Sequence[int] | None = None,
    score: Tensor | None = None,
    layers: bool = False,
    include_dst: bool = True,
    threads: int = 0,
) -> list[Sample]:
    """Draws k batches layer by layer in one sequence of launches, each equal bit for bit to what :func:`sample_layers`
    draws with its key, which has the formulas.

    Every step of a hop is a loop over independent items. LADIES: each stored edge into the frontiers enters (batch,
    source) into a hash table and adds to its score, an integer, so that no order matters; the sources are listed;
    those of the least r_v / q_v are found by two counts of these quotients' first 12 and next 12 bits, and the few
    whose 24 bits are equal to those of the first that is not drawn are compared exactly; each stored edge from a drawn
    source is taken. ``successive`` is the exception: one warp makes all draws of a batch, one after the other, from a
    tree of sums. FastGCN has a candidate for each node and batch, LABOR none: each edge draws. The taken edges'
    sources are numbered as :func:`sample_bulk` numbers them. On a GPU all of it is queued on the current stream; the
    host waits twice per hop, for numbers of edges (``poisson``: some more times; ``replace`` and
    ``successive``: once more), and once for the counts.

    On a CPU, threads run the same steps. This serves to check them: :func:`sample_layers` is faster.

    Args:
        colptr, row, seeds, seed_ptr, keys, edge_id, spread: as of :func:`sample_bulk`.
        num_nodes, drawing, layers, include_dst: as of :func:`sample_layers`.
        score: for FastGCN: from :func:`node_scores`, where ``colptr`` may lie.
        threads: see the package; of no effect on a GPU.

    Returns:
        A sample for each batch with ``edge_weight``, its tensors views of buffers that all of them share, on the device
        of ``seeds``.

    Raises:
        TypeError, ValueError, IndexError: as of :func:`sample_bulk` and :func:`sample_layers`.
        RuntimeError: the graph is malformed, a hop reads more than 2^31 edges or, with FastGCN, has more than 2^31
            candidates.
        torch.OutOfMemoryError: the device has no memory for the call.
    """
    given = check_bulk_input(colptr, row, seeds, seed_ptr, keys, edge_id, spread)
    check_drawing(drawing, layers, include_dst)
    hops = check_num_nodes(num_nodes)
    size = len(given.colptr) - 1
    if (score is not None) != (drawing.method == "fastgcn"):
        raise ValueError(f"score: expected it only for method='fastgcn', found method={drawing.method!r}")
    if score is not None:
        check_vector("score", score, size)
        check_readable("score", score, seeds.device, "the seeds are")
        score = score.contiguous()
    try:
        *buffers, counts = OPS.sample_layers_bulk(
            given.colptr, given.row, given.edge_id, given.spread, given.seeds, score, given.seed_ptr, hops, given.keys,
            choices_of(drawing), options_of(drawing, layers, include_dst), resolve_threads(threads),
        )  # fmt: skip
        node, pointer, edge_index, edge, weight = buffers
        frontier_grows = layers and include_dst
        return split_bulk(
            len(given.keys), len(hops), frontier_grows, True, node, pointer, edge_index, edge, weight, counts
        )
    except RuntimeError as failed:
        error = failed
    check_ids("seeds", seeds, size, "nodes")
    raise error


class PreparedLayerBulks:
    """:func:`sample_layers_bulk` with a graph and options, for any number of batches."""

    def __init__(
        self,
        colptr: Tensor,
        row: Sequence[Tensor],
        edge_id: Sequence[Tensor] | None,
        spread: Sequence[int],
        num_nodes: Sequence[int],
        drawing: LayerDrawing,
        device: torch.device,
        *,
        score: Tensor | None,
        layers: bool,
        include_dst: bool,
    ) -> None:
        self._graph = colptr, row
        self._num_nodes, self._drawing, self._device = num_nodes, drawing, device
        self._options = {
            "edge_id": edge_id,
            "spread": spread,
            "score": score,
            "layers": layers,
            "include_dst": include_dst,
        }

    def sample(self, seeds: Tensor, key: int) -> Sample:
        """The sample of a batch; ``seeds`` may lie in host memory."""
        return self.sample_many([seeds], [key])[0]

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int]) -> list[Sample]:
        """The samples of many batches; ``seeds`` may lie in host memory. As :func:`in_halves` does, where memory runs
        out."""
        return in_halves(self._draw, seeds, keys)

    def _draw(self, seeds: Sequence[Tensor], keys: Sequence[int]) -> list[Sample]:
        """The samples of many batches, by one call."""
        there = joined_on(self._device, seeds)
        ends = [0, *accumulate(map(len, seeds))]
        return sample_layers_bulk(
            *self._graph,
            there,
            ends,
            self._num_nodes,
            keys,
            self._drawing,
            **self._options,  # type: ignore[arg-type]
        )
