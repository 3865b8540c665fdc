"""A layer that takes dictionaries by type, on a prefix of a batch; HANConv and HGTConv, as functions over the CSC."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from .. import ops
from .aggregate import Bipartite, aggregate, by_head
from .convolutions import attention, folded, product_of_sums
from .forward_pass import ForwardPass, Given, LayerSize, refuse_compiled
from .hops import EdgeType, first_rows
from .pyg_layers import is_plain, multiplies_destinations, occurring, parameters_of, sums_as, takes_rows
from .wrapper import Shadow, title_of


def han(
    layer: pyg_nn.HANConv, x_dict: Mapping[str, Tensor], edges: Mapping[Any, Bipartite], num_dst: Mapping[str, int]
) -> dict[str, Tensor | None]:
    """What a HANConv returns: by type, [num_dst, C], or None of a type that no relation leads into.

    With W and b the projection of a type and a an attention, a coefficient a . (W x + b) is computed as
    (a W) . x + a . b, so the rows of destinations need no product. Attention over the relations into a type is 1, since
    there is one; its parameters get gradients of zero, as PyG's layer gives.

    Args:
        layer: one for which :func:`han_takes` is true of these arguments.
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
        layer: one for which :func:`hgt_takes` is true of these arguments.
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


def takes_dictionaries(layer: pyg_nn.MessagePassing) -> bool:
    """Whether the layer takes the edges of all relations at once."""
    return any(p.name == "edge_index_dict" for p in parameters_of(layer))


class DictionaryLayer:
    """A layer that gets, between :meth:`enter` and :meth:`leave`, the rows and edges of a batch that it needs.

    Args:
        name: the layer's.
        layer: one that :func:`takes_dictionaries`; before :meth:`enter` and after :meth:`leave` it is unchanged.
    """

    def __init__(self, name: str, layer: pyg_nn.MessagePassing) -> None:
        self.title = title_of(name, layer)
        self.layer = layer
        self._methods = Shadow(layer)

    def size(self) -> LayerSize:
        """What the layer computes per row, for all of its relations together."""
        channels = getattr(self.layer, "out_channels", 0)
        parameters = sum(parameter.numel() for parameter in self.layer.parameters())
        return LayerSize(parameters, False, channels if isinstance(channels, int) else 0)

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the layer computes on the batch of this forward pass."""
        self.forward_pass = forward_pass
        self.forward = self.layer.forward
        self._is_hgt, self._is_han = is_pygs_hgt(self.layer), is_pygs_han(self.layer)
        self._names = [p.name for p in parameters_of(self.layer)]
        self._methods.set("forward", self.computed)

    def leave(self) -> None:
        """The layer is again what it was before :meth:`enter`."""
        self._methods.restore()
        del self.forward_pass, self.forward

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's ``forward``: by type, the rows of its destinations."""
        refuse_compiled(self.title)
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        hops, edges, out = self.forward_pass.hops, given["edge_index_dict"], None
        common_rows = self.forward_pass.common_rows
        common_rows.called.append(self.title)
        with common_rows.paused():
            for key, index in edges.items():
                if hops.relation(index) is not hops.relations.get(key):
                    raise ValueError(
                        f"{self.title}: expected the batch's edge_index of {key} itself, found other edges; a model "
                        f"that changes the edges cannot be narrowed"
                    )
            self._refuse_statistics(edges)
            groups = self._groups(given, tuple(edges))
            for name, value in given.items():
                if isinstance(value, Mapping):
                    given[name] = {key: self._cut(key, entry, groups) for key, entry in value.items()}
            if (compute := self._own_way(given, [*edges])) is not None:
                prefixes = {key: hops.relations[key].edges.prefix(groups) for key in edges}
                num_dst = {key: hops.nodes[key].rows[groups - 2] for key in given["x_dict"]}
                out = compute(self.layer, given["x_dict"], prefixes, num_dst)
        if out is None:
            with common_rows.noting():
                out = self.forward(**given)
        if isinstance(out, tuple):
            return self._outputs(out[0], groups), *out[1:]
        return self._outputs(out, groups)

    def _own_way(self, given: dict[str, Any], relations: list[EdgeType]) -> Callable[..., dict[str, Any]] | None:
        """The function that computes what the layer returns for these arguments, if there is one."""
        x_dict = given["x_dict"]
        if self._is_hgt and hgt_takes(self.layer, x_dict, relations):
            return hgt
        asks_more = given.get("return_semantic_attention_weights")
        return han if self._is_han and not asks_more and han_takes(self.layer, x_dict, relations) else None

    def _refuse_statistics(self, edges: Mapping[EdgeType, Any]) -> None:
        """Raises ValueError for a HANConv whose attention over relations reads all rows of a type. Of two relations or
        more it is a softmax of their means over all nodes of the type, so that each row that is left out changes the
        rows of the seeds; of one it is 1."""
        if not isinstance(self.layer, pyg_nn.HANConv):
            return
        into = Counter(key[-1] for key in edges if key is not None)
        for key in edges:
            if key is not None and into[key[-1]] > 1:
                raise ValueError(
                    f"{self.title}: expected at most one relation into each type, found {key} and {into[key[-1]] - 1} "
                    f"more into {key[-1]!r}: its attention weighs them by means over all nodes of the batch, so a "
                    f"seed's row depends on every node's, and none can be left out"
                )

    def _groups(self, given: dict[str, Any], relations: tuple[EdgeType, ...]) -> int:
        """The number of first groups whose rows the layer gets, the fewest of all types: of each the most, if several
        have as many rows."""
        hops, x_dict = self.forward_pass.hops, given.get("x_dict")
        if not isinstance(x_dict, Mapping):
            raise ValueError(f"{self.title}: expected an argument x_dict with rows by type, found {[*given]}")
        if (other := next((key for key in x_dict if key not in hops.nodes), None)) is not None:
            raise ValueError(f"{self.title}: expected rows of the batch's types {[*hops.nodes]}, found {other!r}")
        counts = {key: x.size(0) for key, x in x_dict.items() if isinstance(x, Tensor)}
        of_types = {key: hops.nodes[key].groups(count) for key, count in counts.items()}
        found = min(of_types.values(), default=0)
        if found == 0:
            wrong = next((key for key, groups in of_types.items() if groups == 0), None)
            expected = None if wrong is None else hops.nodes[wrong].rows
            raise ValueError(
                f"{self.title}: expected input rows of whole hops {expected}, found "
                f"{'no tensor' if wrong is None else f'{counts[wrong]} rows of {wrong!r}'}"
            )
        if found == 1:
            raise ValueError(
                f"{self.title}: expected one hop a layer, found that earlier layers used up the batch's {hops.depth} "
                f"hops"
            )
        rows = [Given(count, hops.nodes[key].rows) for key, count in counts.items()]
        return self.forward_pass.groups(self.title, found, relations, rows)

    def _cut(self, key: Any, value: Any, groups: int) -> Any:
        """An entry of a dictionary by types of nodes or edges, without the rows that the layer does not need. A tensor
        that has no row for each edge of the type, or for each node of whole hops, stays as it is."""
        if not isinstance(value, Tensor):
            return value
        hops = self.forward_pass.hops
        relation, nodes = hops.relations.get(key), hops.nodes.get(key)
        if relation is not None and value is relation.index:
            return relation.edges.prefix(groups).index
        count = value.size(0) if value.dim() else -1
        if relation is not None and count == relation.ends[-1]:
            return value[: relation.edges.prefix(groups).num_edges]
        return value if nodes is None or not nodes.groups(count) else first_rows(value, nodes.rows[groups - 1])

    def _outputs(self, out: Any, groups: int) -> Any:
        found, common_rows = {}, self.forward_pass.common_rows
        with common_rows.paused():
            for key, value in out.items():
                nodes = self.forward_pass.hops.nodes[key]
                found[key] = first_rows(value, nodes.rows[groups - 2]) if isinstance(value, Tensor) else value
                common_rows.returned(found[key], nodes)
        return found
