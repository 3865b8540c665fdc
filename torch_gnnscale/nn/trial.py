"""Running a model to look at what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from .kept_state import kept_state
from .wrapper import modules_of

DROPOUTS = {"dropout", "dropout_"}
OTHER_DROPOUTS = {"alpha_dropout", "feature_alpha_dropout", "feature_dropout", "dropout1d", "dropout2d", "dropout3d"}
"""Functions that set random numbers of their first argument to 0, or scale or shift them."""


class _NothingDrops(TorchFunctionMode):
    """Within, dropout returns what it is given."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in DROPOUTS | OTHER_DROPOUTS:
            return args[0] if args else (kwargs or {})["input"]
        return func(*args, **(kwargs or {}))


@contextmanager
def trial(model: nn.Module, norms: tuple[type[nn.Module], ...], device: torch.device) -> Iterator[None]:
    """A context in which a model runs without gradients, in the modes of its modules, except that nothing is dropped,
    and that norms in training take their running statistics. Afterwards its buffers, the attributes of its modules and
    random generators are what they were (:func:`.kept_state.kept_state`).

    Args:
        model: the model.
        norms: the classes of norms.
        device: of what it computes with.
    """
    modules = modules_of(model)
    frozen = [module for module in modules if module.training and isinstance(module, norms)]
    buffers = [(module._buffers, dict(module._buffers)) for module in modules if module._buffers]
    generators = [device] if device.type == "cuda" else []
    with kept_state(model), torch.no_grad(), torch.random.fork_rng(generators), _NothingDrops():
        for module in frozen:
            module.training = False
        for current, before in buffers:
            current.update({n: b if b is None or is_lazy(b) else b.clone() for n, b in before.items()})
        try:
            yield
        finally:
            for current, before in buffers:
                current.clear()
                current.update(before)
            for module in frozen:
                module.training = True
