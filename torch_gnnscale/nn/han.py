"""HANConv of at most one relation into each type, with its coefficients from the layer's input and its sums over the
CSC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .aggregate import Bipartite, aggregate
from .gat import attention, folded, product_of_sums
from .messages import sums_as
from .products import is_plain, multiplies_destinations, occurring, takes_rows


def han(
    layer: pyg_nn.HANConv, x_dict: Mapping[str, Tensor], edges: Mapping[Any, Bipartite], num_dst: Mapping[str, int]
) -> dict[str, Tensor | None]:
    """What a HANConv returns: by type, [num_dst, C], or None of a type that no relation leads into.

    With W and b the projection of a type and a an attention, a coefficient a . (W x + b) is computed as
    (a W) . x + a . b, so the rows of destinations need no product. Attention over the relations into a type is 1, since
    there is one; its parameters get gradients of zero, as PyG's layer gives.

    Args:
        layer: one that :func:`han_takes` these arguments.
        x_dict: by type, the rows of sources, [num_src, F].
        edges: by relation, sorted by destination.
        num_dst: by type, the number of destinations, which are the first sources.
    """
    heads, channels = layer.heads, layer.out_channels // layer.heads
    out: dict[str, Tensor | None] = dict.fromkeys(x_dict)
    for key, found in edges.items():
        src, name, dst = key[0], "__".join(key), key[-1]
        projection, x, roots = layer.proj[src], x_dict[src], x_dict[dst][: num_dst[dst]]
        of_destinations = multiplies_destinations(found, x.size(1), layer.out_channels, heads)
        if not of_destinations:
            x, found = occurring(x, found)
        of_sources = _coefficients(x, projection, layer.lin_src[name])
        of_columns = _coefficients(roots, layer.proj[dst], layer.lin_dst[name])
        weight = attention(of_sources, of_columns, None, found, layer.negative_slope)
        weight = functional.dropout(weight, layer.dropout, layer.training)
        if of_destinations:
            rows = product_of_sums(x, projection.weight, found, weight)
        else:
            product = functional.linear(x, projection.weight)
            rows = aggregate(product.view(len(x), heads, channels), found, "sum", weight)
        if projection.bias is not None:  # as often as the edges' weights say: once without dropout
            totals = aggregate(x.new_ones(len(x), heads, 1), found, "sum", weight)
            rows = rows + totals * projection.bias.view(heads, channels)
        out[dst] = _Weighed.apply(rows.flatten(1).relu(), layer.q, *layer.k_lin.parameters())
    return out


class _Weighed(torch.autograd.Function):
    """The rows times 1, the softmax of one score, whose parameters get gradients of zero."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad, *map(torch.zeros_like, ctx.saved_tensors)


def is_pygs_han(layer: pyg_nn.MessagePassing) -> bool:
    """Whether the layer is a HANConv of which no method, and no part that :func:`han` replaces, does more."""
    if not sums_as(layer, pyg_nn.HANConv) or layer.out_channels % layer.heads:
        return False
    return all(map(is_plain, layer.proj.values())) and is_plain(layer.k_lin, nn.Linear)


def han_takes(layer: pyg_nn.HANConv, x_dict: Mapping[str, Any], relations: Sequence[Any]) -> bool:
    """Whether :func:`han` computes what a layer that :func:`is_pygs_han` does with these rows and relations, of which
    at most one leads into each type."""
    if not all("__".join(key) in layer.lin_src and {key[0], key[-1]} <= x_dict.keys() for key in relations):
        return False
    return all(t in layer.proj and takes_rows(layer.proj[t].weight, x) for t, x in x_dict.items())


def _coefficients(x: Tensor, projection: pyg_nn.Linear, of_heads: Tensor) -> Tensor:
    """a . (W x + b) of each row and head: [n, heads]; ``of_heads``: a, [1, heads, C / heads]."""
    bias = None if projection.bias is None else folded(projection.bias.unsqueeze(1), of_heads)[0]
    return functional.linear(x, folded(projection.weight, of_heads).t(), bias)
