"""Random numbers and the choices that they decide."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

WORD = (1 << 32) - 1
"""The largest number of 32 bits."""


def philox(key: int, c0: int, c1: int, c2: int, c3: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC 2011): the block of a 64-bit key and four counter words, the lowest first."""
    left, right = key & WORD, key >> 32 & WORD
    for _ in range(10):
        even, odd = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (odd >> 32) ^ c1 ^ left, odd & WORD, (even >> 32) ^ c3 ^ right, even & WORD
        left, right = (left + 0x9E3779B9) & WORD, (right + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


def counter_draw(key: int, counter: int, number: int) -> int:
    """The first (``number`` 0) or second (1) 64 bits of the block of a 128-bit counter."""
    words = philox(key, *(counter >> shift & WORD for shift in (0, 32, 64, 96)))
    return words[2 * number] | words[2 * number + 1] << 32


def draw(key: int, node: int, hop: int, number: int, *, tree: int = 0, relation: int = 0) -> int:
    """Draw ``number`` of a node, 64 bits. Bits of the counter: node 64, tree 32, block 16, relation 10, hop 6, from the
    lowest; ``block = number // 2``."""
    block, half = divmod(number, 2)
    if not (0 <= node < 1 << 64 and 0 <= tree < 1 << 32 and 0 <= hop < 64 and relation < 1024 and block < 1 << 16):
        raise ValueError("a part of the counter is out of range")
    return counter_draw(key, node | tree << 64 | block << 96 | relation << 112 | hop << 122, half)


def bounded(random: int, limit: int) -> int:
    """``floor(random * limit / 2^64)``: a number in [0, limit) from 64 random bits."""
    return random * limit >> 64


def choose(
    key: int,
    node: int,
    hop: int,
    degree: int,
    fanout: int,
    replace: bool,
    *,
    tree: int = 0,
    relation: int = 0,
    weights: Sequence[int] | None = None,
) -> list[int]:
    """Which of ``degree`` candidates a node draws in a hop.

    - All of them, in order, if ``fanout`` is -1, or, without replacement, not below the degree.
    - With replacement: independent numbers in [0, degree).
    - Without replacement, Floyd's method: number i is drawn from [0, degree - fanout + i]; if it was chosen before,
      ``degree - fanout + i`` is chosen.
    - With weights: a candidate of weight w is w consecutive units, and each number chooses one of the units, without
      replacement one of those of candidates that were not chosen yet.
    """
    if degree == 0:
        return []
    if fanout < 0 or (fanout >= degree and not replace):
        return list(range(degree))
    draws = [draw(key, node, hop, number, tree=tree, relation=relation) for number in range(fanout)]
    if weights is not None:
        left = dict(enumerate(weights))
        picks = []
        for random in draws:
            unit = bounded(random, sum(left.values()))
            candidate = next(c for c, end in zip(left, accumulate(left.values()), strict=True) if unit < end)
            picks.append(candidate)
            if not replace:
                del left[candidate]
        return picks
    if replace:
        return [bounded(random, degree) for random in draws]
    chosen: dict[int, None] = {}
    for random, largest in zip(draws, range(degree - fanout, degree), strict=True):
        position = bounded(random, largest + 1)
        chosen[largest if position in chosen else position] = None
    return list(chosen)
