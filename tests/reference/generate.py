"""Random bits, orders and edges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .draws import WORD, bounded, counter_draw, philox


def random_bits(count: int, key: int, offset: int = 0) -> Tensor:
    """Draws [offset, offset + count) of a key as signed 64-bit integers: draw i is half i % 2 of block i // 2."""
    draws = (counter_draw(key, number >> 1, number & 1) for number in range(offset, offset + count))
    return torch.tensor([value - (value >> 63 << 64) for value in draws], dtype=torch.int64)


def permutation(count: int, key: int) -> Tensor:
    """The shuffle of Fisher and Yates: for each i in turn, entries i and i + bounded(draw i, count - i) are swapped."""
    order = list(range(count))
    for i in range(count - 1):
        other = i + bounded(counter_draw(key, i >> 1, i & 1), count - i)
        order[i], order[other] = order[other], order[i]
    return torch.tensor(order, dtype=torch.int64)


def rmat_edges(num_nodes: int, num_edges: int, key: int, quadrants: Sequence[float], first: int = 0) -> Tensor:
    """R-MAT edges (Chakrabarti et al., SDM 2004): see :func:`torch_gnnscale.ops.rmat_edges`.

    Each level of an edge takes 16 bits, so a block serves eight levels. Bits of the counter: edge 64, attempt 32, block
    32, from the lowest.
    """
    a, b, c = quadrants
    bounds = [round(65536 * p) for p in (a, a + b, a + b + c)]
    levels = (num_nodes - 1).bit_length()

    def edge(number: int, attempt: int) -> tuple[int, int]:
        src = dst = 0
        for level in range(levels):
            block, place = divmod(level, 8)
            words = philox(key, number & WORD, number >> 32, attempt, block)
            bits = sum(word << 32 * i for i, word in enumerate(words)) >> 16 * place & 0xFFFF
            quadrant = sum(bits >= bound for bound in bounds)  # 0..3: a, b, c, d
            src, dst = 2 * src + quadrant // 2, 2 * dst + quadrant % 2
        return src, dst

    edges = []
    for number in range(first, first + num_edges):
        attempt = 0
        while max(ends := edge(number, attempt)) >= num_nodes:
            attempt += 1
        edges.append(ends)
    return torch.tensor(edges, dtype=torch.int64).reshape(num_edges, 2).t().contiguous()
