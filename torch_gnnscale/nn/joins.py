"""Layers of several relations whose outputs are added up by type: HeteroConv, and what all share that do so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.nn.conv.hetero_conv import group

from .forward_pass import ForwardPass
from .hops import Relation
from .layer import NarrowedLayer
from .shadow import Shadow
from .sums import sums


class _Call(NamedTuple):
    """A layer that was called, and computes its share later."""

    layer: NarrowedLayer
    given: dict[str, Any]
    relation: Relation
    groups: int


class Join:
    """Calls layers one after another, and adds their outputs up.

    The shares of layers that :meth:`~torch_gnnscale.nn.layer.NarrowedLayer.adds` are computed at the end, in one
    function.

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
