"""What a split model must have in common on all ranks: modules, their modes and hyperparameters, and parameters."""

from __future__ import annotations

import hashlib
import inspect
from functools import lru_cache
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ..comm.exchange import Exchange
from ..nn.wrapper import modules_of


class Description:
    """The entries of a model that ranks compare, and a digest of them.

    Hyperparameters are attributes of plain values that have the name of an argument of the constructor, such as
    ``aggr`` and ``p``; other attributes, such as counters, may differ between ranks. The entries are made anew when a
    module or parameter was replaced, or has another mode, type, hyperparameter or ``requires_grad``. The numbers in
    parameters and buffers are no entries.

    Args:
        model: the model to describe.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._entries: dict[str, str] = {}
        self._digest = 0
        self._state: list[tuple[Any, ...]] = []
        self._described: list[Any] = []  # kept, so that no other object gets the id of one of them

    @property
    def entries(self) -> dict[str, str]:
        """The description by name."""
        self._refresh()
        return self._entries

    @property
    def digest(self) -> int:
        """A number below 2^56 that follows from the entries."""
        self._refresh()
        return self._digest

    def compare(self, exchange: Exchange) -> str | None:
        """The first entry that is not the same on all ranks, and what rank 0 and another one have; None if all agree.
        All ranks call it together, and return the same."""
        said = exchange.objects(self.entries)
        for rank, theirs in enumerate(said):
            for name in (*said[0], *theirs):
                if said[0].get(name) != theirs.get(name):
                    return f"{name} {said[0].get(name, 'none')} and on rank {rank} {theirs.get(name, 'none')}"
        return None

    def _refresh(self) -> None:
        state: list[tuple[Any, ...]] = []
        described: list[Any] = []
        for module in modules_of(self.model):
            kind: Any = type(module)
            fields = vars(module)
            described.append(module)
            plain = [
                value if type(value) in _IMMUTABLE else repr(value) if _is_plain(value) else None
                for value in map(fields.get, _arguments(kind))
            ]
            state.append((id(module), kind, module.training, plain))
            for parameter in module._parameters.values():
                if parameter is not None:
                    described.append(parameter)
                    state.append((id(parameter), type(parameter), parameter.dtype, parameter.requires_grad))
        if state != self._state:
            self._entries = dict(_describe(self.model))
            found = hashlib.blake2b(repr(self._entries).encode(), digest_size=7).digest()
            self._digest = int.from_bytes(found, "little")
            self._state, self._described = state, described


def _describe(model: nn.Module) -> list[tuple[str, str]]:
    found = []
    for name, module in model.named_modules():
        kind: Any = type(module)
        found.append((f"the type of {name or 'the model'}", kind.__name__))
        plain = {key: value for key in _arguments(kind) if _is_plain(value := vars(module).get(key))}
        for key, value in {"training": module.training, **plain}.items():
            found.append((f"{name}.{key}".lstrip("."), repr(value)))
        found.append((f"extra_repr() of {name or 'the model'}", repr(module.extra_repr())))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        shape = "lazy" if is_lazy(tensor) else str([*tensor.shape])
        learns = "trained" if tensor.requires_grad else "not trained"
        found.append((name, f"{str(tensor.dtype).removeprefix('torch.')} {shape} {learns}"))
    return found


@lru_cache
def _arguments(kind: type) -> tuple[str, ...]:
    """The names of the arguments of the constructors of a class and its bases."""
    return tuple(
        dict.fromkeys(
            name for base in kind.__mro__ if "__init__" in vars(base) for name in inspect.signature(base).parameters
        )
    )


_IMMUTABLE = {bool, int, float, str, type(None)}
"""The types of most plain values, which are recognized faster than by :func:`_is_plain`."""


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str))
