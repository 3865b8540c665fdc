"""Attention over the edges into each destination: scores of edges, and their softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from .aggregate import Adjacency


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edges: Adjacency, slope: float, *scores: Tensor) -> Tensor:
        ptr, node, _ = edges.forward
        weight = ops.edge_attention(ptr, node, *scores, slope=slope)
        ctx.edges, ctx.slope = edges, slope
        ctx.save_for_backward(weight, *scores)
        if ctx.needs_input_grad[2]:
            edges.want_transposed()
        return weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        edges, (weight, *scores), (ptr, node, _) = ctx.edges, ctx.saved_tensors, ctx.edges.forward
        given = scores[0], scores[1], scores[2], weight, grad
        of_edges, of_destinations = ops.edge_attention_backward(ptr, node, *given, slope=ctx.slope)
        of_sources = None
        if ctx.needs_input_grad[2]:
            ptr, _, edge = edges.transposed()
            ptr = ptr[: edges.num_src + 1]
            of_sources = ops.aggregate(ptr, edge, of_edges, edge=edge, num_edges=edges.num_edges)
        needed = ctx.needs_input_grad
        return None, None, of_sources, of_destinations if needed[3] else None, of_edges if needed[4] else None


def attention(
    of_sources: Tensor, of_destinations: Tensor | None, of_edges: Tensor | None, edges: Adjacency, slope: float
) -> Tensor:
    """The softmax over each destination's edges of ``leaky_relu(of_sources[src] + of_destinations[dst] + of_edges)``;
    differentiable once.

    Args:
        of_sources: of H heads, float32 or float64: [num_src, H].
        of_destinations: [num_dst, H], or None for zeros.
        of_edges: [num_edges, H], or None for zeros.
        edges: sorted by destination.
        slope: of negative scores.

    Returns:
        [num_edges, H]; of a destination's edges, those of each head add up to 1.
    """
    return _Attention.apply(edges, slope, of_sources, of_destinations, of_edges)
