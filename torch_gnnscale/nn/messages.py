"""What is known of PyG's layers and their messages, and messages that are multiplied by the weight of their edge."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch_geometric.nn as pyg_nn
from torch import Tensor
from torch_geometric.nn import to_hetero_with_bases_transformer
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from .wrapper import Shadow

BY_EDGE = {
    (kind.forward, kind.message): name
    for name in ("CGConv", "EdgeConv", "GCN2Conv", "GCNConv", "GINConv", "GINEConv", "GraphConv", "LEConv", "LGConv",
                 "NNConv", "ResGatedGraphConv", "SAGEConv")
    for kind in [getattr(pyg_nn, name)]
}  # fmt: skip
"""Layers that aggregate messages, each computed from one edge and its two nodes, and use edges for nothing else."""
_WEIGHTS = {
    "SAGEConv": None, "GINConv": None, "GraphConv": "edge_weight", "GCNConv": "edge_weight", "GCN2Conv": "edge_weight",
    "LGConv": "edge_weight", "GATConv": "alpha", "GATv2Conv": "alpha",
}  # fmt: skip
WEIGHT_OF_MESSAGE: dict[Any, str | None] = {getattr(pyg_nn, name).message: weight for name, weight in _WEIGHTS.items()}
"""By function ``message``: the name of the argument (a weight per edge) by which the source's row is multiplied, if
there is one. Such messages are aggregated over the CSC."""
KNOWN_FORWARD = {getattr(pyg_nn, name).forward for name in _WEIGHTS}
"""Layers whose operands have rows of the same hops: ``CommonRows`` has nothing to do within them."""
NORMALIZES = (pyg_nn.GCNConv, pyg_nn.GCN2Conv, pyg_nn.LGConv)
"""Layers that weigh an edge by the degrees of both of its nodes, which only the whole batch has."""
MULTIPLIES_DESTINATIONS = {pyg_nn.SAGEConv.forward, pyg_nn.GINConv.forward, pyg_nn.GraphConv.forward}
"""Layers that multiply the aggregated rows, as GATConv with one head does; others multiply the rows of sources, before
the aggregation."""
_HOOKED = ("propagate", "message", "aggregate", "message_and_aggregate")
"""The methods around which PyG calls hooks of its own."""
REPLACED = {"propagate", "message", "aggregate", "update", "edge_update", "edge_updater"}
"""Methods of a layer that its user may have replaced, which narrowed layers otherwise do not call."""
AGGREGATIONS = {
    "sum": pyg_nn.SumAggregation, "mean": pyg_nn.MeanAggregation, "max": pyg_nn.MaxAggregation,
    "min": pyg_nn.MinAggregation,
}  # fmt: skip
"""What PyG makes of a layer's ``aggr``; users may replace it."""
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


def hooks_of(layer: pyg_nn.MessagePassing) -> list[Any]:
    """The hooks of PyG's own around methods of a layer, by hook, as the layer keeps them."""
    return [getattr(layer, f"_{part}_forward{pre}_hooks") for part in _HOOKED for pre in ("", "_pre")]


def sums_as(layer: pyg_nn.MessagePassing, kind: type[pyg_nn.MessagePassing], *methods: str) -> bool:
    """Whether a layer is of this very class and sums messages along the edges, with methods that nobody replaced and
    without hooks; ``methods``: others that must be the class's."""
    own = vars(layer)
    if type(layer) is not kind or any(name in own for name in (*REPLACED, "forward", *methods)) or any(hooks_of(layer)):
        return False
    plain = type(layer.aggr_module) is SumAggregation and layer.decomposed_layers == 1 and not layer.explain
    return plain and layer.flow == "source_to_target"


def has_bases(layer: pyg_nn.MessagePassing) -> bool:
    """Whether it is a layer of ``to_hetero_with_bases``, whose hook multiplies messages by a weight of their edge's
    relation: ``layer.edge_type_weight[0, layer._edge_type]``."""
    return to_hetero_with_bases_transformer.hook in layer._message_forward_hooks.values()


def is_basis(layer: pyg_nn.MessagePassing) -> bool:
    """Whether a layer :func:`has_bases` and no other hooks."""
    return has_bases(layer) and sum(map(len, hooks_of(layer))) == 1


def is_pair(value: Any) -> bool:
    """Whether it is a pair of the rows of sources and, if these are given, of destinations."""
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[0], Tensor) or value[0].dim() == 0:
        return False
    return value[1] is None or (isinstance(value[1], Tensor) and value[1].dim() > 0)


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
    if isinstance(layer, NORMALIZES) and layer.normalize:
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
