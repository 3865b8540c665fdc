"""SAMPLE: draws entries of P's rows, by the random bits of the fused operators."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ..ops import MAX_FANOUT, choose_nodes
from ..ops.arguments import check_int
from ..ops.layer_drawing import MAX_DRAWN
from .algebra import Frontier, FrontierEdges, ptr_of, stored_order

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
