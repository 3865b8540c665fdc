"""A traced model, as ``to_hetero`` makes it, that adds up the outputs of its layers in one function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as pyg_nn
from torch import fx, nn

from .forward_pass import ForwardPass
from .joins import Join, added
from .layer import NarrowedLayer
from .shadow import Shadow

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
