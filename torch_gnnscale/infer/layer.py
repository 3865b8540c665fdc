"""A model's MessagePassing layers, which compute one hop of a graph, or return rows that are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import add_remaining_self_loops, scatter

from ..nn.aggregate import Adjacency, sort_edges
from ..nn.forward_pass import ForwardPass
from ..nn.hops import HopEdges, Hops, Relation
from ..nn.layer import _NORMALIZES, NarrowedLayer
from ..nn.layered import Layered
from .pieces import Pieces
from .plan import DEGREE

_T = TypeVar("_T")


class Caller(ABC):
    """Answers the calls of a model's layers."""

    @abstractmethod
    def called(self, layer: StagedLayer, given: dict[str, Any]) -> Tensor:
        """The rows that a layer returns, which was called with these arguments."""


class StagePass(ForwardPass):
    """What the layers of a model share while it is called once.

    Args:
        edge_index: the edges that the model gets, sorted by destination.
        num_nodes, num_seeds: of how many nodes they come, and to how many of these they lead.
        caller: answers the layers' calls.
        pieces: if these are a piece of the edges of a single node, what is known of the pieces before.
    """

    def __init__(
        self, edge_index: Tensor, num_nodes: int, num_seeds: int, caller: Caller, pieces: Pieces | None = None
    ) -> None:
        hop = Data(edge_index=edge_index, num_nodes=num_nodes)
        hop.num_sampled_nodes = [num_seeds, num_nodes - num_seeds]
        hop.num_sampled_edges = [edge_index.size(1)]
        super().__init__(Hops(hop, verify=False))
        self.num_nodes, self.num_seeds = num_nodes, num_seeds
        self.caller, self.pieces = caller, pieces
        self.degree: Tensor | None = None
        """Of the layer that is called, the degrees of all nodes in the whole graph."""

    def normalized(
        self, relation: Relation, weight: Tensor | None, improved: bool, loops: bool, flow: str, dtype: torch.dtype
    ) -> tuple[HopEdges, Tensor]:
        """The edges with self loops, and their weights [e] by the degrees in the whole graph."""
        assert self.degree is not None
        index, weight = self.with_loops("normalized", weight, (improved, loops), dtype)
        scale = self.degree.pow(-0.5)
        scale.masked_fill_(scale.isinf(), 0)
        edges, order = sort_edges(index, self.num_nodes, self.num_nodes)
        norm = scale[index[0]] * weight * scale[index[1]]
        rows = relation.dst.rows
        return HopEdges(edges, rows, rows, relation.ends_in(edges.forward.ptr)), norm[order]

    def with_loops(
        self, what: str, weight: Tensor | None, normalization: tuple[bool, bool], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The edges and their weights which PyG's ``gcn_norm`` normalizes, self loops included."""
        (improved, loops), index = normalization, self.hops.only.index
        fill = 2.0 if improved else 1.0
        if loops and self.pieces is not None:
            index, weight = self.pieces.loops(index, weight, fill, what)
        elif loops:
            index, weight = add_remaining_self_loops(index, weight, fill, self.num_nodes)
        return index, torch.ones(index.size(1), dtype=dtype) if weight is None else weight


class StagedLayer(NarrowedLayer):
    """A layer whose calls are answered by a :class:`Caller`, between :meth:`enter` and :meth:`leave`."""

    forward_pass: StagePass

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's ``forward``."""
        return self.forward_pass.caller.called(self, {**dict(zip(self._names, args, strict=False)), **kwargs})

    def compute(self, given: dict[str, Any], inputs: dict[str, Tensor]) -> Tensor:
        """The rows of the seeds.

        Args:
            given: the arguments that the layer was called with.
            inputs: by argument, the rows of all nodes, which take the place of those of the seeds; and
                :data:`.plan.DEGREE`.
        """
        self.forward_pass.degree = inputs.get(DEGREE)
        return self.rows(super().computed(**{name: inputs.get(name, value) for name, value in given.items()}))

    def rows(self, out: Any) -> Tensor:
        """What the layer returned; ValueError if it is no tensor of rows."""
        if not isinstance(out, Tensor):
            raise ValueError(f"{self.title}: expected a layer that returns rows, found a {type(out).__name__}")
        return out

    def row_arguments(self, given: dict[str, Any], num_nodes: int) -> list[str]:
        """The arguments that have a row for each of the nodes that the model was called with."""
        self._called_on(given)
        found = [
            name
            for name, value in given.items()
            if isinstance(value, Tensor) and not name.startswith("edge") and value.shape[:1] == (num_nodes,)
        ]
        if not found:
            raise ValueError(f"{self.title}: expected an argument with a row for each of {num_nodes} nodes, found none")
        return found

    @property
    def normalization(self) -> tuple[bool, bool] | None:
        """(Whether added self loops count twice, whether there are any) of a layer that weighs an edge by the degrees
        of both of its nodes; else None."""
        layer = self.layer
        if not isinstance(layer, _NORMALIZES) or not layer.normalize:
            return None
        if getattr(layer, "cached", False):
            raise ValueError(f"{self.title}: expected cached=False, for it would keep the edges of another graph")
        return getattr(layer, "improved", False), getattr(layer, "add_self_loops", False)

    def degrees(self, given: dict[str, Any]) -> Tensor:
        """The degrees of the seeds by which the layer normalizes: [s], the dtype of its input."""
        assert self.normalization is not None
        forward_pass = self.forward_pass
        index, weight = forward_pass.with_loops(
            "degrees", given.get("edge_weight"), self.normalization, given["x"].dtype
        )
        found = scatter(weight, index[1], dim=0, dim_size=forward_pass.num_nodes, reduce="sum")
        found, pieces = found[: forward_pass.num_seeds], forward_pass.pieces
        return found if pieces is None else pieces.add("degrees", "sum", found, len(weight))

    def _of_sage(self, given: dict[str, Any], edges: Adjacency) -> Tensor | None:
        return super()._of_sage(given, edges) if self.forward_pass.pieces is None else None

    def aggregated(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """See :class:`NarrowedLayer`; of a piece of edges, the aggregate of all pieces so far: [1, ...]."""
        out, pieces = super().aggregated(edge_index, size, **kwargs), self.forward_pass.pieces
        return out if pieces is None else pieces.add("aggregated", self.layer.aggr, out[:1], edge_index.size(1))


class StagedModel(Layered):
    """A model whose layers' calls are answered by a :class:`Caller`."""

    layer_type = StagedLayer

    def checked(self, small: Any, check: Callable[[], _T]) -> _T:
        """``check()``, which runs the model on parts of the graph ``small``; an index out of range is a ValueError that
        names the module whose code has it."""
        with self._naming_modules(small):
            return check()

    def run(self, batch: Any, num_nodes: int, caller: Caller, pieces: Pieces | None = None) -> Any:
        """The model's output for a batch, whose edges come from ``num_nodes`` nodes, the batch's before others."""
        forward_pass = StagePass(batch.edge_index, num_nodes, batch.num_nodes, caller, pieces)
        entered = []
        try:
            for layer in self._layers():
                assert isinstance(layer, StagedLayer)
                layer.enter(forward_pass)
                entered.append(layer)
            return self.call(self._model, batch)
        finally:
            for layer in entered:
                layer.leave()
