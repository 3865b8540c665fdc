"""A module that wraps a model and keeps the names of the model's parameters; attributes that are set temporarily; and
the calls of a model's layers in their order, which say at which hop each of them is.

Numbers of rows do not tell where a hop found no node, for then the first g groups of a batch have as many nodes as the
first g + 1; nor on a rank that has none of a batch's nodes. So calls are found out on a batch that has nodes in every
group, by numbers of rows, and each later batch takes them from there. In a batch of types, a call is that of a layer on
one relation, or of a layer that takes dictionaries."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from torch import nn

from .hops import EdgeType

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


MOST_KNOWN = 16
"""How many orders of calls are kept: what a model calls may depend on the batch, so that there is no end of them."""


class Read(NamedTuple):
    """The rows that a layer reads in one call."""

    nodes: tuple[str, ...] = ()
    """The arguments that have a row for each node of the batch's first groups."""
    edges: tuple[str, ...] = ()
    """The arguments that have a row for each of the batch's edges."""


class Call(NamedTuple):
    """One call of a layer."""

    title: str
    """The layer's."""
    groups: int
    """The number of first groups whose rows it gets; it returns the rows of one group less."""
    read: Read = Read()
    """Where ranks compute parts of a batch: what it reads, the same on all ranks."""
    shares: bool = False
    """Where ranks compute parts of a batch: whether another call reads the same tensor, whose halo is then exchanged
    once for all of them."""
    relations: tuple[EdgeType, ...] = (None,)
    """Whose edges it reads."""


class Calls:
    """Goes through the calls of one forward pass.

    Args:
        known: the calls; None: they are found out, and kept in ``calls``.
    """

    def __init__(self, known: list[Call] | None) -> None:
        self.finds_out = known is None
        self.calls: list[Call] = [] if known is None else known
        self.number = 0
        """Of the call that comes next."""

    def expected(self) -> str:
        """The title of the layer whose call comes next."""
        return self.calls[self.number].title if self.number < len(self.calls) else "no further layer"

    def next(self, title: str) -> Call | None:
        """The call that comes next, if it is one of the layer ``title``; else None, and it still comes next."""
        if self.number == len(self.calls) or self.calls[self.number].title != title:
            return None
        self.number += 1
        return self.calls[self.number - 1]


class Functions:
    """The functions and layers that a model called in forward passes that were compared with the whole model. A pass
    that calls others, or in another order, may compute something that was never compared."""

    def __init__(self) -> None:
        self.known: set[tuple[str, ...]] = set()
        """For each such pass, the names of what it called, in order."""
        self.names: set[str] = set()
        """All of these names."""

    def knows(self, called: list[str]) -> bool:
        """Whether a pass called the same as one before, in the same order. Once MOST_KNOWN orders are known, the order
        no longer counts: only whether it called nothing new."""
        return tuple(called) in self.known or (len(self.known) >= MOST_KNOWN and self.names.issuperset(called))

    def add(self, called: list[str]) -> None:
        """Adds a pass that was compared."""
        self.known.add(tuple(called))
        self.names.update(called)
