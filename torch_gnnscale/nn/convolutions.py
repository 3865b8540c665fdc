"""SAGEConv and GATConv as one function each, over the CSC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch_geometric.utils import add_self_loops, remove_self_loops

from .. import ops
from .aggregate import Apart, Bipartite, RowGradient, aggregate, by_head, sort_edges, sum_up
from .pyg_layers import is_plain, is_wide, multiplies_destinations


def _computed(
    x: Tensor, root: Tensor | None, weight: Tensor | None, of_neighbors: Tensor, bias: Tensor | None, of_root: Tensor,
    edges: Bipartite, reduce: str, apart: Apart | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output, ``root @ of_root.T + bias + aggregate @ of_neighbors.T``, and the aggregate. The first product is
    computed while rows that are apart arrive; the second one is added to it in place."""
    products: list[Tensor] = []

    def multiply() -> None:
        products.append(functional.linear(x[: edges.num_dst] if root is None else root, of_root, bias))

    if apart is None:
        multiply()
    aggregate = sum_up(x, weight, edges, reduce, None if apart is None else apart.receive(multiply))
    return products[0].addmm_(aggregate, of_neighbors.t()), aggregate


class _Sage(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, root: Tensor | None, weight: Tensor | None, of_neighbors: Tensor, bias: Tensor | None,
        of_root: Tensor, edges: Bipartite, reduce: str, apart: Apart | None,
    ) -> Tensor:  # fmt: skip
        out, aggregate = _computed(x, root, weight, of_neighbors, bias, of_root, edges, reduce, apart)
        ctx.edges, ctx.reduce, ctx.give_back = edges, reduce, None if apart is None else apart.give_back
        if ctx.needs_input_grad[0]:
            edges.want_transposed()
        ctx.num_rows, is_extreme = len(x), reduce in ("max", "min")
        of_x, of_roots, _, of_weight, _, of_root_weight, *_ = ctx.needs_input_grad
        ctx.has_root = root is not None
        ctx.save_for_backward(
            x if (of_root_weight and root is None) or (of_x and is_extreme) else None,
            root if of_root_weight else None,
            weight,
            aggregate if of_weight or (of_x and is_extreme) else None,
            of_neighbors if of_x else None,
            of_root if of_roots or (of_x and root is None) else None,
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not torch.is_autocast_enabled(grad.device.type):
            return _gradients(ctx, grad)
        with torch.autocast(grad.device.type, enabled=False):  # the forward pass was without it
            return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    edges, (x, root, weight, aggregate, of_neighbors, of_root) = ctx.edges, ctx.saved_tensors
    found: list[Tensor | None] = [None] * 9

    def of_parameters() -> None:
        if ctx.needs_input_grad[1]:
            found[1] = grad.mm(of_root)
        if ctx.needs_input_grad[3]:
            found[3] = grad.t().mm(aggregate)
        if ctx.needs_input_grad[4]:
            found[4] = grad.sum(0)
        if ctx.needs_input_grad[5]:
            found[5] = grad.t().mm(root if ctx.has_root else x[: edges.num_dst])

    if not ctx.needs_input_grad[0]:
        of_parameters()
        return tuple(found)
    extreme = aggregate if ctx.reduce in ("max", "min") else None
    rows = RowGradient(grad.mm(of_neighbors), x, weight, edges, ctx.reduce, extreme)

    def of_x() -> Tensor:
        of_parameters()
        out = rows.of(0, ctx.num_rows)
        if not ctx.has_root:
            out[: edges.num_dst].addmm_(grad, of_root)
        return out

    if ctx.give_back is None:
        found[0] = of_x()
    else:
        found[0] = ctx.give_back(lambda: rows.of(ctx.num_rows, edges.num_src), of_x)
    return tuple(found)


def sage(
    x: Tensor,
    root: Tensor | None,
    weight: Tensor | None,
    of_neighbors: Tensor,
    bias: Tensor | None,
    of_root: Tensor,
    edges: Bipartite,
    reduce: str,
    apart: Apart | None,
) -> Tensor:
    """``aggregate @ of_neighbors.T + root @ of_root.T + bias``; differentiable once.

    Args:
        x: float32 or float64, [num_src, F], or fewer rows with ``apart``.
        root: the destinations' own rows, [num_dst, G]; None: they are ``x[:num_dst]``.
        weight: of messages, without a gradient: [e]; or None.
        of_neighbors, of_root: [C, F] and [C, G]; dtypes as of x.
        bias: [C], or None.
        edges, reduce, apart: as of :func:`torch_gnnscale.nn.aggregate.aggregate_and_root`.

    Returns:
        [num_dst, C].
    """
    assert weight is None or not weight.requires_grad
    given = x, root, None if weight is None else weight.unsqueeze(1), of_neighbors, bias, of_root, edges, reduce, apart
    may_need = x, root, of_neighbors, bias, of_root
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in may_need):
        return _Sage.apply(*given)
    return _computed(*given)[0]


def sage_takes(layer: pyg_nn.SAGEConv, root: Tensor | None) -> bool:
    """Whether the layer computes ``lin_l(aggregate) + lin_r(root)`` as two plain products in the dtype of root."""
    if getattr(layer, "project", False) or not layer.root_weight or root is None or root.dim() != 2:
        return False
    return is_wide(root) and is_plain(layer.lin_l) and is_plain(layer.lin_r) and layer.lin_r.bias is None


_PRODUCTS = ("lin", "lin_src", "lin_dst", "lin_edge")


def gat(
    layer: pyg_nn.GATConv, x: Tensor, root: Tensor | None, edges: Bipartite, edge_attr: Tensor | None = None
) -> Tensor:
    """What a GATConv returns: [num_dst, heads * C], or [num_dst, C] without ``concat``.

    With W the weights of the layer's product and a its attention, a coefficient a . W x is computed as (a W) . x, so
    the destinations' rows need no product. With one head, neighbors' rows are aggregated as they are, and W multiplies
    the sums: the layer multiplies the rows of destinations, not those of sources. With several heads it does the same,
    once for the weights of each head, where x needs no gradient, as in a first layer, and it takes less time.

    Args:
        layer: one for which :func:`gat_takes` is true of these arguments.
        x: float32 or float64, [num_src, F].
        root: the destinations' own rows, or None, as the layer takes them.
        edges: sorted by destination.
        edge_attr: of the edges, or None.
    """
    heads, channels = layer.heads, layer.out_channels
    linear, of_root = (layer.lin_src, layer.lin_dst) if layer.lin is None else (layer.lin, layer.lin)
    if layer.add_self_loops:
        index, edge_attr = remove_self_loops(edges.index, edge_attr)
        most = min(edges.num_src, edges.num_dst)
        index, edge_attr = add_self_loops(index, edge_attr, fill_value=layer.fill_value, num_nodes=most)
        edges, order = sort_edges(index, edges.num_src, edges.num_dst)
        edge_attr = None if edge_attr is None else edge_attr[order]
    of_edges = None
    if edge_attr is not None and layer.lin_edge is not None:
        attributes = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
        of_edges = attributes @ folded(layer.lin_edge.weight, layer.att_edge)
    of_sources = x @ folded(linear.weight, layer.att_src)
    of_columns = None if root is None else root @ folded(of_root.weight, layer.att_dst)
    weight = attention(of_sources, of_columns, of_edges, edges, layer.negative_slope)
    weight = functional.dropout(weight, layer.dropout, layer.training)
    if heads == 1 or (not x.requires_grad and multiplies_destinations(edges, x.size(1), heads * channels, heads)):
        out = product_of_sums(x, linear.weight, edges, weight)
    else:
        out = aggregate(linear(x).view(-1, heads, channels), edges, "sum", weight)
    out = out.flatten(1) if layer.concat else out.mean(1)
    if layer.res is not None and root is not None:
        out = out + layer.res(root)
    return out if layer.bias is None else out + layer.bias


def gat_takes(layer: pyg_nn.GATConv, given: dict[str, Any]) -> bool:
    """Whether :func:`gat` computes what the layer does with these arguments, x a pair."""
    x, root = given["x"]
    loops_of_sources = layer.add_self_loops and root is None
    if layer.aggr not in ("add", "sum") or given.get("return_attention_weights") or loops_of_sources:
        return False
    if x.dim() != 2 or not is_wide(x) or not ops.can_aggregate(x):
        return False
    hooked = layer._edge_update_forward_hooks or layer._edge_update_forward_pre_hooks
    if type(layer).edge_update is not pyg_nn.GATConv.edge_update or hooked:
        return False
    products = [linear for name in _PRODUCTS if (linear := getattr(layer, name)) is not None]
    return all(is_plain(linear) and linear.bias is None and not is_lazy(linear.weight) for linear in products)


def projected_once(linear: Callable[[Tensor], Tensor], root: Tensor) -> Callable[[Tensor], Tensor]:
    """``linear``, which a GATConv calls with rows of which ``root`` are the first ones and then with ``root``: these
    products are taken from those before."""
    done: list[Tensor] = []

    def project(rows: Tensor) -> Tensor:
        if rows is root:
            return done[0][: root.size(0)]
        done.append(linear(rows))
        return done[0]

    return project


def product_of_sums(x: Tensor, matrix: Tensor, edges: Bipartite, weight: Tensor) -> Tensor:
    """``sum_e weight[e, h] (M_h x[src e])``, as M_h times a sum of rows.

    Args:
        x: rows of sources, [num_src, F].
        matrix: M_h of all heads h, one below the other: [H * C, F].
        edges: sorted by destination.
        weight: [num_edges, H].

    Returns:
        [num_dst, H, C].
    """
    heads = weight.size(1)
    sums = aggregate(x, by_head(edges, heads, sources=False), "sum", weight.t().reshape(-1, 1))
    of_heads = matrix.view(heads, -1, x.size(1)).transpose(1, 2)
    return (sums.view(heads, edges.num_dst, x.size(1)) @ of_heads).transpose(0, 1)


def folded(weight: Tensor, attention: Tensor) -> Tensor:
    """a W: [F, heads], of the product's weights [heads * C, F] and the attention [1, heads, C]."""
    _, heads, channels = attention.shape
    return (weight.view(heads, channels, -1) * attention.view(heads, channels, 1)).sum(1).t()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, edges: Bipartite, slope: float, *scores: Tensor) -> Tensor:
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
    of_sources: Tensor, of_destinations: Tensor | None, of_edges: Tensor | None, edges: Bipartite, slope: float
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
