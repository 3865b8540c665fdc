"""HGTConv with products of the rows of destinations alone, or of the sources that occur, whichever takes less time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .. import ops
from .aggregate import Bipartite, by_head
from .hops import first_rows
from .messages import sums_as
from .products import is_plain, multiplies_destinations, occurring, takes_rows


class _Relation(NamedTuple):
    """One relation's part of an attention."""

    edges: Bipartite
    """From rows of sources to columns, of which each destination has one for each head."""
    into: int
    """The number of the destinations' type: a softmax is over the edges of all relations into it."""


class _Attention(torch.autograd.Function):
    """By relation: ``sum_e a_e v[src e]`` and ``sum_e a_e`` over the edges e into each column, a being the softmax of
    ``q[dst e] . k[src e] + b[dst e]`` over a column's edges of all relations into its type. Then a zero.

    Tensors: (q, b or None, k, v) of each relation, and then others, which get gradients of zero.
    """

    @staticmethod
    def forward(ctx: Any, relations: Sequence[_Relation], *tensors: Any) -> tuple[Tensor, ...]:
        most: dict[int, Tensor] = {}
        scores, totals, sums = list[Tensor](), list[Tensor](), dict[int, Tensor]()
        for number, (edges, into) in enumerate(relations):
            q, b, k, _ = tensors[4 * number : 4 * number + 4]
            ptr, node, _ = edges.forward
            score = ops.edge_dot(ptr, node, k, q)
            scores.append(score if b is None else score.add_(b[edges.index[1]]))
            largest = _by_column(edges, scores[-1], "max").masked_fill_((ptr.diff() == 0).unsqueeze(1), -math.inf)
            most[into] = torch.maximum(most[into], largest) if into in most else largest
        for (edges, into), score in zip(relations, scores, strict=True):
            score.sub_(most[into][edges.index[1]]).exp_()
            totals.append(_by_column(edges, score, "sum"))
            sums[into] = sums[into] + totals[-1] if into in sums else totals[-1].clone()
        found = list[Tensor]()
        for number, ((edges, into), weight) in enumerate(zip(relations, scores, strict=True)):
            weight.div_(sums[into][edges.index[1]])
            totals[number].div_(sums[into]).nan_to_num_(0.0)  # 0 / 0 without edges
            ptr, node, _ = edges.forward
            found += [ops.aggregate(ptr, node, tensors[4 * number + 3], weight=weight), totals[number]]
            if ctx.needs_input_grad[4 * number + 3] or ctx.needs_input_grad[4 * number + 4]:
                edges.want_transposed()
        ctx.relations = relations
        ctx.save_for_backward(*tensors, *scores, *found)
        return *found, tensors[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        relations, saved, count = ctx.relations, ctx.saved_tensors, len(ctx.relations)
        first = len(saved) - 3 * count
        tensors, weights, found = saved[:first], saved[first : first + count], saved[first + count :]
        means: dict[int, Tensor] = {}  # of the gradients of a column's edges, weighted
        for number, (_, into) in enumerate(relations):
            of_sum, of_total = grads[2 * number : 2 * number + 2]
            mean = (of_sum * found[2 * number]).sum(1, keepdim=True).addcmul_(of_total, found[2 * number + 1])
            means[into] = means[into] + mean if into in means else mean
        out: list[Tensor | None] = [None]
        for number, ((edges, into), weight) in enumerate(zip(relations, weights, strict=True)):
            q, b, k, v = tensors[4 * number : 4 * number + 4]
            of_sum, of_total = grads[2 * number].contiguous(), grads[2 * number + 1]
            ptr, node, _ = edges.forward
            of_weight = ops.edge_dot(ptr, node, v, of_sum).add_((of_total - means[into])[edges.index[1]])
            of_score = of_weight.mul_(weight)
            out += [ops.aggregate(ptr, node, k, weight=of_score)]
            out += [None if b is None else _by_column(edges, of_score, "sum")]
            for needed, rows, by in ((3, q, of_score), (4, of_sum, weight)):
                if not ctx.needs_input_grad[4 * number + needed]:
                    out.append(None)
                    continue
                ptr, node, edge = edges.transposed()
                out.append(ops.aggregate(ptr, node, rows, weight=by, edge=edge))
        return *out, *(torch.zeros_like(other) for other in tensors[4 * count :])  # as PyG's layer gives, not None


def _by_column(edges: Bipartite, values: Tensor, reduce: str) -> Tensor:
    """The sum or the largest of the values of each column's edges: [columns, 1]."""
    return ops.aggregate(edges.forward.ptr, torch.arange(len(values), device=values.device), values, reduce)


def hgt(
    layer: pyg_nn.HGTConv, x_dict: Mapping[str, Tensor], edges: Mapping[Any, Bipartite], num_dst: Mapping[str, int]
) -> dict[str, Tensor]:
    """What an HGTConv returns: by type that a relation of the layer leads into, [num_dst, C].

    Of a relation and a head, let A be the matrix by which rows of sources become keys, and B that by which they become
    values. A score q . (x A) is computed as (q A^T) . x, and a sum of values a_e (x_e B) as (sum of a_e x_e) B, where
    that takes less time: then no row of a source is multiplied.

    Args:
        layer: one that :func:`hgt_takes` these arguments.
        x_dict: by type, the rows of sources, [num_src, F].
        edges: by relation, sorted by destination.
        num_dst: by type, the number of destinations, which are the first sources.
    """
    heads, lins = layer.heads, layer.kqv_lin.lins
    of_head, types = layer.out_channels // heads, [t for t in layer.kqv_lin.lins if t in x_dict]
    roots = {t: first_rows(x_dict[t], num_dst[t]) for t in types}
    shape = heads, len(layer.edge_types), of_head, of_head
    of_keys, of_values = (part.weight.view(shape).unbind(1) for part in (layer.k_rel, layer.v_rel))
    of_relations = torch.cat([layer.p_rel["__".join(key)] for key in layer.edge_types])
    scales = (of_relations / math.sqrt(of_head)).view(-1, heads, 1, 1).unbind(0)
    with_edges = {key: found for key, found in edges.items() if found.num_edges}
    used = {key[end] for key in with_edges for end in (0, -1)}
    kqv = {t: _weights(lins[t], heads) for t in types if t in used}
    queries = {t: _multiplied(roots[t], kqv[t][1]) for t in {key[-1] for key in with_edges}}
    relations, tensors, after = list[_Relation](), list[Tensor | None](), list[Any]()
    for (src, name, dst), found in with_edges.items():
        number, x, (keys, _, values) = layer.edge_types_map[src, name, dst], x_dict[src], kqv[src]
        to_keys, to_values, q, bias = of_keys[number] * scales[number], of_values[number], queries[dst], None
        if of_destinations := multiplies_destinations(found, x.size(1), layer.out_channels, heads):
            q, bias = _product(q, to_keys.transpose(1, 2), keys.transpose(1, 2)).split([x.size(1), 1], 2)
            k = v = x
        else:
            x, found = occurring(x, found)
            k, v = (_multiplied(x, weight).flatten(0, 1) for weight in (keys @ to_keys, values @ to_values))
        relations.append(_Relation(by_head(found, heads, not of_destinations), types.index(dst)))
        tensors += [q.flatten(0, 1), None if bias is None else bias.reshape(-1, 1), k, v]
        after.append((dst, values, to_values if of_destinations else None))
    others = [tensor for t in types if t not in used for tensor in (x_dict[t], *lins[t].parameters())]
    others += [] if relations else [scales[0], of_keys[0], of_values[0]]
    *attended, zero = _Attention.apply(relations, *tensors, *others)
    sums: dict[str, Tensor] = {}
    for number, (dst, values, to_values) in enumerate(after):
        rows, totals = (tensor.view(heads, num_dst[dst], -1) for tensor in attended[2 * number : 2 * number + 2])
        rows = rows if to_values is None else _product(torch.cat([rows, totals], 2), values, to_values)
        sums[dst] = sums[dst] + rows if dst in sums else rows
    return {
        t: _output(layer, t, sums[t] if t in sums else zero.expand(heads, num_dst[t], of_head), roots[t])
        for t in types
        if t in layer.dst_node_types
    }


def is_pygs_hgt(layer: pyg_nn.MessagePassing) -> bool:
    """Whether the layer is an HGTConv of which no method, and no part that :func:`hgt` replaces, does more."""
    if not sums_as(layer, pyg_nn.HGTConv, "_cat", "_construct_src_node_feat"):
        return False
    parts = [(layer.kqv_lin, pyg_nn.HeteroDictLinear), (layer.out_lin, pyg_nn.HeteroDictLinear)]
    parts += [(layer.k_rel, pyg_nn.HeteroLinear), (layer.v_rel, pyg_nn.HeteroLinear)]
    return all(is_plain(part, kind) for part, kind in parts) and all(map(is_plain, layer.kqv_lin.lins.values()))


def hgt_takes(layer: pyg_nn.HGTConv, x_dict: Mapping[str, Any], relations: Sequence[Any]) -> bool:
    """Whether :func:`hgt` computes what a layer that :func:`is_pygs_hgt` does with these rows and relations."""
    numbers = [layer.edge_types_map.get(key, -1) for key in relations]
    # Where relations come in another order, PyG multiplies rows by the matrices of others.
    if -1 in numbers or numbers != sorted(numbers):
        return False
    if not all(key[end] in x_dict and key[end] in layer.kqv_lin.lins for key in relations for end in (0, -1)):
        return False
    weights = {t: linear.weight for t, linear in layer.kqv_lin.lins.items()}
    return all(takes_rows(weights.get(t), x) for t, x in x_dict.items())


def _product(rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``rows @ first @ second``, in the order that takes fewer multiply-adds; all are [heads, ...]."""
    n, (a, b), c = rows.size(1), first.shape[1:], second.size(2)
    return rows @ first @ second if n * b * (a + c) < a * c * (n + b) else rows @ (first @ second)


def _weights(linear: pyg_nn.Linear, heads: int) -> tuple[Tensor, ...]:
    """The matrices of keys, queries and values, [heads, F + 1, D] each; the last row is the bias."""
    weight, bias = linear.weight, linear.bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return torch.cat([weight, bias.unsqueeze(1)], 1).view(3, heads, -1, weight.size(1) + 1).transpose(2, 3).unbind(0)


def _multiplied(x: Tensor, weight: Tensor) -> Tensor:
    """[heads, n, D], of rows [n, F] and one of what :func:`_weights` returns."""
    return torch.baddbmm(weight[:, -1:], x.expand(len(weight), *x.shape), weight[:, :-1])


def _output(layer: pyg_nn.HGTConv, node_type: str, sums: Tensor, x: Tensor) -> Tensor:
    """The layer's rows of a type, [n, C], of the sums of values, [heads, n, D], and its own rows, [n, F]."""
    rows = sums.transpose(0, 1).reshape(len(x), layer.out_channels)
    out = layer.out_lin.lins[node_type](functional.gelu(rows))
    return torch.lerp(x, out, layer.skip[node_type].sigmoid()) if out.size(-1) == x.size(-1) else out
