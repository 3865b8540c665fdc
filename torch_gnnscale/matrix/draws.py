"""The random bits of the fused operators, for many counters at once."""

from __future__ import annotations

import numpy as np

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
