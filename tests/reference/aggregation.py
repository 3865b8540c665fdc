"""Aggregation over columns."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

PIECE = 128
"""So many entries of a column are summed by themselves; then these sums are added."""


def _wide(x: Tensor) -> Tensor:
    """The rows in the dtype in which they are summed."""
    return x.float() if x.dtype.itemsize == 2 else x


def _sum(rows: list[Tensor]) -> Tensor | int:
    """The sum of a column's rows, in their order; 0 without rows."""
    return sum(sum(rows[first : first + PIECE]) for first in range(0, len(rows), PIECE))


def aggregate(
    ptr: Tensor,
    node: Tensor,
    x: Tensor,
    reduce: str = "sum",
    *,
    weight: Tensor | None = None,
    edge: Tensor | None = None,
    num_edges: int | None = None,
) -> Tensor:
    """The sum (in stored order, piece by piece), mean, maximum or minimum of each column's weighted rows; NaN where one
    of them is."""
    out = (x if weight is None else weight).new_zeros(len(ptr) - 1, x.size(1))
    x = _wide(x)
    for column in range(len(ptr) - 1):
        rows = []
        for entry in range(int(ptr[column]), int(ptr[column + 1])):
            number = entry if edge is None else int(edge[entry])
            if num_edges is not None and number >= num_edges:
                continue
            row = x[node[entry]]
            if weight is not None:
                row = (row.view(weight.size(1), -1) * _wide(weight[number]).unsqueeze(1)).view(-1)
            rows.append(row)
        if rows and reduce in ("max", "min"):
            out[column] = torch.stack(rows).amax(0) if reduce == "max" else torch.stack(rows).amin(0)
        elif rows:
            out[column] = _sum(rows) / (len(rows) if reduce == "mean" else 1)
    return out


def edge_dot(ptr: Tensor, node: Tensor, x: Tensor, y: Tensor, heads: int = 1, *, edge: Tensor | None = None) -> Tensor:
    """The dot product, in each head, of each entry's row of ``x`` and its column's row of ``y``."""
    out = y.new_zeros(len(node), heads)
    x, y = _wide(x), _wide(y)
    for column in range(len(ptr) - 1):
        for entry in range(int(ptr[column]), int(ptr[column + 1])):
            product = (x[node[entry]] * y[column]).view(heads, -1).sum(1)
            out[entry if edge is None else int(edge[entry])] = product
    return out


def _scores(ptr, node, of_sources, of_columns, of_entries) -> tuple[Tensor, Tensor]:
    """Those of all entries, before they are made leaky, and their columns."""
    columns = torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff())
    score = of_sources[node.long()]
    score = score if of_columns is None else score + of_columns[columns]
    return score if of_entries is None else score + of_entries, columns


def edge_attention(
    ptr: Tensor,
    node: Tensor,
    of_sources: Tensor,
    of_columns: Tensor | None = None,
    of_entries: Tensor | None = None,
    *,
    slope: float = 0.2,
) -> Tensor:
    """By torch: of each column and head, the softmax of the leaky scores of its entries."""
    score, _ = _scores(ptr, node, of_sources, of_columns, of_entries)
    score = torch.nn.functional.leaky_relu(score, slope)
    return torch.cat([score[first:last].softmax(0) for first, last in pairwise(ptr)] or [score])


def edge_attention_backward(
    ptr: Tensor,
    node: Tensor,
    of_sources: Tensor,
    of_columns: Tensor | None,
    of_entries: Tensor | None,
    weight: Tensor,
    grad: Tensor,
    *,
    slope: float = 0.2,
) -> tuple[Tensor, Tensor]:
    """With p the softmax of the leaky scores s, dL/ds_k = p_k (dL/dp_k - sum over the column of p dL/dp); times the
    slope where the score is at most 0. And its sums over columns."""
    score, columns = _scores(ptr, node, of_sources, of_columns, of_entries)
    zeros = score.new_zeros(len(ptr) - 1, score.size(1))
    mean = zeros.index_add(0, columns, weight * grad)
    gradient = weight * (grad - mean[columns])
    gradient = torch.where(score > 0, gradient, gradient * slope)
    return gradient, zeros.index_add(0, columns, gradient)


def share_of_extremes(ptr: Tensor, node: Tensor, x: Tensor, extreme: Tensor, grad: Tensor) -> Tensor:
    """The gradient of each column's extreme, divided by the number of entries that are equal to it."""
    out = torch.zeros_like(extreme)
    for column in range(len(ptr) - 1):
        ties = (x[node[ptr[column] : ptr[column + 1]]] == extreme[column]).sum(0)
        out[column] = torch.where(ties > 0, _wide(grad[column]) / ties, 0)
    return out


def extreme_backward(
    ptr: Tensor,
    node: Tensor,
    x: Tensor,
    extreme: Tensor,
    share: Tensor,
    *,
    edge: Tensor | None = None,
    num_edges: int | None = None,
) -> Tensor:
    """The gradient of each row of ``x``, over the transposed graph: item by item, the sum of ``share`` over those of
    the row's columns whose extreme is equal to it."""
    out = torch.zeros_like(x)
    for source in range(len(ptr) - 1):
        given = []
        for entry in range(int(ptr[source]), int(ptr[source + 1])):
            number = entry if edge is None else int(edge[entry])
            if num_edges is None or number < num_edges:
                column = node[entry]
                given.append(torch.where(x[source] == extreme[column], _wide(share[column]), 0))
        out[source] = _sum(given)
    return out
