"""A model whose layers' calls are answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch_geometric.nn import MessagePassing

from ..nn.dictionary_layer import takes_dictionaries
from ..nn.forward_pass import LayerOfPass
from ..nn.hops import NodeType
from ..nn.layered import Layered
from .layer import Caller, StagedDictionaryLayer, StagedLayer, StagePass
from .pieces import Pieces

_T = TypeVar("_T")


class StagedModel(Layered):
    """A model whose layers' calls are answered by a :class:`Caller`."""

    layer_type = StagedLayer

    def _prepare(self, name: str, layer: MessagePassing) -> LayerOfPass:
        return StagedDictionaryLayer(name, layer) if takes_dictionaries(layer) else super()._prepare(name, layer)

    def checked(self, small: Any, check: Callable[[], _T]) -> _T:
        """``check()``, which runs the model on parts of the graph ``small``; an index out of range is a ValueError that
        names the module whose code has it."""
        with self._naming_modules(small):
            return check()

    def run(self, batch: Any, nodes: Mapping[NodeType, int], caller: Caller, pieces: Pieces | None = None) -> Any:
        """The model's output for a batch; arguments as of :class:`StagePass`."""
        forward_pass = StagePass(batch, nodes, caller, pieces)
        entered = []
        try:
            for layer in self._layers():
                layer.enter(forward_pass)
                entered.append(layer)
            return self.call(self._model, batch)
        finally:
            for layer in entered:
                layer.leave()
