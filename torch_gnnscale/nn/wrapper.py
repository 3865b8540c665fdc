"""A module that wraps a model and keeps the names of the model's parameters; attributes that are set temporarily."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from torch import nn

_ABSENT = object()


class Shadow:
    """Sets attributes of an object, without calling its ``__setattr__``, and restores their values from before."""

    def __init__(self, of: object) -> None:
        self.attributes = vars(of)
        self.before: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        """Sets an attribute until :meth:`restore`."""
        self.before.setdefault(name, self.attributes.get(name, _ABSENT))
        self.attributes[name] = value

    def restore(self) -> None:
        """Restores the attributes as they were before the first :meth:`set`; those that were absent are deleted."""
        for name, value in self.before.items():
            if value is _ABSENT:
                del self.attributes[name]
            else:
                self.attributes[name] = value
        self.before.clear()


def modules_of(model: nn.Module) -> list[nn.Module]:
    """``list(model.modules())``, in a fifth of the time, because it is needed for each batch."""
    found: dict[nn.Module, None] = {}
    left = [model]
    while left:
        module = left.pop()
        if module not in found:
            found[module] = None
            left += [child for child in reversed(module._modules.values()) if child is not None]
    return list(found)


def title_of(name: str, module: nn.Module) -> str:
    """The name and kind of a module of a model, for errors; the model's own name is empty."""
    return f"{name or 'the model'} ({type(module).__name__})"


def running_module(frames: Iterable[FrameType]) -> str:
    """The name and kind of the innermost module of a wrapped model whose code runs in some frames, which begin with the
    innermost one."""
    running: list[nn.Module] = []
    for frame in frames:
        found = frame.f_locals.get("self")
        if isinstance(found, Wrapper):
            names = {module: name for name, module in found.module.named_modules()}
            module = next((module for module in running if module in names), found.module)
            return title_of(names[module], module)
        if isinstance(found, nn.Module):
            running.append(found)
    return "the model"


def running_here() -> str:
    """The name and kind of the innermost module of a wrapped model whose code this thread runs."""
    frames, frame = list[FrameType](), sys._getframe(1).f_back
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return running_module(frames)


class Wrapper(nn.Module):
    """A wrapped model; ``module`` is the model, unchanged.

    Parameters, buffers, submodules and the ``state_dict`` have the model's names, so that a ``state_dict`` of either
    can be loaded into the other. Attributes that this object lacks are looked up in the model.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """This module, then the model, both named ``prefix``; then the model's submodules by their names in it."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The model's ``state_dict``."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Loads a ``state_dict`` of the model, or of this module."""
        return self.module.load_state_dict(state_dict, strict, assign)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Called by ``load_state_dict`` of a module that contains this one, which next loads the model from the entries
        ``prefix`` + "module.": renames the model's entries to these."""
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[f"{prefix}module.{name.removeprefix(prefix)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self).copy()  # Python has had this method of all objects since 3.11

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):  # of a model that says how it is copied, as torch.fx's do
                raise
            return getattr(super().__getattr__("module"), name)
