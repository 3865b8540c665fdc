"""Layers of several relations whose outputs are added up by type: HeteroConv, traced models of ``to_hetero``, and what
both share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, fx, nn
from torch_geometric.nn.conv.hetero_conv import group

from .forward_pass import ForwardPass
from .hops import Relation
from .narrowed_layer import NarrowedLayer
from .sums import sums
from .wrapper import Shadow


class _Call(NamedTuple):
    """A layer that was called, and computes its share later."""

    layer: NarrowedLayer
    given: dict[str, Any]
    relation: Relation
    groups: int


class Join:
    """Calls layers one after another, and adds their outputs up.

    The shares of layers that :meth:`~torch_gnnscale.nn.narrowed_layer.NarrowedLayer.adds` are computed at the end, in
    one function.

    Args:
        forward_pass: that of the layers.
        add: adds up two or more outputs where some come from other layers.
    """

    def __init__(self, forward_pass: ForwardPass, add: Callable[[list[Any]], Any]) -> None:
        self._forward_pass = forward_pass
        self._add = add
        self._calls: dict[Any, list[_Call]] = {}
        self._others: dict[Any, list[Any]] = {}

    def call(self, total: Any, module: nn.Module, layer: NarrowedLayer | None, args: Any, kwargs: Any) -> None:
        """Calls a module whose output is a part of ``total``, any key; ``layer``: what computes it, or None."""
        others = self._others.setdefault(total, [])
        if layer is not None:
            given = {**dict(zip(layer.names, args, strict=False)), **kwargs}
            with self._forward_pass.common_rows.paused():
                if layer.adds(given):
                    self._calls.setdefault(total, []).append(_Call(layer, given, *layer.called(given)))
                    return
        others.append(module(*args, **kwargs))

    def totals(self, divided: bool) -> dict[Any, Any]:
        """The totals, by key in the order of calls; ``divided``: by the number of their parts."""
        common_rows, outs = self._forward_pass.common_rows, {total: list[Tensor]() for total in self._others}
        with common_rows.paused():
            for total, out in self._sums(divided):
                common_rows.returned(out, self._calls[total][0].relation.dst)
                outs[total].append(out)
        return {total: self._total(out, total, divided) for total, out in outs.items()}

    def _sums(self, divided: bool) -> Iterator[tuple[Any, Tensor]]:
        """The sums of shares, with the totals that they are parts of."""
        asked, shares, nums_dst, scales = list[Any](), list[Any](), list[int](), list[float]()
        for total, calls in self._calls.items():
            # Types may have rows of more groups; rows that not all relations compute are not used.
            groups = min(call.groups for call in calls)
            found = [call.layer.share(call.given, call.relation, groups) for call in calls]
            same = len({len(share.of_neighbors) for share in found}) == 1
            for several in [found] if same else [[share] for share in found]:
                asked.append(total)
                shares.append(several)
                nums_dst.append(calls[0].relation.dst.rows[groups - 2])
                alone = divided and same and not self._others[total]
                scales.append(1 / len(calls) if alone else 1.0)
        yield from zip(asked, sums(shares, nums_dst, scales), strict=True)

    def _total(self, outs: list[Any], total: Any, divided: bool) -> Any:
        others = self._others[total]
        if not others and len(outs) == 1:
            return outs[0]
        parts = [*outs, *others]
        found = parts[0] if len(parts) == 1 else self._add(parts)
        count = len(others) + len(self._calls.get(total, ()))
        return found / count if divided and count > 1 else found


def added(parts: list[Any]) -> Any:
    """The sum of two or more outputs, without a copy of all of them at a time."""
    return reduce(torch.add, parts)


class JoinedHeteroConv:
    """A HeteroConv that computes, between :meth:`enter` and :meth:`leave`, sums over its layers.

    Args:
        module: the HeteroConv; before :meth:`enter` and after :meth:`leave` it is unchanged.
        layers: by layer of the model, what computes it.
    """

    def __init__(self, module: pyg_nn.HeteroConv, layers: Mapping[nn.Module, Any]) -> None:
        self.module = module
        self._convs: list[tuple[tuple[str, str, str], nn.Module, NarrowedLayer | None]] = []
        for key, conv in module.convs.items():
            layer = layers.get(conv)
            self._convs.append((key, conv, layer if isinstance(layer, NarrowedLayer) else None))
        self._methods = Shadow(module)

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the module computes on the batch of this forward pass."""
        self.forward_pass = forward_pass
        if "forward" not in vars(self.module) and self.module.aggr in ("sum", "mean"):
            self._methods.set("forward", self.computed)

    def leave(self) -> None:
        """The module is again what it was before :meth:`enter`."""
        self._methods.restore()
        del self.forward_pass

    def computed(self, *args_dict: Any, **kwargs_dict: Any) -> Any:
        """The module's ``forward``: by type, the sum or mean of its layers' outputs."""
        named = {name.removesuffix("_dict"): values for name, values in kwargs_dict.items() if name.endswith("_dict")}
        if len(named) < len(kwargs_dict) or not all(isinstance(v, Mapping) for v in (*args_dict, *named.values())):
            return type(self.module).forward(self.module, *args_dict, **kwargs_dict)
        join = Join(self.forward_pass, _as_hetero_conv_adds)
        for key, conv, layer in self._convs:
            if not any(key in values for values in (*args_dict, *named.values())):
                continue  # nothing is known of its edges
            args = [_argument(key, values) for values in args_dict]
            kwargs = {name: _argument(key, values) for name, values in named.items()}
            given = {name: value for name, value in kwargs.items() if value is not _NOTHING}
            join.call(key[-1], conv, layer, [value for value in args if value is not _NOTHING], given)
        return join.totals(self.module.aggr == "mean")


_NOTHING = object()


def _argument(key: Any, values: Mapping[Any, Any]) -> Any:
    """What HeteroConv gives to the layer of a relation, of a dictionary by relation or by type of nodes."""
    if key in values:
        return values[key]
    src, dst = key[0], key[-1]
    if src == dst:
        return values.get(src, _NOTHING)
    return (values.get(src), values.get(dst)) if src in values or dst in values else _NOTHING


def _as_hetero_conv_adds(parts: list[Any]) -> Any:
    """What HeteroConv makes of them, without a copy of all; it refuses those of different widths."""
    alike = all(isinstance(part, Tensor) for part in parts) and len({part.shape[1:] for part in parts}) == 1
    return added(parts) if alike else group(parts, "sum")


_JOINED = (pyg_nn.SAGEConv, pyg_nn.GraphConv)


_IN_PLACE = {"iadd", "isub", "imul", "itruediv", "setitem"}
"""Of :mod:`operator`."""


class _Total(NamedTuple):
    """The sum or mean of the outputs of one or more layers, which nothing else reads."""

    layers: list[fx.Node]
    inner: list[fx.Node]
    """What it is computed of: ``layers``, and sums of some of them."""
    divided: bool


class JoinedTrace:
    """A GraphModule that computes, between :meth:`enter` and :meth:`leave`, sums over its layers.

    Of its layers that have the same name but for the relation, as those that ``to_hetero`` makes of one, all are called
    where the last one was.

    Args:
        module: the GraphModule; before :meth:`enter` and after :meth:`leave` it is unchanged.
        layers: by layer of the model, what computes it.
    """

    def __init__(self, module: fx.GraphModule, layers: Mapping[nn.Module, Any]) -> None:
        self.module = module
        self._layers = layers
        self._methods = Shadow(module)
        self._forward: Callable[..., Any] | None = None
        self._made_of: Any = None

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the module computes on the batch of this forward pass."""
        self.forward_pass = forward_pass
        if "forward" in vars(self.module):
            return
        if self._made_of is not type(self.module).forward:  # the module was compiled again
            self._made_of, self._forward = type(self.module).forward, self._made()
        if self._forward is not None:
            self._methods.set("forward", self.computed)

    def leave(self) -> None:
        """The module is again what it was before :meth:`enter`."""
        self._methods.restore()
        del self.forward_pass

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The module's ``forward``."""
        assert self._forward is not None
        return self._forward(self.module, *args, **kwargs)

    def _made(self) -> Callable[..., Any] | None:
        """The module's code with one call for each group of layers; None if there is no sum of layers."""
        if type(self.module.graph._codegen) is not fx.graph.CodeGen:
            return None
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        result = graph.graph_copy(self.module.graph, copies)
        graph.output(result)
        groups = _groups(graph, self.module)
        if not groups:
            return None
        for totals in groups:
            self._join(graph, totals)
        code = graph.python_code("self")
        names = dict(code.globals)
        exec(code.src, names)  # as a GraphModule does with its own
        return names["forward"]

    def _join(self, graph: fx.Graph, totals: dict[fx.Node, _Total]) -> None:
        """Replaces layers, and what is computed of them, by one call where the last layer is called, unless something
        between the first and the last layer may write into a tensor that one of them reads."""
        layers = [(number, layer) for number, total in enumerate(totals.values()) for layer in total.layers]
        place = {node: number for number, node in enumerate(graph.nodes)}
        layers.sort(key=lambda entry: place[entry[1]])  # in the order of their calls
        within = slice(place[layers[0][1]], place[layers[-1][1]])
        if any(_may_write(node, self.module) for node in list(graph.nodes)[within]):
            return
        names = [(number, str(layer.target)) for number, layer in layers]
        divided = next(iter(totals.values())).divided

        def joined_layers(given: list[Any]) -> list[Any]:
            join = Join(self.forward_pass, added)
            for (number, name), (args, kwargs) in zip(names, given, strict=True):
                module = self.module.get_submodule(name)
                layer = self._layers.get(module)
                join.call(number, module, layer if isinstance(layer, NarrowedLayer) else None, args, kwargs)
            found = join.totals(divided)
            return [found[number] for number in range(len(totals))]

        with graph.inserting_after(layers[-1][1]):
            call = graph.call_function(joined_layers, ([(layer.args, layer.kwargs) for _, layer in layers],))
        for number, (result, total) in enumerate(totals.items()):
            with graph.inserting_after(call):
                result.replace_all_uses_with(graph.call_function(operator.getitem, (call, number)))
            for node in sorted({result, *total.inner}, key=lambda node: -place[node]):
                graph.erase_node(node)


def _may_write(node: fx.Node, module: fx.GraphModule) -> bool:
    """Whether a node may change its arguments in place."""
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        own = type(called).__module__.startswith(("torch.nn.", "torch_geometric."))
        return not own or bool(getattr(called, "inplace", False))
    if node.op not in ("call_method", "call_function"):
        return False
    name = str(getattr(node.target, "__name__", node.target))
    asked = "out" in node.kwargs or any(value is True for value in (*node.args, *node.kwargs.values()))
    return asked or name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def _totals(graph: fx.Graph, module: fx.GraphModule) -> dict[fx.Node, _Total]:
    """The largest sums of layers' outputs, and their means, by the node that computes them."""
    found: dict[fx.Node, _Total] = {}
    for node in graph.nodes:
        parts = [arg for arg in node.args if isinstance(arg, fx.Node) and arg in found and len(arg.users) == 1]
        if node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), _JOINED):
            found[node] = _Total([node], [node], False)
        elif node.target in (torch.add, operator.add) and len(parts) == len(node.args) == 2 and not node.kwargs:
            one, other = (found[part] for part in parts)
            if not one.divided and not other.divided:
                layers, inner = one.layers + other.layers, [*one.inner, *other.inner, *parts]
                found = {key: total for key, total in found.items() if key not in parts}
                found[node] = _Total(layers, inner, False)
        elif node.target is torch.div and len(parts) == 1 and not node.kwargs:
            total = found[parts[0]]
            if node.args[1:] == (len(total.layers),) and not total.divided:
                del found[parts[0]]
                found[node] = _Total(total.layers, [*total.inner, *parts], True)
    return found


def _groups(graph: fx.Graph, module: fx.GraphModule) -> list[dict[fx.Node, _Total]]:
    """The sums, or means, that can be computed together: those of layers that have one name but for the relation."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    by_name: dict[tuple[str, bool], dict[fx.Node, _Total]] = {}
    for result, total in _totals(graph, module).items():
        names = {str(layer.target).rpartition(".")[0] for layer in total.layers}
        if len(names) == 1:
            by_name.setdefault((names.pop(), total.divided), {})[result] = total
    found = []
    for totals in by_name.values():
        last = max(place[layer] for total in totals.values() for layer in total.layers)
        ready = all(place[user] > last for result in totals for user in result.users)
        if ready and sum(len(total.layers) for total in totals.values()) > 1:
            found.append(totals)
    return found
