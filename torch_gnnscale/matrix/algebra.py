"""The matrices A and Q, their products by scipy or, for a graph on a GPU, by cupy, and the edges that a hop samples;
and the draws of nodes and edges from what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..ops import MAX_FANOUT, Relations, choose_nodes
from ..ops.arguments import check_int
from ..ops.layer_drawing import MAX_DRAWN, check_layer_graph

try:
    from scipy.sparse import csr_array
except ImportError as error:
    raise ImportError('torch_gnnscale.matrix needs scipy: pip install "torch_gnnscale[matrix]"') from error


EXACT_BITS = 53
"""Products of doubles are exact if their sums stay below 2^53."""


class DeviceMatrix:
    """The right-hand side of products on a GPU: for a matrix q of scipy, ``q @ matrix`` is the matrix that scipy would
    return. All entries are int64.

    cuSPARSE multiplies doubles, not integers. So the entries of q are cut into parts of b bits, where b is so small
    that the sums of a part's products stay below 2^53. Each part has its own product; these are added as integers:

        q @ matrix = sum over i of 2^(b i) * (q_i @ matrix),     q = sum over i of 2^(b i) * q_i,     0 <= q_i < 2^b

    Args:
        matrix: entries are not negative, and below 2^53.
        arrays: the module ``cupy``.
        sparse: the module ``cupyx.scipy.sparse``.
        device: the number of the GPU.
    """

    def __init__(self, matrix: csr_array, arrays: Any, sparse: Any, device: int) -> None:
        self.shape = matrix.shape
        self._arrays, self._sparse, self._device = arrays, sparse, device
        self._largest = int(matrix.data.max(initial=0))
        with self._on_device():
            self._matrix = self._put(matrix.data, matrix)

    def __rmatmul__(self, q: csr_array) -> csr_array:
        """The product of q, whose entries are not negative, and the matrix."""
        most = self._largest * int(np.diff(q.indptr).max(initial=0))
        bits = (((1 << EXACT_BITS) - 1) // max(most, 1) + 1).bit_length() - 1  # the most with (2^b - 1) most < 2^53
        if bits < 1:
            raise ValueError(f"expected products that sum up to less than 2^{EXACT_BITS}, found sums of up to {most}")
        product = csr_array((q.shape[0], self.shape[1]), dtype=np.int64)
        for first in range(0, max(int(q.data.max(initial=0)).bit_length(), 1), bits):
            product = product + self._product((q.data >> first) & ((1 << bits) - 1), q) * (1 << first)
        product.sort_indices()
        return product

    def _product(self, data: np.ndarray, q: csr_array) -> csr_array:
        """The product with the entries of q replaced by ``data``."""
        with self._on_device():
            found = self._put(data, q) @ self._matrix
            entries, indices, indptr = map(self._arrays.asnumpy, (found.data, found.indices, found.indptr))
        return csr_array((entries.astype(np.int64), indices, indptr), shape=found.shape)

    def _put(self, data: np.ndarray, like: csr_array) -> Any:
        parts = map(self._arrays.asarray, (data.astype(np.float64), like.indices, like.indptr))
        return self._sparse.csr_matrix(tuple(parts), shape=like.shape)

    def _on_device(self) -> Any:
        return self._arrays.cuda.Device(self._device)


def holder(device: torch.device) -> Callable[[csr_array], Any]:
    """A function that makes the right-hand side of products from a matrix: on a CPU it is the matrix itself, on a GPU a
    :class:`DeviceMatrix`.

    Raises:
        ImportError: a GPU, and cupy is not installed.
    """
    if device.type != "cuda":
        return lambda matrix: matrix
    try:
        import cupy
        from cupyx.scipy import sparse
    except ImportError as error:
        raise ImportError(
            "graph: expected cupy, which multiplies the matrices of a graph on a GPU, found none: install the package "
            "of your CUDA version, such as cupy-cuda13x, or move the graph to the CPU"
        ) from error
    index = torch.cuda.current_device() if device.index is None else device.index
    return lambda matrix: DeviceMatrix(matrix, cupy, sparse, index)


class Adjacency(NamedTuple):
    """The graph as int64 matrices of n x n: each edge j -> i has an entry in row i, column j.

    ``position`` and ``ones`` are right-hand sides of products: ``q @ graph.ones``, for a matrix q of scipy, is computed
    on the device of the graph's tensors, and is a matrix of scipy.
    """

    graph: Relations
    """The graph, in host memory."""
    position: csr_array | DeviceMatrix
    """The entries are 1 + the edge's position in the stored order of all edges."""
    ones: csr_array | DeviceMatrix
    """The entries are 1."""
    degree: np.ndarray
    """The number of edges into each node: int64, shape [n]."""
    hold: Callable[[csr_array], Any]
    """Makes a right-hand side of products on ``device`` from a matrix."""
    device: torch.device
    """The device of the graph's tensors, where products are computed and samples are put."""

    @property
    def num_nodes(self) -> int:
        """n."""
        return len(self.degree)


class Frontier(NamedTuple):
    """The nodes that a hop expands, F, of k batches, one batch after the other."""

    node: np.ndarray
    """The node of each row: int64, shape [rows]; distinct within a batch, except for repeated seeds."""
    ptr: np.ndarray
    """Where each batch begins: int64, shape [k + 1]."""
    keys: np.ndarray
    """The key of each batch: uint64, shape [k]."""
    hop: int
    is_whole: bool = True
    """Whether F is all nodes that the batch has found; False with ``include_dst=False``."""

    @property
    def batch(self) -> np.ndarray:
        """The batch of each row: int64, shape [rows]."""
        return np.repeat(np.arange(len(self.keys)), np.diff(self.ptr))


class FrontierEdges(NamedTuple):
    """Edges into the nodes of a frontier, row after row: the stacked A^l of all batches, before empty columns are
    removed."""

    ptr: np.ndarray
    """Where each row's edges begin: int64, shape [rows + 1]."""
    source: np.ndarray
    """The global id of each edge's source: int64, shape [e]."""
    position: np.ndarray
    """The position of each edge in the stored order of all edges: int64, shape [e]."""
    correction: np.ndarray | None
    """c_v: float64, shape [e]; None for a method without weights."""

    @property
    def row(self) -> np.ndarray:
        """The row of each edge: int64, shape [e]."""
        return np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))

    def keep(self, mask: np.ndarray, correction: np.ndarray) -> FrontierEdges:
        """The edges where ``mask`` is True, with their entries of ``correction``; both have an entry for each edge."""
        counts = np.bincount(self.row[mask], minlength=len(self.ptr) - 1)
        return FrontierEdges(ptr_of(counts), self.source[mask], self.position[mask], correction[mask])


def ptr_of(counts: np.ndarray) -> np.ndarray:
    """The prefix sums [0, counts[0], counts[0] + counts[1], ...]: int64, shape [len(counts) + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def adjacency(graph: Relations) -> Adjacency:
    """The matrices of a graph of one relation between nodes of one type, without edge weights and times.

    If the graph is on a GPU, its matrices are, too, and cupy multiplies.

    Raises:
        TypeError, ValueError: another graph, or parallel edges, whose entries a matrix product would add.
        ImportError: a graph on a GPU, and cupy is not installed.
    """
    check_layer_graph(graph)
    device = graph.colptr[0].device
    hold = holder(device)
    names = graph.edge_id[0]
    host = graph._replace(
        colptr=[graph.colptr[0].cpu()], row=[graph.row[0].cpu()], edge_id=[None if names is None else names.cpu()]
    )
    colptr, row, count = host.colptr[0].numpy(), host.row[0].numpy().astype(np.int64), host.sizes[0]
    position = csr_array((np.arange(1, len(row) + 1), row, colptr), shape=(count, count))
    position.sort_indices()
    into = np.repeat(np.arange(count), np.diff(colptr))
    repeated = (np.diff(position.indices) == 0) & (np.diff(into) == 0)
    if repeated.any():
        at = int(repeated.argmax())
        raise ValueError(f"graph: expected no parallel edges, found two {int(position.indices[at])} -> {into[at]}")
    ones = csr_array((np.ones(len(row), np.int64), position.indices, position.indptr), shape=(count, count))
    return Adjacency(host, hold(position), hold(ones), np.diff(colptr), hold, device)


def one_node_each(frontier: Frontier, num_nodes: int) -> csr_array:
    """Q of node-wise methods, and the row extraction matrix Q_R: a row per row of the frontier, with 1 at its node."""
    rows = len(frontier.node)
    return csr_array((np.ones(rows, np.int64), frontier.node, np.arange(rows + 1)), shape=(rows, num_nodes))


def stacked_sets(frontier: Frontier, value: np.ndarray) -> csr_array:
    """Q of layer-wise methods (equation 1): a row per batch, with ``value[i]`` at each node i of its frontier; a
    repeated node counts once."""
    code = np.unique(frontier.batch * len(value) + frontier.node)
    batch, node = np.divmod(code, max(len(value), 1))
    counts = np.bincount(batch, minlength=len(frontier.keys))
    return csr_array((value[node], node, ptr_of(counts)), shape=(len(frontier.keys), len(value)))


def stored_order(matrix: Any) -> FrontierEdges:
    """The edges of a matrix whose entries come from :attr:`Adjacency.position`; each row's edges in stored order."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.data, row))
    source, position = matrix.indices[order].astype(np.int64), matrix.data[order] - 1
    return FrontierEdges(matrix.indptr.astype(np.int64), source, position, None)


def unsigned(keys: Sequence[int]) -> np.ndarray:
    """Keys of 64 bits, signed or not, as uint64."""
    return np.array([key & (1 << 64) - 1 for key in keys], np.uint64)


WORD = np.uint64((1 << 32) - 1)
_HALF = np.uint64(32)


def draw(key: np.ndarray, node: np.ndarray, hop: int, number: int, relation: int = 0) -> np.ndarray:
    """Draw ``number`` of (key, node, hop, relation) by Philox4x32-10 (Salmon et al., SC 2011).

    Args:
        key: uint64; broadcast against ``node``.
        node: nodes, or numbers of draws with ``relation=1``: int64, not negative.
        hop: below 64.
        number: below 2^17.
        relation: below 1024; 0 for the draws of a node, 1 for numbered draws, whose ``node`` is their number j.

    Returns:
        uint64, 64 random bits each.
    """
    key, counter = np.broadcast_arrays(np.asarray(key, np.uint64), np.asarray(node).astype(np.uint64))
    left, right = key & WORD, key >> _HALF
    block, half = divmod(number, 2)
    c0, c1 = counter & WORD, counter >> _HALF
    c2, c3 = np.zeros_like(c0), np.full_like(c0, block | relation << 16 | hop << 26)
    for _ in range(10):
        even, odd = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (odd >> _HALF) ^ c1 ^ left, odd & WORD, (even >> _HALF) ^ c3 ^ right, even & WORD
        left, right = (left + np.uint64(0x9E3779B9)) & WORD, (right + np.uint64(0xBB67AE85)) & WORD
    return c2 | c3 << _HALF if half else c0 | c1 << _HALF


def bounded(random: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
    """``floor(random * limit / 2^64)``: int64, in [0, limit). ``random``: uint64; ``limit``: below 2^63."""
    limit = np.asarray(limit).astype(np.uint64)
    low, high = random & WORD, random >> _HALF
    limit_low, limit_high = limit & WORD, limit >> _HALF
    middle = high * limit_low + (low * limit_low >> _HALF)
    carry = low * limit_high + (middle & WORD)
    return (high * limit_high + (middle >> _HALF) + (carry >> _HALF)).astype(np.int64)


class Drawn(NamedTuple):
    """The nodes that each batch drew (the nonzeros of Q^(l-1)), one batch after the other."""

    ptr: np.ndarray
    """Where each batch begins: int64, shape [k + 1]."""
    node: np.ndarray
    """The drawn nodes: int64, shape [m]."""
    correction: np.ndarray
    """c_v of each: float64, shape [m]."""


def choose(p: Any, count: int, scheme: str, frontier: Frontier, keep_known: bool = False) -> Drawn:
    """Draws ``count`` nodes for each batch by :func:`torch_gnnscale.ops.choose_nodes`.

    Args:
        p: the scores, a row per batch, or one row for all batches.
        count: how many nodes to draw; -1 takes all.
        scheme: of :class:`torch_gnnscale.ops.LayerDrawing`.
        frontier: the frontier of the hop.
        keep_known: candidates in the frontier are taken, with c_v = 1, and ``count`` others are drawn.

    Raises:
        ValueError: ``keep_known`` with a frontier that is not all nodes of the batch.
    """
    if keep_known and not frontier.is_whole:
        raise ValueError("include_dst=False: expected keep_known=False, found True")
    found = []
    for batch, key in enumerate(frontier.keys.view(np.int64).tolist()):
        node, score = _candidates(p, batch)
        kept = np.isin(node, frontier.node[frontier.ptr[batch] : frontier.ptr[batch + 1]]) & keep_known
        others, of_others = torch.from_numpy(node[~kept]), torch.from_numpy(score[~kept])
        at, correction = choose_nodes(others, of_others, count, scheme, key, frontier.hop)
        nodes = np.concatenate([node[kept], others[at].numpy()])
        found.append((nodes, np.concatenate([np.ones(kept.sum()), correction.numpy()])))
    return _drawn(found)


def choose_by_its(p: Any, count: int, frontier: Frontier, redraws: int = 8) -> Drawn:
    """Draws ``count`` nodes from each row of P by inverse transform sampling (section 4.1.2).

    Random numbers are searched for in the row's prefix sums; more are drawn until ``count`` different nodes are found.
    Probabilities and c_v are those of ``scheme="successive"``; the draws differ. After ``redraws`` rounds the nodes
    found so far are removed from the prefix sums, so that each further round finds at least one: there are at most
    redraws + count rounds. All candidates are taken, with c_v = 1, if there are at most ``count``, or it is -1.

    Args:
        p: as of :func:`choose`; the sum of a row is below 2^62.
        count: how many nodes to draw; -1 takes all.
        frontier: the frontier of the hop.
        redraws: the rounds after which nodes are removed.
    """
    check_int("count", count, -1, MAX_DRAWN - 1)
    check_int("redraws", redraws, 1)
    found = []
    for batch, key in enumerate(frontier.keys):
        node, score = _candidates(p, batch)
        order = np.argsort(node)
        node, score = node[order], score[order]
        if count < 0 or len(node) <= count:
            found.append((node, np.ones(len(node))))
            continue
        left, picks, number, rounds = score.copy(), np.empty(0, np.int64), 0, 0
        while len(picks) < count:
            if rounds >= redraws:
                left[picks] = 0
            sums = np.cumsum(left)
            lacking = np.arange(number, number + count - len(picks))
            units = bounded(draw(key, lacking, frontier.hop, 0, relation=1), int(sums[-1]))
            picks = np.unique(np.concatenate([picks, np.searchsorted(sums, units, side="right")]))
            number, rounds = number + len(lacking), rounds + 1
        found.append((node[picks], float(score.sum()) / (float(count) * score[picks])))
    return _drawn(found)


def choose_neighbors(p: Any, count: int, frontier: Frontier, replace: bool = False) -> FrontierEdges:
    """Draws ``count`` edges of each row of P uniformly, by the draws of :func:`torch_gnnscale.ops.sample_neighbors`.

    ``p``: rows of :attr:`Adjacency.position`; ``count``: -1 takes all; ``replace``: draw with replacement, else by
    Floyd's method.
    """
    check_int("count", count, -1, MAX_FANOUT)
    stored = stored_order(p)
    if count < 0:
        return stored
    degree = np.diff(stored.ptr)
    full = (degree <= count) & ~(replace & (degree > 0))
    drawing = ~full
    key, node, limit = frontier.keys[frontier.batch[drawing]], frontier.node[drawing], degree[drawing]
    picks = np.empty((len(node), count), np.int64)
    for i in range(count):
        among = limit if replace else limit - count + i + 1
        pick = bounded(draw(key, node, frontier.hop, i), among)
        taken = (picks[:, :i] == pick[:, None]).any(1) & (not replace)
        picks[:, i] = np.where(taken, among - 1, pick)
    ptr = ptr_of(np.where(full, degree, count))
    at = np.empty(ptr[-1], np.int64)
    at[np.repeat(full, np.diff(ptr))] = np.flatnonzero(np.repeat(full, degree))
    at[np.repeat(drawing, np.diff(ptr))] = (stored.ptr[:-1][drawing, None] + picks).ravel()
    return FrontierEdges(ptr, stored.source[at], stored.position[at], None)


def _candidates(p: Any, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of a batch's row of P, or of the only row, and their scores: int64, shape [m]."""
    row = batch if p.shape[0] > 1 else 0
    entries = slice(p.indptr[row], p.indptr[row + 1])
    return p.indices[entries].astype(np.int64), p.data[entries]


def _drawn(found: list[tuple[np.ndarray, np.ndarray]]) -> Drawn:
    """Concatenates (nodes, corrections) of the batches."""
    ptr = ptr_of(np.array([len(node) for node, _ in found], np.int64))
    nodes = np.concatenate([np.empty(0, np.int64), *(node for node, _ in found)])
    return Drawn(ptr, nodes, np.concatenate([np.empty(0), *(correction for _, correction in found)]))
