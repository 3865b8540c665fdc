"""Finds out which tensors a computation reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Marks = frozenset[Hashable]
_NONE: Marks = frozenset()


class Reads(TorchDispatchMode):
    """Within, every tensor bears the marks of all tensors that it was computed from.

    Marks belong to memory: a view bears those of its base, and what is written in place adds to them. If a number is
    taken out of a tensor to Python, every tensor bears the marks of that tensor from then on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, tuple[Any, Marks]] = {}  # with the memory, so that its number is not given to another
        self._everywhere: Marks = _NONE

    def mark(self, tensor: Tensor, marks: Iterable[Hashable]) -> None:
        """Gives a tensor these marks in place of others."""
        storage = tensor.untyped_storage()
        self._of[storage._cdata] = storage, frozenset(marks)

    def marks(self, *values: Any) -> Marks:
        """The marks of all tensors in some values."""
        found = self._everywhere
        for tensor in _tensors(values):
            found |= self._of.get(_memory(tensor), (None, _NONE))[1]
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        marks = self.marks(args, list(kwargs.values()))
        out = func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            self._everywhere |= marks
        written = [
            kwargs.get(argument.name, args[place] if place < len(args) else None)
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if marks:
            for tensor in _tensors([out, written]):
                self.mark(tensor, marks | self.marks(tensor))
        return out


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else -1


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors with memory of their own in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
