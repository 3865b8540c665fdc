"""A wrapped model whose MessagePassing layers are told, for each batch, what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .hops import first_rows, num_seeds
from .layer import ForwardPass, NarrowedLayer
from .weigh import Weighed, default_call
from .wrapper import Wrapper, modules_of


class Layered(Wrapper):
    """A model, or what :func:`weigh` returned, and its MessagePassing layers.

    Args:
        module: the model.
        call: how it is called with a batch; the default of a weighed model is what :func:`weigh` was given.

    Raises:
        ValueError: the model has no MessagePassing layers, or is wrapped already.
    """

    layer_type: type[NarrowedLayer] = NarrowedLayer
    """The class that computes the layers during a forward pass."""

    def __init__(self, module: nn.Module, call: Callable[[Any, Any], Any] = default_call) -> None:
        super().__init__(module)
        model = module
        if isinstance(module, Weighed):
            model, call = module.module, module.call if call is default_call else call
        if found := next((m for m in model.modules() if isinstance(m, Wrapper)), None):
            raise ValueError(
                f"model: expected a model or weigh(model), found {type(found).__name__} within {type(model).__name__}"
            )
        self.call = call
        self._prepared: dict[pyg_nn.MessagePassing, NarrowedLayer] = {}
        if not self._layers():
            raise ValueError(f"model: expected one with MessagePassing layers, found none in {type(module).__name__}")

    def _layers(self) -> list[NarrowedLayer]:
        """The model's layers. They are looked up in each call, because a model may get others; a layer is prepared when
        it is seen first."""
        layers = [module for module in modules_of(self.module) if isinstance(module, pyg_nn.MessagePassing)]
        if any(layer not in self._prepared for layer in layers):
            names = {module: name for name, module in self.module.named_modules()}
            self._prepared = {layer: self.layer_type(names[layer], layer) for layer in layers}
            self._layers_changed()
        return [self._prepared[layer] for layer in layers]

    def _layers_changed(self) -> None:
        """Called when the model has other layers than before."""

    def _has_lazy(self) -> bool:
        return any(is_lazy(parameter) for parameter in self.module.parameters())

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """A context in which the model is in evaluation mode; afterwards each module has its mode again."""
        training = {module: module.training for module in self.modules()}
        self.eval()
        try:
            yield
        finally:
            for module, mode in training.items():
                module.training = mode

    def _whole(self, batch: Any) -> Tensor:
        """The model's output for the whole batch."""
        if isinstance(self.module, Weighed):
            with self.module.weighing(batch):
                return self.call(self.module.module, batch)
        return self.call(self.module, batch)

    def _weight(self, batch: Any) -> Tensor | None:
        """The numbers by which messages are multiplied, one per edge of the batch; None if the model is not weighed."""
        return self.module.edge_weight(batch) if isinstance(self.module, Weighed) else None

    def _compute(self, batch: Any, forward_pass: ForwardPass) -> Tensor:
        """The model's output for the batch's seeds, with its layers in a forward pass."""
        model = self.module.module if isinstance(self.module, Weighed) else self.module
        entered = []
        try:
            for layer in self._layers():
                layer.enter(forward_pass)
                entered.append(layer)
            with forward_pass.common_rows:
                return first_rows(self.call(model, batch), num_seeds(batch))
        finally:
            for layer in entered:
                layer.leave()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_prepared": {}}
