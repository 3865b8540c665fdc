"""A MessagePassing layer on the prefix of a batch that its input's rows call for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from .. import ops
from .aggregate import Edges, aggregate, aggregate_and_root, sort_edges
from .hops import Hops, first_rows

_WEIGHT_OF_MESSAGE: dict[Any, str | None] = {
    pyg_nn.SAGEConv.message: None,
    pyg_nn.GINConv.message: None,
    pyg_nn.GraphConv.message: "edge_weight",
    pyg_nn.GCNConv.message: "edge_weight",
    pyg_nn.GCN2Conv.message: "edge_weight",
    pyg_nn.LGConv.message: "edge_weight",
    pyg_nn.GATConv.message: "alpha",
    pyg_nn.GATv2Conv.message: "alpha",
}
"""Messages that are a source's row, times the named weight of the edge: they need not be written out."""
_NORMALIZES = (pyg_nn.GCNConv, pyg_nn.GCN2Conv, pyg_nn.LGConv)
"""Layers that weigh edges by the degrees of both ends, which only the whole batch knows."""


Normalized = dict[Any, tuple[Tensor | None, Edges, list[int], Tensor]]
"""A batch's edges with self loops, how many of them lead into its hops' nodes, and their normalized weights, by what
they were made from: once a forward pass."""


@contextmanager
def narrow_layer(title: str, layer: pyg_nn.MessagePassing, hops: Hops, normalized: Normalized) -> Iterator[None]:
    """Within the context, ``layer`` computes on prefixes of the batch's ``hops``; errors call it ``title``."""
    with _replaced(layer, "forward", _Layer(f"{title} ({type(layer).__name__})", layer, hops, normalized)):
        yield


@contextmanager
def _replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """An attribute of this one object, for the time being."""
    had, before = name in module.__dict__, module.__dict__.get(name)
    module.__dict__[name] = value
    try:
        yield
    finally:
        if had:
            module.__dict__[name] = before
        else:
            del module.__dict__[name]


class _Fused(NamedTuple):
    """A propagate that is an aggregation over the CSC."""

    reduce: str
    weight: str | None


def _fused(layer: pyg_nn.MessagePassing) -> _Fused | None:
    kind = type(layer)
    known = (
        kind.message in _WEIGHT_OF_MESSAGE
        and kind.aggregate is pyg_nn.MessagePassing.aggregate
        and kind.update is pyg_nn.MessagePassing.update
        and layer.aggr in ("add", *ops.REDUCTIONS)
        and layer.decomposed_layers == 1
        and not layer.explain
        and not any(getattr(layer, f"_{part}_forward{pre}_hooks") for part in _HOOKED for pre in ("", "_pre"))
    )
    return _Fused("sum" if layer.aggr == "add" else layer.aggr, _WEIGHT_OF_MESSAGE[kind.message]) if known else None


_WIDE = (torch.float32, torch.float64)
_HOOKED = ("propagate", "message", "aggregate", "message_and_aggregate")


def _can_aggregate(x: Any, fused: _Fused, weight: Tensor | None) -> bool:
    return (
        isinstance(x, Tensor)
        and x.device.type == "cpu"
        and x.dtype in _WIDE
        and (weight is None or (fused.reduce in ("sum", "mean") and weight.dtype == x.dtype))
    )


def _adds_root(layer: pyg_nn.MessagePassing, x: Any) -> bool:
    """Whether the layer's output is ``lin_l(aggregate) + lin_r(x[1])``, both plain products in the dtype of x.

    Of smaller types the sum would be rounded once, and not twice as PyG's.
    """
    if type(layer).forward is not pyg_nn.SAGEConv.forward or not layer.root_weight or not isinstance(x, tuple):
        return False
    plain = all(
        type(linear) is pyg_nn.Linear
        and "forward" not in vars(linear)
        and not any(getattr(linear, f"_{when}_hooks") for when in _AROUND)
        for linear in (layer.lin_l, layer.lin_r)
    )
    root = x[1]
    wide = isinstance(root, Tensor) and root.dim() == 2 and root.dtype in _WIDE
    return plain and wide and not torch.is_autocast_enabled(root.device.type)


_AROUND = ("forward", "forward_pre", "backward", "backward_pre")


@contextmanager
def _root_in_place(layer: pyg_nn.MessagePassing, root: Tensor) -> Iterator[None]:
    """Adds the product of the root's rows to that of the aggregate, in its memory."""
    of_neighbors, weight = layer.lin_l, layer.lin_r.weight

    def both(aggregate: Tensor) -> Tensor:
        return of_neighbors(aggregate).addmm_(root, weight.t())

    with _replaced(layer, "lin_l", both), _replaced(layer, "root_weight", False):
        yield


class _Layer:
    """The forward of one layer in one call of the model."""

    def __init__(self, title: str, layer: pyg_nn.MessagePassing, hops: Hops, normalized: Normalized) -> None:
        self.title = title
        self.layer = layer
        self.hops = hops
        self.normalized = normalized
        self.original = layer.forward
        self.signature = inspect.signature(self.original)
        self.fused = _fused(layer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.signature.bind(*args, **kwargs)
        given = bound.arguments
        groups = self._groups(given)
        num_src, num_dst = self.hops.rows[groups - 1], self.hops.rows[groups - 2]
        whole, num_edges = self.hops.edges, self.hops.num_edges
        normalize = isinstance(self.layer, _NORMALIZES) and self.layer.normalize
        if normalize:
            whole, num_edges, given["edge_weight"] = self._normalize(given.get("edge_weight"), given["x"].dtype)
        edges = whole.prefix(num_src, num_dst, num_edges[groups - 2])
        self._narrow(given, whole, edges)
        done = self._aggregate_first(given, edges)
        with ExitStack() as stack:
            if _adds_root(self.layer, given.get("x")):
                stack.enter_context(_root_in_place(self.layer, given["x"][1]))
            if normalize:
                stack.enter_context(_replaced(self.layer, "normalize", False))
            propagate = partial(self._propagate, self.layer.propagate, edges, done)
            stack.enter_context(_replaced(self.layer, "propagate", propagate))
            out = self.original(*bound.args, **bound.kwargs)
        if isinstance(out, tuple):
            return first_rows(out[0], num_dst), *out[1:]
        return first_rows(out, num_dst)

    def _groups(self, given: dict[str, Any]) -> int:
        """How many groups' rows the layer gets; it gives those of one less."""
        rows = self.hops.rows
        if given.get("edge_index") is not self.hops.edge_index:
            raise ValueError(
                f"{self.title}: expected the batch's edge_index itself, found other edges; a model that changes the "
                f"edges cannot be narrowed"
            )
        if given.get("size") is not None:
            raise ValueError(f"{self.title}: expected no size, found {given['size']}; narrowing decides it")
        if self.layer.flow != "source_to_target":
            raise ValueError(f"{self.title}: expected flow='source_to_target', found {self.layer.flow!r}")
        x = next((v for k, v in given.items() if k != "edge_index" and isinstance(v, Tensor)), None)
        groups = 0 if x is None else self.hops.groups(x.size(0))
        if x is None or groups == 0:
            found = "no tensor" if x is None else f"{x.size(0)} rows"
            raise ValueError(f"{self.title}: expected input rows of whole hops {rows}, found {found}")
        if groups == 1:
            raise ValueError(
                f"{self.title}: expected one hop a layer, found that earlier layers used up the batch's "
                f"{len(rows) - 1} hops"
            )
        return groups

    def _normalize(self, weight: Tensor | None, dtype: torch.dtype) -> tuple[Edges, list[int], Tensor]:
        """What :data:`Normalized` has of the batch's edges, sorted by destination; once a batch."""
        layer, hops = self.layer, self.hops
        if getattr(layer, "cached", False):
            raise ValueError(f"{self.title}: expected cached=False, for every batch has other edges")
        loops = getattr(layer, "add_self_loops", False)
        key = (getattr(layer, "improved", False), loops, id(weight), dtype)
        if key not in self.normalized:
            count = hops.rows[-1]
            index, norm = gcn_norm(hops.edges.index, weight, count, key[0], loops, layer.flow, dtype)
            edges, order = sort_edges(index, count, count)
            self.normalized[key] = weight, edges, hops.ends(edges.forward.ptr), norm[order]
        return self.normalized[key][1:]

    def _narrow(self, given: dict[str, Any], whole: Edges, edges: Edges) -> None:
        """Cuts the arguments to what the layer needs; where it takes sources and destinations apart, to both."""
        for key, value in given.items():
            if key == "edge_index":
                given[key] = edges.index
            elif isinstance(value, Tensor) and value.dim() > 0:
                of_nodes = not key.startswith("edge") and self.hops.groups(value.size(0)) > 0
                if of_nodes and value.size(0) > edges.num_src:
                    given[key] = value[: edges.num_src]
                elif not of_nodes and value.size(0) == whole.num_edges:
                    given[key] = value[: edges.num_edges]
                if of_nodes and "Tuple[" in str(self.signature.parameters[key].annotation):
                    given[key] = (given[key], given[key][: edges.num_dst])

    def _aggregate_first(self, given: dict[str, Any], edges: Edges) -> dict[Any, Tensor]:
        """What ``propagate`` will give for the input itself, which then shares one gradient with the root's rows."""
        fused = self.fused
        if fused is None or fused.weight == "alpha" or not isinstance(given.get("x"), tuple):
            return {}
        x, weight = given["x"][0], None if fused.weight is None else given.get(fused.weight)
        if getattr(self.layer, "project", False) or not _can_aggregate(x, fused, weight):
            return {}
        out, root = aggregate_and_root(x, edges, fused.reduce, weight)
        given["x"] = (x, root)
        return {(id(x), id(weight)): out}

    def _propagate(
        self, original: Callable[..., Tensor], edges: Edges, done: dict[Any, Tensor], edge_index: Any, size: Any = None,
        **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        """``propagate``, over the CSC where the layer's message is known; else PyG's own on the narrowed edges."""
        if self.fused is not None:
            x = kwargs["x"]
            x, x_dst = x if isinstance(x, tuple) else (x, None)
            weight = None if self.fused.weight is None else kwargs[self.fused.weight]
            if (id(x), id(weight)) in done:
                return done[id(x), id(weight)]
            if _can_aggregate(x, self.fused, weight):
                if edge_index is not edges.index:
                    edges = Edges.from_coo(edge_index, len(x), len(x) if x_dst is None else len(x_dst))
                return aggregate(x, edges, self.fused.reduce, weight)
        return original(edge_index, size=size, **kwargs)
