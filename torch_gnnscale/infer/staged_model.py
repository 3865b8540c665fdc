"""A model's MessagePassing layers, which compute one hop of a graph, a hub's edges piece by piece, or return rows that
are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_remaining_self_loops, scatter

from ..loader.fields import storage_of
from ..nn.aggregate import Bipartite, sort_edges
from ..nn.dictionary_layer import DictionaryLayer, takes_dictionaries
from ..nn.forward_pass import ForwardPass, JoinOfPass, LayerOfPass
from ..nn.hops import BatchHops, HopEdges, NodeRows, NodeType, Relation, relations_of
from ..nn.layered import Layered
from ..nn.merged import Merged, MergedRelation, MergedTrace, merges
from ..nn.narrowed_layer import NarrowedLayer
from ..nn.pyg_layers import BY_EDGE, NORMALIZES, has_own_propagate, is_basis
from .plan import DEGREE, Input

_REDUCTIONS = ("sum", "add", "mean", "max", "min")
_STEPS = ("propagate", "edge_update", "message", "aggregate")
"""Of MessagePassing, those whose hooks would see a piece as if it were all edges."""


def refusal(layer: pyg_nn.MessagePassing) -> str | None:
    """Why a layer cannot aggregate pieces of a node's edges one after the other; None if it can."""
    kind, base = type(layer), pyg_nn.MessagePassing
    inherited = kind.aggregate is base.aggregate and kind.update is base.update and not has_own_propagate(kind)
    if (kind.forward, kind.message) not in BY_EDGE or not inherited:
        return f"{kind.__name__}, which needs all of a node's edges at once"
    for step in () if is_basis(layer) else _STEPS:
        if getattr(layer, f"_{step}_forward_hooks") or getattr(layer, f"_{step}_forward_pre_hooks"):
            return f"a hook of {kind.__name__}'s {step}, which needs all of a node's edges at once"
    if layer.aggr not in _REDUCTIONS:
        return f"aggr={layer.aggr!r}, which needs all of a node's edges at once"
    return None


class Pieces:
    """What is known of the aggregations of one node's edges, of which each forward pass of the model sees a piece.

    Attributes:
        last: whether this is the last piece.
    """

    def __init__(self) -> None:
        self.last = False
        self._of: dict[tuple[str, int], tuple[Tensor, int]] = {}
        self._loops: dict[int, Tensor] = {}
        self._next: dict[str, int] = {}

    def begin(self, last: bool) -> None:
        """Begins a piece."""
        self.last, self._next = last, {}

    def _number(self, what: str) -> int:
        self._next[what] = self._next.get(what, -1) + 1
        return self._next[what]

    def add(self, what: str, reduce: str, of_piece: Tensor, count: int) -> Tensor:
        """The aggregate of all pieces so far; of those that were aggregated as ``what``, the next in order. Rows of 16
        bits are summed in 32.

        Args:
            what: the name of the aggregation.
            reduce: "sum", "add", "mean", "max" or "min".
            of_piece: the aggregate of this piece's edges: [1, ...].
            count: how many these are.
        """
        key, dtype = (what, self._number(what)), of_piece.dtype
        total, before = self._of.get(key, (None, 0))
        if dtype.itemsize == 2:
            of_piece = of_piece.float()
        if total is None or (before == 0 and count > 0):
            total = of_piece * count if reduce == "mean" else of_piece
        elif count > 0:
            if reduce in ("max", "min"):
                total = torch.maximum(total, of_piece) if reduce == "max" else torch.minimum(total, of_piece)
            else:
                total = total + (of_piece * count if reduce == "mean" else of_piece)
        self._of[key] = total, before + count
        found = total / max(before + count, 1) if reduce == "mean" else total
        return found.to(dtype, copy=True)  # layers may write to it

    def loops(self, index: Tensor, weight: Tensor | None, fill: float, what: str) -> tuple[Tensor, Tensor | None]:
        """PyG's ``add_remaining_self_loops`` for the node: its self loop is an edge of the last piece alone."""
        number = self._number(what)
        loops = index[0] == index[1]
        if weight is not None and bool(loops.any()):
            self._loops[number] = weight[loops][-1:]
        index, weight = index[:, ~loops], None if weight is None else weight[~loops]
        if not self.last:
            return index, weight
        own = index.new_zeros(2, 1)
        if weight is not None:
            weight = torch.cat([weight, self._loops.get(number, weight.new_full((1,), fill))])
        return torch.cat([index, own], dim=1), weight


class Layer(Protocol):
    """A layer whose calls a :class:`Caller` answers."""

    title: str
    layer: MessagePassing

    def row_inputs(self, given: Mapping[str, Any]) -> dict[Input, NodeType]:
        """What of these arguments has a row for each node that the model was called with, and their type."""

    def whole(self, given: dict[str, Any]) -> dict[NodeType, Tensor | None]:
        """What the layer computes from these arguments as they are, by node type."""

    def compute(self, given: dict[str, Any], inputs: Mapping[Input, Tensor]) -> dict[NodeType, Tensor | None]:
        """The rows of the seeds, by node type.

        Args:
            given: the arguments that the layer was called with.
            inputs: the rows of all nodes, which take the place of those of the seeds; and :data:`.plan.DEGREE`.
        """

    def returned(self, outputs: dict[NodeType, Any]) -> Any:
        """What the layer returns, if these are its outputs."""

    def normalization(self) -> tuple[bool, bool] | None:
        """(Whether added self loops count twice, whether there are any) of a layer that weighs an edge by the degrees
        of both of its nodes; else None."""

    def degrees(self, given: Mapping[str, Any]) -> dict[NodeType, Tensor]:
        """The degrees of the seeds by which the layer normalizes, by node type: [s], the dtype of its input."""


class Caller(Protocol):
    """Answers the calls of a model's layers."""

    def called(self, layer: Any, given: dict[str, Any]) -> Any:
        """What a :class:`Layer` returns, which was called with these arguments."""


def row_of(given: Mapping[str, Any], key: Input) -> Tensor:
    """The rows that an input is, of a layer's arguments."""
    value = given[key.argument]
    return value if key.place is None else value[key.place]


def _with_rows(given: Mapping[str, Any], inputs: Mapping[Input, Tensor]) -> dict[str, Any]:
    """The arguments with other rows."""
    found = dict(given)
    for (name, place), rows in inputs.items():
        if place is None:
            found[name] = rows
        elif isinstance(found[name], tuple):
            found[name] = tuple(rows if at == place else value for at, value in enumerate(found[name]))
        else:
            found[name] = {**found[name], place: rows}
    return found


def _has_rows(value: Any, nodes: NodeRows) -> bool:
    """Whether it has a row for each node that the model was called with."""
    return isinstance(value, Tensor) and value.shape[:1] == (nodes.rows[0],)


class StagePass(ForwardPass):
    """What the layers of a model share while it is called once.

    Args:
        batch: what the model is called with.
        nodes: by type, of how many nodes edges come; the batch's are the first of them.
        caller: answers the layers' calls.
        pieces: if the edges are a piece of those of a single node, what is known of the pieces before.
    """

    def __init__(self, batch: Any, nodes: Mapping[NodeType, int], caller: Caller, pieces: Pieces | None) -> None:
        hop: Any = Data() if None in nodes else HeteroData()
        for node_type, count in nodes.items():
            store, seeds = storage_of(hop, node_type), storage_of(batch, node_type).num_nodes
            store.num_nodes, store.num_sampled_nodes = count, [seeds, count - seeds]
        for key, edges in relations_of(batch).items():
            store = storage_of(hop, key)
            store.edge_index, store.num_sampled_edges = edges.edge_index, [edges.edge_index.size(1)]
        super().__init__(BatchHops(hop, verify=False))
        self.caller, self.pieces = caller, pieces
        self.degree: Tensor | None = None
        """Of the layer that is called, the degrees of all nodes in the whole graph."""

    def normalized(
        self, relation: Relation, weight: Tensor | None, improved: bool, loops: bool, flow: str, dtype: torch.dtype
    ) -> tuple[HopEdges, Tensor]:
        """The edges with self loops, and their weights [e] by the degrees in the whole graph."""
        assert self.degree is not None
        index, weight = self.with_loops(relation, "normalized", weight, (improved, loops), dtype)
        scale = self.degree.pow(-0.5)
        scale.masked_fill_(scale.isinf(), 0)
        rows = relation.dst.rows
        edges, order = sort_edges(index, rows[-1], rows[-1])
        norm = scale[index[0]] * weight * scale[index[1]]
        return HopEdges(edges, rows, rows, relation.ends_in(edges.forward.ptr)), norm[order]

    def with_loops(
        self, relation: Relation, what: str, weight: Tensor | None, normalization: tuple[bool, bool], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The edges and their weights which PyG's ``gcn_norm`` normalizes, self loops included."""
        (improved, loops), index = normalization, relation.index
        fill = 2.0 if improved else 1.0
        if loops and self.pieces is not None:
            index, weight = self.pieces.loops(index, weight, fill, what)
        elif loops:
            index, weight = add_remaining_self_loops(index, weight, fill, relation.src.rows[-1])
        return index, torch.ones(index.size(1), dtype=dtype) if weight is None else weight


class StagedLayer(NarrowedLayer):
    """A layer on one relation, whose calls are answered by a :class:`Caller` between :meth:`enter` and :meth:`leave`;
    see :class:`Layer`."""

    forward_pass: StagePass  # type: ignore[assignment]
    _merged: Merged | None = None
    """Within a call on relations that are merged into one: their nodes, of which rows are given by type."""

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's ``forward``."""
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        relation = self._called_on(given)
        try:
            if isinstance(relation, MergedRelation):
                self._merged = relation.merged
                rows = [name for name, value in given.items() if self._is_of_nodes(name, value, relation)]
                given.update({name: relation.merged.split(given[name])[0] for name in rows})
            return self.forward_pass.caller.called(self, given)
        finally:
            self._merged = None

    def _types(self, given: Mapping[str, Any]) -> tuple[NodeType, NodeType]:
        key = self._called_on(dict(given)).key
        return (None, None) if key is None else (key[0], key[-1])

    @staticmethod
    def _is_of_nodes(name: str, value: Any, relation: Relation) -> bool:
        return relation.src is relation.dst and not name.startswith("edge") and _has_rows(value, relation.src)

    def _joined(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with rows by type as those of merged nodes."""
        joined = self._merged
        return {
            name: value if joined is None or not isinstance(value, dict) else joined.rows(value)
            for name, value in given.items()
        }

    def row_inputs(self, given: Mapping[str, Any]) -> dict[Input, NodeType]:
        """The arguments that have a row for each node that the model was called with, and their node type."""
        relation, (src, dst) = self._called_on(dict(given)), self._types(given)
        found: dict[Input, NodeType] = {}
        for name, value in given.items():
            if self._merged is not None and isinstance(value, dict):
                found |= {Input(name, node_type): node_type for node_type in value}
            elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Tensor):
                found[Input(name, 0)] = src
                if value[1] is not None:
                    found[Input(name, 1)] = dst
            elif self._is_of_nodes(name, value, relation):
                found[Input(name)] = src
        if not found:
            raise ValueError(f"{self.title}: expected an argument with a row for each node, found none")
        return found

    def whole(self, given: dict[str, Any]) -> dict[NodeType, Tensor | None]:
        """What the layer computes from these arguments as they are, by node type."""
        return self._rows(given, self.forward(**self._joined(given)))

    def compute(self, given: dict[str, Any], inputs: Mapping[Input, Tensor]) -> dict[NodeType, Tensor | None]:
        """The rows of the seeds, by node type, from the rows of all nodes."""
        degrees = {key.place: value for key, value in inputs.items() if key.argument == DEGREE}
        self.forward_pass.degree = self.returned(degrees) if degrees else None
        rows = {key: value for key, value in inputs.items() if key.argument != DEGREE}
        return self._rows(given, super().computed(**self._joined(_with_rows(given, rows))))

    def _rows(self, given: Mapping[str, Any], out: Any) -> dict[NodeType, Tensor | None]:
        if not isinstance(out, Tensor):
            raise ValueError(f"{self.title}: expected a layer that returns rows, found a {type(out).__name__}")
        return {self._types(given)[1]: out} if self._merged is None else {**self._merged.split(out)[0]}

    def returned(self, outputs: dict[NodeType, Any]) -> Any:
        """What the layer returns, if these are its outputs."""
        if self._merged is not None:
            return self._merged.rows(outputs)
        (rows,) = outputs.values()
        return rows

    def normalization(self) -> tuple[bool, bool] | None:
        """(Whether added self loops count twice, whether there are any) of GCNConv and its like; else None."""
        layer = self.layer
        if not isinstance(layer, NORMALIZES) or not layer.normalize:
            return None
        if getattr(layer, "cached", False):
            raise ValueError(f"{self.title}: expected cached=False, for it would keep the edges of another graph")
        return getattr(layer, "improved", False), getattr(layer, "add_self_loops", False)

    def degrees(self, given: Mapping[str, Any]) -> dict[NodeType, Tensor]:
        """The degrees of the seeds by which the layer normalizes, by node type: [s], the dtype of its input."""
        relation, normalization, pieces = self._called_on(dict(given)), self.normalization(), self.forward_pass.pieces
        assert normalization is not None
        index, weight = self.forward_pass.with_loops(
            relation, "degrees", given.get("edge_weight"), normalization, self._joined(given)["x"].dtype
        )
        found = scatter(weight, index[1], dim=0, dim_size=relation.src.rows[-1], reduce="sum")[: relation.dst.rows[0]]
        found = found if pieces is None else pieces.add("degrees", "sum", found, len(weight))
        return {self._types(given)[1]: found} if self._merged is None else self._merged.split(found)[0]

    def _of_sage(self, given: dict[str, Any], edges: Bipartite) -> Tensor | None:
        return super()._of_sage(given, edges) if self.forward_pass.pieces is None else None

    def aggregated(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """The aggregate of each destination's messages; of a piece of edges, of all pieces so far: [1, ...]."""
        out, pieces = super().aggregated(edge_index, size, **kwargs), self.forward_pass.pieces
        return out if pieces is None else pieces.add("aggregated", self.layer.aggr, out[:1], edge_index.size(1))


class StagedDictionaryLayer(DictionaryLayer):
    """A layer that takes dictionaries by type; see :class:`StagedLayer`."""

    forward_pass: StagePass  # type: ignore[assignment]

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's ``forward``."""
        return self.forward_pass.caller.called(self, {**dict(zip(self._names, args, strict=False)), **kwargs})

    def row_inputs(self, given: Mapping[str, Any]) -> dict[Input, NodeType]:
        """The arguments that have a row for each node that the model was called with, and their node type."""
        nodes = self.forward_pass.hops.nodes
        return {
            Input(name, key): key
            for name, value in given.items()
            if isinstance(value, Mapping)
            for key, rows in value.items()
            if key in nodes and _has_rows(rows, nodes[key])
        }

    def whole(self, given: dict[str, Any]) -> dict[NodeType, Tensor | None]:
        """What the layer computes from these arguments as they are, by node type."""
        return self._by_type(self.forward(**given))

    def compute(self, given: dict[str, Any], inputs: Mapping[Input, Tensor]) -> dict[NodeType, Tensor | None]:
        """The rows of the seeds, by node type, from the rows of all nodes."""
        return self._by_type(super().computed(**_with_rows(given, inputs)))

    def _by_type(self, out: Any) -> dict[NodeType, Tensor | None]:
        if not isinstance(out, Mapping):
            raise ValueError(f"{self.title}: expected a layer that returns rows by type, found a {type(out).__name__}")
        return dict(out)

    def returned(self, outputs: dict[NodeType, Any]) -> Any:
        """What the layer returns, if these are its outputs."""
        return outputs

    def normalization(self) -> None:
        """None: no such layer weighs its edges by degrees."""

    def degrees(self, given: Mapping[str, Any]) -> dict[NodeType, Tensor]:
        """Not called, for no such layer normalizes."""
        raise NotImplementedError


# The model ############################################################################################################

_T = TypeVar("_T")


class StagedModel(Layered):
    """A model whose layers' calls are answered by a :class:`Caller`."""

    layer_type = StagedLayer

    def _prepare(self, name: str, layer: MessagePassing) -> LayerOfPass:
        return StagedDictionaryLayer(name, layer) if takes_dictionaries(layer) else super()._prepare(name, layer)

    def _joining(self, modules: list[nn.Module]) -> list[JoinOfPass]:
        return [MergedTrace(module) for module in modules if merges(module)]

    def checked(self, small: Any, check: Callable[[], _T]) -> _T:
        """``check()``, which runs the model on parts of the graph ``small``; an index out of range is a ValueError that
        names the module whose code has it."""
        with self._naming_modules(small):
            return check()

    def run(self, batch: Any, nodes: Mapping[NodeType, int], caller: Caller, pieces: Pieces | None = None) -> Any:
        """The model's output for a batch; arguments as of :class:`StagePass`."""
        forward_pass = StagePass(batch, nodes, caller, pieces)
        entered = list[JoinOfPass]()
        try:
            for layer in (*self._layers(), *self._joins):
                layer.enter(forward_pass)
                entered.append(layer)
            return self.call(self._model, batch)
        finally:
            for layer in entered:
                layer.leave()
