"""Messages of PyG's layers, each multiplied by the weight of its edge."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch_geometric.nn as pyg_nn
from torch import Tensor
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from .wrapper import Shadow

BY_EDGE = {
    (kind.forward, kind.message): name
    for name in ("CGConv", "EdgeConv", "GCN2Conv", "GCNConv", "GINConv", "GINEConv", "GraphConv", "LEConv", "LGConv",
                 "NNConv", "ResGatedGraphConv", "SAGEConv")
    for kind in [getattr(pyg_nn, name)]
}  # fmt: skip
"""Layers that aggregate messages, each computed from one edge and its two nodes, and use edges for nothing else."""
_NORMALIZES = {pyg_nn.GCNConv.forward, pyg_nn.GCN2Conv.forward, pyg_nn.LGConv.forward}
_SUM = SumAggregation()


def parameters_of(layer: pyg_nn.MessagePassing) -> list[inspect.Parameter]:
    """The parameters of a layer's ``forward``. If it passes on ``*args``, and so does not name them, those of the
    nearest class whose ``forward`` it stands for and that does."""
    found = [*inspect.signature(layer.forward).parameters.values()]
    for kind in type(layer).__mro__:
        if all(p.kind is not p.VAR_POSITIONAL for p in found):
            break
        if "forward" in vars(kind):
            found = [*inspect.signature(vars(kind)["forward"].__get__(layer)).parameters.values()]
    return found


def has_own_propagate(kind: type) -> bool:
    """Whether a kind of layer does not inherit ``propagate``. PyG compiles one for each that does."""
    compiled, before = (getattr(kind, name, None) for name in ("_jinja_propagate", "_orig_propagate"))
    return kind.propagate is not pyg_nn.MessagePassing.propagate and compiled is before  # type: ignore[attr-defined]


def refuse_unfit(title: str, layer: pyg_nn.MessagePassing) -> None:
    """Raises ValueError if a layer's output with weighted messages would not estimate its output with all edges."""
    kind, base = type(layer), pyg_nn.MessagePassing
    of_base = kind.aggregate is base.aggregate and kind.update is base.update
    if (kind.forward, kind.message) not in BY_EDGE or not of_base:
        raise ValueError(
            f"{title}: expected a layer that sums messages, each of one edge ({', '.join(sorted(BY_EDGE.values()))}), "
            f"found {kind.__name__}, which cannot be weighed"
        )
    if type(layer.aggr_module) not in (SumAggregation, MeanAggregation):
        raise ValueError(
            f"{title}: expected aggr='sum', 'add' or 'mean', found {layer.aggr!r}, which cannot be weighed"
        )
    if kind.forward in _NORMALIZES and layer.normalize:
        raise ValueError(
            f"{title}: expected normalize=False, found True: it would normalize by the degrees of the sample; "
            f"LayerSampler(aggregation='gcn') makes weights that are normalized by those of the graph"
        )
    if layer.flow != "source_to_target":
        raise ValueError(f"{title}: expected flow='source_to_target', found {layer.flow!r}")


def refuse_twice(title: str, given: Mapping[str, Any], weight: Tensor) -> None:
    """Raises ValueError if a layer gets ``weight``, by which its messages are multiplied, as ``edge_weight`` too."""
    own = given.get("edge_weight")
    if isinstance(own, Tensor) and own.numel() and own.data_ptr() == weight.data_ptr():
        raise ValueError(
            f"{title}: expected no edge_weight, or another, found the one that weigh multiplies every message by"
        )


@contextmanager
def weigh_messages(layer: pyg_nn.MessagePassing, weight: Tensor) -> Iterator[None]:
    """Within, ``layer.propagate`` returns sum_e weight[e] m_e, m_e being the message of edge e, also if the layer
    otherwise takes the mean.

    Args:
        layer: one that :func:`refuse_unfit` accepts.
        weight: of the edges that are propagated, in their order: [e].
    """
    message, shadow = layer.message, Shadow(layer)

    def weighed(*args: Any, **kwargs: Any) -> Tensor:
        out = message(*args, **kwargs)
        shape = [1] * out.dim()
        shape[layer.node_dim] = -1
        return out * weight.to(out.dtype).view(shape)

    def total(inputs: Tensor, index: Tensor, ptr: Tensor | None = None, dim_size: int | None = None) -> Tensor:
        return _SUM(inputs, index, ptr=ptr, dim_size=dim_size, dim=layer.node_dim)

    shadow.set("message", weighed)
    shadow.set("aggregate", total)
    shadow.set("fuse", False)  # PyG's fused matrix products with an EdgeIndex do not call message()
    try:
        yield
    finally:
        shadow.restore()
