"""A HeteroConv that adds up the outputs of its layers in one function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.nn.conv.hetero_conv import group

from .forward_pass import ForwardPass
from .joins import Join, added
from .layer import NarrowedLayer
from .shadow import Shadow


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
