"""SAGEConv as one function: the aggregate of its neighbors' rows, and both products."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .aggregate import Apart, Bipartite, RowGradient, sum_up
from .products import is_plain, is_wide


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


def takes(layer: pyg_nn.SAGEConv, root: Tensor | None) -> bool:
    """Whether the layer computes ``lin_l(aggregate) + lin_r(root)`` as two plain products in the dtype of root."""
    if getattr(layer, "project", False) or not layer.root_weight or root is None or root.dim() != 2:
        return False
    return is_wide(root) and is_plain(layer.lin_l) and is_plain(layer.lin_r) and layer.lin_r.bias is None
